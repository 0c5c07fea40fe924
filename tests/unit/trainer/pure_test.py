"""Parts without a process group: spelling, memory order, queue, digests, probe, baseline plan."""

import ast
import hashlib
import json
import os
import random
import struct
import unittest

import single
import torch
from fake_node import parse_safetensors
from gradtap import baseline, bits, digest, hyper, memory, probe, safetensors
from gradtap.model import Model
from gradtap.outbox import Outbox
from gradtap.restore import choose


class Syntax(unittest.TestCase):
    def test_every_file_parses_as_python_3_9(self):
        folder = os.path.join(single.ROOT, "trainer", "gradtap")
        names = [n for n in os.listdir(folder) if n.endswith(".py")]
        self.assertGreater(len(names), 15)
        for name in names:
            with open(os.path.join(folder, name)) as f:
                ast.parse(f.read(), name, feature_version=(3, 9))

    def test_standard_library_and_torch_only(self):
        allowed = {"torch"} | set(getattr(__import__("sys"), "stdlib_module_names"))
        folder = os.path.join(single.ROOT, "trainer", "gradtap")
        for name in os.listdir(folder):
            if not name.endswith(".py"):
                continue
            with open(os.path.join(folder, name)) as f:
                tree = ast.parse(f.read())
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    found = [a.name for a in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    found = [node.module]
                else:
                    continue
                for module in found:
                    self.assertIn(module.split(".")[0], allowed, name)


class Bits(unittest.TestCase):
    def test_known_patterns(self):
        self.assertEqual(bits.f64(1.0), "f64:3ff0000000000000")
        self.assertEqual(bits.f64(-0.0), "f64:8000000000000000")
        self.assertEqual(bits.f32(1.0), "f32:3f800000")
        self.assertEqual(bits.f32(float("inf")), "f32:7f800000")
        self.assertEqual(bits.f32(1e300), "f32:7f800000")
        self.assertEqual(bits.f32(0.1), "f32:3dcccccd")
        self.assertEqual(bits.flag(None), "none")

    def test_group_spelling(self):
        p = torch.nn.Parameter(torch.zeros(2))
        o = torch.optim.SGD([p], lr=torch.tensor(0.1).item(), momentum=0.9, weight_decay=1)
        spelled = hyper.spell_group(hyper.read_group(o.param_groups[0], "SGD"), "SGD")
        self.assertEqual(spelled["weight_decay"], "f64:3ff0000000000000")
        self.assertEqual(spelled["momentum"], "f64:" + struct.pack(">d", 0.9).hex())
        self.assertEqual(spelled["nesterov"], "b:0")
        self.assertEqual(spelled["foreach"], "none")
        o.param_groups[0]["lr"] = torch.tensor(0.1)
        spelled = hyper.spell_group(hyper.read_group(o.param_groups[0], "SGD"), "SGD")
        self.assertEqual(spelled["lr"], "f32t:3dcccccd")


class MemoryOrder(unittest.TestCase):
    def test_orders(self):
        self.assertEqual(memory.memory_order(torch.zeros(2, 3, 4)), [0, 1, 2])
        self.assertEqual(memory.memory_order(torch.zeros(3, 4).t()), [1, 0])
        c = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
        self.assertEqual(memory.memory_order(c), [0, 2, 3, 1])
        self.assertEqual(memory.memory_order(torch.zeros(())), [])

    def test_flat_is_what_lies_in_memory(self):
        storage = torch.arange(120, dtype=torch.float32)
        for t in (storage.view(2, 3, 4, 5), storage.view(2, 4, 5, 3).permute(0, 3, 1, 2), storage.view(12, 10).t(),
                  storage.view(2, 1, 60).permute(2, 1, 0)):
            self.assertTrue(memory.is_dense(t))
            self.assertEqual(memory.flat(t).tolist(), storage.tolist())
            data = memory.element_bytes(memory.flat(t), 3, 6)
            self.assertEqual(struct.unpack("<3f", data), (3.0, 4.0, 5.0))
        self.assertFalse(memory.is_dense(storage.view(12, 10)[:, :5]))
        self.assertFalse(memory.is_dense(storage[::2]))
        self.assertFalse(memory.is_dense(torch.zeros(1).expand(4)))


class Safetensors(unittest.TestCase):
    def test_round_trip(self):
        body = safetensors.encode([("a", struct.pack("<2f", 1, 2)), ("b", b"")], {"step": "0"})
        tensors, metadata = parse_safetensors(body)
        self.assertEqual(tensors, {"a": struct.pack("<2f", 1, 2), "b": b""})
        self.assertEqual(metadata, {"step": "0"})


def render(kind, step):
    return lambda seq: {"kind": kind, "seq": seq, "rank": 0, "step": step}


class Queue(unittest.TestCase):
    def fill(self, box, count, first=1):
        for s in range(first, first + count):
            box.append("step", s, render("step", s), 100)

    def test_keeps_until_durable(self):
        box = Outbox(0)
        self.fill(box, 5)
        self.assertEqual([s for s, _ in box.batch()], [1, 2, 3, 4, 5])
        box.acknowledge(4, 2)
        self.assertEqual([s for s, _ in box.batch()], [5])
        box.acknowledge(2, 2)  # the node restarted and lost what was not durable
        self.assertEqual([s for s, _ in box.batch()], [3, 4, 5])
        box.acknowledge(5, 5)
        self.assertEqual((box.pending(), box.bytes), (0, 0))

    def test_batches_are_bounded(self):
        box = Outbox(0)
        self.fill(box, 100)
        self.assertEqual(len(box.batch()), 64)
        box = Outbox(0)
        for s in range(1, 6):
            box.append("step", s, lambda seq: {"kind": "step", "seq": seq, "x": "y" * 400000}, 400000)
        self.assertEqual(len(box.batch()), 2)

    def test_overflow_drops_oldest_steps_and_declares_them(self):
        box = Outbox(0, max_messages=10)
        box.append("layout", None, lambda seq: {"kind": "layout", "seq": seq}, 100)
        self.fill(box, 50)
        self.assertEqual(box.pending(), 11)  # 10 messages and something to declare
        self.assertEqual(box.dropped, 41)
        lines = [json.loads(line) for _, line in box.batch()]
        self.assertEqual(lines[0]["kind"], "dropped")
        self.assertEqual(lines[0]["steps"], list(range(1, 42)))
        self.assertEqual(lines[0]["seqs"], list(range(2, 43)))
        self.assertEqual(lines[1]["kind"], "layout")
        kept = [m["step"] for m in lines if m["kind"] == "step"]
        self.assertEqual(kept, list(range(42, 51)))

    def test_queue_bytes_are_bounded_without_a_node(self):
        box = Outbox(0, max_bytes=20000, max_messages=1 << 30)
        for s in range(1, 2000):
            box.append("step", s, render("step", s), 100)
            if s % 50 == 0:
                box.batch(declare=False)
            self.assertLessEqual(box.bytes, 20000)
        self.assertEqual(box.dropped, 1999 - 200)
        self.assertEqual(len(box._gaps), 1)  # a long outage costs one range, not a list

    def test_long_gaps_are_declared_in_parts(self):
        box = Outbox(0, max_messages=2)
        self.fill(box, 10000)
        seen = []
        for _ in range(8):
            box.batch()
            seen = [m for m in (json.loads(line) for _, line in box.batch()) if m["kind"] == "dropped"]
        steps = sorted(s for m in seen for s in m["steps"])
        # The declarations themselves take room: at most two more steps went for them.
        self.assertEqual(steps[:9998], list(range(1, 9999)))

    def test_received_messages_are_dropped_silently(self):
        box = Outbox(0, max_messages=4)
        self.fill(box, 4)
        box.batch()
        box.acknowledge(4, 0)
        self.fill(box, 2, first=5)
        self.assertEqual(box.dropped, 0)

    def test_reject_becomes_a_gap(self):
        box = Outbox(0)
        self.fill(box, 3)
        box.batch()
        box.reject(2)
        lines = [json.loads(line) for _, line in box.batch()]
        self.assertEqual(lines[0], {"kind": "dropped", "seq": 4, "rank": 0, "steps": [2], "seqs": [2]})


# The definition once more, in plain integers.
def naive_block(values):
    m = (1 << 64) - 1

    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & m
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & m
        return x ^ (x >> 31)

    result = []
    for k in (0, 1):
        total = 0
        for j, w in enumerate(values):
            total += w * (mix(((2 * j + k + 1) * 0x9E3779B97F4A7C15) & m) | 1)
        result.append(total & m)
    return tuple(result)


class Digests(unittest.TestCase):
    def test_blocks_against_plain_integers(self):
        g = torch.Generator().manual_seed(5)
        for n in (1, 7, 65536, 65537, 3 * 65536 + 11):
            t = torch.randn(n, generator=g)
            w = single.words(t)
            expected = [naive_block(w[i:i + 65536]) for i in range(0, n, 65536)]
            self.assertEqual(digest.block_digests(t), expected)

    def test_memory_order_counts(self):
        t = torch.randn(3, 4).t()
        self.assertEqual(digest.block_digests(t), [naive_block(single.words(t.t()))])

    def test_state_root_against_plain_hashing(self):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(300, 301), torch.nn.Linear(301, 5))
        net.add_module("conv", torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last))
        empty = torch.nn.Parameter(torch.zeros(0))
        net.register_parameter("empty", empty)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        for name, p in net.named_parameters():
            if name in ("0.weight", "0.bias", "1.weight", "conv.weight"):
                p.grad = torch.randn_like(p)
        optimizer.step()
        shards, current, elements = [], b"", 0
        for p in net.parameters():
            state = optimizer.state.get(p, {})
            columns = [p] + [state.get(k) for k in ("exp_avg", "exp_avg_sq")]
            for begin in range(0, p.numel(), 65536):
                for c in columns:
                    if c is None:
                        current += bytes(16)
                    else:
                        c = c.permute(0, 2, 3, 1) if c.dim() == 4 else c
                        current += struct.pack("<QQ", *naive_block(single.words(c)[begin:begin + 65536]))
                current += struct.pack("<q", int(state["step"]) if state else 0)
                elements += min(65536, p.numel() - begin)
                if elements >= 66000:
                    shards.append(hashlib.sha256(current).digest())
                    current, elements = b"", 0
        shards.append(hashlib.sha256(current).digest())
        self.assertEqual(len(shards), 2)
        self.assertEqual(digest.StateDigest(net, optimizer, 66000).shards(), shards)
        self.assertEqual(digest.state_root(net, optimizer, 66000), hashlib.sha256(b"".join(shards)).hexdigest())


