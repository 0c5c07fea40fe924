"""A recorded job as a test client plays it: attach, probe, baseline, layouts, step messages and witness, from the files
next to a capture; what the replica must hold after every step; and a node without a rig that reads the capture.

Protocol, layouts, witness and optimizer are written here once more, in numpy and the standard library, from
docs/side-channel.md and the published formulas: nothing is shared with the node or with trainer/.
"""
import hashlib
import http.client
import json
import math
import os
import signal
import socket
import struct
import subprocess

import numpy as np

import harness
import state_root
from harness import require

RANKS = ["10.77.0.%d" % (10 + i) for i in range(4)]
KINDS = ["exp_avg", "exp_avg_sq"]
MASK = (1 << 64) - 1
JOB = "demo"


def captures():
    return os.environ.get("GRADTAP_CAPTURES", os.path.join(harness.ROOT, "..", "shared", "captures"))


# ---- the optimizer, once more

def fma(a, b, c):
    """float32 a*b+c with one rounding: the product is exact in float64, the sum is rounded to odd there."""
    p, c = a.astype(np.float64) * np.float64(b) if np.isscalar(b) else a.astype(np.float64) * b, c.astype(np.float64)
    s = p + c
    t = s - p
    error = (p - (s - t)) + (c - t)
    bits = s.view(np.int64)
    inexact = (error != 0) & (bits & 1 == 0)
    away = np.where((error > 0) == (s > 0), 1, -1)
    return np.where(inexact, bits + away, bits).view(np.float64).astype(np.float32)


def adam(h, lerp, t, p, m, v, g, decoupled=True):
    """(p, m, v) after step t; float32 arrays. decoupled=False: weight decay as Adam has it, not AdamW."""
    F = np.float32
    b1, b2 = h["betas"]
    d, x = g, p
    if decoupled:
        x = p * F(1 - h["lr"] * h["weight_decay"])
    else:
        d = fma(p, F(h["weight_decay"]), g)
    w = F(1 - b1)
    m = fma(d - m, w, m) if lerp else fma(d, w, m * F(b1))
    v = fma(F(1 - b2) * d, d, v * F(b2))
    den = np.sqrt(v) / F(math.sqrt(1 - b2 ** t)) + F(h["eps"])
    return x + (F(-(h["lr"] / (1 - b1 ** t))) * m) / den, m, v


# ---- the recorded job

