"""The ranks' agreement at attach, through the store of the process group, without a collective: the run nonce, what must
be the same on every rank, and whether rank 0 is tracked.

The store is used during attach only: later use would contend with the job's own.
"""

import json
import os
import time

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

UNTAPPED = "untapped"
POLL_S = 0.02
_calls = {}


class Agreement:
    """One attach of one job. Every wait is bounded; StoreError says what could not be learnt."""

    def __init__(self, job, rank, quiet_s):
        # The n-th attach of a job on one rank belongs to the n-th attach on every other.
        n = _calls.get(job, 0)
        _calls[job] = n + 1
        self._rank = rank
        self._quiet_s = quiet_s
        try:
            self._store = dist.PrefixStore("gradtap/%s/%d" % (job, n), c10d._get_default_store())
        except Exception as error:
            raise StoreError("the store of the process group cannot be used: %r" % (error,)) from None

    def draw(self, facts):
        """Rank 0: a new nonce for everyone. facts: {name: text}, what must be the same on every rank."""
        nonce = os.urandom(16).hex()
        self._set("facts", json.dumps(facts))
        self._set("nonce", nonce)
        return nonce

    def learn(self):
        """Other ranks: the nonce, or None if rank 0 stays untapped."""
        value = self._await("nonce", moving=False)
        return None if value == UNTAPPED else value

    def differs(self, facts):
        """Other ranks, after learn: a sentence that names what differs from rank 0, or None."""
        theirs = json.loads(self._await("facts", moving=False))
        for name in facts:
            if theirs.get(name) != facts[name]:
                return "rank %d differs from rank 0 in its %s: %s there, %s here" % (
                    self._rank, name, theirs.get(name), facts[name])
        return None

    def tick(self):
        """Rank 0: still making progress."""
        self._store.add("progress", 1)

    def conclude(self, tracked):
        """Rank 0: the outcome for everyone."""
        self._set("outcome", "tracking" if tracked else UNTAPPED)

    def decline(self):
        """Rank 0 will not attach at all."""
        self._set("nonce", UNTAPPED)

    def outcome(self):
        """Other ranks: True if rank 0 is tracked. Waits as long as rank 0 makes progress."""
        return self._await("outcome", moving=True) == "tracking"

    def _set(self, key, value):
        try:
            self._store.set(key, value)
            self._store.add(key + "/there", 1)
        except Exception as error:
            raise StoreError("the store of the process group cannot be used: %r" % (error,)) from None

    def _await(self, key, moving):
        # Rank 0 waits quiet_s for the node itself; a rank that waits for rank 0 grants it a little more.
        quiet = self._quiet_s + 2.0
        seen, since = None, time.monotonic()
        while True:
            try:
                # Never store.wait() with a short time-out: it would stay in force for the job's own calls.
                if self._store.add(key + "/there", 0) > 0:
                    value = self._store.get(key)
                    return value.decode() if isinstance(value, bytes) else str(value)
                ticks = self._store.add("progress", 0) if moving else None
            except Exception as error:
                raise StoreError("the store of the process group is gone: %r" % (error,)) from None
            now = time.monotonic()
            if ticks != seen:
                seen, since = ticks, now
            if now - since >= quiet:
                raise StoreError("nothing from rank 0 for %.1f s while waiting for its %s" % (quiet, key))
            time.sleep(POLL_S)


class StoreError(Exception):
    pass
