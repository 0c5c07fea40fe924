#!/usr/bin/python3
"""A job that two nodes cannot hold is refused at attach by name, with the number of nodes to add, and trains untapped;
with more memory the same job is admitted and replicated. Its step time is not declared: measured after 20 steps it shows a
mirror port (said to be of 1 Mbit/s) that cannot carry the job, which is named and stops nothing. Part of `make test`.

The sums by hand, for n parameters under AdamW on two nodes with two owners each: state 12 n, a window of 4 steps of 4 n,
16 such steps held for an owner that is away, and two shards of 12 n / S being written: 92 n + 24 n / S. On N nodes the
state is that of ceil(2 S / N) of S shards.
"""
import json
import math
import subprocess
import sys
import time

import harness
import rig
from cluster import Cluster, small
from harness import require
from train_model import SmallGpt

REFUSED, ADMITTED = 6, 40
SHARDS = 12  # of 184 k parameters, 1 << 14 a shard at least; checked when the job is admitted
STATE, WINDOW, HOLD = 12, 4 * 4, 16 * 4  # bytes of a parameter


def needed(n, shards, nodes):
    """Bytes of memory on one of so many nodes, where every owner of a shard is another node."""
    owned = STATE * n * math.ceil(2 * shards / nodes) / shards
    written = min(owned, 2 * max(owned / 16, STATE * n / shards))  # a full version every 16 steps
    return owned + (WINDOW + HOLD) * n + written


def change(cluster, budget):
    """Between two lives of the nodes."""
    for node in cluster.nodes:
        with open(node.config) as f:
            lines = f.read().splitlines()
        lines = ["memory_bytes = %d" % budget if line.startswith("memory_bytes ") else line for line in lines]
        lines.insert(lines.index("[tap]") + 1, "port_bits_per_second = 1000000")
        with open(node.config, "w") as f:
            f.write("\n".join(lines) + "\n")


def short():
    name, begun = "admission", time.monotonic()
    n = sum(p.numel() for p in SmallGpt(64, 3, 32).parameters())
    with harness.case_folder(name) as folder, rig.Rig(ranks=2, nodes=2) as r:
        budget = int(needed(n, SHARDS, 4)) + 1
        wanted = next(k for k in range(3, 100) if needed(n, SHARDS, k) <= budget)
        require(needed(n, SHARDS, 2) > budget, "the case proves nothing: two nodes would do")
        cluster = Cluster(r, folder, more_sections="\n[limits]\nmemory_bytes = %d\n" % budget).start()
        rates_are_measured(cluster)
        asked_by_hand(r, cluster, n, budget)
        job = train(r, folder, cluster, "refused", REFUSED)
        refused(cluster, job, "memory binds", "add %d node" % (wanted - 2))
        restart(cluster, int(needed(n, SHARDS, 2)) + 1000)
        job = harness.Job(r, folder, small(ADMITTED, "--step-sleep", "0.02"), attach=cluster.endpoints(),
                          name="admitted").start()
        job.wait(120, cluster.watch(job))
        cluster.wait_step("durable", ADMITTED, 60)
        measured = step_time_is_measured(cluster)
        cluster.stop()
    print("passed  %-28s %d parameters: refused with %d bytes and 'add %d', admitted with more; a step of %.3f s as "
          "measured; %.1f s" % (name, n, budget, wanted - 2, measured, time.monotonic() - begun), flush=True)


def restart(cluster, budget):
    cluster.stop()
    change(cluster, budget)
    cluster.start()
    rates_are_measured(cluster)


def train(r, folder, cluster, name, steps, *more):
    """To the end, tapped or not."""
    job = harness.Job(r, folder, small(steps, *more), attach=cluster.endpoints(), name=name).start()
    job.wait(120, cluster.require_alive)
    return job


def rates_are_measured(cluster):
    def there():
        answer = cluster.nodes[0].get("/v1/status", quiet=True) or {}
        all_nodes = [answer] + answer.get("nodes", [])
        return len(all_nodes) == 2 and all((a.get("rates") or {}).get("measured") for a in all_nodes)
    harness.wait_until("both nodes to have measured their rates", 20, there)
    body = cluster.nodes[1].get("/v1/status")["rates"]
    for key in ("apply_parameters_per_s", "disk_write_bytes_per_s", "object_write_bytes_per_s", "memory_bytes_per_s"):
        require(body.get(key, 0) > 0, "no %s among the rates: %s" % (key, body))


def asked_by_hand(r, cluster, n, budget):
    """The command line asks the live nodes and gives the same answer."""
    command = r.command(cluster.nodes[0].monitor, harness.BIN + "/gradtap", "plan", "capacity", "--parameters", str(n),
                        "--ranks", "2", "--full-every", "16", "--shard-elements", str(n // SHARDS), "--cluster",
                        "http://127.0.0.1:7700", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    require(done.returncode == 1, "plan capacity ended with %d: %s" % (done.returncode, done.stderr[-300:]))
    body = json.loads(done.stdout)
    memory = body["node"]["memory_bytes"]
    require(memory["value"] == budget and "measured" in memory["source"], "not what the nodes say: %s" % memory)
    require(body["nodes"] == 2 and body["binds"] == "memory", "another answer: %s" % body["verdict"])


def refused(cluster, job, *words):
    for i in range(2):
        log = job.log(i)
        require("tap: off" in log, "rank %d is not untapped: %s" % (i, log[-300:]))
    require("CAPACITY_EXCEEDED" in job.log(0), "the refusal has no name: " + job.log(0)[-400:])
    for word in words:
        require(word in job.log(0), "the refusal does not say '%s': %s" % (word, job.log(0)[-600:]))
    require(job.report()["losses"], "the job trained nothing")
    require(cluster.numbers() in (None, {k: 0 for k in harness.FOUR}), "something is replicated: %s" % cluster.numbers())
    gaps = cluster.status().get("gaps", []) + cluster.nodes[1].status().get("gaps", [])
    require(any("CAPACITY_EXCEEDED" in g.get("evidence", "") for g in gaps), "status does not say why: %s" % gaps)


def step_time_is_measured(cluster):
    """At the home, after 20 steps."""
    for node in cluster.nodes:
        admission = node.get("/v1/status")["actors"]["side_channel"].get("admission", {})
        if admission.get("step_time_s", 0) > 0:
            require(0.02 <= admission["step_time_s"] < 10, "a step of %s s" % admission["step_time_s"])
            require(not admission["measuring_step_time"], "it is still being measured")
            require(not admission["fits"] and "mirror port" in admission["verdict"],
                    "a port of 1 Mbit/s is not named: %s" % admission)
            warnings = node.status().get("warnings", [])
            require(any("capacity" in w and "mirror port" in w for w in warnings), "no warning: %s" % warnings)
            texts = [e.get("text", "") for e in node.get("/v1/events?from=0")["events"]]
            require(any("measured step time" in t for t in texts), "no event of the measured step time")
            require(len({s["shard"] for s in node.shards()}) == SHARDS, "another number of shards than %d" % SHARDS)
            return admission["step_time_s"]
    raise harness.Failed("no node has measured the step time")


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen([("admission", short)], sys.argv[1:])))
