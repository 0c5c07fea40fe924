"""The encoding of side state: golden bytes written by hand, values that come back, hostile bytes."""

import collections
import math
import random
import struct
import unittest

import single  # noqa: F401  (puts the package on the path)
import numpy as np
import torch
from gradtap import codec


def u64(n):
    return struct.pack("<Q", n)


def through(value, owner=None):
    return codec.encode(codec.snapshot(value, codec.Budget(1 << 24), owner))


GOLDEN = [
    (None, b"N"),
    (True, b"T"),
    (False, b"F"),
    (-2, b"i" + b"\xfe" + b"\xff" * 7),
    (1 << 64, b"I" + u64(9) + b"\x00" * 8 + b"\x01"),
    (-(1 << 63) - 1, b"I" + u64(9) + b"\xff" * 7 + b"\x7f\xff"),
    (1.0, b"d" + bytes.fromhex("000000000000f03f")),
    (-0.0, b"d" + b"\x00" * 7 + b"\x80"),
    (complex(1, -0.0), b"c" + bytes.fromhex("000000000000f03f") + b"\x00" * 7 + b"\x80"),
    ("\u00e9", b"s" + u64(2) + b"\xc3\xa9"),
    (b"\x00\xff", b"b" + u64(2) + b"\x00\xff"),
    ([1, "a"], b"l" + u64(2) + b"i" + u64(1) + b"s" + u64(1) + b"a"),
    ((None, ()), b"t" + u64(2) + b"N" + b"t" + u64(0)),
    ({3, 1}, b"S" + u64(2) + b"i" + u64(1) + b"i" + u64(3)),
    (frozenset([True]), b"Z" + u64(1) + b"T"),
    ({"k": 1.0, 2: None}, b"m" + u64(2) + b"s" + u64(1) + b"k" + b"d" + bytes.fromhex("000000000000f03f")
     + b"i" + u64(2) + b"N"),
    (collections.OrderedDict(a=1), b"o" + u64(1) + b"s" + u64(1) + b"a" + b"i" + u64(1)),
    (collections.Counter("a"), b"C" + u64(1) + b"s" + u64(1) + b"a" + b"i" + u64(1)),
    (tuple(range(16)), b"w" + u64(16) + b"".join(struct.pack("<I", n) for n in range(16))),
    ([7] * 17, b"W" + u64(17) + struct.pack("<I", 7) * 17),
    (torch.Size([2, 3]), b"z" + u64(2) + u64(2) + u64(3)),
    (torch.float16, b"y" + u64(7) + b"float16"),
    (torch.tensor([[1.0, -0.0]]), b"x" + u64(7) + b"float32" + b"\x02" + u64(1) + u64(2)
     + bytes.fromhex("0000803f00000080")),
    (torch.tensor(5), b"x" + u64(5) + b"int64" + b"\x00" + u64(5)),
    (torch.tensor([True]), b"x" + u64(4) + b"bool" + b"\x01" + u64(1) + b"\x01"),
    (np.array([1, 2], dtype="<u2"), b"a" + u64(3) + b"<u2" + b"\x01" + u64(2) + b"\x01\x00\x02\x00"),
    (np.float64(1.0), b"g" + u64(3) + b"<f8" + b"\x00" + bytes.fromhex("000000000000f03f")),
]


class Golden(unittest.TestCase):
    def test_bytes_and_back(self):
        for value, expected in GOLDEN:
            self.assertEqual(through(value), b"GTS1" + expected, repr(value))
            back = codec.decode(b"GTS1" + expected)
            self.assertIs(type(back), type(value))
            self.assertEqual(through(back), b"GTS1" + expected)

    def test_memory_order_does_not_matter(self):
        t = torch.arange(6.0).reshape(2, 3)
        turned = t.t().contiguous().t()
        self.assertNotEqual(t.stride(), turned.stride())
        self.assertEqual(through(t), through(turned))

    def test_real_states_come_back(self):
        state = random.getstate()
        self.assertEqual(codec.decode(through(state)), state)
        nan = codec.decode(through([float("nan"), math.inf]))
        self.assertTrue(math.isnan(nan[0]) and nan[1] == math.inf)
        bf = torch.randn(3, 5).bfloat16()
        self.assertTrue(torch.equal(codec.decode(through(bf)).view(torch.int16), bf.view(torch.int16)))
        self.assertEqual(codec.decode(through(torch.empty(0, 4))).shape, (0, 4))


