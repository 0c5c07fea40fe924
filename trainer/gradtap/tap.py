"""The object that the user holds: attach before the first step, commit where a checkpoint would be saved, close.

Thread rule: attach, commit and close run in the training thread. After attach nothing here waits, runs a collective or
raises into the loop: the training thread reads small values and appends them to a bounded queue.
"""

import atexit
import functools
import os
import time
import weakref

import torch
import torch.distributed as dist

from . import admission, backward, baseline, hyper, inventory, layout, log, probe, signing, transforms, witness
from .link import Link, split_endpoints
from .messages import StepRecord, attach_body, common_facts, render_layout, render_step
from .model import Model
from .nonce import Agreement
from .outbox import MAX_BYTES, Outbox
from .sender import Sender
from .sequence import Sequence
from .sidestate import BLOB_BYTES, SideState
from .stepping import StepWrapper

MAX_ERRORS = 20
_live = weakref.WeakSet()


def attach(ddp, optimizer, endpoint, job, scheduler=None, scaler=None, extra=None, attach_timeout_ms=10000,
           flush_ms=5000, resume_from=None, queue_bytes=MAX_BYTES, blob_bytes=BLOB_BYTES, step_time_s=None, secret=None):
    """Called on every rank before the first step. Always returns a Tap; `tap.enabled` tells whether it is in force.
    resume_from: a Restored on which start() was called; steps are counted on from there.
    step_time_s: how long a step takes; the nodes then refuse at once what they cannot keep up with.
    secret: the job's secret file; without it, the one that GRADTAP_SECRET_FILE names."""
    tap = Tap(optimizer, scaler, flush_ms / 1000.0)
    tap._limits = (queue_bytes, blob_bytes)
    tap._step_time_s = step_time_s
    tap._secret = secret
    if resume_from is not None and getattr(resume_from, "fresh", False):
        resume_from = None
    tap._resume_from = resume_from
    try:
        reason = tap._attach(ddp, endpoint, job, scheduler, extra, attach_timeout_ms / 1000.0)
    except Exception as error:  # attach may refuse, never raise
        reason = "internal error: %r" % (error,)
    if reason is not None:
        tap._turn_off(reason)
        log.say("training starts untapped: " + reason)
    return tap


