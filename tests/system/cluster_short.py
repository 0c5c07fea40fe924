#!/usr/bin/python3
"""Three nodes, four ranks, a point every step, part of `make test`: published rises; a node is killed and the rest goes
on while it is away; it comes back and catches up; roots, points and the final state equal the trainer's on every node.
"""
import sys
import time

import cluster_answers
import harness
import rig
from cluster import Cluster, PublishWatch, members_of, small
from harness import require

STEPS = 90


def short():
    name, begun = "cluster-short", time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=4, nodes=3) as r:
        cluster = Cluster(r, folder).start()
        job = harness.Job(r, folder, small(STEPS, "--step-sleep", "0.12"), attach=cluster.endpoints()).start()
        with PublishWatch(cluster) as watch:
            cluster.wait_step("published", 10, 90)
            cluster_answers.metrics_agree_while_running(cluster.nodes[2])
            victim = cluster.nodes[1]
            killed = time.monotonic()
            victim.kill()
            at_kill = watch.published()
            cluster.wait_step("published", at_kill + 5, cluster.down_after + 20, dead=(1,))
            pause = watch.longest_pause(killed, time.monotonic())
            absent_is_listed(cluster, victim)
            victim.start()
            job.wait(180, cluster.watch(job))
            cluster.wait_step("published", STEPS, 60)
            harness.wait_until("every node at the last step", 60, lambda: all(
                int(s.get("durable", 0)) >= STEPS for _, s in cluster.statuses()) and len(cluster.statuses()) == 3)
            watch.check()
        for node in cluster.nodes:
            same_answers(cluster, node, job)
        cluster_answers.same_from_each(cluster, job, STEPS - 5)
        cluster_answers.metrics_agree(cluster)
        cluster_answers.command_line(cluster.nodes[2], job, STEPS - 5)
        slowest = cluster_answers.silent_is_absent(cluster, cluster.nodes[0], job, STEPS - 5)
        steps = cluster.check_points(job)
        harness.compare_export(cluster.export(STEPS), job.final(), STEPS)
        cluster.stop()
        cluster_answers.ended_well(cluster, STEPS)
    print("passed  %-28s %d points of %d steps, longest pause of published %.1f s with a dead node, answers in %.1f s "
          "with a silent one; %.1f s" % (name, len(steps), STEPS, pause, slowest, time.monotonic() - begun), flush=True)


def absent_is_listed(cluster, victim):
    """Every live node names the dead one, and answers within two seconds all the same."""
    for node in cluster.live():
        for path in ("/v1/jobs/%s/shards" % cluster.job, "/v1/jobs/%s/points" % cluster.job, "/v1/status"):
            begun = time.monotonic()
            answer = node.get(path)
            took = time.monotonic() - begun
            require(took <= 2.0, "%s took %.1f s for %s with a dead node" % (node.name, took, path))
        states = {m["name"]: m.get("state") for m in members_of(answer)}
        require(states.get(victim.name) not in (None, "up"), "%s does not list %s as absent: %s"
                % (node.name, victim.name, states))


def same_answers(cluster, node, job):
    """Shards and points as this node gives them equal the trainer's."""
    shards = node.get("/v1/jobs/%s/shards" % cluster.job)["shards"]
    ids = {s["shard"] for s in shards}
    require(len(ids) >= 8 and ids == set(range(len(ids))), "%s lists shards %s" % (node.name, sorted(ids)))
    records = job.records()
    for shard in shards:
        if shard.get("digest"):
            expected = records[shard["version"]]["shards"][shard["shard"]]
            require(shard["digest"] == expected, "%s: shard %d at step %d has another digest than the trainer"
                    % (node.name, shard["shard"], shard["version"]))
    newest = max(p["step"] for p in cluster.points(node))
    require(newest == max(records), "%s lists a newest point of step %d" % (node.name, newest))


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen([("cluster-short", short)], sys.argv[1:])))
