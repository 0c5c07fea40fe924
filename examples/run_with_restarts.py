#!/usr/bin/env python3
"""Starts a training script on several ranks of this host; when a rank dies, ends the others and starts all of them again.

    run_with_restarts.py [--ranks N] [--restarts N] [--pause S] SCRIPT [arguments of the script]

A script that calls gradtap.restore then goes on from the newest recovery point. On several hosts let your scheduler do the
same: all ranks end when one has died, all start again, with a process group of their own.
"""
import argparse
import os
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TRAINER = os.path.join(os.path.dirname(HERE), "trainer")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(ranks, command):
    path = TRAINER + (os.pathsep + os.environ["PYTHONPATH"] if os.environ.get("PYTHONPATH") else "")
    shared = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks),
                  PYTHONPATH=path, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))
    return [subprocess.Popen([sys.executable] + command, env=dict(shared, RANK=str(rank))) for rank in range(ranks)]


def end(processes, patience_s=5.0):
    """Asks, then insists. Only processes that were started here."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for p in processes:
            if p.poll() is None:
                p.send_signal(sign)
        deadline = time.monotonic() + patience_s
        while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
            time.sleep(0.05)


def run_once(ranks, command):
    """0 when every rank ended well, otherwise the first exit code that was not 0."""
    processes = start(ranks, command)
    try:
        while True:
            codes = [p.poll() for p in processes]
            bad = [c for c in codes if c]
            if bad:
                return bad[0]
            if all(c == 0 for c in codes):
                return 0
            time.sleep(0.1)
    finally:
        end(processes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two attempts")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.command:
        parser.error("which script?")
    for attempt in range(args.restarts + 1):
        code = run_once(args.ranks, args.command)
        if code == 0:
            return 0
        print("run_with_restarts: a rank ended with %d (attempt %d of %d)" % (code, attempt + 1, args.restarts + 1),
              file=sys.stderr, flush=True)
        time.sleep(args.pause)
    return 1


if __name__ == "__main__":
    sys.exit(main())
