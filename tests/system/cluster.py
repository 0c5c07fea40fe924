"""Drives a cluster of nodes over a rig: its files, the life of each node, what any live node answers, and a watch that
notes when the published step moved. The model of the cluster tests is small: ranks and nodes share few cores.
"""
import os
import subprocess
import threading
import time

import certificates
import harness
import rig
from harness import FOUR, require

DOWN_AFTER_MS = 5000
SHARD = 1 << 14
SMALL = ["--width", 64, "--layers", 3, "--batch", 1, "--first-bucket-bytes", 100_000, "--bucket-mb", "0.3",
         "--shard-elements", SHARD, "--clip", "norm:1.0"]  # 184 k parameters, several buckets, 12 shards
SHARDS_AT_LEAST = 8
STORE_KILL_POINTS = ("store.after_stage", "store.after_ingest", "store.after_mark")
POINT_KILL_POINTS = ("point.after_upload", "point.after_link", "point.after_announce")


def small(steps, *more):
    return SMALL + ["--steps", steps] + list(more)


def security_line(security):
    """Of a cluster file; tls need not be written."""
    return "" if security == "tls" else 'security = "%s"\n' % security


class Cluster:
    """nodes=1 makes one node without a cluster file, with a directory for points all the same. The nodes of a cluster
    have certificates (`authority`) and speak TLS, as they do by default; security="none" is for tests that look at the
    bytes between them."""

    def __init__(self, r, folder, job="demo", publish_interval=1, points_kept=1000, shard_elements=SHARD,
                 full_every_steps=16, down_after_ms=DOWN_AFTER_MS, degraded_durable=True, objects=None,
                 job_keys="", more_sections="", security="tls", **tap):
        self.rig, self.folder, self.job = r, folder, job
        self.down_after = down_after_ms / 1000.0
        self.objects = objects or os.path.join(folder, "points")
        os.makedirs(self.objects, exist_ok=True)
        sections = '\n[objects]\ndirectory = "%s"\npoints_kept = %d\n' % (self.objects, points_kept)
        sections += more_sections
        if r.nodes > 1:
            self._write_cluster_file(down_after_ms, degraded_durable, security)
            sections += '\n[cluster]\nfile = "cluster.toml"\n'
        job_keys += "publish_interval_steps = %d\n" % publish_interval
        tap.setdefault("queues", 1)
        tap.setdefault("ring_frames", 16384)
        self.authority = None
        if r.nodes > 1 and security == "tls":
            self.authority = certificates.Authority(
                folder, {"tap%d" % k: rig.node_address(k) for k in range(r.nodes)})
        self.nodes = [harness.Node(r, folder, job, shard_elements, full_every_steps, number=k,
                                   sections=sections + self._security(k), job_keys=job_keys, **tap)
                      for k in range(r.nodes)]

    def _security(self, k):
        return self.authority.section("tap%d" % k) if self.authority else ""

    def _write_cluster_file(self, down_after_ms, degraded_durable, security):
        text = 'replicas = 2\ndegraded_durable = %s\nheartbeat_ms = 500\ndown_after_ms = %d\n' % (
            "true" if degraded_durable else "false", down_after_ms)
        text = security_line(security) + text
        for k in range(self.rig.nodes):
            address = rig.node_address(k)
            text += '\n[[member]]\nname = "tap%d"\nlink = "%s:7800"\nhttp = "http://%s:7700"\ndomain = "rack-%s"\n' % (
                k, address, address, "abc"[k % 3])
        with open(os.path.join(self.folder, "cluster.toml"), "w") as f:
            f.write(text)

    def endpoints(self):
        return ",".join("http://%s:7700" % rig.node_address(k) for k in range(self.rig.nodes))

    # ---- life

    def start(self, kill_points=None):
        """kill_points: {node number: kill point}."""
        for node in self.nodes:
            node.start(kill_point=(kill_points or {}).get(node.number), wait=False)
        for node in self.nodes:
            node.wait_ready()
        if len(self.nodes) > 1:
            harness.wait_until("the nodes to see one another", 30, self.whole)
        return self

    def whole(self):
        """True when every node answers and reports every member up."""
        for node in self.nodes:
            answer = node.get("/v1/status", quiet=True)
            if answer is None:
                return False
            members = members_of(answer)
            if len(members) != len(self.nodes) or any(m.get("state") != "up" for m in members):
                return False
        return True

    def stop(self):
        for node in self.nodes:
            if node.alive():
                code = node.stop()
                require(code == 0, "%s ended with exit code %s after SIGTERM: %s" % (node.name, code,
                                                                                   node.last_words()))

    def live(self):
        return [n for n in self.nodes if n.alive()]

    def require_alive(self, but=()):
        for node in self.nodes:
            require(node.alive() or node.number in but, "%s ended with code %s: %s"
                    % (node.name, node.child.poll() if node.child else None, node.last_words()))

    # ---- questions to any live node

    def statuses(self):
        """[(node, the job's status)] of the live nodes that know the job; each must be in order."""
        found = []
        for node in self.live():
            status = node.status()
            if status is not None:
                harness.check_order({k: int(status.get(k, 0)) for k in FOUR})
                found.append((node, status))
        return found

    def status(self):
        """What the first live node that knows the job says."""
        found = self.statuses()
        return found[0][1] if found else None

    def numbers(self):
        status = self.status()
        return None if status is None else {k: int(status.get(k, 0)) for k in FOUR}

    def best(self, which):
        return max([int(s.get(which, 0)) for _, s in self.statuses()], default=0)

    def gaps(self):
        """Names of the gap reasons that any live node gives."""
        return {g.get("name") for _, s in self.statuses() for g in s.get("gaps", [])}

    def describe(self):
        return "; ".join("%s: %s" % (n.name, harness.describe(n.status()) if n.alive() else "dead")
                         for n in self.nodes)

    def wait_step(self, which, step, seconds, dead=()):
        def there():
            self.require_alive(but=dead)
            return self.best(which) >= step
        try:
            harness.wait_until("%s step %d" % (which, step), seconds, there, pause=0.1)
        except harness.Failed as error:
            raise harness.Failed("%s; %s" % (error, self.describe()))

    def points(self, node=None):
        """The list of points as a live node gives it, newest first."""
        node = node or self.live()[0]
        return node.get("/v1/jobs/%s/points" % self.job)["points"]

    def export(self, step, lineage=None):
        """A point's parameters and moments, read by the command line from the directory."""
        path = os.path.join(self.folder, "point-%d.safetensors" % step)
        gradtap("export", "--source", self.objects, "--job", self.job, "--step", step, "--out", path, "--optimizer",
                *(["--lineage", lineage] if lineage else []))
        found = harness.read_safetensors(path)
        os.unlink(path)
        return found

    # ---- checks

    def check_points(self, *jobs, first=1, killed=False):
        """Every listed point must be valid and have the root that some of the jobs had at its step; the steps.

        killed: the last job may have committed a step whose root it did not come to write down.
        """
        wanted = {}
        for job in jobs:
            for step, record in job.records().items():
                wanted.setdefault(step, set()).add(record["root"])
        steps = []
        for point in self.points():
            step = point["step"]
            require(point["valid"], "the point of step %d is not valid: %s" % (step, point.get("reason")))
            if killed and step == max(wanted) + 1:
                continue
            require(step in wanted, "there is a point of step %d, which no job has made" % step)
            require(point["root"] in wanted[step], "the point of step %d is wrong: root %s, the trainer's %s"
                    % (step, point["root"], ", ".join(sorted(wanted[step]))))
            if step >= first:
                steps.append(step)
        return sorted(set(steps))

    def watch(self, job):
        """For Job.wait: nodes alive, ranks tapped, numbers in order."""
        def look():
            self.require_alive()
            job.require_tapped()
            self.statuses()
        return look


