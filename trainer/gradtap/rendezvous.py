"""The ranks' agreement during a restore, through the store of the process group, without a collective.

Every wait ends: as long as somebody reports progress it goes on, after quiet_s without any it names whom it waited for.
"""

import time

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

POLL_S = 0.02
_calls = {}


class RendezvousError(Exception):
    pass


class Rendezvous:
    """One restore. The n-th of a job on one rank belongs to the n-th on every other."""

    def __init__(self, job, quiet_s):
        self._alone = not (dist.is_available() and dist.is_initialized())
        self.rank, self.world = (0, 1) if self._alone else (dist.get_rank(), dist.get_world_size())
        self._quiet_s = quiet_s
        self._ticked = 0.0
        self._own = {}
        if self._alone or self.world == 1:
            self._store = None
            return
        n = _calls.get(job, 0)
        _calls[job] = n + 1
        try:
            self._store = dist.PrefixStore("gradtap-restore/%s/%d" % (job, n), c10d._get_default_store())
        except Exception as error:
            raise RendezvousError("the store of the process group cannot be used: %r" % (error,)) from None

    def say(self, key, text):
        if self._store is None:
            self._own[key] = text
            return
        try:
            self._store.set(key, text)
            self._store.add(key + "/there", 1)
            self.tick(force=True)
        except Exception as error:
            raise RendezvousError("the store of the process group is gone: %r" % (error,)) from None

    def first(self, key):
        """True for exactly one of the ranks that ask."""
        if self._store is None:
            return True
        try:
            return self._store.add("first/" + key, 1) == 1
        except Exception as error:
            raise RendezvousError("the store of the process group is gone: %r" % (error,)) from None

    def tick(self, force=False):
        """Still working. At most five times a second."""
        now = time.monotonic()
        if self._store is None or (now - self._ticked < 0.2 and not force):
            return
        self._ticked = now
        try:
            self._store.add("progress", 1)
        except Exception as error:
            raise RendezvousError("the store of the process group is gone: %r" % (error,)) from None

    def hear(self, key, whom):
        """The text under a key."""
        if self._store is None:
            return self._own[key]
        seen, since = None, time.monotonic()
        while True:
            try:
                # Never store.wait() with a short time-out: it would stay in force for the job's own calls.
                if self._store.add(key + "/there", 0) > 0:
                    value = self._store.get(key)
                    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
                ticks = self._store.add("progress", 0)
            except Exception as error:
                raise RendezvousError("the store of the process group is gone: %r" % (error,)) from None
            now = time.monotonic()
            if ticks != seen:
                seen, since = ticks, now
            elif now - since >= self._quiet_s:
                raise RendezvousError("nothing from %s for %.0f s (waiting for %s)" % (whom, self._quiet_s, key))
            time.sleep(POLL_S)
