#!/usr/bin/python3
"""Fuzzes for as long as it is left running, in slices, so that all targets grow alike. Needs the build of `tests/check.py
fuzz` (build-fuzz/). What it found and how long it ran is summed in build-fuzz/ledger.json.

    tests/fuzz_hours.py [--slice SECONDS] [--jobs N] [--until SECONDS] [TARGET...]
    tests/fuzz_hours.py --record      adds the ledger to the table of docs/fuzz.md and empties it; packs the corpora

CPU seconds are those the kernel counts for the process (user and system). Corpora are in build-fuzz/corpus/TARGET and
begin as what tests/fuzz/corpus/TARGET.bin holds; --record writes those anew, the smallest inputs first, 48 KiB at most.
"""
import argparse
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build-fuzz")
LEDGER = os.path.join(BUILD, "ledger.json")
PACKED = os.path.join(ROOT, "tests", "fuzz", "corpus")
DOCS = os.path.join(ROOT, "docs", "fuzz.md")
PACKED_BYTES = 48 * 1024
MANY_FILES = 1500  # of a corpus, before it is reduced
ROW = re.compile(r"^\| `(\w+)` \| (.*) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$")


def targets():
    folder = os.path.join(BUILD, "bin")
    return sorted(p[:-len("_fuzz")] for p in (os.listdir(folder) if os.path.isdir(folder) else [])
                  if p.endswith("_fuzz"))


def corpus(name):
    return os.path.join(BUILD, "corpus", name)


def unpack(name):
    """The inputs of tests/fuzz/corpus/NAME.bin: each its length, 4 bytes little-endian, and its bytes."""
    path, inputs = os.path.join(PACKED, name + ".bin"), []
    if os.path.exists(path):
        with open(path, "rb") as f:
            data = f.read()
        at = 0
        while at + 4 <= len(data):
            (length,) = struct.unpack_from("<I", data, at)
            inputs.append(data[at + 4:at + 4 + length])
            at += 4 + length
    return inputs


def prepare(name):
    folder = corpus(name)
    if not os.path.isdir(folder):
        os.makedirs(folder)
        for number, data in enumerate(unpack(name)):
            with open(os.path.join(folder, "packed-%04d" % number), "wb") as f:
                f.write(data)
    return folder


def command(name, folder, seconds):
    # A machine that is busy with other things must not look like an input that takes too long.
    return [os.path.join(BUILD, "bin", name + "_fuzz"), "-max_total_time=%d" % seconds, "-timeout=60",
            "-rss_limit_mb=2048", "-print_final_stats=1", "-artifact_prefix=" + os.path.join(BUILD, name + "-"), folder]


def read_ledger():
    if not os.path.exists(LEDGER):
        return {}
    with open(LEDGER) as f:
        return json.load(f)


def write_ledger(ledger):
    with open(LEDGER + ".new", "w") as f:
        json.dump(ledger, f, indent=1, sort_keys=True)
    os.replace(LEDGER + ".new", LEDGER)


