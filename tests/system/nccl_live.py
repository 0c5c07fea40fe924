#!/usr/bin/python3
"""A real PyTorch job whose reduced gradients travel as NCCL's RoCEv2 traffic: the mirror carries what `gradtap generate
--live` plays, the nodes read it with transport nccl, and everything after that is as for gloo: roots, recovery points,
restart, all compared with the trainer bit for bit.

    nccl_live.py [short|long|NAME...]
"""
import os
import subprocess
import sys
import time

import harness
import rig
from cluster import SHARD, Cluster, small
from harness import require

ERSPAN2, VXLAN = 5, 7


class FabricProcess:
    """`gradtap generate --live` inside the switch."""

    def __init__(self, r, folder, name, wire, version="2.19.3", channels=1, ll_bytes_max=1 << 20, mtu=1024, qpn=0x100,
                 hosts=None, more=()):
        self.path = os.path.join(folder, name + ".sock")
        self.log = os.path.join(folder, name + ".log")
        hosts = hosts or [rig.rank_address(i) for i in range(r.ranks)]
        self.command = [os.path.join(harness.BIN, "gradtap"), "generate", "--live", wire, "--from", self.path,
                        "--ranks", str(len(hosts)), "--hosts", ",".join(hosts), "--channels", str(channels),
                        "--nccl", version, "--ll-max-bytes", str(ll_bytes_max), "--mtu", str(mtu),
                        "--first-qpn", str(qpn), "--bytes-per-second", "60000000", *more]
        self.rig = r

    def start(self):
        with open(self.log, "w") as log:
            self.child = self.rig.start(self.rig.switch, *self.command, stdout=log, stderr=subprocess.STDOUT)
        harness.wait_until("the generator to listen", 10, lambda: os.path.exists(self.path) or self.ended())
        return self

    def ended(self):
        if self.child.poll() is None:
            return False
        with open(self.log, errors="replace") as f:
            raise harness.Failed("the generator ended with code %s: %s" % (self.child.poll(), f.read()[-400:]))

    def stop(self):
        rig.kill_group(self.child)
        if os.path.exists(self.path):
            os.unlink(self.path)


def keys(version, channels, ll_bytes_max):
    return 'transport = "nccl"\nnccl_version = "%s"\nnccl_channels = %d\nnccl_ll_bytes_max = %d\n' % (
        version, channels, ll_bytes_max)


