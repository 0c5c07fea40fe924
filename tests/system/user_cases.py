#!/usr/bin/python3
"""User cases of docs/user-cases.md that need a whole system: a job of awkward tensors, accumulation, a scaler that skips
steps; the replica's root equals the trainer's at every step, or it stops with the reason that the case names.

    user_cases.py [short|long|NAME...]
"""
import sys
import time

import harness
import rig

SHARDS = 1 << 16
AWKWARD = ["--model", "awkward", "--find-unused", "--to-none", "--width", "256", "--layers", "8", "--batch", "4",
           "--shard-elements", str(SHARDS)]


def awkward(name, *arguments, skipped=False, **options):
    """Some parameters are used in even steps only, one never: what the optimizer saw is more than what the wire shows."""
    def check(node, job):
        parameters = {p["name"]: p for p in job.final().meta["parameters"]}
        harness.require("exp_avg" in parameters["never.weight"]["absent"] or "momentum_buffer" in
                        parameters["never.weight"]["absent"], "the parameter that is never used has a state")
        shapes = [p["shape"] for p in parameters.values()]
        harness.require([] in shapes and [0] in shapes, "no 0-dim or no zero-sized parameter: %s" % shapes)
        if skipped:
            harness.require(0 < parameters["scale"]["counter"] < options["steps"], "no step was skipped")

    harness.live_case(name, arguments=AWKWARD + list(arguments), check=check, shard_elements=SHARDS, **options)


def stops(name, arguments, reason, words, ranks=2, steps=12):
    """Training goes on to its end; the replica stands, and says why."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=ranks) as r:
        node = harness.Node(r, folder, shard_elements=SHARDS).start()
        job = harness.Job(r, folder, ["--steps", steps, "--layers", "2", "--shard-elements", SHARDS] + arguments).start()
        found = {}

        def watch():
            status = node.status()
            for gap in (status or {}).get("gaps", []):
                found[gap.get("name", gap.get("reason"))] = gap.get("evidence", "")
        job.wait(120, watch)
        try:
            harness.wait_until(reason, 10, lambda: (watch(), reason in found)[1])
        except harness.Failed as error:
            raise harness.Failed("%s; the node says %s" % (error, harness.describe(node.status())))
        harness.require(all(w in found[reason] for w in words), "%s says: %s" % (reason, found[reason]))
        numbers = node.numbers()
        harness.require(numbers["verified"] == 0, "a step was applied: %s" % numbers)
        harness.require(job.committed() == steps, "training ended at step %d" % job.committed())
        node.stop()
    print("passed  %-28s %s: %s; %.1f s" % (name, reason, found[reason], time.monotonic() - begun), flush=True)


def cases():
    everything = ["--accumulate", "4", "--clip", "norm:0.5", "--scaler", "1024", "--inf-every", "5"]
    return [
        ("short-A1-A2-A21-B5-C1-C11-C16-C21-D7", lambda: awkward("short-A1", *everything, ranks=2, steps=12, skipped=True)),
        ("long-A1-adam", lambda: awkward("long-A1-adam", "--optimizer", "adam", "--amsgrad", *everything, ranks=3, steps=24,
                                         skipped=True)),
        ("long-A2-sgd", lambda: awkward("long-A2-sgd", "--optimizer", "sgd", ranks=3, steps=24)),
        ("long-A5-every-pass-reduced", lambda: awkward("long-A5", "--accumulate", "3", "--sync-at", "-1", ranks=2, steps=12)),
        ("long-A3-wrong-pass-reduced", lambda: stops("long-A3", ["--accumulate", "4", "--sync-at", "1"], "UNWIRED",
                                                     ["micro steps 4, reduced 1"])),
        ("long-D7-scaler-not-given", lambda: stops("long-D7", ["--scaler", "1000", "--forget-scaler"], "WITNESS_MISMATCH",
                                                   ["step 1", "bucket 0"])),
    ]


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
