"""Layouts by value: against the bucket contents that DDP's own communication hook sees, step by step."""

import unittest

import single
import torch
import torch.nn as nn
from fake_node import FakeNode


class Branches(nn.Module):
    """Registration order differs from the order in which gradients become ready."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(200, 70, bias=False)
        self.body = nn.ModuleList([nn.Linear(200, 200) for _ in range(9)])
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.zeros(0))
        self.tied = self.body[0]

    def forward(self, x):
        for layer in self.body:
            x = torch.relu(layer(x)) * self.scale
        return self.head(self.tied(x)) + self.empty.sum()


def drive(ddp, optimizer, steps, commit=None):
    data = torch.Generator().manual_seed(9)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        ddp(torch.randn(3, 200, generator=data)).pow(2).mean().backward()
        optimizer.step()
        if commit:
            commit(step)


def observed(steps, **options):
    """step -> buckets (lists of parameter indices), from a hook."""
    torch.manual_seed(4)
    net = Branches()
    ddp = single.DDP(net, **options)
    index = {id(p): i for i, p in enumerate(net.parameters())}
    seen, now = {}, [1]

    def hook(_state, bucket):
        seen.setdefault(now[0], {})[bucket.index()] = [index[id(p)] for p in bucket.parameters()]
        return single.dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])

    ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    drive(ddp, optimizer, steps, lambda step: now.__setitem__(0, step + 1))
    return {s: [b[i] for i in sorted(b)] for s, b in seen.items()}, [p.numel() for p in net.parameters()]


def reported(steps, **options):
    torch.manual_seed(4)
    net = Branches()
    ddp = single.DDP(net, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    with FakeNode() as node:
        tap = single.attached(node, ddp, optimizer)
        drive(ddp, optimizer, steps, lambda _: tap.commit())
        tap.close()
        messages = node.steps()
        layouts = {m["step"]: node.layout_of(m["layout_id"])["buckets"] for m in messages}
        return layouts, node


class AgainstTheHook(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        single.ensure_group()

    def check(self, steps=4, **options):
        expected, numel = observed(steps, **options)
        got, node = reported(steps, **options)
        self.assertEqual(sorted(got), list(range(1, steps + 1)))
        for step in got:
            self.assertEqual([[i for i, _ in b] for b in got[step]], expected[step], "step %d" % step)
            self.assertTrue(all(n == numel[i] for b in got[step] for i, n in b))
        return got, node

    def test_sizes_change(self):
        got, node = self.check(bucket_cap_mb=0.3)
        self.assertEqual(len(got[1]), 1)
        self.assertGreaterEqual(len(got[2]), 2)
        self.assertNotEqual(got[1], got[2])
        predicted = [m["layout"] for m in node.kind("layout") if m.get("predicted")]
        self.assertEqual([p["buckets"] for p in predicted], [got[2]])
        # The announcement precedes the step that uses it.
        real = [m["seq"] for m in node.kind("layout") if not m.get("predicted")]
        self.assertEqual(len(real), 1)
        self.assertLess(real[0], [m["seq"] for m in node.steps() if m["step"] == 2][0])

    def test_only_permuted(self):
        before = single.dist._DEFAULT_FIRST_BUCKET_BYTES
        single.dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 24
        try:
            got, _ = self.check(bucket_cap_mb=25)
        finally:
            single.dist._DEFAULT_FIRST_BUCKET_BYTES = before
        self.assertEqual((len(got[1]), len(got[2])), (1, 1))
        self.assertNotEqual(got[1], got[2])
        self.assertEqual(sorted(got[1][0]), sorted(got[2][0]))

    def test_small_first_bucket(self):
        before = single.dist._DEFAULT_FIRST_BUCKET_BYTES
        single.dist._DEFAULT_FIRST_BUCKET_BYTES = 40000
        try:
            got, _ = self.check(bucket_cap_mb=0.4)
            self.assertGreaterEqual(len(got[2]), 3)
            self.check(bucket_cap_mb=0.4, find_unused_parameters=True)
        finally:
            single.dist._DEFAULT_FIRST_BUCKET_BYTES = before

    def test_find_unused_never_rebuilds(self):
        got, node = self.check(bucket_cap_mb=0.3, find_unused_parameters=True)
        self.assertEqual(got[1], got[4])
        self.assertEqual(node.kind("layout"), [])

    def test_static_graph_rebuilds_one_step_later(self):
        got, _ = self.check(bucket_cap_mb=0.3, static_graph=True)
        self.assertEqual(got[1], got[2])
        self.assertNotEqual(got[2], got[3])

    def test_bucket_view(self):
        self.check(bucket_cap_mb=0.3, gradient_as_bucket_view=True)

    def test_limit_changed_after_construction_is_noticed(self):
        # The constructor's limits are gone; DDP's own record of sizes still decides.
        torch.manual_seed(4)
        net = Branches()
        ddp = single.DDP(net, bucket_cap_mb=0.3, find_unused_parameters=True)
        sizes = [int(x) for x in ddp._get_ddp_logging_data()["bucket_sizes"].split(",")]
        ddp.bucket_bytes_cap = 1000
        with FakeNode() as node:
            tap = single.attached(node, ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
            tap.close()
            buckets = node.attaches[0]["layout"]["buckets"]
        self.assertEqual([4 * sum(n for _, n in b) for b in buckets], sizes)

    def test_interval_counts_collectives(self):
        got, node = self.check(bucket_cap_mb=0.3)
        attach = node.attaches[0]
        steps = node.steps()
        self.assertEqual(steps[0]["interval"][0], attach["sequence"])
        for before, after in zip(steps, steps[1:]):
            self.assertEqual(before["interval"][1], after["interval"][0])
        # Step 1: one bucket. Step 2: two broadcasts of the new map, then its buckets. Then the buckets only.
        self.assertEqual([b - a for a, b in (m["interval"] for m in steps)],
                         [1, 2 + len(got[2]), len(got[2]), len(got[2])])


class CountFromCreation(unittest.TestCase):
    def test_sequence_at_attach_is_the_number_of_collectives(self):
        import jobs

        with FakeNode() as node:
            job = jobs.run("training", "plain", node.endpoint, steps=1, width=8, depth=2)
            self.assertEqual(job.codes, [0], job.stderr)
            # Tags 0 to 2: an all-gather and two broadcasts of the constructor.
            self.assertEqual(node.attaches[0]["sequence"], 3)


if __name__ == "__main__":
    unittest.main()
