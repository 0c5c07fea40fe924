#!/usr/bin/python3
"""make demo: four ranks train a small GPT over a switch whose mirror feeds three checkpoint nodes. A node is killed with
SIGKILL and comes back; then all four ranks are killed, the job is restored from the newest recovery point and runs to
its end. Beside it the same job runs without a break, and at the end everything of the two is compared, bit for bit:
parameters, moments, counters, optimizer groups, schedule, random generators and data position of every rank. Ends with
a verdict; everything it started is gone afterwards, also after Ctrl-C."""
import sys
import time

import harness
import rig
from cluster import Cluster, PublishWatch, small
from harness import FOUR, require

RANKS, NODES, STEPS = 4, 3, 120
KILL_NODE_AT, DEAD_STEPS, KILL_RANKS_AT = 25, 20, 80
REDONE_AT_MOST = 3
TRAINING = ["--optimizer", "adamw", "--schedule", "cosine", "--dropout", "0.1", "--shuffle", "--augment",
            "--step-sleep", "0.1"]


class Table:
    """A line at least every two seconds: the four numbers, who is alive, and why published is behind."""

    def __init__(self, cluster):
        self.cluster, self.job = cluster, None
        self.begun = time.monotonic()
        self.shown_at = 0.0

    def head(self):
        print("\n%8s %9s %9s %9s %9s  %-15s %6s  %s" % (("seconds",) + FOUR + ("nodes", "loss", "gap")), flush=True)

    def show(self, always=False):
        now = time.monotonic()
        if not always and now - self.shown_at < 2.0:
            return
        status = self.cluster.status() or {}
        numbers = tuple(status.get(k, "-") for k in FOUR)
        gaps = ", ".join(g.get("name", "?") for g in status.get("gaps", [])) or "-"
        nodes = " ".join(n.name if n.alive() else "(%s)" % n.name for n in self.cluster.nodes)
        print("%8.1f %9s %9s %9s %9s  %-15s %6s  %s" % ((now - self.begun,) + numbers + (nodes, self._loss(), gaps)),
              flush=True)
        self.shown_at = now

    def _loss(self):
        try:
            records = self.job.records() if self.job else {}
            return "%.3f" % records[max(records)]["loss"] if len(records) > 1 else "-"
        except (OSError, KeyError):
            return "-"


def say(text):
    print("-- " + text, flush=True)


def wait(what, seconds, table, job, there, dead=()):
    """Until there(), with the table moving and everything that must live alive."""
    def look():
        table.cluster.require_alive(but=dead)
        if job:
            require(job.running(), "the job ended while waiting for " + what)
            job.require_tapped()
        table.show()
        return there()
    try:
        harness.wait_until(what, seconds, look, pause=0.1)
    except harness.Failed as error:
        raise harness.Failed("%s; %s" % (error, table.cluster.describe()))


def demo():
    begun = time.monotonic()
    with harness.case_folder("demo") as folder, rig.Rig(ranks=RANKS, nodes=NODES) as r:
        say("a switch, %d ranks and %d monitor ports in network namespaces %s*" % (RANKS, NODES, r.prefix))
        cluster = Cluster(r, folder).start()
        say("checkpoint nodes: %s; every shard is held by two of them" % ", ".join(
            "%s at %s" % (n.name, rig.node_address(n.number)) for n in cluster.nodes))
        arguments = small(STEPS, *TRAINING)
        whole = harness.Job(r, folder, arguments, attach="", name="whole", beside=True, nice=10).start()
        say("the same job without gradtap and without a break runs beside, out of the mirror's sight")
        first = harness.Job(r, folder, arguments, attach=cluster.endpoints(), name="first").start()
        say("training: GPT on text, AdamW with schedule, clipping, dropout and shuffling, %d steps; a recovery point "
            "every step" % STEPS)
        with PublishWatch(cluster) as watch:
            second, redone = crashes(r, folder, cluster, arguments, first, watch)
            watch.check()
        whole.wait(120)
        compare(cluster, first, second, whole)
        cluster.stop()
    say("%.0f seconds; %d steps were computed twice" % (time.monotonic() - begun, redone))


def crashes(r, folder, cluster, arguments, first, watch):
    table = Table(cluster)
    table.job = first
    table.head()
    wait("published step %d" % KILL_NODE_AT, 120, table, first, lambda: watch.published() >= KILL_NODE_AT)
    victim = cluster.nodes[0]
    say("SIGKILL to %s, the home of the job" % victim.name)
    died, at = time.monotonic(), watch.published()
    victim.kill()
    wait("published to go on without %s" % victim.name, cluster.down_after + 30, table, first,
         lambda: watch.published() >= at + DEAD_STEPS, dead=(0,))
    say("%d steps were published without it; the longest pause was %.1f s"
        % (watch.published() - at, watch.longest_pause(died, time.monotonic())))
    victim.start(wait=False)
    wait("%s to be back" % victim.name, 60, table, first, lambda: cluster.whole())
    say("%s is back" % victim.name)
    wait("step %d" % KILL_RANKS_AT, 120, table, first, lambda: first.committed() >= KILL_RANKS_AT)
    first.kill()
    committed = first.committed()
    say("SIGKILL to all ranks, after the commit of step %d" % committed)
    second = harness.Job(r, folder, arguments + ["--restore", cluster.endpoints()], attach=cluster.endpoints(),
                         name="second", port=29501).start()
    table.job = second
    wait("the restored job to commit", 120, table, second, lambda: second.committed() > 0)
    resumed = second.restored_step()
    require(committed - REDONE_AT_MOST <= resumed <= committed, "resumed at step %d, %d was committed"
            % (resumed, committed))
    say("restored from the recovery point of step %d; the buckets are those of the point" % resumed)
    second.wait(180, table.show)
    wait("published step %d" % STEPS, 60, table, None, lambda: watch.published() >= STEPS)
    table.show(always=True)
    print(flush=True)
    return second, committed - resumed


def compare(cluster, first, second, whole):
    count = harness.compare_histories(second, whole)
    say("state roots of the %d steps since the restart, against the uninterrupted job: equal" % count)
    counts = harness.compare_endings(second, whole)
    say("all %d ranks at the end: %s: equal" % (RANKS, ", ".join("%d %s" % (n, p) for p, n in sorted(counts.items()))))
    points = cluster.check_points(first, second)
    say("%d recovery points listed, each with the root of the trainer's state at its step" % len(points))
    elements = harness.compare_export(cluster.export(STEPS), whole.final(), STEPS)
    say("the recovery point of step %d against the uninterrupted job: %d float32 values, all equal" % (STEPS, elements))


def main():
    rig.enter_privileged()
    harness.programs_or_fail()
    try:
        demo()
    except (harness.Failed, rig.RigError) as error:
        print("\nVERDICT: not shown: %s" % error, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started is gone", flush=True)
        return 130
    print("VERDICT: bit-for-bit equal", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