class Snapshot(unittest.TestCase):
    def test_later_changes_do_not_reach_it(self):
        value = {"a": [1], "t": torch.zeros(2), "n": np.zeros(2)}
        taken = codec.snapshot(value, codec.Budget(1 << 20))
        before = codec.encode(taken)
        value["a"].append(2)
        value["t"][0] = 1
        value["n"][1] = 1
        self.assertEqual(codec.encode(taken), before)
        self.assertNotEqual(through(value), before)

    def test_unknown_by_path(self):
        class Thing:
            pass

        secret = 5
        for value, path in (({"a": [0, Thing()]}, ".a.1"), (Thing(), ""), ({"f": lambda: secret}, ".f"),
                            ({"b": [].append}, ".b"), (np.array([object()]), ""), (torch.zeros(2).to_sparse(), "")):
            with self.assertRaises(codec.UnknownLeaf) as caught:
                codec.snapshot(value, codec.Budget(1 << 20))
            self.assertEqual(caught.exception.path, path)
        nested = []
        for _ in range(100):
            nested = [nested]
        with self.assertRaises(codec.UnknownLeaf):
            codec.snapshot(nested, codec.Budget(1 << 20))

    def test_bounded(self):
        with self.assertRaises(codec.TooLarge):
            codec.snapshot({"a": torch.zeros(1000)}, codec.Budget(3999))
        codec.snapshot({"a": torch.zeros(1000)}, codec.Budget(5000))
        with self.assertRaises(codec.TooLarge):
            codec.snapshot([0] * 1000, codec.Budget(3000))

    def test_functions_travel_by_name(self):
        class Schedule:
            def rule(self):
                pass

        mine, other = Schedule(), Schedule()
        state = {"rule": mine.rule, "n": 1}
        back = codec.decode(through(state, mine))
        self.assertIsInstance(back["rule"], codec.CodeRef)
        resolved = codec.resolve(back, {"rule": other.rule, "n": 0}, "scheduler", other)
        self.assertEqual((resolved["rule"], resolved["n"]), (other.rule, 1))
        with self.assertRaises(codec.UnknownLeaf) as caught:
            codec.resolve(codec.decode(through(state, mine)), {"rule": random.random}, "scheduler", other)
        self.assertEqual(caught.exception.path, "scheduler.rule")
        with self.assertRaises(codec.UnknownLeaf):
            through(state, other)  # a method of somebody else holds that object's state


class Hostile(unittest.TestCase):
    def test_every_truncation_and_many_flips(self):
        value = [v for v, _ in GOLDEN] + [{"deep": [[[1]]]}]
        data = through(value)
        for n in range(len(data)):
            with self.assertRaises(codec.Malformed):
                codec.decode(data[:n])
        with self.assertRaises(codec.Malformed):
            codec.decode(data + b"N")
        rng, survived = random.Random(3), 0
        for _ in range(4000):
            bad = bytearray(data)
            bad[rng.randrange(4, len(bad))] ^= 1 << rng.randrange(8)
            try:
                codec.decode(bytes(bad))
                survived += 1
            except codec.Malformed:
                pass
        self.assertGreater(survived, 0)

    def test_claims_beyond_the_data(self):
        for body in (b"l" + u64(1 << 60), b"m" + u64(1 << 40), b"w" + u64(1 << 50), b"s" + u64(1 << 63),
                     b"x" + u64(7) + b"float32" + b"\x02" + u64(1 << 40) + u64(1 << 40),
                     b"x" + u64(7) + b"float99" + b"\x00", b"a" + u64(2) + b"|O" + b"\x01" + u64(1),
                     b"a" + u64(3) + b"|S0" + b"\x01" + u64(1 << 62), b"q", b"m" + u64(1) + b"l" + u64(0) + b"N",
                     b"S" + u64(1) + b"m" + u64(0), b"l" * 3 + u64(1) * 3, (b"l" + u64(1)) * 200 + b"N"):
            with self.assertRaises(codec.Malformed, msg=body[:40]):
                codec.decode(b"GTS1" + body)
        with self.assertRaises(codec.Malformed):
            codec.decode(b"\x80\x04N.")  # a pickle


if __name__ == "__main__":
    unittest.main()
