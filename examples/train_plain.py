#!/usr/bin/env python3
"""A data-parallel training loop as it stands in many projects: no checkpoint, nothing of gradtap.

    examples/run_with_restarts.py --ranks 4 examples/train_plain.py --steps 200
"""
import argparse
import hashlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from resumable_sampler import ResumableSampler


def build():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.BatchNorm1d(256),
                         nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10))


def data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(4096, 64, generator=generator)
    return torch.utils.data.TensorDataset(inputs, (inputs[:, :10] * 3 + inputs[:, 10:20]).argmax(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(7 + rank)
    ddp = DistributedDataParallel(build())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    dataset = data()
    sampler = ResumableSampler(len(dataset), rank, world, seed=3)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler, generator=torch.Generator())

    step = 0
    while step < args.steps:
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(inputs), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if rank == 0 and step % 20 == 0:
                print("step %d loss %.4f" % (step, loss.item()), flush=True)
            if step == args.steps:
                break

    if rank == 0:
        sha = hashlib.sha256()
        for p in ddp.parameters():
            sha.update(p.detach().numpy().tobytes())
        print("parameters after step %d: SHA-256 %s" % (step, sha.hexdigest()), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
