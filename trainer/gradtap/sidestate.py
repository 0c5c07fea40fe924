"""Side state: what belongs to the checkpoint and never crosses the wire of the gradients. Taken at every commit, by
name; put back at restore.

Names: rng.python, rng.numpy, rng.torch, rng.cuda.k, optimizer (groups, and which gradients were absent), scheduler,
scaler, buffers, frozen, data (extra["data"]), user.<name> (the rest of extra).
Thread rule: capture runs in the training thread and copies; Captured.encoded runs in the sender thread.
"""

import random
import sys

import torch

from . import codec, fixed, hyper

BLOB_BYTES = 16 << 20
PYTHON_RNG_BYTES = 24 << 10
PLAIN = frozenset((type(None), bool, int, float, str))


class Captured:
    """One value of one step. Shared by later steps while the value stays the same."""

    __slots__ = ("name", "value", "size", "refs", "blob", "digest", "failed")

    def __init__(self, name, value, size):
        self.name, self.value, self.size = name, value, size
        self.refs = 0  # messages in the queue that hold it
        self.blob = self.digest = self.failed = None


class Part:
    """One name of the side state. read() gives a private copy and its size, or raises."""

    def __init__(self, name, read, same=None):
        self.name, self._read, self._same = name, read, same
        self._last = None

    def capture(self):
        value, size = self._read()
        if self._last is not None and self._same is not None and self._same(self._last[0], value):
            return self._last[1]
        captured = Captured(self.name, value, size)
        self._last = (value, captured) if self._same is not None else None
        return captured


class SideState:
    def __init__(self, model, scheduler, scaler, extra, blob_bytes=BLOB_BYTES):
        self._model, self._blob_bytes = model, blob_bytes
        self._empty = [q for q in model.parameters if q.numel == 0 and q.group >= 0]
        self.parts = [Part("rng.python", lambda: (random.getstate(), PYTHON_RNG_BYTES), lambda a, b: a == b),
                      Part("rng.torch", _torch_rng, torch.equal)]
        self._numpy = Part("rng.numpy", _numpy_rng, _same_numpy)
        self._cuda = []
        self.parts.append(Part("optimizer", self._optimizer))
        if scheduler is not None:
            self._add("scheduler", scheduler)
        if scaler is not None:
            self._add("scaler", scaler)
        for name, value in (extra or {}).items():
            self._add("data" if name == "data" else "user." + str(name), value)
        for name, slots in (("buffers", fixed.buffer_slots(model.module)),
                            ("frozen", fixed.frozen_slots(model.module))):
            if slots:
                self.parts.append(Part(name, _pictures(fixed.FixedTensors(slots, blob_bytes)), lambda a, b: a is b))

    def _add(self, name, thing):
        getter = reader_of(thing)

        def read():
            budget = codec.Budget(self._blob_bytes)
            value = codec.snapshot(getter(), budget, thing)
            return value, self._blob_bytes - budget.bytes

        self.parts.append(Part(name, read))

    def _optimizer(self):
        """Everything of the groups but the parameters, as it will be used next; and which gradients are None."""
        budget = codec.Budget(self._blob_bytes)
        groups = []
        for group in self._model.optimizer.param_groups:
            copy = {}
            for key, value in group.items():
                if key != "params":
                    copy[key] = value if type(value) in PLAIN else codec.snapshot(value, budget, None, "." + key)
            groups.append(copy)
        absent = bytes([p.grad is None for p in self._model.tensors])
        value = {"groups": groups, "absent": absent}
        if self._empty:  # no shard holds a parameter without elements, so its counter travels here
            state = self._model.optimizer.state
            value["empty"] = {q.name: hyper.step_counter(state[q.tensor]) for q in self._empty if state.get(q.tensor)}
        return value, 1024 * len(groups) + len(absent)

    def _now(self):
        parts = self.parts
        if "numpy" in sys.modules:
            parts = parts + [self._numpy]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            while len(self._cuda) < torch.cuda.device_count():
                k = len(self._cuda)
                self._cuda.append(Part("rng.cuda.%d" % k, lambda k=k: _sized(torch.cuda.get_rng_state(k)),
                                       torch.equal))
            parts = parts + self._cuda
        return parts

    def capture(self):
        """([Captured], {name: reason} of what could not be taken). Never raises for one part."""
        taken, missing = [], {}
        for part in self._now():
            try:
                taken.append(part.capture())
            except Exception as error:
                missing[part.name] = reason_of(error)
        return taken, missing


