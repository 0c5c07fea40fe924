"""Drives a node and training jobs over a rig, and compares what the node holds with what the trainer has. A cluster of
nodes is driven by cluster.py, on top of this.

Every wait has a deadline and names what it waits for. Logs, configuration and captures of a failed case are kept in
build/test-logs/system/CASE (or a temporary folder, where that cannot be written); those of a passed case are removed.
"""
import contextlib
import http.client
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time

import numpy as np

import rig

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("GRADTAP_BIN", os.path.join(ROOT, "build", "bin"))
PYTHON = "/usr/bin/python3"
ENDPOINT = "http://%s:7700" % rig.NODE_ADDRESS
FOUR = ("training", "verified", "durable", "published")


class Failed(AssertionError):
    """What a case reports; anything else is a defect of the test."""


def require(condition, message):
    if not condition:
        raise Failed(message)


def programs_or_fail():
    for name in ("gradtapd", "gradtap"):
        if not os.access(os.path.join(BIN, name), os.X_OK):
            raise SystemExit("%s is not built: run `make build`" % os.path.join(BIN, name))


def wait_until(what, seconds, probe, pause=0.05):
    """The first true value of probe(); Failed names what did not come."""
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed("waited %g s for %s" % (seconds, what))
        time.sleep(pause)