class Slice:
    def __init__(self, name, seconds):
        self.name, self.log = name, os.path.join(BUILD, name + ".log")
        with open(self.log, "w") as out:
            self.child = subprocess.Popen(command(name, prepare(name), seconds), cwd=BUILD, stdout=out, stderr=out,
                                          stdin=subprocess.DEVNULL)

    def ended(self):
        """None while it runs, then (exit code, CPU seconds, executions)."""
        pid, status, usage = os.wait4(self.child.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.child.returncode = os.waitstatus_to_exitcode(status)
        with open(self.log, errors="replace") as f:
            found = re.findall(r"stat::number_of_executed_units: *(\d+)", f.read())
        return self.child.returncode, usage.ru_utime + usage.ru_stime, int(found[-1]) if found else 0


def held_up(name):
    """Whether a slice ended by its clock alone: the machine, not the input, was slow. The input is run again."""
    with open(os.path.join(BUILD, name + ".log"), errors="replace") as f:
        log = f.read()
    artifact = re.search(r"Test unit written to (\S+-timeout-\w+)", log)
    if not artifact or "libFuzzer: timeout" not in log or not os.path.exists(artifact.group(1)):
        return False
    again = subprocess.run([os.path.join(BUILD, "bin", name + "_fuzz"), "-timeout=60", artifact.group(1)], cwd=BUILD,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if again.returncode == 0:
        os.remove(artifact.group(1))
    return again.returncode == 0


def reduce(name):
    """Keeps the inputs that reach something no smaller one reaches."""
    folder, fresh = corpus(name), corpus(name) + ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    os.makedirs(fresh)
    done = subprocess.run([os.path.join(BUILD, "bin", name + "_fuzz"), "-merge=1", fresh, folder], cwd=BUILD,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if done.returncode == 0 and os.listdir(fresh):
        shutil.rmtree(folder)
        os.rename(fresh, folder)
    else:
        shutil.rmtree(fresh, ignore_errors=True)


def fuzz(chosen, jobs, seconds, until):
    ledger, running, found, begun = read_ledger(), [], [], time.monotonic()

    def spent(name):
        return ledger.get(name, {}).get("cpu_seconds", 0) + sum(1 for s in running if s.name == name) * 1e9
    try:
        while True:
            left = until - (time.monotonic() - begun)
            while len(running) < min(jobs, len(chosen)) and left > 5:
                name = min(chosen, key=spent)
                if spent(name) >= 1e9:
                    break
                running.append(Slice(name, int(min(seconds, left))))
            if not running:
                return found
            time.sleep(0.5)
            for one in list(running):
                done = one.ended()
                if done is None:
                    continue
                running.remove(one)
                code, cpu, executions = done
                row = ledger.setdefault(one.name, {"cpu_seconds": 0, "executions": 0, "findings": 0})
                row["cpu_seconds"] += cpu
                row["executions"] += executions
                if code != 0 and held_up(one.name):
                    print("%-18s was held up by the machine: its input passes when it is run again" % one.name)
                    code = 0
                row["findings"] += code != 0
                write_ledger(ledger)
                print("%-18s %s %6.0f CPU s %10d executions; together %d s" %
                      (one.name, "passed" if code == 0 else "FOUND (%s)" % one.log, cpu, executions,
                       row["cpu_seconds"]), flush=True)
                if code != 0:
                    found.append(one.name)
                    shutil.copy(one.log, one.log + ".found")
                    chosen = [c for c in chosen if c != one.name]
                elif len(os.listdir(corpus(one.name))) > MANY_FILES:
                    reduce(one.name)
    finally:
        for one in running:
            one.child.send_signal(signal.SIGKILL)


def pack(name):
    reduce(name)
    inputs = []
    for file in os.listdir(corpus(name)):
        with open(os.path.join(corpus(name), file), "rb") as f:
            inputs.append(f.read())
    inputs.sort(key=lambda i: (len(i), i))
    packed = b""
    for data in inputs:
        if len(packed) + 4 + len(data) > PACKED_BYTES:
            break
        packed += struct.pack("<I", len(data)) + data
    os.makedirs(PACKED, exist_ok=True)
    with open(os.path.join(PACKED, name + ".bin"), "wb") as f:
        f.write(packed)
    return len(inputs)


def record():
    ledger = read_ledger()
    with open(DOCS) as f:
        lines = f.read().splitlines()
    for at, line in enumerate(lines):
        row = ROW.match(line)
        if row and row.group(1) in ledger:
            new = ledger.pop(row.group(1))
            lines[at] = "| `%s` | %s | %d | %d | %d | %d |" % (
                row.group(1), row.group(2), int(row.group(3)) + new["executions"],
                int(row.group(4)) + round(new["cpu_seconds"]), int(row.group(5)) + new["findings"],
                pack(row.group(1)))
    with open(DOCS, "w") as f:
        f.write("\n".join(lines) + "\n")
    write_ledger(ledger)
    return ledger


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slice", type=int, default=240)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--until", type=int, default=10 ** 9)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("only", nargs="*", metavar="TARGET")
    options = parser.parse_args()
    if options.record:
        left = record()
        print("without a row in docs/fuzz.md: " + ", ".join(sorted(left)) if left else "docs/fuzz.md is up to date")
        return 1 if left else 0
    chosen = options.only or targets()
    missing = [c for c in chosen if c not in targets()]
    if missing or not chosen:
        print("not built in build-fuzz/bin: %s (cmake --preset fuzz && cmake --build --preset fuzz)"
              % (", ".join(missing) or "no *_fuzz at all"))
        return 2
    found = fuzz(chosen, options.jobs, options.slice, options.until)
    print("FUZZ FAILED: " + ", ".join(found) if found else "FUZZ PASSED: " + ", ".join(chosen))
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
