"""Training loops that the tests run in rank processes. `g` is the globals of the rank (see jobs.PROLOGUE)."""

import torch
import torch.nn as nn


def model(width=300, depth=8, seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])


def plain(g):
    """A few steps of AdamW with clipping and a schedule; dumps gradients at optimizer entry and bucket contents."""
    import gradtap

    args, result = g["ARGS"], g["RESULT"]
    net = model(args.get("width", 300), args.get("depth", 8))
    ddp = g["DDP"](net, bucket_cap_mb=args.get("cap", 1))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3, weight_decay=0.1)
    tap = None
    if g["ENDPOINT"]:
        tap = gradtap.attach(ddp, optimizer, endpoint=g["ENDPOINT"], job="unit", **args.get("attach", {}))
    data = torch.Generator().manual_seed(100 + g["RANK"])
    sums = []
    for _ in range(args.get("steps", 4)):
        x = torch.randn(4, args.get("width", 300), generator=data)
        optimizer.zero_grad()
        ddp(x).pow(2).mean().backward()
        if args.get("clip"):
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), args["clip"])
        optimizer.step()
        if tap is not None:
            tap.commit()
    result["params"] = [sum(g["bits"](p)) for p in net.parameters()]
    if tap is not None:
        result["status"] = tap.status()
        tap.close()
        result["after"] = tap.status()


def _small(g):
    import gradtap

    net = nn.Linear(6, 3)
    ddp = g["DDP"](net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    tap = gradtap.attach(ddp, optimizer, endpoint=g["ENDPOINT"], job="unit")
    assert tap.enabled, tap.reason

    def step(x):
        optimizer.zero_grad()
        ddp(x).pow(2).mean().backward()
        optimizer.step()
        tap.commit()

    return tap, step


def no_close(g):
    """A script that forgets tap.close()."""
    tap, step = _small(g)
    for _ in range(3):
        step(torch.ones(2, 6))
    g["KEEP"] = tap


class _Data(torch.utils.data.Dataset):
    """Reports, from inside the worker, what became of the tap there."""

    def __init__(self, tap):
        self.tap = tap

    def __len__(self):
        return 6

    def __getitem__(self, i):
        import threading

        self.tap.commit()  # must do nothing and not hang
        self.tap.close()
        return torch.full((6,), float(i)), int(self.tap.enabled), threading.active_count()


def with_loader(g):
    tap, step = _small(g)
    seen = []
    loader = torch.utils.data.DataLoader(_Data(tap), batch_size=1, num_workers=2, multiprocessing_context="fork")
    for x, enabled, threads in loader:
        seen.append([bool(enabled.item()), min(1, threads.item())])
        step(x)
    g["RESULT"].update(in_worker=seen, errors=tap.status()["errors"])
    tap.close()


def fork_under_lock(g):
    """A fork while another thread holds the queue's lock: the child must not inherit a lock that nobody releases."""
    import os
    import threading

    tap, step = _small(g)
    step(torch.ones(2, 6))
    held, release = threading.Event(), threading.Event()

    def hold():
        with tap._outbox._lock:
            held.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(5)
        tap.commit()
        tap._outbox.pending()
        tap.close()
        os._exit(0)
    release.set()
    holder.join()
    g["RESULT"]["child"] = os.waitpid(child, 0)[1]
    step(torch.ones(2, 6))
    tap.close()


class _Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.left = nn.Linear(6, 2)
        self.right = nn.Linear(6, 2)

    def forward(self, x, side):
        return (self.left if side == "left" else self.right)(torch.relu(self.body(x)))


def heads(g):
    """Two ranks whose unused parameters differ; dumps what the optimizer saw on rank 0."""
    import gradtap

    torch.manual_seed(3)
    net = _Heads()
    ddp = g["DDP"](net, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    tap = gradtap.attach(ddp, optimizer, endpoint=g["ENDPOINT"], job="unit")
    assert tap.enabled, tap.reason
    data = torch.Generator().manual_seed(50 + g["RANK"])
    seen = []
    for sides in (("left", "right"), ("left", "left"), ("right", "left"), ("right", "right")):
        optimizer.zero_grad(set_to_none=True)
        ddp(torch.randn(3, 6, generator=data), sides[g["RANK"]]).pow(2).sum().backward()
        tap.clip_grad_norm_(net.parameters(), 0.5)
        seen.append([None if p.grad is None else g["bits"](p.grad) for p in net.parameters()])
        optimizer.step()
        tap.commit()
    g["RESULT"].update(seen=seen, sizes=[p.numel() for p in net.parameters()],
                       state_root=gradtap.digest.state_root(net, optimizer, 64))
    tap.close()
