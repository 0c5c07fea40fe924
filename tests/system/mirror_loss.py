#!/usr/bin/python3
"""Loss on the mirror. Four ranks have three copies of every final byte: at 1e-4 nothing may stop. Two ranks have one:
what is lost there stops the replica, by name and with the range, and never puts in a wrong byte."""
import sys
import time

import harness
import rig
from harness import require

FRAMES = 1_000_000
DROPPED = 50


def filled_from_other_copies():
    name, steps, begun = "n4-1e-4", 60, time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=4) as r:
        r.mirror_loss(every=10_000, seed=1)
        node = harness.Node(r, folder).start()
        job = harness.Job(r, folder, ["--steps", steps, "--clip", "norm:1.0"]).start()
        job.wait(600, lambda: require(node.alive(), "gradtapd ended: " + node.last_words()))
        delivered, dropped = r.mirror_counts()
        require(delivered + dropped >= FRAMES, "only %d frames were mirrored" % (delivered + dropped))
        require(dropped >= DROPPED, "only %d frames were dropped" % dropped)
        node.wait_step("durable", steps, 60)
        harness.compare_roots(node, job, steps)
        harness.compare_export(node.export(steps), job.final(), steps)
    print("passed  %-28s %d of %d mirrored frames dropped, %d of %d steps equal, no stop, %.1f s"
          % (name, dropped, delivered + dropped, steps, steps, time.monotonic() - begun), flush=True)


def lost_definitively():
    name, steps, begun = "n2-lost", 40, time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=2) as r:
        node = harness.Node(r, folder).start()
        job = harness.Job(r, folder, ["--steps", steps, "--step-sleep", "0.05"]).start()
        node.wait_step("verified", 5, 120)
        r.mirror_loss(every=1000, seed=1)
        job.wait(300, lambda: require(node.alive(), "gradtapd ended: " + node.last_words()))

        def stopped():
            job_status = node.status() or {}
            return [g for g in job_status.get("gaps", []) if g.get("name") == "LOST_DEFINITIVE"]
        try:
            gap = harness.wait_until("a gap LOST_DEFINITIVE", 60, stopped)[0]
        except harness.Failed as error:
            raise harness.Failed("%s; the node reports %s" % (error, harness.describe(node.status())))
        require(any(c.isdigit() for c in gap.get("evidence", "")), "the gap names no range: %s" % gap)
        numbers = node.numbers()
        require(5 <= numbers["verified"] < steps, "verified is %d" % numbers["verified"])
        harness.compare_roots(node, job, numbers["verified"])
        for shard in node.shards():
            expected = job.records()[shard["version"]]["shards"][shard["shard"]]
            require(shard["digest"] == expected, "shard %d at step %d holds a wrong byte" % (shard["shard"],
                                                                                            shard["version"]))
    print("passed  %-28s stopped at step %d: %s; %.1f s" % (name, numbers["verified"], gap["evidence"],
                                                          time.monotonic() - begun), flush=True)


if __name__ == "__main__":
    rig.enter_privileged()
    if not rig.real_root():
        rig.not_run("loading the eBPF dropper needs real root")
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen([("n4-1e-4", filled_from_other_copies), ("n2-lost", lost_definitively)],
                                              sys.argv[1:])))