def follows(name, ranks=3, steps=24, nodes=1, version="2.19.3", channels=2, ll_bytes_max=1 << 20, mtu=1024, more=()):
    """Every step's root, every point and the final state equal the trainer's."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=ranks, nodes=nodes, mtu=9000 if mtu > 1024 else 1500,
                                                      mirror="none") as r:
        fabric = FabricProcess(r, folder, "fabric", r.add_wire(), version, channels, ll_bytes_max, mtu,
                               more=more).start()
        cluster = Cluster(r, folder, job_keys=keys(version, channels, ll_bytes_max)).start()
        job = harness.Job(r, folder, small(steps, "--fabric", fabric.path), attach=cluster.endpoints()).start()
        job.wait(120 + steps, cluster.watch(job))
        cluster.wait_step("published", steps, 60)
        points = cluster.check_points(job)
        for node in cluster.nodes:
            harness.compare_roots(node, job, steps, first=1)
        harness.compare_export(cluster.export(steps), job.final(), steps)
        cluster.stop()
        fabric.stop()
    print("passed  %-28s %d ranks, NCCL %s, %d channels: %d points of %d steps, every root equal; %.1f s"
          % (name, ranks, version, channels, len(points), steps, time.monotonic() - begun), flush=True)


def restarts(name, ranks=3, steps=40, version="2.22.3", channels=2, ll_bytes_max=100_000):
    """All ranks are killed; the restored job, on new queue pairs, ends as the uninterrupted one."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=ranks, nodes=3, mirror="none") as r:
        wire = r.add_wire()
        first = FabricProcess(r, folder, "fabric1", wire, version, channels, ll_bytes_max).start()
        cluster = Cluster(r, folder, job_keys=keys(version, channels, ll_bytes_max)).start()
        arguments = small(steps, "--dropout", "0.1", "--shuffle", "--augment")
        whole = harness.Job(r, folder, arguments, attach="", name="whole", beside=True, nice=10).start()
        job = harness.Job(r, folder, arguments + ["--fabric", first.path], attach=cluster.endpoints()).start()
        cluster.wait_step("published", steps // 2, 90)
        job.kill()
        committed = max(job.committed(i) for i in range(ranks))
        first.stop()
        second = FabricProcess(r, folder, "fabric2", wire, version, channels, ll_bytes_max, qpn=0x400).start()
        again = harness.Job(r, folder, arguments + ["--fabric", second.path, "--restore", cluster.endpoints()],
                            attach=cluster.endpoints(), name="again", port=29501).start()
        again.wait(180, cluster.watch(again))
        resumed = again.restored_step()
        require(resumed is not None and committed - 3 <= resumed <= committed, "committed %d, resumed at %s"
                % (committed, resumed))
        cluster.wait_step("published", steps, 60)
        whole.wait(180)
        require(again.final().equals(whole.final()), "the restored job ends with other bits")
        harness.compare_export(cluster.export(steps), whole.final(), steps)
        for i in range(ranks):
            require(again.ending(i) == whole.ending(i), "rank %d ends in another state" % i)
        cluster.stop()
        second.stop()
    print("passed  %-28s committed %d, resumed at %d, ends bit-equal; %.1f s"
          % (name, committed, resumed, time.monotonic() - begun), flush=True)


def fails_over(name, ranks=3, steps=30, version="2.21.5", channels=2, ll_bytes_max=1 << 20):
    """The fabric stands still for three seconds, twice; then another port mirrors, in another wrapping. Nothing lost."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=ranks, nodes=1, mirror="none") as r:
        fabric = FabricProcess(r, folder, "fabric", r.add_wire("wire0"), version, channels, ll_bytes_max).start()
        r.add_wire("wire1")
        cluster = Cluster(r, folder, job_keys=keys(version, channels, ll_bytes_max)).start()
        job = harness.Job(r, folder, small(steps, "--fabric", fabric.path, "--fabric-events",
                                           "10:move:3:%d:wire1,20:move:3:%d:wire0" % (VXLAN, ERSPAN2)),
                          attach=cluster.endpoints()).start()
        job.wait(120, cluster.watch(job))
        cluster.wait_step("published", steps, 60)
        harness.compare_roots(cluster.nodes[0], job, steps, first=1)
        harness.compare_export(cluster.export(steps), job.final(), steps)
        cluster.stop()
        fabric.stop()
    print("passed  %-28s two moves of the mirror, every root of %d steps equal; %.1f s"
          % (name, steps, time.monotonic() - begun), flush=True)


def goes_blind(name, ranks=2, steps=24, version="2.19.3", channels=1, ll_bytes_max=1 << 20):
    """What only the mirror misses is lost: named with its range, nothing wrong is published; the next lineage goes on."""
    begun = time.monotonic()
    blind_at = steps // 2
    with harness.case_folder(name) as folder, rig.Rig(ranks=ranks, nodes=1, mirror="none") as r:
        wire = r.add_wire()
        first = FabricProcess(r, folder, "fabric1", wire, version, channels, ll_bytes_max).start()
        cluster = Cluster(r, folder, job_keys=keys(version, channels, ll_bytes_max)).start()
        job = harness.Job(r, folder, small(steps, "--fabric", first.path, "--fabric-events", "%d:blind:900" % blind_at),
                          attach=cluster.endpoints()).start()
        job.wait(120)
        lost = lambda: [g for g in (cluster.status() or {}).get("gaps", []) if g["name"] == "LOST_DEFINITIVE"]
        try:
            held = harness.wait_until("LOST_DEFINITIVE", 30, lost)[0]
        except harness.Failed as error:
            raise harness.Failed("%s; %s" % (error, cluster.describe()))
        require(held["since_step"] == blind_at, "the gap begins at step %d, not %d" % (held["since_step"], blind_at))
        require("[" in held["evidence"], "no range is named: " + held["evidence"])
        published = cluster.best("published")
        require(published < blind_at, "step %d was published, the mirror was blind in step %d" % (published, blind_at))
        harness.compare_roots(cluster.nodes[0], job, published, first=1)
        first.stop()
        second = FabricProcess(r, folder, "fabric2", wire, version, channels, ll_bytes_max, qpn=0x400).start()
        again = harness.Job(r, folder, small(steps, "--fabric", second.path, "--restore", cluster.endpoints()),
                            attach=cluster.endpoints(), name="again", port=29501).start()
        again.wait(120, cluster.watch(again))
        require(again.restored_step() == published, "restored to %s, published was %d"
                % (again.restored_step(), published))
        cluster.wait_step("published", steps, 60)
        require(again.final().equals(job.final()), "the restored job ends with other bits")
        harness.compare_export(cluster.export(steps), job.final(), steps)
        cluster.stop()
        second.stop()
    print("passed  %-28s blind in step %d: %s; restored at %d, ends bit-equal; %.1f s"
          % (name, blind_at, held["evidence"][:60], published, time.monotonic() - begun), flush=True)


def tenants(name, ranks=2, steps=24, channels=1, ll_bytes_max=1 << 20):
    """Two jobs on one mirror, with the same queue pair numbers: each node follows its own."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=ranks, nodes=2, mirror="none") as r:
        wire, found = r.add_wire(), []
        for k, version in enumerate(("2.19.3", "2.22.3")):
            mine = os.path.join(folder, "tenant%d" % k)
            os.mkdir(mine)
            hosts = ["10.9%d.0.%d" % (k, i + 1) for i in range(ranks)]
            fabric = FabricProcess(r, mine, "fabric", wire, version, channels, ll_bytes_max, hosts=hosts).start()
            node = harness.Node(r, mine, "job%d" % k, SHARD, number=k, endpoints=hosts, queues=1, ring_frames=16384,
                                job_keys=keys(version, channels, ll_bytes_max)).start()
            job = harness.Job(r, mine, small(steps, "--fabric", fabric.path, "--seed", 7 + k),
                              attach="http://%s:7700" % rig.node_address(k), job="job%d" % k, port=29500 + k)
            found.append((fabric, node, job))
        for _, _, job in found:
            job.start()
        for fabric, node, job in found:
            job.wait(120)
            node.wait_step("durable", steps, 60)
            harness.compare_roots(node, job, steps, first=1)
            harness.compare_export(node.export(steps), job.final(), steps)
            foreign = node.get("/v1/status")["actors"]["ingress.0"]["foreign_frames"]
            require(foreign > 1000, "%s saw %d frames of the other job" % (node.name, foreign))
        require(not found[0][2].final().equals(found[1][2].final()), "both jobs are the same")
        for fabric, node, _ in found:
            node.stop()
            fabric.stop()
    print("passed  %-28s two jobs of %d steps, every root equal; %.1f s"
          % (name, steps, time.monotonic() - begun), flush=True)


def refused(name, what, setting, more, ranks=3, steps=8, channels=2):
    """A job that NCCL runs in a way that is not decoded trains on; the node names the way and the setting."""
    begun = time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=ranks, nodes=1, mirror="none") as r:
        fabric = FabricProcess(r, folder, "fabric", r.add_wire(), channels=channels, more=more).start()
        cluster = Cluster(r, folder, job_keys=keys("2.19.3", channels, 1 << 20)).start()
        job = harness.Job(r, folder, small(steps, "--fabric", fabric.path), attach=cluster.endpoints()).start()
        job.wait(120)
        named = lambda: [g for g in (cluster.status() or {}).get("gaps", []) if g["name"] == "UNSUPPORTED"]
        try:
            gap = harness.wait_until("UNSUPPORTED", 30, named)[0]
        except harness.Failed as error:
            raise harness.Failed("%s; %s" % (error, cluster.describe()))
        require(what in gap["evidence"] and setting in gap["evidence"] and "costs" in gap["evidence"],
                "the evidence is: " + gap["evidence"])
        require(gap["since_step"] == 1 and cluster.best("published") == 0, "a step was published")
        cluster.stop()
        fabric.stop()
    print("passed  %-28s %s; %.1f s" % (name, gap["evidence"], time.monotonic() - begun), flush=True)


