#!/usr/bin/python3
"""The training job of the live tests and of the demo: a small GPT (or an MLP) on text, DDP over gloo.

One process a rank. Rank 0 writes, into --out: roots.jsonl (state root and shard digests after every step), with
--tensor-digests tensors.jsonl (SHA-256 of every tensor), and final/ (every parameter and moment as raw float32, and
meta.json). Every rank writes steps.N (a line after every commit), endN.json (all that must be equal after a restart)
and rankN.json (losses, thread CPU time of every commit, peak memory, buckets). With --attach the job is tapped by
gradtap; with --restore it begins where a recovery point ends; without both the same job runs alone.
"""
import argparse
import contextlib
import json
import os
import resource
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _HERE)

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import train_data
import train_model
from train_fabric import fabric_of
from train_hooks import DieAt
from train_save import WAYS, Saves
from train_state import State, seed_all


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--rank", type=int, required=True)
    p.add_argument("--world", type=int, required=True)
    p.add_argument("--address", default="10.77.0.10")
    p.add_argument("--port", type=int, default=29500)
    p.add_argument("--out", required=True)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--model", choices=["gpt", "mlp", "awkward"], default="gpt")
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--context", type=int, default=32)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--optimizer", choices=["sgd", "adam", "adamw"], default="adamw")
    p.add_argument("--amsgrad", action="store_true")
    p.add_argument("--maximize", action="store_true")
    p.add_argument("--lr", type=float, default=0.0, help="0: a default for the optimizer")
    p.add_argument("--schedule", choices=["none", "cosine"], default="cosine")
    p.add_argument("--clip", default="none", help="none, norm:X or value:X")
    p.add_argument("--bucket-mb", type=float, default=1.0)
    p.add_argument("--first-bucket-bytes", type=int, default=0, help="0: torch's default, 1 MiB")
    p.add_argument("--find-unused", action="store_true")
    p.add_argument("--bucket-view", action="store_true")
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--shuffle", action="store_true", help="epochs in shuffled order instead of random windows")
    p.add_argument("--augment", action="store_true", help="spoil inputs by Python's and NumPy's generators")
    p.add_argument("--accumulate", type=int, default=1, help="backward passes a step, all but the last under no_sync")
    p.add_argument("--sync-at", type=int, default=0, help="reduce in this backward pass of a step instead of in the last; -1: in each")
    p.add_argument("--to-none", action="store_true", help="gradients are freed instead of zeroed")
    p.add_argument("--scaler", type=float, default=0, help="loss scale to begin with; 0: no scaler")
    p.add_argument("--forget-scaler", action="store_true", help="attach is not given the scaler")
    p.add_argument("--inf-every", type=int, default=0, help="every how many steps a loss is infinite")
    p.add_argument("--odd-head", action="store_true", help="a head that is unused on every odd step")
    p.add_argument("--live-buffer", action="store_true", help="a buffer that changes in every forward pass")
    p.add_argument("--schedule-steps", type=int, default=0, help="length of the schedule; 0: --steps")
    p.add_argument("--attach", default="", help="endpoints of nodes, http://ADDRESS:PORT, separated by commas")
    p.add_argument("--restore", default="", help="a directory of recovery points, or endpoints as in --attach")
    p.add_argument("--restore-step", type=int, default=0, help="0: the newest point")
    p.add_argument("--restore-lineage", type=int, default=0, help="0: the newest lineage")
    p.add_argument("--or-fresh", action="store_true", help="with --restore: begin at step 0 where there is no point")
    p.add_argument("--job", default="demo")
    p.add_argument("--attach-timeout-ms", type=int, default=0)
    p.add_argument("--step-time", type=float, default=0.0, help="what attach declares, in seconds; 0: nothing")
    p.add_argument("--shard-elements", type=int, default=1 << 17)
    p.add_argument("--no-roots", action="store_true")
    p.add_argument("--tensor-digests", action="store_true")
    p.add_argument("--die-at", default="", help="STEP:PLACE, see train_hooks.py")
    p.add_argument("--die-rank", type=int, default=0)
    p.add_argument("--pause-at", type=int, default=0, help="after this step every rank waits until --pause-file exists")
    p.add_argument("--pause-file", default="")
    p.add_argument("--pause-timeout", type=float, default=120.0)
    p.add_argument("--fabric", default="", help="socket of a `gradtap generate --live`: what the mirror sees instead of gloo")
    p.add_argument("--fabric-events", default="", help="see train_fabric.py")
    p.add_argument("--save", choices=WAYS, default="", help="whole checkpoints after every step, see train_save.py")
    p.add_argument("--step-sleep-file", default="", help="seconds to sleep after a step, read anew after each")
    p.add_argument("--step-sleep", type=float, default=0.0)
    return p.parse_args()


