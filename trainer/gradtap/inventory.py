"""Every leaf of the framework's checkpoint and how it is obtained: what the tap covers, and what it does not.

Classes: replayed (rebuilt from the wire), side-channel (travels by value), snapshot (only as captured), unknown.
"""

import sys

import torch

MAX_LEAVES = 20000
MAX_DEPTH = 8
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

    def walk(self, name, value, depth=0):
        """An object of the user: plain values travel, tensors are captured, the rest is unknown by name."""
        if depth > MAX_DEPTH:
            self.add(name, "unknown", "nested deeper than %d" % MAX_DEPTH)
        elif value is None or isinstance(value, (bool, int, float, str, bytes)):
            self.add(name, "side-channel", type(value).__name__)
        elif isinstance(value, torch.Tensor):
            self.add(name, "snapshot", "tensor %s" % list(value.shape))
        elif isinstance(value, dict):
            for key, item in value.items():
                self.walk("%s.%s" % (name, key), item, depth + 1)
        elif isinstance(value, (list, tuple, set, frozenset)):
            plain = all(v is None or isinstance(v, (bool, int, float, str)) for v in value)
            if plain:
                self.add(name, "side-channel", "%s of %d" % (type(value).__name__, len(value)))
            else:
                for i, item in enumerate(value):
                    self.walk("%s.%d" % (name, i), item, depth + 1)
        elif callable(getattr(value, "state_dict", None)):
            try:
                state = value.state_dict()
            except Exception as error:
                self.add(name, "unknown", "state_dict failed: %s" % type(error).__name__)
                return
            self.walk(name, state, depth + 1)
        else:
            self.add(name, "unknown", type(value).__module__ + "." + type(value).__qualname__)

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


def take(model, scheduler, scaler, extra):
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
    for name, p in model.frozen:
        inventory.add("model." + name, "snapshot", "frozen %s %s" % (p.dtype, list(p.shape)))
    for name, b in model.buffers:
        inventory.add("model." + name, "snapshot", "buffer %s %s" % (b.dtype, list(b.shape)))
    known = set(model.index_of) | {id(p) for _, p in model.frozen}
    for g, group in enumerate(model.optimizer.param_groups):
        for key in group:
            if key != "params":
                inventory.add("optimizer.param_groups.%d.%s" % (g, key), "side-channel", type(group[key]).__name__)
        for i, p in enumerate(group["params"]):
            if id(p) not in known:
                inventory.add("optimizer.param_groups.%d.params.%d" % (g, i),
                              "unknown", "parameter %s outside the model" % list(p.shape))
    if scheduler is not None:
        inventory.walk("scheduler", scheduler)
    if scaler is not None:
        inventory.walk("scaler", scaler)
    for name in ["python", "torch"] + (["numpy"] if "numpy" in sys.modules else []):
        inventory.add("rng." + name, "side-channel", "generator state")
    for name, value in (extra or {}).items():
        inventory.walk("extra." + str(name), value)
    return inventory
