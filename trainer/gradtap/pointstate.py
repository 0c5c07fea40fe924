"""Parameters and optimizer state of a recovery point: checked against the record's digests, then put into the model.

Checking changes nothing. It walks the blocks in canonical order as docs/side-channel.md, "Digests", says; the ends of
the shards are found by the digests themselves.
"""

import hashlib
import struct

import torch

from .digest import BLOCK, block_digests
from .errors import RestoreError
from .hyper import step_counter

MASK_COUNTER = 1 << 53


class PointState:
    def __init__(self, file, model, record):
        self._file, self._model, self._record = file, model, record
        self._kinds = model.kinds
        self._counters = {}

    def check_names(self):
        """Raises RestoreError: STATE_MISMATCH for another model."""
        self._check_names()

    def check_bytes(self):
        """Raises RestoreError: DIGEST_MISMATCH or POINT_DAMAGED for other bytes."""
        self._check_metadata()
        self._check_digests()

    def _check_names(self):
        names = set(self._file.names())
        expected = {}
        for q in self._model.parameters:
            expected[q.name] = list(q.tensor.shape)
        for name in list(names):
            base, _, kind = name.partition("#")
            if kind and base in expected and kind in self._kinds:
                expected[name] = expected[base]
        for name in sorted(names | set(expected)):
            if name not in expected:
                frozen = name in {n for n, _ in self._model.frozen}
                raise RestoreError("STATE_MISMATCH", "%s is trained in the point and frozen here" % name if frozen else
                                   "%s is in the point, not in this model and optimizer" % name,
                                   remedy="build the model and the optimizer as the job did")
            if name not in names:
                raise RestoreError("STATE_MISMATCH", "%s is in this model, not in the point" % name,
                                   remedy="build the model as the job did")
            if self._file.shape(name) != expected[name] or not self._file.is_float(name):
                raise RestoreError("STATE_MISMATCH", "%s has another shape" % name, expected=self._file.shape(name),
                                   actual=expected[name], remedy="build the model as the job did")
        wanted = self._record.get("optimizer")
        wanted = wanted.get("class") if isinstance(wanted, dict) else wanted
        if wanted is not None and wanted != self._model.class_name:
            raise RestoreError("STATE_MISMATCH", "the point is of another optimizer", expected=wanted,
                               actual=self._model.class_name)

    def _check_metadata(self):
        meta = self._file.metadata
        for key in ("step", "lineage", "root"):
            if str(meta.get(key)) != str(self._record.get(key)):
                raise RestoreError("POINT_DAMAGED", "the state's %s is not the record's" % key,
                                   expected=self._record.get(key), actual=meta.get(key))
        contents = meta.get("contents", "full")  # older nodes do not say
        if contents != "full":
            raise RestoreError("POINT_INCOMPLETE", "the state is an export of another kind: nothing can be resumed from it",
                               expected="full", actual=contents, remedy="export with --optimizer")
        counters = self._file.json("counters", {})
        by_name = {q.name: q.index for q in self._model.parameters}
        if not isinstance(counters, dict) or not all(
                name in by_name and type(n) is int and 0 <= n < MASK_COUNTER for name, n in counters.items()):
            raise RestoreError("POINT_DAMAGED", "the step counters cannot be read")
        self._counters = {by_name[name]: n for name, n in counters.items()}

    def _check_digests(self):
        shards = shard_digests(self._record)
        root = hashlib.sha256(b"".join(shards)).hexdigest()
        if root != self._record["root"]:
            raise RestoreError("DIGEST_MISMATCH", "the record's state root is not that of its shards",
                               expected=self._record["root"], actual=root)
        found = first_difference(shards, self._model, self._from_file)
        if found is not None:
            at, actual, left = found
            raise RestoreError("DIGEST_MISMATCH", "shard %d of the state is not what the record says" % at,
                               expected=shards[at].hex() if at < len(shards) else "the end of the state",
                               actual="%s over the remaining %d blocks" % (actual, left),
                               remedy="the bytes were damaged on the way or in the store; gradtap points verify tells")

    def _from_file(self, q, kind):
        if kind == "step":
            return self._counters.get(q.index, 0)
        name = q.name if kind is None else "%s#%s" % (q.name, kind)
        return self._file.tensor(name) if name in self._file.names() else None

    def apply(self):
        """Sets parameters and per-parameter optimizer state. Call check before."""
        optimizer = self._model.optimizer
        with torch.no_grad():
            for q in self._model.parameters:
                q.tensor.copy_(self._file.tensor(q.name))
                if q.group < 0:
                    continue
                optimizer.state.pop(q.tensor, None)
                fresh = {}
                for kind in self._kinds:
                    name = "%s#%s" % (q.name, kind)
                    if name in self._file.names():
                        value = torch.empty_like(q.tensor, requires_grad=False)  # keeps the memory order
                        fresh[kind] = value.copy_(self._file.tensor(name))
                if fresh and self._model.class_name != "SGD":
                    fresh = dict(step=_step(self._counters.get(q.index, 0), optimizer.param_groups[q.group]), **fresh)
                if fresh:
                    optimizer.state[q.tensor] = fresh


