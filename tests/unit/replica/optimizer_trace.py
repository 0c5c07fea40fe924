"""Writes traces of torch's own optimizers to standard output, for optimizer_trace_test.cpp.

One trace = one line of JSON (attach body, step messages, presence, counters, digests), then float32 bytes: parameters
at the start, then for each step gradients, parameters after it, every state kind after it (zeros where absent).
usage: optimizer_trace.py traces | probe
"""
import hashlib
import json
import math
import struct
import sys

try:
    import torch
except ImportError:
    sys.exit(77)

SIZES = [1, 7, 31, 63, 4099, 65541]
SMALL = [1, 7, 31, 63, 4099]
STEPS = 20
PROBE_SIZES = [1, 7, 63, 4099, 65541]
BLOCK = 1 << 16
MASK = (1 << 64) - 1


def f64(x):
    return "i:%d" % x if isinstance(x, int) else "f64:" + struct.pack(">d", x).hex()


def f32(x):
    return "f32:" + struct.pack(">f", x).hex()


def flag(x):
    return "none" if x is None else "b:%d" % bool(x)


def rate(x):
    return "f32t:" + struct.pack(">f", x.item()).hex() if isinstance(x, torch.Tensor) else f64(x)


def group_bits(optimizer, group):
    bits = {"lr": rate(group["lr"]), "weight_decay": f64(group["weight_decay"]), "maximize": flag(group["maximize"]),
            "fused": flag(group.get("fused")), "foreach": flag(group.get("foreach"))}
    if isinstance(optimizer, torch.optim.SGD):
        bits.update(momentum=f64(group["momentum"]), dampening=f64(group["dampening"]),
                    nesterov=flag(group["nesterov"]))
    else:
        bits.update(beta1=f64(group["betas"][0]), beta2=f64(group["betas"][1]), eps=f64(group["eps"]),
                    amsgrad=flag(group["amsgrad"]))
    return bits


def wild(generator, size):
    """Normals over seven decades, with zeros and subnormals."""
    x = torch.randn(size, generator=generator)
    x = x * torch.pow(10.0, torch.rand(size, generator=generator) * 7 - 5)
    pick = torch.rand(size, generator=generator)
    x[pick < 0.05] = 0.0
    x[(pick >= 0.05) & (pick < 0.06)] = -0.0
    tiny = (pick >= 0.06) & (pick < 0.09)
    x[tiny] = x[tiny].sign() * 1e-40
    return x


def kinds_of(optimizer):
    group = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.SGD):
        return ["momentum_buffer"] if any(g["momentum"] for g in optimizer.param_groups) else []
    return ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if group["amsgrad"] else [])


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key_tensor(k):
    keys = [mix(((2 * j + k + 1) * 0x9E3779B97F4A7C15) & MASK) | 1 for j in range(BLOCK)]
    return torch.tensor([x - (1 << 64) if x >> 63 else x for x in keys], dtype=torch.int64)


KEYS = []


def block_digest(x):
    """Two sums modulo 2^64 of the 32-bit words, as unsigned numbers."""
    if not KEYS:
        KEYS.extend([key_tensor(0), key_tensor(1)])
    words = x.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    return b"".join(struct.pack("<q", int((words * KEYS[k][: words.numel()]).sum())) for k in (0, 1))


def digests(params, optimizer, kinds, shard_elements):
    """Shard digests and the state root, by the specification's words."""
    shards, elements, sha = [], 0, None
    for p in params:
        state = optimizer.state.get(p, {})
        counter = int(state["step"]) if "step" in state else 0
        for begin in range(0, p.numel(), BLOCK):
            if sha is None or elements >= shard_elements:
                if sha is not None:
                    shards.append(sha.digest())
                sha, elements = hashlib.sha256(), 0
            part = slice(begin, min(begin + BLOCK, p.numel()))
            sha.update(block_digest(p.detach().reshape(-1)[part]))
            for kind in kinds:
                value = state.get(kind)
                sha.update(bytes(16) if value is None else block_digest(value.reshape(-1)[part]))
            sha.update(struct.pack("<Q", counter))
            elements += part.stop - part.start
    shards.append(sha.digest())
    return [s.hex() for s in shards], hashlib.sha256(b"".join(shards)).hexdigest()


