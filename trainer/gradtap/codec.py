"""Side state as bytes: a small tagged encoding of plain values, tensors and arrays. docs/side-channel.md, "Side state".

Nothing is ever unpickled: what the encoding cannot express is an UnknownLeaf, by name. `snapshot` makes a cheap private
copy in the training thread; `encode` turns that copy into bytes in the sender thread; `decode` reads hostile bytes.
Equal values give equal bytes (sets are ordered by their encoding, dicts keep their own order).
"""

import collections
import ctypes
import importlib
import re
import struct
import sys
import types
import weakref

import torch

MAGIC = b"GTS1"
MAX_DEPTH = 32
MAX_NODES = 1 << 20
PACKED = 16  # integers in a row from which on a list is packed

_u64 = struct.Struct("<Q")
_ARRAY_TYPE = re.compile("[<>|][biufcSU][0-9]{1,6}")
_SEQUENCES = {list: b"l", tuple: b"t", set: b"S", frozenset: b"Z"}
_MAPPINGS = {dict: b"m", collections.OrderedDict: b"o", collections.Counter: b"C"}
_DTYPES = {str(d).replace("torch.", ""): d for d in vars(torch).values() if isinstance(d, torch.dtype)}
# Quantised types share element sizes with integers but mean more than their bytes.
_TENSOR_DTYPES = {str(d).replace("torch.", ""): d for d in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128)}


class UnknownLeaf(Exception):
    """A value that cannot be expressed. path: where it is, kind: what it is."""

    def __init__(self, path, kind):
        super().__init__("%s is %s" % (path or "value", kind))
        self.path, self.kind = path, kind


class TooLarge(Exception):
    """More bytes or more values than the limit allows."""


class Malformed(Exception):
    """Bytes that are not an encoding."""


