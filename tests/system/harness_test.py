#!/usr/bin/python3
"""The comparisons that the live tests rest on see a single wrong bit, and the roots follow their definition."""
import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import cluster
import harness
import publish_faults
import state_root

MASK = (1 << 64) - 1


def naive_block(words):
    """The definition in docs/side-channel.md, one word at a time in Python integers."""
    sums = []
    for k in (0, 1):
        total = 0
        for j, word in enumerate(words):
            z = (2 * j + k + 1) * 0x9E3779B97F4A7C15 & MASK
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
            z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
            total += word * ((z ^ z >> 31) | 1)
        sums.append(total & MASK)
    return struct.pack("<QQ", *sums)


class StateRoot(unittest.TestCase):
    def test_block_digest_is_the_naive_sum(self):
        words = np.random.default_rng(1).integers(0, 1 << 32, 300, dtype=np.uint32)
        words[:3] = (0, 0xFFFFFFFF, 0x80000000)
        self.assertEqual(state_root.block_digest(words), naive_block([int(w) for w in words]))
        self.assertEqual(state_root.block_digest(None), bytes(16))

    def test_root_of_two_shards(self):
        random = np.random.default_rng(2)
        a = random.integers(0, 1 << 32, 5, dtype=np.uint32)
        b = random.integers(0, 1 << 32, 3, dtype=np.uint32)
        listed = lambda x: [int(w) for w in x]
        first = hashlib.sha256(naive_block(listed(a)) + bytes(16) + struct.pack("<Q", 7)).digest()
        second = hashlib.sha256(naive_block(listed(b)) + naive_block(listed(b)) + struct.pack("<Q", 9)).digest()
        root, shards = state_root.digests([([a, None], 7), ([b, b], 9)], 5)
        self.assertEqual(shards, [first.hex(), second.hex()])
        self.assertEqual(root, hashlib.sha256(first + second).hexdigest())

    def test_blocks_end_at_two_to_the_sixteen(self):
        words = np.arange((1 << 16) + 1, dtype=np.uint32)
        _, shards = state_root.digests([([words], 0)], 1)
        self.assertEqual(len(shards), 2)
        self.assertEqual(shards[1], hashlib.sha256(naive_block([1 << 16]) + bytes(8)).hexdigest())


class AgainstTheTrainerPackage(unittest.TestCase):
    def test_two_implementations_agree(self):
        import torch
        sys.path.insert(0, os.path.join(harness.ROOT, "trainer"))
        from gradtap.digest import StateDigest
        from train_state import State
        torch.manual_seed(4)
        for optimizer, amsgrad in (("sgd", False), ("adamw", True)):
            model = torch.nn.Sequential(torch.nn.Linear(300, 260), torch.nn.Linear(260, 3))
            made = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if optimizer == "sgd" else
                    torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=amsgrad))
            options = argparse.Namespace(optimizer=optimizer, amsgrad=amsgrad, shard_elements=1 << 16)
            ours = State(options, model, made)
            for _ in range(3):
                root, shards = ours.digests()
                theirs = StateDigest(model, made, 1 << 16)
                self.assertEqual(len(shards), 2)
                self.assertEqual([s.hex() for s in theirs.shards()], shards)
                self.assertEqual(theirs.root(), root)
                made.zero_grad()
                model(torch.randn(2, 300)).square().mean().backward()
                made.step()


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        random = np.random.default_rng(3)
        self.values = {(n, k): random.integers(0, 1 << 32, size, dtype=np.uint32)
                       for n, size in (("a", 6), ("b.c", 4)) for k in ("param", "exp_avg")}
        meta = {"kinds": ["param", "exp_avg"], "parameters": [{"name": "a", "shape": [2, 3], "numel": 6},
                                                             {"name": "b.c", "shape": [4], "numel": 4}]}
        with open(os.path.join(self.folder.name, "meta.json"), "w") as f:
            json.dump(meta, f)
        for kind in meta["kinds"]:
            np.concatenate([self.values["a", kind], self.values["b.c", kind]]).tofile(
                os.path.join(self.folder.name, kind + ".f32"))
        self.dump = harness.Dump(self.folder.name)

    def export(self, change=None, step="5", cut=0, leave_out=None):
        header, data = {"__metadata__": {"step": step}}, b""
        for (name, kind), values in self.values.items():
            title = name if kind == "param" else name + "#" + kind
            if title == leave_out:
                continue
            values = values.copy()
            if change == title:
                values[-1] ^= 1 << 22
            header[title] = {"dtype": "F32", "shape": [2, 3] if name == "a" else [4],
                             "data_offsets": [len(data), len(data) + 4 * len(values)]}
            data += values.tobytes()
        text = json.dumps(header).encode()
        path = os.path.join(self.folder.name, "x.safetensors")
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + data[:len(data) - cut])
        return harness.compare_export(harness.read_safetensors(path), self.dump, 5)

    def test_equal_state_is_counted_whole(self):
        self.assertEqual(self.export(), 20)

    def test_one_bit_is_seen_in_every_tensor(self):
        for title in ("a", "a#exp_avg", "b.c", "b.c#exp_avg"):
            with self.assertRaisesRegex(harness.Failed, title + " differs in 1 of"):
                self.export(change=title)

    def test_missing_tensor_wrong_step_and_short_file(self):
        with self.assertRaisesRegex(harness.Failed, "missing from the export: .*b.c#exp_avg"):
            self.export(leave_out="b.c#exp_avg")
        with self.assertRaisesRegex(harness.Failed, "step 4, not 5"):
            self.export(step="4")
        with self.assertRaises(harness.Failed):
            self.export(cut=4)

    def test_order_of_the_four_numbers(self):
        harness.check_order({"training": 4, "verified": 3, "durable": 3, "published": 0})
        with self.assertRaises(harness.Failed):
            harness.check_order({"training": 4, "verified": 3, "durable": 4, "published": 0})

    def test_a_wait_names_what_it_waited_for(self):
        with self.assertRaisesRegex(harness.Failed, "waited 0.1 s for rain"):
            harness.wait_until("rain", 0.1, lambda: False, pause=0.02)


