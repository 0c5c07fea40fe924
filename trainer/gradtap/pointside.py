"""The side state of one rank in a recovery point: checked, decoded, and put back.

check() changes nothing. put_back() sets everything but the random generators; set_generators() comes last of all, for
whatever runs after it may draw from them.
"""

import hashlib
import importlib
import random
import struct

import torch

from . import codec, fixed, hyper, sidestate
from .errors import RestoreError
from .pointstate import MASK_COUNTER, set_empty_states

DOMAIN = b"gradtap side state 1"
ALWAYS = ("rng.python", "rng.torch", "optimizer")  # of every step but the base of a first lineage


class PointSide:
    def __init__(self, file, record, rank, model, scheduler, scaler, extra, ignore):
        self._file, self._record, self._rank, self._model = file, record, rank, model
        self._ignore = set(ignore)
        self.message = {}
        self.values = {}
        self.extra = {}  # what the point holds for each name of extra
        self._things = {}
        if scheduler is not None:
            self._things["scheduler"] = scheduler
        if scaler is not None:
            self._things["scaler"] = scaler
        for name, thing in (extra or {}).items():
            self._things["data" if name == "data" else "user." + str(name)] = thing
        self._slots = {"buffers": fixed.buffer_slots(model.module), "frozen": fixed.frozen_slots(model.module)}

    # Before anything is changed

    def check(self):
        blobs = {name: self._file.data(name) for name in self._file.names()}
        self._check_digests(blobs)
        for name in sorted(blobs):
            if self._ignored(name):
                continue
            try:
                self.values[name] = codec.decode(blobs[name])
            except codec.Malformed as error:
                raise RestoreError("POINT_DAMAGED", "side state %s cannot be read: %s" % (name, error)) from None
        self._check_names()
        for name, slots in self._slots.items():
            if name in self.values:
                fixed.compare(slots, self.values[name], "buffer" if name == "buffers" else "frozen parameter",
                              _differs)
        self._check_groups()
        for name, thing in self._things.items():
            if name in self.values:
                self._resolve(name, thing)

    def _check_digests(self, blobs):
        meta = self._file.metadata
        for key, expected in (("step", self._record["step"]), ("lineage", self._record["lineage"]),
                              ("rank", self._rank)):
            if str(meta.get(key)) != str(expected):
                raise RestoreError("POINT_DAMAGED", "the side state's %s is not the record's" % key,
                                   expected=expected, actual=meta.get(key))
        text = str(meta.get("message") or "").encode("utf-8")
        expected, actual = rank_digest_of(self._record, self._rank), side_digest(self._rank, text, blobs)
        if expected != actual:
            raise RestoreError("DIGEST_MISMATCH", "the side state of rank %d is not what the record says" % self._rank,
                               expected=expected, actual=actual)
        if not text:
            return
        message = codec_json(text)
        self.message = message
        named = message.get("blobs")
        named = named if isinstance(named, dict) else {}
        for name in sorted(set(named) | set(blobs)):
            entry = named.get(name) if isinstance(named.get(name), dict) else {}
            actual = hashlib.sha256(blobs[name]).hexdigest() if name in blobs else "nothing"
            if entry.get("digest") != actual:
                raise RestoreError("DIGEST_MISMATCH", "side state %s of rank %d is not what its message says"
                                   % (name, self._rank), expected=entry.get("digest"), actual=actual)

    def _check_names(self):
        base_only = self._record["step"] == 0 and not self.values
        if not base_only and not self._file.names():
            raise RestoreError("POINT_INCOMPLETE", "the point holds no side state of rank %d" % self._rank)
        wanted = set(self._things) | set(n for n, slots in self._slots.items() if slots) | set(ALWAYS)
        for name in sorted(wanted):
            if name not in self.values and not base_only and not self._ignored(name):
                raise RestoreError("SIDE_STATE_MISSING", "the point has no %s" % _plain_name(name),
                                   remedy="it was not given to attach; leave it out here, or name it in ignore")
        for name in sorted(self.values):
            if name not in wanted and not name.startswith("rng."):
                raise RestoreError("SIDE_STATE_UNUSED", "the point holds %s, and nothing here takes it"
                                   % _plain_name(name), remedy="pass it to restore, or name it in ignore")
            if name.startswith("rng.cuda.") and not (torch.cuda.is_available()
                                                     and int(name[9:] or 0) < torch.cuda.device_count()):
                raise RestoreError("SIDE_STATE_UNUSED", "the point holds %s, and there is no such device" % name,
                                   remedy="restart on as many devices, or name it in ignore")

    def _ignored(self, name):
        return name in self._ignore or _plain_name(name) in self._ignore

    def _check_groups(self):
        saved = self.values.get("optimizer")
        if saved is None:
            return
        groups = self._model.optimizer.param_groups
        if not isinstance(saved, dict) or not isinstance(saved.get("groups"), list) \
                or not all(isinstance(g, dict) for g in saved["groups"]) or not isinstance(saved.get("absent"), bytes):
            raise RestoreError("POINT_DAMAGED", "the optimizer's groups cannot be read")
        if len(saved["groups"]) != len(groups):
            raise RestoreError("STATE_MISMATCH", "the optimizer has another number of parameter groups",
                               expected=len(saved["groups"]), actual=len(groups))
        if len(saved["absent"]) != len(self._model.tensors):
            raise RestoreError("STATE_MISMATCH", "the model has another number of parameters",
                               expected=len(saved["absent"]), actual=len(self._model.tensors))
        self._check_kinds(saved["groups"])
        empty = saved.get("empty", {})
        known = {q.name for q in self._model.parameters if q.numel == 0 and q.group >= 0}
        if not isinstance(empty, dict) or not all(type(n) is int and 0 <= n < MASK_COUNTER for n in empty.values()):
            raise RestoreError("POINT_DAMAGED", "the step counters of parameters without elements cannot be read")
        for name in sorted(set(empty) - known):
            raise RestoreError("STATE_MISMATCH", "%s has no elements in the point, and has some here, or is not there" % name,
                               remedy="build the model as the job did")
        for g, (mine, theirs) in enumerate(zip(groups, saved["groups"])):
            self.values["optimizer"]["groups"][g] = _resolved("param_groups.%d" % g, theirs, mine, None)

    def _check_kinds(self, groups):
        """Which states there are follows from flags such as amsgrad; another set has other digests."""
        try:
            expected = hyper.kinds_of(self._model.class_name, groups)
        except (KeyError, TypeError):
            raise RestoreError("POINT_DAMAGED", "the optimizer's groups cannot be read") from None
        if expected != self._model.kinds:
            raise RestoreError("STATE_MISMATCH", "the optimizer keeps other states for a parameter", expected=expected,
                               actual=self._model.kinds, remedy="build the optimizer with the options of the job")

    def _resolve(self, name, thing):
        try:
            current = sidestate.reader_of(thing)()
        except Exception as error:
            raise RestoreError("STATE_MISMATCH", "the state of %s cannot be read: %r" % (_plain_name(name), error)) \
                from None
        if name in ("scheduler", "scaler"):
            _same_fields(name, self.values[name], current)
        self.values[name] = _resolved(_plain_name(name), self.values[name], current, thing)

    # Putting back

    def put_back(self):
        with torch.no_grad():
            for name, slots in self._slots.items():
                if name in self.values:
                    fixed.put_back(slots, self.values[name])
        saved = self.values.get("optimizer")
        if saved is not None:
            for mine, theirs in zip(self._model.optimizer.param_groups, saved["groups"]):
                _set_group(mine, theirs)
            set_empty_states(self._model, saved.get("empty", {}))
        for name, thing in self._things.items():
            if name not in self.values:
                continue
            value = _copy(self.values[name])  # load_state_dict may keep or consume what it is given
            write = sidestate.writer_of(thing)
            if name == "data" or name.startswith("user."):
                self.extra[name[5:] if name.startswith("user.") else name] = value
            if write is not None:
                try:
                    write(value)
                except Exception as error:
                    raise RestoreError("STATE_MISMATCH", "%s does not take its state: %r"
                                       % (_plain_name(name), error)) from None

    def set_gradients(self):
        """Absent where they were absent, zero in place elsewhere: whether a gradient exists decides what DDP and the
        optimizer do with a parameter that is not used."""
        saved = self.values.get("optimizer")
        for i, p in enumerate(self._model.tensors):
            if saved is None or saved["absent"][i]:
                p.grad = None
            elif p.grad is None:
                p.grad = torch.zeros_like(p)
            else:
                p.grad.requires_grad_(False).zero_()

    def had_gradients(self):
        saved = self.values.get("optimizer")
        return saved is not None and not all(saved["absent"])

    def set_generators(self):
        for name, value in self.values.items():
            try:
                if name == "rng.python":
                    random.setstate(value)
                elif name == "rng.torch":
                    torch.set_rng_state(value)
                elif name == "rng.numpy":
                    importlib.import_module("numpy").random.set_state(value)
                elif name.startswith("rng.cuda."):
                    torch.cuda.set_rng_state(value, int(name[9:]))
            except Exception as error:
                raise RestoreError("STATE_MISMATCH", "%s does not take its state: %r" % (name, error)) from None


