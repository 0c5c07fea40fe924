"""Where recovery points are read: the gateways of a cluster over HTTP, or a directory through the program `gradtap`.

Everything that comes back is hostile until checked: sizes are bounded, and the caller checks digests.
"""

import http.client
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
import urllib.parse

from . import landing
from .lease import GatewayLease, ProgramLease
from .link import ELSEWHERE, error_text, parse_endpoint, split_endpoints

MAX_JSON = 64 << 20
PIECE = 1 << 20
MAX_THREADS = 8  # of the program, for one rank
ROUNDS = 3  # how often every gateway is asked before the source counts as unreachable


class SourceError(Exception):
    """The source cannot be read at all."""


class PointUnreadable(Exception):
    """The source answered, and this point (or this part of it) cannot be had."""


class NoSuchJob(Exception):
    """The source is in order and knows nothing of the job."""


def open_source(source, timeout_s, rank=0, signer=None, ranks_here=1):
    """source: endpoint(s), or a directory. ranks_here: how many read at the same time on this machine."""
    if isinstance(source, (str, os.PathLike)):
        text = os.fspath(source)
        if text.startswith("file://"):
            return DirectorySource(text[7:], timeout_s, ranks_here)
        if "://" not in text and (os.path.isdir(text) or text.startswith((".", "/", "~"))):
            return DirectorySource(os.path.expanduser(text), timeout_s, ranks_here)
    return HttpSource(split_endpoints(source), timeout_s, rank, signer)


def no_tick():
    pass