def members_of(status):
    """The members as /v1/status of a node lists them."""
    return status.get("members", [])


def gradtap(*arguments, seconds=120, code=0):
    """The command line program on a directory; its output. code None: (exit code, output and errors)."""
    command = [os.path.join(harness.BIN, "gradtap")] + [str(a) for a in arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if code is None:
        return done.returncode, done.stdout + done.stderr
    require(done.returncode == code, "%s: exit code %d: %s" % (" ".join(command[1:]), done.returncode,
                                                               (done.stderr or done.stdout).strip()[-600:]))
    return done.stdout


class PublishWatch:
    """Notes, in a thread of its own, when the highest published step that any live node reports has moved.

    Steps count within a lineage: with a new one published begins anew.
    """

    def __init__(self, cluster, period=0.1):
        self.cluster, self.period = cluster, period
        self.moves = [(time.monotonic(), (0, 0))]  # (when, (lineage, step))
        self.errors = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self):
        while not self._stop.wait(self.period):
            try:
                statuses = self.cluster.statuses()
            except harness.Failed as error:
                self.errors.append(str(error))
                continue
            if not statuses:  # nobody answers: two nodes down at a time, or the end
                continue
            published = max((int(s.get("lineage", 0)), int(s.get("published", 0))) for _, s in statuses)
            if published != self.moves[-1][1]:
                self.moves.append((time.monotonic(), published))

    def published(self):
        return self.moves[-1][1][1]

    def longest_pause(self, since, until):
        """Seconds between two moves, for the pauses that touch [since, until]."""
        times = [t for t, _ in self.moves] + [until]
        return max((b - a for a, b in zip(times, times[1:]) if b > since and a < until), default=until - since)

    def check(self):
        require(not self.errors, "a status was out of order: %s" % (self.errors or [""])[0])
        values = [v for _, v in self.moves]
        falls = [(a, b) for a, b in zip(values, values[1:]) if b < a]
        require(not falls, "published fell, as (lineage, step): %s" % falls[:3])
