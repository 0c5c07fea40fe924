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
