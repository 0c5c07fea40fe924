#!/usr/bin/python3
"""The awkward moments of a cluster whose members change, each under a running job:

two-commands     two adds and a drain at the same time, through different nodes: all are carried out, one after another
old-data         a node that was killed in the middle of its draining and taken out comes back with its old disk, waits,
                 and is added again: it holds what the others hold
empty-disk       a node is replaced under its name by one with an empty disk
no-store         the object store cannot be reached: no new epoch, the command says so, training is followed on; then it
                 is there again
drain-check      what drain --check calls safe is killed for ever, disk and all; what it calls unsafe is named
every-stage      target, source and proposer killed at each stage of a hand-off, by kill points
idempotent       every command twice, and a command line that dies is taken up by the next one
"""
import os
import shutil
import sys
import time

import harness
import rig
from cluster import PublishWatch, small
from harness import require
from scale_cluster import ScaleCluster

STEPS = 6000


class Scene:
    """A cluster under a running job; leaving it checks that every step was published and every point is right."""

    def __init__(self, name, nodes=4, first=2, taps=(0, 1), **options):
        self.name, self.begun = name, time.monotonic()
        self.options = dict(first=first, taps=taps, **options)
        self.nodes = nodes

    def __enter__(self):
        self.folder = harness.case_folder("scale-" + self.name)
        folder = self.folder.__enter__()
        self.rig = rig.Rig(ranks=2, nodes=self.nodes)
        r = self.rig.__enter__()
        self.cluster = ScaleCluster(r, folder, **self.options).start()
        self.job = harness.Job(r, folder, small(STEPS, "--step-sleep", "0.1"),
                               attach=self.cluster.endpoints()).start()
        self.watch = PublishWatch(self.cluster).__enter__()
        self.cluster.wait_step("published", 5, 90)
        return self

    def go_on(self, steps=10, dead=()):
        at = self.watch.published()
        self.cluster.wait_step("published", at + steps, 60, dead=dead)

    def __exit__(self, kind, error, trace):
        try:
            if kind is None:
                self.watch.__exit__(None, None, None)
                self.watch.check()
                require(self.job.running(), "the job ended")
                self.job.kill()
                steps = self.cluster.check_points(self.job, killed=True)
                missing = sorted(set(range(1, max(steps) + 1)) - set(steps))
                require(not missing, "steps that were never published: %s" % missing)
                for node in self.cluster.live():
                    node.stop()
                print("passed  %-28s %d points without a gap; %.1f s" % (self.name, len(steps),
                                                                        time.monotonic() - self.begun), flush=True)
        finally:
            self.rig.__exit__(kind, error, trace)
            self.folder.__exit__(kind, error, trace)
        return False


def two_commands():
    with Scene("two-commands", nodes=5, first=3, taps=(0, 1, 2)) as scene:
        cluster = scene.cluster
        for k in (3, 4):
            cluster.nodes[k].start(wait=False)
        running = [cluster.nodes_command("add", "tap3", *cluster.facts(3), through=cluster.nodes[0], wait=False),
                   cluster.nodes_command("add", "tap4", *cluster.facts(4), through=cluster.nodes[1], wait=False),
                   cluster.nodes_command("drain", "tap2", through=cluster.nodes[0], wait=False)]
        for process in running:
            output = process.communicate(timeout=120)[0]
            require(process.returncode == 0, "a command beside others failed: %s" % output)
        cluster.wait_balanced()
        members = {n: m["membership"] for n, m in cluster.members().items()}
        require(members == {"tap0": "in", "tap1": "in", "tap2": "out", "tap3": "in", "tap4": "in"},
                "members: %s" % members)
        harness.wait_until("one epoch everywhere", 5, lambda: 1 == len(
            {node.get("/v1/nodes")["epoch"] for node in cluster.live() if node.number != 2}))
        scene.go_on(dead=(2,))


def old_data():
    with Scene("old-data", nodes=3, first=3, taps=(0, 1, 2)) as scene:
        cluster = scene.cluster
        running = cluster.drain(2, wait=False)
        time.sleep(0.1)
        cluster.nodes[2].kill()
        running.kill()
        running.wait()
        cluster.nodes_command("remove", "tap2")
        scene.go_on(20, dead=(2,))
        node = cluster.nodes[2].start(wait=False)
        harness.wait_until("the node to wait for its membership", 20,
                           lambda: "waiting to become a member" in node.last_words(20))
        require(node.get("/v1/status", quiet=True) is None, "a node that is out answers")
        scene.go_on(5, dead=(2,))
        cluster.nodes_command("add", "tap2")
        cluster.wait_balanced()
        scene.go_on()


def empty_disk():
    with Scene("empty-disk", nodes=3, first=3, taps=(0, 1, 2)) as scene:
        cluster = scene.cluster
        node = cluster.nodes[1]
        node.kill()
        shutil.rmtree(node.data)
        scene.go_on(dead=(1,))
        node.start(wait=False)
        cluster.nodes_command("replace", "tap1")
        cluster.wait_balanced()
        scene.go_on()


def no_store():
    with Scene("no-store", nodes=3, first=2, taps=(0, 1)) as scene:
        cluster = scene.cluster
        away = cluster.objects + ".away"
        os.rename(cluster.objects, away)
        output = cluster.nodes_command("add", "tap2", *cluster.facts(2), code=None)
        require("OBJECT" in output and "members stay" not in output or "E4" in output,
                "the command does not say that the store is away: %s" % output)
        at = cluster.best("durable")
        cluster.wait_step("durable", at + 20, 60)  # everything else goes on
        answer = cluster.live()[0].get("/v1/nodes")
        require(answer["store_error"], "the store is away, and nobody says so: %s" % answer)
        os.rename(away, cluster.objects)
        cluster.add(2)
        cluster.wait_balanced()
        scene.go_on()


