#!/usr/bin/python3
"""make demo-scale: a job trains on two checkpoint nodes; two more are added and the shards spread over them; one of the
new nodes is killed with SIGKILL in the middle of its copy and started again; one of the first two is drained away and
stopped. The shard map before, during and after; at the end parameters, moments and every recovery point are compared
with the trainer's own, bit for bit. Ends with a verdict; everything it started is gone afterwards."""
import sys
import threading
import time

import harness
import rig
from cluster import PublishWatch, small
from harness import require
from demo import Table, say, wait
from scale_cluster import ScaleCluster

RANKS, NODES, STEPS, SLEEP = 4, 4, 300, "0.1"
INTERVAL = 5  # steps from one recovery point to the next
TRAINING = ["--optimizer", "adamw", "--schedule", "cosine", "--dropout", "0.1", "--step-sleep", SLEEP]
PAUSE_INTERVALS = 2  # of published, while members change as planned


def demo():
    begun = time.monotonic()
    with harness.case_folder("demo-scale") as folder, rig.Rig(ranks=RANKS, nodes=NODES) as r:
        cluster = ScaleCluster(r, folder, first=2, taps=(0, 1), publish_interval=INTERVAL).start()
        say("two checkpoint nodes, each on a mirror port; two more stand ready, without one")
        job = harness.Job(r, folder, small(STEPS, *TRAINING), attach=cluster.endpoints(), name="train").start()
        say("training: GPT on text, AdamW, %d steps; a recovery point every %d steps" % (STEPS, INTERVAL))
        table = Table(cluster)
        table.job = job
        table.head()
        with PublishWatch(cluster, period=0.05) as watch:
            wait("published step 15", 120, table, job, lambda: watch.published() >= 15)
            say("the shard map before:")
            cluster.print_map(say)
            changes = change(cluster, table, job, watch)
            say("the shard map after:")
            cluster.print_map(say)
            job.wait(180, table.show)
            wait("published step %d" % STEPS, 60, table, None, lambda: watch.published() >= STEPS, dead=(0,))
            watch.check()
        table.show(always=True)
        print(flush=True)
        compare(cluster, job, watch, changes)
        cluster.stop()
    say("%.0f seconds" % (time.monotonic() - begun))


def background(call):
    """The call in a thread of its own; join() raises what it raised."""
    class Call(threading.Thread):
        error = None

        def run(self):
            try:
                call()
            except BaseException as error:
                self.error = error

        def settle(self):
            self.join()
            if self.error is not None:
                raise self.error
    thread = Call(daemon=True)
    thread.start()
    return thread


def change(cluster, table, job, watch):
    planned = []

    def stretch(what, call):
        since = time.monotonic()
        thread = background(call)
        wait(what, 180, table, job, lambda: not thread.is_alive(), dead=(0, 3))
        thread.settle()
        planned.append((what, since, time.monotonic()))

    say("gradtap nodes add tap2")
    stretch("tap2 to be a member", lambda: cluster.add(2))
    cluster.print_map(say)
    say("gradtap nodes add tap3, and SIGKILL to it in the middle of its copy")
    victim = cluster.nodes[3]
    victim.start(wait=False)
    cluster.nodes_command("add", victim.name, *cluster.facts(3), "--wait-s", 0)
    wait("tap3 to copy", 60, table, job, lambda: cluster.members().get("tap3", {}).get("syncing", 0) > 0)
    killed = time.monotonic()
    victim.kill()
    say("the shard map now (+ comes, - goes):")
    cluster.print_map(say)
    at = watch.published()
    wait("published to go on", 60, table, job, lambda: watch.published() >= at + 10, dead=(3,))
    say("%d steps were published meanwhile, the longest pause was %.1f s"
        % (watch.published() - at, watch.longest_pause(killed, time.monotonic())))
    victim.start(wait=False)
    stretch("tap3 to have its share", lambda: cluster.nodes_command("add", "tap3"))
    counts = cluster.require_balanced()
    say("shards a node: %s" % ", ".join("%s %d" % c for c in sorted(counts.items())))
    check = cluster.drain_check(0)
    say("gradtap nodes drain tap0 --check: %s; %d shards, %.1f MiB to give away"
        % ("safe to take down now" if check["safe"] else "not safe", check["held_shards"],
           check["held_bytes"] / (1 << 20)))
    say("gradtap nodes drain tap0 (it is the home of the job)")
    stretch("tap0 to be empty", lambda: cluster.drain(0))
    code = cluster.nodes[0].stop()
    require(code == 0 or code == 5, "the drained node ended with code %s" % code)
    say("tap0 is out of the cluster and stopped")
    cluster.wait_balanced()
    return planned


def compare(cluster, job, watch, changes):
    steps = cluster.check_points(job)
    missing = sorted(set(range(INTERVAL, STEPS + 1, INTERVAL)) - set(steps))
    require(not missing, "steps that were never published: %s" % missing)
    say("%d recovery points, one of every %d steps, each with the root of the trainer's state" % (len(steps), INTERVAL))
    elements = harness.compare_export(cluster.export(STEPS), job.final(), STEPS)
    say("the recovery point of step %d against the trainer: %d float32 values, all equal" % (STEPS, elements))
    (begun, first), (ended, last) = watch.moves[1], watch.moves[-1]
    interval_s = (ended - begun) / (last[1] - first[1]) * INTERVAL
    for what, since, until in changes:
        pause = watch.longest_pause(since, until)
        say("longest pause of published while waiting for %s: %.2f s, %.1f intervals" % (what, pause,
                                                                                        pause / interval_s))
        require(pause <= PAUSE_INTERVALS * interval_s, "published paused for %.2f s, its interval is %.2f s"
                % (pause, interval_s))


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
    print("\nVERDICT: bit-for-bit equal", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
