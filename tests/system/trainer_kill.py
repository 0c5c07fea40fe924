#!/usr/bin/python3
"""SIGKILL of all ranks, again and again, at random moments and at chosen places: inside backward, between the commits of
two ranks, right after one, in the middle of the upload of the baseline. Every restart resumes at most three steps
behind the last commit, and the end is that of a job that was never killed. A zombie of an old lineage is frozen.

    trainer_kill.py [short|long|NAME...]
"""
import random
import sys
import time

import harness
import rig
from cluster import Cluster, small
from harness import require

SEED = 20264
RANKS = 2
STEPS = 120
ZOMBIE_STEPS = 400
REDONE_AT_MOST = 3
MORE = ["--dropout", "0.1", "--shuffle", "--augment", "--step-sleep", "0.05"]


class Life:
    """One job that is killed and restored until it has come to its end."""

    def __init__(self, r, folder, steps, nodes=1):
        self.rig, self.folder, self.steps = r, folder, steps
        self.cluster = Cluster(r, folder).start()
        self.arguments = small(steps, *MORE)
        self.whole = harness.Job(r, folder, self.arguments, attach="", name="whole", beside=True).start()
        self.lives = []
        self.redone = []
        self.committed = 0

    def start(self, *hooks):
        # --or-fresh as in a restart loop: before the first point there is nothing to restore.
        more = ["--restore", self.cluster.objects, "--or-fresh"] + list(hooks)
        job = harness.Job(self.rig, self.folder, self.arguments + more, attach=self.cluster.endpoints(),
                          name="life%d" % len(self.lives), port=29501 + len(self.lives)).start()
        self.lives.append(job)
        return job

    def check_resumed(self, job):
        resumed = {job.restored_step(i) for i in range(self.rig.ranks)} - {None}
        if not resumed:
            return  # killed before it was restored
        require(len(resumed) == 1, "the ranks were restored to different steps: %s" % resumed)
        resumed = resumed.pop()
        require(resumed >= self.committed - REDONE_AT_MOST, "resumed at step %d, %d was committed"
                % (resumed, self.committed))
        self.redone.append(max(0, self.committed - resumed))

    def after_kill(self, job):
        job.kill()
        self.check_resumed(job)
        self.committed = max(self.committed, max(job.committed(i) for i in range(self.rig.ranks)))

    def finish(self):
        job = self.start()
        job.wait(240, self.cluster.watch(job))
        self.check_resumed(job)
        self.whole.wait(240)
        harness.compare_histories(job, self.whole)
        harness.compare_endings(job, self.whole)
        self.cluster.wait_step("published", self.steps, 60)
        self.cluster.check_points(*self.lives)
        harness.compare_export(self.cluster.export(self.steps), self.whole.final(), self.steps)
        self.cluster.stop()


