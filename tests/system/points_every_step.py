#!/usr/bin/python3
"""A point every step: nearly all steps are published; the SHA-256 of every tensor of every point is what the training
script computed at that step; points restored in fresh processes continue bit-equal.

    points_every_step.py [short|long]
"""
import hashlib
import sys
import time

import harness
import rig
from cluster import Cluster, PublishWatch, small
from harness import require

CONTINUE = 10
MORE = ["--dropout", "0.1", "--shuffle", "--augment", "--tensor-digests"]


def every_step(name, ranks, steps, published_at_least, restore_every, nodes):
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=ranks, nodes=nodes) as r:
        cluster = Cluster(r, folder).start()
        schedule = ["--schedule-steps", steps]
        job = harness.Job(r, folder, small(steps, *MORE, *schedule), attach=cluster.endpoints()).start()
        with PublishWatch(cluster) as watch:
            job.wait(900, cluster.watch(job))
            cluster.wait_step("published", steps, 60)
            watch.check()
        found = [s for s in cluster.check_points(job) if s > 0]
        require(len(found) >= published_at_least, "%d of %d steps were published, %d are demanded; missing: %s"
                % (len(found), steps, published_at_least, sorted(set(range(1, steps + 1)) - set(found))[:20]))
        digests = job.tensor_digests()
        compared = sum(compare_tensors(cluster, step, digests[step]) for step in found)
        cluster.stop()
        continued = 0
        for step in found:
            if step % restore_every == 0 and step + CONTINUE <= steps:
                continue_from(r, folder, cluster, step, steps, digests)
                continued += 1
        require(continued, "no point was restored")
    print("passed  %-28s %d of %d steps published, %d tensors equal by SHA-256, %d points continued %d steps; %.1f s"
          % (name, len(found), steps, compared, continued, CONTINUE, time.monotonic() - begun), flush=True)


def compare_tensors(cluster, step, expected):
    tensors, _, metadata = cluster.export(step)
    require(str(metadata.get("step")) == str(step), "the export of step %d says step %s" % (step, metadata.get("step")))
    actual = {name: hashlib.sha256(words.tobytes()).hexdigest() for name, words in tensors.items()}
    require(actual.keys() == expected.keys(), "step %d: tensors %s are in one and not in the other"
            % (step, sorted(set(actual) ^ set(expected))[:5]))
    wrong = [n for n in expected if actual[n] != expected[n]]
    require(not wrong, "step %d: %d of %d tensors differ from the training script's, first %s"
            % (step, len(wrong), len(expected), wrong[0] if wrong else ""))
    return len(expected)


def continue_from(r, folder, cluster, step, steps, digests):
    """A fresh job, restored to this step and not tapped, has the same tensors after each of the next steps."""
    job = harness.Job(r, folder, small(step + CONTINUE, *MORE, "--schedule-steps", steps, "--restore", cluster.objects,
                                       "--restore-step", step, "--job", cluster.job), attach="",
                      name="from%d" % step, port=29500 + step % 1000).start()
    job.wait(120)
    require(job.restored_step() == step, "restored to step %s instead of %d" % (job.restored_step(), step))
    continued = job.tensor_digests()
    require(sorted(continued) == list(range(step, step + CONTINUE + 1)), "steps %s" % sorted(continued))
    for at, tensors in continued.items():
        wrong = [n for n in digests[at] if tensors.get(n) != digests[at][n]]
        require(not wrong, "restored at %d: %d tensors differ after step %d, first %s"
                % (step, len(wrong), at, wrong[0] if wrong else ""))


def cases():
    return [("short-n2", lambda: every_step("short-n2", 2, 30, 28, 20, 1)),
            ("long-n4", lambda: every_step("long-n4", 4, 200, 190, 20, 3))]


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
