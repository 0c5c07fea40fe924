"""The training loops of restore_test: one that runs through, one that is stopped and restored. Dropout, batch norm, shuffled
data, augmentation from Python's and NumPy's generators, a schedule. `g` is the globals of the rank (see jobs.PROLOGUE)."""

import hashlib
import json
import os
import random

import numpy as np
import torch
import torch.nn as nn

WIDTH = 96


class Plain(nn.Module):
    """The head is registered first: gradients do not become ready in the reverse of the registration order."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, 8)
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2))
                                    for _ in range(4)])
        self.anchor = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.register_buffer("table", torch.arange(32.0))

    def forward(self, x, step):
        return self.head(self.body(x) + self.anchor)


class Heads(nn.Module):
    """Which head is used depends on the step: find_unused_parameters."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))
        self.left, self.right = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

    def forward(self, x, step):
        return (self.left if step % 3 else self.right)(self.body(x))


class Sampler:
    """A new order each epoch, from a generator of its own. Position: (generator, order, place)."""

    SIZE, BATCH = 36, 4

    def __init__(self, rank):
        self.generator = torch.Generator().manual_seed(500 + rank)
        self.order, self.place, self.epoch = None, self.SIZE, 0

    def next(self):
        if self.place >= self.SIZE:
            self.order = torch.randperm(self.SIZE, generator=self.generator)
            self.place, self.epoch = 0, self.epoch + 1
        taken = self.order[self.place:self.place + self.BATCH]
        self.place += self.BATCH
        return taken

    def state_dict(self):
        return {"generator": self.generator.get_state(), "order": self.order, "place": self.place, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
        self.order, self.place, self.epoch = state["order"], state["place"], state["epoch"]


class Job:
    def __init__(self, g, init_seed, rng_seed):
        a = g["ARGS"]
        self.g, self.a, self.rank = g, a, g["RANK"]
        g["dist"]._DEFAULT_FIRST_BUCKET_BYTES = 40000
        torch.manual_seed(init_seed)
        self.net = Heads() if a.get("heads") else Plain()
        self.ddp = g["DDP"](self.net, bucket_cap_mb=0.08, find_unused_parameters=bool(a.get("heads")),
                            gradient_as_bucket_view=bool(a.get("view")), broadcast_buffers=False)
        decay = [p for p in self.net.parameters() if p.requires_grad and p.dim() > 1]
        rest = [p for p in self.net.parameters() if p.requires_grad and p.dim() <= 1]
        self.optimizer = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0, "lr": 3e-3}],
                                           lr=2e-3, weight_decay=0.1)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, [4e-3, 6e-3], total_steps=60)
        self.sampler = Sampler(self.rank)
        self.notes = {"seen": 0}
        self.extra = {"data": self.sampler, "notes": self.notes}
        self.inputs = torch.randn(Sampler.SIZE, WIDTH, generator=torch.Generator().manual_seed(1))
        self.targets = torch.randn(Sampler.SIZE, 8, generator=torch.Generator().manual_seed(2))
        random.seed(rng_seed + self.rank)
        np.random.seed(rng_seed + self.rank)
        torch.manual_seed(rng_seed + self.rank)

    def loss(self, at, step):
        x = self.inputs[at] + random.random() * 0.01 + float(np.random.rand()) * 0.01
        return (self.ddp(x, step) - self.targets[at]).pow(2).mean()

    def step(self, n):
        at = self.sampler.next()
        self.notes["seen"] += len(at)
        self.optimizer.zero_grad(set_to_none=bool(self.a.get("to_none")))
        loss = self.loss(at, n)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def tensors(self):
        """[(name, shape, {kind: array}, counter)]"""
        found = []
        for name, p in self.net.named_parameters():
            if p.requires_grad:
                state = self.optimizer.state.get(p, {})
                kinds = {"param": p.detach().numpy()}
                for kind in ("exp_avg", "exp_avg_sq"):
                    kinds[kind] = state[kind].numpy() if kind in state else None
                found.append((name, list(p.shape), kinds, int(state.get("step", 0))))
        return found

    def dump(self, n):
        if self.rank == 0:
            torch.save([(name, shape, {k: None if v is None else torch.from_numpy(v).clone() for k, v in kinds.items()}, c)
                        for name, shape, kinds, c in self.tensors()], os.path.join(self.a["folder"], "state.%d" % n))

    def ending(self):
        """Digests of all that must be equal."""
        sha = lambda data: hashlib.sha256(data).hexdigest()  # noqa: E731
        numpy_state = np.random.get_state()
        found = {"rng.python": sha(repr(random.getstate()).encode()), "rng.torch": sha(torch.get_rng_state().numpy().tobytes()),
                 "rng.numpy": sha(numpy_state[1].tobytes() + repr(numpy_state[2:]).encode()),
                 "scheduler": repr({k: v for k, v in self.scheduler.state_dict().items() if k != "anneal_func"}),
                 "groups": repr([{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]),
                 "data": [self.sampler.place, self.sampler.epoch, sha(self.sampler.generator.get_state().numpy().tobytes()),
                          self.sampler.order.tolist()],
                 "notes": self.notes["seen"]}
        for name, b in list(self.net.named_buffers()) + [(n, p) for n, p in self.net.named_parameters()]:
            found["tensor." + name] = sha(b.detach().contiguous().numpy().tobytes())
        for name, _, kinds, counter in self.tensors():
            found["counter." + name] = counter
            for kind, array in kinds.items():
                found["%s#%s" % (name, kind)] = None if array is None else sha(array.tobytes())
        return found

    def finish(self, losses, **more):
        with open(os.path.join(self.a["folder"], "%s.%d" % (self.a["name"], self.rank)), "w") as f:
            json.dump(dict({"losses": losses, "ending": self.ending()}, **more), f)
        self.g["dist"].barrier()


def through(g):
    """From step 0 to the end, tapped; rank 0 leaves its state at the steps of dump_at."""
    import gradtap

    job = Job(g, 11, 21)
    tap = gradtap.attach(job.ddp, job.optimizer, endpoint=g["ENDPOINT"], job="unit", scheduler=job.scheduler,
                         extra=job.extra, attach_timeout_ms=60000)
    assert tap.enabled, tap.reason
    losses = []
    for n in range(g["ARGS"]["steps"] + 1):
        if n > 0:
            losses.append(job.step(n))
            tap.commit()
        if n in g["ARGS"]["dump_at"]:
            job.dump(n)
    status = tap.status()
    assert (status["errors"], status["blobs_missing"]) == (0, 0), status
    job.finish(losses)
    tap.close()


def resumed(g):
    """Another initialisation, other seeds: everything must come from the point."""
    import gradtap

    a = g["ARGS"]
    job = Job(g, 11, 21) if a.get("same_seeds") else Job(g, 77, 5000)
    with torch.no_grad():
        for p in job.net.parameters():
            if p.requires_grad:
                p.add_(1.0)
    restored = gradtap.restore(a["source"], "unit", model=job.net, optimizer=job.optimizer, scheduler=job.scheduler,
                               extra=job.extra, timeout_ms=60000)
    warmed = []

    def warmup():
        warmed.append(1)
        job.loss(torch.arange(4), 1).backward()

    if a.get("naive"):
        restored._side.set_generators()
    else:
        restored.start(job.ddp, warmup)
    tap = None
    if g["ENDPOINT"]:
        tap = gradtap.attach(job.ddp, job.optimizer, endpoint=g["ENDPOINT"], job="unit", scheduler=job.scheduler,
                             extra=job.extra, attach_timeout_ms=60000, resume_from=restored)
        assert tap.enabled, tap.reason
        assert tap.step == restored.step
    losses = []
    for n in range(restored.step + 1, a["steps"] + 1):
        losses.append(job.step(n))
        if tap:
            tap.commit()
    job.finish(losses, step=restored.step, tapped=bool(tap and tap.enabled), warmed=len(warmed), passed=restored.passed_over)
    if tap:
        tap.close()


def failing(g):
    """A restore that one rank cannot do: what does every rank say?"""
    import gradtap

    a = g["ARGS"]
    job = Job(g, 77, 5000)
    if a.get("absent") == g["RANK"]:
        g["dist"].barrier()
        return
    if a.get("misbuilt") == g["RANK"]:
        job.net.add_module("more", nn.Linear(2, 2))
    before = job.tensors()[0][2]["param"].tobytes()
    try:
        gradtap.restore(a["source"], "unit", model=job.net, optimizer=job.optimizer, scheduler=job.scheduler,
                        extra=job.extra, timeout_ms=3000, step=a.get("step"))
        name, text = "none", ""
    except gradtap.RestoreError as error:
        name, text = error.name, str(error)
    with open(os.path.join(a["folder"], "failing.%d" % g["RANK"]), "w") as f:
        json.dump({"name": name, "text": text, "same": job.tensors()[0][2]["param"].tobytes() == before}, f)
    g["dist"].barrier()
