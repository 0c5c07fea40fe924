#!/usr/bin/python3
"""The directory of points is full, gives errors at any call of a publish, or is slow: the reason is named, the last point
stays intact, training and replica go on, and publishing goes on by itself once the directory is well again.

    publish_faults.py [short|long|NAME...]

Space is real: a small file system that is filled. Errors and slowness come from disk_faults.c, preloaded into the node.
"""
import contextlib
import errno
import os
import subprocess
import sys
import time

import harness
import rig
from cluster import Cluster, PublishWatch, gradtap, small
from harness import require

RANKS = 2
SLEEP = 0.15
REASONS = {"OBJECT_STORE_ERROR"}


@contextlib.contextmanager
def small_file_system(folder, mebibytes):
    path = os.path.join(folder, "small")
    os.makedirs(path)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%dm" % mebibytes, "tmpfs", path], capture_output=True,
                          text=True)
    if made.returncode != 0:
        rig.not_run("cannot mount a small file system: " + made.stderr.strip())
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], capture_output=True)


def fill(path):
    """Takes all space; returns what gives it back."""
    filler = os.path.join(path, "filler")
    with open(filler, "wb", buffering=0) as f:
        with contextlib.suppress(OSError):
            while True:
                f.write(bytes(1 << 20))
        with contextlib.suppress(OSError):
            while True:
                f.write(bytes(512))
    return lambda: os.unlink(filler)


def wait_reason(cluster, watch, seconds=30):
    def named():
        return cluster.gaps() & REASONS
    try:
        harness.wait_until("a gap %s" % " or ".join(sorted(REASONS)), seconds, named, pause=0.1)
    except harness.Failed as error:
        raise harness.Failed("%s; %s" % (error, cluster.describe()))
    return next(g for _, s in cluster.statuses() for g in s["gaps"] if g.get("name") in REASONS)


def newest_verifies(cluster):
    """The newest listed point, read back whole by the command line."""
    point = max(cluster.points(), key=lambda p: (p["lineage"], p["step"]))
    gradtap("points", "verify", "--source", cluster.objects, "--job", cluster.job, "--lineage", point["lineage"],
            "--step", point["step"])
    return point["step"]


def recovers(cluster, job, watch, steps):
    """Publishing goes on without a restart, and everything that was published is right."""
    cluster.wait_step("published", watch.published() + 3, 40)
    require(not cluster.gaps() & REASONS, "the reason stays after publishing went on: %s" % cluster.describe())
    job.wait(60 + steps, cluster.watch(job))
    cluster.wait_step("published", steps, 60)
    cluster.check_points(job)
    harness.compare_export(cluster.export(steps), job.final(), steps)
    watch.check()
    require(not watch.errors, "errors: %s" % watch.errors[:1])


def no_space(name, steps=90):
    begun = time.monotonic()
    with harness.case_folder(name) as folder, small_file_system(folder, 400) as store, rig.Rig(ranks=RANKS) as r:
        cluster = Cluster(r, folder, objects=os.path.join(store, "points"), points_kept=4).start()
        job = harness.Job(r, folder, small(steps, "--step-sleep", SLEEP), attach=cluster.endpoints()).start()
        with PublishWatch(cluster) as watch:
            cluster.wait_step("published", 5, 60)
            free = fill(store)
            gap = wait_reason(cluster, watch)
            held = watch.published()
            require("space" in gap.get("evidence", "").lower() or "full" in gap.get("evidence", "").lower(),
                    "the evidence does not say that space is missing: %s" % gap)
            intact = newest_verifies(cluster)
            require(intact >= held, "the newest point is %d, %d was published" % (intact, held))
            trained = cluster.best("durable")
            cluster.wait_step("durable", trained + 3, 30)
            free()
            recovers(cluster, job, watch, steps)
        cluster.stop()
    print("passed  %-28s held at %d: %s; went on to %d; %.1f s" % (name, held, gap["name"], steps,
                                                                   time.monotonic() - begun), flush=True)


