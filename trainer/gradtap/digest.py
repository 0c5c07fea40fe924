"""Two-sum block digests of the trainer's own state: what the replica's digests must equal.

All sums wrap modulo 2^64, which int64 arithmetic does exactly. docs/side-channel.md, "Digests".
"""

import hashlib
import struct

import torch

from . import hyper
from .memory import flat
from .witness import GOLDEN, MASK, mix

BLOCK = 1 << 16
DEFAULT_SHARD_ELEMENTS = 1 << 24

_tables = []


def tables():
    """K_0 and K_1 for all positions of a block, as int64."""
    if not _tables:
        for k in (0, 1):
            values = [mix(((2 * j + k + 1) * GOLDEN) & MASK) | 1 for j in range(BLOCK)]
            _tables.append(torch.tensor([v - (1 << 64) if v >> 63 else v for v in values], dtype=torch.int64))
    return _tables


def block_digests(tensor, order=None):
    """[(d_0, d_1)] of the blocks of a float32 tensor, in memory order, as unsigned integers."""
    words = flat(tensor, order).contiguous().view(torch.int32)
    sums = ([], [])
    full = words.numel() // BLOCK * BLOCK
    # Whole blocks go a few at a time: the int64 copies stay in the cache.
    pieces = [words[i:min(i + 4 * BLOCK, full)].view(-1, BLOCK) for i in range(0, full, 4 * BLOCK)]
    if full < words.numel():
        pieces.append(words[full:].view(1, -1))
    for piece in pieces:
        wide = piece.to(torch.int64).bitwise_and_(0xFFFFFFFF)
        for k, table in enumerate(tables()):
            sums[k].extend((wide * table[:wide.shape[1]]).sum(1).tolist())
    return [(a & MASK, b & MASK) for a, b in zip(*sums)]


class StateDigest:
    """Digests of one (model, optimizer); create once, call root() or shards() at any step."""

    def __init__(self, module, optimizer, shard_elements=DEFAULT_SHARD_ELEMENTS):
        from .model import Model

        self._model = Model(module, optimizer)
        self._shard_elements = shard_elements

    def shards(self):
        """SHA-256 digests (bytes) of the shards in order."""
        result, current, elements = [], hashlib.sha256(), 0
        for q in self._model.parameters:
            state = self._model.optimizer.state.get(q.tensor) or {}
            counter = struct.pack("<q", hyper.step_counter(state))
            columns = [block_digests(q.tensor, q.order)]
            for kind in self._model.kinds:
                value = state.get(kind)
                columns.append(None if value is None else block_digests(value, q.order))
            for b in range(len(columns[0])):
                for column in columns:
                    current.update(bytes(16) if column is None else struct.pack("<QQ", *column[b]))
                current.update(counter)
                elements += min(BLOCK, q.numel - b * BLOCK)
                if elements >= self._shard_elements:
                    result.append(current.digest())
                    current, elements = hashlib.sha256(), 0
        if elements:
            result.append(current.digest())
        return result

    def root(self):
        """Hexadecimal state root."""
        return hashlib.sha256(b"".join(self.shards())).hexdigest()


def state_root(module, optimizer, shard_elements=DEFAULT_SHARD_ELEMENTS):
    return StateDigest(module, optimizer, shard_elements).root()