def drain_check():
    with Scene("drain-check", nodes=4, first=3, taps=(0, 1)) as scene:
        cluster = scene.cluster
        scene.go_on(5)
        check = cluster.drain_check(2)
        require(check["safe"], "two of three owners are in sync: %s" % check)
        node = cluster.nodes[2]
        node.kill()
        shutil.rmtree(node.data)
        # Now every shard of tap2 has one owner left: none of the two may go before the copies are made again.
        unsafe = [cluster.drain_check(k, through=cluster.nodes[1 - k]) for k in (0, 1)]
        require(not any(c["safe"] for c in unsafe), "the last copy is called safe: %s" % unsafe)
        require(all("in sync" in " ".join(c["reasons"]) for c in unsafe), "reasons: %s" % unsafe)
        output = cluster.nodes_command("remove", "tap0", through=cluster.nodes[1], code=1)
        require("MEMBER_UNSAFE" in output, "a member with last copies was removed: %s" % output)
        scene.go_on(5, dead=(2,))
        cluster.nodes_command("remove", "tap2", through=cluster.nodes[0])
        cluster.wait_balanced()
        # The mirror ports: tap3 has none, and tap0 and tap1 each one.
        cluster.add(3)
        cluster.wait_balanced()
        check = cluster.drain_check(0)
        require(check["safe"], "%s" % check)
        cluster.nodes[0].kill()
        shutil.rmtree(cluster.nodes[0].data)
        cluster.nodes_command("remove", "tap0")
        cluster.wait_balanced()
        scene.go_on(dead=(0, 2))
        check = cluster.drain_check(1)
        require(not check["safe"] and any("mirror port" in reason for reason in check["reasons"]),
                "the only mirror port is called safe: %s" % check)


def idempotent():
    with Scene("idempotent", nodes=3, first=2, taps=(0, 1)) as scene:
        cluster = scene.cluster
        running = cluster.add(2, wait=False)
        time.sleep(0.2)
        running.kill()
        running.wait()
        for _ in range(2):
            cluster.nodes_command("add", "tap2")
            counts = cluster.require_balanced()
        before = cluster.live()[0].get("/v1/nodes")["epoch"]
        cluster.nodes_command("add", "tap2", *cluster.facts(2))
        require(cluster.live()[0].get("/v1/nodes")["epoch"] == before, "a command that was done made an epoch")
        output = cluster.nodes_command("add", "tap2", "--domain", "elsewhere", code=1)
        require("MEMBER_CONFLICT" in output, output)
        output = cluster.nodes_command("drain", "nobody", code=1)
        require("MEMBER_UNKNOWN" in output, output)
        running = cluster.drain(2, wait=False)
        time.sleep(0.2)
        running.kill()
        running.wait()
        cluster.nodes_command("add", "tap2")  # draining is called off
        require(cluster.wait_balanced() == counts, "the map is another one after a drain that was called off")
        cluster.drain(2)
        cluster.drain(2)
        output = cluster.drain(1, code=1)
        require("MEMBER_UNSAFE" in output, "a drain below the number of copies: %s" % output)
        scene.go_on(dead=(2,))


def every_stage():
    """(kill point, node that has it, command): the node dies there, is started again, and the command is repeated."""
    stages = [("epoch.after_create", 0, ("add", 2)), ("handoff.after_version", 3, ("add", 3)),
              ("store.after_ingest:2", 4, ("add", 4)), ("handoff.before_release", 1, ("drain", 1)),
              ("handoff.after_release", 2, ("drain", 2))]
    for at, (point, victim, (action, k)) in enumerate(stages):
        inside = {0, 1, 2, 3, 4} if action == "drain" else set(range(k))
        with Scene("stage-%d" % at, nodes=5, first=len(inside), taps=(0, 1, 2)) as scene:
            cluster = scene.cluster
            node = cluster.nodes[victim]
            if node.alive():  # with the kill point it begins anew
                node.stop()
                node.start(kill_point=point, wait=False)
                harness.wait_until("%s to be back" % node.name, 60,
                                   lambda: cluster.members().get(node.name, {}).get("state") == "up")
            else:
                node.start(kill_point=point, wait=False)
            if not cluster.nodes[k].alive():
                cluster.nodes[k].start(wait=False)
            scene.go_on(3)
            through = cluster.nodes[victim if point.startswith("epoch") else 1 if victim != 1 else 0]
            running = cluster.nodes_command(action, cluster.nodes[k].name,
                                            *(cluster.facts(k) if action == "add" else []), through=through, wait=False)
            harness.wait_until("%s to die at %s" % (node.name, point), 60, lambda: not node.alive())
            running.kill()
            running.wait()
            node.start(wait=False)
            others = [cluster.nodes[m] for m in sorted(inside - {k, victim})]
            cluster.nodes_command(action, cluster.nodes[k].name,
                                  *(cluster.facts(k) if action == "add" else []), through=others[0])
            cluster.wait_balanced()
            scene.go_on(dead=(k,) if action == "drain" else ())
            scene.name = "%s at tap%d (%s tap%d)" % (point, victim, action, k)


CASES = [("every-stage", every_stage), ("two-commands", two_commands), ("old-data", old_data), ("empty-disk", empty_disk), ("no-store", no_store),
         ("drain-check", drain_check), ("idempotent", idempotent)]

if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen(CASES, [w for w in sys.argv[1:] if w != "--long"])))