class Probe(unittest.TestCase):
    OPTIMIZERS = [
        (torch.optim.SGD, dict(lr=0.1)),
        (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)),
        (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.5, maximize=True)),
        (torch.optim.Adam, dict(lr=1e-3, amsgrad=True, weight_decay=0.1)),
        (torch.optim.AdamW, dict(lr=1e-3, betas=(0.8, 0.95), foreach=True)),
    ]

    def test_outputs_are_what_torch_computes(self):
        for cls, options in self.OPTIMIZERS:
            p = torch.nn.Parameter(torch.zeros(3))
            optimizer = cls([p], **options)
            name = cls.__name__
            kinds = hyper.kinds_of(name, optimizer.param_groups)
            tensors, metadata = parse_safetensors(probe.build(optimizer, name, kinds))
            self.assertEqual(metadata["class"], name)
            self.assertEqual(json.loads(metadata["kinds"]), kinds)
            groups = json.loads(metadata["groups"])
            self.assertEqual(len(groups), 4)
            for case, n in enumerate((1, 7, 63, 4099, 65541)):
                take = lambda kind, when: torch.frombuffer(  # noqa: E731
                    bytearray(tensors["%d:%s:%s" % (case, kind, when)]), dtype=torch.float32)
                q = torch.nn.Parameter(take("param", "in").clone())
                self.assertEqual(q.numel(), n)
                again = cls([q], **options)
                for s in range(1, 5):
                    again.param_groups[0]["lr"] = single.f64_of(groups[s - 1]["lr"])
                    q.grad = take("grad", "grad%d" % s).clone()
                    again.step()
                    self.assertEqual(single.words(q), single.words(take("param", "out%d" % s)))
                    for kind in kinds:
                        self.assertEqual(single.words(again.state[q][kind]), single.words(take(kind, "out%d" % s)))

    def test_touches_neither_user_state_nor_global_generators(self):
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.Adam([p], lr=1e-3)
        before, python = torch.get_rng_state(), random.getstate()
        body = probe.build(optimizer, "Adam", ["exp_avg", "exp_avg_sq"])
        self.assertTrue(torch.equal(before, torch.get_rng_state()))
        self.assertEqual(python, random.getstate())
        self.assertEqual((len(optimizer.state), p.tolist(), p.grad), (0, [1.0, 1.0, 1.0], None))
        self.assertLess(len(body), 16 << 20)
        values = torch.frombuffer(bytearray(parse_safetensors(body)[0]["4:grad:grad1"]), dtype=torch.float32)
        self.assertGreater(int((values == 0).sum()), 100)
        self.assertGreater(int(((values != 0) & (values.abs() < 1.2e-38)).sum()), 100)  # subnormals


