#!/usr/bin/python3
"""All ranks are killed, a new job is restored from the newest recovery point and runs to the end. Beside it the same job
runs without a break. Roots of every step, parameters, moments, counters, groups, buffers, schedule, generators and data
position of every rank must be equal, bit for bit.

    restart.py [short|long|NAME...]
"""
import sys
import time

import harness
import rig
from cluster import Cluster, small
from harness import require

EVERYTHING = ["--dropout", "0.1", "--shuffle", "--augment", "--live-buffer"]
REDONE_AT_MOST = 3


def restart(name, ranks, more=(), steps=36, kill_after=15, nodes=1, source="directory", expect=None, **rig_options):
    """expect(report of the uninterrupted run): what the case is about is really there."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=ranks, nodes=nodes, **rig_options) as r:
        arguments = small(steps, *more)
        cluster = Cluster(r, folder).start()
        whole = harness.Job(r, folder, arguments, attach="", name="whole", beside=True).start()
        first = harness.Job(r, folder, arguments, attach=cluster.endpoints(), name="first").start()
        watch = cluster.watch(first)

        def there():
            require(first.running(), "the job ended before it was killed")
            watch()
            return first.committed() >= kill_after
        harness.wait_until("step %d" % kill_after, 120, there)
        first.kill()
        committed = first.committed()
        restore = cluster.objects if source == "directory" else cluster.endpoints()
        second = harness.Job(r, folder, arguments + ["--restore", restore], attach=cluster.endpoints(), name="second",
                             port=29501).start()
        second.wait(240, cluster.watch(second))
        whole.wait(240)
        resumed = {second.restored_step(i) for i in range(ranks)}
        require(len(resumed) == 1, "the ranks were restored to different steps: %s" % resumed)
        resumed = resumed.pop()
        require(committed - REDONE_AT_MOST <= resumed <= committed, "resumed at %d, committed was %d"
                % (resumed, committed))
        if expect:
            expect(whole.report())
        history = harness.compare_histories(second, whole)
        counts = harness.compare_endings(second, whole)
        cluster.wait_step("published", steps, 60)
        harness.compare_export(cluster.export(steps), whole.final(), steps)
        cluster.check_points(first, second)
        require(len(cluster.nodes[0].shards()) >= 8, "less than 8 shards")
        cluster.stop()
    print("passed  %-28s committed %d, resumed at %d; %d roots, %s equal; %.1f s" % (
        name, committed, resumed, history, ", ".join("%d %s" % (n, p) for p, n in sorted(counts.items())),
        time.monotonic() - begun), flush=True)


def rebuilt(report):
    require(report["buckets"] and report["first_buckets"] != report["buckets"], "the buckets were not rebuilt: %s"
            % report["buckets"])


def never_rebuilt(report):
    require(not report["buckets"], "the buckets were rebuilt in spite of find_unused_parameters")


def no_point():
    """Without a point restore fails by name; it begins at step 0 only when asked."""
    begun = time.monotonic()
    with harness.case_folder("long-no-point") as folder, rig.Rig(ranks=2) as r:
        cluster = Cluster(r, folder).start()
        arguments = small(8, "--restore", cluster.objects)
        refused = harness.Job(r, folder, arguments, attach=cluster.endpoints(), name="refused").start()
        try:
            harness.wait_until("the ranks to end", 60, lambda: all(c.poll() is not None for c in refused.children))
        finally:
            refused.kill()
        require(all(c.poll() != 0 for c in refused.children), "a restore without a point went on")
        require("no " in refused.log(0).lower() and "point" in refused.log(0), "the reason is not named: "
                + refused.last_words(0))
        fresh = harness.Job(r, folder, arguments + ["--or-fresh"], attach=cluster.endpoints(), name="fresh",
                            port=29501).start()
        fresh.wait(120, cluster.watch(fresh))
        require(fresh.restored_step() == 0, "a fresh start begins at step %s" % fresh.restored_step())
        cluster.wait_step("published", 8, 60)
        cluster.check_points(fresh)
        cluster.stop()
    print("passed  %-28s refused by name, fresh only on request; %.1f s" % ("long-no-point", time.monotonic() - begun),
          flush=True)


def cases():
    found = []

    def add(name, ranks, *more, **options):
        found.append((name, lambda: restart(name, ranks, more, **options)))
    add("short-n4-everything", 4, *EVERYTHING, expect=rebuilt)
    add("long-n2", 2)
    add("long-n3", 3, source="endpoints", nodes=3)
    add("long-n4", 4, source="endpoints", nodes=3)
    add("long-n2-everything", 2, *EVERYTHING, expect=rebuilt)
    add("long-n3-everything", 3, *EVERYTHING, expect=rebuilt)
    add("long-n4-rebuild-sizes", 4, "--bucket-mb", "0.15", expect=rebuilt)
    add("long-n3-first-step", 3, kill_after=1, expect=rebuilt)
    add("long-n4-second-step", 4, kill_after=2, expect=rebuilt)
    add("long-n4-find-unused", 4, "--find-unused", "--odd-head", expect=never_rebuilt)
    add("long-n3-find-unused", 3, "--find-unused", "--odd-head", *EVERYTHING, expect=never_rebuilt)
    add("long-n2-find-unused", 2, "--find-unused", "--odd-head", source="endpoints", expect=never_rebuilt)
    add("long-n4-sgd-no-schedule", 4, "--optimizer", "sgd", "--schedule", "none")
    add("long-n2-amsgrad", 2, "--optimizer", "adam", "--amsgrad", *EVERYTHING)
    add("long-n3-bucket-view", 3, "--bucket-view", "--dropout", "0.2")
    add("long-n4-mtu9000", 4, *EVERYTHING, mtu=9000)
    found.append(("long-no-point", no_point))
    return found


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
