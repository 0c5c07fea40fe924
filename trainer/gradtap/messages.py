"""The bodies of attach and of messages. Rendering of steps runs in the sender thread, from plain recorded values."""

import torch
import torch.distributed as dist

from . import bits, hyper, layout

NONE, STALE = 1, 2


class StepRecord:
    """What the training thread leaves behind for one step: references to small immutable values."""

    __slots__ = ("step", "interval", "verdict", "skipped", "opaque", "layout_id", "groups", "transforms", "none_at",
                 "stale_at", "witness", "micro_steps", "synced", "counters", "next_layout_id")

    def __init__(self):
        self.skipped = self.opaque = False
        self.layout_id = ""
        self.next_layout_id = None
        self.groups = self.transforms = self.none_at = self.stale_at = self.witness = ()


def render_step(record, rank, class_name, zero_state, seq):
    dropped, queue_bytes, commit_us, ignored, errors, blobs_missing = record.counters
    body = {
        "kind": "step", "seq": seq, "rank": rank, "step": record.step,
        "interval": list(record.interval), "blobs": {},
        "counters": {"dropped": dropped, "queue_bytes": queue_bytes, "commit_us": commit_us,
                     "ignored": ignored, "errors": errors, "blobs_missing": blobs_missing},
    }
    if rank == 0:
        body.update({
            "layout_id": record.layout_id, "next_layout_id": record.next_layout_id,
            "micro_steps": record.micro_steps, "synced_backwards": record.synced, "verdict": record.verdict,
            "groups": [hyper.spell_group(g, class_name) for g in record.groups],
            "transforms": [_transform(t) for t in record.transforms],
            "param_state": param_state(record, zero_state),
            "witness": {str(b): ["%08x" % w for w in words] for b, words in record.witness},
            "buffers": {},
        })
    return body


def _transform(item):
    op, args, scope = item
    where = "all" if scope is None else list(scope)
    if op == "mul":
        return {"op": "mul", "bits": bits.f32(args[0]), "scope": where}
    return {"op": "clamp", "min": bits.f32(args[0]), "max": bits.f32(args[1]), "scope": where}


def param_state(record, zero_state):
    """Two bits a parameter: parameter i in bits 2*(i%4).. of byte i/4."""
    state = bytearray(zero_state)
    for value, indices in ((NONE, record.none_at), (STALE, record.stale_at)):
        for i in indices:
            state[i >> 2] |= value << (2 * (i & 3))
    return bytes(state).hex()


def render_layout(body, rank, predicted, seq):
    message = {"kind": "layout", "seq": seq, "rank": rank, "layout": body}
    if predicted:
        message["predicted"] = True
    return message


def attach_body(tap, ddp, job, run_nonce, rank, leaves):
    body = {
        "protocol": 1, "job": job, "run_nonce": run_nonce, "rank": rank, "world": dist.get_world_size(), "group": 0,
        "hosts": [], "torch": torch.__version__, "backend": "gloo", "inventory": leaves,
    }
    if rank != 0:
        return body
    model = tap._model
    restored = tap._resume_from
    planned = ["clip_grad_norm_", "clip_grad_value_"]
    body.update({
        "device": "cpu", "cpu_capability": cpu_capability(), "threads": torch.get_num_threads(),
        "sequence": tap._sequence.now(),
        "parameters": [q.describe() for q in model.parameters],
        "buffers": model.describe_buffers(),
        "optimizer": model.describe_optimizer(),
        "transforms_planned": (["unscale_"] if tap._scaler is not None else []) + planned,
        "layout": tap._layout.body,
        "layouts_expected": [] if tap._has_rebuilt else layout.expected_sizes(ddp, model.parameters),
        "resume_from": None if restored is None else restored.describe(), "baseline": "sync", "step": tap.step,
    })
    if tap._step_time_s is not None:
        body["step_time_ms"] = max(1, int(1000 * tap._step_time_s))
    return body


def common_facts(model, step):
    """{what: text} of all that rank 0 says for every rank."""
    facts = {"step": str(step), "optimizer": str(model.class_name),
             "parameters": bits.sha256_hex(bits.canonical_json([q.describe() for q in model.parameters]))}
    for n, group in enumerate(model.groups()):
        for key, value in group.items():
            facts["%s of parameter group %d" % (key, n)] = value
    return facts


def cpu_capability():
    backend = getattr(torch.backends, "cpu", None)
    if backend is not None and hasattr(backend, "get_cpu_capability"):
        return backend.get_cpu_capability()
    for line in torch.__config__.show().splitlines():
        if "CPU capability usage:" in line:
            return line.split(":", 1)[1].strip()
    return "unknown"
