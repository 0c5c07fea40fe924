"""What any node answers for all of them (PROTOCOLS 5.8): the same from each, digests as the trainer computed them, a
node that does not answer listed in time.
"""
import concurrent.futures
import json
import os
import re
import signal
import time

import harness
from harness import require

AGES = ("age_ms",)  # how old what is said may be: differs from one asking to the next
DEADLINE_S = 2.0


def questions(cluster, shard, step):
    job = "/v1/jobs/%s/" % cluster.job
    return {"shards": job + "shards", "placement": job + "placement",
            "version": job + "version?shard=%d&step=%d" % (shard, step),
            "nodes": "/v1/nodes", "epoch": "/v1/epoch", "events": "/v1/events"}


def content(answer, top=True):
    """Without ages, and without the name of the node that was asked."""
    if isinstance(answer, dict):
        return {k: content(v, False) for k, v in answer.items() if k not in AGES and not (top and k == "node")}
    return [content(each, False) for each in answer] if isinstance(answer, list) else answer


def ask_all(nodes, paths):
    """{(node, question): (answer, seconds)}, asked at the same time."""
    def ask(node, path):
        begun = time.monotonic()
        return node.get(path), time.monotonic() - begun
    with concurrent.futures.ThreadPoolExecutor(len(nodes) * len(paths)) as pool:
        open_ones = {(node.name, what): pool.submit(ask, node, path) for node in nodes for what, path in paths.items()}
        return {key: each.result() for key, each in open_ones.items()}


def same_from_each(cluster, job, step):
    """All questions from each node, while nothing moves: equal but for the ages; and right."""
    records = job.records()
    shard = 3
    paths = questions(cluster, shard, step)
    last = {}

    def equal():
        last.clear()
        for (name, what), (answer, _) in ask_all(cluster.nodes, paths).items():
            last.setdefault(what, {})[name] = answer
        return all(len({json.dumps(content(a), sort_keys=True) for a in answers.values()}) == 1
                   for answers in last.values())
    try:
        harness.wait_until("equal answers from every node", 20, equal, pause=0.3)
    except harness.Failed as error:
        different = {what: {n: content(a) for n, a in answers.items()} for what, answers in last.items()
                     if len({json.dumps(content(a), sort_keys=True) for a in answers.values()}) > 1}
        raise harness.Failed("%s: %s" % (error, json.dumps(different)[:3000]))
    names = sorted(node.name for node in cluster.nodes)
    for what, answers in last.items():
        for name, answer in answers.items():
            require(answer["node"] == name, "%s asked of %s is signed by %s" % (what, name, answer["node"]))
            require(sorted(a["node"] for a in answer["answered"]) == names, "%s: not all nodes answered: %s"
                    % (what, answer["answered"]))
            require(answer["epoch"] >= 1 and answer["lineage"] >= 1 and answer["absent"] == [], "%s: %s"
                    % (what, {k: answer[k] for k in ("epoch", "lineage", "absent")}))
            require(0 <= answer["age_ms"] <= 1000 * DEADLINE_S, "%s is %s ms old" % (what, answer["age_ms"]))
    answer = {what: answers[names[0]] for what, answers in last.items()}
    version = answer["version"]
    require(version["digest"] == records[step]["shards"][shard],
            "shard %d at step %d: digest %s, the trainer's is %s" % (shard, step, version["digest"],
                                                                     records[step]["shards"][shard]))
    owners = answer["epoch"]["owners"][shard]
    require(sorted(version["producers"]) == sorted(owners), "shard %d is owned by %s and produced by %s"
            % (shard, owners, version["producers"]))
    require([h["node"] for h in answer["placement"]["shards"][shard]["holders"]] == owners,
            "placement and epoch name different owners")
    for each in answer["shards"]["shards"]:
        require(each["role"] == "in_sync" and each["produces"][0] <= each["full"] <= each["produces"][1] == each["durable"],
                "a shard at rest: %s" % each)
        require(each["digest"] == records[each["version"]]["shards"][each["shard"]], "a digest of `shards` is wrong")
    require({m["name"]: m["state"] for m in answer["nodes"]["members"]} == dict.fromkeys(names, "up"), "members: %s"
            % answer["nodes"]["members"])
    require({e["node"] for e in answer["events"]["events"]} == set(names), "not every node has events")
    return answer


def command_line(node, job, step):
    """The same through `gradtap`."""
    digest = json.loads(node.cli("version", "5", str(step), "--json"))["digest"]
    require(digest == job.records()[step]["shards"][5], "gradtap version 5 %d: %s" % (step, digest))
    require(digest[:16] in node.cli("version", "5", str(step)), "gradtap version prints no digest")
    for command, word in (("epoch", "shard     5: "), ("placement", "in_sync"), ("shards", "in_sync"),
                          ("events", "a member is live")):
        require(word in node.cli(command), "gradtap %s does not say %r" % (command, word))


