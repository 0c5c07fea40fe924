"""A process group of one rank inside the test process, and small helpers around it."""

import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
for folder in (HERE, os.path.join(ROOT, "trainer")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import fake_node  # noqa: E402
import gradtap  # noqa: E402
import jobs  # noqa: E402
from gradtap import log  # noqa: E402

lines = []  # what gradtap said, instead of stderr


def ensure_group():
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % jobs.free_port(), rank=0, world_size=1)
    log.say.__globals__["sys"] = _Quiet


class _Stream:
    @staticmethod
    def write(text):
        lines.append(text)

    @staticmethod
    def flush():
        pass


class _Quiet:
    stderr = _Stream


def words(tensor):
    """Unsigned 32-bit words of a float32 tensor in the order given."""
    return [w & 0xFFFFFFFF for w in tensor.detach().contiguous().reshape(-1).view(torch.int32).tolist()]


def word_of(value):
    return struct.unpack(">I", struct.pack(">f", value))[0]


def f64_of(text):
    assert text.startswith("f64:"), text
    return struct.unpack(">d", bytes.fromhex(text[4:]))[0]


def f32_of(text):
    assert text.startswith("f32:"), text
    return struct.unpack(">f", bytes.fromhex(text[4:]))[0]


def states_of(text, count):
    """The 2-bit parameter states of a step message."""
    data = bytes.fromhex(text)
    return [(data[i // 4] >> (2 * (i % 4))) & 3 for i in range(count)]


def attached(node, ddp, optimizer, **options):
    tap = gradtap.attach(ddp, optimizer, endpoint=node.endpoint, job="unit", attach_timeout_ms=4000, **options)
    assert tap.enabled, tap.reason
    return tap
