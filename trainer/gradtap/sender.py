"""The one thread of a rank that talks to the node: attach, then messages until close. Nothing it meets reaches training."""

import json
import threading
import time
import urllib.parse

from .attaching import Attaching, Outcome
from .blobs import Blobs
from .link import ELSEWHERE, UNTRUSTED, LinkError, error_text, session_unknown
from .outbox import BATCH_LINES

BACKOFF_S = (0.2, 5.0)
SILENCE_S = 1.0
MAX_INTERNAL_ERRORS = 20
ATTACH_PATIENCE_S = 600.0  # ranks other than 0, in the background
UNKNOWN_S = 60.0  # how long every gateway may deny the session before the tap gives up


class Refused(Exception):
    """An answer that ends or changes the session."""

    def __init__(self, status, answer):
        super().__init__(status)
        self.status, self.answer = status, answer


class Sender:
    def __init__(self, link, outbox, job, rank, log, on_disable, blob_bytes=16 << 20, upload_s=10.0):
        self._link, self._outbox, self._job, self._rank = link, outbox, urllib.parse.quote(job, safe=""), rank
        self._log = log
        self._on_disable = on_disable
        self._upload_s = upload_s
        self.blobs = Blobs(outbox, self._put_blob, blob_bytes)
        self._attaching = None
        self._session = None
        self._attach_body = None
        self._unknown_since = None
        self._announced = False
        self._thread = None
        self._failures = 0
        self._stop_at = None
        self._abandoned = False
        self._farewell = None
        self._last_step = 0
        self._lines = BATCH_LINES  # fewer while the link is too slow for a full batch
        self._renew()
        self.rejected = 0
        self.internal_errors = 0
        self.outcome = None  # None while attaching, then "tracking" or the reason why not
        self.after_batch = None  # called between batches, for work that is cheaper here than in training

    def _renew(self):
        self._wake = threading.Event()
        self._settled = threading.Event()
        self._idle = threading.Event()

    # Training thread

    def start(self, body, chunks):
        self._attaching = Attaching(self._link, body["job"], body, chunks, lambda: self._abandoned,
                                    self._upload_s)
        self._thread = threading.Thread(target=self._main, name="gradtap-sender", daemon=True)
        self._thread.start()

    def await_outcome(self, quiet_s, on_progress):
        """Waits until attach has an outcome, or nothing has moved for quiet_s. Returns the outcome."""
        seen, since = self._attaching.progress, time.monotonic()
        while not self._settled.wait(0.02):
            now = time.monotonic()
            if self._attaching.progress != seen:
                seen, since = self._attaching.progress, now
                on_progress()
            elif now - since >= quiet_s:
                self._abandoned = True
                return "no progress for %.1f s (%s)" % (quiet_s, self._attaching.stage)
        return self.outcome

    def wake(self):
        self._wake.set()

    def close(self, flush_s, last_step):
        """Gives what is queued flush_s to leave, then detaches. Bounded."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        self._last_step = last_step
        self._stop_at = time.monotonic() + flush_s
        if self._session is None:
            self._abandoned = True
        self._wake.set()
        thread.join(flush_s + 0.5)
        self._abandoned = True

    def abandon(self, reason):
        """Stop soon; queued messages are void, the node is told why if it still listens. Any thread."""
        self._farewell = reason
        self._abandoned = True
        self._wake.set()

    def after_fork_in_child(self):
        self._thread = None
        self._abandoned = True
        self._link.abandon()
        self._renew()

    # Sender thread

    def _main(self):
        try:
            answer = self._attaching.run(BACKOFF_S, None if self._rank == 0 else ATTACH_PATIENCE_S)
            self._session = answer["session"]
            self._attach_body = json.dumps(self._attaching._body).encode("utf-8")
            self.outcome = "tracking"
        except Outcome as reason:
            self._end(str(reason))
            return
        except Exception as error:  # a bug here must not end training
            self._end("internal error: %r" % (error,))
            return
        finally:
            self._attaching._chunks = None
            self._attaching._body = None
            self._settled.set()
        while not self._abandoned:
            try:
                if not self._turn():
                    break
            except Exception as error:
                self.internal_errors += 1
                if self.internal_errors >= MAX_INTERNAL_ERRORS:
                    self._end("CLIENT_DISABLED after %d internal errors, last %r" % (self.internal_errors, error))
                    break
                self._log.say("internal error: %r" % (error,))
                self._sleep(BACKOFF_S[0])
        if self._farewell is not None and self._failures == 0 and self.outcome == "tracking":
            self._detach(self._farewell, 1.0)
        self._link.close()

    def _end(self, reason):
        self.outcome = reason
        self._link.close()
        if not self._abandoned:
            self._on_disable(reason)

    def _turn(self):
        """One batch, or one wait. False when the thread is done."""
        stopping = self._stop_at is not None
        if stopping and (time.monotonic() >= self._stop_at or self._failures >= 2 + len(self._link)
                         or not self._outbox.pending()):
            self._detach("close", max(0.2, min(1.0, self._stop_at - time.monotonic())))
            return False
        try:
            lines = self._outbox.batch(self._lines, declare=self._failures == 0, ready=self.blobs.ready)
        except LinkError as error:
            self._failed(str(error))
            return True
        except Refused as answer:
            self._refused(answer.status, answer.answer)
            return True
        for source, attribute in ((self._outbox, "unspoken"), (self.blobs, "trouble")):
            if getattr(source, attribute):
                self._log.say(getattr(source, attribute))
                setattr(source, attribute, None)
        if not lines:
            if self.after_batch is not None:
                self.after_batch()
            if not self._wake.wait(0.1 if stopping else SILENCE_S):
                lines = self._outbox.last_unsure()
            self._wake.clear()
            if not lines:
                return True
        self._send(lines)
        return True

    def _send(self, lines):
        before = self._outbox.received
        try:
            status, answer = self._post(lines)
        except LinkError as error:
            self._failed(str(error))
            return
        if status in (200, 202):
            received, durable = answer.get("received_seq"), answer.get("durable_seq")
            if not isinstance(received, int) or not isinstance(durable, int):
                self._failed("the answer to messages lacks received_seq or durable_seq")
                return
            self._failures = 0
            self._unknown_since, self._announced = None, False
            self._lines = min(2 * self._lines, BATCH_LINES)
            self._outbox.acknowledge(received, durable)
            if self._outbox.received < before:
                self.blobs.renew()  # the node lost what it had received, and with it maybe what was uploaded
            if "gateways" in answer:
                self._link.learn(answer["gateways"])
            self._serve(answer.get("requests"))
            if self._outbox.received <= before and lines[-1][0] > before:
                self._sleep(SILENCE_S)  # the node took nothing: resend after a silence, not at once
        elif status in (400, 413, 422):
            self._rejected(lines, status, answer)
        else:
            self._refused(status, answer)

    def _refused(self, status, answer):
        if session_unknown(status, answer):
            self._lost_session(error_text(answer))
        elif status == 409:
            self._abandoned = True
            self.outcome = "superseded"
            self._on_disable("the node answered 409: " + error_text(answer))
        else:
            self._failed("status %d: %s" % (status, error_text(answer)), fail_over=status in ELSEWHERE + UNTRUSTED)

    def _lost_session(self, why):
        """No gateway is believed at once: the session is announced anew, and the others are asked."""
        now = time.monotonic()
        self._unknown_since = now if self._unknown_since is None else self._unknown_since
        if now - self._unknown_since > UNKNOWN_S:
            self._abandoned = True
            self.outcome = "unknown"
            self._on_disable("no gateway knows this session any more: " + why)
            return
        self._announced = not self._announced and self._announce_again()
        if self._announced:
            self._outbox.rewind(0)
            self.blobs.renew()
        else:
            self._failed("the session is unknown: " + why)

    def _announce_again(self):
        """Same run nonce, same rank: whoever knows the lineage gives the session back."""
        try:
            status, answer = self._link.call("POST", "/v1/jobs/%s/attach" % self._job, self._attach_body,
                                             {"Content-Type": "application/json"})
        except LinkError:
            return False
        if status != 200 or not isinstance(answer.get("session"), str):
            return False
        # A node that wants the baseline again cannot have it: the state has moved on.
        if self._rank == 0 and answer.get("state") not in (None, "tracking"):
            return False
        self._session = answer["session"]
        return True

    def _put_blob(self, digest, data):
        status, answer = self._link.call(
            "PUT", "/v1/jobs/%s/blobs/%s" % (self._job, digest), data,
            {"X-Gradtap-Session": self._session, "Content-Type": "application/octet-stream"},
            timeout_s=self._upload_s)
        if status in (200, 201, 202):
            return True
        if status in (400, 404, 405, 413, 422) and not session_unknown(status, answer):
            return False
        raise Refused(status, answer)

    def _post(self, lines):
        return self._link.call("POST", "/v1/jobs/%s/messages" % self._job, b"".join(line for _, line in lines),
                               {"X-Gradtap-Session": self._session, "X-Gradtap-Seq": str(lines[0][0]),
                                "Content-Type": "application/x-ndjson"})

    def _rejected(self, lines, status, answer):
        """A batch with a message that the node will not take: one by one, to lose only that one."""
        if len(lines) == 1:
            self.rejected += 1
            self._outbox.reject(lines[0][0])
            self._log.say("message %d refused with %d: %s" % (lines[0][0], status, error_text(answer)))
            return
        for line in lines:
            if self._abandoned or line[0] <= self._outbox.received:
                continue
            failures, rejected = self._failures, self.rejected
            self._send([line])
            if self._failures > failures or self.rejected > rejected:
                return  # the gap is declared first, the rest follows

    def _serve(self, requests):
        for request in requests if isinstance(requests, list) else []:
            if not isinstance(request, dict):
                continue
            if request.get("kind") == "resend" and isinstance(request.get("from_seq"), int):
                self._outbox.rewind(request["from_seq"])
                self.blobs.renew()
            elif request.get("kind") == "layout":
                self._resend_layout(request)
            elif request.get("id") is not None:
                self._reply(request["id"], "kind %s is not supported" % (request.get("kind"),))

    def _resend_layout(self, request):
        body = self.layout_body(request.get("layout_id"))
        if body is None:
            self._reply(request.get("id"), "unknown layout")
            return
        self._outbox.append("layout", None, lambda seq: {
            "kind": "layout", "seq": seq, "rank": self._rank, "layout": body}, 256)

    def layout_body(self, layout_id):
        return None  # the tap puts its table here

    def _reply(self, request_id, reason):
        self._outbox.append("reply", None, lambda seq: {
            "kind": "reply", "seq": seq, "rank": self._rank, "id": request_id, "refused": reason}, 256)

    def _failed(self, what, fail_over=True):
        self._failures += 1
        self._lines = max(2, self._lines // 2)
        self._log.say("no answer from the node, training goes on: " + what)
        gateways = len(self._link)
        if fail_over:
            self._link.fail_over()
            self.blobs.renew()
            if self._failures % gateways:
                return  # the others are asked at once
        self._sleep(min(BACKOFF_S[0] * 2 ** min((self._failures - 1) // gateways, 6), BACKOFF_S[1]))

    def _sleep(self, seconds):
        end = time.monotonic() + seconds
        while not self._abandoned:
            left = end - time.monotonic()
            if self._stop_at is not None:
                left = min(left, self._stop_at - time.monotonic())
            if left <= 0:
                return
            time.sleep(min(left, 0.1))

    def _detach(self, reason, timeout_s):
        try:
            self._link.call("POST", "/v1/jobs/%s/detach" % self._job,
                            json.dumps({"reason": reason, "last_step": self._last_step}).encode("utf-8"),
                            {"X-Gradtap-Session": self._session}, timeout_s=timeout_s)
        except LinkError:
            pass