def killed_at(name, kills, nodes=1):
    """kills: seconds after the first commit of a life, or (place, steps after the resumed one)."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS, nodes=nodes) as r:
        life = Life(r, folder, STEPS, nodes)
        for kill in kills:
            if isinstance(kill, float):
                job = life.start()
                harness.wait_until("a commit", 90, lambda: job.running() and job.committed() > 0, pause=0.01)
                time.sleep(kill)
            else:
                place, after = kill
                job = life.start("--die-at", "%d:%s" % (life.committed + after, place), "--die-rank",
                                 0 if place == "upload" else 1)
                harness.wait_until("the death at %s" % place, 120, job.died, pause=0.01)
            life.after_kill(job)
            require(life.committed < STEPS - 5, "the job came too far before all kills: step %d" % life.committed)
        life.finish()
    print("passed  %-28s %d kills, redone %s; %.1f s" % (name, len(kills), life.redone, time.monotonic() - begun),
          flush=True)


def zombie():
    """The ranks of the old lineage go on training while a restarted job of the same name takes over."""
    name, begun = "long-zombie", time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS, nodes=1) as r:
        cluster = Cluster(r, folder).start()
        arguments = small(ZOMBIE_STEPS, *MORE)
        old = harness.Job(r, folder, arguments, attach=cluster.endpoints(), name="old").start()
        cluster.wait_step("published", 20, 120)
        # From an older point, so that the old lineage has points that are newer than anything of the new one.
        back = max(p["step"] for p in cluster.points()) - 10
        new = harness.Job(r, folder, arguments + ["--restore", cluster.objects, "--restore-step", back],
                          attach=cluster.endpoints(), name="new", port=29501).start()
        harness.wait_until("the new lineage to be tracked", 90, lambda: new.running() and new.committed() > 0)
        fork = newest(cluster, superseded=True)
        require(fork["step"] > back, "the old lineage has no point after the fork")
        harness.wait_until("the old ranks to be told", 60, lambda: "SUPERSEDED" in old.log(0), pause=0.2)
        frozen_at = newest(cluster, superseded=True)["step"]
        old.wait(240)
        new.wait(240, cluster.watch(new))
        cluster.wait_step("published", ZOMBIE_STEPS, 60)
        require(newest(cluster, superseded=True)["step"] == frozen_at, "the frozen lineage has got new points")
        # Same seed, same point: the zombie itself is the uninterrupted run.
        harness.compare_histories(new, old)
        harness.compare_endings(new, old)
        cluster.check_points(old, new)
        require(unasked(r, folder, cluster, ZOMBIE_STEPS) == ZOMBIE_STEPS, "restore took another lineage unasked")
        cluster.stop()
    print("passed  %-28s forked at %d, the old lineage stayed at %d; %.1f s"
          % (name, back, frozen_at, time.monotonic() - begun), flush=True)


def zombie_is_newer():
    """The new lineage dies at once: its own newest point is chosen, never a newer one of the old lineage."""
    name, begun = "long-zombie-is-newer", time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS, nodes=1) as r:
        cluster = Cluster(r, folder).start()
        arguments = small(ZOMBIE_STEPS, *MORE)
        old = harness.Job(r, folder, arguments, attach=cluster.endpoints(), name="old").start()
        cluster.wait_step("published", 40, 120)
        old.kill()
        newest_old = newest(cluster)["step"]
        back = newest_old - 25
        new = harness.Job(r, folder, arguments + ["--restore", cluster.objects, "--restore-step", back],
                          attach=cluster.endpoints(), name="new", port=29501).start()
        harness.wait_until("the new lineage to commit", 90, lambda: new.running() and new.committed() >= back + 5)
        new.kill()
        committed = new.committed()
        require(committed < newest_old, "the new lineage came too far: %d" % committed)
        step = unasked(r, folder, cluster, until=committed + 5)
        require(back <= step <= committed, "restore chose step %d unasked; the new lineage forked at %d and had "
                "committed %d, the old one's newest point is %d" % (step, back, committed, newest_old))
        cluster.stop()
    print("passed  %-28s old lineage at %d, new one forked at %d, chosen %d; %.1f s"
          % (name, newest_old, back, step, time.monotonic() - begun), flush=True)


def newest(cluster, superseded=None):
    found = [p for p in cluster.points() if superseded is None or bool(p["superseded"]) == superseded]
    require(found, "there is no point with superseded = %s" % superseded)
    return max(found, key=lambda p: (p["lineage"], p["step"]))


def unasked(r, folder, cluster, until):
    """The step that a restore without wishes chooses; it must be of the newest lineage, or older than its fork."""
    job = harness.Job(r, folder, small(until, *MORE, "--restore", cluster.objects, "--job", cluster.job), attach="",
                      name="unasked", port=29600).start()
    job.wait(120)
    return job.restored_step()


def cases():
    draw = random.Random(SEED)
    found = [("short-places", lambda: killed_at("short-places", [("upload", 0), ("backward", 15)]))]
    for i in range(5):
        kills = [draw.uniform(0.0, 2.5) for _ in range(4)]
        name = "long-moments-%d" % (i + 1)
        found.append((name, lambda name=name, kills=kills, nodes=3 if i == 4 else 1: killed_at(name, kills, nodes)))
    places = [("upload", 0), ("backward", 8), ("before-commit", 9), ("after-commit", 7), ("before-commit", 1),
              ("backward", 1)]
    found.append(("long-places", lambda: killed_at("long-places", places)))
    found.append(("long-places-cluster", lambda: killed_at("long-places-cluster", places[:4], 3)))
    found.append(("long-zombie", zombie))
    found.append(("long-zombie-is-newer", zombie_is_newer))
    return found


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    print("random moments drawn with seed %d" % SEED)
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
