"""gradtap.restore: a new process takes over exactly where a recovery point ends.

Rank 0 chooses the point; of the ranks on one machine one reads its state and all check it, each for itself; all agree through the store of the process group
before anything is changed, and again after. No collective is added. Restored.start brings DistributedDataParallel into
the bucket layout of the point and sets everything once more, the random generators last.
"""

import contextlib
import json
import time

from . import bits, landing, layout, log, signing
from .errors import RestoreError
from .lease import NoLease, PointGone
from .model import Model
from .pointfile import Damaged, TensorFile
from .pointside import PointSide, codec_json
from .pointstate import PointState, first_difference, live_value, shard_digests
from .rendezvous import Rendezvous, RendezvousError
from .source import NoSuchJob, PointUnreadable, SourceError, open_source

MAX_SIDE_BYTES = 1 << 30
MAX_WARMUPS = 4
MAX_CHOICES = 4  # how often rank 0 lists the points when those it chose are deleted meanwhile
# The point is not usable, an older one may be. Everything else is a reason to stop.
PASS_OVER = frozenset(("DIGEST_MISMATCH", "POINT_DAMAGED", "POINT_INCOMPLETE", "POINT_UNREADABLE"))


def restore(source, job, *, model, optimizer, scheduler=None, scaler=None, extra=None, step=None, lineage=None,
            or_fresh=False, ignore=(), timeout_ms=60000, scratch=None, secret=None):
    """Called on every rank, after model and optimizer are built and before the first step. Raises RestoreError.

    source: endpoint(s), or a directory. step, lineage: a certain point instead of the newest. or_fresh: begin at step 0
    if no point exists at all. ignore: names of side state that may be missing or left over. timeout_ms: longest silence
    of a source or of another rank. scratch: folder for the files read (default: memory, or the system's folder). secret: the job's secret
    file, for a source that is a gateway; without it, the one that GRADTAP_SECRET_FILE names.
    """
    try:
        # A rank that waits for another grants it two silent gateways.
        meeting = Rendezvous(job, 2 * timeout_ms / 1000.0 + 5.0)
        if scaler is not None and not getattr(scaler, "is_enabled", lambda: True)():
            scaler = None  # as attach sees it
        attempt = _Attempt(source, job, model, optimizer, (scheduler, scaler, extra, ignore), timeout_ms / 1000.0,
                           scratch, meeting, secret)
        return _lead(attempt, step, lineage, or_fresh) if meeting.rank == 0 else _follow(attempt)
    except RendezvousError as error:
        raise RestoreError("TIMEOUT", str(error)) from None


