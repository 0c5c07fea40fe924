"""The canonical view of the job: trainable parameters in DDP's registration order, their names, order and group."""

from . import fixed, hyper
from .memory import memory_order


class Parameter:
    """One trainable parameter. Holds the tensor object, never an address: gradients move between steps."""

    __slots__ = ("index", "name", "tensor", "order", "numel", "group", "group_index", "aliases", "stride")

    def __init__(self, index, name, tensor, place, aliases):
        self.index = index
        self.name = name
        self.tensor = tensor
        self.order = memory_order(tensor)
        self.stride = tensor.stride()
        self.numel = tensor.numel()
        self.group, self.group_index = place
        self.aliases = aliases

    def describe(self):
        return {
            "name": self.name,
            "shape": list(self.tensor.shape),
            "order": self.order,
            "dtype": str(self.tensor.dtype).replace("torch.", ""),
            "numel": self.numel,
            "requires_grad": True,
            "group": self.group,
            "group_index": self.group_index,
            "alias_of": None,
            "aliases": self.aliases,
        }


class Model:
    """Parameters, buffers and optimizer description, fixed at attach."""

    def __init__(self, module, optimizer):
        self.module = module
        self.optimizer = optimizer
        self.class_name = optimizer_class(optimizer)
        place_of = {id(p): (g, i) for g, group in enumerate(optimizer.param_groups)
                    for i, p in enumerate(group["params"])}
        names = {}
        for module_name, sub in module.named_modules(remove_duplicate=False):
            for leaf, p in sub._parameters.items():
                if p is not None:
                    names.setdefault(id(p), []).append(module_name + "." + leaf if module_name else leaf)
        self.parameters = []
        self.frozen = []
        for name, p in module.named_parameters():
            if not p.requires_grad:
                self.frozen.append((name, p))
                continue
            aliases = [n for n in dict.fromkeys(names.get(id(p), [])) if n != name]
            self.parameters.append(
                Parameter(len(self.parameters), name, p, place_of.get(id(p), (-1, 0)), aliases))
        self.buffers = list(module.named_buffers())
        self.index_of = {id(q.tensor): q.index for q in self.parameters}
        self.tensors = [q.tensor for q in self.parameters]
        self.kinds = hyper.kinds_of(self.class_name, optimizer.param_groups) if self.class_name else []

    def groups(self):
        return [hyper.spell_group(hyper.read_group(g, self.class_name), self.class_name)
                for g in self.optimizer.param_groups]

    def describe_buffers(self):
        persistent = {slot.name: slot.persistent for slot in fixed.buffer_slots(self.module)}
        return [{"name": n, "shape": list(b.shape), "dtype": str(b.dtype).replace("torch.", ""),
                 "numel": b.numel(), "persistent": persistent.get(n, True)} for n, b in self.buffers]

    def describe_optimizer(self):
        return {"class": self.class_name, "kinds": self.kinds, "groups": self.groups(),
                "group_sizes": [len(g["params"]) for g in self.optimizer.param_groups]}


def optimizer_class(optimizer):
    """SGD, Adam or AdamW for exactly these classes of torch, else None: a subclass may compute anything."""
    import torch

    cls = type(optimizer)
    if cls is torch.optim.SGD:
        return "SGD"
    if cls is torch.optim.AdamW:
        return "AdamW"
    if cls is torch.optim.Adam:
        # Newer Adam can decouple its decay, which is AdamW under another name.
        decoupled = {bool(g.get("decoupled_weight_decay", False)) for g in optimizer.param_groups}
        return "AdamW" if decoupled == {True} else ("Adam" if decoupled <= {False} else None)
    return None
