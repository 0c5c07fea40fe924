#!/usr/bin/python3
"""Members change while a job trains, part of `make test`: a node without a mirror port is added and takes its share of the
shards, the home is drained away and stopped; no step is lost, and the end equals the trainer's state.
"""
import sys
import time

import harness
import rig
from cluster import PublishWatch, small
from harness import require
from scale_cluster import ScaleCluster

STEPS = 150


def short():
    name, begun = "scale-short", time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=3, nodes=3) as r:
        cluster = ScaleCluster(r, folder, first=2, taps=(0, 1)).start()
        job = harness.Job(r, folder, small(STEPS, "--step-sleep", "0.1"), attach=cluster.endpoints()).start()
        with PublishWatch(cluster) as watch:
            cluster.wait_step("published", 5, 90)
            cluster.add(2)
            counts = cluster.require_balanced()
            require(len(counts) == 3, "the new node holds nothing: %s" % counts)
            check = cluster.drain_check(0)
            require(check["safe"], "two owners of each shard are in sync, and draining is called unsafe: %s" % check)
            cluster.drain(0)
            require(cluster.nodes[0].stop() in (0, 5), "the drained node did not end well")
            job.wait(180, lambda: job.require_tapped())
            cluster.wait_step("published", STEPS, 60, dead=(0,))
            watch.check()
        cluster.require_balanced()
        steps = cluster.check_points(job)
        require(steps == list(range(1, STEPS + 1)), "points are missing: %s" % sorted(set(range(1, STEPS + 1)) - set(steps)))
        harness.compare_export(cluster.export(STEPS), job.final(), STEPS)
        pause = watch.longest_pause(watch.moves[1][0], watch.moves[-1][0])
        cluster.stop()
    print("passed  %-28s a point of each of %d steps, longest pause %.1f s; shards a node %s; %.1f s"
          % (name, STEPS, pause, counts, time.monotonic() - begun), flush=True)


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen([("scale-short", short)], sys.argv[1:])))
