"""Step messages against what the loop itself observes: witness, transforms, hyper-parameters, parameter states."""

import contextlib
import unittest
import warnings

import single
import torch
import torch.nn as nn
from fake_node import FakeNode
from single import f32_of, f64_of, states_of, word_of, words

M = (1 << 64) - 1
TORCH_2 = int(torch.__version__.split(".")[0]) >= 2


def position(layout_id, step, bucket, j, numel):
    """The specification once more."""
    x = (int(layout_id[:16], 16) + (step * 64 + bucket * 8 + j + 1) * 0x9E3779B97F4A7C15) & M
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M
    return (x ^ (x >> 31)) % numel


def in_memory(t, like):
    """Elements of t in the memory order of `like`."""
    if like.dim() == 4 and not like.is_contiguous():
        t = t.permute(0, 2, 3, 1)
    return words(t)


class Odd(nn.Module):
    """Channels-last convolution, 0-dim, zero-size, frozen and tied parameters, a buffer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.empty = nn.Parameter(torch.zeros(0))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.mix = nn.Linear(8, 8, bias=False)
        self.again = nn.Linear(8, 8, bias=True)
        self.again.weight = self.mix.weight
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        h = self.norm(self.conv(x)).mean((2, 3)) * self.scale
        return self.again(torch.relu(self.mix(h))) + self.empty.sum() + self.frozen.sum()


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.left = nn.Linear(6, 2)
        self.right = nn.Linear(6, 2)

    def forward(self, x, side):
        return (self.left if side == "left" else self.right)(torch.relu(self.body(x)))


class Scaler:
    """The part of GradScaler that a loop uses; torch 1.13 has none for CPU."""

    def __init__(self, scale):
        self._scale = torch.tensor(float(scale))
        self._found = False
        self._done = False

    def is_enabled(self):
        return True

    def get_scale(self):
        return self._scale.item()

    def state_dict(self):
        return {"scale": self.get_scale(), "growth_factor": 2.0}

    def scale(self, loss):
        return loss * self._scale

    def unscale_(self, optimizer):
        inverse = self._scale.double().reciprocal().float()
        self._found, self._done = False, True
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._found |= not bool(torch.isfinite(p.grad).all())
                    p.grad.mul_(inverse)

    def step(self, optimizer):
        if not self._done:
            self.unscale_(optimizer)
        if not self._found:
            optimizer.step()

    def update(self):
        self._done = False
        if self._found:
            self._scale *= 0.5


class StepCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        single.ensure_group()

    @contextlib.contextmanager
    def tapped(self, net, optimizer=None, ddp_options=None, **options):
        ddp = single.DDP(net, **(ddp_options or {}))
        optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        with FakeNode() as node:
            tap = single.attached(node, ddp, optimizer, **options)
            self.node = node
            try:
                yield ddp, optimizer, tap, node
            finally:
                tap.close()
            self.assertEqual((tap.errors, tap.reason), (0, None))


class Witness(StepCase):
    def test_odd_parameters(self):
        torch.manual_seed(6)
        net = Odd()
        optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.01)
        entries = []
        with self.tapped(net, optimizer) as (ddp, _, tap, node):
            for _ in range(4):
                optimizer.zero_grad()
                ddp(torch.randn(2, 3, 9, 9)).pow(2).mean().backward()
                nn.utils.clip_grad_value_(net.parameters(), 0.05)
                entries.append([in_memory(p.grad, p) for p in net.parameters() if p.requires_grad])
                optimizer.step()
                tap.commit()
        checked = 0
        for m, grads in zip(node.steps(), entries):
            buckets = node.layout_of(m["layout_id"])["buckets"]
            for b, members in enumerate(buckets):
                content = [w for i, _ in members for w in grads[i]]
                self.assertEqual(len(content), sum(n for _, n in members))
                expected = ["%08x" % content[position(m["layout_id"], m["step"], b, j, len(content))]
                            for j in range(8)]
                self.assertEqual(m["witness"][str(b)], expected)
                checked += 1
        self.assertGreaterEqual(checked, 4)
        attach = node.attaches[0]
        by_name = {p["name"]: p for p in attach["parameters"]}
        self.assertEqual(by_name["conv.weight"]["order"], [0, 2, 3, 1])
        self.assertEqual((by_name["scale"]["shape"], by_name["scale"]["order"]), ([], []))
        self.assertEqual(by_name["empty"]["numel"], 0)
        self.assertEqual(by_name["mix.weight"]["aliases"], ["again.weight"])
        self.assertNotIn("again.weight", by_name)
        self.assertNotIn("frozen", by_name)
        classes = {leaf["name"]: leaf["class"] for leaf in attach["inventory"]}
        self.assertEqual(classes["model.frozen"], "side-channel")
        self.assertEqual(classes["model.norm.running_mean"], "side-channel")
        self.assertEqual(classes["model.again.weight"], "replayed")
        self.assertEqual(classes["optimizer.conv.weight#exp_avg_sq"], "replayed")

    def test_gradient_with_other_strides_than_its_parameter(self):
        from gradtap import witness
        from gradtap.model import Model

        conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        conv.weight.grad = torch.randn(4, 3, 3, 3)  # contiguous, unlike the parameter
        conv.bias.grad = torch.randn(8)[::2]
        model = Model(conv, torch.optim.SGD(conv.parameters(), lr=0.1))
        got = witness.sample(model.parameters, [(0, [(0, e) for e in range(108)]), (1, [(1, e) for e in range(4)])])
        self.assertEqual(got[0][1], words(conv.weight.grad.permute(0, 2, 3, 1)))
        self.assertEqual(got[1][1], words(conv.bias.grad))

    def test_nan_payload_survives(self):
        from gradtap import witness
        from gradtap.model import Model

        line = nn.Linear(2, 1, bias=False)
        line.weight.grad = torch.tensor([[0x7FC12345, -0x3FEDCC]], dtype=torch.int32).view(torch.float32)
        model = Model(line, torch.optim.SGD(line.parameters(), lr=0.1))
        self.assertEqual(witness.sample(model.parameters, [(0, [(0, 0), (0, 1)])]),
                         [(0, [0x7FC12345, (-0x3FEDCC) & 0xFFFFFFFF])])


class Transforms(StepCase):
    def loop(self, act, steps=3, scale=50.0):
        """Runs act(net) between backward and step; returns messages and gradients before and after it."""
        torch.manual_seed(8)
        net = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))
        seen = []
        with self.tapped(net) as (ddp, optimizer, tap, node):
            for s in range(steps):
                optimizer.zero_grad()
                (ddp(torch.randn(4, 20)) * scale).pow(2).mean().backward()
                before = [p.grad.clone() for p in net.parameters()]
                act(net, tap)
                seen.append((before, [p.grad.clone() for p in net.parameters()]))
                optimizer.step()
                tap.commit()
        return node.steps(), seen

    def replay(self, messages, seen):
        for m, (before, after) in zip(messages, seen):
            for i, (b, a) in enumerate(zip(before, after)):
                g = b.clone()
                for t in m["transforms"]:
                    if t["scope"] != "all" and i not in t["scope"]:
                        continue
                    if t["op"] == "mul":
                        g = g * torch.tensor(f32_of(t["bits"]))
                    else:
                        g = g.clamp(f32_of(t["min"]), f32_of(t["max"]))
                self.assertEqual(words(g), words(a))

    def test_clip_by_norm_coefficient_bits(self):
        messages, seen = self.loop(lambda net, tap: torch.nn.utils.clip_grad_norm_(net.parameters(), 0.37))
        self.replay(messages, seen)
        for m, (before, _) in zip(messages, seen):
            (t,) = m["transforms"]
            self.assertEqual((t["op"], t["scope"]), ("mul", "all"))
            total = torch.norm(torch.stack([torch.norm(g) for g in before]))
            self.assertLess(f32_of(t["bits"]), 1.0)
            self.assertAlmostEqual(f32_of(t["bits"]), 0.37 / (total.item() + 1e-6), places=6)

    def test_clip_that_does_nothing_multiplies_by_one(self):
        messages, seen = self.loop(lambda net, tap: torch.nn.utils.clip_grad.clip_grad_norm_(net.parameters(), 1e9))
        self.replay(messages, seen)
        self.assertEqual(messages[0]["transforms"], [{"op": "mul", "bits": "f32:3f800000", "scope": "all"}])

    def test_infinity_norm_list_and_keywords(self):
        messages, seen = self.loop(lambda net, tap: torch.nn.utils.clip_grad_norm_(
            list(net.parameters()), max_norm=0.01, norm_type=float("inf")))
        self.replay(messages, seen)
        self.assertLess(f32_of(messages[0]["transforms"][0]["bits"]), 1.0)

    def test_subset_then_value(self):
        def act(net, tap):
            torch.nn.utils.clip_grad_norm_(net[2].parameters(), 0.2)
            torch.nn.utils.clip_grad_value_(net.parameters(), 0.1)
            torch.nn.utils.clip_grad_norm_(net[0].weight, 0.3)

        messages, seen = self.loop(act)
        self.replay(messages, seen)
        self.assertEqual([t["scope"] for t in messages[0]["transforms"]], [[2, 3], "all", [0]])
        self.assertEqual(messages[0]["transforms"][1]["min"], "f32:%08x" % word_of(-0.1))

    def test_functions_imported_by_name_go_through_the_tap(self):
        messages, seen = self.loop(lambda net, tap: tap.clip_grad_norm_(net.parameters(), 0.25))
        self.replay(messages, seen)
        self.assertEqual(len(messages[0]["transforms"]), 1)
        messages, seen = self.loop(lambda net, tap: tap.clip_grad_value_(net.parameters(), clip_value=0.05))
        self.replay(messages, seen)

    def test_another_model_is_not_ours(self):
        other = nn.Linear(3, 3)
        other.weight.grad = torch.ones(3, 3)
        messages, seen = self.loop(lambda net, tap: torch.nn.utils.clip_grad_norm_(other.parameters(), 0.1))
        self.assertEqual(messages[0]["transforms"], [])

    def test_the_norm_is_returned_and_torch_is_restored(self):
        original = torch.nn.utils.clip_grad_norm_
        norms = []
        self.loop(lambda net, tap: norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)))
        self.assertTrue(all(n.item() > 0.25 for n in norms))
        self.assertIs(torch.nn.utils.clip_grad_norm_, original)
        self.assertIs(torch.nn.utils.clip_grad.clip_grad_norm_, original)


class HyperParameters(StepCase):
    def run_schedule(self, scheduler_first):
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(
            [{"params": [net.weight]}, {"params": [net.bias], "lr": 0.5, "weight_decay": 0.1}], lr=0.1, momentum=0.9)
        make = lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)  # noqa: E731
        used = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scheduler = make() if scheduler_first else None
            plain_step = type(optimizer).step
            with self.tapped(net, optimizer, scheduler=scheduler) as (ddp, _, tap, node):
                scheduler = scheduler or make()
                for _ in range(5):
                    optimizer.zero_grad()
                    ddp(torch.randn(3, 4)).sum().backward()
                    used.append([g["lr"] for g in optimizer.param_groups])
                    optimizer.step()
                    scheduler.step()
                    tap.commit()
                self.assertEqual(getattr(optimizer, "_step_count", 5), 5)  # torch 2 keeps a flag instead
            optimizer.step()  # works after close
            scheduler.step()
            self.assertIs(type(optimizer).step, plain_step)
        for m, lrs in zip(node.steps(), used):
            self.assertEqual([f64_of(g["lr"]) for g in m["groups"]], lrs)
            self.assertEqual(f64_of(m["groups"][1]["weight_decay"]), 0.1)
        self.assertEqual(len(node.steps()), 5)
        self.assertNotEqual(used[0], used[4])

    def test_scheduler_made_before_attach(self):
        self.run_schedule(True)

    def test_scheduler_made_after_attach(self):
        self.run_schedule(False)

    def test_scheduler_leaves_are_listed(self):
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        extra = {"epoch": 3, "ema": {"w": torch.zeros(2)}, "loader": object()}
        with self.tapped(net, optimizer, scheduler=scheduler, extra=extra) as (_, _, _, node):
            pass
        classes = {leaf["name"]: leaf["class"] for leaf in node.attaches[0]["inventory"]}
        self.assertEqual(classes["scheduler.last_epoch"], "side-channel")
        self.assertEqual(classes["extra.epoch"], "side-channel")
        self.assertEqual(classes["extra.ema.w"], "side-channel")
        self.assertEqual(classes["extra.loader"], "unknown")
        self.assertEqual(classes["rng.torch"], "side-channel")
        self.assertEqual(classes["optimizer.param_groups.0.lr"], "side-channel")


class Counting(StepCase):
    def test_accumulation(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            for _ in range(2):
                optimizer.zero_grad()
                with ddp.no_sync():
                    for _ in range(3):
                        ddp(torch.randn(3, 4)).sum().backward()
                ddp(torch.randn(3, 4)).sum().backward()
                optimizer.step()
                tap.commit()
            optimizer.zero_grad()
            for _ in range(2):  # without no_sync every round is reduced
                ddp(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            tap.commit()
        self.assertEqual([(m["micro_steps"], m["synced_backwards"]) for m in node.steps()], [(4, 1), (4, 1), (2, 2)])
        self.assertEqual([m["interval"][1] - m["interval"][0] for m in node.steps()], [1, 3, 2])
        self.assertTrue(all(states_of(m["param_state"], 2) == [0, 0] for m in node.steps()))

    def test_wrong_micro_step_synchronised(self):  # A3
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            ddp(torch.randn(3, 4)).sum().backward()
            with ddp.no_sync():
                ddp(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            tap.commit()
            optimizer.zero_grad(set_to_none=True)
            with ddp.no_sync():  # never synchronised at all
                ddp(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            tap.commit()
        first, second = node.steps()
        self.assertEqual(states_of(first["param_state"], 2), [2, 2])
        self.assertEqual((second["synced_backwards"], states_of(second["param_state"], 2)), (0, [2, 2]))

    def test_evaluation_and_extra_forwards_do_not_count(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            for _ in range(2):
                with torch.no_grad():
                    ddp(torch.randn(3, 4))
                net(torch.randn(1, 4))
                ddp(torch.randn(3, 4)).sum().backward()
                optimizer.step()
                tap.commit()
        self.assertEqual([(m["micro_steps"], m["synced_backwards"]) for m in node.steps()], [(1, 1), (1, 1)])

    def test_clip_before_a_later_synchronised_backward_is_void(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            with ddp.no_sync():
                ddp(torch.randn(3, 4)).sum().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            ddp(torch.randn(3, 4)).sum().backward()
            torch.nn.utils.clip_grad_value_(net.parameters(), 0.2)
            optimizer.step()
            tap.commit()
        self.assertEqual([t["op"] for t in node.steps()[0]["transforms"]], ["clamp"])

    def test_commits_without_and_with_two_optimizer_calls(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            tap.commit()  # nothing happened: ignored
            for calls in (1, 2, 1):
                optimizer.zero_grad()
                ddp(torch.randn(3, 4)).sum().backward()
                for _ in range(calls):
                    optimizer.step()
                tap.commit()
                tap.commit()
            self.assertEqual((tap.step, tap.ignored), (3, 4))
        self.assertEqual([(m["step"], m["verdict"]) for m in node.steps()],
                         [(1, "applied"), (2, "ambiguous"), (3, "applied")])

    def test_closure(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            def closure():
                optimizer.zero_grad()
                loss = ddp(torch.ones(3, 4)).sum()
                loss.backward()
                return loss
            self.assertIsNotNone(optimizer.step(closure))
            tap.commit()
        (m,) = node.steps()
        self.assertEqual((m["verdict"], m["synced_backwards"]), ("applied", 1))
        self.assertTrue(all(w == "40400000" for w in m["witness"]["0"]), m["witness"])  # every gradient is 3

    def test_an_optimizer_that_raises_is_ambiguous_and_its_error_is_the_users(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            ddp(torch.randn(3, 4)).sum().backward()
            with self.assertRaises(TypeError):
                optimizer.step(no_such_argument=1)
            tap.commit()
        self.assertEqual(node.steps()[0]["verdict"], "ambiguous")

    def test_a_closure_that_raises_moved_nothing(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            def broken():
                raise KeyError("mine")
            with self.assertRaises(KeyError):
                optimizer.step(broken)
            tap.commit()
            ddp(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            tap.commit()
        self.assertEqual([(m["step"], m["verdict"]) for m in node.steps()], [(1, "applied")])

    def test_a_value_that_cannot_be_spelled_costs_its_step_only(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            for s in range(3):
                ddp(torch.randn(3, 4)).sum().backward()
                optimizer.param_groups[0]["initial_lr"] = optimizer.param_groups[0]["lr"]
                optimizer.param_groups[0]["maximize"] = False
                optimizer.param_groups[0]["weight_decay"] = type("Odd", (float,), {"__float__": None})() if s == 1 else 0.0
                optimizer.step()
                tap.commit()
        self.assertEqual([m["step"] for m in node.steps()], [1, 3])
        self.assertEqual([m["steps"] for m in node.kind("dropped")], [[2]])


class ParameterStates(StepCase):
    def test_none_wire_stale(self):
        torch.manual_seed(3)
        net = Heads()
        index = {n: i for i, (n, _) in enumerate(net.named_parameters())}
        left, right = index["left.weight"], index["right.weight"]
        with self.tapped(net, ddp_options={"find_unused_parameters": True}) as (ddp, optimizer, tap, node):
            def step(side, clear):
                if clear is not None:
                    optimizer.zero_grad(set_to_none=clear)
                ddp(torch.randn(3, 6), side).pow(2).sum().backward()
                optimizer.step()
                tap.commit()

            step("left", True)  # right never had a gradient: none
            step("right", True)  # left was set to None: none
            step("left", False)  # right was zeroed: equals the zeros on the wire
            step("right", None)  # left kept its old gradient: stale
        states = [states_of(m["param_state"], 6) for m in node.steps()]
        self.assertEqual([s[left] for s in states], [0, 1, 0, 2])
        self.assertEqual([s[right] for s in states], [1, 0, 0, 0])
        self.assertTrue(all(s[0] == 0 for s in states))

    def test_unused_after_accumulation_is_stale(self):
        torch.manual_seed(3)
        net = Heads()
        with self.tapped(net, ddp_options={"find_unused_parameters": True}) as (ddp, optimizer, tap, node):
            with ddp.no_sync():
                ddp(torch.randn(3, 6), "left").pow(2).sum().backward()
            ddp(torch.randn(3, 6), "right").pow(2).sum().backward()
            grads = [p.grad.clone() for p in net.parameters()]
            optimizer.step()
            tap.commit()
        states = states_of(node.steps()[0]["param_state"], 6)
        # What DDP did decides: a parameter that was used in a micro-step counts as used in the reduction or as stale.
        used = [bool(g.any()) for g in grads]
        self.assertTrue(all(used))
        self.assertIn(states[2:4], ([0, 0], [2, 2]))


class TwoRanks(unittest.TestCase):
    def test_unused_parameters_that_differ_between_ranks(self):
        import jobs

        with FakeNode() as node:
            job = jobs.run("training", "heads", node.endpoint, world=2)
            self.assertEqual(job.codes, [0, 0], job.stderr)
        steps = node.steps()
        states = [states_of(m["param_state"], 6) for m in steps]
        # left: used by some rank in steps 1 to 3; right: in 1, 3 and 4.
        self.assertEqual([s[2:4] for s in states], [[0, 0], [0, 0], [0, 0], [1, 1]])
        self.assertEqual([s[4:6] for s in states], [[0, 0], [1, 1], [0, 0], [0, 0]])
        for m, grads in zip(steps, job.result["seen"]):
            for b, members in enumerate(node.layout_of(m["layout_id"])["buckets"]):
                content = [w & 0xFFFFFFFF for i, n in members for w in (grads[i] or [0] * n)]
                expected = ["%08x" % content[position(m["layout_id"], m["step"], b, j, len(content))]
                            for j in range(8)]
                self.assertEqual(m["witness"][str(b)], expected)
        # The other rank says when its collectives were, and nothing that rank 0 says.
        other = node.steps(1)
        self.assertEqual([m["interval"] for m in other], [m["interval"] for m in steps])
        self.assertEqual(sorted(other[0]), ["blobs", "counters", "interval", "kind", "rank", "seq", "step"])
        self.assertEqual(node.attaches[0]["run_nonce"], node.attaches[1]["run_nonce"])
        self.assertEqual(sorted(node.attaches[1]), ["backend", "group", "hosts", "inventory", "job", "protocol",
                                                    "rank", "run_nonce", "torch", "world"])


class Scaling(StepCase):
    def test_unscale_skip_and_clip_order(self):
        torch.manual_seed(2)
        net = nn.Linear(4, 2)
        scaler = Scaler(1536.0)
        reference = []
        with self.tapped(net, scaler=scaler) as (ddp, optimizer, tap, node):
            for s in range(4):
                optimizer.zero_grad()
                x = torch.randn(3, 4)
                if s == 1:
                    x[0, 0] = float("inf")
                scaler.scale(ddp(x).pow(2).sum()).backward()
                before = net.weight.grad.clone()
                if s == 2:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                scaler.step(optimizer)
                reference.append((before, net.weight.grad.clone()))
                scaler.update()
                tap.commit()
        messages = node.steps()
        self.assertEqual([m["verdict"] for m in messages], ["applied", "skipped", "applied", "applied"])
        self.assertEqual([len(m["transforms"]) for m in messages], [1, 0, 2, 1])
        self.assertEqual(messages[1]["witness"], {})
        for m, (before, after) in zip(messages, reference):
            if m["verdict"] == "applied":
                g = before
                for t in m["transforms"]:
                    g = g * torch.tensor(f32_of(t["bits"]))
                self.assertEqual(words(g), words(after))
        self.assertEqual(node.attaches[0]["transforms_planned"][0], "unscale_")
        self.assertNotIn("unscale_", scaler.__dict__)

    @unittest.skipIf(TORCH_2, "torch 2 has real fused optimizers on CPU")
    def test_fused_step_that_returns_early_is_skipped(self):
        net = nn.Linear(4, 2)
        with self.tapped(net, scaler=Scaler(2.0)) as (ddp, optimizer, tap, node):
            for found in (0.0, 1.0):
                ddp(torch.randn(3, 4)).sum().backward()
                optimizer.found_inf = torch.tensor(found)  # as GradScaler leaves it for fused optimizers
                optimizer.step()
                del optimizer.found_inf
                tap.commit()
            ddp(torch.randn(3, 4)).sum().backward()
            optimizer.grad_scale = torch.tensor(2.0)  # the kernel divides, out of our sight
            optimizer.step()
            tap.commit()
            del optimizer.grad_scale
        self.assertEqual([m["verdict"] for m in node.steps()], ["applied", "skipped", "ambiguous"])

    @unittest.skipUnless(TORCH_2, "torch 1 has no fused optimizer and no scaler for CPU")
    def test_fused_with_a_real_scaler(self):
        torch.manual_seed(2)
        net = nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1536.0)
        reference = []
        with self.tapped(net, optimizer, scaler=scaler) as (ddp, _, tap, node):
            for s in range(4):
                optimizer.zero_grad()
                x = torch.randn(3, 4)
                if s == 1:
                    x[0, 0] = float("inf")
                scaler.scale(ddp(x).pow(2).sum()).backward()
                before = net.weight.grad.clone()
                if s != 3:  # without it the kernel divides, out of our sight
                    scaler.unscale_(optimizer)
                reference.append((before, net.weight.grad.clone()))
                scaler.step(optimizer)
                scaler.update()
                tap.commit()
        messages = node.steps()
        self.assertEqual([m["verdict"] for m in messages], ["applied", "skipped", "applied", "ambiguous"])
        for m, (before, after) in zip(messages, reference):
            if m["verdict"] == "applied":
                (t,) = m["transforms"]
                self.assertEqual(words(before * torch.tensor(f32_of(t["bits"]))), words(after))
        self.assertEqual(node.attaches[0]["optimizer"]["groups"][0]["fused"], "b:1")


if __name__ == "__main__":
    unittest.main()
