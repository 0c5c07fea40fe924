#!/usr/bin/python3
"""A node's gateway under attack while a job trains: requests without a key, with a wrong one, with that of another job,
changed on their way, replayed, too large, cut short, slow and half open, and a thousand bad ones a second. Each is
refused by name and counted; nothing is read, nothing is changed; lag stays within two steps, and the end equals the
trainer's, bit for bit.

    gateway_attack.py [short|long]
"""
import contextlib
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import time

import harness
import rig
from cluster import Cluster, small
from harness import require
from hostile_gateway import Gateway

PORT, PROXY_PORT = 7700, 7701
STEPS = {"short": 48, "long": 400}
FLOOD_SECONDS = {"short": 3.0, "long": 20.0}
BAD_A_SECOND = 1000
IDLE = {"short": 200, "long": 2000}
SLEEP = 0.15
LAG_AT_MOST = 2
EMPTY = hashlib.sha256(b"").hexdigest()
NO, WRONG = (401, "UNAUTHORIZED"), (403, "FORBIDDEN")


class Key:
    """A secret file as this test reads it, and signatures by Python's own hmac."""

    def __init__(self, path):
        with open(path) as f:
            _, self.id, digits = f.read().split()
        self.bytes = bytes.fromhex(digits)

    def headers(self, method, target, body=b"", session="", seq="", key_id=None):
        digest = hashlib.sha256(body).hexdigest()
        text = "\n".join((method, target, session, seq, digest))
        found = {"X-Gradtap-Content-SHA256": digest, "Authorization": "GT1 %s:%s" % (
            key_id or self.id, hmac.new(self.bytes, text.encode(), hashlib.sha256).hexdigest())}
        if session:
            found["X-Gradtap-Session"] = session
        if seq:
            found["X-Gradtap-Seq"] = seq
        return found


def head(method, target, headers, length=None):
    lines = ["%s %s HTTP/1.1" % (method, target), "Host: x"] + ["%s: %s" % h for h in headers.items()]
    if length is not None:
        lines.append("Content-Length: %d" % length)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Attacker:
    """Speaks plain sockets from the namespace of rank 1, whose address is a trainer's too."""

    def __init__(self, r):
        self.rig = r

    def connect(self, seconds=10):
        found = self.rig.socket(self.rig.rank(1))
        found.settimeout(seconds)
        found.connect((rig.NODE_ADDRESS, PORT))
        return found

    def say(self, data, seconds=10):
        """(status, JSON object or text) of one answer; (0, "") when the node closed without one."""
        with self.connect(seconds) as s:
            with contextlib.suppress(OSError):
                s.sendall(data)
            return answer_of(s)

    def ask(self, method, target, headers=None, body=b""):
        return self.say(head(method, target, dict(headers or {}, Connection="close"),
                             len(body) if body or method != "GET" else None) + body)


def answer_of(s):
    data = b""
    with contextlib.suppress(OSError):
        while b"\r\n\r\n" not in data:
            part = s.recv(65536)
            if not part:
                return 0, ""
            data += part
        top, _, body = data.partition(b"\r\n\r\n")
        length = next((int(l.split(b":")[1]) for l in top.split(b"\r\n") if l.lower().startswith(b"content-length")), None)
        while length is None or len(body) < length:
            part = s.recv(65536)
            if not part:
                break
            body += part
        text = body.decode(errors="replace")
        try:
            return int(top.split()[1]), json.loads(text)
        except ValueError:
            return int(top.split()[1]), text
    return 0, ""


def expect(answer, wanted, what):
    status, body = answer
    name = body.get("error", {}).get("name") if isinstance(body, dict) else None
    require((status, name) == wanted, "%s: answered %s %s instead of %s %s" % ((what, status, str(body)[:200]) + wanted))


