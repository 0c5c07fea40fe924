#!/usr/bin/python3
"""A node driven to its limits while a job trains: a tap with the smallest windows, a node with the least memory that holds
the job, a gateway with few places. Each limit is hit, its counter moves and `gradtap limits` shows it; what is taken
stays inside the ledger, the process inside what the ledger says; the job ends as one that nobody tapped. Part of
`make test`.
"""
import contextlib
import json
import socket
import sys
import time

import harness
import rig
from harness import require
from train_model import SmallGpt

STEPS = 24
WIDTH, LAYERS, BATCH = 128, 3, 32
# One bucket of some MB: more than the smallest op window.
MODEL = ["--width", WIDTH, "--layers", LAYERS, "--batch", 1, "--first-bucket-bytes", 16_000_000, "--bucket-mb", "25",
         "--steps", STEPS]
MI = 1 << 20


def rows(node):
    return {row["name"]: row for row in own(node)["limits"]}


def own(node):
    answer = node.get("/v1/limits")
    return next(n for n in answer["nodes"] if n["node"] == answer["node"])


class Watch:
    """Samples the ledger while a job runs."""

    def __init__(self, node, job):
        self.node, self.job, self.samples, self.gaps, self.resident = node, job, 0, set(), 0

    def __call__(self):
        require(self.node.alive(), "gradtapd ended: " + self.node.last_words())
        answer = self.node.get("/v1/status", quiet=True)
        if answer is None:
            return
        memory = answer["memory"]
        taken = sum(account["in_use_bytes"] for account in memory["accounts"].values())
        require(memory["peak_bytes"] <= memory["limit_bytes"], "the ledger was passed: %s" % memory)
        require(taken <= memory["limit_bytes"], "the accounts pass the ledger: %s" % memory)
        require(memory["resident_bytes"] <= memory["limit_bytes"],
                "the process takes %d bytes, its ledger has %d" % (memory["resident_bytes"], memory["limit_bytes"]))
        self.samples += 1
        self.resident = max(self.resident, memory["resident_bytes"])
        for job in answer["jobs"]:
            self.gaps |= {gap["name"] for gap in job.get("gaps", [])}


@contextlib.contextmanager
def node_of(name, settings):
    """A rig with a node of which `settings` ({section: {key: value}}) are not the defaults."""
    with harness.case_folder(name) as folder, rig.Rig(ranks=2) as r:
        node = harness.Node(r, folder)
        with open(node.config) as f:
            lines = f.read().splitlines()
        for section, values in settings.items():
            head = "[%s]" % section
            if head not in lines:
                at = lines.index("[[job]]")
                lines[at:at] = [head, ""]
            at = lines.index(head) + 1
            lines[at:at] = ["%s = %s" % (key, json.dumps(value)) for key, value in values.items()]
        with open(node.config, "w") as f:
            f.write("\n".join(lines) + "\n")
        yield r, folder, node.start()
        require(node.stop() == 0, "gradtapd did not end well: " + node.last_words())


def untouched(r, folder, job):
    """The job ended as one that nobody tapped."""
    alone = harness.Job(r, folder, MODEL, attach="", name="alone", beside=True).start()
    alone.wait(120)
    counts = harness.compare_endings(job, alone)
    require(counts["tensors"] > 0, "nothing was compared: %s" % counts)


def require_hit(node, names):
    table = rows(node)
    silent = [name for name in names if not table[name]["hits"]]
    require(not silent, "these limits were not hit: %s" % {name: table[name] for name in silent})
    told = node.cli("limits")
    for name in names:
        line = next((l for l in told.splitlines() if l.startswith(name + " ")), "")
        require(line.split() and str(table[name]["limit"]) in line.split(), "gradtap limits says: %r" % line)
    return {name: table[name]["hits"] for name in names}


