"""Restores that must not happen, each by name and with nothing changed; sources, choices, and the attach that follows."""

import copy
import hashlib
import json
import os
import stat
import sys
import tempfile
import unittest

import single
import torch
import torch.nn as nn
from fake_node import FakeNode, parse_safetensors
from points import Point, PointServer
from single import gradtap


class Counter:
    def __init__(self):
        self.n = 0

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


class Job:
    """Five layers in several buckets, one rank."""

    def __init__(self, seed, frozen_seed=1, **options):
        torch.manual_seed(seed)
        self.net = nn.Sequential(*[nn.Linear(50, 50) for _ in range(5)], nn.BatchNorm1d(50))
        self.net.frozen = nn.Parameter(torch.full((700, 700), float(frozen_seed)), requires_grad=False)
        self.ddp = single.DDP(self.net, bucket_cap_mb=0.02, **options)
        trained = [p for p in self.net.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.counter = Counter()

    def step(self):
        self.optimizer.zero_grad()
        self.ddp(torch.randn(4, 50)).pow(2).mean().backward()
        self.optimizer.step()
        self.scheduler.step()
        self.counter.n += 1

    def warmup(self):
        self.ddp(torch.zeros(4, 50)).sum().backward()

    def restore(self, source, **options):
        options = dict({"model": self.net, "optimizer": self.optimizer, "scheduler": self.scheduler,
                        "extra": {"data": self.counter}, "timeout_ms": 5000}, **options)
        return gradtap.restore(source, "unit", **options)

    def state(self):
        """[(name, shape, {kind: array}, counter)]"""
        found = []
        for name, p in self.net.named_parameters():
            if p.requires_grad:
                s = self.optimizer.state.get(p, {})
                kinds = {"param": p.detach().clone().numpy()}
                kinds.update((k, s[k].clone().numpy() if k in s else None) for k in ("exp_avg", "exp_avg_sq"))
                found.append((name, list(p.shape), kinds, int(s.get("step", 0))))
        return found

    def everything(self):
        sha = lambda t: hashlib.sha256(t.numpy().tobytes()).hexdigest()  # noqa: E731  (short: unittest shows differences)
        return (sha(torch.cat([p.detach().reshape(-1) for p in self.net.parameters() if p.requires_grad])),
                [b.tolist() for b in self.net.buffers()], len(self.optimizer.state),
                [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups],
                self.scheduler.state_dict(), self.counter.n, sha(torch.get_rng_state()))


class RestoreCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        single.ensure_group()
        before = single.dist._DEFAULT_FIRST_BUCKET_BYTES
        single.dist._DEFAULT_FIRST_BUCKET_BYTES = 10000
        cls.addClassCleanup(setattr, single.dist, "_DEFAULT_FIRST_BUCKET_BYTES", before)
        job = Job(1)
        states = {}
        with FakeNode() as node:
            tap = single.attached(node, job.ddp, job.optimizer, scheduler=job.scheduler, extra={"data": job.counter})
            for s in range(1, 5):
                job.step()
                tap.commit()
                states[s] = job.state()
            tap.close()
        cls.node, cls.states, cls.job = node, states, job
        cls.end = job.everything()

    def point(self, step, lineage=1, world=1, **more):
        m = self.node.steps()[step - 1]
        blobs = {name: self.node.blob(m, name) for name in m["blobs"]}
        return Point(lineage, step, world, self.states[step], {0: (json.dumps(m).encode(), blobs)},
                     self.node.layout_of(m["next_layout_id"]), **more)

    def refused(self, name, points, *words, **options):
        """The restore fails with that name; the job is as before."""
        job = options.pop("job", None) or Job(2)
        before = copy.deepcopy(job.everything())
        with PointServer(points) as server:
            options.pop("prepare", lambda server: None)(server)
            with self.assertRaises(gradtap.RestoreError) as caught:
                job.restore(options.pop("source", server.endpoint), **options)
        self.assertEqual(caught.exception.name, name, str(caught.exception))
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertEqual(job.everything(), before)

    def flipped(self, data, offset):
        data = bytearray(data)
        data[offset] ^= 0x10
        return bytes(data)


class Whole(RestoreCase):
    def test_continues_and_attaches(self):
        point = self.point(2)
        job = Job(2)
        with PointServer([point]) as server:
            restored = job.restore(server.endpoint)
        self.assertEqual((restored.step, restored.lineage, restored.fresh, restored.passed_over), (2, 1, False, []))
        self.assertEqual(restored.extra["data"], {"n": 2})
        with FakeNode() as node:
            tap = gradtap.attach(job.ddp, job.optimizer, endpoint=node.endpoint, job="unit", resume_from=restored)
            self.assertFalse(tap.enabled)
            self.assertIn("start", tap.reason)
        restored.start(job.ddp, job.warmup)
        with FakeNode() as node:
            tap = single.attached(node, job.ddp, job.optimizer, scheduler=job.scheduler, extra={"data": job.counter},
                                  resume_from=restored)
            for _ in range(2):
                job.step()
                tap.commit()
            tap.close()
            self.assertEqual(tap.errors, 0)
        self.assertEqual(job.everything(), self.end)
        attach = node.attaches[0]
        self.assertEqual(attach["resume_from"], {"lineage": 1, "step": 2, "record_digest": point.entry["record_digest"]})
        self.assertEqual(attach["step"], 2)
        self.assertEqual(attach["layout"], point.record["layout"])
        self.assertEqual(parse_safetensors(node.chunks["baseline"][0])[1]["step"], "2")
        self.assertEqual([m["step"] for m in node.steps()], [3, 4])
        # Step 3 used the layout that the point had named, and so did the run that was not stopped.
        theirs = self.node.steps()[2:4]
        for mine, m in zip(node.steps(), theirs):
            self.assertEqual((mine["layout_id"], mine["next_layout_id"]), (m["layout_id"], m["next_layout_id"]))
            self.assertEqual(mine["groups"], m["groups"])
        self.assertNotEqual(attach["layout"], self.node.attaches[0]["layout"])
        self.assertEqual([m for m in node.kind("layout")], [])

    def test_static_graph_changes_its_layout_a_step_later(self):
        job, states = Job(1, static_graph=True), {}
        with FakeNode() as node:
            tap = single.attached(node, job.ddp, job.optimizer, scheduler=job.scheduler, extra={"data": job.counter})
            for s in range(1, 6):
                job.step()
                tap.commit()
                states[s] = job.state()
            tap.close()
        through = node.steps()
        self.assertEqual([m["layout_id"] == through[0]["layout_id"] for m in through], [True, True, False, False, False])
        for s, warmups in ((1, 1), (2, 3), (3, 3)):
            m = through[s - 1]
            point = Point(1, s, 1, states[s], {0: (json.dumps(m).encode(), {n: node.blob(m, n) for n in m["blobs"]})},
                          node.layout_of(m["next_layout_id"]))
            again = Job(2, static_graph=True)
            with PointServer([point]) as server:
                restored = again.restore(server.endpoint).start(again.ddp, again.warmup)
            self.assertEqual(restored.warmups, warmups)
            with FakeNode() as second:
                tap = single.attached(second, again.ddp, again.optimizer, scheduler=again.scheduler,
                                      extra={"data": again.counter}, resume_from=restored)
                for _ in range(5 - s):
                    again.step()
                    tap.commit()
                tap.close()
            self.assertEqual(again.everything(), job.everything())
            self.assertEqual([(m["layout_id"], m["next_layout_id"]) for m in second.steps()],
                             [(m["layout_id"], m["next_layout_id"]) for m in through[s:]])

    def test_older_point_is_used_when_newer_ones_are_damaged(self):
        points = [self.point(s) for s in (1, 2, 3, 4)]
        points[3].state = self.flipped(points[3].state, len(points[3].state) - 5)
        points[2].entry.update(valid=False, reason="STORE_CORRUPT shard 0")
        side = points[1].sides[0]
        points[1].sides[0] = self.flipped(side, len(side) - 5)
        job = Job(2)
        with PointServer(points) as server:
            restored = job.restore(server.endpoint)
        self.assertEqual(restored.step, 1)
        reasons = {(lineage, step): why for lineage, step, why in restored.passed_over}
        self.assertIn("DIGEST_MISMATCH", reasons[1, 4])
        self.assertIn("STORE_CORRUPT", reasons[1, 3])
        self.assertIn("DIGEST_MISMATCH", reasons[1, 2])
        for step in (2, 3, 4):
            self.assertTrue(any("step %d passed over" % step in line for line in single.lines))

    def test_choice(self):
        points = [self.point(4, lineage=1), self.point(2, lineage=1), self.point(3, lineage=2)]
        for options, expected in (({}, (2, 3)), ({"step": 2}, (1, 2)), ({"lineage": 1}, (1, 4)),
                                  ({"lineage": 1, "step": 4}, (1, 4))):
            with PointServer(points) as server:
                restored = Job(2).restore(server.endpoint, **options)
            self.assertEqual((restored.lineage, restored.step), expected, options)
        self.refused("NO_VALID_POINT", points, "newer lineage", step=4)
        self.refused("NO_POINT", points, "step 9", step=9)

    def test_several_gateways(self):
        points = [self.point(3)]
        with PointServer(points) as server, PointServer(points) as busy:
            busy.busy = 2
            dead = "http://127.0.0.1:%d" % single.jobs.free_port()
            restored = Job(2).restore("%s,%s" % (dead, busy.endpoint))
            self.assertEqual(restored.step, 3)
            restored = Job(2).restore([busy.endpoint, dead, server.endpoint])
            self.assertEqual(restored.step, 3)

    def test_fresh_only_when_asked_for_and_nothing_exists(self):
        job = Job(2)
        with PointServer([]) as server:
            restored = job.restore(server.endpoint, or_fresh=True)
            self.assertEqual((restored.step, restored.fresh), (0, True))
            restored.start(job.ddp)
            with FakeNode() as node:
                tap = single.attached(node, job.ddp, job.optimizer, resume_from=restored)
                tap.close()
                self.assertIsNone(node.attaches[0]["resume_from"])
        broken = self.point(1)
        broken.entry["valid"] = False
        self.refused("NO_VALID_POINT", [broken], or_fresh=True)
        self.refused("NO_POINT", [], "or_fresh")
        self.refused("JOB_UNKNOWN", [], or_fresh=True, prepare=lambda server: setattr(server, "job", "another"))
        self.refused("SOURCE_UNREACHABLE", [], or_fresh=True, source="http://127.0.0.1:%d" % single.jobs.free_port())
        self.refused("SOURCE_UNREACHABLE", [], "STORE_READ", or_fresh=True, prepare=lambda server: setattr(
            server, "fail_with", (500, {"error": {"name": "STORE_READ", "what": "bad disk"}})))


class Refused(RestoreCase):
    def test_every_byte_of_the_state_counts(self):
        whole = self.point(3)
        begin = 8 + int.from_bytes(whole.state[:8], "little")
        for offset in list(range(begin, len(whole.state), (len(whole.state) - begin) // 7)) + [len(whole.state) - 1]:
            point = self.point(3)
            point.state = self.flipped(whole.state, offset)
            self.refused("DIGEST_MISMATCH", [point], "shard", step=3)
        for cut in (3, 40, len(whole.state) - 1):
            point = self.point(3)
            point.state = whole.state[:cut]
            self.refused("POINT_DAMAGED", [point], step=3)

    def test_counters_belong_to_the_digest(self):
        whole, point = self.point(3), self.point(3)
        text = whole.state.replace(b'\\"0.weight\\": 3', b'\\"0.weight\\": 4')
        self.assertNotEqual(text, whole.state)
        point.state = text
        self.refused("DIGEST_MISMATCH", [point], step=3)

    def test_side_state(self):
        point = self.point(3)
        point.sides[0] = self.flipped(point.sides[0], len(point.sides[0]) - 1)
        self.refused("DIGEST_MISMATCH", [point], "side state of rank 0", step=3)
        point = self.point(3)
        point.record["ranks"] = []
        self.refused("POINT_DAMAGED", [point], step=3)

    def test_record(self):
        for change, name in (({"root": "0" * 64}, "POINT_DAMAGED"), ({"step": 2}, "POINT_DAMAGED"),
                             ({"layout_id": "0" * 64}, "DIGEST_MISMATCH"), ({"shards": []}, "POINT_DAMAGED"),
                             ({"layout": None}, "POINT_DAMAGED"), ({"world": "1"}, "POINT_DAMAGED"),
                             ({"record_digest": "1" * 64}, "DIGEST_MISMATCH")):
            point = self.point(3)
            point.record.update(change)
            self.refused(name, [point], step=3)
        point = self.point(3)
        point.record["shards"][0]["digest"] = "0" * 64
        self.refused("DIGEST_MISMATCH", [point], "state root", step=3)

    def test_another_world_model_or_optimizer(self):
        self.refused("WORLD_SIZE", [self.point(3, world=4)], "expected 4, found 1")
        self.refused("STATE_MISMATCH", [self.point(3, optimizer="Adam")], "expected Adam, found AdamW")
        job = Job(2)
        job.net.add_module("more", nn.Linear(2, 2))
        self.refused("STATE_MISMATCH", [self.point(3)], "more.bias is in this model, not in the point", job=job)
        job = Job(2)
        job.net[0] = nn.Linear(50, 49)
        self.refused("STATE_MISMATCH", [self.point(3)], "0.bias has another shape", job=job)
        self.refused("STATE_MISMATCH", [self.point(3)], "frozen", "SHA-256", job=Job(2, frozen_seed=3))

    def test_side_state_that_nobody_takes_or_gave(self):
        self.refused("SIDE_STATE_UNUSED", [self.point(3)], "scheduler", scheduler=None)
        self.refused("SIDE_STATE_UNUSED", [self.point(3)], 'extra["data"]', extra={})
        self.refused("SIDE_STATE_MISSING", [self.point(3)], 'extra["more"]', extra={"data": Counter(), "more": Counter()})
        with PointServer([self.point(3)]) as server:
            self.assertEqual(Job(2).restore(server.endpoint, scheduler=None, ignore=["scheduler"]).step, 3)

    def test_start(self):
        point = self.point(3)
        with PointServer([point]) as server:
            for options, warmup, name, word in (
                    ({}, None, "WARMUP_NEEDED", "forward"), ({}, lambda job: None, "WARMUP_NEEDED", "4 warm-ups"),
                    ({"bucket": 0.5}, Job.warmup, "LAYOUT_MISMATCH", "bucket sizes")):
                job = Job(2)
                if options:
                    job.ddp = single.DDP(job.net, bucket_cap_mb=options["bucket"])
                restored = job.restore(server.endpoint)
                with self.assertRaises(gradtap.RestoreError) as caught:
                    restored.start(job.ddp, None if warmup is None else lambda: warmup(job))
                self.assertEqual(caught.exception.name, name)
                self.assertIn(word, str(caught.exception))
                self.assertFalse(restored.started)
            job, other = Job(2), Job(3)
            restored = job.restore(server.endpoint)
            with self.assertRaises(gradtap.RestoreError) as caught:
                restored.start(other.ddp, other.warmup)
            self.assertEqual(caught.exception.name, "STATE_MISMATCH")


PROGRAM = """#!%s
import json, os, sys
a = sys.argv[1:]
value = lambda key: a[a.index(key) + 1]
folder = value("--source")
with open(os.path.join(folder, "calls"), "a") as f:
    f.write(" ".join(a) + chr(10))
if value("--job") != "unit":
    sys.stderr.write("E506 JOB_UNKNOWN: no such job" + chr(10)); sys.exit(1)
read = lambda name: open(os.path.join(folder, name), "rb").read()
if a[0:2] == ["points", "list"]:
    assert "--json" in a
    sys.stdout.write(read("list").decode())
elif a[0:2] == ["points", "show"]:
    assert "--json" in a
    sys.stdout.write(read("show." + value("--lineage") + "." + value("--step")).decode())
elif a[0] == "export":
    assert value("--format") == "safetensors" and "--optimizer" in a
    open(value("--out"), "wb").write(read("state." + value("--lineage") + "." + value("--step")))
elif a[0:2] == ["points", "side"]:
    open(value("--out"), "wb").write(read("side.%%s.%%s.%%s" %% (value("--lineage"), value("--step"), value("--rank"))))
elif a[0:2] == ["points", "hold"]:
    at = value("--lineage") + "." + value("--step")
    refusal = os.path.join(folder, "refuse." + at)
    if os.path.exists(refusal):
        sys.stderr.write(open(refusal).read()); sys.exit(1)
    note = lambda what: open(os.path.join(folder, "calls"), "a").write(what + " " + at + chr(10))
    assert value("--holder")
    note("held")
    print("held jobs/unit/point/" + at, flush=True)
    sys.stdin.read()
    note("released")
    sys.exit(int(read("hold_ends").decode()) if os.path.exists(os.path.join(folder, "hold_ends")) else 0)
else:
    sys.exit(2)
"""


class Directory(RestoreCase):
    def folder(self, points):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        name = folder.name
        program = os.path.join(name, "gradtap")
        with open(program, "w") as f:
            f.write(PROGRAM % sys.executable)
        os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
        before = os.environ.get("GRADTAP_BIN")
        os.environ["GRADTAP_BIN"] = program
        self.addCleanup(lambda: os.environ.pop("GRADTAP_BIN") if before is None
                        else os.environ.__setitem__("GRADTAP_BIN", before))
        files = {"list": json.dumps({"points": [p.entry for p in points]}).encode()}  # without "restorable"
        for p in points:
            at = ".%d.%d" % (p.lineage, p.step)
            files["show" + at], files["state" + at] = json.dumps(p.record).encode(), p.state
            files["side" + at + ".0"] = p.sides[0]
        for file, data in files.items():
            with open(os.path.join(name, file), "wb") as f:
                f.write(data)
        return name

    def test_through_the_program(self):
        folder = self.folder([self.point(4), self.point(3)])
        job = Job(2)
        restored = job.restore(folder).start(job.ddp, job.warmup)
        self.assertEqual(restored.step, 4)
        self.assertEqual(job.everything(), self.end)
        os.unlink(os.path.join(folder, "state.1.4"))
        restored = Job(2).restore(folder)
        self.assertEqual(restored.step, 3)
        self.assertIn("ended with 1", restored.passed_over[0][2])

    def test_no_program_or_no_directory(self):
        folder = self.folder([])
        self.refused("NO_POINT", [], source=folder)
        os.environ["GRADTAP_BIN"] = os.path.join(folder, "absent")
        self.refused("SOURCE_UNREACHABLE", [], "absent", source=folder, or_fresh=True)
        self.refused("SOURCE_UNREACHABLE", [], source="/nonexistent/points", or_fresh=True)


if __name__ == "__main__":
    unittest.main()
