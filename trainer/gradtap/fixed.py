"""Tensors of the module that no gradient moves: buffers and frozen parameters.

Small ones are copied at every commit (one concatenation a dtype): an in-place write through `.data` leaves no trace.
Large ones are copied when version counter, address or sampled elements (of a few tensors in turn) tell of a change. A
large one that never changed since attach travels as its SHA-256: a restore checks that the program made the same again.
"""

import hashlib

import torch

from .codec import TooLarge, UnknownLeaf
from .memory import element_bytes, memory_order

SMALL_BYTES = 64 << 10
BY_DIGEST_BYTES = 1 << 20
SAMPLES = 64
SAMPLED_TENSORS = 4  # large tensors whose elements are looked at in one commit, in turn
DIGEST = "sha256"  # first item of the tuple that stands for a tensor


class Slot:
    """One name and where its tensor is found: modules may replace their buffers."""

    __slots__ = ("name", "table", "leaf", "persistent", "seen", "view", "address", "mark", "sample", "copy",
                 "changed")

    def __init__(self, name, table, leaf, persistent):
        self.name, self.table, self.leaf, self.persistent = name, table, leaf, persistent
        self.seen = self.view = self.address = self.mark = self.sample = self.copy = None
        self.changed = False

    def tensor(self):
        return self.table.get(self.leaf)


class Unmoved:
    """A large tensor that did not change since attach; its digest is computed later, in the sender thread."""

    __slots__ = ("slot", "tensor", "mark", "value")

    def __init__(self, slot, tensor):
        self.slot, self.tensor, self.mark, self.value = slot, tensor, slot.mark, None

    def plain(self):
        if self.value is None:
            value = describe(self.tensor)
            if (self.tensor._version, self.tensor.data_ptr()) != self.mark:
                raise UnknownLeaf(self.slot.name, "a tensor that changed while it was read")
            self.value = value
        return self.value


def describe(tensor):
    """(DIGEST, dtype, shape, SHA-256 of the elements in row-major order)."""
    data = tensor.detach().contiguous().reshape(-1)
    sha, step = hashlib.sha256(), (4 << 20) // data.element_size()
    for begin in range(0, data.numel(), step):
        sha.update(element_bytes(data, begin, min(begin + step, data.numel())))
    return (DIGEST, str(tensor.dtype).replace("torch.", ""), list(tensor.shape), sha.hexdigest())


