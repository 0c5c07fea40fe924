"""Recovery points made by the tests themselves, and a server that answers for them as docs/side-channel.md says. No import
of gradtap: digests come from tests/system/state_root.py, which is written independently."""

import hashlib
import json
import os
import struct
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(HERE)), "system"))

import state_root  # noqa: E402

SHARD_ELEMENTS = 1 << 16


def safetensors(tensors, metadata):
    """tensors: [(name, dtype, shape, bytes)]"""
    header, offset = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, _, data in tensors)


def side_digest(rank, message, blobs):
    data = b"gradtap side state 1" + struct.pack("<QQ", rank, len(message)) + message + struct.pack("<Q", len(blobs))
    for name in sorted(blobs):
        data += struct.pack("<Q", len(name.encode())) + name.encode() + struct.pack("<Q", len(blobs[name]))
        data += blobs[name]
    return hashlib.sha256(data).hexdigest()


class Point:
    """state: [(name, shape, {kind: array or None}, counter)] with kind "param" first; sides: {rank: (message, blobs)}."""

    def __init__(self, lineage, step, world, state, sides, layout, optimizer="AdamW"):
        self.lineage, self.step, self.world = lineage, step, world
        root, shards = state_root.digests(
            [([None if a is None else np.ascontiguousarray(a).reshape(-1).view("uint32") for a in kinds.values()], counter)
             for _, _, kinds, counter in state], SHARD_ELEMENTS)
        tensors = []
        for name, shape, kinds, _ in state:
            for kind, array in kinds.items():
                if array is not None:
                    tensors.append((name if kind == "param" else name + "#" + kind, "F32", shape, array.tobytes()))
        counters = {name: counter for name, _, _, counter in state if counter}
        self.state = safetensors(tensors, {"step": step, "lineage": lineage, "job": "unit", "root": root,
                                           "counters": json.dumps(counters), "aliases": "{}"})
        self.sides = {}
        for rank, (message, blobs) in sides.items():
            self.sides[rank] = safetensors(
                [(name, "U8", [len(data)], data) for name, data in sorted(blobs.items())],
                {"step": step, "lineage": lineage, "rank": rank, "message": message.decode()})
        digest = hashlib.sha256(b"%d/%d" % (lineage, step)).hexdigest()
        self.entry = {"lineage": lineage, "step": step, "root": root, "world": world, "valid": True, "reason": "",
                      "wall_ms": 1, "record_digest": digest, "superseded": False}
        text = json.dumps(layout, sort_keys=True, separators=(",", ":"))
        self.record = {"lineage": lineage, "step": step, "root": root, "world": world, "record_digest": digest,
                       "shards": [{"shard": i, "digest": d} for i, d in enumerate(shards)],
                       "ranks": [{"rank": r, "digest": side_digest(r, *sides[r])} for r in sorted(sides)],
                       "layout": layout, "layout_id": hashlib.sha256(text.encode()).hexdigest(),
                       "optimizer": optimizer}


class PointServer:
    """Gateways that know points. busy: number of GET requests that are answered with 503 first.

    held: {id: (lineage, step, holder)}; lease_calls: (method, path); unheld: what was read of a point that nobody held.
    lease_with(method, names): a (status, body) to answer instead, or None."""

    def __init__(self, points=(), job="unit"):
        self.points = {(p.lineage, p.step): p for p in points}
        self.job, self.busy, self.calls, self.fail_with = job, 0, [], None
        self.fork = 2  # up to here points of older lineages count
        self.held, self.lease_calls, self.unheld, self.renew_s = {}, [], [], 30
        self.lease_with = lambda method, names: None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.reply(*server.lease(self.command, self.path, body))

            do_DELETE = do_POST

            def do_GET(self):
                self.reply(*server.answer(self.path))

            def reply(self, status, body):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for at in range(0, len(data), 100000):
                    piece = data[at:at + 100000]
                    self.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.server.shutdown()
        self.server.server_close()

    def lease(self, method, path, body):
        self.lease_calls.append((method, path))
        names = path.strip("/").split("/")
        assert names[:4] == ["v1", "jobs", self.job, "points"] and names[6] == "lease", path
        at = int(names[4]), int(names[5])
        other = self.lease_with(method, names)
        if other is not None:
            return other
        if len(names) == 7:
            assert method == "POST", method
            if at not in self.points:
                return 404, {"error": {"name": "POINT_NONE", "what": "no such point"}}
            found = "%032x" % len(self.lease_calls)
            self.held[found] = at + (json.loads(body)["holder"],)
            return 200, {"lease": found, "renew_s": self.renew_s}
        if self.held.get(names[7], (0, 0, ""))[:2] != at:
            return 404, {"error": {"name": "OBJECT_MISSING", "what": "no such lease"}}
        if method == "DELETE":
            del self.held[names[7]]
        return 200, {}

    def answer(self, path):
        self.calls.append(path)
        if self.busy > 0:
            self.busy -= 1
            return 503, {"error": {"name": "NODE_BUSY", "what": "not home"}}
        if self.fail_with is not None:
            return self.fail_with
        parts = urllib.parse.urlsplit(path)
        names = parts.path.strip("/").split("/")
        query = dict(urllib.parse.parse_qsl(parts.query))
        if names[:4] != ["v1", "jobs", self.job, "points"]:
            return 404, {"error": {"name": "JOB_UNKNOWN", "what": "no such job"}}
        if len(names) == 4:
            points = [p.entry for _, p in sorted(self.points.items(), reverse=True)]
            for p in points:
                p["superseded"] = p["lineage"] != points[0]["lineage"]
            return 200, {"points": points, "restorable": [
                {"lineage": p["lineage"], "step": p["step"]} for p in points
                if p["valid"] and (not p["superseded"] or p["step"] <= self.fork)]}
        if (int(names[4]), int(names[5])) not in self.points:
            return 404, {"error": {"name": "POINT_NONE", "what": "no such point"}}
        point = self.points[int(names[4]), int(names[5])]
        if (point.lineage, point.step) not in [held[:2] for held in list(self.held.values())]:
            self.unheld.append(path)
        if len(names) == 6:
            return 200, point.record
        if names[6] == "state":
            assert query == {"optimizer": "1"}, path
            return 200, point.state
        return 200, point.sides[int(query["rank"])]