def refused_by_name(attacker, folder, session):
    """Every wrong form at every path; returns how many."""
    right, other = Key(harness.secret_file(folder, "demo")), Key(harness.secret_file(folder, "other"))
    with open(harness.token_file(folder, "read")) as f:
        read = {"Authorization": "Bearer " + f.read().strip()}
    with open(harness.token_file(folder, "admin")) as f:
        admin = {"Authorization": "Bearer " + f.read().strip()}
    job, body, count = "/v1/jobs/demo", b'{"kind": "dropped", "seq": 1, "rank": 0, "steps": [1], "seqs": [1]}\n', 0

    def check(wanted, what, method, target, headers=None, data=b""):
        nonlocal count
        count += 1
        expect(attacker.ask(method, target, headers, data), wanted, "%s, %s %s" % (what, method, target))
    writes = [("POST", job + "/attach"), ("POST", job + "/messages"), ("POST", job + "/detach"),
              ("PUT", job + "/chunks/baseline/0"), ("PUT", job + "/blobs/" + EMPTY)]
    states = [("GET", job + "/state?step=1"), ("GET", job + "/points/1/1/state"), ("GET", job + "/points/1/1/side?rank=0"),
              ("POST", job + "/points/1/1/lease")]
    reads = [("GET", p) for p in ("/metrics", "/healthz", "/readyz", "/v1/status", "/v1/nodes", "/v1/epoch",
                                  "/v1/events?from=0", job + "/placement", job + "/version?shard=0&step=1",
                                  job + "/status", job + "/shards", job + "/points", job + "/points/1/1", job + "/digests", job + "/lineages")]
    commands = [("POST", "/v1/nodes"), ("DELETE", "/v1/nodes")]
    for method, target in writes + states + reads + commands:
        data = b"" if method == "GET" else body
        check(NO, "without a key", method, target, {"X-Gradtap-Session": session}, data)
        check(WRONG, "with a token that is none", method, target, {"Authorization": "Bearer " + "x" * 64}, data)
    for method, target in writes + states:
        data = b"" if method == "GET" else body
        check(WRONG, "with the key of another job", method, target, other.headers(method, target, data, session), data)
        check(WRONG, "with another key of the same name", method, target,
              other.headers(method, target, data, session, key_id="demo"), data)
        good = right.headers(method, target, data, session, "1")
        check(WRONG, "another session than was signed", method, target, dict(good, **{"X-Gradtap-Session": "0" * 32}),
              data)
        check(WRONG, "another place than was signed", method, target, right.headers(method, target + "x", data, session),
              data)
        check(NO, "half a signature", method, target, dict(good, Authorization=good["Authorization"][:-1]), data)
        check(WRONG, "with the read token", method, target, read, data)
        if data:
            check(WRONG, "another body than was signed", method, target, good, data[:-2] + b" \n")
    for method, target in writes:
        check(WRONG, "with the admin token", method, target, admin, body)
    for method, target in commands:
        check(WRONG, "with the read token", method, target, read, body)
        check(NO, "with the job's key", method, target, right.headers(method, target, body), body)
    for target in ("/v1/jobs/other/state?step=1", "/v1/jobs/other/points", "/v1/status"):
        check(WRONG, "with a key that opens another", "GET", target, right.headers("GET", target))
    check(NO, "through a proxy that says so", "GET", "/v1/status", {"X-Forwarded-For": "127.0.0.1"})
    # What is open says nothing of the job or the node.
    for target in ("/", "/v1", "/index.php", "/v1/jobs", "/v1/jobs/demo", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd"):
        said = json.dumps(attacker.ask("GET", target))
        require("demo" not in said.replace(target, "") and "tap0" not in said, "GET %s says %s" % (target, said[:300]))
        count += 1
    # And what opens does.
    for headers, target in ((read, "/v1/status"), (admin, "/v1/status"), (read, job + "/points"),
                            (right.headers("GET", job + "/points"), job + "/points")):
        status, answer = attacker.ask("GET", target, headers)
        require(status == 200, "GET %s with a right key or token: %s %s" % (target, status, str(answer)[:200]))
    return count


def too_large_and_cut_short(attacker, folder):
    right = Key(harness.secret_file(folder, "demo"))
    target = "/v1/jobs/demo/chunks/baseline/0"
    huge = 1 << 40
    expect(attacker.say(head("PUT", target, {}, huge)), NO, "a terabyte without a key")
    expect(attacker.say(head("PUT", target, right.headers("PUT", target), huge)), (413, "REQUEST_TOO_LARGE"),
           "a terabyte with a key")
    expect(attacker.say(head("PUT", target, right.headers("PUT", target), (16 << 20) + 1)), (413, "REQUEST_TOO_LARGE"),
           "a byte too much")
    expect(attacker.say(head("POST", target, {"Transfer-Encoding": "chunked"}) + b"FFFFFFFF\r\nabc"),
           (411, "REQUEST_MALFORMED"), "a body without a length")
    expect(attacker.ask("POST", target, {"Content-Encoding": "gzip"}, b"\x1f\x8b"), (415, "REQUEST_MALFORMED"),
           "a packed body")
    for text in (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 40000 + b"\r\n",
                 bytes(range(256)) * 40, b"GET\r\n\r\n", b"POST /v1/status HTTP/9.9\r\nContent-Length: -1\r\n\r\n"):
        status, _ = attacker.say(text)
        require(status == 0 or status >= 400, "%r... was answered with %d" % (text[:20], status))
    for _ in range(20):  # cut short: the head, the body
        for text in (head("PUT", target, {}, 100)[:-7], head("PUT", target, right.headers("PUT", target, b"a" * 100), 100)):
            attacker.connect().close()
            with attacker.connect() as s:
                s.sendall(text + b"aaa")


class Crowd:
    """Connections that say nothing, half a head, or half of a body that is signed; they stay open, a byte at a time."""

    def __init__(self, key, count):
        target = "/v1/jobs/demo/messages"
        beginnings = [b"", b"POST /v1/jobs/demo/messages HTT", head("POST", target, {}, 10),
                      head("POST", target, key.headers("POST", target, b"a" * 1000), 1000) + b"aaa"]
        self.sockets = []
        for i in range(count):
            with contextlib.suppress(OSError):
                self.sockets.append(socket.create_connection((rig.NODE_ADDRESS, PORT), 2))
                self.sockets[-1].sendall(beginnings[i % len(beginnings)])

    def drip(self):
        for s in self.sockets:
            with contextlib.suppress(OSError):
                s.send(b"a", socket.MSG_DONTWAIT)


def requests_in(heard):
    """The whole requests of recorded connections, as they were: [(method, target, bytes)]."""
    found = []
    for data in heard:
        data = bytes(data)
        while b"\r\n\r\n" in data:
            top, _, rest = data.partition(b"\r\n\r\n")
            length = next((int(l.split(b":")[1]) for l in top.split(b"\r\n") if l.lower().startswith(b"content-length")), 0)
            if len(rest) < length:
                break
            method, target = top.split(b"\r\n")[0].decode().split()[:2]
            found.append((method, target, top + b"\r\n\r\n" + rest[:length]))
            data = rest[length:]
    return found


def replay(attacker, requests, session=None):
    """Sends recorded requests again, twice, byte by byte; returns {what: statuses}."""
    statuses = {}
    for _, target, data in requests * 2:
        status, answer = attacker.say(data)
        what = target.split("/")[4]
        statuses.setdefault(what, set()).add(status)
        if what == "attach" and status == 200 and session and isinstance(answer, dict) and "session" in answer:
            require(answer["session"] in session, "a replayed attach opened a session of its own")
    return statuses


class Flood:
    """A crowd, and BAD_A_SECOND wrong requests a second, from a process of its own (flood() below)."""

    def __init__(self, r, folder, length):
        self._child = r.start(r.rank(1), harness.PYTHON, os.path.abspath(__file__), "flood", str(FLOOD_SECONDS[length]),
                              str(IDLE[length]), harness.secret_file(folder, "demo"), stdout=subprocess.PIPE, text=True)

    def running(self):
        return self._child.poll() is None

    def result(self):
        out, _ = self._child.communicate(timeout=30)
        require(self._child.returncode == 0, "the flood ended with %s" % self._child.returncode)
        return json.loads(out)


def flood(seconds, idle, secret):
    """Most requests on a connection that stays, a tenth of them on one of their own, with a body; prints what came."""
    bad = "GT1 demo:" + "0" * 64
    stays = head("GET", "/v1/jobs/demo/points/1/1/state", {"Authorization": bad})
    alone = head("POST", "/v1/jobs/demo/messages", {"Authorization": bad}, 64) + b"x" * 64
    crowd = Crowd(Key(secret), idle)
    sent = answered = wrong = 0
    kept, begun = None, time.monotonic()
    dripped = begun
    while time.monotonic() - begun < seconds:
        if sent > BAD_A_SECOND * (time.monotonic() - begun):
            time.sleep(0.002)
            continue
        if time.monotonic() - dripped > 0.2:
            crowd.drip()
            dripped = time.monotonic()
        try:
            kept = kept or socket.create_connection((rig.NODE_ADDRESS, PORT), 10)
            kept.sendall(stays * 18)
            sent += 18
            left = 18
            while left > 0:
                data = kept.recv(65536)
                if not data:
                    raise OSError("closed")
                lines = data.count(b"HTTP/1.1 ")
                left -= lines
                answered += data.count(b"HTTP/1.1 403")
                wrong += lines - data.count(b"HTTP/1.1 403")
        except OSError:  # it gave way to another
            kept = None
        for _ in range(2):
            sent += 1
            with contextlib.suppress(OSError), socket.create_connection((rig.NODE_ADDRESS, PORT), 10) as s:
                s.sendall(alone)
                status, _ = answer_of(s)
                answered += status == 403
                wrong += status not in (0, 403)
    print(json.dumps({"sent": sent, "answered": answered, "wrong": wrong, "rate": sent / (time.monotonic() - begun)}))


def session_of(requests):
    for _, target, data in requests:
        if target.endswith("/messages"):
            return next(l.split(b": ")[1].decode() for l in data.split(b"\r\n") if l.lower().startswith(b"x-gradtap-session"))
    raise harness.Failed("no message was recorded")


def too_many_messages(attacker, folder, requests, node):
    """With the right key: more messages than a post may have, and a number far beyond the last one."""
    right, session = Key(harness.secret_file(folder, "demo")), session_of(requests)
    body = next(data.split(b"\r\n\r\n", 1)[1] for _, target, data in requests if target.endswith("/messages"))
    line = body.split(b"\n")[0]
    far = dict(json.loads(line), seq=10 ** 6)
    target = "/v1/jobs/demo/messages"
    before = node.get("/v1/status")["actors"]["side_channel"]["refused_limit"]
    for name, body, seq in (("REQUEST_TOO_LARGE", b"\n".join([line] * 65), json.loads(line)["seq"]),
                            ("LIMIT_REACHED", json.dumps(far).encode(), 10 ** 6)):
        headers = right.headers("POST", target, body, session, str(seq))
        for _ in range(20):  # the session's own post may be on its way
            status, answer = attacker.ask("POST", target, headers, body)
            if status != 503:
                break
            time.sleep(0.05)
        require(status in (413, 422) and answer["error"]["name"] == name, "%d %s instead of %s" % (status, answer, name))
    after = node.get("/v1/status")["actors"]["side_channel"]["refused_limit"]
    require(after == before + 2, "two refusals moved refused_limit from %d to %d" % (before, after))


def gateway_counters(node):
    return node.get("/v1/status")["actors"]["gateway"]


def attack(length):
    name, begun, steps = "gateway-attack-" + length, time.monotonic(), STEPS[length]
    with harness.case_folder(name) as folder, rig.Rig(ranks=2) as r:
        cluster = Cluster(r, folder).start()
        node, attacker = cluster.nodes[0], Attacker(r)
        # An earlier run, whose every request is heard.
        heard = [[], []]
        proxies = [Gateway(r, rig.NODE_ADDRESS, PROXY_PORT + i, "pass", ("127.0.0.1", PORT), recorded=heard[i])
                   for i in range(2)]
        first = harness.Job(r, folder, small(3), attach="http://%s:%d" % (rig.NODE_ADDRESS, PROXY_PORT), name="first")
        first.start().wait(60)
        job = harness.Job(r, folder, small(steps, "--step-sleep", SLEEP),
                          attach="http://%s:%d" % (rig.NODE_ADDRESS, PROXY_PORT + 1)).start()
        lineage = lambda: (node.status() or {}).get("lineage")
        harness.wait_until("the second run", 60, lambda: lineage() == 2 and node.numbers()["verified"] >= 3)
        session = session_of(requests_in(heard[1]))
        wrong = refused_by_name(attacker, folder, session)
        too_large_and_cut_short(attacker, folder)
        too_many_messages(attacker, folder, requests_in(heard[1]), node)
        earlier = replay(attacker, requests_in(heard[0]))
        require(earlier["attach"] <= {409, 404, 503} and 409 in earlier["attach"] and earlier["messages"] == {409},
                "requests of an earlier run, replayed: %s" % earlier)
        recorded = requests_in(heard[1])
        sessions = {session} | {l.split(b": ")[1].decode() for _, _, data in recorded for l in data.split(b"\r\n")
                                if l.lower().startswith(b"x-gradtap-session")}
        again = replay(attacker, recorded, sessions)
        require(set().union(*again.values()) <= {200, 202, 503} and {"attach", "chunks", "messages"} <= set(again),
                "requests of this run, replayed: %s" % again)
        require(lineage() == 2, "a replay began another lineage")
        lags, at_flood = [], node.numbers()["verified"]
        attack = Flood(r, folder, length)
        while attack.running():
            numbers = node.numbers()
            if numbers:
                lags.append(numbers["training"] - numbers["verified"])
            time.sleep(0.05)
        bad = attack.result()
        require(job.running(), "the job ended before the attack: nothing was shown")
        require(node.numbers()["verified"] >= at_flood + 5, "next to nothing was verified during the attack")
        require(bad["wrong"] == 0, "bad requests were answered with something else than 403: %s" % bad)
        require(bad["answered"] >= 0.5 * bad["sent"], "bad requests were not answered: %s" % bad)
        require(len(lags) >= 10, "the node was asked %d times only" % len(lags))
        require(max(lags) <= LAG_AT_MOST, "lag reached %d steps under %.0f bad requests a second" % (max(lags), bad["rate"]))
        counters = gateway_counters(node)
        access = counters["access"]
        for what in ("signed", "refused_nothing", "refused_malformed", "refused_key", "refused_signature", "refused_token",
                     "refused_body"):
            require(access[what] > 0, "%s did not move: %s" % (what, access))
        require(access["refused_signature"] >= bad["answered"], "refusals are not counted: %s" % access)
        require(counters["dropped"] > 0, "no idle connection gave way: %s" % counters)
        told = [e for e in node.get("/v1/events?from=0")["events"] if e["text"] == "a request was refused"]
        seconds = time.monotonic() - begun
        require(0 < len(told) <= seconds + 1, "%d refusals were told in %.0f s" % (len(told), seconds))
        require(any("UNAUTHORIZED" in e["fields"]["reason"] for e in told), "no refusal is told by name: %s" % told[:2])
        job.wait(120, cluster.watch(job))
        cluster.wait_step("published", steps, 60)
        for proxy in proxies:
            proxy.close()
        harness.compare_roots(node, job, steps)
        harness.compare_export(node.export(steps), job.final(), steps)
        reads_are_logged(node, attacker, folder, steps)
        cluster.stop()
    print("passed  %-28s %d wrong requests by name, %d bad ones at %.0f a second, lag %d at most, %d connections gave way; "
          "%.1f s" % (name, wrong, bad["sent"], bad["rate"], max(lags), counters["dropped"], time.monotonic() - begun), flush=True)


def reads_are_logged(node, attacker, folder, step):
    """The export of before and one of a recovery point, each with who and how much; a refused one is none."""
    key = Key(harness.secret_file(folder, "demo"))
    target = "/v1/jobs/demo/points/2/%d/state" % step
    with attacker.connect() as s:
        s.sendall(head("GET", target, dict(key.headers("GET", target), Connection="close")))
        size = 0
        while part := s.recv(65536):
            size += len(part)
    with open(os.path.join(node.data, "access.log")) as f:
        records = [json.loads(line) for line in f]
    mine = [r for r in records if r["path"] == target]
    require(len(mine) == 1 and mine[0]["result"] == "whole" and mine[0]["caller"] == "%s key demo" % rig.rank_address(1)
            and 0 < mine[0]["bytes"] < size, "the read of a point is logged as %s" % mine)
    exports = [r for r in records if r["path"] == "/v1/jobs/demo/state"]
    require(len(exports) == 1 and exports[0]["caller"] == "127.0.0.1 admin token" and "step=%d" % step in
            exports[0]["query"], "the export is logged as %s" % exports)
    require(len(records) == 2, "other reads are logged: %s" % records)


if __name__ == "__main__":
    if sys.argv[1:2] == ["flood"]:
        sys.exit(flood(float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
    rig.enter_privileged()
    harness.programs_or_fail()
    words = sys.argv[1:] or ["short"]
    sys.exit(harness.run_cases([("gateway-attack-" + w, lambda w=w: attack(w)) for w in words]))
