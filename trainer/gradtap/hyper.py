"""Hyper-parameters by value: read raw in the training thread, spelled as bits in the sender thread."""

import torch

from . import bits

SGD_KEYS = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "fused", "foreach")
ADAM_KEYS = ("lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad", "maximize", "fused", "foreach")
FLAGS = frozenset(("nesterov", "amsgrad", "maximize", "fused", "foreach"))


def keys_of(class_name):
    return SGD_KEYS if class_name == "SGD" else ADAM_KEYS


def read_group(group, class_name):
    """A tuple of plain values in the order of keys_of. Tensor-valued lr is read out here: it can change in place."""
    lr = group["lr"]
    if isinstance(lr, torch.Tensor):
        lr = (lr.item(), lr.dtype == torch.float32)
    if class_name == "SGD":
        return (lr, group["momentum"], group["dampening"], group["weight_decay"], group["nesterov"],
                group.get("maximize"), group.get("fused"), group.get("foreach"))
    beta1, beta2 = group["betas"]
    return (lr, beta1, beta2, group["eps"], group["weight_decay"], group["amsgrad"], group.get("maximize"),
            group.get("fused"), group.get("foreach"))


def spell_group(values, class_name):
    return {key: _spell(key, value) for key, value in zip(keys_of(class_name), values)}


def _spell(key, value):
    if key in FLAGS:
        return bits.flag(value)
    if isinstance(value, tuple):
        number, is_f32 = value
        return bits.f32_tensor(number) if is_f32 else bits.f64(number)
    return bits.f64(float(value))  # an int hyper-parameter acts as the double of the same value


def kinds_of(class_name, groups):
    """Per-element state kinds in the order of chunks and digests, over all groups."""
    if class_name == "SGD":
        return ["momentum_buffer"] if any(g["momentum"] != 0 for g in groups) else []
    kinds = ["exp_avg", "exp_avg_sq"]
    return kinds + (["max_exp_avg_sq"] if any(g["amsgrad"] for g in groups) else [])


def step_counter(state):
    """The optimizer's step count of one parameter as an integer; 0 where there is none."""
    value = state.get("step", 0) if state else 0
    return int(value.item() if isinstance(value, torch.Tensor) else value)
