# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["main", "run"]

def run(
    make_loader: Callable[[], Any],
    step: Callable[[Any], object] | None = None,
    seconds: float = 1.0,
    rounds: int = 3,
    program: str = "sluice",
    sluice: bool = True,
) -> dict[str, Any]: ...
def main(argv: Sequence[str] | None = None) -> int: ...