class Faults:
    """The library and its control file."""

    def __init__(self, folder, directory):
        self.library = os.path.join(folder, "disk_faults.so")
        self.control = os.path.join(folder, "faults")
        source = os.path.join(harness.ROOT, "tests", "system", "disk_faults.c")
        made = subprocess.run(["gcc-12", "-O2", "-shared", "-fPIC", "-o", self.library, source, "-ldl", "-lpthread"],
                              capture_output=True, text=True)
        require(made.returncode == 0, "disk_faults.c does not compile: " + made.stderr)
        self.environment = {"LD_PRELOAD": self.library, "GRADTAP_FAULT_DIR": directory,
                            "GRADTAP_FAULT_FILE": self.control}

    def set(self, call, number=0, skip=0, slow_us=0):
        with open(self.control + ".new", "w") as f:
            f.write("%s %d %d %d" % (call, number, skip, slow_us))
        os.rename(self.control + ".new", self.control)

    def clear(self):
        if os.path.exists(self.control):
            os.unlink(self.control)

    def hits(self):
        try:
            with open(self.control + ".hits") as f:
                return len(f.read().splitlines())
        except OSError:
            return 0


def errors(name, faults_to_set, nodes=1):
    """faults_to_set: [(call, errno, calls that still succeed)]; each is set, named, taken away, and recovered from."""
    begun = time.monotonic()
    steps = 40 + 25 * len(faults_to_set)
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS, nodes=nodes) as r:
        cluster = Cluster(r, folder)
        faults = Faults(folder, cluster.objects)
        for node in cluster.nodes:
            node.start(wait=False, more=faults.environment)
        for node in cluster.nodes:
            node.wait_ready()
        job = harness.Job(r, folder, small(steps, "--step-sleep", SLEEP), attach=cluster.endpoints()).start()
        with PublishWatch(cluster) as watch:
            cluster.wait_step("published", 3, 60)
            for call, number, skip in faults_to_set:
                before = faults.hits()
                faults.set(call, number, skip)
                gap = wait_reason(cluster, watch)
                require(faults.hits() > before, "no %s has failed" % call)
                word = os.strerror(number).lower()
                require(word in gap.get("evidence", "").lower() or errno.errorcode[number].lower()
                        in gap.get("evidence", "").lower() or number == errno.ENOSPC, "%s fails with %s; the evidence "
                        "does not say so: %s" % (call, word, gap))
                newest_verifies(cluster)
                faults.clear()
                cluster.wait_step("published", watch.published() + 2, 40)
            recovers(cluster, job, watch, steps)
        cluster.stop()
        failed = faults.hits()
    print("passed  %-28s %d faults, %d failed calls, each named and recovered from; %.1f s"
          % (name, len(faults_to_set), failed, time.monotonic() - begun), flush=True)


def slow(name, slow_us, steps=80):
    """Every write, fsync and link of a point takes long: published lags, says so, and catches up."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS) as r:
        cluster = Cluster(r, folder)
        faults = Faults(folder, cluster.objects)
        cluster.nodes[0].start(more=faults.environment)
        job = harness.Job(r, folder, small(steps, "--step-sleep", SLEEP), attach=cluster.endpoints()).start()
        with PublishWatch(cluster) as watch:
            cluster.wait_step("published", 3, 60)
            faults.set("any", slow_us=slow_us)
            harness.wait_until("UPLOAD_LAG", 40, lambda: "UPLOAD_LAG" in cluster.gaps(), pause=0.1)
            held = watch.published()
            trained = job.committed()
            harness.wait_until("training to go on", 30, lambda: job.committed() >= trained + 10)
            newest_verifies(cluster)
            faults.clear()
            recovers(cluster, job, watch, steps)
        cluster.stop()
    print("passed  %-28s %d ms a call, lag from %d on named; went on to %d; %.1f s"
          % (name, slow_us // 1000, held, steps, time.monotonic() - begun), flush=True)


def cases():
    calls = ("open", "write", "fsync", "link")
    every = lambda number: [(call, number, skip) for call in calls for skip in (0, 1, 2, 5, 11)]
    return [("short-eio", lambda: errors("short-eio", [("write", errno.EIO, 1), ("link", errno.EIO, 0)])),
            ("short-no-space", lambda: no_space("short-no-space")),
            ("long-eio", lambda: errors("long-eio", every(errno.EIO))),
            ("long-enospc", lambda: errors("long-enospc", every(errno.ENOSPC))),
            ("long-eio-cluster", lambda: errors("long-eio-cluster", [(c, errno.EIO, 3) for c in calls], nodes=3)),
            ("long-slow", lambda: slow("long-slow", 60_000))]


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
