"""Side state in messages: what every rank sends at every commit, what is uploaded, what is named as missing."""

import random
import time
import unittest

import single
import numpy as np
import torch
import torch.nn as nn
from fake_node import FakeNode
from gradtap import codec, fixed


class Loader:
    def __init__(self):
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Broken:
    def __init__(self):
        self.bad = False

    def state_dict(self):
        if self.bad:
            raise RuntimeError("no state today")
        return {}


class SideCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        single.ensure_group()

    def net(self):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    def steps(self, ddp, optimizer, tap, count, after=None):
        for s in range(1, count + 1):
            optimizer.zero_grad()
            ddp(torch.randn(4, 6)).pow(2).mean().backward()
            optimizer.step()
            if after:
                after(s)
            tap.commit()


class Contents(SideCase):
    def test_every_value_is_that_of_its_commit(self):
        net, loader, noise = self.net(), Loader(), torch.Generator().manual_seed(4)
        ddp = single.DDP(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=20)
        notes, expected = {"list": [0]}, []

        def after(s):
            scheduler.step()
            loader.place += 3
            notes["list"].append(s)
            random.random()
            np.random.rand()
            torch.rand(1, generator=noise)
            expected.append({
                "rng.python": random.getstate(), "rng.torch": torch.get_rng_state(), "rng.numpy": np.random.get_state(),
                "data": {"place": loader.place}, "user.notes": {"list": list(notes["list"])},
                "user.noise": noise.get_state(), "user.pair": s,
                "optimizer": optimizer.param_groups[0]["lr"], "last": scheduler.last_epoch,
                "mean": net[1].running_mean.clone(), "count": net[1].num_batches_tracked.clone()})

        with FakeNode() as node:
            tap = single.attached(node, ddp, optimizer, scheduler=scheduler, extra={
                "data": loader, "notes": notes, "noise": noise, "pair": (lambda: loader.place // 3, lambda v: None)})
            self.steps(ddp, optimizer, tap, 6, after)
            tap.close()
            self.assertEqual((tap.errors, tap.status()["blobs_missing"]), (0, 0))
        for m, want in zip(node.steps(), expected):
            self.assertNotIn("blobs_missing", m)
            got = {name: codec.decode(node.blob(m, name)) for name in m["blobs"]}
            self.assertEqual(sorted(got), ["buffers", "data", "optimizer", "rng.numpy", "rng.python", "rng.torch",
                                           "scheduler", "user.noise", "user.notes", "user.pair"])
            self.assertEqual(got["rng.python"], want["rng.python"])
            self.assertTrue(torch.equal(got["rng.torch"], want["rng.torch"]))
            self.assertTrue((got["rng.numpy"][1] == want["rng.numpy"][1]).all())
            self.assertEqual(got["rng.numpy"][2:], want["rng.numpy"][2:])
            for name in ("data", "user.notes", "user.pair"):
                self.assertEqual(got[name], want[name])
            self.assertTrue(torch.equal(got["user.noise"], want["user.noise"]))
            self.assertEqual(got["optimizer"]["groups"][0]["lr"], want["optimizer"])
            self.assertEqual(got["optimizer"]["absent"], bytes(6))
            self.assertEqual(got["scheduler"]["last_epoch"], want["last"])
            self.assertEqual(single.words(got["buffers"]["1.running_mean"]), single.words(want["mean"]))
            self.assertEqual(got["buffers"]["1.num_batches_tracked"].item(), want["count"].item())
        self.assertEqual(len(node.steps()), 6)
        # Small ones travel inside the message.
        self.assertEqual(node.blob_puts, [])
        classes = {leaf["name"]: leaf["class"] for leaf in node.attaches[0]["inventory"]}
        for name in ("scheduler.anneal_func", "extra.data.place", "extra.noise", "extra.notes.list", "extra.pair",
                     "model.1.running_mean", "rng.numpy", "optimizer.param_groups.0.max_lr"):
            self.assertEqual(classes[name], "side-channel", name)
        self.assertNotIn("unknown", classes.values())

    def test_absent_gradients_are_told(self):
        net = self.net()
        ddp = single.DDP(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with FakeNode() as node:
            tap = single.attached(node, ddp, optimizer)
            self.steps(ddp, optimizer, tap, 1, lambda s: optimizer.zero_grad(set_to_none=True))
            tap.close()
            self.assertEqual(codec.decode(node.blob(node.steps()[0], "optimizer"))["absent"], b"\x01" * 6)

    def test_unknown_and_failing_objects_are_named(self):
        net, broken = self.net(), Broken()
        ddp = single.DDP(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with FakeNode() as node:
            tap = single.attached(node, ddp, optimizer, extra={"thing": object(), "broken": broken, "big": torch.zeros(5000)},
                                  blob_bytes=16000)
            self.steps(ddp, optimizer, tap, 4, lambda s: setattr(broken, "bad", s == 3))
            tap.close()
            self.assertEqual(tap.errors, 0)
        leaves = {leaf["name"]: leaf["class"] for leaf in node.attaches[0]["inventory"]}
        self.assertEqual([leaves[n] for n in ("extra.thing", "extra.big", "extra.broken")],
                         ["unknown", "unknown", "side-channel"])
        self.assertEqual([m.get("blobs_missing") for m in node.steps()],
                         [["user.big", "user.thing"]] * 2 + [["user.big", "user.broken", "user.thing"]]
                         + [["user.big", "user.thing"]])
        self.assertIn("user.broken", node.steps()[3]["blobs"])

    def test_next_layout(self):
        for options, calls in (({}, 1), ({"find_unused_parameters": True}, 0), ({"static_graph": True}, 1)):
            net = nn.Sequential(*[nn.Linear(200, 200) for _ in range(6)], nn.Linear(200, 6, bias=False))
            ddp = single.DDP(net, bucket_cap_mb=0.3, **options)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            with FakeNode() as node:
                tap = single.attached(node, ddp, optimizer)
                for _ in range(5):
                    optimizer.zero_grad()
                    ddp(torch.ones(2, 200)).pow(2).mean().backward()
                    optimizer.step()
                    tap.commit()
                tap.close()
                steps = node.steps()
                # What a step said of the next one came true, and its body was known before.
                for before, after in zip(steps, steps[1:]):
                    self.assertEqual(before["next_layout_id"], after["layout_id"], options)
                    node.layout_of(before["next_layout_id"])
                self.assertEqual(len({m["layout_id"] for m in steps}), 1 + calls)
                for m in node.kind("layout"):
                    if m.get("predicted"):
                        named = [s["seq"] for s in steps if node.layout_of(s["next_layout_id"]) == m["layout"]]
                        self.assertLess(m["seq"], min(named))


class FixedTensors(SideCase):
    def test_changes_are_seen_however_they_are_made(self):
        net = nn.Module()
        net.register_buffer("small", torch.zeros(4))
        net.register_buffer("large", torch.zeros(100000))  # more than 64 KiB
        net.register_buffer("huge", torch.zeros(400000))  # more than 1 MiB: by digest until it changes
        net.register_buffer("scratch", torch.zeros(400000), persistent=False)
        tensors = fixed.FixedTensors(fixed.buffer_slots(net), 1 << 24)
        first = tensors.capture()
        plain = first.plain()
        self.assertEqual(sorted(plain), ["huge", "large", "small"])
        import hashlib

        self.assertEqual(plain["huge"], ("sha256", "float32", [400000], hashlib.sha256(bytes(1600000)).hexdigest()))
        self.assertIs(tensors.capture(), first)
        net.small.data[1] = 5  # leaves no trace in the version counter
        second = tensors.capture()
        self.assertIsNot(second, first)
        self.assertEqual(second.plain()["small"].tolist(), [0, 5, 0, 0])
        self.assertEqual(first.plain()["small"].tolist(), [0, 0, 0, 0])
        net.large[7] = 1
        net.huge.data = torch.ones(400000)
        net.scratch = torch.full((400000,), 2.0)  # replaced by another object
        third = tensors.capture().plain()
        self.assertEqual(third["large"][7].item(), 1)
        self.assertEqual(third["huge"].sum().item(), 400000)
        self.assertEqual(third["scratch"][0].item(), 2)
        net.huge.mul_(3)
        self.assertEqual(third["huge"].sum().item(), 400000)
        self.assertEqual(tensors.capture().plain()["huge"].sum().item(), 1200000)
        net.small[0] = float("nan")
        nan = tensors.capture()
        self.assertIs(tensors.capture(), nan)

    def test_too_large(self):
        net = nn.Module()
        net.register_buffer("a", torch.zeros(100000))
        with self.assertRaises(codec.TooLarge):
            fixed.FixedTensors(fixed.buffer_slots(net), 1000).capture()


class Uploads(SideCase):
    def train(self, node, count, extra, after=None, pause=0.0, **options):
        net = self.net()
        ddp = single.DDP(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        tap = single.attached(node, ddp, optimizer, extra=extra, **options)
        self.addCleanup(tap.close)

        def each(s):
            if after:
                after(s)
            time.sleep(pause)

        self.steps(ddp, optimizer, tap, count, each)
        return tap

    def test_large_ones_are_uploaded_once_before_the_message(self):
        table = torch.arange(5000.0)

        def change(s):
            if s == 4:
                table[0] = 9

        with FakeNode() as node:
            tap = self.train(node, 6, {"table": table}, change, pause=0.02)
            tap.close()
            self.assertEqual(len(node.blob_puts), 2)
            for digest, size, known in node.blob_puts:
                first = [m for m in node.steps() if m["blobs"]["user.table"]["digest"] == digest][0]
                before = [m for m in node.messages[0].values() if m["seq"] < first["seq"]]
                self.assertLessEqual(known, len(before))
            self.assertEqual([codec.decode(node.blob(m, "user.table"))[0].item() for m in node.steps()],
                             [0, 0, 0, 9, 9, 9])
            self.assertTrue(all("inline" not in m["blobs"]["user.table"] for m in node.steps()))

    def test_a_node_without_blobs_costs_the_points_only(self):
        with FakeNode() as node:
            plain = node.handle
            node.handle = lambda method, path, headers, body: (404, {"error": {"name": "NOT_FOUND"}}) \
                if "/blobs/" in path else plain(method, path, headers, body)
            tap = self.train(node, 4, {"table": torch.arange(5000.0)})
            tap.close()
            self.assertTrue(tap.reason is None and tap.errors == 0)
            self.assertEqual([m["blobs_missing"] for m in node.steps()], [["user.table"]] * 4)

    def test_queue_bound_drops_side_state_first(self):
        node = FakeNode()
        self.addCleanup(node.close)
        table = torch.zeros(50000)
        net = self.net()
        ddp = single.DDP(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        tap = single.attached(node, ddp, optimizer, extra={"table": table}, queue_bytes=1 << 20, flush_ms=500)
        node.mode = "not-json"
        self.steps(ddp, optimizer, tap, 60, lambda s: table.add_(1))
        self.assertLess(tap.status()["queue_bytes"], 1 << 20)
        self.assertEqual(tap.status()["dropped"], 0)
        self.assertGreater(tap.status()["blobs_missing"], 50)
        node.mode = "normal"
        deadline = time.monotonic() + 20
        while tap._outbox.pending() and time.monotonic() < deadline:
            tap._sender.wake()
            time.sleep(0.05)
        steps = node.steps()
        self.assertEqual([m["step"] for m in steps], list(range(1, 61)))
        with_table = [m["step"] for m in steps if "user.table" in m["blobs"]]
        self.assertIn(60, with_table)
        for m in steps:
            self.assertNotEqual("user.table" in m["blobs"], "user.table" in m.get("blobs_missing", ()), m["step"])
            if "user.table" in m["blobs"]:
                self.assertEqual(codec.decode(node.blob(m, "user.table"))[0].item(), m["step"])
        self.assertEqual(tap.status()["queue_bytes"], 0)
        tap.close()


if __name__ == "__main__":
    unittest.main()
