"""The witness: bits of sampled gradient elements as the optimizer is about to use them.

Eight positions a bucket and step, fixed by layout id, step and bucket, so that the node knows them without being told.
"""

import ctypes
from bisect import bisect_right

import torch

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
SAMPLES = 8
MAX_BUCKETS = 48  # more buckets are sampled in rotation: the cost of a step stays bounded

_word_at = ctypes.c_uint32.from_address


MIX_FIRST, MIX_SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(x):
    """The splitmix64 finaliser."""
    x ^= x >> 30
    x = (x * MIX_FIRST) & MASK
    x ^= x >> 27
    x = (x * MIX_SECOND) & MASK
    return x ^ (x >> 31)


def bucket_position(seed, step, bucket, sample, numel):
    return mix((seed + (step * 64 + bucket * 8 + sample + 1) * GOLDEN) & MASK) % numel


def positions(layout, step):
    """[(bucket, [(parameter index, element in memory order) x 8])] of the buckets sampled in this step."""
    count = len(layout.buckets)
    if count <= MAX_BUCKETS:
        chosen = range(count)
    else:
        chosen = [(step * MAX_BUCKETS + k) % count for k in range(MAX_BUCKETS)]
    result = []
    for b in chosen:
        numel = layout.sizes[b]
        if numel == 0:
            continue
        starts, members = layout.starts[b], layout.buckets[b]
        points = []
        for j in range(SAMPLES):
            at = bucket_position(layout.seed, step, b, j, numel)
            # bisect_right steps over parameters without elements, which start where their successor does.
            k = bisect_right(starts, at) - 1
            points.append((members[k], at - starts[k]))
        result.append((b, points))
    return result


def sample(parameters, wanted):
    """[(bucket, [32-bit words])]. A gradient that is None reads as +0.0, which is what DDP put on the wire for it."""
    addresses = {}
    result = []
    for bucket, points in wanted:
        words = []
        for index, element in points:
            base = addresses.get(index)
            if base is None:
                base = addresses[index] = _base(parameters[index])
            if base > 0:
                words.append(_word_at(base + 4 * element).value)
            elif base == 0:
                words.append(0)
            else:
                words.append(_slow(parameters[index], element))
        result.append((bucket, words))
    return result


def _base(parameter):
    grad = parameter.tensor.grad
    if grad is None:
        return 0
    if grad.stride() != parameter.stride or grad.dtype is not torch.float32 or grad.device.type != "cpu":
        return -1
    return grad.data_ptr()


def _slow(parameter, element):
    """A gradient that lies otherwise in memory than its parameter: go through the coordinates."""
    grad = parameter.tensor.grad
    coordinates = [0] * grad.dim()
    for d in reversed(parameter.order):
        element, coordinates[d] = divmod(element, grad.shape[d])
    value = grad.detach()[tuple(coordinates)].reshape(1)
    return int(value.view(torch.int32).item()) & 0xFFFFFFFF
