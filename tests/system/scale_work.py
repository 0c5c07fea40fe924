#!/usr/bin/python3
"""Work falls as nodes are added: gradient bytes that the owners of a node receive (from its tap or over the link) and apply,
and bytes that it flushes, per step, with two nodes and with four. Half of the work is expected of each of four, within
ten percent; the two-node figures are checked against the closed form: two owners of everything, four bytes an element.
What a mirror port receives does not fall with the number of nodes: it is the mirror's.
"""
import sys
import time

import harness
import rig
from cluster import small
from harness import require
from scale_cluster import ScaleCluster

STEPS, WINDOW = 6000, 48
TOLERANCE = 0.10
SHARD = 1 << 16
MODEL = ("--model", "mlp", "--width", 256, "--bucket-mb", 2, "--shard-elements", SHARD)  # shards of nearly one size


def totals(cluster):
    """{node: (log bytes flushed, {shard: (steps applied, received, applied)})} now."""
    found = {}
    for node in cluster.live():
        status = node.get("/v1/status")
        found[node.name] = (status["actors"].get("keeper", {}).get("log_bytes", 0), {})
    for shard in cluster.live()[0].get("/v1/jobs/%s/shards" % cluster.job)["shards"]:
        if shard["node"] in found:
            found[shard["node"]][1][shard["shard"]] = (shard["applied"], shard["received_bytes"], shard["applied_bytes"])
    return found


def per_step(cluster):
    """{node: bytes received, applied, flushed for a step}: each shard by its own steps, for nodes are not in step."""
    begin_step = cluster.best("durable")
    before = totals(cluster)
    cluster.wait_step("durable", begin_step + WINDOW, 90)
    after = totals(cluster)
    work = {}
    for node, (flushed, shards) in after.items():
        received = applied = steps = 0
        for shard, (count, received_bytes, applied_bytes) in shards.items():
            first = before[node][1][shard]
            done = count - first[0]
            require(done > WINDOW / 2, "%s applied only %d steps of shard %d" % (node, done, shard))
            received += (received_bytes - first[1]) / done
            applied += (applied_bytes - first[2]) / done
            steps += done
        work[node] = [received, applied, (flushed - before[node][0]) / (steps / len(shards))]
    return work


def work():
    name, begun = "scale-work", time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=2, nodes=4) as r:
        cluster = ScaleCluster(r, folder, first=2, taps=(0, 1), shard_elements=SHARD).start()
        job = harness.Job(r, folder, small(STEPS, "--step-sleep", "0.2", *MODEL), attach=cluster.endpoints()).start()
        cluster.wait_step("published", 10, 90)
        whole = 4 * sum(s["elements"] for s in cluster.live()[0].get("/v1/jobs/%s/shards" % cluster.job)["shards"]) / 2
        two = per_step(cluster)
        for k in (2, 3):
            cluster.add(k)
        cluster.wait_balanced()
        cluster.wait_step("published", cluster.best("published") + 10, 60)
        four = per_step(cluster)
        held = {}
        for shard in cluster.live()[0].get("/v1/jobs/%s/shards" % cluster.job)["shards"]:
            held.setdefault(shard["node"], []).append(shard["elements"])
        job.kill()
        for node in cluster.live():
            node.stop()
    shares = {node: "%d shards, %.3f of half" % (len(e), 4 * sum(e) / (whole / 2)) for node, e in sorted(held.items())}
    lines = []
    for at, what in enumerate(("received", "applied", "flushed")):
        for node, values in two.items():
            require(abs(values[at] / whole - 1) <= TOLERANCE, "with two nodes %s %s %.0f bytes a step, not %.0f"
                    % (node, what, values[at], whole))
        for node, values in four.items():
            require(abs(values[at] / (whole / 2) - 1) <= TOLERANCE, "with four nodes %s %s %.0f bytes a step, not %.0f"
                    % (node, what, values[at], whole / 2) + "; %s" % shares)
        lines.append("%s %.0f and %.0f" % (what, max(v[at] for v in two.values()), max(v[at] for v in four.values())))
    print("passed  %-28s bytes a step and node with two and four nodes: %s; %.1f s"
          % (name, ", ".join(lines), time.monotonic() - begun), flush=True)


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen([("scale-work", work)], [w for w in sys.argv[1:] if w != "--long"])))
