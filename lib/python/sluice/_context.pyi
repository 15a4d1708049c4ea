# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
from collections.abc import Mapping
from multiprocessing import context as mp
from multiprocessing import process, synchronize
from typing import Any, ClassVar, Literal, overload

from ._queue import Queue as _Queue

class _Worker:
    def __init__(self, *args: Any, **kw: Any) -> None: ...
    def run(self) -> None: ...

class ForkProcess(_Worker, mp.ForkProcess): ...
class SpawnProcess(_Worker, mp.SpawnProcess): ...
class ForkServerProcess(_Worker, mp.ForkServerProcess): ...

class Event(synchronize.Event):
    def is_set(self) -> bool: ...

class _Queues:
    def __init__(self, **options: Any) -> None: ...
    def Queue(self, maxsize: int = 0) -> _Queue: ...
    def Event(self) -> Event: ...

class ForkContext(_Queues, mp.ForkContext):  # type: ignore[misc]
    Process: ClassVar[type[ForkProcess]]  # type: ignore[assignment]

class SpawnContext(_Queues, mp.SpawnContext):  # type: ignore[misc]
    Process: ClassVar[type[SpawnProcess]]  # type: ignore[assignment]

class ForkServerContext(_Queues, mp.ForkServerContext):  # type: ignore[misc]
    Process: ClassVar[type[ForkServerProcess]]  # type: ignore[assignment]

def fate(child: process.BaseProcess) -> str: ...
def is_ours(ctx: object) -> bool: ...
@overload
def context(
    __method: Literal["fork"], __options: Mapping[str, Any] | None = None, **kw: Any
) -> ForkContext: ...
@overload
def context(
    __method: Literal["spawn"], __options: Mapping[str, Any] | None = None, **kw: Any
) -> SpawnContext: ...
@overload
def context(
    __method: Literal["forkserver"], __options: Mapping[str, Any] | None = None, **kw: Any
) -> ForkServerContext: ...
@overload
def context(
    __method: str | None = None, __options: Mapping[str, Any] | None = None, **kw: Any
) -> ForkContext | SpawnContext | ForkServerContext: ...