def run(name, settings, hit, more):
    begun = time.monotonic()
    with node_of(name, settings) as (r, folder, node):
        job = harness.Job(r, folder, MODEL + ["--step-sleep", "0.03"]).start()
        watch = Watch(node, job)
        job.wait(120, watch)
        more(node, job, watch)
        told = require_hit(node, hit)
        untouched(r, folder, job)
        memory = own(node)["memory"]
    require(watch.samples >= 10, "the ledger was looked at %d times only" % watch.samples)
    print("passed  %-24s %s; at most %d of %d bytes taken, %d resident; %.1f s" % (
        name, ", ".join("%s %d" % i for i in told.items()), memory["peak_bytes"], memory["limit_bytes"],
        watch.resident, time.monotonic() - begun), flush=True)


def small_windows():
    """Nothing can be assembled: the tap sheds, and says so."""
    def shed(_node, _job, watch):
        require("OVERLOAD_SHED" in watch.gaps or "LOST_DEFINITIVE" in watch.gaps,
                "nothing says that ops were shed: %s" % watch.gaps)
    run("limits-windows",
        {"assembly": {"window_bytes": MI, "limbo_bytes": 0, "credits": 1, "credit_wait_ms": 0, "retain_bytes": 0},
         "limits": {"pending_steps_max": 4, "admission": False}},
        ["op window", "step messages", "credits", "wait for a credit"], shed)


def little_memory():
    """The state, an upload and a few steps fit, and nothing more: the job is followed to its end, and a caller who asks for
    more than is left is refused."""
    n = sum(p.numel() for p in SmallGpt(WIDTH, LAYERS, BATCH).parameters())
    state, upload, window = 12 * n, 3 * 5 * MI, 16 * n

    def filled(node, job, _watch):
        with client(node) as c:
            c.sendall(b"POST /v1/nodes HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (12 * MI))
            answer = b""
            while part := c.recv(4096):  # to its end: the connection is closed after it
                answer += part
        answer = answer.decode(errors="replace")
        require(" 503 " in answer and "MEMORY_EXHAUSTED" in answer, "another answer: " + answer[:200])
        accounts = own(node)["memory"]["accounts"]
        require(accounts["requests"]["refused"] > 0, "the refusal is not counted: %s" % accounts["requests"])
        require(accounts["shards"]["in_use_bytes"] == state, "shards take %d bytes, not the %d of parameters and moments"
                % (accounts["shards"]["in_use_bytes"], state))
        node.wait_step("durable", STEPS, 30)
        require(harness.compare_roots(node, job, STEPS) == STEPS, "not every step was compared")
    # The packet library touches little of what it may take: less of that, so that the bound on the process says something.
    run("limits-memory", {"dpdk": {"memory_mb": 128}, "limits": {"memory_bytes": state + upload + window, "admission": False}}, ["job memory"], filled)


@contextlib.contextmanager
def client(node):
    s = node.rig.socket(node.monitor)
    try:
        s.settimeout(10)
        s.connect(("127.0.0.1", 7700))
        yield s
    finally:
        s.close()


def crowd():
    """More callers than places, heads and bodies without end, and one who says a byte at a time."""
    def callers(node, _job, _watch):
        with client(node) as c:
            c.sendall(b"POST /v1/nodes HTTP/1.1\r\nHost: x\r\nContent-Length: 16777217\r\n\r\n")
            require(c.recv(4096).startswith(b"HTTP/1.1 413 "), "a body over the limit is not refused")
        with client(node) as c:
            with contextlib.suppress(OSError):
                c.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Y: z\r\n" * 10_000)
                while c.recv(4096):
                    pass
        with client(node) as c:
            c.sendall(b"GET /v1/sta")
            time.sleep(0.8)
            with contextlib.suppress(OSError):
                while c.recv(4096):
                    pass
        with contextlib.ExitStack() as stack:
            for _ in range(24):
                stack.enter_context(client(node))
            harness.wait_until("the node to answer although every place is taken", 10,
                               lambda: node.get("/v1/status", quiet=True) is not None)
    run("limits-callers", {"side_channel": {"connections_max": 8, "request_timeout_ms": 400}},
        ["connections", "head of a request", "body of a request", "time of a request"], callers)


def cases():
    return [("windows", small_windows), ("memory", little_memory), ("callers", crowd)]


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