def attach_body(params, optimizer, kinds):
    group_of = {id(p): i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    return {
        "parameters": [{"name": "p%d" % i, "shape": [p.numel()], "order": [0], "dtype": "float32", "numel": p.numel(),
                        "requires_grad": True, "group": group_of[id(p)], "alias_of": None}
                       for i, p in enumerate(params)],
        "buffers": [],
        "optimizer": {"class": type(optimizer).__name__, "kinds": kinds,
                      "groups": [group_bits(optimizer, g) for g in optimizer.param_groups]}}


def clip(params, step):
    """Clips in place with torch's own functions; returns the transforms that say so."""
    if step % 2 == 0:
        max_norm = 0.5
        norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
        coefficient = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        return [{"op": "mul", "bits": f32(coefficient.item()), "scope": "all"}]
    some = [0, 2, len(params) - 1]
    torch.nn.utils.clip_grad_value_([params[i] for i in some], 0.3)
    for i in some:
        params[i].grad.mul_(0.7)
    bound = struct.unpack(">f", struct.pack(">f", 0.3))[0]
    return [{"op": "clamp", "min": f32(-bound), "max": f32(bound), "scope": some},
            {"op": "mul", "bits": f32(0.7), "scope": some}]


def schedule(step, tensor):
    value = 0.003 * (1 + math.sin(step * 1.7) * 0.5) / 7
    return torch.tensor(value) if tensor else value


def trace(name, make, sizes, seed, groups=1, clipped=False, missing=False, lr_tensor=False):
    generator = torch.Generator().manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(n, generator=generator)) for n in sizes]
    for p in params:
        p.data.mul_(torch.pow(10.0, torch.rand(p.numel(), generator=generator) * 3 - 2))
    if groups == 1:
        optimizer = make(params)
    else:
        optimizer = make([{"params": params[0::2]}, {"params": params[1::2], "weight_decay": 0.05}])
    kinds = kinds_of(optimizer)
    body = attach_body(params, optimizer, kinds)
    out = [torch.cat([p.detach().reshape(-1) for p in params])]
    messages, presence, counters, roots = [], [], [], []
    for step in range(1, STEPS + 1):
        for i, group in enumerate(optimizer.param_groups):
            group["lr"] = schedule(step + 3 * i, lr_tensor)
        for p in params:
            p.grad = wild(generator, p.numel())
        states = [0] * len(params)
        if missing:
            for i in range(len(params)):
                if (step + i) % 3 == 0 or (i == 2 and step < 5):
                    states[i] = 1
        out.append(torch.cat([p.grad.reshape(-1) for p in params]))
        for i, p in enumerate(params):
            if states[i] == 1:
                p.grad = None
        transforms = clip(params, step) if clipped else []
        optimizer.step()
        packed = bytearray((len(params) + 3) // 4)
        for i, s in enumerate(states):
            packed[i // 4] |= s << (2 * (i % 4))
        messages.append({
            "kind": "step", "seq": step, "rank": 0, "step": step, "layout_id": "00" * 32, "interval": [step, step + 1],
            "micro_steps": 1, "synced_backwards": 1, "verdict": "applied",
            "groups": [group_bits(optimizer, g) for g in optimizer.param_groups], "transforms": transforms,
            "param_state": packed.hex(), "witness": {}, "buffers": {}, "blobs": {}, "counters": {}})
        out.append(torch.cat([p.detach().reshape(-1) for p in params]))
        for kind in kinds:
            parts = []
            for p in params:
                value = optimizer.state.get(p, {}).get(kind)
                parts.append(torch.zeros(p.numel()) if value is None else value.reshape(-1))
            out.append(torch.cat(parts))
        presence.append([sum((optimizer.state.get(p, {}).get(kind) is not None) << k for k, kind in enumerate(kinds))
                         for p in params])
        counters.append([int(optimizer.state[p]["step"]) if p in optimizer.state and "step" in optimizer.state[p] else 0
                         for p in params])
        if step in (1, STEPS):
            roots.append([step] + [list(digests(params, optimizer, kinds, e)) for e in (1, BLOCK)])
    head = {"name": name, "attach": body, "messages": messages, "presence": presence, "counters": counters,
            "roots": roots}
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n")
    for x in out:
        sys.stdout.buffer.write(x.numpy().tobytes() if hasattr(x, "numpy") and HAS_NUMPY else raw(x))


def raw(x):
    import ctypes
    x = x.contiguous()
    return ctypes.string_at(x.data_ptr(), 4 * x.numel())


try:
    import numpy  # noqa: F401
    HAS_NUMPY = True
except ImportError:
    HAS_NUMPY = False


SGD_CONFIGS = [dict(), dict(weight_decay=0.02), dict(momentum=0.9), dict(momentum=0.9, dampening=0.3),
               dict(momentum=0.85, nesterov=True, weight_decay=0.01),
               dict(momentum=0.9, weight_decay=0.1, maximize=True), dict(maximize=True)]


def all_traces():
    seed = 0
    for foreach in (False, True):
        sizes = SMALL if foreach else SIZES
        for c in SGD_CONFIGS:
            seed += 1
            trace("SGD %s foreach=%s" % (c, foreach), lambda p: torch.optim.SGD(p, lr=0.1, foreach=foreach, **c),
                  sizes, seed)
        for cls in (torch.optim.Adam, torch.optim.AdamW):
            for amsgrad in (False, True):
                for maximize in (False, True):
                    for wd in (0, 0.03):
                        seed += 1
                        c = dict(amsgrad=amsgrad, maximize=maximize, weight_decay=wd, betas=(0.9, 0.95 + wd))
                        trace("%s %s foreach=%s" % (cls.__name__, c, foreach),
                              lambda p: cls(p, lr=0.1, foreach=foreach, **c), sizes, seed)
    # beta1 below one half: lerp works from the other end in torch 2.
    for cls in (torch.optim.Adam, torch.optim.AdamW):
        trace("%s small beta1" % cls.__name__, lambda p: cls(p, lr=0.1, betas=(0.3, 0.9)), SMALL, 901)
        trace("%s two groups, missing gradients" % cls.__name__, lambda p: cls(p, lr=0.1, amsgrad=True), SIZES, 902,
              groups=2, missing=True)
        trace("%s clipped" % cls.__name__, lambda p: cls(p, lr=0.1), SIZES, 903, clipped=True)
        trace("%s lr as float32 tensor" % cls.__name__,
              lambda p: cls(p, lr=0.1, weight_decay=0.02, foreach=False), SIZES, 904, lr_tensor=True)
    trace("SGD two groups, missing gradients", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
          SIZES, 905, groups=2, missing=True)
    trace("SGD clipped", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), SIZES, 906, clipped=True)


def probe(name, make, seed):
    """One probe upload in the protocol's form: a line of JSON, then a safetensors file."""
    tensors, groups = {}, []
    kinds = None
    for case, size in enumerate(PROBE_SIZES):
        generator = torch.Generator().manual_seed(seed + case)
        p = torch.nn.Parameter(wild(generator, size))
        optimizer = make([p])
        kinds = kinds_of(optimizer)
        tensors["%d:param:in" % case] = p.detach().clone()
        for step in range(1, 5):
            optimizer.param_groups[0]["lr"] = schedule(step, False)
            p.grad = wild(generator, size)
            tensors["%d:grad:grad%d" % (case, step)] = p.grad.clone()
            optimizer.step()
            tensors["%d:param:out%d" % (case, step)] = p.detach().clone()
            for kind in kinds:
                tensors["%d:%s:out%d" % (case, kind, step)] = optimizer.state[p][kind].clone()
            if case == 0:
                groups.append(group_bits(optimizer, optimizer.param_groups[0]))
    header = {"__metadata__": {"groups": json.dumps(groups), "class": type(optimizer).__name__,
                               "kinds": json.dumps(kinds)}}
    offset, data = 0, b""
    for key, value in tensors.items():
        header[key] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [offset, offset + 4 * value.numel()]}
        offset += 4 * value.numel()
        data += raw(value)
    text = json.dumps(header).encode()
    chunk = struct.pack("<Q", len(text)) + text + data
    head = {"name": name, "attach": attach_body([p], optimizer, kinds), "bytes": len(chunk)}
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + chunk)


def all_probes():
    probe("SGD plain", lambda p: torch.optim.SGD(p, lr=0.1), 1)
    probe("SGD momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1), 2)
    probe("Adam", lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1), 3)
    probe("AdamW amsgrad", lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True), 4)
    # Not one of ours: the same class name, other arithmetic (a decay that is added, not multiplied).

    class AdamW(torch.optim.AdamW):
        def step(self, closure=None):
            for g in self.param_groups:
                decay, g["weight_decay"] = g["weight_decay"], 0.0
                for p in g["params"]:
                    p.data.sub_(g["lr"] * decay * p.data)
                super().step()
                g["weight_decay"] = decay

    probe("foreign AdamW", lambda p: AdamW(p, lr=0.1, weight_decay=0.1), 5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"traces": all_traces, "probe": all_probes}[sys.argv[1]]()
