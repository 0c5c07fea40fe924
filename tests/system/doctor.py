#!/usr/bin/python3
"""`gradtap doctor` at a mirror port: who sends, whole or cut frames, checksums that nobody filled in, a port that is down.

What is sent is known, because this program sends it.
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

import rig
from harness import require

BIN = os.environ.get("GRADTAP_BIN", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "bin"))
CONFIG = """
[node]
name = "tap0"
data_dir = "%(data)s"
[tap]
kind = "af_packet"
interface = "%(interface)s"
queues = 1
frame_bytes = %(frame_bytes)d
ring_frames = 512
[store]
min_free_bytes = 0
[[job]]
name = "gpt"
endpoints = [%(endpoints)s]
"""


class Talk:
    """TCP from each of `senders` to rank 0, small pieces, until it is left."""
    def __init__(self, r, senders):
        self.stopping = threading.Event()
        self.threads = []
        server = r.socket(r.rank(0))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((rig.rank_address(0), 9000))
        server.listen(8)
        pairs = []
        for i in senders:
            client = r.socket(r.rank(i))
            client.settimeout(5)
            client.connect((rig.rank_address(0), 9000))
            pairs.append((client, server.accept()[0]))
        for client, peer in pairs:
            self.threads.append(threading.Thread(target=self._run, args=(client, peer)))
        for thread in self.threads:
            thread.start()

    def _run(self, client, peer):
        while not self.stopping.wait(0.01):
            client.sendall(bytes(3000))
            got = 0
            while got < 3000:
                got += len(peer.recv(65536))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def doctor(r, folder, hosts, frame_bytes=2048):
    path = os.path.join(folder, "node.toml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(CONFIG % {"data": folder, "interface": "mon1", "frame_bytes": frame_bytes,
                          "endpoints": ", ".join('"%s"' % rig.rank_address(i) for i in range(hosts))})
    done = subprocess.run(r.command(r.monitor, os.path.join(BIN, "gradtap"), "doctor", "--config", path, "--seconds", "1",
                                    "--json"), capture_output=True, text=True, timeout=60)
    require(done.returncode in (0, 1), "doctor ends with %d: %s" % (done.returncode, done.stderr))
    report = json.loads(done.stdout)
    return done.returncode, {c["check"]: c for c in report["checks"]}, report


def main():
    rig.enter_privileged()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        with rig.Rig(ranks=3) as r:
            code, checks, _ = doctor(r, folder, 3)
            require(checks["interface"]["verdict"] == "ok", "the interface is up: %s" % checks["interface"])
            require(checks["mirror"]["verdict"] == "warning" or checks["job"]["verdict"] == "warning",
                    "silence is a warning, not a mistake")
            with Talk(r, [1, 2]):
                code, checks, report = doctor(r, folder, 3)
            require(checks["job"]["verdict"] == "warning" and checks["job"]["seen"].endswith("none from " + rig.rank_address(0)),
                    "two hosts send, the first does not: %s" % checks["job"]["seen"])
            require(code == 0 and report["wrong"] == 0 and "checksums" not in checks, "nothing is wrong: %s" % report)
            with Talk(r, [1]):
                # Rank 0's acknowledgements carry nothing; 9 is no host of the job at all.
                code, checks, _ = doctor(r, folder, 2)
            require(checks["job"]["seen"].startswith('"gpt": payload from ' + rig.rank_address(1)), checks["job"]["seen"])
            r.run(r.monitor, "ip", "link", "set", "mon1", "down")
            code, checks, _ = doctor(r, folder, 3)
            require(code == 1 and checks["interface"]["verdict"] == "WRONG", "a port that is down: %s" % checks["interface"])
        # Checksums that a card would fill in: a software switch mirrors frames as they are before that.
        with rig.Rig(ranks=2, checksums=False) as r:
            with Talk(r, [1]):
                code, checks, _ = doctor(r, folder, 2)
            require(code == 1 and checks["checksums"]["verdict"] == "WRONG", "unfilled checksums: %s" % checks.get("checksums"))
        with rig.Rig(ranks=2, mtu=9000) as r:
            with Talk(r, [1]):
                code, checks, _ = doctor(r, folder, 2)
            require(code == 1 and checks["frames"]["verdict"] == "WRONG" and "raise tap.frame_bytes" in checks["frames"]["remedy"],
                    "frames larger than a slot: %s" % checks.get("frames"))
            with Talk(r, [1]):
                code, checks, _ = doctor(r, folder, 2, frame_bytes=16384)
            require(code == 0 and "frames" not in checks, "a larger slot: %s" % checks.get("frames"))
    print("passed  doctor  %.1f s" % (time.monotonic() - begun))


if __name__ == "__main__":
    sys.exit(main())