def sources(text):
    """One source, or a list of endpoints to fail over between."""
    parts = text.split(",")
    return parts[0] if len(parts) == 1 else parts


def import_gradtap():
    sys.path.insert(0, os.path.join(_HERE, "..", "..", "trainer"))
    import gradtap
    return gradtap


def restore(a, ddp, optimizer, schedule, data, scaler):
    """(a gradtap.Restored that is started, seconds of gradtap.restore itself)"""
    options = {}
    if a.restore_step:
        options["step"] = a.restore_step
    if a.restore_lineage:
        options["lineage"] = a.restore_lineage
    if a.or_fresh:
        options["or_fresh"] = True
    gradtap, before = import_gradtap(), time.monotonic()
    restored = gradtap.restore(sources(a.restore), a.job, model=ddp.module, optimizer=optimizer,
                               scheduler=schedule, scaler=scaler, extra={"data": data}, **options)
    seconds = time.monotonic() - before

    def warm_up():
        window = data.text[:a.batch * (a.context + 1)].reshape(a.batch, a.context + 1)
        train_model.loss(a, ddp, window).backward()
    restored.start(ddp, warm_up)
    return restored, seconds


def attach(a, ddp, optimizer, schedule, data, scaler, restored):
    options = {"attach_timeout_ms": a.attach_timeout_ms} if a.attach_timeout_ms else {}
    if a.step_time:
        options["step_time_s"] = a.step_time
    if restored:
        options["resume_from"] = restored
    return import_gradtap().attach(ddp, optimizer, endpoint=sources(a.attach), job=a.job, scheduler=schedule,
                                   scaler=None if a.forget_scaler else scaler, extra={"data": data}, **options)


def wait_for_file(path, seconds):
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise SystemExit("waited %g s for %s" % (seconds, path))
        time.sleep(0.02)


def backward(a, ddp, scaler, step, data, window):
    """The backward passes of one step; returns the loss of the last."""
    sync_at = a.sync_at or a.accumulate
    for at in range(1, a.accumulate + 1):
        with contextlib.nullcontext() if sync_at in (at, -1) else ddp.no_sync():
            loss = train_model.loss(a, ddp, window if at == 1 else data.next()) / a.accumulate
            if a.inf_every and step % a.inf_every == 0 and at == 1 and a.rank == 0:
                loss = loss * float("inf")
            loss = -loss if a.maximize else loss
            (scaler.scale(loss) if scaler else loss).backward()
    return loss


def paced(path):
    """What another process has written there with one write; no sleep while it says nothing readable."""
    try:
        with open(path) as f:
            return float(f.read())
    except (OSError, ValueError):
        return 0.0


class Lines:
    """A file that other processes read while it grows: whole lines only."""

    def __init__(self, a, name):
        self.file = open(os.path.join(a.out, name), "w")

    def write(self, record):
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()