def first_difference(shards, model, value_of):
    """None if the state has the digests of `shards`, else (number of the first shard that differs, digest, blocks left).

    value_of(parameter, kind): tensor of the parameter (kind None) or of one of its states, None if absent; the counter
    for kind "step". Ends of shards are where a digest fits."""
    at, current, left = 0, hashlib.sha256(), 0
    for q in model.parameters:
        counter = struct.pack("<q", value_of(q, "step"))
        values = [value_of(q, kind) for kind in [None] + model.kinds]
        columns = [None if v is None else block_digests(v, q.order) for v in values]
        for b in range((q.numel + BLOCK - 1) // BLOCK):
            current.update(b"".join(bytes(16) if c is None else struct.pack("<QQ", *c[b]) for c in columns) + counter)
            left += 1
            if at < len(shards) and current.digest() == shards[at]:
                at, current, left = at + 1, hashlib.sha256(), 0
    return None if at == len(shards) and not left else (at, current.hexdigest(), left)


def live_value(model):
    """value_of for what model and optimizer hold now."""
    def value_of(q, kind):
        if kind is None:
            return q.tensor.detach()
        state = model.optimizer.state.get(q.tensor, {}) if q.group >= 0 else {}
        return step_counter(state) if kind == "step" else state.get(kind)

    return value_of


def set_empty_states(model, counters):
    """The state of parameters without elements: no shard holds it, only the counter is more than a shape."""
    for q in model.parameters:
        if q.name not in counters:
            continue
        group = model.optimizer.param_groups[q.group]
        state = {kind: torch.empty_like(q.tensor, requires_grad=False) for kind in model.kinds
                 if kind != "max_exp_avg_sq" or group["amsgrad"]}
        if model.class_name != "SGD":
            state = dict(step=_step(counters[q.name], group), **state)
        model.optimizer.state[q.tensor] = state


def _step(count, group):
    """The counter as torch keeps it: a 0-dim tensor of the default type, of float32 for fused kernels."""
    return torch.tensor(float(count), dtype=torch.float32 if group.get("fused") else None)


def shard_digests(record):
    """[bytes] in shard order."""
    found = []
    shards = record.get("shards")
    for n, entry in enumerate(shards if isinstance(shards, list) else ()):
        text = entry.get("digest") if isinstance(entry, dict) else entry
        at = entry.get("shard", entry.get("id", n)) if isinstance(entry, dict) else n
        try:
            found.append((int(at), bytes.fromhex(text)))
        except (TypeError, ValueError):
            raise RestoreError("POINT_DAMAGED", "digest of shard %d cannot be read" % n) from None
    found.sort()
    if not found or [at for at, _ in found] != list(range(len(found))):
        raise RestoreError("POINT_DAMAGED", "the record's list of shards has gaps or is empty")
    return [digest for _, digest in found]