class Endings(unittest.TestCase):
    """Two jobs of two ranks each, as files that the ranks would have written."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.whole = {"tensors": {"a": "11", "a#exp_avg": "22"}, "generators": {"python": "33"}, "step": {"step": 9}}

    def job(self, name, endings, roots=()):
        job = argparse.Namespace(rig=argparse.Namespace(ranks=2), name=name, out=os.path.join(self.folder.name, name))
        os.makedirs(job.out)
        for i, ending in enumerate(endings):
            with open(os.path.join(job.out, "end%d.json" % i), "w") as f:
                json.dump(ending, f)
        job.ending = lambda i: harness.Job.ending(job, i)
        job.records = lambda: {step: {"root": root} for step, root in roots}
        return job

    def test_equal_endings_are_counted(self):
        one, other = self.job("one", [self.whole] * 2), self.job("other", [self.whole] * 2)
        self.assertEqual(harness.compare_endings(one, other), {"tensors": 4, "generators": 2, "step": 2})

    def test_one_value_of_the_second_rank_is_seen(self):
        for part, name in (("tensors", "a#exp_avg"), ("generators", "python"), ("step", "step")):
            for change in ("x", None):
                wrong = json.loads(json.dumps(self.whole))
                wrong[part][name] = change
                if change is None:
                    del wrong[part][name]
                one = self.job("one-%s-%s" % (part, change), [self.whole] * 2)
                other = self.job("other-%s-%s" % (part, change), [self.whole, wrong])
                with self.assertRaisesRegex(harness.Failed, "rank 1: 1 of .* %s differ, first .*%s" % (part, name)):
                    harness.compare_endings(one, other)

    def test_histories(self):
        whole = self.job("whole", [], [(s, "r%d" % s) for s in range(10)])
        self.assertEqual(harness.compare_histories(self.job("good", [], [(7, "r7"), (8, "r8")]), whole), 2)
        with self.assertRaisesRegex(harness.Failed, "step 8: "):
            harness.compare_histories(self.job("bad", [], [(7, "r7"), (8, "r9")]), whole)
        with self.assertRaisesRegex(harness.Failed, "no roots"):
            harness.compare_histories(self.job("empty", []), whole)


class Watch(unittest.TestCase):
    def test_longest_pause_touches_the_interval(self):
        watch = cluster.PublishWatch(None)
        watch.moves = [(t, (1, n)) for n, t in enumerate((0.0, 4.0, 5.0, 5.5, 8.5, 9.0))]
        self.assertAlmostEqual(watch.longest_pause(5.0, 9.2), 3.0)
        self.assertAlmostEqual(watch.longest_pause(4.5, 5.2), 1.0)
        self.assertAlmostEqual(watch.longest_pause(9.1, 12.0), 3.0)  # still going on
        watch.check()

    def test_published_must_not_fall(self):
        watch = cluster.PublishWatch(None)
        watch.moves = [(0.0, (1, 3)), (1.0, (2, 0)), (2.0, (2, 2))]  # a new lineage begins anew
        watch.check()
        watch.moves = [(0.0, (1, 3)), (1.0, (1, 2))]
        with self.assertRaisesRegex(harness.Failed, "published fell"):
            watch.check()


class DiskFaults(unittest.TestCase):
    CODE = """
import os, sys
folder = sys.argv[1]
def attempt(f, *a):
    try:
        f(*a)
        return "done"
    except OSError as error:
        return error.strerror
def whole(name):
    fd = os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY)
    try:
        os.write(fd, b"x")
        os.fsync(fd)
    finally:
        os.close(fd)
print(attempt(whole, "a"), attempt(os.link, folder + "/a", folder + "/b"), attempt(os.link, folder + "/a", folder + "/c"))
"""

    def outcome(self, control):
        with tempfile.TemporaryDirectory() as folder:
            watched = os.path.join(folder, "points")
            os.mkdir(watched)
            faults = publish_faults.Faults(folder, watched)
            if control:
                faults.set(*control)
            done = subprocess.run([sys.executable, "-c", self.CODE, watched], capture_output=True, text=True,
                                  env=dict(os.environ, **faults.environment))
            return done.stdout.strip(), faults.hits()

    def test_the_chosen_call_fails_and_no_other(self):
        self.assertEqual(self.outcome(None), ("done done done", 0))
        self.assertEqual(self.outcome(("fsync", 5)), ("Input/output error done done", 1))
        self.assertEqual(self.outcome(("write", 28)), ("No space left on device done done", 1))
        self.assertEqual(self.outcome(("link", 5, 1)), ("done done Input/output error", 1))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
