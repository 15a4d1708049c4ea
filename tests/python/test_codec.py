# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""get(put(x)) == x, or a TypeError that says what cannot travel."""
import collections
import dataclasses
import datetime
import enum
import os
import platform
import subprocess
import sys
import time
import typing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from util import round_trip, same

import sluice
from sluice import _sluice
from sluice._codec import codec

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")

Point = collections.namedtuple("Point", "x y")


class Typed(typing.NamedTuple):
    a: int
    b: object = None


@dataclasses.dataclass
class Record:
    name: str
    value: object
    more: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int
    y: tuple


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a

    def __eq__(self, other):
        return self.a == other.a


class Colour(enum.Enum):
    RED = 1


class Group(tuple):
    """A tuple that can have attributes, and so is pickled."""


class Custom:
    def __init__(self, payload):
        self.payload = payload


PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    2**63,
    10**40,
    0.0,
    float("inf"),
    float("nan"),
    1 + 2j,
    "",
    "grün",
    "x" * 1023,
    "x" * 1024,
    "\U0001f600" * 5000,
    "\ud800 lone",
    b"",
    b"\0" * 1024,
    bytearray(b"abc"),
    bytearray(100000),
    [],
    (),
    {},
    set([1, 2]),
    frozenset([3]),
    ["a", "b", "c", "d", "é" * 2000],
    [b"a", b"", b"c", b"d" * 3000],
    ("a", "b", "c", "d"),
    ["a", "b", "c", 4],
    ["a", "b", "c", "\ud800"],
    {"k": [1, (2, {"n": None})], 5: b"v", (1, 2): "t"},
    Point(1, [2]),
    Typed(1, {"z": 0}),
    Record("n", [1.5, "s"], {"deep": Record("m", None)}),
    Frozen(1, (2, 3)),
    Group(),
    Group([5]),
    Group([1, 2]),
    time.gmtime(0),
    Slotted(4),
    Colour.RED,
    datetime.datetime(2020, 1, 2),
    collections.OrderedDict([("b", 1), ("a", 2)]),
    collections.Counter("aab"),
    range(3),
    int,
    len,
]


@pytest.mark.parametrize("obj", PLAIN, ids=lambda o: "%s-%.20r" % (type(o).__name__, o))
def test_plain(obj):
    assert same(round_trip(obj), obj)


ARRAYS = {
    "c": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(100)[::3],
    "negative": np.arange(10)[::-1],
    "transposed": np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
    "scalar": np.array(3.5),
    "empty": np.empty((0, 4), np.int16),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j], np.complex64),
    "half": np.arange(5, dtype=np.float16),
    "swapped": np.arange(4, dtype=">i4"),
    "datetime": np.array(["2020-01-01"], "M8[D]"),
    "unicode": np.array(["a", "bcd"]),
    "structured": np.array([(1, 2.0)], dtype=[("i", "i4"), ("f", "f8")]),
    "object": np.array([1, "a", None], dtype=object),
    "masked": np.ma.array([1, 2], mask=[0, 1]),
    "large": np.random.default_rng(0).random(300000),
    "np.float32": np.float32(1.5),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_array(name):
    a = ARRAYS[name]
    got = round_trip({"x": a, "y": [a]})
    assert type(got["x"]) is type(a)
    if name == "masked":
        assert (got["x"] == a).all() and (got["x"].mask == a.mask).all()
    else:
        assert same(got["x"], a) if isinstance(a, np.ndarray) else got["x"] == a
    assert got["y"][0] is got["x"], "one array is put once"


def test_array_is_writable_view():
    a = round_trip(np.arange(100000))
    a[0] = 7
    assert a[0] == 7


