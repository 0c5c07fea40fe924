#!/usr/bin/python3
"""A long run over three nodes: resident memory, file descriptors and disk of every node stay bounded, and published is
never more than two steps behind training.

    soak.py [MINUTES]      default: 30
"""
import os
import sys
import time

import harness
import rig
from cluster import Cluster, small
from harness import require

RANKS = 2
SLEEP = 0.3
LAG = 2
WARM_SECONDS = 120          # caches and the retained history fill up
RSS_GROWTH_KIB = 64 * 1024  # after that
FD_GROWTH = 64               # one table is open for each shard's step between two full versions: a sawtooth
DISK_GROWTH = 0.5           # of what there is after warming up
SAMPLE_SECONDS = 5


def resident_kib(pid):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS:"))


def descriptors(pid):
    return len(os.listdir("/proc/%d/fd" % pid))


def disk_bytes(folder):
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                pass  # removed meanwhile
    return total


def soak(minutes):
    begun = time.monotonic()
    name = "soak"
    seconds = minutes * 60
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS, nodes=3) as r:
        cluster = Cluster(r, folder, points_kept=8).start()
        steps = int(seconds / SLEEP)  # more than can be done: the soak ends by the clock
        job = harness.Job(r, folder, small(steps, "--step-sleep", SLEEP, "--no-roots"),
                          attach=cluster.endpoints()).start()
        cluster.wait_step("published", 3, 90)
        started, base, worst, samples, late = time.monotonic(), None, 0, 0, []
        while time.monotonic() - started < seconds:
            require(job.running(), "the job ended")
            cluster.require_alive()
            job.require_tapped()
            numbers = cluster.numbers()
            lag = numbers["training"] - numbers["published"]
            worst = max(worst, lag)
            if lag > LAG:
                late.append((round(time.monotonic() - started), lag, harness.describe(cluster.status())))
                require(len(late) < 20, "published is late again and again, as in %s" % (late[-1],))
            now = {"points": disk_bytes(cluster.objects)}
            for node in cluster.nodes:
                pid = node.child.pid  # nsenter has become the program: exec keeps the pid
                now[node.name] = (resident_kib(pid), descriptors(pid), disk_bytes(node.data))
            samples += 1
            warm = min(WARM_SECONDS, seconds / 3)
            if time.monotonic() - started < warm:
                if time.monotonic() - started > warm / 2:
                    base = highest(base, now)
            else:
                check_bounds(base, now)
            if samples % 12 == 1:
                print("   %5.0f s  training %d, lag %d; %s; points %.1f MiB" % (
                    time.monotonic() - started, numbers["training"], lag,
                    ", ".join("%s %d MiB %d fds %.1f MiB on disk" % (n.name, now[n.name][0] // 1024, now[n.name][1],
                                                                     now[n.name][2] / 2**20) for n in cluster.nodes),
                    now["points"] / 2**20), flush=True)
            time.sleep(SAMPLE_SECONDS)
        require(not late, "published was more than %d steps late at %s" % (LAG, late[:3]))
        job.kill()
        cluster.stop()
    print("passed  %-28s %d samples in %.0f minutes, lag at most %d; memory, descriptors and disk bounded; %.1f s"
          % (name, samples, minutes, worst, time.monotonic() - begun), flush=True)


def highest(base, now):
    """The greatest of each figure while caches fill up."""
    if base is None:
        return now
    return {name: max(base[name], figure) if name == "points" else tuple(map(max, zip(base[name], figure)))
            for name, figure in now.items()}


def check_bounds(base, now):
    require(now["points"] <= base["points"] * (1 + DISK_GROWTH) + (8 << 20), "the points grew from %d to %d bytes"
            % (base["points"], now["points"]))
    for name, (kib, fds, disk) in ((n, v) for n, v in now.items() if n != "points"):
        first = base[name]
        require(kib <= first[0] + RSS_GROWTH_KIB, "%s grew from %d to %d KiB" % (name, first[0], kib))
        require(fds <= first[1] + FD_GROWTH, "%s has %d descriptors, %d before" % (name, fds, first[1]))
        require(disk <= first[2] * (1 + DISK_GROWTH) + (64 << 20), "the store of %s grew from %d to %d bytes"
                % (name, first[2], disk))


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30
    sys.exit(harness.run_cases([("soak", lambda: soak(minutes))]))
