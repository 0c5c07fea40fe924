#!/usr/bin/python3
"""The trainer when the node is absent, unreachable, slow, silent, answers nonsense, or dies: same result bit for bit,
exit code 0, no exception, bounded memory, and commit() within its CPU budget."""
import sys
import time

import harness
import rig
from harness import require
from hostile_gateway import Gateway

STEPS = 120
RANKS = 2
ARGUMENTS = ["--steps", STEPS, "--clip", "norm:1.0", "--attach-timeout-ms", "3000", "--no-roots"]
QUEUE_KIB = 64 * 1024    # the client's own bound
SLACK_KIB = 48 * 1024    # modules, threads, allocator
MEDIAN_US, P99_US = 500, 2000
LIMIT = 240


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


class Alone:
    """The same job without a tap: what every other run must equal."""

    def __init__(self):
        self.done = None

    def result(self, r, folder):
        if self.done is None:
            job = harness.Job(r, folder, ARGUMENTS, attach="", name="alone").start()
            job.wait(LIMIT)
            self.done = (job.final(), max(job.report(i)["peak_kib"] for i in range(RANKS)))
        return self.done


ALONE = Alone()


def run(name, endpoint=harness.ENDPOINT, gateway=None, node=False, turn=None):
    """gateway: mode at the start; turn(node, gateway): what happens after step 20; node: a real node behind it."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS) as r:
        expected, alone_kib = ALONE.result(r, folder)
        real = harness.Node(r, folder).start() if node else None
        proxy = None
        if gateway:
            proxy = Gateway(r, rig.NODE_ADDRESS, 7701, gateway, ("127.0.0.1", 7700) if node else None)
            endpoint = "http://%s:7701" % rig.NODE_ADDRESS
        job = harness.Job(r, folder, ARGUMENTS, attach=endpoint).start()
        turned = []

        def meanwhile():
            if turn and not turned and (real.numbers() or {}).get("verified", 0) >= 20:
                turn(real, proxy)
                turned.append(True)
        job.wait(LIMIT, meanwhile)
        require(not turn or turned, "the run ended before the node had verified step 20: %s"
                % (harness.describe(real.status()) if real else ""))
        if gateway and not node:
            require(proxy.accepted > 0, "the trainer never connected to the hostile gateway")
        if proxy:
            proxy.close()
        require(job.final().equals(expected), "the result differs from the run without a tap")
        for i in range(RANKS):
            report = job.report(i)
            grown = report["peak_kib"] - alone_kib
            require(grown <= QUEUE_KIB + SLACK_KIB, "rank %d grew by %d KiB" % (i, grown))
            median, p99 = quantile(report["commit_us"], 0.5), quantile(report["commit_us"], 0.99)
            require(median <= MEDIAN_US and p99 <= P99_US, "rank %d: commit() took %.0f us median, %.0f us p99"
                    % (i, median, p99))
            if i == 0:
                shown = "commit %.0f us median, %.0f us p99; %+.0f MiB" % (median, p99, grown / 1024)
    print("passed  %-28s %s; %.1f s" % (name, shown, time.monotonic() - begun), flush=True)


def mode(value):
    def turn(_node, gateway):
        gateway.mode = value
    return turn


def cases():
    return [
        ("present", lambda: run("present", node=True)),
        ("absent", lambda: run("absent")),
        ("unreachable", lambda: run("unreachable", endpoint="http://%s:7700" % rig.UNREACHABLE_ADDRESS)),
        ("slow", lambda: run("slow", gateway="slow")),
        ("silent", lambda: run("silent", gateway="silent")),
        ("nonsense", lambda: run("nonsense", gateway="nonsense")),
        ("turns-slow", lambda: run("turns-slow", gateway="pass", node=True, turn=mode("slow"))),
        ("turns-silent", lambda: run("turns-silent", gateway="pass", node=True, turn=mode("silent"))),
        ("turns-to-nonsense", lambda: run("turns-to-nonsense", gateway="pass", node=True, turn=mode("nonsense"))),
        ("killed", lambda: run("killed", node=True, turn=lambda node, _: node.kill())),
    ]


if __name__ == "__main__":
    rig.enter_privileged()
    chosen = harness.chosen(cases(), sys.argv[1:])
    if any(name in ("present", "killed") or name.startswith("turns") for name, _ in chosen):
        harness.programs_or_fail()
    sys.exit(harness.run_cases(chosen))
