#!/usr/bin/python3
"""The training job of the live tests and of the demo: a small GPT (or an MLP) on text, DDP over gloo.

One process a rank. Rank 0 writes, into --out: roots.jsonl (state root and shard digests after every step) and final/
(every parameter and moment as raw float32, and meta.json); every rank writes rankN.json (losses, thread CPU time of
every commit, peak memory, buckets). With --attach the job is tapped by gradtap; without it the same job runs alone.
"""
import argparse
import json
import math
import os
import resource
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _HERE)

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import state_root

CORPORA = ("/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/Apache-2.0")
OWN_TEXT = """The switch copies every frame that enters it and sends the copy to a port where nobody answers.
What arrives there is not a log. A frame may be missing, a frame may come twice, a frame may come late, and no one
will be asked to send it again. So the reader of such a stream must count what it has, and say what it has not. A sum
that is complete is worth keeping; a sum that is almost complete is worth nothing at all.
"""


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--rank", type=int, required=True)
    p.add_argument("--world", type=int, required=True)
    p.add_argument("--address", default="10.77.0.10")
    p.add_argument("--port", type=int, default=29500)
    p.add_argument("--out", required=True)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--model", choices=["gpt", "mlp"], default="gpt")
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--context", type=int, default=32)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--optimizer", choices=["sgd", "adam", "adamw"], default="adamw")
    p.add_argument("--amsgrad", action="store_true")
    p.add_argument("--maximize", action="store_true")
    p.add_argument("--lr", type=float, default=0.0, help="0: a default for the optimizer")
    p.add_argument("--schedule", choices=["none", "cosine"], default="cosine")
    p.add_argument("--clip", default="none", help="none, norm:X or value:X")
    p.add_argument("--bucket-mb", type=float, default=1.0)
    p.add_argument("--first-bucket-bytes", type=int, default=0, help="0: torch's default, 1 MiB")
    p.add_argument("--find-unused", action="store_true")
    p.add_argument("--bucket-view", action="store_true")
    p.add_argument("--attach", default="", help="endpoint of a node, http://ADDRESS:PORT")
    p.add_argument("--job", default="demo")
    p.add_argument("--attach-timeout-ms", type=int, default=0)
    p.add_argument("--shard-elements", type=int, default=1 << 17)
    p.add_argument("--no-roots", action="store_true")
    p.add_argument("--pause-at", type=int, default=0, help="after this step every rank waits until --pause-file exists")
    p.add_argument("--pause-file", default="")
    p.add_argument("--pause-timeout", type=float, default=120.0)
    p.add_argument("--step-sleep", type=float, default=0.0)
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        split = lambda t: t.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = (split(t) for t in self.qkv(self.norm1(x)).chunk(3, dim=2))
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(width // self.heads) + mask, dim=-1)
        x = x + self.mix((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SmallGpt(nn.Module):
    """Bytes in, bytes out. The head is registered first, so that the order in which gradients become ready is not the
    reverse of the registration order; the last factor is one element, which can make a bucket of its own."""

    def __init__(self, width, layers, context):
        super().__init__()
        self.head = nn.Linear(width, 256, bias=False)
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1), persistent=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x)) * self.scale


class Mlp(nn.Module):
    def __init__(self, width, context):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * context, 4 * width), nn.ReLU(),
                                    nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 256))

    def forward(self, ids):
        return self.layers(ids)


def corpus():
    for path in CORPORA:
        try:
            with open(path, "rb") as f:
                return torch.tensor(list(f.read()), dtype=torch.long)
        except OSError:
            continue
    return torch.tensor(list(OWN_TEXT.encode() * 20), dtype=torch.long)


def make_optimizer(a, parameters):
    flags = {"maximize": True} if a.maximize else {}
    if a.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=a.lr or 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4, **flags)
    kind = torch.optim.Adam if a.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=a.lr or 1e-3, betas=(0.9, 0.95), weight_decay=0.01 if a.optimizer == "adam" else 0.1,
                amsgrad=a.amsgrad, **flags)


def make_schedule(a, optimizer):
    if a.schedule == "none":
        return None
    warm = max(1, a.steps // 10)

    def factor(step):
        if step < warm:
            return (step + 1) / warm
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, a.steps - warm)))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class State:
    """The trainer's own state in canonical order: what every root and the final comparison are made of."""

    def __init__(self, a, model, optimizer):
        self.optimizer = optimizer
        self.named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self.kinds = {"sgd": ["momentum_buffer"]}.get(a.optimizer, ["exp_avg", "exp_avg_sq"]
                                                      + (["max_exp_avg_sq"] if a.amsgrad else []))
        self.shard_elements = a.shard_elements

    @staticmethod
    def _flat(tensor):
        return None if tensor is None else tensor.detach().reshape(-1).numpy()

    def _counter(self, parameter):
        return int(self.optimizer.state.get(parameter, {}).get("step", 0))

    def arrays(self, parameter):
        state = self.optimizer.state.get(parameter, {})
        return [self._flat(parameter)] + [self._flat(state.get(kind)) for kind in self.kinds]

    def digests(self):
        """(root, shard digests)"""
        return state_root.digests(
            [([None if x is None else x.view("uint32") for x in self.arrays(p)], self._counter(p))
             for _, p in self.named], self.shard_elements)

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
                                       "counter": self._counter(p)} for n, p in self.named]}, f, indent=1)