class Tap:
    def __init__(self, optimizer, scaler, flush_s):
        self.enabled = False
        self.reason = None  # why it is not enabled
        self.step = 0  # accepted commits
        self.ignored = 0  # commits without an optimizer call
        self.errors = 0
        self.commit_us = 0
        self._optimizer, self._scaler, self._flush_s = optimizer, scaler, flush_s
        self._pid = os.getpid()
        self._log = log.RateLimited()
        self._sender = self._outbox = self._recorder = self._side = None
        self._resume_from, self._limits = None, (MAX_BYTES, BLOB_BYTES)
        self._step_time_s = self._secret = None
        self._undo = []
        self._closed = False
        _live.add(self)

    # Attach

    def _attach(self, ddp, endpoint, job, scheduler, extra, timeout_s):
        if any(t is not self and t.enabled for t in list(_live)):
            return "another tap of this process is open"
        if not (dist.is_available() and dist.is_initialized()):
            return "torch.distributed is not initialised"
        rank = dist.get_rank()
        scaler = self._scaler if self._scaler is not None and _scaler_enabled(self._scaler) else None
        self._scaler = scaler
        agreement = Agreement(job, rank, timeout_s)
        try:
            reason = self._prepare(ddp, scheduler, extra, endpoint, timeout_s, rank, job)
        except Exception as error:
            reason = "internal error: %r" % (error,)
        if reason is not None:
            if rank == 0:
                agreement.decline()
            return reason
        facts = common_facts(self._model, self.step)
        run_nonce = agreement.draw(facts) if rank == 0 else agreement.learn()
        if run_nonce is None:
            return "rank 0 is untapped"
        if rank != 0:
            reason = agreement.differs(facts)
            if reason is not None:
                return reason
        body = attach_body(self, ddp, job, run_nonce, rank, self._inventory.leaves)
        if rank == 0:
            for line in self._coverage(job, endpoint):
                log.say(line)
            outcome = "internal error"
            try:
                self._sender.start(body, {"probe": self._probe_pieces, "all": self._baseline_pieces})
                outcome = self._sender.await_outcome(timeout_s, agreement.tick)
            finally:
                agreement.conclude(outcome == "tracking")
            if outcome != "tracking":
                return outcome
            log.say("job %s is tracked" % job)
        else:
            self._sender.start(body, {})
            if not agreement.outcome():
                return "rank 0 is untapped"
        self._install(ddp)
        self.enabled = True
        atexit.register(_close_at_exit, weakref.ref(self))
        return None

    def _prepare(self, ddp, scheduler, extra, endpoint, timeout_s, rank, job):
        """Everything that can refuse, before anything is announced. Returns the reason or None."""
        reason = admission.refuse(ddp, self._optimizer, self._scaler) or admission.misplaced(scheduler, self._scaler)
        if reason is not None:
            return reason
        self._schedule_left_out = scheduler is None and any("initial_lr" in g for g in self._optimizer.param_groups)
        self._rank = rank
        self._ddp = ddp
        self._model = Model(ddp.module, self._optimizer)
        self._parameters = self._model.parameters
        self._tensors = self._model.tensors
        self._class = self._model.class_name
        self._sequence = Sequence(ddp.process_group)
        self._has_rebuilt = bool(ddp._has_rebuilt_buckets)
        reason = self._resume(ddp)
        if reason is not None:
            return reason
        self._layout = layout.in_force(ddp, self._parameters)
        if self._layout is None:
            return "the bucket layout of DistributedDataParallel cannot be determined"
        self._layouts = {self._layout.id: self._layout}
        queue_bytes, blob_bytes = self._limits
        self._side = SideState(self._model, scheduler, self._scaler, extra, blob_bytes)
        self._inventory = inventory.take(self._model, scheduler, self._scaler, extra, self._side.capture()[1])
        try:
            signer = signing.load(self._secret)
        except signing.SecretError as error:
            return str(error)
        endpoints = split_endpoints(endpoint)
        # While attach waits, silence of one gateway must leave time for the others.
        patience = timeout_s if len(endpoints) == 1 else timeout_s / (len(endpoints) + 1)
        link = Link(endpoints, max(1.0, min(10.0, patience)), signer)
        self._outbox = Outbox(rank, queue_bytes)
        self._sender = Sender(link, self._outbox, job, rank, self._log, self._turn_off_from_sender, blob_bytes,
                              max(1.0, min(10.0, timeout_s)))
        self._sender.layout_body = self._layout_body
        self._recorder = transforms.Recorder(self._model)
        return None

    def _resume(self, ddp):
        """Takes over the step of a restored point. Returns why it cannot."""
        restored = self._resume_from
        if restored is None:
            if self._has_rebuilt:
                return "attach comes after the first steps: the bucket layout has already changed"
            return None
        if not restored.started:
            return "resume_from was not started: call restored.start(ddp, warmup) before attach"
        if restored.ddp is not ddp:
            return "resume_from was started with another DistributedDataParallel"
        reason = restored.changed_since(self._model)
        if reason is not None:
            return reason
        self.step = restored.step
        return None

    def _probe_pieces(self):
        return [lambda: probe.build(self._optimizer, self._class, self._model.kinds)]

    def _baseline_pieces(self):
        plan = baseline.Baseline(self._model, step=self.step)
        return [functools.partial(plan.chunk, n) for n in range(len(plan))]

    def _coverage(self, job, endpoint):
        count = sum(q.numel for q in self._parameters)
        yield "job %s at %s: %d parameters in %d tensors, %s, %d bucket(s) at first; covered:" % (
            job, endpoint, count, len(self._parameters), self._class, len(self._layout.buckets))
        for line in self._inventory.lines():
            yield line
        if self._schedule_left_out:
            yield "  not covered  a learning-rate schedule of this optimizer: pass scheduler=, or a restart begins it anew"

    def _install(self, ddp):
        self._attempts = 0
        self._captured = None
        self._ambiguous = False
        self._interval_from = self._sequence.now()
        self._first_check = True
        self._predicted = None  # the layout after the rebuild, once it can be told
        self._synced_total = self._resume_from.warmups if self._resume_from is not None else 0
        self._positions = None
        self._zero_state = bytes((len(self._parameters) + 3) // 4)
        self._group_sizes = [len(g["params"]) for g in self._optimizer.param_groups]
        self._backwards = None
        stepping = StepWrapper(self._optimizer, self._before_step, self._after_step)
        self._undo.append(stepping.remove)
        if self._rank == 0:  # the other ranks report intervals only
            self._observe(ddp)

    def _observe(self, ddp):
        self._backwards = backward.BackwardCounter(ddp, self._recorder.reset, self._guard)
        self._undo.append(self._backwards.remove)
        clips = transforms.ClipWrappers(self._on_clip)
        clips.install()
        self._undo.append(clips.remove)
        if self._scaler is not None:
            unscale = transforms.UnscaleWrapper(self._scaler, self._optimizer, self._on_unscale)
            self._undo.append(unscale.remove)
        self._sender.after_batch = self._prepare_positions

    # What happens in the loop

    def _guard(self, function, *args):
        """Runs function(*args); whatever it raises is counted, never seen by the training loop."""
        if not self.enabled:
            return
        try:
            function(*args)
        except Exception as error:
            self._note_error(error)

    def _note_error(self, error):
        try:
            self.errors += 1
            if self.errors >= MAX_ERRORS:
                self._turn_off("CLIENT_DISABLED after %d internal errors, last %r" % (self.errors, error))
            self._log.say("internal error, training goes on: %r" % (error,))
        except Exception:
            pass

    def _on_clip(self, name, tensors, args, kwargs, result):
        self._guard(transforms.record_clip, self._recorder, name, tensors, args, kwargs, result)

    def _on_unscale(self, scaler):
        def record():
            tensors = [p for g in self._optimizer.param_groups for p in g["params"]]
            self._recorder.unscaled(transforms.inverse_scale(scaler), tensors)

        self._guard(record)

    def _before_step(self):
        if not self.enabled:
            return
        self._attempts += 1
        if self._rank == 0:
            begun = time.thread_time_ns()
            self._guard(self._capture)
            self._entry_ns = time.thread_time_ns() - begun
        elif self._ddp._join_config.enable:
            self._turn_off("uneven inputs (join) are not supported")

    def _after_step(self, failed):
        if failed and self.enabled:
            self._ambiguous = True  # an optimizer that raised may have moved some parameters

    def _capture(self):
        """At entry of optimizer.step: gradients are final, hyper-parameters are those of this step."""
        self._captured = None
        if self._first_check:
            self._first_check = False
            reason = admission.step_refusal(self._ddp)
            if reason:
                self._turn_off(reason)
                return
        if self._ddp._join_config.enable:
            self._turn_off("uneven inputs (join) are not supported")
            return
        if [len(g["params"]) for g in self._optimizer.param_groups] != self._group_sizes:
            self._turn_off("the optimizer's parameter groups changed after attach")
            return
        for name, p in self._model.frozen:
            if p.requires_grad:
                # Its gradient is reduced by nobody and its optimizer state is no part of the replica.
                self._turn_off("parameter %s was frozen at attach and is trained now: attach a new run" % name)
                return
        if not self._has_rebuilt and self._ddp._has_rebuilt_buckets:
            self._rebuild()
            if not self.enabled:
                return
        record = StepRecord()
        found_inf = getattr(self._optimizer, "found_inf", None)
        record.skipped = found_inf is not None and bool(found_inf.item())
        # A fused kernel that unscales inside divides after our sight: not expressible, so never applied.
        record.opaque = getattr(self._optimizer, "grad_scale", None) is not None and not record.skipped
        record.layout_id = self._layout.id
        record.groups = self._read_groups()
        record.transforms = self._recorder.items
        self._recorder.items = []
        none_at = [i for i, p in enumerate(self._tensors) if p.grad is None]
        record.none_at = none_at
        record.stale_at = self._stale(none_at)
        wanted = self._positions
        step = self.step + 1
        if wanted is None or wanted[0] != self._layout.id or wanted[1] != step:
            wanted = (self._layout.id, step, witness.positions(self._layout, step))
        record.witness = witness.sample(self._parameters, wanted[2])
        self._captured = record

    def _read_groups(self):
        return [hyper.read_group(g, self._class) for g in self._optimizer.param_groups]

    def _stale(self, none_at):
        """Indices of parameters whose gradient is not what the wire carried: all if no reduction had the last word."""
        none = set(none_at)
        if not self._backwards.last_was_synced:
            return tuple(i for i in range(len(self._tensors)) if i not in none)
        if not self._ddp.find_unused_parameters:
            return ()
        used = self._ddp.reducer._get_local_used_map()
        if used is None:
            return ()
        # DDP puts zeros on the wire for what nobody used and leaves .grad alone: equal only if that is zero.
        return tuple(i for i, u in enumerate(used.tolist())
                     if u == 0 and i not in none and bool((self._tensors[i].grad != 0).any()))

    def _rebuild(self):
        found = layout.rebuilt(self._ddp, self._parameters)
        self._has_rebuilt = True
        if found is None:
            self._turn_off("the bucket layout after the rebuild cannot be read")
            return
        self._announce(found, predicted=False)
        self._layout = found

    def _announce(self, found, predicted):
        self._layouts[found.id] = found
        self._outbox.append("layout", None, functools.partial(render_layout, found.body, self._rank, predicted),
                            64 + 16 * len(self._parameters))

    def commit(self):
        """Place it where a checkpoint would be saved. Step s is the s-th accepted commit."""
        if not self.enabled:
            return
        begun = time.thread_time_ns()
        try:
            self._commit(begun)
        except Exception as error:
            self._note_error(error)

    def _commit(self, begun):
        if self._attempts == 0 and self._scaler is None:
            self.ignored += 1
            return
        record, attempts, ambiguous = self._captured, self._attempts, self._ambiguous
        self._captured, self._attempts, self._ambiguous = None, 0, False
        first, self._interval_from = self._interval_from, self._sequence.now()
        self.step += 1
        rank0 = self._rank == 0
        if record is None:
            record = StepRecord()
            record.skipped = attempts == 0
            if rank0:
                record.layout_id = self._layout.id
                record.groups = self._read_groups()
            # An attempt without a capture is one that we failed to observe.
            ambiguous = ambiguous or (attempts > 0 and rank0)
        record.verdict = "ambiguous" if ambiguous or attempts > 1 or record.opaque else (
            "skipped" if record.skipped else "applied")
        record.step = self.step
        record.interval = (first, self._interval_from)
        if rank0:
            record.micro_steps, record.synced = self._backwards.micro_steps, self._backwards.synced
            self._backwards.reset()
            self._synced_total += record.synced
            record.next_layout_id = self._next_layout_id()
        side, missing = self._side.capture()
        for name, why in missing.items():
            self._log.say("side state %s does not travel, step %d cannot be published: %s" % (name, self.step, why))
        record.counters = (self._outbox.dropped, self._outbox.bytes, self.commit_us, self.ignored, self.errors,
                           self._outbox.blobs_missing)
        self._outbox.append("step", self.step, functools.partial(render_step, record, self._rank, self._class,
                                                                 self._zero_state),
                            1024 + 128 * len(record.witness) + 512 * len(record.groups), side, missing)
        self._sender.wake()
        self.commit_us = (time.thread_time_ns() - begun) // 1000

    def _next_layout_id(self):
        """The layout of the coming step, or None if it cannot be told. Announces it before it is named."""
        if self._has_rebuilt or self._synced_total < layout.synced_before_rebuild(self._ddp):
            return self._layout.id
        if self._predicted is None:
            found = layout.predict_rebuilt(self._ddp, self._parameters)
            if found is None:
                return None
            self._predicted = found
            if found.id != self._layout.id:
                self._announce(found, predicted=True)
        return self._predicted.id

    def _prepare_positions(self):
        """In the sender thread: the positions of the coming step, so that training finds them ready."""
        current, step = self._layout, self.step + 1
        known = self._positions
        if known is None or known[0] != current.id or known[1] != step:
            self._positions = (current.id, step, witness.positions(current, step))

    def _layout_body(self, layout_id):
        found = self._layouts.get(layout_id)
        return None if found is None else found.body

    # For code that imported torch's functions by name

    def clip_grad_norm_(self, parameters, max_norm, *args, **kwargs):
        """torch.nn.utils.clip_grad_norm_, seen by the tap wherever it is called from."""
        return self._clip("clip_grad_norm_", parameters, (max_norm,) + args, kwargs)

    def clip_grad_value_(self, parameters, clip_value, *args, **kwargs):
        """torch.nn.utils.clip_grad_value_, seen by the tap wherever it is called from."""
        return self._clip("clip_grad_value_", parameters, (clip_value,) + args, kwargs)

    def _clip(self, name, parameters, args, kwargs):
        # The module's function is the wrapped one while the tap is open, and torch's own otherwise.
        return getattr(torch.nn.utils.clip_grad, name)(parameters, *args, **kwargs)

    # The end

    def close(self):
        """Sends what is queued, for at most flush_ms, detaches, and leaves torch as it was found."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            self._unwrap()
            if self.enabled and self._sender is not None:
                self._sender.close(self._flush_s, self.step)
            self.enabled = False
            self._ddp = None
        except Exception as error:
            log.say("internal error at close: %r" % (error,))

    def status(self):
        """Numbers for people: what was accepted, sent, lost."""
        box = self._outbox
        return {"enabled": self.enabled, "reason": self.reason, "step": self.step, "ignored": self.ignored,
                "errors": self.errors, "commit_us": self.commit_us,
                "dropped": box.dropped if box else 0, "queue_bytes": box.bytes if box else 0,
                "blobs_missing": box.blobs_missing if box else 0,
                "blob_bytes_sent": self._sender.blobs.uploaded_bytes if self._sender else 0,
                "received_seq": box.received if box else 0, "durable_seq": box.durable if box else 0}

    def _unwrap(self):
        undo, self._undo = self._undo, []
        for function in reversed(undo):
            function()

    def _turn_off(self, reason):
        """The kill switch. Training goes on; wrappers stay as pass-throughs until close, from any thread."""
        if self.enabled:
            log.say("the tap is off, training goes on untapped: " + reason)
        self.enabled = False
        if self.reason is None:
            self.reason = reason
        if self._sender is not None:
            self._sender.abandon(reason)
        if self._outbox is not None:
            self._outbox.clear()

    def _turn_off_from_sender(self, reason):
        self._turn_off(reason)

    def _after_fork_in_child(self):
        self.enabled = False
        self.reason = "forked child"
        if self._outbox is not None:
            self._outbox.renew()
        if self._sender is not None:
            self._sender.after_fork_in_child()


def _scaler_enabled(scaler):
    enabled = getattr(scaler, "is_enabled", None)
    return bool(enabled()) if callable(enabled) else True


def _close_at_exit(reference):
    tap = reference()
    if tap is not None:
        tap.close()


def _forked():
    for tap in list(_live):
        try:
            tap._after_fork_in_child()
        except Exception:
            pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
