#!/usr/bin/env python3
"""A small image classifier: convolutions with batch norm and dropout, AdamW with a warm-up and a decay, gradients of two
micro-batches accumulated under no_sync and clipped, several epochs, a shuffle each."""
import argparse
import contextlib
import hashlib
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES, BATCH, IMAGES, EPOCHS = 2, 8, 256, 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm, self.drop = nn.BatchNorm2d(32), nn.Dropout(0.2)
        self.head = nn.Linear(32 * 16, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.norm(self.second(x))), 2)
        return self.head(self.drop(x.flatten(1)))


def images():
    g = torch.Generator().manual_seed(5)
    x = torch.randn(IMAGES, 3, 16, 16, generator=g)
    return x, (x.mean((2, 3)) * 40).sum(1).long().remainder(10)


def batches(epoch, rank, world):
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(100 + epoch))[rank::world]
    return list(order.split(BATCH))


def fingerprint(model, optimizer):
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode() + tensor.contiguous().numpy().tobytes())
    for number, state in sorted(optimizer.state_dict()["state"].items()):
        for key in sorted(state):
            sha.update(("%s.%s" % (number, key)).encode() + torch.as_tensor(state[key]).contiguous().numpy().tobytes())
    return sha.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateways", default="", help="of gradtap; without them the job is not protected")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(11 + rank)
    ddp = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3, weight_decay=0.05)
    steps = EPOCHS * (IMAGES // world // BATCH // MICRO_BATCHES)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 10) * 0.5 * (1 + math.cos(math.pi * s / steps)))
    x, y = images()
    at = {"epoch": 0, "batch": 0}  # what comes next

    tap = None
    if args.gateways:
        import gradtap
        state = dict(scheduler=scheduler, extra={"data": at})
        restored = gradtap.restore(args.gateways, "mine", model=ddp.module, optimizer=optimizer, or_fresh=True, **state)
        restored.start(ddp, lambda: F.cross_entropy(ddp(x[:BATCH]), y[:BATCH]).backward())
        tap = gradtap.attach(ddp, optimizer, args.gateways, "mine", resume_from=restored, **state)
        if rank == 0:
            print("begins after step %d, protected: %s" % (restored.step, tap.enabled), flush=True)

    step = at["epoch"] * (steps // EPOCHS) + at["batch"] // MICRO_BATCHES
    while at["epoch"] < EPOCHS:
        mine = batches(at["epoch"], rank, world)
        while at["batch"] < len(mine):
            optimizer.zero_grad()
            for micro in range(MICRO_BATCHES):
                chosen = mine[at["batch"]]
                with ddp.no_sync() if micro + 1 < MICRO_BATCHES else contextlib.nullcontext():
                    loss = F.cross_entropy(ddp(x[chosen]), y[chosen]) / MICRO_BATCHES
                    loss.backward()
                at["batch"] += 1
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            if at["batch"] == len(mine):
                at.update(epoch=at["epoch"] + 1, batch=0)
                mine = []
            step += 1
            if tap:
                tap.commit()
            if rank == 0:
                print("step %d loss %.5f" % (step, loss.item()), flush=True)
            time.sleep(args.pause)
    if tap:
        tap.close()
    print("rank %d digest %s" % (rank, fingerprint(ddp.module, optimizer)), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
