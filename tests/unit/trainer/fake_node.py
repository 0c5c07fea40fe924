"""A node for tests: records what a trainer says. Independent of the package under test (no import of gradtap)."""

import base64
import hashlib
import json
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def parse_safetensors(body):
    """(tensors: name -> bytes, metadata)."""
    (length,) = struct.unpack("<Q", body[:8])
    header = json.loads(body[8:8 + length].decode())
    metadata = header.pop("__metadata__", {})
    data = body[8 + length:]
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        assert end - begin == 4 * entry["shape"][0], entry
        tensors[name] = data[begin:end]
    return tensors, metadata


class FakeNode:
    """Modes: normal, silent (accepts, never answers), slow (1 kB/s answers), garbage, refuse, superseded_at (409 from a
    step on), reject_step (422 for one step)."""

    def __init__(self, mode="normal", superseded_at=None, reject_step=None, requests=None, deaf_until=None):
        self.mode = mode
        self.superseded_at = superseded_at
        self.reject_step = reject_step
        self.requests = list(requests or [])
        self.deaf_until = deaf_until
        self.attaches = {}
        self.chunks = {}
        self.messages = {}  # rank -> seq -> body
        self.blobs = {}  # digest -> bytes, uploaded
        self.blob_puts = []  # (digest, bytes, number of messages known before)
        self.durable_lag = 0
        self.detached = {}
        self.calls = 0
        self.lock = threading.Lock()
        node = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def _body(self):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))

            def _answer(self, status, answer):
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _any(self):
                node.calls += 1
                if node.mode == "silent":
                    self._body()
                    time.sleep(3600)
                if node.mode == "dead":
                    self.close_connection = True
                    return
                if node.mode == "slow":
                    self._slow()
                    return
                if node.mode == "garbage":
                    self._body()
                    self.wfile.write(b"\x00\xff not http at all \r\n\r\n" * 3)
                    self.close_connection = True
                    return
                if node.mode == "not-json":
                    self._body()
                    data = b"<html>login</html>"
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                    return
                status, answer = node.handle(self.command, self.path, self.headers, self._body())
                self._answer(status, answer)

            def _slow(self):
                length = int(self.headers.get("Content-Length") or 0)
                while length > 0:  # 1 kB/s in
                    length -= len(self.rfile.read(min(length, 1024)))
                    time.sleep(1.0)
                status, answer = 200, b'{"session": "' + b"0" * 32 + b'", "received_seq": 0, "durable_seq": 0}'
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(answer) + 4096))
                for b in b" " * 4096 + answer:
                    self.wfile.write(bytes([b]))
                    time.sleep(0.001)

            do_GET = do_POST = do_PUT = _any

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, address):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = "http://127.0.0.1:%d" % self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def kill(self):
        """No farewell: open connections break, new ones are refused."""
        self.mode = "dead"
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    # The protocol

    def handle(self, method, path, headers, body):
        parts = path.strip("/").split("/")
        assert parts[:2] == ["v1", "jobs"], path
        what = parts[3]
        with self.lock:
            if what == "attach" and method == "POST":
                return self._attach(json.loads(body))
            if what == "attach":
                return self._verdict()
            if what == "chunks":
                assert len(body) <= 16 << 20
                self.chunks.setdefault(parts[4], {})[int(parts[5])] = body
                return 200, {}
            if what == "blobs" and method == "PUT":
                assert hashlib.sha256(body).hexdigest() == parts[4], "a blob came under another digest"
                self.blobs[parts[4]] = body
                self.blob_puts.append((parts[4], len(body), sum(len(m) for m in self.messages.values())))
                return 200, {}
            if what == "messages":
                return self._messages(headers, body)
            if what == "points":
                return 200, {"points": []}
            if what == "detach":
                self.detached[headers["X-Gradtap-Session"]] = json.loads(body)
                return 200, {}
        return 404, {"error": {"name": "NOT_FOUND", "what": path}}

    def _attach(self, body):
        rank = body["rank"]
        if rank != 0 and 0 not in self.attaches:
            return 503, {"error": {"name": "NOT_YET", "what": "rank 0 has not attached"}}
        self.attaches[rank] = body
        session = hashlib.md5(("%s/%d" % (body["run_nonce"], rank)).encode()).hexdigest()
        wants = [{"id": "probe", "kind": "probe"}, {"id": "baseline", "kind": "all"}] if rank == 0 else []
        return 200, {"session": session, "lineage": 1, "next_seq": 1, "P": 1, "wants": wants,
                     "state": "baseline_pending", "durable_seq": 0}

    def _verdict(self):
        if self.mode == "refuse":
            return 200, {"state": "refused", "error": {"name": "UNSUPPORTED", "what": "no recipe matches"}}
        chunks = self.chunks.get("baseline", {})
        if not chunks or "probe" not in self.chunks:
            return 200, {"state": "baseline_pending"}
        total = int(parse_safetensors(next(iter(chunks.values())))[1]["chunks"])
        return 200, {"state": "tracking" if len(chunks) == total else "baseline_pending"}

    def _messages(self, headers, body):
        lines = [json.loads(line) for line in body.splitlines()]
        assert len(lines) <= 64 and len(body) <= 1 << 20, (len(lines), len(body))
        for m in lines:
            if self.superseded_at is not None and m.get("step", 0) >= self.superseded_at:
                return 409, {"error": {"name": "LINEAGE_SUPERSEDED", "what": "a newer run took over"}}
            if self.reject_step is not None and m.get("step") == self.reject_step:
                return 422, {"error": {"name": "SCHEMA", "field": "witness"}}
            known = self.messages.setdefault(m["rank"], {}).setdefault(m["seq"], m)
            assert known == m, "seq %d came with two contents" % m["seq"]
        rank = lines[0]["rank"] if lines else 0
        mine = self.messages.get(rank, {})
        gaps = {s for m in mine.values() if m["kind"] == "dropped" for s in m["seqs"]}
        received = 0
        while received + 1 in mine or received + 1 in gaps:
            received += 1
        requests, self.requests = self.requests, []
        return 200, {"received_seq": received, "durable_seq": max(0, received - self.durable_lag),
                     "requests": requests, "P": 1}

    def kind(self, kind, rank=0):
        return [m for _, m in sorted(self.messages.get(rank, {}).items()) if m["kind"] == kind]

    def blob(self, message, name):
        """The bytes of a value that a step message names."""
        entry = message["blobs"][name]
        data = base64.b64decode(entry["inline"]) if "inline" in entry else self.blobs[entry["digest"]]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["digest"])
        return data

    def steps(self, rank=0):
        return self.kind("step", rank)

    def layout_of(self, layout_id):
        for body in [self.attaches[0]["layout"]] + [m["layout"] for m in self.kind("layout")]:
            text = json.dumps(body, sort_keys=True, separators=(",", ":"))
            if hashlib.sha256(text.encode()).hexdigest() == layout_id:
                return body
        raise AssertionError("no layout with id " + layout_id)
