"""A restore holds the point it reads by a lease, so that whoever deletes old points spares it.

A lease helps and is never needed: where it cannot be had, or is lost, the restore goes on and one line says so. Every wait
is bounded; a lease whose holder is gone runs out by itself.
"""

import os
import re
import select
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse

from . import log
from .link import Link, LinkError, error_text

RENEW_S = 30.0
RENEW_LEAST_S, RENEW_MOST_S = 0.1, 300.0
CALL_S = 5.0  # of one request
ROUNDS = 2
END_S = 5.0  # how long the program may take to end
ID = re.compile(r"[0-9A-Za-z_-]{1,64}\Z")


class LeaseRefused(Exception):
    """There is no lease to be had here."""


class PointGone(Exception):
    """The point was deleted before it could be held."""


def holder():
    return "gradtap.restore on %s, process %d" % (socket.gethostname(), os.getpid())


class GatewayLease:
    """Taken from whichever gateway gives one, renewed by a thread, which takes another one where this one is lost."""

    def __init__(self, endpoints, job, lineage, step, timeout_s, tick, say=log.say, signer=None):
        self._path = "/v1/jobs/%s/points/%d/%d/lease" % (urllib.parse.quote(job, safe=""), lineage, step)
        self._link = Link(endpoints, min(timeout_s, CALL_S), signer)
        self._say, self._told = say, False
        self._stop = threading.Event()
        self._renew_s = RENEW_S
        self._id = None
        try:
            self._take(ROUNDS, tick)
        except BaseException:
            self._link.close()
            raise
        self._thread = threading.Thread(target=self._keep, name="gradtap-lease", daemon=True)
        self._thread.start()

    def _take(self, rounds, tick=lambda: None):
        trouble = []
        for n in range(rounds * len(self._link)):
            if n and n % len(self._link) == 0:
                self._pause(0.5, tick)
            tick()
            if self._stop.is_set():
                break
            where = self._link.endpoint()
            try:
                status, answer = self._link.call("POST", self._path, body=b'{"holder": %s}' % _json_text(holder()))
            except LinkError as error:
                trouble.append(str(error))
            else:
                if status == 200 and self._accept(answer):
                    return
                error = answer.get("error")
                if status == 404 and isinstance(error, dict) and error.get("name") == "POINT_NONE":
                    raise PointGone(error_text(answer))
                trouble.append("%s: status %d: %s" % (where, status, error_text(answer)))
                if status < 500 and status != 429:  # what it says of this request it would say again
                    break
            self._link.fail_over()
        raise LeaseRefused("; ".join(trouble[-len(self._link):]))

    def _pause(self, seconds, tick):
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stop.wait(0.1):
            tick()

    def _accept(self, answer):
        found, renew_s = answer.get("lease"), answer.get("renew_s")
        if not isinstance(found, str) or not ID.match(found):
            return False
        self._id = found
        if type(renew_s) in (int, float) and renew_s > 0:
            self._renew_s = max(RENEW_LEAST_S, min(renew_s, RENEW_MOST_S))
        return True

    def _keep(self):
        while not self._stop.wait(self._renew_s):
            try:
                try:
                    status, answer = self._link.call("POST", "%s/%s" % (self._path, self._id), body=b"")
                    if status == 200:
                        continue
                    if status != 404:
                        raise LeaseRefused("status %d: %s" % (status, error_text(answer)))
                except LinkError:
                    self._link.fail_over()
                self._take(1)  # the gateway is gone, or was started anew
            except Exception as error:
                if not self._stop.is_set():
                    self._tell("the lease of the point is not renewed: %s" % error)

    def _tell(self, text):
        if not self._told:
            self._told = True
            self._say(text)

    def release(self):
        self._stop.set()
        self._thread.join(2 * CALL_S)
        if self._thread.is_alive():
            self._tell("the lease of the point runs out by itself: its gateway does not answer")
            return
        try:
            status, answer = self._link.call("DELETE", "%s/%s" % (self._path, self._id), body=b"")
            if status not in (200, 404):
                self._tell("the lease of the point is not released: status %d: %s" % (status, error_text(answer)))
        except Exception as error:
            self._tell("the lease of the point is not released, it runs out by itself: %s" % error)
        finally:
            self._link.close()


def _json_text(text):
    return ('"%s"' % re.sub(r'[^ !#-\[\]-~]', "?", text)[:200]).encode("ascii")


class ProgramLease:
    """The program `gradtap points hold` keeps the lease for as long as its standard input is open; it renews by itself."""

    def __init__(self, command, timeout_s, tick, say=log.say):
        self._say = say
        self._trouble = tempfile.TemporaryFile()
        try:
            self._child = subprocess.Popen(command + ["--holder", holder()], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           stderr=self._trouble)
        except OSError as error:
            self._trouble.close()
            raise LeaseRefused("%s cannot be run: %s" % (command[0], error)) from None
        try:
            self._wait_until_held(timeout_s, tick)
        except BaseException:
            self._end(kill=True)
            self._trouble.close()
            raise

    def _wait_until_held(self, timeout_s, tick):
        end, line = time.monotonic() + timeout_s, b""
        out = self._child.stdout.fileno()
        ready = select.poll()
        ready.register(out, select.POLLIN)
        while not line.endswith(b"\n"):
            tick()
            if time.monotonic() > end or len(line) > 4096:
                raise LeaseRefused("gradtap points hold does not answer")
            if ready.poll(100):
                piece = os.read(out, 4096)
                if not piece:
                    break
                line += piece
        if line.startswith(b"held ") and line.endswith(b"\n"):
            return
        code = self._end()
        text = self._said()
        if code == 1 and "POINT_NONE" in text:
            raise PointGone(text)
        raise LeaseRefused("gradtap points hold ended with %s: %s" % (code, text or "no reason given"))

    def _said(self):
        self._trouble.seek(0)
        return self._trouble.read(4000).decode("utf-8", "replace").strip()

    def _end(self, kill=False):
        """Its exit code. A process forked meanwhile may keep its input open: a signal ends it as well."""
        for close in (self._child.stdin.close, self._child.stdout.close):
            try:
                close()
            except OSError:
                pass
        for stop in ([] if kill else [lambda: None, self._child.terminate]) + [self._child.kill]:
            stop()
            try:
                return self._child.wait(END_S)
            except subprocess.TimeoutExpired:
                pass
        return None  # it cannot be killed: it waits for its disk

    def release(self):
        try:
            code = self._end()
            text = self._said()
            if code != 0 or text:
                self._say("the lease of the point: gradtap points hold ended with %s%s" % (code, ": " + text if text else ""))
        finally:
            self._trouble.close()


class NoLease:
    def release(self):
        pass