@contextlib.contextmanager
def case_folder(case):
    """A folder for one case that stays only when the case fails."""
    parent = os.path.join(ROOT, "build", "test-logs", "system")
    try:
        os.makedirs(parent, exist_ok=True)
        folder = os.path.join(parent, case)
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
    except OSError:
        folder = tempfile.mkdtemp(prefix="gradtap-%s-" % case)
    try:
        yield folder
    except BaseException:
        print("   kept: %s" % folder, flush=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def secret_file(folder, job):
    """The job's key, made once a case: its nodes and its ranks have the same."""
    return _made(os.path.join(folder, job + ".secret"), "new", "--id", job)


def token_file(folder, what):
    """what: "read" or "admin"; the nodes of a case share it."""
    return _made(os.path.join(folder, what + ".token"), "token")


def _made(path, *arguments):
    if not os.path.exists(path):
        done = subprocess.run([os.path.join(BIN, "gradtap"), "secret", *arguments, path], capture_output=True, text=True)
        require(done.returncode == 0, "gradtap secret: exit code %d: %s" % (done.returncode, done.stderr.strip()))
    return path


class Node:
    """gradtapd in a monitor namespace. number, sections and job_keys are for nodes of a cluster."""

    def __init__(self, r, folder, job="demo", shard_elements=1 << 17, full_every_steps=16, number=None, sections="",
                 job_keys="", endpoints=None, **tap):
        self.rig = r
        self.folder = folder
        self.job = job
        self.number = number or 0
        self.name = "tap%d" % self.number
        self.monitor = r.monitor_of(self.number)
        title = "node" if number is None else "node%d" % number
        self.data = os.path.join(folder, title)
        self.config = os.path.join(folder, title + ".toml")
        self.log_path = os.path.join(folder, title + ".log")
        self.child = None
        self.endpoints = endpoints or [rig.rank_address(i) for i in range(r.ranks)]
        with open(self.config, "w") as f:
            f.write(self._toml(shard_elements, full_every_steps, tap) + self._secret() + job_keys +
                    with_tokens(sections, folder))

    def _toml(self, shard_elements, full_every_steps, tap):
        frame_bytes = 2048 if self.rig.mtu <= 1900 else 16384
        queues = tap.get("queues", 2)
        ring = tap.get("ring_frames", 32768 if frame_bytes == 2048 else 4096)
        limit = self.rig_limit()
        if limit is not None:
            # The driver locks a receive and a transmit ring for each queue.
            queues = 1
            ring = max(64, limit * 15 // 16 // (2 * frame_bytes) // 64 * 64)
        checksum = tap.get("l4_checksum", "required" if self.rig.checksums else "offload")
        endpoints = ", ".join('"%s"' % address for address in self.endpoints)
        return """[node]
name = "%s"
data_dir = "%s"
listen = "0.0.0.0:7700"

[tap]
kind = "af_packet"
interface = "mon1"
queues = %d
frame_bytes = %d
ring_frames = %d
l4_checksum = "%s"

[replica]
shard_elements = %d

[store]
full_every_steps = %d

[[job]]
name = "%s"
endpoints = [%s]
""" % (self.name, self.data, queues, frame_bytes, ring, checksum, shard_elements, full_every_steps, self.job, endpoints)

    def _secret(self):
        """The last section of _toml is the job's."""
        return 'secret_file = "%s"\n' % secret_file(self.folder, self.job)

    def rig_limit(self):
        """Bytes of rings this node may lock: the limit is the user's, so the nodes of a rig share it."""
        limit = rig.memlock_bytes()
        return None if limit is None else limit // self.rig.nodes

    # ---- life

    def start(self, kill_point=None, seconds=30, wait=True, more=None):
        runtime = self.data + "-run"  # of this node alone: the packet library keeps its files there
        os.makedirs(runtime, exist_ok=True)
        environment = dict(os.environ, RUNTIME_DIRECTORY=runtime, **(more or {}))
        if kill_point:
            environment["GRADTAP_KILL_POINT"] = kill_point
        with open(self.log_path, "a") as log:
            log.write("---- start%s\n" % (" with kill point " + kill_point if kill_point else ""))
            log.flush()
            self.child = self.rig.start(self.monitor, os.path.join(BIN, "gradtapd"), "--config", self.config,
                                        stdout=log, stderr=subprocess.STDOUT, env=environment)
        return self.wait_ready(seconds) if wait else self

    def wait_ready(self, seconds=30):
        def ready():
            require(self.child.poll() is None, "gradtapd ended with code %s while starting: %s"
                    % (self.child.poll(), self.last_words()))
            return self.get("/v1/status", quiet=True) is not None
        wait_until("gradtapd to answer /v1/status", seconds, ready)
        return self

    def kill(self):
        """SIGKILL: no warning, no last flush."""
        rig.kill_group(self.child)

    def stop(self, seconds=30):
        if self.child is None or self.child.poll() is not None:
            return self.child.poll() if self.child else None
        os.killpg(self.child.pid, signal.SIGTERM)
        try:
            return self.child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            rig.kill_group(self.child)
            raise Failed("gradtapd did not end within %g s of SIGTERM" % seconds)

    def alive(self):
        return self.child is not None and self.child.poll() is None

    def last_words(self, count=5):
        with open(self.log_path, errors="replace") as f:
            return " / ".join(f.read().strip().splitlines()[-count:])

    # ---- questions

    def text(self, path, seconds=10):
        """(status, body as it came)"""
        connection = http.client.HTTPConnection("127.0.0.1", 7700, timeout=seconds)
        try:
            connection.sock = self.rig.socket(self.monitor)
            connection.sock.settimeout(seconds)
            connection.sock.connect(("127.0.0.1", 7700))
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def get(self, path, quiet=False, seconds=10):
        """The JSON answer, or None when the node does not answer and quiet is set."""
        try:
            status, body = self.text(path, seconds)
            if status == 200:
                return json.loads(body)
            error = "%d %s" % (status, body[:400])
        except (OSError, http.client.HTTPException, ValueError) as caught:
            error = caught
        if quiet:
            return None
        raise Failed("GET %s: %s" % (path, error))

    def status(self):
        """The job's part of the status, or None while node or job is not there."""
        answer = self.get("/v1/status", quiet=True)
        for job in (answer or {}).get("jobs", []):
            if job.get("job") == self.job:
                return job
        return None

    def numbers(self):
        job = self.status()
        return None if job is None else {k: int(job.get(k, 0)) for k in FOUR}

    def wait_step(self, which, step, seconds):
        def there():
            require(self.alive(), "gradtapd ended: " + self.last_words())
            numbers = self.numbers()
            return numbers is not None and numbers[which] >= step
        try:
            wait_until("%s step %d" % (which, step), seconds, there)
        except Failed as error:
            raise Failed("%s; the node reports %s" % (error, describe(self.status())))

    def shards(self):
        return self.get("/v1/jobs/%s/shards" % self.job)["shards"]

    def cli(self, *arguments, seconds=120):
        command = self.rig.command(self.monitor, os.path.join(BIN, "gradtap"), *arguments)
        environment = dict(os.environ, GRADTAP_TOKEN_FILE=token_file(self.folder, "admin"))
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
        require(done.returncode == 0, "gradtap %s: exit code %d: %s"
                % (" ".join(arguments), done.returncode, (done.stderr or done.stdout).strip()[-500:]))
        return done.stdout

    def roots(self, first, last):
        found = json.loads(self.cli("digests", "--job", self.job, "--from", str(first), "--to", str(last), "--json"))
        return {int(d["step"]): d["root"] for d in found["digests"]}

    def export(self, step):
        path = os.path.join(self.folder, "export.safetensors")
        self.cli("export", "--job", self.job, "--step", str(step), "--out", path, "--optimizer")
        return read_safetensors(path)


def with_tokens(sections, folder):
    """Sections of a node's configuration, with the tokens of the case in [security]."""
    tokens = 'read_token_file = "%s"\nadmin_token_file = "%s"\n' % (token_file(folder, "read"),
                                                                   token_file(folder, "admin"))
    head = "[security]\n"
    if head in sections:
        return sections.replace(head, head + tokens, 1)
    return sections + "\n" + head + tokens


def describe(job):
    """One line of a status: the four numbers and every gap with its evidence."""
    if job is None:
        return "no such job (or no answer)"
    gaps = "; ".join("%s since step %s%s" % (g.get("name", g.get("reason")), g.get("since_step"),
                                             ": " + g["evidence"] if g.get("evidence") else "")
                     for g in job.get("gaps", []))
    return "%s, state %s%s" % (" ".join("%s %s" % (k, job.get(k)) for k in FOUR), job.get("state", "?"),
                               ", " + gaps if gaps else "")


def check_order(numbers):
    values = [numbers[k] for k in FOUR]
    require(values == sorted(values, reverse=True), "published <= durable <= verified <= training does not hold: %s"
            % numbers)


class Job:
    """The ranks of one training job.

    beside=True runs them all in the namespace of rank 0 over its loopback: the same arithmetic, out of the mirror's
    sight. port is that of the process group: two jobs at a time need two; one beside takes another of its own.
    """

    def __init__(self, r, folder, arguments, attach=ENDPOINT, job="demo", name="train", beside=False, port=29500,
                 nice=0):
        self.rig = r
        self.name = name
        self.secret = os.path.join(folder, job + ".secret")
        self.out = os.path.join(folder, name)
        os.makedirs(self.out, exist_ok=True)
        self.beside = beside
        self.nice = ["nice", "-n", str(nice)] if nice else []
        self.arguments = [str(a) for a in arguments] + ["--port", str(port - 100 if beside else port)]
        if attach:
            self.arguments += ["--attach", attach, "--job", job]
        if beside:
            self.arguments += ["--address", "127.0.0.1"]
        self.children = []

    def start(self):
        environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo" if self.beside else "eth0", OMP_NUM_THREADS="1",
                           PYTHONDONTWRITEBYTECODE="1", GRADTAP_BIN=os.path.join(BIN, "gradtap"))
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            environment.pop(name, None)
        if os.path.exists(self.secret):
            environment["GRADTAP_SECRET_FILE"] = self.secret
        for i in range(self.rig.ranks):
            with open(os.path.join(self.out, "rank%d.log" % i), "w") as log:
                self.children.append(self.rig.start(
                    self.rig.rank(0 if self.beside else i), *self.nice, PYTHON,
                    os.path.join(ROOT, "tests", "system", "train.py"), "--rank", str(i), "--world", str(self.rig.ranks),
                    "--out", self.out, *self.arguments, stdout=log, stderr=subprocess.STDOUT, env=environment))
        return self

    def running(self):
        """True while every rank runs, False when all ended well; Failed as soon as one ended badly."""
        codes = [c.poll() for c in self.children]
        for i, code in enumerate(codes):
            require(code in (None, 0), "rank %d ended with exit code %s: %s" % (i, code, self.last_words(i)))
        return any(code is None for code in codes)

    def require_tapped(self):
        """Failed when a rank says that it trains untapped."""
        for i in range(self.rig.ranks):
            with open(os.path.join(self.out, "rank%d.log" % i), errors="replace") as f:
                off = [line.strip() for line in f if line.startswith("tap: off")]
            require(not off, "rank %d trains untapped: %s" % (i, "".join(off)))

    def wait(self, seconds, meanwhile=None):
        deadline = time.monotonic() + seconds
        while self.running():
            require(time.monotonic() < deadline, "waited %g s for the ranks to end" % seconds)
            if meanwhile:
                meanwhile()
            time.sleep(0.25)
        for i in range(self.rig.ranks):
            with open(os.path.join(self.out, "rank%d.log" % i), errors="replace") as f:
                require("Traceback" not in f.read(), "rank %d printed an exception: %s" % (i, self.last_words(i)))

    def kill(self):
        """SIGKILL to every rank at once."""
        for child in self.children:
            if child.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)
        for child in self.children:
            rig.kill_group(child)

    def committed(self, i=0):
        """The last step that rank i has committed; 0 before the first."""
        try:
            with open(os.path.join(self.out, "steps.%d" % i)) as f:
                lines = [line for line in f if line.endswith("\n")]
        except OSError:
            return 0
        return int(lines[-1]) if lines else 0

    def died(self):
        """True when a rank has killed itself at the place of --die-at."""
        return any(os.path.exists(os.path.join(self.out, "died.%d" % i)) for i in range(self.rig.ranks))

    def log(self, i=0):
        try:
            with open(os.path.join(self.out, "rank%d.log" % i), errors="replace") as f:
                return f.read()
        except OSError:
            return ""

    def restored_step(self, i=0):
        """The step of the point that rank i was restored to, or None before it says so."""
        for line in self.log(i).splitlines():
            if line.startswith("restored: step "):
                return int(line.split()[2])
        return None

    def tensor_digests(self):
        """step -> {name: SHA-256}, from a job with --tensor-digests."""
        with open(os.path.join(self.out, "tensors.jsonl")) as f:
            return {r["step"]: r["tensors"] for r in (json.loads(line) for line in f if line.endswith("\n"))}

    def ending(self, i=0):
        with open(os.path.join(self.out, "end%d.json" % i)) as f:
            return json.load(f)

    def last_words(self, i, count=4):
        with open(os.path.join(self.out, "rank%d.log" % i), errors="replace") as f:
            return " / ".join(f.read().strip().splitlines()[-count:])

    def records(self):
        """step -> {"root", "shards", "loss"} as far as rank 0 has written whole lines."""
        found = {}
        path = os.path.join(self.out, "roots.jsonl")
        if not os.path.exists(path):  # the ranks are still starting, or attaching
            return found
        with open(path) as f:
            for line in f:
                if line.endswith("\n"):
                    record = json.loads(line)
                    found[record["step"]] = record
        return found

    def report(self, i=0):
        with open(os.path.join(self.out, "rank%d.json" % i)) as f:
            return json.load(f)

    def final(self):
        return Dump(os.path.join(self.out, "final"))