class _Attempt:
    """What one rank does with one candidate."""

    def __init__(self, source, job, model, optimizer, things, timeout_s, scratch, meeting, secret=None):
        self._secret = secret
        self.job, self.meeting = job, meeting
        self._source, self._timeout_s, self._scratch = source, timeout_s, scratch
        self._things = things
        self._module = getattr(model, "module", model) if _is_parallel(model) else model
        self._optimizer = optimizer
        self._opened = None
        self.restored = None
        self.seconds = {}  # what this rank's time went into, over all candidates
        self._loads = 0
        self._lent = []  # files that other ranks of this machine may open until all have said how it went

    @contextlib.contextmanager
    def timed(self, part):
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - begun

    def source(self):
        if self._opened is None:
            try:
                signer = signing.load(self._secret)
            except signing.SecretError as error:
                raise SourceError(str(error)) from None
            self._opened = open_source(self._source, self._timeout_s, self.meeting.rank, signer,
                                       landing.ranks_here(self.meeting.world))
        return self._opened

    def load(self, lineage, step, record_digest):
        """Reads and checks; changes nothing."""
        tick, source = self.meeting.tick, self.source()
        record = check_record(source.record(self.job, lineage, step, tick), lineage, step, record_digest)
        if record["world"] != self.meeting.world:
            raise RestoreError("WORLD_SIZE", "the point is of another number of ranks", expected=record["world"],
                               actual=self.meeting.world, remedy="start as many ranks as the job had")
        model = Model(self._module, self._optimizer)
        if model.class_name is None:
            raise RestoreError("STATE_MISMATCH", "optimizer %s, exactly torch.optim.SGD, Adam or AdamW are supported"
                               % type(self._optimizer).__qualname__)
        most = sum(4 * q.numel * (1 + len(model.kinds)) for q in model.parameters) * 2 + (64 << 20)
        with self.timed("read"):
            state = self._state(most // 2, lambda out: source.state(self.job, lineage, step, out, most, tick))
            with self._landing(0) as out:
                source.side(self.job, lineage, step, self.meeting.rank, out, MAX_SIDE_BYTES, tick)
                side = TensorFile(out)
        point_state = PointState(state, model, record)
        point_side = PointSide(side, record, self.meeting.rank, model, *self._things)
        with self.timed("check"):
            point_state.check_names()
            point_side.check()
            tick()
            point_state.check_bytes()
        self.restored = Restored(record, record_digest, model, point_state, point_side, state)

    def hold(self, lineage, step):
        """A lease of the point; one that holds nothing where there is none to be had. PointGone."""
        try:
            return self.source().lease(self.job, lineage, step, self.meeting.tick)
        except (PointGone, RendezvousError):
            raise
        except Exception as error:
            log.say("the point is read without a lease, it may be deleted meanwhile: %s" % error)
            return NoLease()

    def _landing(self, expected):
        return landing.open_landing(expected, landing.ranks_here(self.meeting.world), self._scratch)

    def _state(self, expected, read):
        """Read by the first rank of this machine; the others map what it read, and check it as if they had."""
        self._loads += 1
        key = "state/%d/%s" % (self._loads, landing.machine())
        if not self.meeting.first(key):
            what = json.loads(self.meeting.hear(key, "another rank of this machine"))
            if "error" in what:
                raise PointUnreadable("another rank of this machine could not read it: %s" % what["error"])
            try:
                with landing.open_told(what) as file:
                    return TensorFile(file)
            except OSError as error:
                log.say("this rank reads the point for itself: %s" % error)
                with self._landing(expected) as out:
                    read(out)
                    return TensorFile(out)
        out = self._landing(expected)
        self._lent.append(out)
        try:
            read(out)
            landing.seal(out)
        except Exception as error:
            self.meeting.say(key, json.dumps({"error": str(error)[:4000] or repr(error)}))
            raise
        self.meeting.say(key, json.dumps(landing.told(out)))
        return TensorFile(out)

    def guarded(self, function, *args):
        """None, or the RestoreError that came of it."""
        try:
            function(*args)
            return None
        except RestoreError as error:
            return error
        except Damaged as error:
            return RestoreError("POINT_DAMAGED", str(error))
        except (PointUnreadable, NoSuchJob) as error:
            return RestoreError("POINT_UNREADABLE", str(error))
        except SourceError as error:
            return RestoreError("SOURCE_UNREACHABLE", str(error))
        except RendezvousError:
            raise
        except Exception as error:
            return RestoreError("INTERNAL", repr(error))

    def agree(self, tag, error):
        """Every rank says how it went; rank 0 says what follows from it. Returns one error, as (rank, name, text)."""
        try:
            return self._agree(tag, None if error is None else [self.meeting.rank, error.name, str(error)])
        finally:
            while self._lent:
                self._lent.pop().close()

    def _agree(self, tag, mine):
        if self.meeting.rank != 0:
            self.meeting.say("outcome/%s/%d" % (tag, self.meeting.rank), json.dumps(mine))
            return json.loads(self.meeting.hear("verdict/%s" % tag, "rank 0"))
        verdict = mine
        for rank in range(1, self.meeting.world):
            try:
                theirs = json.loads(self.meeting.hear("outcome/%s/%d" % (tag, rank), "rank %d" % rank))
            except RendezvousError as late:
                theirs = [rank, "TIMEOUT", str(late)]
            # Something that no other point can cure weighs more than damage.
            if theirs is not None and (verdict is None or (verdict[1] in PASS_OVER and theirs[1] not in PASS_OVER)):
                verdict = theirs
        self.meeting.say("verdict/%s" % tag, json.dumps(verdict))
        return verdict

    def finish(self):
        """All ranks hold the same point: put it into the model, and agree that this went well everywhere."""
        with self.timed("set"):
            error = self.guarded(self.restored.apply)
        self.restored.seconds = self.seconds
        verdict = self.agree("applied", error)
        if verdict is not None:
            raise _told(verdict, self.meeting.rank, error)
        return self.restored


def _lead(attempt, step, lineage, or_fresh):
    try:
        with attempt.timed("list"):
            candidates, passed = choose(_listing(attempt), step, lineage)
        found_any = bool(candidates or passed)
        if not found_any and not or_fresh:
            raise RestoreError("NO_POINT", "job %s has no recovery point in %s"
                               % (attempt.job, attempt.source().describe()), remedy="or_fresh=True begins at step 0")
        if not candidates and found_any:
            raise RestoreError("NO_VALID_POINT", "of job %s no recovery point can be used: %s"
                               % (attempt.job, _reasons(passed)), remedy="name a point by lineage and step")
    except RestoreError as error:
        attempt.meeting.say("offer/0", json.dumps({"fail": [0, error.name, str(error)]}))
        raise
    if not found_any:
        attempt.meeting.say("offer/0", json.dumps({"fresh": True}))
        log.say("job %s has no recovery point: a fresh start, as asked for" % attempt.job)
        return Restored.fresh_start()
    n, choices, gone = 0, 1, False
    while True:
        if not candidates:
            # Whoever trains on deletes old points; there are newer ones then.
            if not gone or choices >= MAX_CHOICES:
                break
            choices, gone = choices + 1, False
            candidates = _newly_listed(attempt, step, lineage, {(p[0], p[1]) for p in passed})
            continue
        point = candidates.pop(0)
        try:
            lease = attempt.hold(point[0], point[1])
        except PointGone as error:
            passed.append((point[0], point[1], "deleted before it could be held: %s" % error))
            candidates, gone = [], True
            continue
        try:
            attempt.meeting.say("offer/%d" % n, json.dumps({"point": point}))
            error = attempt.guarded(attempt.load, *point)
            verdict = attempt.agree(str(n), error)
        finally:
            lease.release()  # every rank has read, or said that it cannot
        n += 1
        if verdict is None:
            for why in passed:
                log.say("point of lineage %d, step %d passed over: %s" % tuple(why))
            restored = attempt.finish()
            restored.passed_over = passed
            log.say("job %s restored: lineage %d, step %d; %s" % (attempt.job, restored.lineage, restored.step, ", ".join(
                "%s %.1f s" % part for part in restored.seconds.items())))
            return restored
        if verdict[1] not in PASS_OVER or step is not None:
            attempt.meeting.say("offer/%d" % n, json.dumps({"fail": verdict}))
            raise _told(verdict, 0, error)
        passed.append((point[0], point[1], verdict[2]))
        gone = gone or verdict[1] == "POINT_UNREADABLE"
    failure = [0, "NO_VALID_POINT", str(RestoreError("NO_VALID_POINT", _reasons(passed)))]
    attempt.meeting.say("offer/%d" % n, json.dumps({"fail": failure}))
    raise RestoreError("NO_VALID_POINT", _reasons(passed))


def _newly_listed(attempt, step, lineage, tried):
    """The candidates of a fresh list that were not tried; none where it cannot be had."""
    try:
        candidates, _ = choose(_listing(attempt), step, lineage)
    except RestoreError:
        return []
    return [point for point in candidates if (point[0], point[1]) not in tried]


def _follow(attempt):
    n, error = 0, None
    while True:
        offer = json.loads(attempt.meeting.hear("offer/%d" % n, "rank 0"))
        if "fail" in offer:
            raise _told(offer["fail"], attempt.meeting.rank, error)
        if "fresh" in offer:
            return Restored.fresh_start()
        error = attempt.guarded(attempt.load, *offer["point"])
        verdict = attempt.agree(str(n), error)
        if verdict is None:
            return attempt.finish()
        n += 1


def _told(verdict, rank, own):
    """The error that this rank raises: its own, or what another one met."""
    if own is not None:
        return own
    where, name, text = verdict
    return RestoreError("RANK_FAILED" if where != rank else name, "rank %d: %s" % (where, text))


def _reasons(passed):
    return "; ".join("lineage %d, step %d: %s" % tuple(p) for p in passed[:20])


def _listing(attempt):
    try:
        return attempt.source().points(attempt.job, attempt.meeting.tick)
    except NoSuchJob as error:  # another job's node, or a slip in the name: no reason to begin at step 0
        raise RestoreError("JOB_UNKNOWN", str(error), remedy="check job and source") from None
    except (PointUnreadable, SourceError) as error:  # an error is not an empty list
        raise RestoreError("SOURCE_UNREACHABLE", str(error)) from None


def choose(listing, step=None, lineage=None):
    """([(lineage, step, record digest)] to try, newest first; [(lineage, step, reason)] passed over).

    Unasked, the order is the source's: the newest lineage, then its parent up to the step of the fork, and so on."""
    known, candidates, passed = [], [], []
    for p in listing["points"]:
        try:
            known.append((int(p["lineage"]), int(p["step"]), p))
        except (KeyError, TypeError, ValueError):
            passed.append((0, 0, "an entry of the list without lineage and step"))
    known.sort(key=lambda k: (-k[0], -k[1]))
    allowed = _restorable(listing)
    for at_lineage, at_step, p in known:
        if (step is not None and at_step != step) or (lineage is not None and at_lineage != lineage):
            continue
        if not p.get("valid", True):
            passed.append((at_lineage, at_step, str(p.get("reason") or "not valid")))
        elif lineage is None and ((at_lineage, at_step) not in allowed if allowed is not None
                                  else p.get("superseded")):
            passed.append((at_lineage, at_step, "beyond the step where a newer lineage took over"))
        else:
            candidates.append((at_lineage, at_step, p.get("record_digest")))
    passed = _unlisted(listing, {k[:2] for k in known}, step, lineage) + passed
    if known and not candidates and not passed:
        raise RestoreError("NO_POINT", "there is no point of %s%s" % (
            "step %d" % step if step is not None else "lineage %d" % lineage,
            ", lineage %d" % lineage if step is not None and lineage is not None else ""))
    return candidates, passed


def _unlisted(listing, known, step, lineage):
    """Steps that the source knows of and has no point of (a lost record, a publish that did not end), with its reasons."""
    found = []
    for e in listing.get("passed_over") or []:
        if not isinstance(e, dict) or type(e.get("lineage")) is not int or type(e.get("step")) is not int:
            continue
        if (e["lineage"], e["step"]) in known or step not in (None, e["step"]) or lineage not in (None, e["lineage"]):
            continue
        found.append((e["lineage"], e["step"], str(e.get("reason") or "no reason given")))
    return found


def _restorable(listing):
    """What the source says may be taken unasked, as a set; None if it does not say."""
    entries = listing.get("restorable")
    if not isinstance(entries, list):
        return None
    return {(e.get("lineage"), e.get("step")) for e in entries if isinstance(e, dict)}


def check_record(record, lineage, step, record_digest):
    """The fields that the restore stands on, or RestoreError."""
    for key, kind in (("lineage", int), ("step", int), ("root", str), ("world", int)):
        if type(record.get(key)) is not kind:
            raise RestoreError("POINT_DAMAGED", "the record has no readable %s" % key)
    if (record["lineage"], record["step"]) != (lineage, step):
        raise RestoreError("POINT_DAMAGED", "the record is of another point", expected="lineage %d, step %d"
                           % (lineage, step), actual="lineage %d, step %d" % (record["lineage"], record["step"]))
    if record_digest is not None and record.get("record_digest") not in (None, record_digest):
        raise RestoreError("DIGEST_MISMATCH", "the record is not the one that was listed", expected=record_digest,
                           actual=record.get("record_digest"))
    shard_digests(record)
    body = record.get("layout")
    if isinstance(body, dict) and isinstance(body.get("body"), dict):
        body = body["body"]
    if isinstance(body, str) and body:
        body = codec_json(body.encode("utf-8"))
    if body:
        actual = bits.sha256_hex(bits.canonical_json(body))
        if record.get("layout_id") not in (None, actual):
            raise RestoreError("DIGEST_MISMATCH", "the layout in the record is not the one it names",
                               expected=record["layout_id"], actual=actual)
        record["layout"], record["layout_id"] = body, actual
    elif step > 0:
        raise RestoreError("POINT_DAMAGED", "the record does not hold the bucket layout of the next step")
    else:
        record["layout"] = record["layout_id"] = None
    return record


def _is_parallel(model):
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(model, DistributedDataParallel)


class Restored:
    """step, lineage: where training goes on. extra: what the point holds for every name of extra. passed_over (rank 0):
    newer points that were not used, and why. fresh: there was no point, training begins at step 0."""

    def __init__(self, record, record_digest, model, state, side, file):
        self.record, self.record_digest = record, record_digest
        self.step, self.lineage = (record["step"], record["lineage"]) if record else (0, 0)
        self.fresh = record is None
        self.passed_over = []
        self.seconds = {}  # list (rank 0), read, check, set
        self.started = False
        self.warmups = 0  # synchronised backwards that DistributedDataParallel has seen before the first step
        self.ddp = None
        self._model, self._state, self._side, self._file = model, state, side, file

    @classmethod
    def fresh_start(cls):
        return cls(None, None, None, None, None, None)

    @property
    def extra(self):
        return self._side.extra if self._side is not None else {}

    def changed_since(self, model):
        """Reads the whole state once: a sentence if it is not that of the point any more, or None."""
        found = first_difference(shard_digests(self.record), model, live_value(model))
        return None if found is None else (
            "parameters or optimizer state are not those of the restored point (shard %d): something changed them "
            "between start and attach" % found[0])

    def describe(self):
        """resume_from of attach."""
        return {"lineage": self.lineage, "step": self.step, "record_digest": self.record_digest}

    def apply(self):
        self._state.apply()
        self._side.put_back()

    def start(self, ddp, warmup=None):
        """Call on every rank right before the first step. warmup(): one forward and backward on any batch, without an
        optimizer step; called as often as DistributedDataParallel needs to change into the layout of the point."""
        if self.started:
            raise RestoreError("ALREADY_STARTED", "start was called before")
        if not self.fresh:
            self._bring_into_layout(ddp, warmup)
            self._side.set_gradients()
            self.apply()
            self._side.set_generators()
            self._file.close()
            self._state = self._file = None
        self.ddp, self.started = ddp, True
        return self

    def _bring_into_layout(self, ddp, warmup):
        parameters = Model(ddp.module, self._model.optimizer).parameters
        if [id(q.tensor) for q in parameters] != [id(q.tensor) for q in self._model.parameters]:
            raise RestoreError("STATE_MISMATCH", "start was given another model than restore")
        wanted = self.record["layout_id"]
        if self.step > 0:
            self._warm_up(ddp, parameters, warmup, wanted)
        found = layout.in_force(ddp, parameters)
        if wanted is not None and (found is None or found.id != wanted):
            raise RestoreError("LAYOUT_MISMATCH", "the ranks would sum in another order than the job did: bucket sizes"
                               " differ or hold other parameters", expected=_sizes(self.record["layout"]),
                               actual=found.byte_sizes() if found else "none that can be read",
                               remedy="same bucket_cap_mb, same torch, and a warmup that runs the model as a step does")

    def _warm_up(self, ddp, parameters, warmup, wanted):
        rebuilds = layout.synced_before_rebuild(ddp)
        if ddp._has_rebuilt_buckets:
            return
        if rebuilds == float("inf"):
            # No other layout will come. But gradients that lie inside the buckets are divided, not multiplied.
            if ddp.gradient_as_bucket_view and self._side.had_gradients() and warmup is not None:
                self._warm(warmup)
            return
        if warmup is None:
            raise RestoreError("WARMUP_NEEDED", "step %d used another bucket layout than a first step"
                               % (self.step + 1), remedy="pass a function that does one forward and one backward to start")
        first = layout.initial(ddp, parameters)
        if rebuilds == 2 and self.step == 1 and first is not None and first.id == wanted:
            self._warm(warmup)  # a static graph is rebuilt one step later
            return
        for _ in range(MAX_WARMUPS):
            self._warm(warmup)
            if ddp._has_rebuilt_buckets:
                return
        raise RestoreError("WARMUP_NEEDED", "DistributedDataParallel kept its first layout through %d warm-ups"
                           % MAX_WARMUPS, remedy="warmup must call the DistributedDataParallel module and backward, outside no_sync")

    def _warm(self, warmup):
        warmup()
        self.warmups += 1


def _sizes(body):
    try:
        return [4 * sum(n for _, n in bucket) for bucket in body["buckets"]]
    except (KeyError, TypeError, ValueError):
        return body
