"""Bucket layouts by value: which parameters, in which order, one all-reduce carries, as DDP decides it.

DDP's first iteration uses another layout than the rest. The initial one is computed as DDP's constructor does and
checked against the sizes that DDP logged; the rebuilt one is read from DDP's logger, which must be refreshed once
because it lags by a step.
"""

import sys

import torch.distributed as dist

from . import bits


class Layout:
    """Immutable. buckets: list of lists of parameter indices."""

    def __init__(self, buckets, parameters):
        self.buckets = [list(b) for b in buckets]
        self.body = {"buckets": [[[i, parameters[i].numel] for i in b] for b in self.buckets], "dtype": "float32"}
        self.id = bits.sha256_hex(bits.canonical_json(self.body))
        self.sizes = [sum(parameters[i].numel for i in b) for b in self.buckets]
        self.seed = int(self.id[:16], 16)
        # For every bucket the element offsets at which its parameters begin, to map a position to a parameter.
        self.starts = []
        for b in self.buckets:
            starts, offset = [], 0
            for i in b:
                starts.append(offset)
                offset += parameters[i].numel
            self.starts.append(starts)

    def byte_sizes(self):
        return [4 * n for n in self.sizes]


def _limits_after_first(ddp):
    """(first bucket, other buckets) in bytes, as the rebuild uses them."""
    first = dist._DEFAULT_FIRST_BUCKET_BYTES
    if hasattr(ddp, "bucket_bytes_cap_default") and not ddp.bucket_bytes_cap_default:
        first = ddp.bucket_bytes_cap
    return [first, ddp.bucket_bytes_cap]


def initial(ddp, parameters):
    """The layout in force before the first iteration, or None if DDP's own record contradicts every candidate."""
    tensors = [q.tensor for q in parameters]
    if not tensors:
        return Layout([], parameters)
    if getattr(ddp, "static_graph", False) or not ddp.find_unused_parameters:
        limits = [sys.maxsize]
    elif hasattr(ddp, "bucket_bytes_cap_default") and not ddp.bucket_bytes_cap_default:
        limits = [ddp.bucket_bytes_cap]
    else:
        limits = _limits_after_first(ddp)
    answer = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    buckets = answer[0] if isinstance(answer, tuple) else answer
    layout = Layout(list(reversed(buckets)), parameters)
    logged = _numbers(ddp._get_ddp_logging_data().get("bucket_sizes"))
    if logged is None or logged == layout.byte_sizes():
        return layout
    layout = from_reducer(ddp, parameters)
    return layout if layout is not None and layout.byte_sizes() == logged else None


def in_force(ddp, parameters):
    """The layout of the next iteration as far as it is decided now; None if it cannot be read."""
    return rebuilt(ddp, parameters) if ddp._has_rebuilt_buckets else initial(ddp, parameters)


def synced_before_rebuild(ddp):
    """Synchronised backwards after which the next forward changes the layout; infinity if it never does."""
    if getattr(ddp, "static_graph", False):
        return 2  # the first iteration of a static graph only counts
    return float("inf") if ddp.find_unused_parameters else 1


def from_reducer(ddp, parameters):
    """Asks the reducer itself. Allocates one gradient's worth of zeros for a moment: not for every step."""
    try:
        index_of = {id(q.tensor): q.index for q in parameters}
        found = sorted((b.index(), [index_of[id(p)] for p in b.parameters()])
                       for b in ddp.reducer._get_zeros_like_grad_buckets())
        return Layout([b for _, b in found], parameters)
    except Exception:
        return None


def rebuilt(ddp, parameters):
    """The layout after the rebuild, valid in the step that rebuilt; None if it cannot be read."""
    ddp.logger.set_runtime_stats_and_log()
    text = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices")
    if text:
        buckets = [[int(i) for i in part.split()] for part in text.split(",")]
        if sorted(i for b in buckets for i in b) == list(range(len(parameters))):
            return Layout(buckets, parameters)
    return from_reducer(ddp, parameters)


def predict_rebuilt(ddp, parameters):
    """What the rebuild will most likely give, from the order in which gradients became ready. Only a hint."""
    if synced_before_rebuild(ddp) == float("inf") or not parameters:
        return None
    ddp.logger.set_runtime_stats_and_log()
    order = _numbers(ddp._get_ddp_logging_data().get("prev_iteration_grad_ready_order_indices"))
    if order is None or sorted(order) != list(range(len(parameters))):
        return None
    return greedy(ddp, parameters, order)


def expected_sizes(ddp, parameters):
    """Byte sizes that all-reduces may have later, before anything ran: reverse registration order is a good guess."""
    if ddp.find_unused_parameters or not parameters:
        return []
    return [greedy(ddp, parameters, list(range(len(parameters) - 1, -1, -1))).byte_sizes()]


def greedy(ddp, parameters, order):
    """DDP's rule: fill a bucket until its size reaches the limit, then open the next."""
    limits = _limits_after_first(ddp)
    buckets, current, size = [], [], 0
    for i in order:
        current.append(i)
        size += 4 * parameters[i].numel
        if size >= limits[min(len(buckets), 1)]:
            buckets.append(current)
            current, size = [], 0
    if current:
        buckets.append(current)
    return Layout(buckets, parameters)


def _numbers(text):
    if not text:
        return None
    try:
        return [int(x) for x in text.split(",")]
    except ValueError:
        return None
