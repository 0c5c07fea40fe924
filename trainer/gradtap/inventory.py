"""Every leaf of the framework's checkpoint and how it is obtained: what the tap covers, and what it does not.

Classes: replayed (rebuilt from the wire), side-channel (travels by value), snapshot (only as captured), unknown.
"""

import collections
import sys

import torch

from . import codec, fixed, sidestate

MAX_LEAVES = 20000
PLAIN = (type(None), bool, int, float, str, bytes)
CLASSES = ("replayed", "side-channel", "snapshot", "unknown")


class Inventory:
    def __init__(self):
        self.leaves = []
        self.truncated = False

    def add(self, name, state_class, kind):
        if len(self.leaves) >= MAX_LEAVES:
            self.truncated = True
            return
        self.leaves.append({"name": name, "class": state_class, "type": kind})

    def walk(self, name, value, owner=None, depth=0):
        """An object of the user: what the side state's encoding can express travels, the rest is unknown by name."""
        if depth > codec.MAX_DEPTH:
            self.add(name, "unknown", "nested deeper than %d" % codec.MAX_DEPTH)
        elif type(value) in (dict, collections.OrderedDict, collections.Counter) and value:
            for key, item in value.items():
                self.walk("%s.%s" % (name, key), item, owner, depth + 1)
        elif type(value) in (list, tuple) and any(type(v) not in PLAIN for v in value):
            for i, item in enumerate(value):
                self.walk("%s.%d" % (name, i), item, owner, depth + 1)
        else:
            try:
                codec.snapshot(value, codec.Budget(1 << 40), owner)
                self.add(name, "side-channel", describe(value))
            except codec.UnknownLeaf as error:
                self.add(name + error.path, "unknown", error.kind)

    def walk_object(self, name, thing):
        """An object that travels by its state_dict or the like."""
        try:
            state = sidestate.reader_of(thing)()
        except Exception as error:
            self.add(name, "unknown", "state_dict failed: %s" % type(error).__name__)
            return
        self.walk(name, state, thing)

    def lines(self):
        """A few lines for people: each leaf once, leaves of one kind and class folded."""
        folded = {}
        for leaf in self.leaves:
            part = leaf["name"].split(".", 1)[0].split("#", 1)[0]
            folded.setdefault((CLASSES.index(leaf["class"]), part), []).append(leaf["name"])
        for (at, part), names in sorted(folded.items()):
            shown = ", ".join(names[:3]) + (", ... %d in all" % len(names) if len(names) > 3 else "")
            # Unknown ones block publication: they are named in full.
            yield "  %-12s %s" % (CLASSES[at], ", ".join(names) if CLASSES[at] == "unknown" else shown)
        if self.truncated:
            yield "  more than %d leaves: the rest is not listed" % MAX_LEAVES


def describe(value):
    if isinstance(value, torch.Tensor):
        return "tensor %s" % list(value.shape)
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return "%s of %d" % (type(value).__name__, len(value))
    return type(value).__name__


def take(model, scheduler, scaler, extra, missing):
    """missing: {part of the side state: why it cannot be taken}, from a first capture."""
    inventory = Inventory()
    for q in model.parameters:
        trained = q.group >= 0
        kind = "float32 %s" % list(q.tensor.shape)
        inventory.add("model." + q.name, "replayed" if trained else "unknown",
                      kind if trained else kind + ", trainable but not in this optimizer")
        for alias in q.aliases:
            inventory.add("model." + alias, "replayed", "alias of " + q.name)
        for state in model.kinds if trained else ():
            inventory.add("optimizer.%s#%s" % (q.name, state), "replayed", kind)
        if trained and model.class_name != "SGD":
            inventory.add("optimizer.%s#step" % q.name, "replayed", "counter")
    for title, slots in (("frozen", fixed.frozen_slots(model.module)), ("buffer", fixed.buffer_slots(model.module))):
        for slot in slots:
            _add_fixed(inventory, title, slot)
    known = set(model.index_of) | {id(p) for _, p in model.frozen}
    for g, group in enumerate(model.optimizer.param_groups):
        for key in group:
            if key != "params":
                inventory.walk("optimizer.param_groups.%d.%s" % (g, key), group[key])
        for i, p in enumerate(group["params"]):
            if id(p) not in known:
                inventory.add("optimizer.param_groups.%d.params.%d" % (g, i),
                              "unknown", "parameter %s outside the model" % list(p.shape))
    if scheduler is not None:
        inventory.walk_object("scheduler", scheduler)
    if scaler is not None:
        inventory.walk_object("scaler", scaler)
    for name in ["python", "torch"] + (["numpy"] if "numpy" in sys.modules else []):
        inventory.add("rng." + name, "side-channel", "generator state")
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for k in range(torch.cuda.device_count()):
            inventory.add("rng.cuda.%d" % k, "side-channel", "generator state")
    for name, value in (extra or {}).items():
        inventory.walk_object("extra." + str(name), value)
    _add_missing(inventory, missing)
    return inventory


def _add_fixed(inventory, title, slot):
    t = slot.tensor()
    kind = "%s %s %s" % (title, str(t.dtype).replace("torch.", ""), list(t.shape))
    if t.numel() * t.element_size() <= fixed.BY_DIGEST_BYTES:
        inventory.add("model." + slot.name, "side-channel", kind)
    elif slot.persistent:
        inventory.add("model." + slot.name, "snapshot", kind + ", by digest as long as it does not change")
    else:
        inventory.add("model." + slot.name, "snapshot", kind + ", made by the program as long as it does not change")


def _add_missing(inventory, missing):
    """Parts that failed as a whole, for instance by their size: unknown, unless a leaf of theirs is already."""
    unknown = [leaf["name"] for leaf in inventory.leaves if leaf["class"] == "unknown"]
    for part, why in missing.items():
        name = "extra." + part[5:] if part.startswith("user.") else ("extra.data" if part == "data" else part)
        if not any(u.startswith(name) for u in unknown):
            inventory.add(name, "unknown", why)