def is_stopped(node):
    with open("/proc/%d/stat" % node.child.pid) as f:
        return f.read().rpartition(")")[2].split()[0] == "T"


def hits(node, limit):
    answer = node.get("/v1/limits")
    own = next(n for n in answer["nodes"] if n["node"] == node.name)
    return next(row["hits"] for row in own["limits"] if row["name"] == limit)


def silent_is_absent(cluster, victim, job, step):
    """A node that is stopped, with its connections open: every other one answers in time, and lists it."""
    others = [n for n in cluster.nodes if n is not victim]
    paths = questions(cluster, 3, step)
    before = {n.name: hits(n, "silence of a peer") for n in others}
    os.killpg(victim.child.pid, signal.SIGSTOP)
    try:
        harness.wait_until("%s stopped" % victim.name, 5, lambda: is_stopped(victim))
        answers = ask_all(others, paths)
        require(is_stopped(victim), "%s goes on: somebody else continued it" % victim.name)
        harness.wait_until("its silence to be counted", cluster.down_after + 10,
                           lambda: all(hits(n, "silence of a peer") > before[n.name] for n in others))
        require(all(hits(n, "question to the nodes") > 0 for n in others), "nobody was counted as absent")
    finally:
        os.killpg(victim.child.pid, signal.SIGCONT)
    for (name, what), (answer, seconds) in answers.items():
        require(seconds <= DEADLINE_S, "%s took %.2f s for %s with a silent node" % (name, seconds, what))
        require(answer["absent"] == [victim.name], "%s: absent in %s are %s" % (name, what, answer["absent"]))
    for node in others:
        states = {m["name"]: m["state"] for m in answers[node.name, "nodes"][0]["members"]}
        require(states == {n.name: "down" if n is victim else "up" for n in cluster.nodes}, "members: %s" % states)
        version = answers[node.name, "version"][0]
        require(version["digest"] == job.records()[step]["shards"][3], "without %s nobody knows shard 3" % victim.name)
        require(victim.name not in version["producers"] and version["producers"], "producers: %s" % version["producers"])
    return max(seconds for _, seconds in answers.values())


def metrics_of(node):
    """{name: {labels: value}} of /metrics; labels as a sorted tuple of pairs."""
    code, text = node.text("/metrics")
    require(code == 200, "/metrics of %s: %d" % (node.name, code))
    found = {}
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        match = re.fullmatch(r"([a-z_]+)\{(.*)\} (\S+)", line)
        require(match, "no line of metrics: %r" % line)
        labels = tuple(sorted(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2))))
        found.setdefault(match.group(1), {})[labels] = float(match.group(3))
    return found


def job_metrics(node):
    found = metrics_of(node)
    return {what: next(iter(found["gradtap_%s_step" % what].values())) for what in harness.FOUR}, found


def metrics_agree_while_running(node):
    """Each of the four numbers lies between what the status says before and after: they only grow."""
    before = node.numbers()
    numbers, _ = job_metrics(node)
    after = node.numbers()
    for what in harness.FOUR:
        require(before[what] <= numbers[what] <= after[what], "%s: metrics say %s, the status %s and %s"
                % (what, numbers[what], before[what], after[what]))


def metrics_agree(cluster):
    """At rest they are the same, on every node; and the probes."""
    for node in cluster.nodes:
        status = node.get("/v1/status")
        job = status["jobs"][0]
        numbers, found = job_metrics(node)
        require(numbers == {what: job[what] for what in harness.FOUR}, "%s: metrics say %s, the status %s" % (
            node.name, numbers, job))
        given = {dict(labels)["reason"] for labels, value in found["gradtap_gap"].items() if value == 1}
        require(given == {gap["name"] for gap in job["gaps"]}, "%s: reasons %s, the status %s" % (node.name, given, job["gaps"]))
        labels = dict(next(iter(found["gradtap_training_step"])))
        require(labels == {"node": node.name, "training_job": cluster.job, "lineage": str(job["lineage"])}, "labels: %s" % labels)
        require(sum(found["gradtap_member_up"].values()) == len(cluster.nodes), "members: %s" % found["gradtap_member_up"])
        frames = {name: body["frames"] for name, body in status["actors"].items() if name.startswith("ingress.")}
        require(sum(found["gradtap_tap_frames_total"].values()) >= sum(frames.values()) > 0, "frames: %s" % frames)
        for path in ("/healthz", "/readyz"):
            code, text = node.text(path)
            require(code == 200 and json.loads(text)["reasons"] == [], "%s of %s: %d %s" % (path, node.name, code, text))


def ended_well(cluster, step):
    """What a stopped node says last: all that it had applied is durable."""
    for node in cluster.nodes:
        with open(node.log_path, errors="replace") as f:
            last = f.read().rsplit("---- start", 1)[-1]
        said = re.search(r"stopping: what was applied is durable .*\bstep=(\d+)", last)
        require(said and int(said.group(1)) == step, "%s did not end with step %d durable: %s" % (node.name, step, node.last_words()))
