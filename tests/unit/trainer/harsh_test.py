"""A node that is absent, unreachable, slow, talks nonsense or dies: training gives the same result and ends with 0."""

import socket
import threading
import time
import unittest

import fake_node
import jobs
import single
import torch
import torch.nn as nn
from fake_node import FakeNode

ATTACH_MS = 1200


_untapped = {}


def untapped_result(world):
    if world not in _untapped:
        job = jobs.run("training", "plain", "", world=world, clip=0.1)
        assert job.codes == [0] * world, job.stderr
        _untapped[world] = job.result["params"]
    return _untapped[world]


class Harsh(unittest.TestCase):
    def check(self, endpoint, during=None, tapped=False, world=1, **args):
        expected = untapped_result(world)
        begun = time.monotonic()
        job = jobs.run("training", "plain", endpoint, world=world, clip=0.1, during=during,
                       attach={"attach_timeout_ms": ATTACH_MS, "flush_ms": 1000}, **args)
        took = time.monotonic() - begun
        self.assertEqual(job.codes, [0] * world, job.stderr)
        for text in job.stderr:
            self.assertNotIn("Traceback", text)
            self.assertLess(len(text), 4000)
        self.assertEqual(job.result["params"], expected)
        self.assertEqual(job.result["status"]["enabled"], tapped)
        if not tapped:
            for text in job.stderr:
                self.assertIn("training starts untapped", text)
        self.assertLess(took, 60)  # only says that nothing waits for ever: the machine may be busy
        return job

    def test_absent(self):
        self.check("http://127.0.0.1:%d" % jobs.free_port(), world=2)

    def test_unreachable(self):
        # A listening socket whose backlog is full: connecting takes for ever.
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen(0)
            fillers = []
            for _ in range(4):
                f = socket.socket()
                f.setblocking(False)
                f.connect_ex(s.getsockname())
                fillers.append(f)
            self.check("http://127.0.0.1:%d" % s.getsockname()[1])
            for f in fillers:
                f.close()

    def test_silent(self):
        with FakeNode(mode="silent") as node:
            self.check(node.endpoint)

    def test_slow(self):
        with FakeNode(mode="slow") as node:
            self.check(node.endpoint)

    def test_garbage(self):
        for mode in ("garbage", "not-json"):
            with FakeNode(mode=mode) as node:
                self.check(node.endpoint)

    def test_fails_over_to_another_gateway(self):
        with FakeNode() as node:
            self.check(["http://127.0.0.1:%d" % jobs.free_port(), node.endpoint], tapped=True)
            self.assertEqual([m["step"] for m in node.steps()], [1, 2, 3, 4])