class BaselinePlan(unittest.TestCase):
    def test_chunks_cover_every_element_once_in_memory_order(self):
        torch.manual_seed(2)
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.Linear(700, 300), torch.nn.Linear(300, 3))
        net.to(memory_format=torch.channels_last)
        net.register_parameter("scalar", torch.nn.Parameter(torch.tensor(2.5)))
        net.register_parameter("empty", torch.nn.Parameter(torch.zeros(0, 4)))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        with_state = list(net.parameters())[:4]
        for p in with_state:
            p.grad = torch.randn_like(p)
        optimizer.step()
        model = Model(net, optimizer)
        for limit in (4 << 20, 900000, 70000):
            plan = baseline.Baseline(model, chunk_bytes=limit)
            found = {}
            for n in range(len(plan)):
                body = plan.chunk(n)
                tensors, metadata = parse_safetensors(body)
                self.assertLess(len(body), limit + 70000)
                self.assertEqual((metadata["step"], metadata["chunks"]), ("0", str(len(plan))))
                for name, data in tensors.items():
                    index, begin, kind = name.split(":")
                    found.setdefault((int(index), kind), []).append((int(begin), data))
            counters = json.loads(metadata["counters"])
            stateful = {i for i, p in enumerate(net.parameters()) if any(p is w for w in with_state)}
            self.assertEqual(counters, {str(i): 1 for i in stateful})
            for i, p in enumerate(net.parameters()):
                sources = {"param": p}
                if i in stateful:
                    sources.update({k: optimizer.state[p][k] for k in ("exp_avg", "exp_avg_sq")})
                for kind, t in sources.items():
                    if t.numel() == 0:
                        continue
                    pieces = sorted(found.pop((i, kind)))
                    offset = 0
                    for begin, data in pieces:
                        self.assertEqual(begin, offset)
                        offset += len(data) // 4
                    nhwc = t.permute(0, 2, 3, 1) if t.dim() == 4 else t
                    joined = b"".join(d for _, d in pieces)
                    self.assertEqual(list(struct.unpack("<%dI" % t.numel(), joined)), single.words(nhwc))
            self.assertEqual(found, {})


class Choice(unittest.TestCase):
    def test_steps_without_a_point_are_told(self):
        points = [{"lineage": 1, "step": 5, "valid": True, "record_digest": "aa"},
                  {"lineage": 1, "step": 4, "valid": False, "reason": "broken"}]
        lost = {"lineage": 1, "step": 6, "reason": "no record"}
        listing = {"points": points, "restorable": [{"lineage": 1, "step": 5}],
                   "passed_over": [lost, {"lineage": 1, "step": 4, "reason": "broken"}, {"lineage": 2}, "x", None]}
        self.assertEqual(choose(listing), ([(1, 5, "aa")], [(1, 6, "no record"), (1, 4, "broken")]))
        self.assertEqual(choose(listing, step=6), ([], [(1, 6, "no record")]))
        self.assertEqual(choose(dict(listing, passed_over=None))[1], [(1, 4, "broken")])


if __name__ == "__main__":
    unittest.main()
