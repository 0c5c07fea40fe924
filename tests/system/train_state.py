"""What the training job writes down for the comparisons: state roots, SHA-256 of every tensor, and what is left at the
end of a rank: tensors, optimizer groups, buffers, generators, schedule, data position."""
import hashlib
import json
import os
import random

import numpy as np
import torch

import state_root


class State:
    """The trainer's own state in canonical order: what every root and the final comparison are made of."""

    def __init__(self, a, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self.kinds = {"sgd": ["momentum_buffer"]}.get(a.optimizer, ["exp_avg", "exp_avg_sq"]
                                                      + (["max_exp_avg_sq"] if a.amsgrad else []))
        self.shard_elements = a.shard_elements

    @staticmethod
    def _flat(tensor):
        return None if tensor is None else tensor.detach().reshape(-1).numpy()

    @staticmethod
    def _in_memory(tensor, like):
        """Elements in the memory order of `like`, largest stride first: the order of digests."""
        if tensor is None:
            return None
        order = sorted(range(like.dim()), key=lambda d: -like.stride(d))
        return tensor.detach().permute(order).reshape(-1).numpy().view("uint32")

    def _counter(self, parameter):
        return int(self.optimizer.state.get(parameter, {}).get("step", 0))

    def _tensors_of(self, parameter):
        state = self.optimizer.state.get(parameter, {})
        return [parameter] + [state.get(kind) for kind in self.kinds]

    def arrays(self, parameter):
        return [self._flat(t) for t in self._tensors_of(parameter)]

    def digests(self):
        """(root, shard digests)"""
        return state_root.digests(
            [([self._in_memory(t, p) for t in self._tensors_of(p)], self._counter(p)) for _, p in self.named],
            self.shard_elements)

    def tensors(self):
        """{name as in an export: SHA-256 of its bytes}"""
        found = {}
        for name, parameter in self.named:
            for kind, values in zip(["param"] + self.kinds, self.arrays(parameter)):
                if values is not None:
                    title = name if kind == "param" else "%s#%s" % (name, kind)
                    found[title] = hashlib.sha256(values.tobytes()).hexdigest()
        return found

    def dump(self, folder, steps):
        os.makedirs(folder, exist_ok=True)
        files = {kind: open(os.path.join(folder, kind + ".f32"), "wb") for kind in ["param"] + self.kinds}
        for _, p in self.named:
            for kind, values in zip(["param"] + self.kinds, self.arrays(p)):
                files[kind].write(values.tobytes() if values is not None else b"")
        for f in files.values():
            f.close()
        with open(os.path.join(folder, "meta.json"), "w") as f:
            json.dump({"steps": steps, "kinds": ["param"] + self.kinds, "root": self.digests()[0],
                       "parameters": [{"name": n, "shape": list(p.shape), "numel": p.numel(),
                                       "counter": self._counter(p), "absent": self._absent(p)}
                                      for n, p in self.named]}, f, indent=1)

    def _absent(self, parameter):
        return [k for k, t in zip(["param"] + self.kinds, self._tensors_of(parameter)) if t is None]

    def ending(self, step, schedule, data):
        """Everything of this rank that must be equal after a restart, as JSON: {part: {name: value}}."""
        bits = lambda v: v.hex() if isinstance(v, float) else repr(v)
        groups = {"%d.%s" % (i, key): bits(value) for i, group in enumerate(self.optimizer.param_groups)
                  for key, value in group.items() if key != "params"}
        buffers = {n: hashlib.sha256(b.detach().contiguous().numpy().tobytes()).hexdigest()
                   for n, b in self.model.named_buffers()}
        plan = {k: bits(v) if not isinstance(v, (list, tuple)) else [bits(x) for x in v]
                for k, v in schedule.state_dict().items()} if schedule else {}
        return {"step": {"step": step}, "tensors": self.tensors(),
                "counters": {n: self._counter(p) for n, p in self.named}, "groups": groups, "buffers": buffers,
                "schedule": plan, "data": data.describe(), "generators": generators()}


def generators():
    """Digests of the three global generators, complete with their places in the stream."""
    kind, keys, place, has_gauss, gauss = np.random.get_state()
    numpy_state = keys.tobytes() + repr((kind, place, has_gauss, float(gauss).hex())).encode()
    digest = lambda raw: hashlib.sha256(raw).hexdigest()
    return {"python": digest(repr(random.getstate()).encode()), "numpy": digest(numpy_state),
            "torch": digest(torch.get_rng_state().numpy().tobytes())}


def seed_all(a):
    """The generators of the loop: other streams on every rank."""
    torch.manual_seed(7919 * a.seed + a.rank)
    random.seed(104729 * a.seed + a.rank)
    np.random.seed((1299709 * a.seed + a.rank) % (1 << 32))
