# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What the C encoder asks about types that it does not know.

Builtin containers, numbers, strings and bytes are encoded in C.  This module describes tensors
and arrays to it, and pickles everything else with protocol 5, whose buffers go into the extent.
"""
import copyreg
import dataclasses
import io
import pickle
import sys
from multiprocessing.reduction import ForkingPickler

from . import _sluice

PICKLE, NAMEDTUPLE, OBJECT, TENSOR, ARRAY = range(5)

# torch dtypes that DLPack carries under every torch since 1.13: (code, bits)
_NATIVE = {
    "uint8": (1, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "complex64": (5, 64),
    "complex128": (5, 128),
}
# The others travel as integers of their size and are viewed as their own type on arrival.
_VIEWED = (
    ("bool", 8),
    ("complex32", 32),
    ("uint16", 16),
    ("uint32", 32),
    ("uint64", 64),
    ("float8_e4m3fn", 8),
    ("float8_e5m2", 8),
    ("float8_e4m3fnuz", 8),
    ("float8_e5m2fnuz", 8),
    ("float8_e8m0fnu", 8),
    ("float4_e2m1fn_x2", 8),
)
_DTYPE_MASK = 0xFF
_REQUIRES_GRAD = 1 << 8
_PARAMETER = 1 << 9
_MAX_DIMS = 32


class _Torch:
    """Everything of torch that is needed, looked up once."""

    def __init__(self):
        import torch
        from torch.utils.dlpack import from_dlpack

        self.torch = torch
        # The function without its wrapper, which asks every argument what it is.
        self.from_capsule = getattr(torch._C, "_from_dlpack", from_dlpack)
        self.exact = (torch.Tensor, torch.nn.Parameter)
        self.plain = torch.Tensor
        self.strided = torch.strided
        self.dtypes = {}
        self.viewed = [None]
        for name, code in _NATIVE.items():
            self.dtypes[getattr(torch, name)] = (*code, 0)
        for name, bits in _VIEWED:
            dt = getattr(torch, name, None)
            self.viewed.append(dt)
            if dt is not None:
                self.dtypes[dt] = (1 if bits == 8 else 0, bits, len(self.viewed) - 1)

    def make(self, capsule, extra):
        t = self.from_capsule(capsule)
        view = extra & _DTYPE_MASK
        if view:
            t = t.view(self.viewed[view])
        if extra & _PARAMETER:
            return self.torch.nn.Parameter(t, requires_grad=bool(extra & _REQUIRES_GRAD))
        if extra & _REQUIRES_GRAD:
            t.requires_grad_()
        return t

    def at(self, address, nbytes, code, bits, shape):
        """A tensor over memory that somebody else keeps alive."""
        return self.over(_sluice.view_at(address, nbytes), code, bits, shape)

    def over(self, v, code, bits, shape):
        """A contiguous tensor over a View."""
        strides, n = [], 1
        for d in reversed(shape):
            strides.insert(0, n)
            n *= max(d, 1)
        return self.from_capsule(v.cast((code, bits), shape, tuple(strides)).__dlpack__())

    def refuse(self, t):
        """Why a tensor cannot travel, or None."""
        if getattr(t, "is_nested", False):  # of some, even the shape cannot be asked
            return "a nested tensor cannot be sent: send its unbind()"
        name = "a tensor of shape %s" % (tuple(t.shape),)
        if t.device.type == "meta":
            return "%s on the meta device has no elements to send" % name
        if t.is_quantized:
            return "%s of quantized dtype %s cannot be sent: send its int_repr()" % (name, t.dtype)
        if t.requires_grad and not t.is_leaf:
            return (
                "%s requires grad and is no leaf: its history cannot be sent, detach() it first"
                % name
            )
        if t.dim() > _MAX_DIMS:
            return "%s has %d dimensions, at most %d can be sent" % (name, t.dim(), _MAX_DIMS)
        if t.has_names():
            return "%s has names %s, which cannot be sent: send its rename(None)" % (name, t.names)
        if t.layout is self.torch.strided and t.device.type == "cpu" and t.dtype not in self.dtypes:
            return "%s has dtype %s, which cannot be sent" % (name, t.dtype)
        return None

    def describe(self, t):
        # What nearly all are; the rest of this takes three times as long.
        how = self.dtypes.get(t.dtype)
        if (
            how is not None
            and type(t) is self.plain
            and t.layout is self.strided
            and t.is_cpu
            and not t.requires_grad
            and not t.is_nested
            and t.is_contiguous()
            and not t.is_neg()
            and not t.is_conj()
            and not t.has_names()
        ):
            shape, n, address = tuple(t.shape), t.numel(), t.data_ptr()
            if n and address and len(shape) <= _MAX_DIMS:
                code, bits, extra = how
                return address, n * bits // 8, code, bits, shape, t.stride(), extra, t
        why = self.refuse(t)
        if why:
            raise TypeError(why)
        if t.layout is not self.torch.strided or t.device.type != "cpu":
            return None
        code, bits, extra = self.dtypes[t.dtype]
        if t.requires_grad:
            extra |= _REQUIRES_GRAD
        if type(t) is self.torch.nn.Parameter:
            extra |= _PARAMETER
        t = t.detach()
        if t.is_conj():
            t = t.resolve_conj()
        if t.is_neg():
            t = t.resolve_neg()
        if t._is_zerotensor():  # zeros without memory, as autograd makes them
            t = t.clone()
        shape = tuple(t.shape)
        n = t.numel()
        if not n:
            return 0, 0, code, bits, shape, tuple(t.stride()), extra, None
        if t.is_contiguous() or _dense(t):
            nbytes = n * bits // 8
            return t.data_ptr(), nbytes, code, bits, shape, tuple(t.stride()), extra, t
        return self._strided(t, n, code, bits, shape, extra)

    def _strided(self, t, n, code, bits, shape, extra):
        view = extra & _DTYPE_MASK

        def write(address):
            dst = self.at(address, n * bits // 8, code, bits, shape)
            if view:
                dst = dst.view(self.viewed[view])
            dst.copy_(t)

        strides, step = [], 1
        for d in reversed(shape):
            strides.insert(0, step)
            step *= d
        return write, n * bits // 8, code, bits, shape, tuple(strides), extra, t

    def reduce(self, t):
        """For tensors inside of objects that are pickled, and for subclasses."""
        torch = self.torch
        if type(t) not in self.exact:
            return self._reduce_subclass(t)
        why = self.refuse(t)
        if why:
            raise TypeError(why)
        if t.layout is torch.sparse_coo:
            c = t.detach()
            parts = (c._indices(), c._values(), tuple(t.shape), t.is_coalesced(), t.requires_grad)
            return _rebuild_coo, parts
        if t.layout in (torch.sparse_csr, getattr(torch, "sparse_csc", None)):
            csr = t.layout is torch.sparse_csr
            outer = t.crow_indices() if csr else t.ccol_indices()
            inner = t.col_indices() if csr else t.row_indices()
            return _rebuild_compressed, (csr, outer, inner, t.detach().values(), tuple(t.shape))
        if t.layout is not torch.strided:
            raise TypeError("a tensor of layout %s cannot be sent" % t.layout)
        if t.device.type != "cpu":
            return NotImplemented
        d = self.describe(t)
        if not isinstance(d[0], int):
            extra = d[6]
            d = self.describe(t.detach().contiguous())
            d = (*d[:6], extra, d[7])
        src, nbytes, code, bits, shape, strides, extra, owner = d
        codec.owners.append(owner)
        buf = pickle.PickleBuffer(_sluice.view_at(src, nbytes))
        return _rebuild_tensor, (buf, code, bits, shape, strides, extra)

    def _reduce_subclass(self, t):
        cls = type(t)
        own = _own_names(cls, self.torch.Tensor)
        if "__reduce_ex__" in own or "__reduce__" in own:
            return NotImplemented
        if "__torch_dispatch__" in own:
            raise TypeError(
                "a tensor of the wrapper subclass %s.%s cannot be sent: it has no memory of its own"
                % (cls.__module__, cls.__qualname__)
            )
        return _rebuild_subclass, (cls, t.as_subclass(self.torch.Tensor), t.__dict__ or None)


def _own_names(cls, base):
    names = set()
    for c in cls.__mro__:
        if c is base:
            break
        names.update(c.__dict__)
    return names


def _dense(t):
    """Whether the elements fill one range without gaps or overlap: any permutation of that."""
    step = 1
    for stride, size in sorted(zip(t.stride(), t.shape)):
        if size == 1:
            continue
        if stride != step:
            return False
        step *= size
    return True


def _rebuild_tensor(buf, code, bits, shape, strides, extra):
    return codec.make_tensor(buf.cast((code, bits), shape, strides).__dlpack__(), extra)


def _rebuild_coo(indices, values, shape, coalesced, requires_grad):
    torch = codec.torch.torch
    t = torch.sparse_coo_tensor(indices, values, shape)
    t._coalesced_(coalesced)
    return t.requires_grad_() if requires_grad else t


def _rebuild_compressed(csr, outer, inner, values, shape):
    torch = codec.torch.torch
    make = torch.sparse_csr_tensor if csr else torch.sparse_csc_tensor
    return make(outer, inner, values, shape)


def _rebuild_subclass(cls, base, attributes):
    t = base.as_subclass(cls)
    if attributes:
        t.__dict__.update(attributes)
    return t


class _Pickler(ForkingPickler):
    def reducer_override(self, obj):
        torch = codec.torch
        if torch is not None and isinstance(obj, torch.torch.Tensor):
            return torch.reduce(obj)
        return NotImplemented


class Codec:
    def __init__(self):
        self.kinds = {}
        self._torch = None
        self.plain_tensor = None  # once torch is there: a tensor over a DLPack capsule
        self.owners = []

    @property
    def torch(self):
        if self._torch is None and "torch" in sys.modules:
            self._torch = _Torch()
            self.plain_tensor = self._torch.from_capsule
        return self._torch

    # ------------------------------------------------------------------ encoding

    def classify(self, tp):
        kind = self._classify(tp)
        # Only types that cannot go away are remembered: those that a module names.
        if getattr(sys.modules.get(tp.__module__), tp.__qualname__, None) is tp:
            self.kinds[tp] = kind
        return kind

    def _classify(self, tp):
        if self.torch is not None and tp in self.torch.exact:
            return TENSOR
        numpy = sys.modules.get("numpy")
        if numpy is not None and tp is getattr(numpy, "ndarray", None):
            return ARRAY
        if tp in copyreg.dispatch_table or tp in ForkingPickler._extra_reducers:
            return PICKLE
        if issubclass(tp, tuple):
            plain = (
                isinstance(getattr(tp, "_fields", None), tuple)
                and not getattr(tp, "__dictoffset__", 0)
                and tp.__reduce_ex__ is object.__reduce_ex__
                and tp.__reduce__ is object.__reduce__
            )
            return NAMEDTUPLE if plain else PICKLE
        if dataclasses.is_dataclass(tp) and self._plain_object(tp):
            return OBJECT
        return PICKLE

    @staticmethod
    def _plain_object(tp):
        """Whether __dict__ is the whole state, as the default of pickle would see it."""
        if tp.__reduce_ex__ is not object.__reduce_ex__ or tp.__reduce__ is not object.__reduce__:
            return False
        if getattr(tp, "__getstate__", None) is not getattr(object, "__getstate__", None):
            return False
        for name in ("__setstate__", "__getnewargs__", "__getnewargs_ex__"):
            if hasattr(tp, name):
                return False
        if tp.__new__ is not object.__new__:
            return False
        if any(c.__dict__.get("__slots__") for c in tp.__mro__):
            return False
        return bool(tp.__dictoffset__)

    def tensor(self, t):
        return self.torch.describe(t)

    def array(self, a):
        dt = a.dtype
        if dt.kind not in "biufc" or not dt.isnative:
            return None
        if a.flags.f_contiguous and not a.flags.c_contiguous:
            return None
        return dt.str

    def pickle(self, obj):
        """(stream, buffers, what keeps the buffers alive)"""
        out, bufs = io.BytesIO(), []
        outer, self.owners = self.owners, []
        try:
            _Pickler(out, 5, True, bufs.append).dump(obj)
            return out.getvalue(), [b.raw() for b in bufs], self.owners
        finally:
            self.owners = outer

    def dump_class(self, tp):
        return pickle.dumps(tp, 5)

    # ------------------------------------------------------------------ decoding

    def unpickle(self, data, buffers):
        return pickle.loads(data, buffers=buffers)

    def load_class(self, data):
        return pickle.loads(data)

    def make_tensor(self, capsule, extra):
        if self._torch is None:
            import torch  # noqa: F401

            self.torch
        return self._torch.make(capsule, extra)

    def make_array(self, view, dtype, shape):
        import numpy

        return numpy.ndarray(shape, dtype, buffer=view)


codec = Codec()
