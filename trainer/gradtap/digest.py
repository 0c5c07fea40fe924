"""Two-sum block digests of the trainer's own state: what the replica's digests must equal.

All sums wrap modulo 2^64, which int64 arithmetic does exactly. docs/side-channel.md, "Digests".
"""

import hashlib
import struct

import torch

from . import hyper, native
from .memory import flat
from .witness import GOLDEN, MASK, MIX_FIRST, MIX_SECOND

BLOCK = 1 << 16
DEFAULT_SHARD_ELEMENTS = 1 << 24

_tables = []


def _signed(value):
    return value - (1 << 64) if value >> 63 else value


def _shifted(z, n):
    """Logical shift to the right: that of int64 brings copies of the sign."""
    return (z >> n) & ((1 << (64 - n)) - 1)


def tables():
    """K_0 and K_1 for all positions of a block, as int64."""
    if not _tables:
        for k in (0, 1):
            z = torch.arange(k + 1, 2 * BLOCK + k + 1, 2, dtype=torch.int64) * _signed(GOLDEN)
            z = (z ^ _shifted(z, 30)) * _signed(MIX_FIRST)  # witness.mix, of a whole table at once
            z = (z ^ _shifted(z, 27)) * _signed(MIX_SECOND)
            _tables.append((z ^ _shifted(z, 31)) | 1)
    return _tables


def block_digests(tensor, order=None):
    """[(d_0, d_1)] of the blocks of a float32 tensor, in memory order, as unsigned integers."""
    words = flat(tensor, order).contiguous().view(torch.int32)
    if words.device.type == "cpu":
        sums = native.block_sums(words, tables(), BLOCK, _torch_sums)
        if sums is not None:
            return list(zip(sums[::2], sums[1::2]))
    sums = _torch_sums(words)
    return list(zip(sums[::2], sums[1::2]))


def _torch_sums(words):
    """[first and second sum of block 0, of block 1, ...] of int32 words, as unsigned integers."""
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
    return [s & MASK for pair in zip(*sums) for s in pair]


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
