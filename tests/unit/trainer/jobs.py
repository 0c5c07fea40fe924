"""Runs small real DDP/gloo jobs for tests: each rank is a process of its own that executes one function of a file."""

import json
import os
import socket
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [os.path.join(ROOT, "trainer"), HERE]

PROLOGUE = """
import os, sys, json
sys.path[:0] = {path!r}
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
RANK, WORLD, ENDPOINT, OUT = {rank}, {world}, {endpoint!r}, {out!r}
ARGS = json.loads({args!r})
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{port}", rank=RANK, world_size=WORLD)
def bits(t):
    return t.detach().contiguous().reshape(-1).view(torch.int32).tolist()
RESULT = {{}}
import {module} as module
module.{function}(globals())
if RANK == 0:
    with open(OUT, "w") as f:
        json.dump(RESULT, f)
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class JobResult:
    def __init__(self, codes, stderr, result):
        self.codes, self.stderr, self.result = codes, stderr, result


def run(module, function, endpoint, world=1, timeout=150, during=None, **args):
    """Runs module.function in `world` ranks. during(processes) is called while they run."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        processes = []
        for rank in range(world):
            source = PROLOGUE.format(path=[os.path.join(ROOT, "trainer"), HERE], rank=rank, world=world,
                                     endpoint=endpoint, out=out, args=json.dumps(args), port=port,
                                     module=module, function=function)
            environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PYTHONWARNINGS="default")
            processes.append(subprocess.Popen([sys.executable, "-c", source], env=environment, cwd=folder,
                                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        if during is not None:
            during(processes)
        stderr = []
        try:
            for p in processes:
                stderr.append(p.communicate(timeout=timeout)[1].decode(errors="replace"))
        finally:
            for p in processes:
                if p.poll() is None:
                    p.kill()
        result = None
        if os.path.exists(out):
            with open(out) as f:
                result = json.load(f)
        return JobResult([p.returncode for p in processes], stderr, result)