class FixedTensors:
    """slots: what `slots_of` found. capture() runs in the training thread."""

    def __init__(self, slots, most_bytes):
        self._slots = slots
        self._most = most_bytes
        self._unmoved = {}
        self._last = None
        self._turn = 0
        self._large = sum(1 for s in slots if _bytes(s.tensor()) > SMALL_BYTES)

    def capture(self):
        """A Picture; the same object as before if nothing changed."""
        small, large, same = {}, [], self._last is not None
        total = 0
        for slot in self._slots:
            t = slot.tensor()
            if t is None:
                continue
            size = _bytes(t)
            if size <= SMALL_BYTES:
                total += size
                small.setdefault(t.dtype, []).append((slot, self._view(slot, t)))
            else:
                same &= self._look(slot, t)
                if slot.changed:
                    total += size
                    large.append((slot.name, slot))
                elif size > BY_DIGEST_BYTES and slot.persistent:
                    large.append((slot.name, self._unmoved.get(slot.name) or self._unmove(slot, t)))
                elif slot.persistent:
                    total += size
                    large.append((slot.name, slot))
            if total > self._most:
                raise TooLarge("buffers are larger than the limit of %d bytes" % self._most)
        packed = {}
        for dtype, entries in small.items():
            packed[dtype] = ([(slot.name, slot.tensor().shape) for slot, _ in entries],
                             torch.cat([view if view is not None else slot.tensor().detach().reshape(-1)
                                        for slot, view in entries]))
        if same and self._equal(packed):
            return self._last
        values = []
        for name, item in large:
            if isinstance(item, Slot):
                if item.copy is None:
                    item.copy = item.tensor().detach().clone()
                item = item.copy
            values.append((name, item))
        self._last = Picture(packed, values, total)
        return self._last

    def _equal(self, packed):
        before = self._last.packed
        return before.keys() == packed.keys() and all(
            before[d][0] == packed[d][0] and _same_bits(before[d][1], packed[d][1]) for d in packed)

    def _view(self, slot, t):
        if slot.seen is not t or slot.address != t.data_ptr():
            slot.seen, slot.address = t, t.data_ptr()
            slot.view = t.detach().reshape(-1) if t.is_contiguous() else None
        return slot.view

    def _look(self, slot, t):
        """Notes whether a large tensor changed; True if it is as at the last look."""
        mark = (t._version, t.data_ptr())
        if slot.seen is None:
            slot.seen, slot.mark, slot.sample = t, mark, _sample(t)
            return False
        if slot.seen is t and slot.mark == mark:
            self._turn += 1
            if self._turn % max(1, self._large // SAMPLED_TENSORS) or _sample(t) == slot.sample:
                return True
        slot.seen, slot.mark, slot.sample, slot.copy, slot.changed = t, mark, _sample(t), None, True
        self._unmoved.pop(slot.name, None)
        return False

    def _unmove(self, slot, t):
        found = self._unmoved[slot.name] = Unmoved(slot, t)
        return found


class Picture:
    """Immutable. plain() gives {name: tensor, or the tuple of describe}; it may run in the sender thread."""

    __slots__ = ("packed", "large", "size")

    def __init__(self, packed, large, size):
        self.packed, self.large, self.size = packed, large, size + 256

    def plain(self):
        result = {}
        for names, data in self.packed.values():
            at = 0
            for name, shape in names:
                result[name] = data[at:at + shape.numel()].reshape(shape)
                at += shape.numel()
        for name, item in self.large:
            result[name] = item.plain() if isinstance(item, Unmoved) else item
        return {name: result[name] for name in sorted(result)}


def _bytes(t):
    return 0 if t is None else t.numel() * t.element_size()


def _same_bits(a, b):
    if a.shape != b.shape:
        return False
    if a.dtype.is_floating_point or a.dtype.is_complex:  # NaN is not equal to itself, and -0.0 equals 0.0
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    return torch.equal(a, b)


def _sample(t):
    """The bytes of some elements."""
    flat = t.detach().reshape(-1) if t.is_contiguous() else t.detach().permute(*memory_order(t)).reshape(-1)
    picked = flat[::max(1, flat.numel() // SAMPLES)].contiguous()
    return element_bytes(picked, 0, picked.numel())


def buffer_slots(module):
    """Every buffer, and whether it belongs to the checkpoint of the framework."""
    found, seen = [], set()
    for prefix, sub in module.named_modules():
        lost = getattr(sub, "_non_persistent_buffers_set", ())
        for leaf, b in sub._buffers.items():
            if b is None or id(b) in seen:
                continue
            seen.add(id(b))
            found.append(Slot(prefix + "." + leaf if prefix else leaf, sub._buffers, leaf, leaf not in lost))
    return found


def frozen_slots(module):
    found, seen = [], set()
    for prefix, sub in module.named_modules():
        for leaf, p in sub._parameters.items():
            if p is None or p.requires_grad or id(p) in seen:
                continue
            seen.add(id(p))
            found.append(Slot(prefix + "." + leaf if prefix else leaf, sub._parameters, leaf, True))
    return found


def put_back(slots, values):
    """Sets the tensors that travelled by value; `compare` has been called before."""
    by_name = {s.name: s for s in slots}
    with torch.no_grad():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                by_name[name].tensor().copy_(value)


def compare(slots, values, what, refuse):
    """Names, shapes, types, and the digests of those that travel as digests, before anything is changed."""
    by_name = {s.name: s for s in slots}
    for name, value in values.items():
        slot = by_name.pop(name, None)
        if slot is None or slot.tensor() is None:
            refuse("%s %s is in the point, not in this model" % (what, name))
        t = slot.tensor()
        if isinstance(value, torch.Tensor):
            if value.shape != t.shape or value.dtype != t.dtype:
                refuse("%s %s is %s %s in the point, %s %s in this model"
                       % (what, name, value.dtype, list(value.shape), t.dtype, list(t.shape)))
        elif isinstance(value, tuple) and len(value) == 4 and value[0] == DIGEST:
            found = describe(t)
            if found != value:
                refuse("%s %s is not what it was: the point holds %s %s with SHA-256 %s, this model %s %s with %s"
                       % ((what, name) + value[1:] + found[1:]))
        else:
            refuse("%s %s has no readable value in the point" % (what, name))
    missing = [s.name for s in by_name.values() if s.persistent and s.tensor() is not None]
    if missing:
        refuse("%s %s is in this model, not in the point" % (what, ", ".join(missing[:5])))
