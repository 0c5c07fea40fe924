#!/usr/bin/python3
"""SIGKILL of the nodes of a cluster under a running job: each of three nodes at random moments, and at every named kill
point. No step is lost, no point is ever wrong, published pauses for the failure detection and two steps at most and
goes on while the node is still dead. Two nodes at once: the replica holds, says OWNER_DOWN, and goes on when one is
back.

    cluster_kill.py [short|long|NAME...]
"""
import random
import signal
import sys
import time

import harness
import rig
from cluster import POINT_KILL_POINTS, STORE_KILL_POINTS, Cluster, PublishWatch, small
from harness import require

SEED = 20263
MOMENTS = 20            # of each node
KILLS_PER_RUN = 10
RANKS = 2
SLEEP = 0.15            # a step of these jobs takes about this and the computation
TWO_STEPS = 1.0         # generously, on two cores
SLACK = 1.5             # polling, and the scheduler of a busy machine
BACK_SECONDS = 40       # until a restarted node has caught up


class Run:
    """A long job over a cluster, to which things happen."""

    def __init__(self, r, folder, steps):
        self.steps = steps
        self.cluster = Cluster(r, folder)
        self.folder, self.rig = folder, r
        self.pauses = []

    def begin(self, kill_points=None):
        self.cluster.start(kill_points)
        self.job = harness.Job(self.rig, self.folder, small(self.steps, "--step-sleep", SLEEP),
                               attach=self.cluster.endpoints()).start()

    def settled(self):
        """Every node is up, at the same place, and nothing is missing."""
        names = self.cluster.gaps()
        return (self.cluster.whole() and len(self.cluster.statuses()) == len(self.cluster.nodes)
                and not names & {"OWNER_DOWN", "REPLICA_SHORT", "TAP_DOWN"})

    def wait_settled(self):
        try:
            harness.wait_until("the cluster to be whole again", BACK_SECONDS, self.settled, pause=0.2)
        except harness.Failed as error:
            raise harness.Failed("%s; %s" % (error, self.cluster.describe()))

    def moving(self, watch, more, seconds, dead=()):
        """published rises by `more` steps from now."""
        self.cluster.wait_step("published", watch.published() + more, seconds, dead=dead)

    def dead_and_back(self, watch, node, since):
        """The node is dead since then: published goes on without it; it returns and catches up."""
        self.moving(watch, 3, self.cluster.down_after + 15, dead=(node.number,))
        pause = watch.longest_pause(since, time.monotonic())
        allowed = self.cluster.down_after + TWO_STEPS + SLACK
        require(pause <= allowed, "published stood still for %.1f s after the death of %s, %.1f s are allowed"
                % (pause, node.name, allowed))
        self.pauses.append(pause)
        node.start()
        self.wait_settled()

    def finish(self):
        """To the last step; nothing lost, nothing wrong. The rest of the job runs without a kill."""
        self.job.wait(60 + self.steps * 0.6, self.cluster.watch(self.job))
        self.cluster.wait_step("published", self.steps, 60)
        steps = self.cluster.check_points(self.job)
        harness.compare_roots(self.cluster.live()[0], self.job, self.steps, first=max(1, self.steps - 20))
        harness.compare_export(self.cluster.export(self.steps), self.job.final(), self.steps)
        self.cluster.stop()
        return steps


def moments(name, kills, draw):
    """kills: node numbers in order."""
    begun = time.monotonic()
    steps = 60 + 50 * len(kills)
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS, nodes=3) as r:
        run = Run(r, folder, steps)
        run.begin()
        with PublishWatch(run.cluster) as watch:
            run.moving(watch, 3, 60)
            for number in kills:
                time.sleep(draw.uniform(0.0, 1.5))
                require(run.job.running(), "the job ended before all kills")
                node = run.cluster.nodes[number]
                since = time.monotonic()
                node.kill()
                run.dead_and_back(watch, node, since)
            found = run.finish()
            watch.check()
    print("passed  %-28s %d kills, pauses of published %.1f s at most, %d points of %d steps; %.1f s"
          % (name, len(kills), max(run.pauses), len(found), steps, time.monotonic() - begun), flush=True)


def at_kill_point(name, number, point):
    begun = time.monotonic()
    steps = 110
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS, nodes=3) as r:
        run = Run(r, folder, steps)
        run.begin({number: point})
        node = run.cluster.nodes[number]
        with PublishWatch(run.cluster) as watch:
            harness.wait_until("%s to die at %s" % (node.name, point), 90, lambda: not node.alive(), pause=0.02)
            since = time.monotonic()
            require(node.child.returncode == -signal.SIGKILL, "%s ended with %s" % (node.name, node.child.returncode))
            run.dead_and_back(watch, node, since)
            found = run.finish()
            watch.check()
    print("passed  %-28s pause of published %.1f s, %d points of %d steps; %.1f s"
          % (name, max(run.pauses), len(found), steps, time.monotonic() - begun), flush=True)


def two_at_once(name, pair, first_back):
    begun = time.monotonic()
    steps = 260
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS, nodes=3) as r:
        run = Run(r, folder, steps)
        cluster = run.cluster
        run.begin()
        with PublishWatch(cluster) as watch:
            run.moving(watch, 5, 60)
            for number in pair:
                cluster.nodes[number].kill()
            harness.wait_until("OWNER_DOWN", cluster.down_after + 10, lambda: "OWNER_DOWN" in cluster.gaps())
            time.sleep(1.0)
            held = watch.published()
            time.sleep(2.0)
            require(watch.published() == held, "published went on from %d to %d with two of three nodes dead"
                    % (held, watch.published()))
            require(run.job.running(), "the job ended while two nodes were dead")
            other = pair[0] if first_back == pair[1] else pair[1]
            cluster.nodes[first_back].start()
            cluster.wait_step("published", held + 5, BACK_SECONDS, dead=(other,))
            cluster.nodes[other].start()
            run.wait_settled()
            found = run.finish()
            watch.check()
    print("passed  %-28s held at %d, then %d points of %d steps; %.1f s"
          % (name, held, len(found), steps, time.monotonic() - begun), flush=True)


def cases():
    draw = random.Random(SEED)
    found = [("short-home", lambda: moments("short-home", [0], random.Random(SEED)))]
    kills = [number for number in range(3) for _ in range(MOMENTS)]
    draw.shuffle(kills)
    for i in range(0, len(kills), KILLS_PER_RUN):
        name = "long-moments-%02d" % (i // KILLS_PER_RUN + 1)
        found.append((name, lambda name=name, part=kills[i:i + KILLS_PER_RUN], seed=draw.random():
                      moments(name, part, random.Random(seed))))
    for point in STORE_KILL_POINTS:
        for number in range(3):
            at = "%s:%d" % (point, draw.randint(15, 60))
            found.append(("long-%s-tap%d" % (point, number),
                          lambda n="long-%s-tap%d" % (point, number), k=number, at=at: at_kill_point(n, k, at)))
    for point in POINT_KILL_POINTS:
        for count in (1, draw.randint(5, 25)):
            found.append(("long-%s-%d" % (point, count),
                          lambda n="long-%s-%d" % (point, count), at="%s:%d" % (point, count): at_kill_point(n, 0, at)))
    for pair, first_back in (((0, 1), 0), ((0, 1), 1), ((1, 2), 2), ((0, 2), 2)):
        name = "long-two-%d-and-%d-back-%d" % (pair + (first_back,))
        found.append((name, lambda name=name, pair=pair, back=first_back: two_at_once(name, pair, back)))
    return found


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    print("random moments drawn with seed %d" % SEED)
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
