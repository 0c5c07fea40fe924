"""Several gateways: the one that dies, is silent, is not at home or has forgotten the session is left for the next one."""

import time
import unittest

import single
import torch
import torch.nn as nn
from fake_node import FakeNode

UNKNOWN = (409, {"error": {"name": "SESSION_UNKNOWN", "what": "no such session"}})


def cluster(size=2):
    """Gateways in front of one memory, as the nodes of a cluster are."""
    nodes = [FakeNode() for _ in range(size)]
    for other in nodes[1:]:
        other.handle = nodes[0].handle
    return nodes


class FailOver(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        single.ensure_group()

    def attach(self, endpoint, **options):
        torch.manual_seed(5)
        net = nn.Linear(6, 3)
        self.ddp = single.DDP(net)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        options.setdefault("attach_timeout_ms", 4000)
        tap = single.gradtap.attach(self.ddp, self.optimizer, endpoint=endpoint, job="unit", **options)
        self.addCleanup(tap.close)
        return tap

    def steps(self, tap, count, act=None, pause=0.01):
        for s in range(1, count + 1):
            self.optimizer.zero_grad()
            self.ddp(torch.ones(2, 6)).sum().backward()
            self.optimizer.step()
            if act:
                act(s)
            tap.commit()
            time.sleep(pause)

    def settle(self, tap, seconds=20):
        deadline = time.monotonic() + seconds
        while tap._outbox.pending() and time.monotonic() < deadline:
            time.sleep(0.05)

    def close(self, *nodes):
        for node in nodes:
            self.addCleanup(node.close)

    def test_killed_midway(self):
        a, b = cluster()
        self.close(b)
        table = torch.zeros(5000)
        tap = self.attach("%s,%s" % (a.endpoint, b.endpoint), extra={"table": table})
        self.assertTrue(tap.enabled, tap.reason)
        a.durable_lag = 3
        puts = []

        def act(s):
            table.add_(1)
            if s == 20:
                puts.append(list(a.blob_puts))
                a.kill()
            if s == 25:
                a.durable_lag = 0

        begun = time.monotonic()
        self.steps(tap, 40, act)
        self.settle(tap)
        self.assertLess(time.monotonic() - begun, 20)
        self.assertEqual([m["step"] for m in a.steps()], list(range(1, 41)))
        self.assertEqual(tap.status()["blobs_missing"], 0)
        # Values of messages that were not durable when the gateway died came again.
        before = {digest for digest, _, _ in puts[0]}
        self.assertTrue(before & {digest for digest, _, _ in a.blob_puts[len(puts[0]):]})
        tap.close()

    def test_gateways_that_came_later(self):
        """Only the first gateway is given; the members that it names take over when it is gone."""
        a, b = cluster()
        self.close(b)
        plain = a.handle

        def naming(method, path, headers, body):
            status, answer = plain(method, path, headers, body)
            if path.endswith("/messages") and status == 200:
                answer = dict(answer, gateways=["no endpoint at all:", 7, None, a.endpoint, b.endpoint])
            return status, answer

        a.handle = b.handle = naming
        tap = self.attach(a.endpoint)
        self.assertTrue(tap.enabled, tap.reason)
        self.steps(tap, 30, lambda s: a.kill() if s == 12 else None)
        self.settle(tap)
        self.assertEqual([m["step"] for m in a.steps()], list(range(1, 31)))
        self.assertFalse(tap._outbox.pending())

    def test_not_at_home(self):
        a, b = cluster()
        self.close(a, b)
        tap = self.attach([a.endpoint, b.endpoint])

        class Away:
            calls = 0

        def away(*request):
            Away.calls += 1
            return 503, {"error": {"name": "NODE_BUSY", "what": "not home"}}

        plain = a.handle

        def act(s):
            if s == 5:
                b.handle, a.handle = plain, away

        begun = time.monotonic()
        self.steps(tap, 15, act)
        self.settle(tap)
        self.assertLess(time.monotonic() - begun, 5)  # at once, not after the back-off
        self.assertEqual([m["step"] for m in a.steps()], list(range(1, 16)))
        self.assertGreater(Away.calls, 0)
        self.assertLess(Away.calls, 4)

    def test_all_are_asked_before_a_pause(self):
        from gradtap.link import Link
        from gradtap.outbox import Outbox
        from gradtap.sender import Sender

        class Quiet:
            def say(self, text):
                pass

        sender = Sender(Link(["a:1", "b:2", "c:3"], 1.0), Outbox(0), "unit", 0, Quiet(), None)
        pauses, asked = [], []
        sender._sleep = pauses.append
        for _ in range(9):
            asked.append(sender._link.endpoint())
            sender._failed("nobody there")
        self.assertEqual(asked, ["a:1", "b:2", "c:3"] * 3)
        self.assertEqual(pauses, [0.2, 0.4, 0.8])

    def test_gateway_dies_during_the_upload(self):
        a, b = FakeNode(), FakeNode()  # two memories: b has never heard of the session
        self.close(b)
        plain = b.handle
        known = set()

        def remember(method, path, headers, body):
            status, answer = plain(method, path, headers, body)
            if path.endswith("/attach"):
                known.add(answer.get("session"))
            elif "/chunks/" in path and headers["X-Gradtap-Session"] not in known:
                return UNKNOWN
            return status, answer

        b.handle = remember

        def dying(method, path, headers, body):
            if "/chunks/baseline" in path:
                a.mode = "dead"
                raise ConnectionError("killed")
            return FakeNode.handle(a, method, path, headers, body)

        a.handle = dying
        tap = self.attach([a.endpoint, b.endpoint])
        self.assertTrue(tap.enabled, tap.reason)
        self.assertEqual(a.attaches[0]["run_nonce"], b.attaches[0]["run_nonce"])
        self.assertEqual(sorted(b.chunks), ["baseline", "probe"])
        self.steps(tap, 3)
        tap.close()
        self.assertEqual([m["step"] for m in b.steps()], [1, 2, 3])
        a.close()

    def test_silent_gateway_leaves_time_for_the_other(self):
        a, b = FakeNode(mode="silent"), FakeNode()
        self.close(a, b)
        tap = self.attach([a.endpoint, b.endpoint], attach_timeout_ms=6000)
        self.assertTrue(tap.enabled, tap.reason)
        self.steps(tap, 2)
        tap.close()
        self.assertEqual([m["step"] for m in b.steps()], [1, 2])

    def test_all_dead_is_said_within_the_deadline(self):
        a, b = FakeNode(mode="dead"), FakeNode(mode="dead")
        self.close(a, b)
        begun = time.monotonic()
        tap = self.attach([a.endpoint, b.endpoint], attach_timeout_ms=1500)
        self.assertFalse(tap.enabled)
        self.assertLess(time.monotonic() - begun, 10)

    def test_forgotten_session_is_announced_again(self):
        node = FakeNode()
        self.close(node)
        tap = self.attach(node.endpoint)
        plain, forgotten = node.handle, []

        def forgetful(method, path, headers, body):
            if path.endswith("/messages") and len(forgotten) < 1:
                forgotten.append(path)
                return UNKNOWN
            status, answer = plain(method, path, headers, body)
            if path.endswith("/attach"):
                answer = dict(answer, state="tracking")
            return status, answer

        def act(s):
            if s == 4:
                node.handle = forgetful

        self.steps(tap, 8, act)
        self.settle(tap)
        self.assertTrue(tap.enabled, tap.reason)
        self.assertEqual(len(forgotten), 1)
        self.assertEqual([m["step"] for m in node.steps()], list(range(1, 9)))

    def test_superseded_is_final(self):
        a, b = cluster()
        self.close(a, b)
        a.superseded_at = 3
        tap = self.attach([a.endpoint, b.endpoint])
        self.steps(tap, 10)
        self.assertFalse(tap.enabled)
        self.assertIn("SUPERSEDED", tap.reason)


if __name__ == "__main__":
    unittest.main()
