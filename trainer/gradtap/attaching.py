"""The handshake of attach, run in the sender thread: announce, upload what is wanted, wait for the verdict.

Rank 0 waits for the outcome in the training thread, bounded by time without progress; other ranks do not wait.
"""

import json
import time
import urllib.parse

from .link import ELSEWHERE, LATER, UNTRUSTED, LinkError, error_text, session_unknown

POLL_S = (0.02, 0.25)
RESTARTS = 16


class Outcome(Exception):
    """Attach ended without a session that can be used."""


class Restart(Exception):
    """The session is gone: the handshake begins again, on another gateway, with the same run nonce."""


class Attaching:
    def __init__(self, link, job, body, chunks, stopped, upload_s=10.0):
        """chunks: {want kind: callable giving a list of callables, one a chunk body}; stopped(): give up now?"""
        self._link = link
        self._job = urllib.parse.quote(job, safe="")
        self._body = body
        self._chunks = chunks
        self._stopped = stopped
        self._upload_s = upload_s
        self._refusals = 0  # in a row, by gateways
        self.progress = 0  # grows with every acknowledged piece of work
        self.stage = "reaching a gateway"

    def run(self, retry_s=(0.2, 5.0), patience_s=None):
        """Returns the answer to attach when the job is tracked. Raises Outcome with the reason otherwise."""
        begun = time.monotonic()
        for _ in range(RESTARTS):
            self._body["hosts"] = [self._address(retry_s, begun, patience_s)]
            encoded = json.dumps(self._body).encode("utf-8")
            answer = self._until_accepted(encoded, retry_s, begun, patience_s)
            try:
                if self._body["rank"] == 0:
                    self._upload(answer, retry_s)
                    self._await_tracking(answer)
                return answer
            except Restart as reason:
                self.stage = "attach begins again: %s" % reason
                self._another(retry_s[0], retry_s[1])
        raise Outcome("attach began %d times and was lost each time: %s" % (RESTARTS, self.stage))

    def _address(self, retry_s, begun, patience_s):
        wait = retry_s[0]
        while True:
            address = self._link.local_address()
            if address is not None:
                return address
            self._refusals += 1
            if self._refusals % len(self._link) == 0:
                wait = self._pause(wait, retry_s[1])
            self._patience(begun, patience_s)

    def _until_accepted(self, encoded, retry_s, begun, patience_s):
        path = "/v1/jobs/%s/attach" % self._job
        wait, untrusted = retry_s[0], 0
        while True:
            try:
                status, answer = self._link.call("POST", path, encoded, {"Content-Type": "application/json"})
            except LinkError as error:
                self.stage = str(error)
                wait = self._another(wait, retry_s[1])
                self._patience(begun, patience_s)
                continue
            if status == 200:
                if not isinstance(answer.get("session"), str):
                    raise Outcome("the answer to attach has no session")
                self.progress += 1
                self._refusals = 0
                return answer
            untrusted = untrusted + 1 if status in UNTRUSTED else 0
            if 0 < untrusted < len(self._link):  # another one may have the right secret
                self.stage = "attach answered %d: %s" % (status, error_text(answer))
                self._another(wait, retry_s[1])
                continue
            if status not in LATER and status != 404:
                raise Outcome("status %d: %s" % (status, error_text(answer)))
            self.stage = "attach answered %d: %s" % (status, error_text(answer))
            if status in ELSEWHERE:
                wait = self._another(wait, retry_s[1])
            else:
                wait = self._pause(wait, retry_s[1])
            self._patience(begun, patience_s)

    def _another(self, wait, most):
        """The next gateway: at once, until all have been asked in vain; then after a pause. Returns the next pause."""
        self._check()
        self._link.fail_over()
        self._refusals += 1
        return wait if self._refusals % len(self._link) else self._pause(wait, most)

    def _upload(self, answer, retry_s):
        wants = answer.get("wants")
        for want in wants if isinstance(wants, list) else []:
            make = self._chunks.get(want.get("kind")) if isinstance(want, dict) else None
            if make is None:
                continue
            pieces = make()
            for n, piece in enumerate(pieces):
                self.stage = "uploading %s, chunk %d of %d" % (want["id"], n + 1, len(pieces))
                self._put("/v1/jobs/%s/chunks/%s/%d" % (self._job, want["id"], n), piece(), answer, retry_s)

    def _put(self, path, body, answer, retry_s):
        wait = retry_s[0]
        headers = {"X-Gradtap-Session": answer["session"], "Content-Type": "application/octet-stream"}
        while True:
            self._check()
            try:
                status, reply = self._link.call("PUT", path, body, headers, timeout_s=self._upload_s)
            except LinkError as error:
                self.stage = str(error)
                wait = self._another(wait, retry_s[1])
                continue
            if status in (200, 202):
                self.progress += 1
                self._refusals = 0
                return
            if session_unknown(status, reply):
                raise Restart("%s answered %d: %s" % (path, status, error_text(reply)))
            if status not in LATER:
                raise Outcome("%s: status %d: %s" % (path, status, error_text(reply)))
            self.stage = "%s answered %d" % (path, status)
            wait = self._another(wait, retry_s[1]) if status in ELSEWHERE else self._pause(wait, retry_s[1])

    def _await_tracking(self, answer):
        path = "/v1/jobs/%s/attach/%s" % (self._job, answer["session"])
        wait, last = POLL_S[0], None
        self.stage = "waiting until the node has taken the baseline"
        while True:
            self._check()
            try:
                status, reply = self._link.call("GET", path)
            except LinkError as error:
                self.stage = str(error)
                wait = self._another(wait, 1.0)
                continue
            if session_unknown(status, reply):
                raise Restart("%s answered %d: %s" % (path, status, error_text(reply)))
            state = reply.get("state")
            if status == 200 and state == "tracking":
                self.progress += 1
                return
            if state == "refused" or (status >= 400 and status not in LATER):
                raise Outcome("refused by the node: " + error_text(reply))
            if status in ELSEWHERE:
                wait = self._another(wait, 1.0)
                continue
            self._refusals = 0
            if reply != last:
                last = reply
                self.progress += 1
            wait = self._pause(wait, POLL_S[1])

    def _pause(self, wait, most):
        end = time.monotonic() + wait
        while True:
            self._check()
            left = end - time.monotonic()
            if left <= 0:
                return min(2 * wait, most)
            time.sleep(min(left, 0.1))

    def _patience(self, begun, patience_s):
        if patience_s is not None and time.monotonic() - begun > patience_s:
            raise Outcome("no session after %.0f s (%s)" % (patience_s, self.stage))

    def _check(self):
        if self._stopped():
            raise Outcome("given up: " + self.stage)
