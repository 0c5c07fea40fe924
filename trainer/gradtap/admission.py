"""What cannot be replicated is refused at attach, by name; training goes on untapped."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .memory import is_dense
from .model import optimizer_class


def refuse(ddp, optimizer, scaler):
    """A sentence that names what is not supported, or None."""
    if type(ddp) is not DistributedDataParallel:
        return "the model is %s, only DistributedDataParallel is supported" % _name(ddp)
    reason = _optimizer(optimizer, scaler)
    if reason:
        return reason
    group = ddp.process_group
    backend = str(dist.get_backend(group)).lower()
    if "gloo" not in backend:
        return "backend %s, only gloo is supported" % backend
    if dist.get_world_size(group) != dist.get_world_size():
        return "the process group of the model is not the whole job"
    if ddp._join_config.enable:
        return "uneven inputs (join) are not supported"
    hook = _comm_hook(ddp)
    if hook:
        return "communication hook %s: the gradient on the wire is not known to be the reduced gradient" % hook
    for name, sub in ddp.module.named_modules():
        if isinstance(sub, DistributedDataParallel):
            return "a DistributedDataParallel module inside the model (%s)" % (name or "root")
        if isinstance(sub, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and sub.sparse:
            return "sparse gradients of %s" % (name or "root")
    return _parameters(ddp)


def step_refusal(ddp):
    """Cheap check at the first step: things that users set up after attach."""
    hook = _comm_hook(ddp)
    if hook:
        return "communication hook %s was registered after attach" % hook
    return None


def misplaced(scheduler, scaler):
    """Objects in each other's place: both take any state, and a restore would mix them up."""
    for title, thing, needed in (("scheduler", scheduler, "step"), ("scaler", scaler, "unscale_")):
        for one in thing if isinstance(thing, (list, tuple)) else (thing,):
            if one is None:
                continue
            if isinstance(one, (torch.optim.Optimizer, torch.nn.Module)) or not callable(getattr(one, needed, None)):
                return "%s=%s: that is no %s" % (title, _name(one), title)
    return None


def _optimizer(optimizer, scaler):
    if optimizer_class(optimizer) is None:
        return "optimizer %s, exactly torch.optim.SGD, Adam or AdamW are supported" % _name(optimizer)
    for g, group in enumerate(optimizer.param_groups):
        for flag in ("differentiable", "capturable"):
            if group.get(flag):
                return "%s=True in parameter group %d" % (flag, g)
        lr = group["lr"]
        if isinstance(lr, torch.Tensor) and (lr.numel() != 1 or lr.dtype not in (torch.float32, torch.float64)):
            return "lr of parameter group %d is a tensor of %s with %d elements" % (g, lr.dtype, lr.numel())
        for key in ("betas", "momentum", "dampening", "weight_decay", "eps"):
            value = group.get(key, 0.0)
            for v in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(v, torch.Tensor):
                    return "%s of parameter group %d is a tensor" % (key, g)
    return None


def _comm_hook(ddp):
    try:
        name = ddp._get_ddp_logging_data().get("comm_hook")
    except Exception:
        name = None
    if name:
        return name
    hooks = getattr(ddp, "_comm_hooks", None)
    return getattr(hooks[0][0], "__qualname__", "unnamed") if hooks else None


def _parameters(ddp):
    ignored = set(ddp.parameters_to_ignore)
    ranges = []
    for name, p in ddp.module.named_parameters():
        if not p.requires_grad:
            continue
        if name in ignored:
            return "parameter %s is trained but ignored by DistributedDataParallel" % name
        if p.dtype != torch.float32:
            return "parameter %s has dtype %s, only float32 is supported" % (name, str(p.dtype).replace("torch.", ""))
        if p.device.type != "cpu":
            return "parameter %s is on %s, only CPU training is supported" % (name, p.device)
        if p.layout != torch.strided or not is_dense(p):
            return "parameter %s does not lie densely in memory" % name
        if p.numel():
            ranges.append((p.data_ptr(), p.data_ptr() + 4 * p.numel(), name))
    ranges.sort()
    for (_, end, first), (begin, _, second) in zip(ranges, ranges[1:]):
        if begin < end:
            return "parameters %s and %s share memory without being one parameter" % (first, second)
    return None


def _name(thing):
    thing = thing if isinstance(thing, type) else type(thing)
    return "%s.%s" % (thing.__module__, thing.__qualname__)