def _tensors():
    g = torch.Generator().manual_seed(0)
    base = torch.randn(4, 6, 8, 8, generator=g)
    out = {
        "contiguous": base,
        "channels_last": base.to(memory_format=torch.channels_last),
        "transposed": base.transpose(1, 3),
        "sliced": base[:, ::2],
        "expanded": torch.arange(3).expand(5, 3),
        "scalar": torch.tensor(5),
        "empty": torch.empty(0, 3),
        "empty2": torch.empty(3, 0, dtype=torch.int16),
        "requires_grad": torch.randn(3).requires_grad_(),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "frozen parameter": torch.nn.Parameter(torch.randn(3), requires_grad=False),
        "conj": torch.randn(3, dtype=torch.cfloat).conj(),
        "neg": torch.randn(3, dtype=torch.cfloat).conj().imag,
        "sparse": torch.eye(4).to_sparse(),
        "csr": torch.eye(4).to_sparse_csr(),
    }
    for name in (
        "uint8 int8 int16 int32 int64 float16 float32 float64 bfloat16 complex64 complex128 bool "
        "uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
        "float8_e8m0fnu"
    ).split():
        dt = getattr(torch, name, None)
        if dt is not None:
            size = torch.empty(0, dtype=dt).element_size()
            data = torch.arange(24 * size, dtype=torch.uint8)
            if name == "bool":
                data = data % 2
            out[name] = data.view(dt).reshape(2, 12)
            out[name + " strided"] = data.view(dt).reshape(2, 12)[:, ::2]
    return out


TENSORS = _tensors() if torch else {}


@needs_torch
@pytest.mark.parametrize("name", TENSORS)
def test_tensor(name):
    t = TENSORS[name]
    got = round_trip([t, {"again": t}])
    assert same(got[0], t)
    if t.layout is torch.strided:
        assert got[1]["again"] is got[0]


@needs_torch
@pytest.mark.parametrize("name", TENSORS)
def test_tensor_inside_object(name):
    t = TENSORS[name]
    assert same(round_trip(Custom([t])).payload[0], t)


@needs_torch
def test_zeros_without_memory_get_some():
    zeros = torch._efficientzerotensor(2 << 20)
    q = sluice.Queue()
    try:
        # Large ones are put where the last one was.
        for t in (torch.ones(2 << 20), zeros, torch.ones(2 << 20), zeros.reshape(2, -1)):
            q.put(t)
            assert torch.equal(q.get(timeout=10), t.clone())
    finally:
        q.close()


@needs_torch
def test_tensor_strides_survive():
    for name in ("channels_last", "transposed"):
        assert round_trip(TENSORS[name]).stride() == TENSORS[name].stride()


class Sub(torch.Tensor if torch else object):
    pass


@needs_torch
def test_shape_of_a_tensor():
    for shape in ((), (5,), (1, 2)):
        assert same(round_trip(torch.zeros(shape).shape), torch.Size(shape))


@needs_torch
def test_tensor_subclass():
    t = torch.arange(5.0).as_subclass(Sub)
    t.note = "kept"
    got = round_trip(t)
    assert type(got) is Sub and got.note == "kept"
    assert got.as_subclass(torch.Tensor).tolist() == list(range(5))


@needs_torch
def test_tensor_refused():
    non_leaf = torch.randn(2, requires_grad=True) * 2
    quantized = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    for t, word in (
        (non_leaf, "no leaf"),
        (quantized, "quantized"),
        (torch.empty(2, device="meta"), "meta"),
        (torch.empty(2, 3).refine_names("rows", "columns"), "names.*rename"),
    ):
        for obj in (t, [t], Custom(t)):
            with pytest.raises(TypeError, match=word):
                round_trip(obj)


class Wrapper(torch.Tensor if torch else object):
    """Has a shape and no memory: what stands in it is an attribute."""

    @staticmethod
    def __new__(cls, inner):
        t = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        t.inner = inner
        return t

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(a.inner if isinstance(a, Wrapper) else a for a in args), **(kwargs or {}))


@needs_torch
def test_tensor_without_memory_is_refused():
    with pytest.raises(TypeError, match="Wrapper.* no memory of its own"):
        round_trip({"x": Wrapper(torch.ones(3))})


@needs_torch
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["nested", "jagged", "bsr", "csc", "bsc"])
def test_rare_layouts_arrive_or_are_named(kind):
    parts = [torch.arange(3.0), torch.arange(5.0)]
    try:
        if kind == "nested":
            t = torch.nested.nested_tensor(parts)
        elif kind == "jagged":
            t = torch.nested.nested_tensor(parts, layout=torch.jagged)
        elif kind == "csc":
            t = torch.eye(4).to_sparse_csc()
        else:
            t = getattr(torch.eye(4), "to_sparse_" + kind)((2, 2))
    except (AttributeError, TypeError) as e:
        pytest.skip("this torch has no such tensor: %s" % e)
    try:
        got = round_trip([t])[0]
    except TypeError as e:
        assert "tensor" in str(e) and "sent" in str(e)
    else:
        assert got.layout == t.layout
        if t.is_nested:
            assert same(list(got.unbind()), list(t.unbind()))
        else:
            assert same(got.to_dense(), t.to_dense())


