"""The numerics probe: what this process' optimizer computes, to the bit, on synthetic tensors.

The node tries its recipes on it; exactly one must match. Uses an optimizer of the user's class and flags of its own, a
random generator of its own and nothing of the user's state.
"""

import contextlib
import json

import torch

from . import hyper, safetensors
from .memory import element_bytes

SIZES = (1, 7, 63, 4099, 65541)
STEPS = 4
LR_FACTORS = (1.0, 0.75, 1.5, 0.3)


def build(optimizer, class_name, kinds):
    """The body of the probe chunk."""
    group = optimizer.param_groups[0]
    generator = torch.Generator().manual_seed(0x67726164)
    parameters = [torch.nn.Parameter(_values(n, generator, 1.0)) for n in SIZES]
    probe = type(optimizer)(parameters, **_options(optimizer, group))
    tensors, used = [], []

    def store(case, kind, when, value):
        flat = value.detach().reshape(-1)
        tensors.append(("%d:%s:%s" % (case, kind, when), element_bytes(flat, 0, flat.numel())))

    for case, p in enumerate(parameters):
        store(case, "param", "in", p)
    lr = group["lr"]
    for s in range(1, STEPS + 1):
        factor = LR_FACTORS[s - 1]
        probe.param_groups[0]["lr"] = lr.detach().clone() * factor if isinstance(lr, torch.Tensor) else lr * factor
        used.append(hyper.spell_group(hyper.read_group(probe.param_groups[0], class_name), class_name))
        for case, p in enumerate(parameters):
            p.grad = _values(SIZES[case], generator, 0.1)
            store(case, "grad", "grad%d" % s, p.grad)
        with _without_global_hooks():
            probe.step()
        for case, p in enumerate(parameters):
            store(case, "param", "out%d" % s, p)
            for kind in kinds:
                value = probe.state[p].get(kind)
                if value is not None:
                    store(case, kind, "out%d" % s, value)
    return safetensors.encode(
        tensors, {"groups": json.dumps(used), "class": class_name, "kinds": json.dumps(kinds), "chunks": "1"})


def _options(optimizer, group):
    """Constructor arguments that give a fresh optimizer the flags of this group."""
    import inspect

    accepted = inspect.signature(type(optimizer).__init__).parameters
    return {k: v for k, v in group.items() if k in accepted and k not in ("params", "self")}


def _values(n, generator, scale):
    """Normals over seven decades, with zeros and subnormals in between."""
    x = torch.randn(n, generator=generator, dtype=torch.float32)
    decades = torch.randint(-5, 2, (n,), generator=generator).to(torch.float32)
    x = x * torch.pow(torch.tensor(10.0), decades) * scale
    pick = torch.randint(0, 16, (n,), generator=generator)
    x[pick == 0] = 0.0
    x[pick == 1] = 1e-40
    return x


@contextlib.contextmanager
def _without_global_hooks():
    """Hooks that users registered for all optimizers must not see the probe."""
    import torch.optim.optimizer as module

    saved = []
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        hooks = getattr(module, name, None)
        if hooks:
            saved.append((hooks, list(hooks.items())))
            hooks.clear()
    try:
        yield
    finally:
        for hooks, items in saved:
            hooks.update(items)
