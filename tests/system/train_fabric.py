"""Puts the collectives of a training job on a RoCE fabric that `gradtap generate --live` plays (docs/generate.md).

The ranks reduce over gloo, out of the mirror's sight. After every backward pass rank 0 hands over what was reduced: one
NCCL operation for each collective that the process group has counted, the buckets as DDP itself holds them.
"""
import socket
import struct
import time

import torch
import torch.distributed as dist

ALL_REDUCE, BROADCAST, MIRROR, BLIND = 1, 2, 4, 5
FLOAT32, INT32 = 0, 4
HEADER = struct.Struct("<IBBHIIQQ")
MAGIC = 0x31475447
TIMEOUT_SECONDS = 60


class Generator:
    """One connection to the generator; each request returns when its frames have left."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect(path)
        self.number = 0

    def request(self, kind, dtype, payload, root=0):
        self.number += 1
        self.socket.sendall(HEADER.pack(MAGIC, kind, dtype, 0, root, 0, self.number, len(payload)))
        self.socket.sendall(payload)
        answer = b""
        while len(answer) < 8:
            part = self.socket.recv(8 - len(answer))
            if not part:
                raise SystemExit("the generator ended")
            answer += part
        if struct.unpack("<Q", answer)[0] != self.number:
            raise SystemExit("the generator answered another request")


class Fabric:
    """events: "STEP:blind:FRAMES" or "STEP:move:SECONDS:WRAPPING:INTERFACE", separated by commas, before that step's
    collectives: the mirror does not see the next frames; everything stands still, then another port mirrors."""

    def __init__(self, path, ddp, events=""):
        self.generator = Generator(path)
        self.events = [e.split(":") for e in events.split(",") if e]
        self.ddp = ddp
        self.count = ddp.process_group._get_sequence_number_for_group
        self.counted = self.count()
        self.buckets, self.rebuilt = None, None

    def after_backward(self, step):
        """Before anything touches the gradients."""
        for at, what, *details in self.events:
            if int(at) != step:
                continue
            if what == "blind":
                self.generator.request(BLIND, FLOAT32, struct.pack("<Q", int(details[0])))
            else:
                time.sleep(float(details[0]))
                self.generator.request(MIRROR, FLOAT32, bytes([int(details[1])]) + details[2].encode())
        if self.rebuilt != self.ddp._has_rebuilt_buckets:
            self.rebuilt = self.ddp._has_rebuilt_buckets
            zeros = self.ddp.reducer._get_zeros_like_grad_buckets()
            self.buckets = [list(b.parameters()) for b in sorted(zeros, key=lambda b: b.index())]
        now = self.count()
        others = now - self.counted - len(self.buckets)
        if others < 0:
            raise SystemExit("%d collectives were counted for %d buckets" % (now - self.counted, len(self.buckets)))
        self.counted = now
        for number in range(others):  # they come before the buckets: in DDP's forward pass
            self.generator.request(BROADCAST, INT32, struct.pack("<2i", number, now & 0xffff))
        for parameters in self.buckets:
            flat = torch.cat([p.grad.reshape(-1) for p in parameters])
            self.generator.request(ALL_REDUCE, FLOAT32, flat.numpy().tobytes())


def fabric_of(a, ddp):
    return Fabric(a.fabric, ddp, a.fabric_events) if a.fabric and dist.get_rank() == 0 else None
