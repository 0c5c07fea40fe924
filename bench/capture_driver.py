#!/usr/bin/python3
"""A gibibyte of a real gloo job's frames through receiving, decoding and assembly. Usage: capture_driver.py [GIB]

Two ranks train a GPT of 19 M parameters; what the switch mirrors is captured with tcpdump and given to capture_bench, which
runs on one core. Op sizes and the number of bytes that must come out are the job's own: the bucket sizes that
DistributedDataParallel reports, and its steps times its parameters. The capture is deleted afterwards. Needs root.
"""
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "system"))
sys.dont_write_bytecode = True
import harness  # noqa: E402
import rig  # noqa: E402

RANKS = 2
NOT_RUN = 77
JOB = ["--width", 512, "--layers", 6, "--context", 8, "--batch", 1, "--bucket-mb", 25, "--no-roots"]
WIRE_A_STEP = 2 * 77e6  # both directions
TIMED = 0.7  # the rest comes before the clock starts


def capture(r, folder, steps):
    """(file, op sizes, bytes of all all-reduces), of a capture that lost nothing."""
    path = os.path.join(folder, "job.pcap")
    stop = r.capture(path)
    job = harness.Job(r, folder, JOB + ["--steps", steps], attach="").start()
    try:
        job.wait(240)
    finally:
        job.kill()
        said = stop()
    lost = re.search(r"(\d+) packets dropped by kernel", said)
    harness.require(lost and lost.group(1) == "0", "the capture has every frame: " + said.strip().replace("\n", ", "))
    with open(os.path.join(job.out, "rank0.json")) as f:
        told = json.load(f)
    harness.require(sum(told["first_buckets"]) == sum(told["buckets"] or told["first_buckets"]),
                    "both bucket layouts hold every parameter")
    sizes = sorted(set(told["first_buckets"] + told["buckets"]))
    return path, sizes, steps * sum(told["first_buckets"])


def main():
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    rig.enter_privileged()
    harness.programs_or_fail()
    if os.geteuid() != 0 or not rig.real_root():
        print("   NOT RUN: tcpdump needs root")
        return NOT_RUN
    with harness.case_folder("bench-capture") as folder, rig.Rig(ranks=RANKS) as r:
        path, sizes, op_bytes = capture(r, folder, int(gib * (1 << 30) / WIRE_A_STEP / TIMED) + 1)
        ranks = ",".join(rig.rank_address(i).split("/")[0] for i in range(RANKS))
        return subprocess.run([os.path.join(harness.BIN, "capture_bench"), path, ranks, ",".join(map(str, sizes)),
                               str(op_bytes)]).returncode


if __name__ == "__main__":
    sys.exit(main())
