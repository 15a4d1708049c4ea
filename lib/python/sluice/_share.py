# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""share(obj): one read-only copy for every process that gets it.

The object is written once into an arena of its size.  What is pickled is the arena's descriptor
and the name of the extent; a worker maps it and decodes items when they are asked for.
"""
import collections.abc
import operator
import os

from . import _sluice
from ._codec import codec
from ._core import PRODUCE, Arena

_LIST, _DICT, _VALUE = range(3)


class _Stored:
    """The extent: held by the process that wrote it, referred to by the others."""

    def __init__(self, arena, token, batch):
        self.arena = arena
        self.token = token
        self.batch = batch
        self.gen = _sluice.fork_generation()

    def get(self):
        if self.batch is None or self.gen != _sluice.fork_generation():
            self.batch = self.arena._open(self.token)
            self.gen = _sluice.fork_generation()
        return self.batch

    def __reduce__(self):
        return _Stored, (self.arena, self.token, None)


def _store(items):
    plan = _sluice.encode_items(items, codec)
    arena = Arena(plan.nbytes + (1 << 16), label="py-share-%d" % os.getpid())
    channel = arena._channel("share", create=True, capacity=1, flags=PRODUCE)
    batch = channel.begin(plan.nbytes, 1, 0)
    batch.write(plan)
    batch.seal()
    return _Stored(arena, batch.token(), batch)


class _Shared:
    __slots__ = ("_stored", "__weakref__")

    def __init__(self, stored):
        self._stored = stored

    def __reduce__(self):
        return type(self), (self._stored,)

    def _item(self, i):
        return self._stored.get().item(i, codec)

    def stats(self):
        return self._stored.arena.stats()


class SharedList(_Shared, collections.abc.Sequence):
    """A list or tuple; items are decoded when they are taken out."""

    __slots__ = ()

    def __len__(self):
        return self._stored.get().count()

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self._item(k) for k in range(*i.indices(len(self)))]
        n = len(self)
        k = operator.index(i)
        if not -n <= k < n:
            raise IndexError("item %d of %d" % (k, n))
        return self._item(k + n if k < 0 else k)

    def __eq__(self, other):
        if not isinstance(other, (list, tuple, SharedList)) or len(other) != len(self):
            return NotImplemented
        return all(a == b for a, b in zip(self, other))

    __hash__ = None

    def __repr__(self):
        return "<sluice.SharedList of %d items>" % len(self)


class SharedDict(_Shared, collections.abc.Mapping):
    """A dict; values are decoded when they are taken out, keys once in each process."""

    __slots__ = ("_index",)

    def _keys(self):
        try:
            return self._index
        except AttributeError:
            self._index = {k: i for i, k in enumerate(self._item(0), 1)}
            return self._index

    def __len__(self):
        return len(self._keys())

    def __iter__(self):
        return iter(self._keys())

    def __getitem__(self, key):
        return self._item(self._keys()[key])

    def __repr__(self):
        return "<sluice.SharedDict of %d items>" % len(self)


class SharedValue(_Shared):
    """Any other object, an array or a tensor in most cases: get() gives it."""

    __slots__ = ()

    def get(self):
        return self._item(0)

    def __array__(self, dtype=None, copy=None):
        import numpy

        a = numpy.asarray(self.get(), dtype)
        return a.copy() if copy else a

    def __len__(self):
        return len(self.get())

    def __getitem__(self, i):
        return self.get()[i]

    def __repr__(self):
        return "<sluice.SharedValue %r>" % (type(self.get()).__name__,)


def share(obj):
    """A read-only object that costs a few bytes to pickle, however large it is.

    A list or tuple becomes a Sequence, a dict a Mapping, anything else something with get().
    Arrays and tensors in it are views of the one copy: writing to them is seen by everybody.
    """
    if isinstance(obj, (list, tuple)):
        return SharedList(_store(obj))
    if isinstance(obj, dict):
        return SharedDict(_store([list(obj), *obj.values()]))
    return SharedValue(_store([obj]))