def test_lists_of_strings_are_packed():
    """Offsets and bytes: eight bytes for a string beside its own."""
    strings = ["name-%04d" % i for i in range(10000)]
    assert _sluice.encode(strings, codec).nbytes < 10000 * (9 + 8) + 1000
    assert round_trip(strings) == strings


HEAP = """
import resource, sluice
q = sluice.Queue(2)
text = ["%08d" % i * 1024 for i in range(64)]
def faults(n):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n):
        q.put(text)
        got = q.get()
    assert got == text
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(20)
print(faults(200))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="how other C libraries trim a heap")
def test_lists_of_strings_keep_their_heap():
    """Else malloc gives 512 KiB back with every list, and each page of them faults again."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    out = subprocess.run([sys.executable, "-c", HEAP], env=env, stdout=subprocess.PIPE, check=True)
    assert int(out.stdout) < 200


def test_recursive():
    a = [1]
    a.append(a)
    d = {"list": a}
    d["self"] = d
    got = round_trip(d)
    assert got["self"] is got and got["list"][1] is got["list"]


def test_shared_references():
    x = [1, 2]
    got = round_trip([x, x, {"x": x}])
    assert got[0] is got[1] is got[2]["x"]


def test_unpicklable_raises_in_put():
    with pytest.raises(Exception, match="(?i)pickle|local"):
        round_trip(lambda: 0)


def test_deep_nesting_raises():
    a = []
    for _ in range(100000):
        a = [a]
    with pytest.raises(RecursionError):
        round_trip(a)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.text(min_size=1000, max_size=1100)
    | st.binary()
    | st.binary(min_size=1000, max_size=1100)
    | st.binary(max_size=20).map(bytearray)
    | st.lists(st.integers(-128, 127), max_size=50).map(lambda x: np.array(x, np.int8))
    | st.lists(st.floats(width=32), max_size=50).map(lambda x: np.array(x, np.float32))
    | st.complex_numbers()
    | st.dates()
)
keys = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.text())
objects = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=8)
    | st.lists(st.text(), max_size=12)
    | st.lists(st.binary(), max_size=12).map(tuple)
    | st.lists(inner, max_size=6).map(tuple)
    | st.dictionaries(keys, inner, max_size=6)
    | st.builds(Point, inner, inner)
    | st.builds(Record, st.text(), inner)
    | st.builds(Frozen, st.integers(), st.tuples(inner)),
    max_leaves=30,
)


@settings(
    max_examples=int(os.environ.get("SLUICE_EXAMPLES", "300")),
    derandomize="SLUICE_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(objects)
def test_any_object(obj):
    assert same(_property_queue(obj), obj)


_queue = None


def _property_queue(obj):
    global _queue
    if _queue is None:
        _queue = sluice.Queue()
    _queue.put(obj)
    return _queue.get(timeout=10)




@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_object_is_an_error(data):
    """Whatever stands in the extent, decoding ends with an object or an exception."""
    obj = [1, "a" * 2000, ["s", "t", "u", "v"], {"k": np.arange(50)}, Record("r", (1, 2)), b"x" * 9]
    global _damaged
    try:
        arena, ch = _damaged
    except NameError:
        arena = sluice.Arena(1 << 20)
        ch = arena.channel("x", 2)
        _damaged = arena, ch
    plan = _sluice.encode(obj, codec)
    b = ch.begin(plan.nbytes + 256, 1)
    view = b.add("py", (1, 8), (plan.nbytes,))
    b._raw.write_plan(view.ptr, plan)
    mem = memoryview(view)
    # not inside of pickled classes: unpickling trusts its peer, as multiprocessing does
    structure = int.from_bytes(mem[16:24], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(0, 31), st.integers(structure, plan.nbytes - 1)))
        mem[at] = data.draw(st.integers(0, 255))
    mem.release()
    pickled = bytes(memoryview(view)[structure:]).find(b"\x80\x05")
    b.publish()
    got = ch.next(1)
    if pickled >= 0:
        try:
            got._raw.decode(_NoPickle(), True)
        except Exception:
            pass
    got.release()


class _NoPickle:
    kinds = {}

    def unpickle(self, data, buffers):
        return len(data)

    def load_class(self, data):
        return Record

    def make_array(self, view, dtype, shape):
        return np.ndarray(shape, dtype, buffer=view)