def main():
    a = parse()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    os.makedirs(a.out, exist_ok=True)
    dist.init_process_group("gloo", init_method="tcp://%s:%d" % (a.address, a.port), rank=a.rank, world_size=a.world)
    if a.first_bucket_bytes:
        dist._DEFAULT_FIRST_BUCKET_BYTES = a.first_bucket_bytes
    model = train_model.make(a)
    hooks = DieAt(a, model)
    ddp = DistributedDataParallel(model, bucket_cap_mb=a.bucket_mb, find_unused_parameters=a.find_unused,
                                  gradient_as_bucket_view=a.bucket_view, broadcast_buffers=False)
    optimizer = train_model.make_optimizer(a, ddp.parameters())
    schedule = train_model.make_schedule(a, optimizer)
    data = train_data.make(a)
    seed_all(a)
    scaler = train_model.Scaler(a.scaler) if a.scaler else None
    state = State(a, model, optimizer)
    restored, restore_s = restore(a, ddp, optimizer, schedule, data, scaler) if a.restore else (None, 0.0)
    first = restored.step if restored else 0
    if a.restore:
        print("restored: step %d in %.3f s" % (first, restore_s), flush=True)
    tap = attach(a, ddp, optimizer, schedule, data, scaler, restored) if a.attach else None
    fabric = fabric_of(a, ddp)
    roots = Lines(a, "roots.jsonl") if a.rank == 0 and not a.no_roots else None
    tensors = Lines(a, "tensors.jsonl") if a.rank == 0 and a.tensor_digests else None
    committed = Lines(a, "steps.%d" % a.rank)

    def write_root(step, **more):
        if roots:
            root, shards = state.digests()
            roots.write(dict(step=step, root=root, shards=shards, **more))
        if tensors:
            tensors.write({"step": step, "tensors": state.tensors()})

    if tap:
        print("tap: %s" % ("in force" if tap.enabled else "off: %s" % tap.reason), flush=True)
    if a.rank == 0:
        total = sum(p.numel() for _, p in state.named)
        print("model: %d parameters in %d tensors" % (total, len(state.named)), flush=True)
    write_root(first)
    saves = Saves(a, model, optimizer)
    commit_us, losses, started = [], [], time.monotonic()
    clock = [(time.process_time(), started)]
    for step in range(first + 1, a.steps + 1):
        hooks.step_begins(step)
        window = data.next()
        if a.augment:
            window = train_data.augment(window)
        model.side_on = step % 2 == 0
        optimizer.zero_grad(set_to_none=a.to_none)
        loss = backward(a, ddp, scaler, step, data, window)
        if fabric:
            fabric.after_backward(step)
        if scaler:
            scaler.unscale_(optimizer)
        kind, _, limit = a.clip.partition(":")
        if kind == "norm":
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), float(limit))
        elif kind == "value":
            torch.nn.utils.clip_grad_value_(ddp.parameters(), float(limit))
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if schedule:
            schedule.step()
        hooks.before_commit()
        if tap:
            before = time.thread_time_ns()
            tap.commit()
            commit_us.append((time.thread_time_ns() - before) / 1e3)
        saves.after_step()
        committed.write(step)
        hooks.after_commit()
        losses.append(loss.item())
        write_root(step, loss=losses[-1])
        if a.rank == 0 and (step == 1 or step % 10 == 0 or step == a.steps):
            print("step %d loss %.4f" % (step, losses[-1]), flush=True)
        if step == a.pause_at:
            # Every rank stops, so that no byte is on the wire while the node is away.
            open("%s.reached.%d" % (a.pause_file, a.rank), "w").close()
            wait_for_file(a.pause_file, a.pause_timeout)
        pause = paced(a.step_sleep_file) if a.step_sleep_file else a.step_sleep
        if pause:
            time.sleep(pause)
        clock.append((time.process_time(), time.monotonic()))
    saves.finish()
    dist.barrier()
    seconds = time.monotonic() - started
    with open(os.path.join(a.out, "end%d.json" % a.rank), "w") as f:
        json.dump(state.ending(a.steps, schedule, data), f, indent=1)
    if a.rank == 0:
        state.dump(os.path.join(a.out, "final"), a.steps)
        print("done: %d steps in %.1f s" % (a.steps, seconds), flush=True)
    tapped = bool(tap and tap.enabled)
    if tap and not tapped:
        print("tap: ended off: %s" % tap.reason, flush=True)
    if tap:
        tap.close()
    log = ddp._get_ddp_logging_data()
    numbers = lambda key: [int(x) for x in (log.get(key) or "").split(",") if x.strip()]
    with open(os.path.join(a.out, "rank%d.json" % a.rank), "w") as f:
        json.dump({"seconds": seconds, "losses": losses, "commit_us": commit_us, "torch": torch.__version__,
                   "clock": clock, "tapped": tapped, "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                   "first_buckets": numbers("bucket_sizes"), "buckets": numbers("rebuilt_bucket_sizes"),
                   "ready_order": numbers("prev_iteration_grad_ready_order_indices")}, f)
    time.sleep(0.3)  # let the peers read the last bytes before the sockets go


if __name__ == "__main__":
    main()