class CodeRef:
    """A function that belongs to the program, not to its state: only its name travels."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, CodeRef) and other.name == self.name

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return "CodeRef(%s)" % self.name


class Budget:
    """What one snapshot may still take."""

    __slots__ = ("bytes", "nodes")

    def __init__(self, most):
        self.bytes, self.nodes = most, MAX_NODES

    def take(self, count):
        self.bytes -= count
        self.nodes -= 1
        if self.bytes < 0 or self.nodes < 0:
            raise TooLarge("side state is larger than its limit")


def code_name(value, owner=None):
    """The name of a function that a state may hold without being lost: module-level ones, and methods of `owner`."""
    if isinstance(value, weakref.WeakMethod):
        value = value()
    if isinstance(value, types.MethodType):
        if owner is None or value.__self__ is not owner:
            return None
        return "%s.%s" % (type(owner).__qualname__, value.__func__.__qualname__)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        name = getattr(value, "__qualname__", "")
        # A closure or a bound builtin holds state of its own.
        if getattr(value, "__closure__", None) or "<" in name and "<lambda>" not in name:
            return None
        if isinstance(getattr(value, "__self__", None), (types.ModuleType, type(None))):
            return "%s.%s" % (getattr(value, "__module__", ""), name)
    return None


def kind_of(value):
    return type(value).__module__ + "." + type(value).__qualname__


# Training thread


def snapshot(value, budget, owner=None, path="", depth=0):
    """A copy that later changes of the program do not reach. Raises UnknownLeaf or TooLarge."""
    cls = type(value)
    if value is None or cls in (bool, float, complex):
        budget.take(32)
        return value
    if cls is int:
        budget.take(32 + value.bit_length() // 8)
        return value
    if cls in (str, bytes):
        budget.take(64 + len(value))
        return value
    if depth > MAX_DEPTH:
        raise UnknownLeaf(path, "nested deeper than %d" % MAX_DEPTH)
    if cls in _MAPPINGS:
        budget.take(64)
        result = cls()
        for key, item in value.items():
            if isinstance(key, torch.Tensor):
                raise UnknownLeaf(path, "a dict with a tensor as key")
            key = snapshot(key, budget, owner, path, depth + 1)
            result[key] = snapshot(item, budget, owner, "%s.%s" % (path, key), depth + 1)
        return result
    if cls in _SEQUENCES:
        budget.take(64 + 8 * len(value))
        if cls in (set, frozenset):
            return cls(snapshot(v, budget, owner, path, depth + 1) for v in value)
        return cls([snapshot(v, budget, owner, "%s.%d" % (path, i), depth + 1) for i, v in enumerate(value)])
    if isinstance(value, torch.Tensor):
        return _snapshot_tensor(value, budget, path)
    if cls is torch.Size or cls is torch.dtype:
        budget.take(64)
        return value
    np = sys.modules.get("numpy")
    if np is not None:
        if cls is np.ndarray:
            if value.dtype.kind not in "biufcSU":
                raise UnknownLeaf(path, "an array of %s" % value.dtype)
            budget.take(64 + value.nbytes)
            return value.copy()
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSU":
            budget.take(64 + value.nbytes)
            return value
    name = code_name(value, owner)
    if name is not None:
        budget.take(64 + len(name))
        return CodeRef(name)
    if isinstance(value, CodeRef):
        return value
    raise UnknownLeaf(path, kind_of(value))


def _snapshot_tensor(value, budget, path):
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided \
            or _name_of(value.dtype) not in _TENSOR_DTYPES:
        raise UnknownLeaf(path, "a tensor of %s, %s" % (value.dtype, kind_of(value)))
    budget.take(64 + value.numel() * value.element_size())
    copy = value.detach()
    return copy.clone() if copy.device.type == "cpu" else copy.cpu()


def _name_of(dtype):
    return str(dtype).replace("torch.", "")


# Sender thread


def encode(value):
    """Bytes of a value that came from snapshot."""
    parts = [MAGIC]
    _encode(value, parts.append, 0)
    return b"".join(parts)


def _encode(value, put, depth):
    cls = type(value)
    if value is None:
        put(b"N")
    elif cls is bool:
        put(b"T" if value else b"F")
    elif cls is int:
        _encode_int(value, put)
    elif cls is float:
        put(b"d" + struct.pack("<d", value))
    elif cls is complex:
        put(b"c" + struct.pack("<dd", value.real, value.imag))
    elif cls is str:
        _encode_bytes(b"s", value.encode("utf-8", "surrogatepass"), put)
    elif cls is bytes:
        _encode_bytes(b"b", value, put)
    elif depth > MAX_DEPTH + 1:
        raise UnknownLeaf("", "nested deeper than %d" % MAX_DEPTH)
    elif cls in _MAPPINGS:
        put(_MAPPINGS[cls] + _u64.pack(len(value)))
        for key, item in value.items():
            _encode(key, put, depth + 1)
            _encode(item, put, depth + 1)
    elif cls in _SEQUENCES:
        _encode_sequence(value, cls, put, depth)
    elif isinstance(value, torch.Tensor):
        data = value.detach().contiguous()
        _encode_array(b"x", _name_of(data.dtype), data.shape,
                      ctypes.string_at(data.data_ptr(), data.numel() * data.element_size()) if data.numel() else b"",
                      put)
    elif cls is torch.Size:
        put(b"z" + _u64.pack(len(value)) + b"".join(_u64.pack(n) for n in value))
    elif cls is torch.dtype:
        _encode_bytes(b"y", _name_of(value).encode(), put)
    elif cls is CodeRef:
        _encode_bytes(b"f", value.name.encode("utf-8"), put)
    else:
        np = sys.modules.get("numpy")
        if np is not None and isinstance(value, (np.ndarray, np.generic)):
            tag = b"a" if isinstance(value, np.ndarray) else b"g"
            _encode_array(tag, value.dtype.str, value.shape, value.tobytes(), put)
        else:
            raise UnknownLeaf("", kind_of(value))


def _encode_bytes(tag, data, put):
    put(tag + _u64.pack(len(data)))
    put(data)


def _encode_int(value, put):
    if -(1 << 63) <= value < 1 << 63:
        put(b"i" + struct.pack("<q", value))
    else:
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        _encode_bytes(b"I", data, put)


def _encode_sequence(value, cls, put, depth):
    if len(value) >= PACKED and cls in (list, tuple) and all(type(v) is int for v in value) \
            and min(value) >= 0 and max(value) < 1 << 32:
        put((b"w" if cls is tuple else b"W") + _u64.pack(len(value)))
        put(struct.pack("<%dI" % len(value), *value))
        return
    put(_SEQUENCES[cls] + _u64.pack(len(value)))
    if cls in (list, tuple):
        for item in value:
            _encode(item, put, depth + 1)
        return
    items = []
    for item in value:
        parts = []
        _encode(item, parts.append, depth + 1)
        items.append(b"".join(parts))
    for item in sorted(items):
        put(item)


def _encode_array(tag, dtype, shape, data, put):
    _encode_bytes(tag, dtype.encode(), put)
    put(bytes([len(shape)]) + b"".join(_u64.pack(n) for n in shape))
    put(data)


# Reading


def decode(data):
    """The value. Raises Malformed for anything that encode does not write; never runs code from the bytes."""
    reader = _Reader(data)
    if reader.take(4) != MAGIC:
        raise Malformed("not a side state of format GTS1")
    value = reader.value(0)
    if reader.at != len(data):
        raise Malformed("%d bytes after the end" % (len(data) - reader.at))
    return value


class _Reader:
    def __init__(self, data):
        self.data, self.at, self.nodes = data, 0, 0

    def take(self, count):
        if count < 0 or count > len(self.data) - self.at:
            raise Malformed("ends early: %d bytes wanted at offset %d of %d" % (count, self.at, len(self.data)))
        piece = self.data[self.at:self.at + count]
        self.at += count
        return piece

    def number(self):
        return _u64.unpack(self.take(8))[0]

    def value(self, depth):
        self.nodes += 1
        if depth > MAX_DEPTH + 2 or self.nodes > 2 * MAX_NODES:
            raise Malformed("nested too deep or too many values at offset %d" % self.at)
        tag = self.take(1)
        read = _READERS.get(tag)
        if read is None:
            raise Malformed("unknown tag %r at offset %d" % (tag, self.at - 1))
        try:
            return read(self, depth)
        except Malformed:
            raise
        except (ValueError, TypeError, OverflowError, struct.error, UnicodeError, RuntimeError) as error:
            raise Malformed("value with tag %r before offset %d: %s" % (tag, self.at, error)) from None

    def items(self, depth):
        count = self.number()
        if count > len(self.data) - self.at:
            raise Malformed("%d items at offset %d of %d bytes" % (count, self.at, len(self.data)))
        return [self.value(depth + 1) for _ in range(count)]

    def mapping(self, cls, depth):
        count = self.number()
        if 2 * count > len(self.data) - self.at:
            raise Malformed("%d entries at offset %d of %d bytes" % (count, self.at, len(self.data)))
        result = cls()
        for _ in range(count):
            key = self.value(depth + 1)
            result[key] = self.value(depth + 1)
        return result

    def words(self):
        count = self.number()
        if 4 * count > len(self.data) - self.at:
            raise Malformed("%d words at offset %d of %d bytes" % (count, self.at, len(self.data)))
        return struct.unpack("<%dI" % count, self.take(4 * count))

    def text(self):
        return bytes(self.take(self.number())).decode("utf-8", "surrogatepass")

    def shape(self):
        dims = [self.number() for _ in range(self.take(1)[0])]
        count = 1
        for n in dims:
            count *= n
            if count > len(self.data):
                raise Malformed("shape %s in %d bytes" % (dims, len(self.data)))
        return dims, count

    def tensor(self):
        dtype = _TENSOR_DTYPES.get(self.text())
        if dtype is None:
            raise Malformed("tensor of an unknown type before offset %d" % self.at)
        dims, count = self.shape()
        data = self.take(count * torch.empty((), dtype=dtype).element_size())
        if count == 0:
            return torch.empty(dims, dtype=dtype)
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(dims)

    def array(self, scalar):
        np = importlib.import_module("numpy")  # only where the state holds an array
        text = self.text()
        if not _ARRAY_TYPE.fullmatch(text):  # numpy would parse far more than that
            raise Malformed("array of type %.40r before offset %d" % (text, self.at))
        dtype = np.dtype(text)
        dims, count = self.shape()
        array = np.frombuffer(bytes(self.take(count * dtype.itemsize)), dtype=dtype, count=count).reshape(dims)
        return array[()] if scalar else array.copy()

    def dtype(self):
        found = _DTYPES.get(self.text())
        if found is None:
            raise Malformed("unknown dtype before offset %d" % self.at)
        return found


_READERS = {
    b"N": lambda r, d: None,
    b"T": lambda r, d: True,
    b"F": lambda r, d: False,
    b"i": lambda r, d: struct.unpack("<q", r.take(8))[0],
    b"I": lambda r, d: int.from_bytes(r.take(r.number()), "little", signed=True),
    b"d": lambda r, d: struct.unpack("<d", r.take(8))[0],
    b"c": lambda r, d: complex(*struct.unpack("<dd", r.take(16))),
    b"s": lambda r, d: r.text(),
    b"b": lambda r, d: bytes(r.take(r.number())),
    b"l": lambda r, d: r.items(d),
    b"t": lambda r, d: tuple(r.items(d)),
    b"S": lambda r, d: set(r.items(d)),
    b"Z": lambda r, d: frozenset(r.items(d)),
    b"m": lambda r, d: r.mapping(dict, d),
    b"o": lambda r, d: r.mapping(collections.OrderedDict, d),
    b"C": lambda r, d: r.mapping(collections.Counter, d),
    b"w": lambda r, d: r.words(),
    b"W": lambda r, d: list(r.words()),
    b"x": lambda r, d: r.tensor(),
    b"a": lambda r, d: r.array(False),
    b"g": lambda r, d: r.array(True),
    b"z": lambda r, d: torch.Size([r.number() for _ in range(min(r.number(), 64))]),
    b"y": lambda r, d: r.dtype(),
    b"f": lambda r, d: CodeRef(r.text()),
}


def resolve(value, current, path="", owner=None):
    """Puts the program's own functions where the state names one. UnknownLeaf if the program has another one there."""
    if isinstance(value, CodeRef):
        name = code_name(current, owner)
        if name != value.name:
            raise UnknownLeaf(path, "function %s in the state, %s in this program" % (value.name, name or current))
        return current
    if isinstance(value, dict):
        there = current if isinstance(current, dict) else {}
        for key in list(value):
            value[key] = resolve(value[key], there.get(key), "%s.%s" % (path, key), owner)
        return value
    if type(value) in (list, tuple):
        there = current if isinstance(current, (list, tuple)) else ()
        items = [resolve(v, there[i] if i < len(there) else None, "%s.%d" % (path, i), owner)
                 for i, v in enumerate(value)]
        return items if type(value) is list else tuple(items)
    return value