def _pictures(tensors):
    def read():
        picture = tensors.capture()
        return picture, picture.size

    return read


def encode(captured):
    """Bytes of one captured value. Raises what codec raises."""
    value = captured.value
    plain = getattr(value, "plain", None)
    return codec.encode(plain() if plain is not None else value)


def reason_of(error):
    if isinstance(error, codec.UnknownLeaf):
        return "%s: %s" % (error.path.lstrip(".") or "value", error.kind)
    if isinstance(error, codec.TooLarge):
        return str(error)
    return "%s: %s" % (type(error).__name__, str(error)[:200])


def _sized(tensor):
    return tensor, tensor.numel() * tensor.element_size() + 64


def _torch_rng():
    return _sized(torch.get_rng_state())


def _numpy_rng():
    state = sys.modules["numpy"].random.get_state()
    return state, 4096


def _same_numpy(a, b):
    return a[0] == b[0] and a[2:] == b[2:] and a[1].tobytes() == b[1].tobytes()


# What the user may hand over


def reader_of(thing):
    """A callable that gives the state of one object."""
    if isinstance(thing, (list, tuple)) and thing and all(callable(getattr(t, "state_dict", None)) for t in thing):
        return lambda: [t.state_dict() for t in thing]
    if callable(getattr(thing, "state_dict", None)):
        return thing.state_dict
    if isinstance(thing, torch.Generator):
        return thing.get_state
    if isinstance(thing, random.Random):
        return thing.getstate
    kind = _numpy_kind(thing)
    if kind == "Generator":
        return lambda: thing.bit_generator.state
    if kind == "RandomState":
        return thing.get_state
    if isinstance(thing, tuple) and len(thing) == 2 and all(callable(t) for t in thing):
        return thing[0]
    return lambda: thing


def writer_of(thing):
    """A callable that puts a state back into one object, or None where the value itself is all there is."""
    if isinstance(thing, (list, tuple)) and thing and all(callable(getattr(t, "state_dict", None)) for t in thing):
        return lambda states: [t.load_state_dict(s) for t, s in zip(thing, states)]
    if callable(getattr(thing, "state_dict", None)):
        return getattr(thing, "load_state_dict", None) or _no_way_back(thing)
    if isinstance(thing, torch.Generator):
        return thing.set_state
    if isinstance(thing, random.Random):
        return thing.setstate
    kind = _numpy_kind(thing)
    if kind == "Generator":
        return lambda state: setattr(thing.bit_generator, "state", state)
    if kind == "RandomState":
        return thing.set_state
    if isinstance(thing, tuple) and len(thing) == 2 and all(callable(t) for t in thing):
        return thing[1]
    if isinstance(thing, torch.Tensor):
        return lambda value: _no_grad_copy(thing, value)
    if isinstance(thing, dict):
        return lambda value: (thing.clear(), thing.update(value))
    if isinstance(thing, list):
        return lambda value: thing.__setitem__(slice(None), value)
    return None


def _no_way_back(thing):
    def refuse(_state):
        raise TypeError("%s has state_dict but no load_state_dict" % codec.kind_of(thing))

    return refuse


def _no_grad_copy(tensor, value):
    with torch.no_grad():
        tensor.copy_(value)


def _numpy_kind(thing):
    np = sys.modules.get("numpy")
    if np is None:
        return None
    if isinstance(thing, np.random.Generator):
        return "Generator"
    return "RandomState" if isinstance(thing, np.random.RandomState) else None