def f64(x):
    return "f64:" + struct.pack(">d", x).hex()


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def layout_id(layout):
    return hashlib.sha256(json.dumps(layout, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def witness_positions(layout, step, bucket):
    """Element offsets in the bucket."""
    salt = int(layout_id(layout)[:16], 16)
    numel = sum(n for _, n in layout["buckets"][bucket])
    return [mix((salt + (step * 64 + bucket * 8 + j + 1) * 0x9E3779B97F4A7C15) & MASK) % numel for j in range(8)]


def safetensors(tensors, metadata):
    header, parts, at = {"__metadata__": metadata}, [], 0
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


class Recording:
    """What the trainer of a capture had, as the files say."""

    def __init__(self, name):
        self.folder = os.path.join(captures(), name)
        self.pcap = os.path.join(self.folder, "mon.pcap")
        with open(os.path.join(self.folder, "meta.json")) as f:
            self.meta = json.load(f)
        read = lambda n: np.fromfile(os.path.join(self.folder, n + ".f32"), np.float32)
        self.steps, self.total = self.meta["steps"], self.meta["total"]
        self.names, self.shapes = self.meta["names"], self.meta["shapes"]
        self.numels = [int(np.prod(s)) for s in self.shapes]
        self.starts = [sum(self.numels[:i]) for i in range(len(self.numels))]
        self.params = read("params").reshape(self.steps + 1, self.total)
        self.grads = read("grads").reshape(self.steps, self.total)
        self.state = read("state").reshape(2, self.total)
        everything = [[[i, n] for i, n in enumerate(self.numels)]]
        rebuilt = [[[int(i), self.numels[int(i)]] for i in b.split()]
                   for b in self.meta["ddp"][2]["rebuilt_per_bucket_param_indices"].split(",")]
        self.first = {"buckets": everything, "dtype": "float32"}
        self.rebuilt = {"buckets": rebuilt, "dtype": "float32"}
        # Group sequence numbers: 3 before the first step; its bucket; then two broadcasts of the map and the buckets.
        ends = self.meta.get("seqlog")
        if ends is None:
            ends = [4] + [4 + 2 + len(rebuilt) * k for k in range(1, self.steps)]
        self.intervals = {s + 1: [([3] + ends)[s], ends[s]] for s in range(self.steps)}

    def layout(self, step):
        return self.first if step == 1 else self.rebuilt

    def tags(self, step):
        """{tag: (bucket, bytes)}: the buckets are the last collectives of the step."""
        buckets = self.layout(step)["buckets"]
        return {self.intervals[step][1] - len(buckets) + i: (i, 4 * sum(n for _, n in b)) for i, b in enumerate(buckets)}

    def piece(self, flat, i):
        return flat[self.starts[i]:self.starts[i] + self.numels[i]]

    def bucket_gradient(self, step, layout, bucket):
        return np.concatenate([self.piece(self.grads[step - 1], i) for i, _ in layout["buckets"][bucket]])

    def states(self, lerp):
        """[(p, m, v)] after each step by the formulas, checked against every file; step 0 has no moments."""
        h = self.meta["optimizer"]
        p, m, v = self.params[0], np.zeros(self.total, np.float32), np.zeros(self.total, np.float32)
        found = [(p, None, None)]
        for t in range(1, self.steps + 1):
            p, m, v = adam(h, lerp, t, p, m, v, self.grads[t - 1])
            require(np.array_equal(p.view(np.uint32), self.params[t].view(np.uint32)),
                    "the test's own optimizer does not reproduce params.f32 at step %d" % t)
            found.append((p, m, v))
        for ours, file in ((m, self.state[0]), (v, self.state[1])):
            require(np.array_equal(ours.view(np.uint32), file.view(np.uint32)),
                    "the test's own optimizer does not reproduce state.f32")
        return found

    # ---- what the client says

    def group(self):
        o = self.meta["optimizer"]
        return {"lr": f64(o["lr"]), "beta1": f64(o["betas"][0]), "beta2": f64(o["betas"][1]), "eps": f64(o["eps"]),
                "weight_decay": f64(o["weight_decay"]), "amsgrad": "b:%d" % o["amsgrad"],
                "maximize": "b:%d" % o["maximize"], "fused": "none", "foreach": "none"}

    def attach(self, nonce, rank=0, layout=None, **changes):
        body = {"protocol": 1, "job": JOB, "run_nonce": nonce, "rank": rank, "world": 4, "group": 0,
                "hosts": [RANKS[rank]], "torch": "0.0.0-nonsense", "backend": "gloo", "inventory": []}
        if rank == 0:
            body.update({
                "device": "cpu", "cpu_capability": "nonsense", "threads": 1, "sequence": 3,
                "parameters": [{"name": n, "shape": s, "order": list(range(len(s))), "dtype": "float32", "numel": c,
                                "requires_grad": True, "group": 0, "alias_of": None}
                               for n, s, c in zip(self.names, self.shapes, self.numels)],
                "buffers": [], "optimizer": {"class": self.meta["optimizer"]["class"], "kinds": KINDS,
                                             "groups": [self.group()]},
                "transforms_planned": [], "layout": layout or self.first, "probe_cases": "recorded",
                "inventory": [{"name": "model." + n, "class": "replayed", "type": "Parameter"} for n in self.names],
                "resume_from": None, "baseline": "sync", "step": 0})
        return dict(body, **changes)

    def probe(self, changed=None):
        """Tensors of the recorded probe: the first two parameters; moments where a file has them, after step 4."""
        tensors = {}
        for i in (0, 1):
            tensors["%d:param:in" % i] = self.piece(self.params[0], i)
            for s in range(1, 5):
                tensors["%d:grad:grad%d" % (i, s)] = self.piece(self.grads[s - 1], i)
                tensors["%d:param:out%d" % (i, s)] = self.piece(self.params[s], i)
            for k, kind in enumerate(KINDS):
                tensors["%d:%s:out4" % (i, kind)] = self.piece(self.state[k], i)
        tensors.update(changed or {})
        return safetensors(tensors, {"groups": json.dumps([self.group()] * 4), "class": self.meta["optimizer"]["class"],
                                     "kinds": json.dumps(KINDS)})

    def baseline(self):
        tensors = {"%d:0:param" % i: self.piece(self.params[0], i) for i in range(len(self.names))}
        return safetensors(tensors, {"step": "0", "chunks": "1", "counters": "{}"})

    def message(self, step, layout=None, interval=None, gradients_of=None):
        layout = layout or self.layout(step)
        witness = {}
        for b in range(len(layout["buckets"])):
            gradient = self.bucket_gradient(gradients_of or step, layout, b).view(np.uint32)
            witness[str(b)] = ["%08x" % gradient[p] for p in witness_positions(layout, step, b)]
        return {"kind": "step", "step": step, "layout_id": layout_id(layout), "interval": interval or self.intervals[step],
                "micro_steps": 1, "synced_backwards": 1, "verdict": "applied", "groups": [self.group()],
                "transforms": [], "param_state": "00" * ((len(self.names) + 3) // 4), "witness": witness, "buffers": {},
                "blobs": {}, "counters": {"dropped": 0, "queue_bytes": 0, "commit_us": 1}}


class Expected:
    """The state after one step in the form that harness.compare_export takes, and its root."""

    def __init__(self, recording, states, step):
        kinds = states[step] if step else states[step][:1]
        self.meta = {"parameters": [{"name": n, "shape": s} for n, s in zip(recording.names, recording.shapes)]}
        self.tensors = {(n, k): recording.piece(flat, i).view(np.uint32)
                        for i, n in enumerate(recording.names) for k, flat in zip(["param"] + KINDS, kinds)}
        self.elements = sum(len(t) for t in self.tensors.values())
        arrays = [[None if flat is None else recording.piece(flat, i).view(np.uint32) for flat in states[step]]
                  for i in range(len(recording.names))]
        self.root, self.shards = state_root.digests([(a, step) for a in arrays], 1)


# ---- node and client

class Node(harness.Node):
    """gradtapd that reads a capture (None: no tap) and listens on the loopback interface."""

    def __init__(self, folder, pcap, checksum="offload"):
        self.folder, self.job, self.data = folder, JOB, os.path.join(folder, "node")
        self.config, self.log_path = os.path.join(folder, "node.toml"), os.path.join(folder, "node.log")
        self.child = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.configure(pcap, checksum)

    def configure(self, pcap, checksum="offload"):
        tap = 'kind = "none"' if pcap is None else 'kind = "pcap"\nfile = "%s"' % pcap
        with open(self.config, "w") as f:
            f.write("""[node]
name = "tap0"
data_dir = "%s"
listen = "127.0.0.1:%d"

[tap]
%s
l4_checksum = "%s"

[dpdk]
memory_mb = 128
mbufs = 4096

[replica]
shard_elements = 1

[store]
full_every_steps = 2
keep_fulls = 8
min_free_bytes = 0

[[job]]
name = "%s"
endpoints = [%s]
""" % (self.data, self.port, tap, checksum, JOB, ", ".join('"%s"' % r for r in RANKS)))

    def start(self, seconds=60):
        with open(self.log_path, "a") as log:
            log.write("---- start\n")
            log.flush()
            self.child = subprocess.Popen([os.path.join(harness.BIN, "gradtapd"), "--config", self.config], stdout=log,
                                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                          env=dict(os.environ, RUNTIME_DIRECTORY=self.folder))

        def ready():
            require(self.child.poll() is None, "gradtapd ended with code %s while starting: %s"
                    % (self.child.poll(), self.last_words()))
            return self.get("/v1/status", quiet=True) is not None
        harness.wait_until("gradtapd to answer /v1/status", seconds, ready)
        return self

    def kill(self):
        if self.alive():
            os.kill(self.child.pid, signal.SIGKILL)
        if self.child:
            self.child.wait()

    def stop(self, seconds=30):
        os.kill(self.child.pid, signal.SIGTERM)
        return self.child.wait(timeout=seconds)

    def request(self, method, path, body=None, session=None, seconds=20):
        """(status, JSON answer or {})"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, body, {"X-Gradtap-Session": session} if session else {})
            answer = connection.getresponse()
            raw = answer.read()
            return answer.status, json.loads(raw) if raw.strip() else {}
        finally:
            connection.close()

    def get(self, path, quiet=False, seconds=10):
        try:
            status, answer = self.request("GET", path, seconds=seconds)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if quiet:
                return None
            raise harness.Failed("GET %s: %s" % (path, error))
        if status != 200 and quiet:
            return None
        require(status == 200, "GET %s: %d %s" % (path, status, answer))
        return answer

    def cli(self, *arguments, seconds=60):
        endpoint = ["--endpoint", "http://127.0.0.1:%d" % self.port]
        done = subprocess.run([os.path.join(harness.BIN, "gradtap")] + list(arguments) + endpoint, capture_output=True,
                              text=True, timeout=seconds)
        require(done.returncode == 0, "gradtap %s: exit code %d: %s"
                % (" ".join(arguments), done.returncode, (done.stderr or done.stdout).strip()[-500:]))
        return done.stdout

    def gap(self, name):
        return next((g for g in (self.status() or {}).get("gaps", []) if g["name"] == name), None)


class Client:
    """The ranks of the recorded job."""

    def __init__(self, node, recording, nonce="0123456789abcdef0123456789abcdef"):
        self.node, self.recording, self.nonce = node, recording, nonce
        self.sessions, self.seqs = {}, {}

    def path(self, tail):
        return "/v1/jobs/%s/%s" % (JOB, tail)

    def open(self, rank=0, **changes):
        return self.node.request("POST", self.path("attach"), json.dumps(self.recording.attach(self.nonce, rank,
                                                                                                **changes)))

    def put(self, chunk, number, body):
        return self.node.request("PUT", self.path("chunks/%s/%d" % (chunk, number)), body, self.sessions[0])

    def attach(self, probe=None, **changes):
        """Rank 0 up to `tracking`; returns the answer of the attach."""
        status, answer = self.open(**changes)
        require(status == 200, "attach: %d %s" % (status, answer))
        self.sessions[0], self.seqs[0] = answer["session"], answer["next_seq"]
        status, told = self.put("probe", 0, probe or self.recording.probe())
        require(status == 200, "probe: %d %s" % (status, told))
        status, told = self.put("baseline", 0, self.recording.baseline())
        require(status == 200, "baseline: %d %s" % (status, told))
        harness.wait_until("the attach to reach tracking", 20, lambda: self.progress()["state"] == "tracking")
        return answer

    def attach_others(self):
        for rank in (1, 2, 3):
            status, answer = self.open(rank)
            require(status == 200, "attach of rank %d: %d %s" % (rank, status, answer))
            self.sessions[rank], self.seqs[rank] = answer["session"], answer["next_seq"]

    def progress(self):
        return self.node.get(self.path("attach/" + self.sessions[0]))

    def post(self, *messages, rank=0):
        lines = []
        for message in messages:
            lines.append(json.dumps(dict(message, seq=self.seqs[rank], rank=rank)))
            self.seqs[rank] += 1
        return self.node.request("POST", self.path("messages"), "\n".join(lines) + "\n", self.sessions[rank])

    def tell(self, *messages, rank=0):
        status, answer = self.post(*messages, rank=rank)
        require(status in (200, 202), "messages: %d %s" % (status, answer))
        require(answer["received_seq"] == self.seqs[rank] - 1, "received_seq %s after seq %d"
                % (answer["received_seq"], self.seqs[rank] - 1))
        return answer

    def layout(self, layout):
        return {"kind": "layout", "layout": layout}

    def steps(self, first, last):
        return [self.recording.message(s) for s in range(first, last + 1)]
