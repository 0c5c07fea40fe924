#!/usr/bin/python3
"""Damage to recovery points: every kind of file of a point flipped, truncated, missing or foreign. `gradtap points
verify` names the file (and offset and digests), restore takes the next older valid point and says why; a verify finds
every single-bit flip that is planted.

    point_damage.py [short|long|NAME...]
"""
import glob
import json
import os
import random
import shutil
import sys
import time

import harness
import rig
from cluster import Cluster, gradtap, small
from harness import require

SEED = 20265
RANKS = 2
STEPS = 24
MORE = ["--dropout", "0.1", "--shuffle"]


class Store:
    """A directory of points that a short job has made, and pristine bytes of every file of its newest point."""

    def __init__(self, r, folder):
        self.rig, self.folder, self.job_name = r, folder, "demo"
        cluster = Cluster(r, folder, points_kept=6, full_every_steps=8).start()
        self.job = harness.Job(r, folder, small(STEPS, *MORE), attach=cluster.endpoints()).start()
        self.job.wait(120, cluster.watch(self.job))
        cluster.wait_step("published", STEPS, 60)
        cluster.stop()
        self.directory = cluster.objects
        self.points = json.loads(self.run("list", "--json"))["points"]
        self.newest, self.older = self.points[0], self.points[1]
        require(self.newest["step"] == STEPS and self.older["step"] < STEPS, "unexpected points: %s" % self.points[:2])
        mine, others = self.files_of(self.newest), self.files_of(self.older)
        # Only what the older point does not need: that one must stay valid.
        self.own = sorted(mine - others)
        self.shared = sorted(mine & others)
        self.all = sorted(mine)
        require(self.own, "the newest point has no file of its own")

    def run(self, word, *arguments, code=0):
        return gradtap("points", word, "--source", self.directory, "--job", self.job_name, *arguments, code=code)

    def files_of(self, point):
        """Every file that the record names, and the record."""
        shown = json.loads(self.run("show", "--lineage", point["lineage"], "--step", point["step"], "--json"))
        found = set()

        def walk(value):
            if isinstance(value, dict):
                for item in value.values():
                    walk(item)
            elif isinstance(value, list):
                for item in value:
                    walk(item)
            elif isinstance(value, str) and "/" in value and os.path.isfile(os.path.join(self.directory, value)):
                found.add(value)
        walk(shown)
        records = glob.glob(os.path.join(self.directory, "jobs", "*", "*", "point", "%020d*" % point["step"]))
        require(len(records) == 1, "the record of step %d: %s" % (point["step"], records))
        found.add(os.path.relpath(records[0], self.directory))
        return found

    def path(self, name):
        return os.path.join(self.directory, name)

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def verify(self, point=None):
        """(exit code, output)"""
        point = point or self.newest
        return self.run("verify", "--lineage", point["lineage"], "--step", point["step"], code=None)

    def damaged(self, name, content):
        """Puts content (None: no file) in place of a file; returns what puts the old one back."""
        path, kept = self.path(name), os.path.join(self.folder, "kept")
        os.rename(path, kept)
        if content is not None:
            with open(path, "wb") as f:
                f.write(content)

        def back():
            if os.path.exists(path):
                os.unlink(path)
            os.rename(kept, path)
        return back


def kind_of(name):
    parts = name.split("/")
    for word in ("point", "full", "log", "step", "side", "meta"):
        if word in parts[2:]:
            return word
    return parts[-2]


def flip(raw, bit):
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def check_named(store, name, how, with_offset):
    """verify fails, and its output names the file; for changed bytes also digests (or lengths) that differ."""
    code, output = store.verify()
    require(code != 0, "%s %s: verify found nothing" % (name, how))
    require(name in output or os.path.basename(name) in output, "%s %s: verify does not name the file: %s"
            % (name, how, output.strip()[-400:]))
    if with_offset:
        require("offset" in output or "byte" in output, "%s %s: verify names no offset: %s" % (name, how, output[-400:]))
        require("expected" in output and ("actual" in output or "found" in output), "%s %s: verify does not say what it "
                "expected and found: %s" % (name, how, output[-400:]))


def check_restore(store, number, name, how, expected):
    """A restore without wishes takes `expected` and prints why not the newer one."""
    job = harness.Job(store.rig, store.folder, small(expected["step"], *MORE, "--schedule-steps", STEPS, "--restore",
                                                     store.directory, "--job", store.job_name), attach="",
                      name="restore%d" % number, port=29600 + number).start()
    job.wait(120)
    require(job.restored_step() == expected["step"], "%s %s: restored to step %s instead of %d"
            % (name, how, job.restored_step(), expected["step"]))
    root = job.records()[expected["step"]]["root"]
    require(root == store.job.records()[expected["step"]]["root"], "%s %s: the restored state has another root"
            % (name, how))
    said = [line for line in job.log(0).splitlines() if str(STEPS) in line and "point" in line]
    require(said, "%s %s: rank 0 does not say why step %d was passed over: %s" % (name, how, STEPS, job.log(0)[-600:]))