def _set_group(mine, theirs):
    for key, value in theirs.items():
        if key == "params":
            continue
        now = mine.get(key)
        if isinstance(now, torch.Tensor) and isinstance(value, torch.Tensor) and now.shape == value.shape \
                and now.dtype == value.dtype:
            with torch.no_grad():
                now.copy_(value)
        else:
            mine[key] = value.clone() if isinstance(value, torch.Tensor) else value


def _same_fields(name, saved, current):
    """A schedule or a scaler takes any dictionary; one with other fields is the state of another class."""
    if isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        for n, (one, other) in enumerate(zip(saved, current)):
            _same_fields("%s.%d" % (name, n), one, other)
        return
    if isinstance(saved, dict) and isinstance(current, dict) and saved.keys() == current.keys():
        return
    fields = lambda v: sorted(v) if isinstance(v, dict) else type(v).__name__  # noqa: E731
    raise RestoreError("STATE_MISMATCH", "the %s in the point has other fields: it is of another class" % name,
                       expected=fields(saved), actual=fields(current), remedy="build the %s as the job did" % name)


def _resolved(name, value, current, owner):
    try:
        return codec.resolve(value, current, name, owner)
    except codec.UnknownLeaf as error:
        raise RestoreError("STATE_MISMATCH", str(error)) from None