def attach(a, ddp, optimizer, schedule):
    sys.path.insert(0, os.path.join(_HERE, "..", "..", "trainer"))
    import gradtap
    options = {"attach_timeout_ms": a.attach_timeout_ms} if a.attach_timeout_ms else {}
    return gradtap.attach(ddp, optimizer, endpoint=a.attach, job=a.job, scheduler=schedule, **options)


def wait_for_file(path, seconds):
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise SystemExit("waited %g s for %s" % (seconds, path))
        time.sleep(0.02)


def main():
    a = parse()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    os.makedirs(a.out, exist_ok=True)
    dist.init_process_group("gloo", init_method="tcp://%s:%d" % (a.address, a.port), rank=a.rank, world_size=a.world)
    if a.first_bucket_bytes:
        dist._DEFAULT_FIRST_BUCKET_BYTES = a.first_bucket_bytes
    model = SmallGpt(a.width, a.layers, a.context) if a.model == "gpt" else Mlp(a.width, a.context)
    ddp = DistributedDataParallel(model, bucket_cap_mb=a.bucket_mb, find_unused_parameters=a.find_unused,
                                  gradient_as_bucket_view=a.bucket_view, broadcast_buffers=False)
    optimizer = make_optimizer(a, ddp.parameters())
    schedule = make_schedule(a, optimizer)
    text = corpus()
    random = torch.Generator().manual_seed(1000 * a.seed + a.rank)
    state = State(a, model, optimizer)
    tap = attach(a, ddp, optimizer, schedule) if a.attach else None
    roots = open(os.path.join(a.out, "roots.jsonl"), "w") if a.rank == 0 and not a.no_roots else None

    def write_root(step, **more):
        if roots:
            root, shards = state.digests()
            roots.write(json.dumps(dict(step=step, root=root, shards=shards, **more)) + "\n")
            roots.flush()

    if tap:
        print("tap: %s" % ("in force" if tap.enabled else "off: %s" % tap.reason), flush=True)
    if a.rank == 0:
        total = sum(p.numel() for _, p in state.named)
        print("model: %d parameters in %d tensors" % (total, len(state.named)), flush=True)
    write_root(0)
    commit_us, losses, started = [], [], time.monotonic()
    for step in range(1, a.steps + 1):
        at = torch.randint(0, len(text) - a.context - 1, (a.batch,), generator=random)
        window = torch.stack([text[i:i + a.context + 1] for i in at])
        optimizer.zero_grad()
        if a.model == "gpt":
            loss = F.cross_entropy(ddp(window[:, :-1]).reshape(-1, 256), window[:, 1:].reshape(-1))
        else:
            loss = F.cross_entropy(ddp(window[:, :-1]), window[:, -1])
        (-loss if a.maximize else loss).backward()
        kind, _, limit = a.clip.partition(":")
        if kind == "norm":
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), float(limit))
        elif kind == "value":
            torch.nn.utils.clip_grad_value_(ddp.parameters(), float(limit))
        optimizer.step()
        if schedule:
            schedule.step()
        if tap:
            before = time.thread_time_ns()
            tap.commit()
            commit_us.append((time.thread_time_ns() - before) / 1e3)
        losses.append(loss.item())
        write_root(step, loss=losses[-1])
        if a.rank == 0 and (step == 1 or step % 10 == 0 or step == a.steps):
            print("step %d loss %.4f" % (step, losses[-1]), flush=True)
        if step == a.pause_at:
            # Every rank stops, so that no byte is on the wire while the node is away.
            open("%s.reached.%d" % (a.pause_file, a.rank), "w").close()
            wait_for_file(a.pause_file, a.pause_timeout)
        if a.step_sleep:
            time.sleep(a.step_sleep)
    dist.barrier()
    seconds = time.monotonic() - started
    if a.rank == 0:
        state.dump(os.path.join(a.out, "final"), a.steps)
        print("done: %d steps in %.1f s" % (a.steps, seconds), flush=True)
    tapped = bool(tap and tap.enabled)
    if tap:
        tap.close()
    log = ddp._get_ddp_logging_data()
    numbers = lambda key: [int(x) for x in (log.get(key) or "").split(",") if x.strip()]
    with open(os.path.join(a.out, "rank%d.json" % a.rank), "w") as f:
        json.dump({"seconds": seconds, "losses": losses, "commit_us": commit_us, "torch": torch.__version__,
                   "tapped": tapped, "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                   "first_buckets": numbers("bucket_sizes"), "buckets": numbers("rebuilt_bucket_sizes"),
                   "ready_order": numbers("prev_iteration_grad_ready_order_indices")}, f)
    time.sleep(0.3)  # let the peers read the last bytes before the sockets go


if __name__ == "__main__":
    main()
