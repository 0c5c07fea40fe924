"""State roots as docs/side-channel.md defines them, in numpy: the tests' own implementation.

It shares no line with the package in trainer/ or with the node, so that equality of roots means something.
"""
import hashlib
import struct

import numpy as np

BLOCK = 1 << 16
_MASK = 0xFFFFFFFFFFFFFFFF


def _keys(k):
    with np.errstate(over="ignore"):
        z = (np.arange(BLOCK, dtype=np.uint64) * np.uint64(2) + np.uint64(k + 1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)


_KEYS = (_keys(0), _keys(1))


def block_digest(words):
    """16 bytes of one block; words is a uint32 array of at most BLOCK elements, or None for an absent kind."""
    if words is None:
        return bytes(16)
    wide = words.astype(np.uint64)
    with np.errstate(over="ignore"):
        sums = [int(np.sum(wide * key[:len(wide)], dtype=np.uint64)) & _MASK for key in _KEYS]
    return struct.pack("<QQ", *sums)


def digests(parameters, shard_elements):
    """(root, shard digests) in hex.

    parameters: for each, in canonical order, ([flat uint32 array or None for each kind], step counter).
    """
    shards, current, elements = [], hashlib.sha256(), 0
    for kinds, counter in parameters:
        size = len(kinds[0])
        for begin in range(0, size, BLOCK):
            for words in kinds:
                current.update(block_digest(None if words is None else words[begin:begin + BLOCK]))
            current.update(struct.pack("<Q", counter))
            elements += min(BLOCK, size - begin)
            if elements >= shard_elements:
                shards.append(current.digest())
                current, elements = hashlib.sha256(), 0
    if elements:
        shards.append(current.digest())
    return hashlib.sha256(b"".join(shards)).hexdigest(), [s.hex() for s in shards]