class HttpSource:
    def __init__(self, endpoints, timeout_s, rank=0, signer=None):
        self._signer = signer
        self._texts = list(endpoints)
        self._endpoints = [parse_endpoint(e) for e in endpoints]
        self._at = rank % len(self._endpoints)  # the ranks spread over the gateways
        self._timeout_s = timeout_s
        # Short answers come soon or not at all; the first byte of a state may take as long as its reconstruction.
        self._short_s = max(2.0, timeout_s / (2 * len(self._endpoints) + 1))

    def describe(self):
        return ", ".join("%s:%d" % e[1:3] for e in self._endpoints)

    def points(self, job, tick=no_tick):
        return _listing(self._json("/v1/jobs/%s/points" % _quoted(job), tick), self.describe())

    def record(self, job, lineage, step, tick=no_tick):
        return self._json("/v1/jobs/%s/points/%d/%d" % (_quoted(job), lineage, step), tick)

    def state(self, job, lineage, step, out, most, tick=no_tick):
        self._download("/v1/jobs/%s/points/%d/%d/state?optimizer=1" % (_quoted(job), lineage, step), out, most, tick)

    def side(self, job, lineage, step, rank, out, most, tick=no_tick):
        self._download("/v1/jobs/%s/points/%d/%d/side?rank=%d" % (_quoted(job), lineage, step, rank), out, most, tick)

    def lease(self, job, lineage, step, tick=no_tick):
        """Holds the point until release(). LeaseRefused, or PointGone."""
        order = self._texts[self._at:] + self._texts[:self._at]  # first the one that answered last
        return GatewayLease(order, job, lineage, step, self._short_s, tick, signer=self._signer)

    def _json(self, path, tick):
        def take(response):
            data = response.read(MAX_JSON + 1)
            if len(data) > MAX_JSON:
                raise PointUnreadable("%s: the answer is longer than %d bytes" % (path, MAX_JSON))
            try:
                answer = json.loads(data.decode("utf-8"))
            except ValueError:
                raise PointUnreadable("%s: the answer is not JSON" % path) from None
            if not isinstance(answer, dict):
                raise PointUnreadable("%s: the answer is not an object" % path)
            return answer

        return self._ask(path, take, tick, self._short_s)

    def _download(self, path, out, most, tick):
        """out: an open file without a buffer; what an earlier try left in it goes."""
        def take(response):
            out.seek(0)
            out.truncate()
            total, piece = 0, memoryview(bytearray(PIECE))
            while True:
                count = response.readinto(piece)
                if not count:
                    break
                total += count
                if total > most:
                    raise PointUnreadable("%s: more than the %d bytes that this model can have" % (path, most))
                _write(out, piece[:count])
                tick()
            if response.length:  # bytes that were announced and did not come
                raise http.client.IncompleteRead(b"", response.length)
            return total

        return self._ask(path, take, tick, self._timeout_s)

    def _ask(self, path, take, tick, timeout_s):
        """Asks one gateway after another until one gives a usable answer."""
        trouble, self._named = [], False
        for n in range(ROUNDS * len(self._endpoints)):
            if n and n % len(self._endpoints) == 0:
                _wait(0.3 * 2 ** (n // len(self._endpoints)), tick)
            tick()
            scheme, host, port = self._endpoints[self._at]
            make = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
            connection = make(host, port, timeout=self._short_s)
            try:
                connection.connect()
                connection.sock.settimeout(timeout_s)
                connection.request("GET", path, headers=self._signer.headers("GET", path) if self._signer else {})
                response = connection.getresponse()
                if response.status == 200:
                    return take(response)
                self._refusal(path, response, trouble)
            except (OSError, http.client.HTTPException, ValueError) as error:
                trouble.append("%s:%d: %r" % (host, port, error))
            finally:
                connection.close()
            self._at = (self._at + 1) % len(self._endpoints)
        kind = PointUnreadable if self._named else SourceError
        raise kind("GET %s: %s" % (path, "; ".join(trouble[-2 * len(self._endpoints):])))

    def _refusal(self, path, response, trouble):
        """Raises, or notes why another gateway is worth asking."""
        data = response.read(1 << 16)
        try:
            answer = json.loads(data.decode("utf-8"))
            answer = answer if isinstance(answer, dict) else {}
        except ValueError:
            answer = {}
        text = "status %d: %s" % (response.status, error_text(answer))
        error = answer.get("error")
        name = error.get("name") if isinstance(error, dict) else None
        if response.status == 404 and name == "JOB_UNKNOWN":
            raise NoSuchJob(text)
        self._named |= bool(name) and response.status not in ELSEWHERE + (429,)
        if response.status >= 500 or response.status == 429 or not name:
            trouble.append("%s:%d: %s" % (self._endpoints[self._at][1:3] + (text,)))
            return
        raise PointUnreadable("GET %s: %s" % (path, text))


def _wait(seconds, tick):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        tick()
        time.sleep(0.1)


def _quoted(job):
    return urllib.parse.quote(job, safe="")


class DirectorySource:
    """Runs the program: it knows the formats on disk and checks every digest that it reads."""

    def __init__(self, folder, timeout_s, ranks_here=1):
        self._folder, self._timeout_s = folder, timeout_s
        self._ranks_here = ranks_here
        self._program = os.environ.get("GRADTAP_BIN") or shutil.which("gradtap")
        if not self._program:
            raise SourceError("a directory is read through the program gradtap: put it on PATH, or its path in "
                              "GRADTAP_BIN")
        if not os.path.isdir(folder):
            raise SourceError("%s is not a directory" % folder)

    def describe(self):
        return self._folder

    def points(self, job, tick=no_tick):
        # Exit code 1 means that no point can be restored; the list says why, or is empty.
        return _listing(self._json(["points", "list", "--job", job], tick, answers=(0, 1)), "gradtap points list")

    def record(self, job, lineage, step, tick=no_tick):
        return self._json(["points", "show", "--job", job] + _at(lineage, step), tick)

    def state(self, job, lineage, step, out, most, tick=no_tick):
        # What the program keeps is copied into `out`: a share of what is free now, should every rank of this machine read.
        memory_mb = landing.free_bytes() // (landing.SHARE * self._ranks_here) >> 20
        threads = len(os.sched_getaffinity(0))  # they do not: one does (restore.py)
        self._run(["export", "--job", job] + _at(lineage, step) +
                  ["--out", "/dev/fd/%d" % out.fileno(), "--format", "safetensors", "--optimizer", "--memory-mb",
                   str(max(1, memory_mb)), "--threads", str(max(1, min(threads, MAX_THREADS)))], tick, out, most)

    def side(self, job, lineage, step, rank, out, most, tick=no_tick):
        self._run(["points", "side", "--job", job] + _at(lineage, step) +
                  ["--rank", str(rank), "--out", "/dev/fd/%d" % out.fileno()], tick, out, most)

    def lease(self, job, lineage, step, tick=no_tick):
        return ProgramLease([self._program, "points", "hold", "--job", job] + _at(lineage, step) +
                            ["--source", self._folder], self._timeout_s, tick)

    def _json(self, arguments, tick, answers=(0,)):
        text = self._run(arguments + ["--json"], tick, answers=answers)
        try:
            answer = json.loads(text)
        except ValueError:
            raise PointUnreadable("gradtap %s did not print JSON" % " ".join(arguments)) from None
        if not isinstance(answer, dict):
            raise PointUnreadable("gradtap %s did not print an object" % " ".join(arguments))
        return answer

    def _run(self, arguments, tick, into=None, most=0, answers=(0,)):
        """The output of the program, if it ends with one of `answers` and prints something. Ends it when neither its
        file `into` nor its output grows and it reads nothing for the time limit, or when the file outgrows `most`."""
        command = [self._program] + arguments + ["--source", self._folder]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                         pass_fds=() if into is None else (into.fileno(),))
            except OSError as error:
                raise SourceError("%s cannot be run: %s" % (self._program, error)) from None
            seen, since, ended = None, time.monotonic(), _End(child)
            try:
                while child.poll() is None:
                    size = 0 if into is None else _size(into)
                    if into is not None and size > most:
                        break
                    progress = (_size(out), size, _bytes_read(child.pid))
                    tick()
                    if progress != seen:
                        seen, since = progress, time.monotonic()
                    elif time.monotonic() - since > self._timeout_s:
                        raise SourceError("gradtap %s: no progress for %.0f s" % (" ".join(arguments), self._timeout_s))
                    ended.wait(0.02)
            finally:
                ended.close()
                if child.poll() is None:
                    child.kill()
                    child.wait()
            text, trouble = _read(out, MAX_JSON), _read(err, 4000).decode("utf-8", "replace").strip()
        if into is not None and _size(into) > most:
            raise PointUnreadable("gradtap %s: more than the %d bytes that this model can have"
                                  % (" ".join(arguments), most))
        if child.returncode not in answers or (child.returncode != 0 and not text.strip()):
            if "JOB_UNKNOWN" in trouble:
                raise NoSuchJob(trouble)
            raise PointUnreadable("gradtap %s ended with %d: %s" % (" ".join(arguments), child.returncode,
                                                                    trouble or "no reason given"))
        return text.decode("utf-8", "replace")


class _End:
    """Waits for the end of a child without polling it, where the kernel can."""

    def __init__(self, child):
        self._fd = None
        try:
            self._fd = os.pidfd_open(child.pid)
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)
        except (AttributeError, OSError):
            pass

    def wait(self, seconds):
        if self._fd is None:
            time.sleep(seconds)
        else:
            self._poll.poll(1000 * seconds)

    def close(self):
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _write(out, piece):
    while piece:
        piece = piece[out.write(piece):]


def _listing(answer, whose):
    """{"points": [object...], ...}"""
    points = answer.get("points")
    if not isinstance(points, list) or not all(isinstance(p, dict) for p in points):
        raise SourceError("%s: the answer has no list of points" % whose)
    return answer


def _at(lineage, step):
    return ["--lineage", str(lineage), "--step", str(step)]


def _size(file):
    return os.fstat(file.fileno()).st_size


def _bytes_read(pid):
    """By a process, since it began: of large objects, whose first byte of output comes late."""
    try:
        with open("/proc/%d/io" % pid) as f:
            return f.readline()
    except OSError:
        return ""


def _read(file, most):
    file.seek(0)
    return file.read(most)