def cases():
    return [("short-ll", lambda: follows("short-ll", version="2.19.3", channels=2)),
            ("short-simple", lambda: follows("short-simple", ranks=2, version="2.22.3", channels=1, ll_bytes_max=0,
                                             steps=16)),
            ("long-n4-2.19-simple", lambda: follows("long-n4-2.19-simple", 4, 60, 3, "2.19.3", 2, 0)),
            ("long-n4-2.21-ll", lambda: follows("long-n4-2.21-ll", 4, 60, 1, "2.21.5", 4)),
            ("long-n2-2.22-mixed", lambda: follows("long-n2-2.22-mixed", 2, 60, 1, "2.22.3", 1, 300_000, 4096)),
            ("long-faults", lambda: follows("long-faults", 4, 60, 1, "2.19.3", 2, more=(
                "--retransmit", "0.002", "--duplicate", "0.002", "--reorder", "0.002"))),
            ("long-lossy", lambda: follows("long-lossy", 4, 60, 1, "2.22.3", 2, more=("--drop", "0.0003"))),
            ("long-restart", lambda: restarts("long-restart")),
            ("long-failover", lambda: fails_over("long-failover")),
            ("long-blind", lambda: goes_blind("long-blind")),
            ("long-tenants", lambda: tenants("long-tenants")),
            ("long-ll128", lambda: refused("long-ll128", "LL128", "NCCL_PROTO=LL,Simple", ("--manner", "ll128"))),
            ("long-tree", lambda: refused("long-tree", "tree or NVLS", "NCCL_ALGO=Ring", ("--manner", "tree"))),
            ("long-queue-pairs-cut", lambda: refused(
                "long-queue-pairs-cut", "several queue pairs", "NCCL_IB_QPS_PER_CONNECTION=1",
                ("--queue-pairs", "2", "--cut-over-queue-pairs"))),
            ("long-queue-pairs-turns", lambda: refused(
                "long-queue-pairs-turns", "several queue pairs", "NCCL_IB_QPS_PER_CONNECTION=1",
                ("--queue-pairs", "4")))]


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