def _copy(value):
    """A deep copy that keeps functions, and what resolve put in, as they are."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        copy = type(value)()
        for key, item in value.items():
            copy[key] = _copy(item)
        return copy
    if type(value) in (list, tuple):
        return type(value)(_copy(v) for v in value)
    return value.copy() if hasattr(value, "copy") and not callable(value) else value


def _differs(text):
    raise RestoreError("STATE_MISMATCH", text, remedy="build the model as the job did")


def _plain_name(name):
    """The name as the user knows it."""
    if name == "data":
        return 'extra["data"]'
    return 'extra["%s"]' % name[5:] if name.startswith("user.") else name


def codec_json(text):
    import json

    try:
        message = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise RestoreError("POINT_DAMAGED", "the step message in the side state is not a JSON object")
    return message


def side_digest(rank, message, blobs):
    """The digest of a rank's side state in the record (docs/formats.md): hexadecimal."""
    sha = hashlib.sha256(DOMAIN)
    sha.update(struct.pack("<QQ", rank, len(message)))
    sha.update(message)
    sha.update(struct.pack("<Q", len(blobs)))
    for name, data in sorted((name.encode("utf-8"), data) for name, data in blobs.items()):
        sha.update(struct.pack("<Q", len(name)) + name + struct.pack("<Q", len(data)))
        sha.update(data)
    return sha.hexdigest()


def rank_digest_of(record, rank):
    """What the record says of one rank."""
    ranks = record.get("ranks")
    for n, entry in enumerate(ranks if isinstance(ranks, list) else ()):
        at = entry.get("rank", n) if isinstance(entry, dict) else n
        if at == rank:
            return entry.get("digest") if isinstance(entry, dict) else entry
    raise RestoreError("POINT_DAMAGED", "the record has no side state of rank %d" % rank)
