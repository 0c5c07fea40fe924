"""The process group's collective counter, from zero at the group's creation: what the wire's tags count too."""

import datetime

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def base(group):
    """The counter's value when the group was created. torch 1.13 starts at a random number, which rank 0 left in the
    store; torch 2 starts at 0."""
    current = group._get_sequence_number_for_group()
    if current < (1 << 20):
        return 0
    try:
        store = dist.PrefixStore(c10d._pg_names[group], c10d._pg_map[group][1])
    except Exception:
        return current
    try:
        store.wait(["SEQ_NUM_STORE_KEY"], datetime.timedelta(milliseconds=500))
        value = int.from_bytes(store.get("SEQ_NUM_STORE_KEY"), "little")
        if 0 <= current - value < (1 << 40):
            return value
    except Exception:
        _restore_timeout(store)
    return current  # the node learns the distance to the wire's tags anyway


def _restore_timeout(store):
    """A wait that ran out leaves its short time-out on the connection, for the job's own calls; a get takes it away."""
    try:
        store.set("gradtap-timeout", "")
        store.get("gradtap-timeout")
    except Exception:
        pass


class Sequence:
    def __init__(self, group):
        self._read = group._get_sequence_number_for_group
        self._base = base(group)

    def now(self):
        return self._read() - self._base
