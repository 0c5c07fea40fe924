#!/usr/bin/python3
"""Random adds and drains over 2 to 5 nodes under a running job, with one SIGKILL in each sequence at a random moment: to a
node that is copying (target), to one that gives away (source), or to the node that carries the command out and the
command line with it (proposer). The victim is started again and the command repeated. No step may be lost, no point
wrong, and the map must be balanced when it is over.

scale_chaos.py [--seed N] [--count N] [--long]: sequences of the seeds N, N+1, ...; without --long one.
"""
import argparse
import random
import sys
import time

import harness
import rig
from cluster import PublishWatch, small
from harness import require
from scale_cluster import ScaleCluster

NODES, STEPS = 5, 4000
CHANGES = 4  # commands of a sequence
VICTIMS = ("target", "source", "proposer")
SAY = []


def say(text):
    SAY.append(text)


class StallNotes(PublishWatch):
    """What the nodes said when published had not moved for some seconds: for a failure's message."""
    STALL_S = 2.5
    notes = ""

    def _run(self):
        noted = None
        while not self._stop.wait(self.period):
            try:
                statuses = self.cluster.statuses()
            except harness.Failed as error:
                self.errors.append(str(error))
                continue
            if not statuses:
                continue
            published = max((int(s.get("lineage", 0)), int(s.get("published", 0))) for _, s in statuses)
            if published != self.moves[-1][1]:
                self.moves.append((time.monotonic(), published))
            elif time.monotonic() - self.moves[-1][0] > self.STALL_S and noted != published and published[1] > 0:
                noted = published
                self.notes += "; published stood at %d: %s; publishers: %s" % (published[1], self.cluster.describe(), [
                    (n.name, (n.get("/v1/status", quiet=True) or {}).get("actors", {}).get("publisher", {}).get(
                        "last_error")) for n in self.cluster.live()])


class Sequence:
    def __init__(self, seed, r, folder):
        self.random = random.Random(seed)
        first = self.random.choice((2, 3))
        # Two mirror ports at least, always: what one tap misses while its node is dead, another one sees.
        self.taps = {0, 1} | {k for k in range(NODES) if self.random.random() < 0.5}
        self.cluster = ScaleCluster(r, folder, first=first, taps=self.taps)
        self.inside = set(range(first))
        self.victim_kind = self.random.choice(VICTIMS)
        self.kill_at = self.random.randrange(CHANGES)

    def choose(self):
        """(action, node) of a change that the cluster can take: two members and two mirror ports stay."""
        drains = [k for k in self.inside if len(self.inside) > 2 and len((self.taps & self.inside) - {k}) > 1]
        adds = [k for k in range(NODES) if k not in self.inside]
        action = self.random.choice([a for a, them in (("add", adds), ("drain", drains)) if them])
        return action, self.random.choice(adds if action == "add" else drains)

    def run(self):
        for number in range(CHANGES):
            action, k = self.choose()
            say("%s tap%d" % (action, k))
            if action == "add" and not self.cluster.nodes[k].alive():
                self.cluster.nodes[k].start(wait=False)
            through = self.cluster.nodes[self.random.choice(sorted(self.inside - {k}))]
            if number == self.kill_at:
                self.with_a_kill(action, k, through)
            else:
                self.command(action, k, through)
            if action == "add":
                self.inside.add(k)
            else:
                self.inside.discard(k)
                self.end(k)

    def command(self, action, k, through, **options):
        arguments = self.cluster.facts(k) if action == "add" else []
        return self.cluster.nodes_command(action, self.cluster.nodes[k].name, *arguments, through=through, **options)

    def end(self, k):
        node = self.cluster.nodes[k]
        code = node.stop()
        require(code in (0, 5), "%s was drained and ended with code %s" % (node.name, code))

    def with_a_kill(self, action, k, through):
        running = self.command(action, k, through, wait=False)
        time.sleep(self.random.choice((0.0, 0.05, 0.2, 0.5, 1.0)))
        roles = {"syncing": set(), "releasing": set()}
        placement = through.get("/v1/jobs/%s/placement" % self.cluster.job, quiet=True)
        for shard in (placement or {}).get("shards", []):
            for holder in shard["holders"]:
                roles.get(holder["role"], set()).add(holder["node"])
        by_name = {n.name: n for n in self.cluster.nodes}
        pool = {"target": roles["syncing"], "source": roles["releasing"], "proposer": {through.name}}[self.victim_kind]
        name = self.random.choice(sorted(pool or ({self.cluster.nodes[k].name} if action == "add" else {through.name})))
        victim = by_name[name]
        say("SIGKILL to %s as %s" % (name, self.victim_kind))
        victim.kill()
        if self.victim_kind == "proposer":
            running.kill()
        time.sleep(self.random.choice((0.0, 1.0, 4.0)))
        victim.start(wait=False)
        running.kill()
        running.wait()
        # Repeated through another member, the command sees it through.
        others = [self.cluster.nodes[m] for m in sorted(self.inside - {k}) if self.cluster.nodes[m] is not victim]
        harness.wait_until("the victim to answer", 60, lambda: victim.get("/v1/status", quiet=True) is not None
                           or self.left(victim))
        self.command(action, k, others[0])

    @staticmethod
    def left(node):
        """A drained node that was killed waits to be added again: it says so and answers nobody."""
        return "waiting to become a member" in node.last_words()


def sequence(seed):
    name, begun = "seed-%d" % seed, time.monotonic()
    del SAY[:]
    with harness.case_folder("scale-chaos-%d" % seed) as folder, rig.Rig(ranks=2, nodes=NODES) as r:
        run = Sequence(seed, r, folder)
        cluster = run.cluster.start()
        job = harness.Job(r, folder, small(STEPS, "--step-sleep", "0.1"), attach=cluster.endpoints()).start()
        try:
            with StallNotes(cluster) as watch:
                cluster.wait_step("published", 5, 90)
                run.run()
                counts = cluster.wait_balanced(60)
                at = watch.published()
                cluster.wait_step("published", at + 10, 60, dead=set(range(NODES)) - run.inside)
                watch.check()
        except harness.Failed as error:
            raise harness.Failed("%s [%s]; %s" % (error, ", ".join(SAY), cluster.describe()))
        require(job.running(), "the job ended")
        job.kill()
        steps = cluster.check_points(job, killed=True)
        missing = sorted(set(range(1, max(steps) + 1)) - set(steps))
        require(not missing, "steps that were never published: %s [%s]%s" % (missing, ", ".join(SAY), watch.notes))
        for node in cluster.live():
            node.stop()
    print("passed  %-28s %s; %d points without a gap; shards %s; %.1f s"
          % (name, ", ".join(SAY), len(steps), sorted(counts.values()), time.monotonic() - begun), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=None)
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    rig.enter_privileged()
    harness.programs_or_fail()
    count = options.count or (20 if options.long else 1)
    sys.exit(harness.run_cases([("seed-%d" % s, lambda s=s: sequence(s))
                                for s in range(options.seed, options.seed + count)]))
