#!/usr/bin/python3
"""How far the published step is behind the training's, at rates that rise until the mirror or the node loses frames, or
until the job cannot go faster. Usage: lag_driver.py [SECONDS a rate]

One job of two ranks; its pause after each step shrinks. At each rate: what the mirror port carried, frames that the port
lost and the node's gaps that no later frame mends, and the longest lag seen (steps committed by rank 0 less steps
published).
"""
import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "system"))
sys.dont_write_bytecode = True
import harness  # noqa: E402
import rig  # noqa: E402
from cluster import Cluster  # noqa: E402

RANKS = 2
JOB = ["--width", 192, "--layers", 6, "--context", 8, "--batch", 1, "--bucket-mb", 2, "--no-roots"]
PAUSES = (0.4, 0.2, 0.1, 0.05, 0.0)
LAG = 2
LOSSES = {"LOST_DEFINITIVE", "OVERLOAD_SHED", "CONFLICT", "UNWIRED", "DIVERGED"}


def port_counts(r):
    """(bytes, frames, frames lost) of the node's tap."""
    text = r.run(r.monitor, "cat", "/proc/net/dev").stdout
    words = next(line for line in text.splitlines() if "mon1:" in line).split(":")[1].split()
    return int(words[0]), int(words[1]), int(words[2]) + int(words[3])


def level(r, cluster, job, pause, seconds):
    with open(os.path.join(job.out, "pause"), "w") as f:
        f.write("%g" % pause)
    time.sleep(max(1.0, 2 * pause))
    before, first, begun = port_counts(r), job.committed(), time.monotonic()
    lags, gaps = [], set()
    while time.monotonic() - begun < seconds:
        harness.require(job.running(), "the job ended")
        published = cluster.numbers()["published"]
        lags.append(max(0, job.committed() - published))
        gaps |= cluster.gaps() & LOSSES
        time.sleep(0.1)
    took, after = time.monotonic() - begun, port_counts(r)
    rate = (after[0] - before[0]) / took / 1e6
    lost = after[2] - before[2]
    kept = max(lags) <= LAG and not lost and not gaps
    print("   pause %4.2f s: %5.1f steps/s, mirror %6.1f MB/s, %d frames/s, %d lost; lag at most %d, mean %.2f%s"
          % (pause, (job.committed() - first) / took, rate, (after[1] - before[1]) / took, lost, max(lags),
             sum(lags) / len(lags), "; " + ", ".join(sorted(gaps)) if gaps else ""), flush=True)
    return rate, lost or gaps, kept


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    rig.enter_privileged()
    harness.programs_or_fail()
    with harness.case_folder("bench-lag") as folder, rig.Rig(ranks=RANKS) as r:
        cluster = Cluster(r, folder, points_kept=4, shard_elements=1 << 19).start()
        pace = os.path.join(folder, "train", "pause")
        os.makedirs(os.path.dirname(pace))
        with open(pace, "w") as f:
            f.write("%g" % PAUSES[0])
        job = harness.Job(r, folder, JOB + ["--steps", 100000, "--step-sleep-file", pace],
                          attach=cluster.endpoints()).start()
        cluster.wait_step("published", 2, 60)
        best, lossless = 0.0, 0.0
        for pause in PAUSES:
            rate, lost, kept = level(r, cluster, job, pause, seconds)
            if lost:
                break
            lossless = rate
            best = rate if kept else best
        job.kill()
    print("   highest rate without loss %.1f MB/s; highest with lag of at most %d steps %.1f MB/s: %s"
          % (lossless, LAG, best, "yes" if best == lossless else "NO, lag grows before the mirror loses"))


if __name__ == "__main__":
    main()