class Dump:
    """The final state as the trainer wrote it: raw float32 bits by (name, kind)."""

    def __init__(self, folder):
        with open(os.path.join(folder, "meta.json")) as f:
            self.meta = json.load(f)
        self.kinds = self.meta["kinds"]
        self.tensors = {}
        for kind in self.kinds:
            values, at = np.fromfile(os.path.join(folder, kind + ".f32"), np.uint32), 0
            for parameter in self.meta["parameters"]:
                if kind in parameter.get("absent", ()):
                    continue
                self.tensors[parameter["name"], kind] = values[at:at + parameter["numel"]]
                at += parameter["numel"]
            require(at == len(values), "%s.f32 has %d elements instead of %d" % (kind, len(values), at))
        self.elements = sum(len(t) for t in self.tensors.values())

    def equals(self, other):
        return self.tensors.keys() == other.tensors.keys() and all(
            np.array_equal(t, other.tensors[k]) for k, t in self.tensors.items())


def read_safetensors(path):
    """(tensors by name as flat uint32 arrays, shapes by name, metadata); the tests' own reader."""
    with open(path, "rb") as f:
        raw = f.read()
    require(len(raw) >= 8, "%s is shorter than a safetensors header" % path)
    size = struct.unpack_from("<Q", raw)[0]
    require(8 + size <= len(raw), "the header of %s is longer than the file" % path)
    header = json.loads(raw[8:8 + size])
    metadata = header.pop("__metadata__", {})
    tensors, shapes, covered = {}, {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        require(entry["dtype"] == "F32" and 0 <= begin <= end <= len(raw) - 8 - size, "%s: entry %s" % (name, entry))
        tensors[name] = np.frombuffer(raw, np.uint32, (end - begin) // 4, 8 + size + begin)
        shapes[name] = entry["shape"]
        require(int(np.prod(entry["shape"], dtype=np.int64)) == len(tensors[name]), "%s: shape and size" % name)
        covered += end - begin
    require(covered == len(raw) - 8 - size, "%s has bytes that belong to no tensor" % path)
    return tensors, shapes, metadata


def compare_export(exported, dump, step):
    """Every parameter and moment, bit for bit; returns the number of elements compared."""
    tensors, shapes, metadata = exported
    require(str(metadata.get("step")) == str(step), "the export is of step %s, not %d" % (metadata.get("step"), step))
    # The state of a tensor without elements is in no shard: the side state carries its counter, a restore makes it anew.
    expected = {name if kind == "param" else "%s#%s" % (name, kind): (name, kind)
                for (name, kind), values in dump.tensors.items() if kind == "param" or len(values)}
    missing = sorted(set(expected) - set(tensors))
    extra = sorted(set(tensors) - set(expected))
    require(not missing and not extra, "tensors missing from the export: %s; not of the trainer: %s"
            % (missing[:3], extra[:3]))
    shape_of = {p["name"]: p["shape"] for p in dump.meta["parameters"]}
    for name, (parameter, kind) in expected.items():
        require(shapes[name] == shape_of[parameter], "%s has shape %s, the trainer's is %s"
                % (name, shapes[name], shape_of[parameter]))
        ours, theirs = tensors[name], dump.tensors[parameter, kind]
        different = np.flatnonzero(ours != theirs)
        require(len(different) == 0, "%s differs in %d of %d elements, first at %d: replica %08x, trainer %08x"
                % (name, len(different), len(theirs), different[0] if len(different) else -1,
                   ours[different[0]] if len(different) else 0, theirs[different[0]] if len(different) else 0))
    return dump.elements


def compare_roots(node, job, last, first=1):
    """Roots of every step first..last, replica against trainer; returns how many."""
    roots, records = node.roots(first, last), job.records()
    for step in range(first, last + 1):
        require(step in records, "the trainer wrote no root for step %d" % step)
        require(step in roots, "the replica has no root for step %d" % step)
        require(roots[step] == records[step]["root"], "step %d: the replica's root is %s, the trainer's %s"
                % (step, roots[step], records[step]["root"]))
    return last - first + 1


def compare_endings(one, other):
    """Everything every rank of two jobs has at the end; returns {part: how many values were equal}."""
    counts = {}
    for i in range(one.rig.ranks):
        mine, theirs = one.ending(i), other.ending(i)
        require(mine.keys() == theirs.keys(), "rank %d: %s against %s" % (i, sorted(mine), sorted(theirs)))
        for part in mine:
            names = sorted(set(mine[part]) | set(theirs[part]))
            wrong = [n for n in names if mine[part].get(n) != theirs[part].get(n)]
            require(not wrong, "rank %d: %d of %d %s differ, first %s: %s in %s, %s in %s"
                    % (i, len(wrong), len(names), part, wrong[0] if wrong else "", mine[part].get((wrong or [0])[0]),
                       one.name, theirs[part].get((wrong or [0])[0]), other.name))
            counts[part] = counts.get(part, 0) + len(names)
    return counts


def compare_histories(restarted, whole):
    """The state root after each step that the restarted job has made; returns how many."""
    mine, theirs = restarted.records(), whole.records()
    require(len(mine) > 1, "the restarted job wrote no roots")
    for step in sorted(mine):
        require(step in theirs, "the uninterrupted job has no step %d" % step)
        require(mine[step]["root"] == theirs[step]["root"], "step %d: the restarted job's root is %s, the "
                "uninterrupted one's %s" % (step, mine[step]["root"], theirs[step]["root"]))
    return len(mine)


def live_case(case, ranks=4, mtu=1500, steps=30, arguments=(), seconds=300, buckets=None, settle=60, check=None, **tap):
    """One job from attach to the last step, followed by the node, compared at every step and at the end."""
    begun = time.monotonic()
    with case_folder(case) as folder, rig.Rig(ranks=ranks, mtu=mtu) as r:
        node = Node(r, folder, **tap).start()
        job = Job(r, folder, ["--steps", steps] + list(arguments)).start()

        def watch():
            require(node.alive(), "gradtapd ended: " + node.last_words())
            job.require_tapped()
            numbers = node.numbers()
            if numbers:
                check_order(numbers)
        job.wait(seconds, watch)
        if buckets:
            buckets(job.report())
        node.wait_step("durable", steps, settle)
        count = compare_roots(node, job, steps)
        elements = compare_export(node.export(steps), job.final(), steps)
        if check:
            check(node, job)
        shards = len(node.shards())
        require(shards >= 8, "only %d shards: the case is meant to have at least 8" % shards)
        code = node.stop()
        require(code == 0, "gradtapd ended with exit code %s after SIGTERM" % code)
    print("passed  %-28s %3d roots and %d elements in %d shards equal, %.1f s"
          % (case, count, elements, shards, time.monotonic() - begun), flush=True)


def run_cases(cases):
    """cases: [(name, function)]. Prints a line each; exit code 0 or 1."""
    failed = []
    for name, function in cases:
        try:
            function()
        except (Failed, rig.RigError, subprocess.TimeoutExpired) as error:
            print("FAILED  %-28s %s" % (name, error), flush=True)
            failed.append(name)
    print("%d passed, %d failed%s" % (len(cases) - len(failed), len(failed),
                                      ": " + ", ".join(failed) if failed else ""), flush=True)
    return 1 if failed else 0


def chosen(cases, words):
    """The cases named on the command line, or all. A word is a whole name, or else a part of names."""
    names = {name for name, _ in cases}
    wanted = lambda name: any(w == name or w not in names and w in name for w in words)
    found = [c for c in cases if not words or wanted(c[0])]
    if not found:
        raise SystemExit("no case is named like %s; there are: %s" % (", ".join(words), ", ".join(sorted(names))))
    return found