class LostMidway(unittest.TestCase):
    """In one process: a tapped run whose node changes under it."""

    @classmethod
    def setUpClass(cls):
        single.ensure_group()

    def run_steps(self, node, count, at=None, act=None, pause=0.0, **options):
        torch.manual_seed(5)
        net = nn.Linear(6, 3)
        ddp = single.DDP(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        tap = single.attached(node, ddp, optimizer, **options) if node else None
        if tap:
            self.addCleanup(tap.close)
        for s in range(count):
            if s == at:
                act()
            optimizer.zero_grad()
            ddp(torch.full((2, 6), float(s % 7))).pow(2).mean().backward()
            optimizer.step()
            if tap:
                tap.commit()
                time.sleep(pause)
        return tap, [single.words(p) for p in net.parameters()]

    def test_killed_midway(self):
        _, expected = self.run_steps(None, 3000)
        node = FakeNode()
        tap, params = self.run_steps(node, 3000, 5, node.kill, flush_ms=500)
        self.assertEqual(params, expected)
        status = tap.status()
        self.assertTrue(status["enabled"])
        self.assertEqual(status["errors"], 0)
        self.assertLessEqual(tap._outbox.pending(), 1025)
        self.assertLess(status["queue_bytes"], 4 << 20)
        self.assertGreater(status["dropped"], 1500)
        begun = time.monotonic()
        tap.close()
        self.assertLess(time.monotonic() - begun, 5)

    def test_nonsense_midway(self):
        _, expected = self.run_steps(None, 50)
        for mode in ("garbage", "not-json", "silent", "slow"):
            with FakeNode() as node:
                tap, params = self.run_steps(node, 50, 5, lambda: setattr(node, "mode", mode), flush_ms=300)
                self.assertEqual(params, expected)
                begun = time.monotonic()
                tap.close()
                self.assertLess(time.monotonic() - begun, 5)

    def test_superseded_switches_the_tap_off(self):
        _, expected = self.run_steps(None, 30)
        with FakeNode(superseded_at=4) as node:
            tap, params = self.run_steps(node, 30, pause=0.01)
            self.assertEqual(params, expected)
            self.assertFalse(tap.enabled)
            self.assertIn("409", tap.reason)
            tap.close()
            self.assertLess(max(m["step"] for m in node.steps()), 4)

    def test_refused_message_becomes_a_declared_gap(self):
        with FakeNode(reject_step=7) as node:
            tap, _ = self.run_steps(node, 20)
            tap.close()
            self.assertEqual([m["step"] for m in node.steps()], [s for s in range(1, 21) if s != 7])
            self.assertEqual([m["steps"] for m in node.kind("dropped")], [[7]])

    def test_layout_and_resend_and_unknown_requests(self):
        with FakeNode() as node:
            def ask():
                layout_id = node.steps()[0]["layout_id"]
                node.requests = [{"id": "a", "kind": "layout", "layout_id": layout_id},
                                 {"id": "b", "kind": "ranges"}, {"id": "c", "kind": "resend", "from_seq": 2}, "junk"]
            tap, _ = self.run_steps(node, 12, 6, ask, pause=0.02)
            tap.close()
            self.assertIn(node.attaches[0]["layout"], [m["layout"] for m in node.kind("layout")])
            self.assertEqual([(m["id"], "refused" in m) for m in node.kind("reply")], [("b", True)])
            self.assertEqual([m["step"] for m in node.steps()], list(range(1, 13)))

    def test_outage_with_overflow_is_declared_afterwards(self):
        with FakeNode() as node:
            torch.manual_seed(5)
            net = nn.Linear(6, 3)
            ddp = single.DDP(net)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            tap = single.attached(node, ddp, optimizer)
            tap._outbox._max_messages = 20
            node.mode = "not-json"
            for s in range(200):
                ddp(torch.ones(2, 6)).sum().backward()
                optimizer.step()
                tap.commit()
            node.mode = "normal"
            deadline = time.monotonic() + 20
            while tap._outbox.unsent() and time.monotonic() < deadline:
                time.sleep(0.05)
            tap.close()
            got = {m["step"] for m in node.steps()}
            declared = {s for m in node.kind("dropped") for s in m["steps"]}
            self.assertEqual(got | declared, set(range(1, 201)))
            self.assertIn(200, got)

    def test_node_that_restarts_gets_what_was_not_durable_again(self):
        with FakeNode() as node:
            node.durable_lag = 3

            def restart():
                time.sleep(0.3)
                with node.lock:
                    kept = max(0, len(node.messages[0]) - 3)
                    node.messages[0] = {s: m for s, m in node.messages[0].items() if s <= kept}

            tap, _ = self.run_steps(node, 30, 15, restart)
            node.durable_lag = 0
            tap.close()
            self.assertEqual([m["step"] for m in node.steps()], list(range(1, 31)))
            self.assertEqual(tap.status()["queue_bytes"], 0)


class EndOfProcess(unittest.TestCase):
    def test_atexit_flushes(self):
        with FakeNode() as node:
            job = jobs.run("training", "no_close", node.endpoint)
            self.assertEqual(job.codes, [0], job.stderr)
            self.assertEqual([m["step"] for m in node.steps()], [1, 2, 3])
            self.assertEqual(len(node.detached), 1)

    def test_data_loader_workers(self):
        with FakeNode() as node:
            job = jobs.run("training", "with_loader", node.endpoint)
            self.assertEqual(job.codes, [0], job.stderr)
            self.assertNotIn("Traceback", job.stderr[0])
            self.assertEqual([m["step"] for m in node.steps()], list(range(1, 7)))
            self.assertEqual(job.result["in_worker"], [[False, 1]] * 6)
            self.assertEqual(job.result["errors"], 0)

    def test_fork_with_the_queue_lock_held(self):
        with FakeNode() as node:
            job = jobs.run("training", "fork_under_lock", node.endpoint)
            self.assertEqual(job.codes, [0], job.stderr)
            self.assertEqual(job.result["child"], 0)
            self.assertEqual([m["step"] for m in node.steps()], [1, 2])


if __name__ == "__main__":
    unittest.main()
