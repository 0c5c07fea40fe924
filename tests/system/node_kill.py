#!/usr/bin/python3
"""SIGKILL of the node: at twenty random moments, and at each named kill point of the store. After the restart every
shard is at a durable step, not older than the last durable step reported before the kill, with the trainer's digest
of that step. What passed the only tap meanwhile is gone: the replica must stop and say so, never apply around it."""
import random
import signal
import sys
import time

import harness
import rig
from harness import require

MOMENTS = 20
SEED = 20261
POINTS = ("store.after_stage", "store.after_ingest", "store.after_mark")
STEPS = 40
SHARD = 1 << 16
SMALL = ["--steps", STEPS, "--shard-elements", SHARD, "--layers", "4", "--batch", "1",
         "--clip", "norm:1.0"]


def kill_and_check(name, kill, kill_point=None):
    """kill(node, job) returns when the node is dead."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=2) as r:
        node = harness.Node(r, folder, shard_elements=SHARD, full_every_steps=8).start(kill_point=kill_point)
        job = harness.Job(r, folder, SMALL).start()
        reported = {"durable": 0, "published": 0}

        def observe():
            numbers = node.numbers()
            if numbers:
                harness.check_order(numbers)
                reported.update(numbers)
        kill(node, job, observe)
        require(node.child.wait(timeout=10) == -signal.SIGKILL, "the node did not die by SIGKILL: %s"
                % node.child.returncode)
        before = reported["durable"]
        node.start()
        harness.wait_until("the restarted node to know the job", 30, node.status)
        in_baseline = kill_point is not None and kill_point.endswith(":1")
        check_shards(node, job, before, in_baseline)
        job.wait(240, lambda: require(node.alive(), "gradtapd ended after its restart: " + node.last_words()))
        shards = check_shards(node, job, before, in_baseline)
        lowest = min((s["version"] for s in shards), default=0)
        if shards and lowest < STEPS:
            gaps = (node.status() or {}).get("gaps", [])
            require(gaps, "the replica stands at %d of %d and names no gap" % (lowest, STEPS))
        require(node.stop() == 0, "gradtapd did not end well after SIGTERM")
    print("passed  %-28s durable %d reported before, %d shards at step %d after, %.1f s"
          % (name, before, len(shards), lowest, time.monotonic() - begun), flush=True)


def check_shards(node, job, before, in_baseline=False):
    """Every shard at a durable step, at least `before`, with the trainer's digest of that step."""
    shards = node.shards()
    # Killed while the baseline was being made durable, with nothing reported: the attach never came to an end.
    require(shards or (in_baseline and before == 0), "the restarted node has no shards")
    for shard in shards:
        number, step = shard["shard"], shard["version"]
        require(shard["durable"] >= before, "shard %d is durable at %d; %d was reported before the kill"
                % (number, shard["durable"], before))
        record = harness.wait_until("the trainer to finish step %d, where shard %d is" % (step, number), 10,
                                    lambda: job.records().get(step))
        require(shard["digest"] == record["shards"][number], "shard %d at step %d: the digest is not the trainer's"
                % (number, step))
    return shards


def at_moment(delay):
    """The clock starts when the first step is verified."""
    def kill(node, job, observe):
        deadline = time.monotonic() + 60
        while not (node.numbers() or {}).get("verified"):
            require(node.alive() and job.running(), "the run ended before its first verified step: "
                    + node.last_words())
            require(time.monotonic() < deadline, "waited 60 s for the first verified step")
            time.sleep(0.02)
        stop = time.monotonic() + delay
        while time.monotonic() < stop:
            observe()
            time.sleep(0.01)
        node.kill()
    return kill


def at_point(node, _job, observe):
    deadline = time.monotonic() + 90
    while node.alive():
        require(time.monotonic() < deadline, "waited 90 s for the node to reach its kill point")
        observe()
        time.sleep(0.01)


def cases():
    draw = random.Random(SEED)
    found = []
    for i in range(MOMENTS):
        delay = draw.uniform(0.0, 4.0)
        name = "moment-%02d-%.2fs" % (i + 1, delay)
        found.append((name, lambda name=name, delay=delay: kill_and_check(name, at_moment(delay))))
    for point in POINTS:
        for count in (1, draw.randint(20, 60)):
            name = "%s-%d" % (point, count)
            found.append((name, lambda name=name, at="%s:%d" % (point, count): kill_and_check(name, at_point, at)))
    return found


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    print("random moments drawn with seed %d" % SEED)
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