def one_of_each(store, draw):
    """(kind, name) of one file of each kind, of the newest point alone; the record always."""
    by_kind = {}
    for name in store.own:
        by_kind.setdefault(kind_of(name), []).append(name)
    require("point" in by_kind and len(by_kind) >= 3, "kinds of files: %s" % sorted(by_kind))
    return [(kind, draw.choice(names)) for kind, names in sorted(by_kind.items())]


def ways(store, name, draw):
    """(how, content, whether an offset must be named)"""
    raw = store.read(name)
    foreign = next((o for o in sorted(store.files_of(store.older)) if kind_of(o) == kind_of(name) and o != name), None)
    yield "flipped", flip(raw, draw.randrange(8 * len(raw))), kind_of(name) != "point"
    yield "truncated", raw[:draw.randrange(1, len(raw))], False
    yield "empty", b"", False
    yield "missing", None, False
    if foreign:
        yield "foreign", store.read(foreign), False
    yield "longer", raw + b"\0", False


def each_kind(name, restore_every):
    begun, draw = time.monotonic(), random.Random(SEED)
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS) as r:
        store = Store(r, folder)
        code, output = store.verify()
        require(code == 0, "the undamaged point does not verify: " + output[-400:])
        tried = restored = 0
        for kind, file in one_of_each(store, draw):
            for how, content, with_offset in ways(store, file, draw):
                back = store.damaged(file, content)
                check_named(store, file, how, with_offset)
                if tried % restore_every == 0:
                    check_restore(store, restored, file, how, store.older)
                    restored += 1
                back()
                tried += 1
        code, output = store.verify()
        require(code == 0, "the restored files do not verify: " + output[-400:])
    print("passed  %-28s %d damages named, %d restores took the older point; %.1f s"
          % (name, tried, restored, time.monotonic() - begun), flush=True)


def every_bit(name, bits_per_file, files=None):
    """Bits of every file of the point (or of some): all bytes of the head, and random places."""
    begun, draw = time.monotonic(), random.Random(SEED + 1)
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS) as r:
        store = Store(r, folder)
        tried = 0
        chosen = sorted(draw.sample(store.all, files) + store.own[:1]) if files else store.all
        for file in chosen:
            raw = store.read(file)
            head = [8 * i + draw.randrange(8) for i in range(min(64, len(raw)))] if bits_per_file > 64 else []
            rest = [draw.randrange(8 * len(raw)) for _ in range(bits_per_file - len(head))]
            if kind_of(file) == "point" and bits_per_file > 64:
                rest = [8 * i + draw.randrange(8) for i in range(64, len(raw))]
            for bit in head + rest:
                back = store.damaged(file, flip(raw, bit))
                code, output = store.verify()
                back()
                require(code != 0, "bit %d of byte %d of %s (%d bytes) was flipped and verify found nothing: %s"
                        % (bit % 8, bit // 8, file, len(raw), output[-300:]))
                tried += 1
    print("passed  %-28s %d bits flipped in %d files, each found; %.1f s"
          % (name, tried, len(chosen), time.monotonic() - begun), flush=True)


def all_damaged():
    """No valid point at all: restore fails by name and never begins afresh."""
    name, begun = "long-all-damaged", time.monotonic()
    with harness.case_folder(name) as folder, rig.Rig(ranks=RANKS) as r:
        store = Store(r, folder)
        for point in glob.glob(os.path.join(store.directory, "jobs", "*", "*", "point", "*")):
            with open(point, "r+b") as f:
                f.seek(os.path.getsize(point) // 2)
                byte = f.read(1)
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte[0] ^ 16]))
        job = harness.Job(r, folder, small(STEPS, *MORE, "--restore", store.directory, "--job", store.job_name),
                          attach="", name="restore", port=29700).start()
        harness.wait_until("the ranks to end", 60, lambda: all(c.poll() is not None for c in job.children))
        require(all(c.returncode != 0 for c in job.children), "a restore from damaged points went on")
        require(str(STEPS) in job.log(0) and "point" in job.log(0), "the reason is not named: " + job.last_words(0))
        shutil.rmtree(store.directory)
    print("passed  %-28s refused by name; %.1f s" % (name, time.monotonic() - begun), flush=True)


def cases():
    return [("short-bits", lambda: every_bit("short-bits", 4, 40)),
            ("short-kinds", lambda: each_kind("short-kinds", 12)),
            ("long-bits", lambda: every_bit("long-bits", 120)),
            ("long-kinds", lambda: each_kind("long-kinds", 1)),
            ("long-all-damaged", all_damaged)]


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    print("damage drawn with seed %d" % SEED)
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
