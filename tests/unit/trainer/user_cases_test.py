"""User cases of docs/user-cases.md on the side of the trainer: tests are named after their cases."""

import contextlib
import copy
import json
import time
import unittest
import warnings

import jobs
import single
import torch
import torch.nn as nn
from fake_node import FakeNode
from points import Point, PointServer, safetensors, side_digest
from single import f64_of, states_of, words
from step_test import Scaler, position
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

gradtap = single.gradtap


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        single.ensure_group()

    @contextlib.contextmanager
    def tapped(self, net, optimizer=None, ddp_options=None, reason=None, **options):
        ddp = single.DDP(net, **(ddp_options or {}))
        optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        with FakeNode() as node:
            tap = single.attached(node, ddp, optimizer, **options)
            try:
                yield ddp, optimizer, tap, node
            finally:
                tap.close()
            self.assertEqual(tap.errors, 0)
            if reason is None:
                self.assertIsNone(tap.reason)
            else:
                self.assertIn(reason, tap.reason)

    def untapped(self, ddp, optimizer, *words_, **options):
        """Refused at attach with these words, nothing reaches the node, and training goes on."""
        with FakeNode() as node:
            tap = gradtap.attach(ddp, optimizer, endpoint=node.endpoint, job="unit", **options)
            self.assertFalse(tap.enabled)
            for word in words_:
                self.assertIn(word, tap.reason)
            self.assertEqual(node.attaches, {})
            tap.commit()
            tap.close()

    def seen(self, node, m, net):
        """The witness of message m is what the parameters' gradients hold now."""
        gradients = [words(p.grad) for p in net.parameters()]
        for b, members in enumerate(node.layout_of(m["layout_id"])["buckets"]):
            content = [w for i, _ in members for w in gradients[i]]
            self.assertEqual(m["witness"][str(b)], ["%08x" % content[position(m["layout_id"], m["step"], b, j, len(content))]
                                                    for j in range(8)])


class Gradients(Case):
    def test_A6_no_sync_around_backward_only_reduces_every_pass_and_is_counted(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            for _ in range(3):
                out = ddp(torch.randn(3, 4)).sum()  # outside: the decision to reduce is taken here
                with ddp.no_sync():
                    out.backward()
            optimizer.step()
            tap.commit()
        (m,) = node.steps()
        self.assertEqual((m["micro_steps"], m["synced_backwards"], states_of(m["param_state"], 2)), (3, 3, [0, 0]))
        self.assertEqual(m["interval"][1] - m["interval"][0], 3 + 2)  # and the two broadcasts of the rebuild

    def test_A7_A10_A11_A12_every_communication_hook_is_refused_by_name(self):
        # A hook may leave out the division, send another type, or send factors instead of gradients.
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=1)
        for hook, given in ((default_hooks.allreduce_hook, None), (default_hooks.fp16_compress_hook, None),
                            (powerSGD_hook.powerSGD_hook, state)):
            net = nn.Linear(4, 2)
            ddp = single.DDP(net)
            ddp.register_comm_hook(given, hook)
            self.untapped(ddp, torch.optim.SGD(net.parameters(), lr=0.1), "communication hook", hook.__name__)

    def test_A14_complex_parameters_are_refused_by_name(self):
        import types
        net = nn.Module()
        net.register_parameter("wave", nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
        # gloo cannot broadcast complex numbers, so DistributedDataParallel cannot be built: the rule is asked itself.
        self.assertEqual(gradtap.tap.admission._parameters(types.SimpleNamespace(module=net, parameters_to_ignore=[])),
                         "parameter wave has dtype complex64, only float32 is supported")

    def test_A15_nothing_to_train_is_torchs_error_then_ours(self):
        net = nn.Linear(4, 2).requires_grad_(False)
        with self.assertRaises(RuntimeError):
            single.DDP(net)
        self.untapped(net, torch.optim.SGD(net.parameters(), lr=0.1), "Linear", "DistributedDataParallel")

    def test_A19_clipping_by_group_and_by_tensor_is_followed_with_its_scope(self):
        torch.manual_seed(5)
        net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
        first = list(net[0].parameters())
        with self.tapped(net) as (ddp, optimizer, tap, node):
            ddp(torch.randn(4, 6) * 9).pow(2).sum().backward()
            before = [p.grad.clone() for p in net.parameters()]
            torch.nn.utils.clip_grad_norm_(first, 0.5)
            torch.nn.utils.clip_grad_norm_(net[1].bias, 0.25)
            after = [p.grad.clone() for p in net.parameters()]
            optimizer.step()
            tap.commit()
        (m,) = node.steps()
        self.assertEqual([t["scope"] for t in m["transforms"]], [[0, 1], [3]])
        for t in m["transforms"]:
            for i in t["scope"]:
                before[i] = before[i] * torch.tensor(single.f32_of(t["bits"]))
        self.assertEqual([words(g) for g in before], [words(g) for g in after])

    def test_A20_the_type_on_the_wire_is_told_and_another_is_refused(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (_, _, _, node):
            self.assertEqual({p["dtype"] for p in node.attaches[0]["parameters"]}, {"float32"})
            self.assertEqual(node.attaches[0]["layout"]["dtype"], "float32")
        net = nn.Linear(4, 2).double()
        self.untapped(single.DDP(net), torch.optim.SGD(net.parameters(), lr=0.1), "weight", "float64")

    def test_A21_an_optimizer_with_a_rule_of_its_own_is_refused_by_name(self):
        class Muon(torch.optim.SGD):
            pass

        net = nn.Linear(4, 2)
        self.untapped(single.DDP(net), Muon(net.parameters(), lr=0.1), "Muon", "SGD, Adam or AdamW")

    def test_A22_gradients_cleared_before_the_last_backward(self):
        net = nn.Linear(4, 2)
        with self.tapped(net) as (ddp, optimizer, tap, node):
            with ddp.no_sync():
                ddp(torch.randn(3, 4)).sum().backward()
            optimizer.zero_grad()
            ddp(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            tap.commit()
            self.seen(node, self.only(tap, node), net)  # what was reduced, not what was meant

    def only(self, tap, node):
        tap._sender.close(5, tap.step)
        (m,) = node.steps()
        return m

    def test_F2_unfreezing_after_attach_turns_the_tap_off_by_name(self):
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        net[0].weight.requires_grad_(False)
        with self.tapped(net, torch.optim.SGD(net.parameters(), lr=0.1),
                         reason="parameter 0.weight was frozen at attach and is trained now") as (ddp, optimizer, tap, node):
            for s in range(4):
                if s == 2:
                    net[0].weight.requires_grad_(True)
                optimizer.zero_grad()
                ddp(torch.randn(3, 4)).sum().backward()
                optimizer.step()
                tap.commit()
            deadline = time.monotonic() + 10
            while not node.detached and time.monotonic() < deadline:
                time.sleep(0.02)
        # Nothing was sent for a step that the replica would have got wrong.
        self.assertLessEqual(set(m["step"] for m in node.steps()), {1, 2})
        self.assertIn("0.weight", next(iter(node.detached.values()))["reason"])


class Values(Case):
    def test_C14_a_learning_rate_that_is_a_tensor_keeps_its_type(self):
        for dtype, spelling in ((torch.float32, "f32t:"), (torch.float64, "f64:")):
            net = nn.Linear(4, 2)
            optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(1e-3, dtype=dtype), foreach=False)
            with self.tapped(net, optimizer) as (ddp, _, tap, node):
                ddp(torch.randn(3, 4)).sum().backward()
                optimizer.step()
                tap.commit()
            text = node.steps()[0]["groups"][0]["lr"]
            self.assertTrue(text.startswith(spelling), text)
        self.assertEqual(f64_of(text), 1e-3)

    def test_C6_objects_in_each_others_place_are_refused(self):
        net = nn.Linear(4, 2)
        ddp, optimizer = single.DDP(net), torch.optim.SGD(net.parameters(), lr=0.1)
        self.untapped(ddp, optimizer, "scheduler=", "SGD", "no scheduler", scheduler=optimizer)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        self.untapped(ddp, optimizer, "scaler=", "StepLR", "no scaler", scaler=schedule)
        self.untapped(ddp, schedule, "StepLR")

    def test_D7_D8_a_skipped_step_is_told_and_the_schedule_goes_by_value(self):
        torch.manual_seed(4)
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        scaler, used = Scaler(1024.0), []
        with warnings.catch_warnings(), self.tapped(net, optimizer, scheduler=schedule, scaler=scaler) as (ddp, _, tap, node):
            warnings.simplefilter("ignore")  # torch: the schedule went before the optimizer
            for s in range(4):
                optimizer.zero_grad()
                x = torch.randn(3, 4)
                x[0, 0] = float("inf") if s == 1 else 1.0
                scaler.scale(ddp(x).sum()).backward()
                used.append(optimizer.param_groups[0]["lr"])
                scaler.step(optimizer)
                scaler.update()
                schedule.step()  # also after the skipped one: wrong in the script, and followed all the same
                tap.commit()
        self.assertEqual([m["verdict"] for m in node.steps()], ["applied", "skipped", "applied", "applied"])
        applied = [(m["step"], f64_of(m["groups"][0]["lr"])) for m in node.steps() if m["verdict"] == "applied"]
        self.assertEqual(applied, [(s, used[s - 1]) for s in (1, 3, 4)])

    def test_D10_a_schedule_that_was_not_given_is_said(self):
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for given, said in ((None, True), (schedule, False)):
            del single.lines[:]
            with self.tapped(net, optimizer, scheduler=given):
                self.assertEqual(any("not covered  a learning-rate schedule" in line for line in single.lines), said)


class Data:
    """Three batches an epoch, the epoch counted when the next one begins."""

    def __init__(self):
        self.epoch, self.place, self.generator = 0, 0, torch.Generator().manual_seed(9)

    def next(self):
        if self.place == 3:
            self.epoch, self.place = self.epoch + 1, 0
        self.place += 1
        return torch.randn(4, 20, generator=self.generator)

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place, "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.epoch, self.place = state["epoch"], state["place"]
        self.generator.set_state(state["generator"])


class Average:
    """An exponential moving average of the parameters, as scripts keep it."""

    def __init__(self, net):
        self.shadow = {n: p.detach().clone() for n, p in net.named_parameters()}

    def update(self, net):
        for n, p in net.named_parameters():
            self.shadow[n].mul_(0.9).add_(p.detach(), alpha=0.1)

    def state_dict(self):
        return self.shadow

    def load_state_dict(self, state):
        self.shadow = {n: t.clone() for n, t in state.items()}


class Growing(Scaler):
    """With a growth tracker, as torch's has."""

    def __init__(self, scale):
        super().__init__(scale)
        self.tracker = 0

    def state_dict(self):
        return {"scale": self.get_scale(), "growth_tracker": self.tracker}

    def load_state_dict(self, state):
        self._scale.fill_(state["scale"])
        self.tracker = state["growth_tracker"]

    def update(self):
        super().update()
        self.tracker = 0 if self._found else self.tracker + 1
        if self.tracker == 3:
            self.tracker, self._scale = 0, self._scale * 2


class Odd(nn.Module):
    """Buffers of every kind, batch norm, a parameter without elements, one that is frozen."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 20)
        self.norm = nn.BatchNorm1d(20)
        self.last = nn.Linear(20, 3)
        self.empty = nn.Parameter(torch.zeros(0))
        self.frozen = nn.Parameter(torch.randn(20), requires_grad=False)

    def add_buffers(self):
        """After DistributedDataParallel was made: gloo cannot broadcast most of them."""
        for n, dtype in enumerate((torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.uint8, torch.int64,
                                   torch.bool, torch.complex64)):
            self.register_buffer("buffer%d" % n, torch.arange(5).to(dtype))

    def forward(self, x):
        self.buffer0.add_(1)
        self.buffer7.mul_(1j)
        return self.last(torch.relu(self.norm(self.first(x)) + self.frozen)) + self.empty.sum()


class Job:
    def __init__(self, seed, optimizer=torch.optim.AdamW, **options):
        torch.manual_seed(seed)
        self.net = Odd()
        if seed != 1:
            self.net.frozen.data.zero_()  # small ones come from the point
        self.ddp = single.DDP(self.net, broadcast_buffers=False)
        self.net.add_buffers()
        self.optimizer = optimizer([p for p in self.net.parameters() if p.requires_grad], lr=0.01, **options)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.02, total_steps=40, cycle_momentum=False)
        self.scaler, self.data, self.average = Growing(256.0 * seed), Data(), Average(self.net)

    def things(self):
        return {"scheduler": self.schedule, "scaler": self.scaler, "extra": {"data": self.data, "ema": self.average}}

    def restore(self, source, **more):
        return gradtap.restore(source, "unit", **dict(dict(self.things(), model=self.net, optimizer=self.optimizer,
                                                           timeout_ms=5000), **more))

    def warmup(self):
        self.ddp(torch.ones(4, 20)).sum().backward()

    def step(self, s):
        self.optimizer.zero_grad()
        loss = self.ddp(self.data.next()).pow(2).mean() + torch.rand(1).item()
        self.scaler.scale(loss * (float("inf") if s == 5 else 1.0)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update(self.net)

    def kinds(self):
        return gradtap.tap.hyper.kinds_of(type(self.optimizer).__name__, self.optimizer.param_groups)

    def state(self):
        """As points.Point takes it."""
        found = []
        for name, p in self.net.named_parameters():
            if p.requires_grad:
                s = self.optimizer.state.get(p, {})
                arrays = {"param": p.detach().clone().numpy()}
                arrays.update((k, s[k].clone().numpy() if k in s and p.numel() else None) for k in self.kinds())
                found.append((name, list(p.shape), arrays, int(s.get("step", 0)) if p.numel() else 0))
        return found

    def everything(self):
        plain = lambda t: (str(t.dtype), t.detach().clone().view(torch.uint8 if t.dim() else t.dtype).tolist()
                           if t.dtype != torch.bool and t.dim() and t.numel() else t.tolist())
        state = {n: {k: plain(v) if isinstance(v, torch.Tensor) else v for k, v in self.optimizer.state.get(p, {}).items()}
                 for n, p in self.net.named_parameters()}
        return {"tensors": {n: plain(t) for n, t in self.net.state_dict().items()}, "optimizer": state,
                "groups": [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups],
                "schedule": {k: v for k, v in self.schedule.state_dict().items() if k != "anneal_func"},
                "scaler": self.scaler.state_dict(), "epoch": self.data.epoch, "place": self.data.place,
                "data": self.data.generator.get_state().tolist(), "rng": torch.get_rng_state().tolist(),
                "ema": {n: plain(t) for n, t in self.average.shadow.items()}}


class Restarts(Case):
    def run_of(self, job, first, last, resume=None):
        """Steps first..last, tapped; returns the point of the last one."""
        with FakeNode() as node:
            tap = single.attached(node, job.ddp, job.optimizer, resume_from=resume, **job.things())
            for s in range(first, last + 1):
                job.step(s)
                tap.commit()
            tap.close()
            self.assertEqual((tap.errors, tap.reason), (0, None))
        return self.point_of(node, job, last)

    def point_of(self, node, job, step, **more):
        (m,) = [m for m in node.steps() if m["step"] == step]
        self.assertNotIn("blobs_missing", m)
        blobs = {name: node.blob(m, name) for name in m["blobs"]}
        return Point(1, step, 1, job.state(), {0: (json.dumps(m).encode(), blobs)}, node.layout_of(m["next_layout_id"]),
                     optimizer=type(job.optimizer).__name__, **more)

    def refused(self, name, point, *words_, **options):
        job = options.pop("job", None) or Job(2)
        before = job.everything()
        with PointServer([point] if isinstance(point, Point) else point) as server:
            options.pop("prepare", lambda server: None)(server)
            with self.assertRaises(gradtap.RestoreError) as caught:
                job.restore(server.endpoint, **options)
        self.assertEqual(caught.exception.name, name, str(caught.exception))
        for word in words_:
            self.assertIn(word, str(caught.exception))
        self.assertEqual(job.everything(), before)

    def test_C1_C11_C12_C16_C20_D1_D9_D12_D14_E1_E2_E3_E4_E7_H1_H3_H5_restarts_equal_one_run(self):
        whole, restarts = Job(1), 8
        torch.manual_seed(77)
        point = self.run_of(whole, 1, 1)
        torch_state = torch.get_rng_state()
        ends = {}
        for s in range(2, restarts + 2):
            whole.step(s)
            ends[s] = whole.everything()
        torch.set_rng_state(torch_state)
        for s in range(2, restarts + 2):  # over the end of an epoch (3, 6), a skipped step (5) and growth of the scale
            job = Job(s)
            with PointServer([point]) as server:
                restored = job.restore(server.endpoint)
                torch.manual_seed(s)
                restored.start(job.ddp, job.warmup)
            self.assertEqual(restored.step, s - 1)
            point = self.run_of(job, s, s, restored)
            got = job.everything()
            for part in got:
                self.assertEqual(got[part], ends[s][part], "%s after step %d" % (part, s))
        self.assertEqual(got["optimizer"]["empty"]["step"][1], restarts)  # of nine steps one was skipped

    def test_C3_C5_C7_C9_what_differs_is_named_with_tensor_and_field(self):
        job = Job(1)
        point = self.run_of(job, 1, 2)
        self.refused("STATE_MISMATCH", point, "other states", "max_exp_avg_sq", job=Job(2, amsgrad=True))
        other = Job(1, amsgrad=True)
        self.refused("STATE_MISMATCH", self.run_of(other, 1, 2), "first.bias#max_exp_avg_sq", job=Job(2))
        frozen = Job(2)
        frozen.net.last.bias.requires_grad_(False)
        self.refused("STATE_MISMATCH", point, "last.bias is trained in the point and frozen here", job=frozen)
        thawed = Job(2)
        thawed.net.frozen.requires_grad_(True)
        self.refused("STATE_MISMATCH", point, "frozen is in this model, not in the point", job=thawed)
        for lost in ("scheduler", "scaler", "data", "user.ema"):
            side = copy.deepcopy(point)
            blobs = {n: d for n, d in self.blobs_of(point).items() if n != lost}
            side = self.with_blobs(side, blobs)
            self.refused("SIDE_STATE_MISSING", side, lost.replace("user.", ""))

    def blobs_of(self, point):
        data = point.sides[0]
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__")
        return {n: data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]] for n, e in header.items()}

    def with_blobs(self, point, blobs):
        data = point.sides[0]
        size = int.from_bytes(data[:8], "little")
        message = json.loads(json.loads(data[8:8 + size])["__metadata__"]["message"])
        message["blobs"] = {n: e for n, e in message["blobs"].items() if n in blobs}
        text = json.dumps(message).encode()
        point.record["ranks"] = [{"rank": 0, "digest": side_digest(0, text, blobs)}]
        point.sides[0] = safetensors([(n, "U8", [len(d)], d) for n, d in sorted(blobs.items())],
                                            {"step": point.step, "lineage": 1, "rank": 0, "message": text.decode()})
        return point

    def test_C6_the_state_of_another_class_is_refused_by_its_fields(self):
        job = Job(1)
        point = self.run_of(job, 1, 1)
        other = Job(2)
        other.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(other.optimizer, 40)
        self.refused("STATE_MISMATCH", point, "scheduler in the point has other fields", "T_max", job=other)
        blobs = self.blobs_of(point)
        blobs["scheduler"], blobs["scaler"] = blobs["scaler"], blobs["scheduler"]
        self.refused("NO_VALID_POINT", self.with_blobs(copy.deepcopy(point), blobs), "DIGEST_MISMATCH: side state scaler")

    def test_E5_nothing_is_resumed_from_weights_only(self):
        point = self.run_of(Job(1), 1, 2)
        size = int.from_bytes(point.state[:8], "little")
        header, data = json.loads(point.state[8:8 + size]), point.state[8 + size:]
        header["__metadata__"]["contents"] = "weights-only"
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        point.state = len(text).to_bytes(8, "little") + text + data
        self.refused("POINT_INCOMPLETE", point, "expected full, found weights-only", step=2)

    def test_C10_C19_a_model_that_is_not_the_restored_one_is_not_tapped(self):
        job = Job(1)
        point = self.run_of(job, 1, 3)
        for change, fits in ((lambda j: None, True), (lambda j: j.net.last.weight.data[0, 0].add_(1e-3), False),
                             (lambda j: j.optimizer.state[j.net.last.bias]["exp_avg_sq"].mul_(2), False),
                             (lambda j: j.optimizer.state[j.net.last.bias]["step"].add_(1), False)):
            again = Job(2)
            with PointServer([point]) as server:
                restored = again.restore(server.endpoint).start(again.ddp, again.warmup)
            change(again)
            with FakeNode() as node:
                tap = gradtap.attach(again.ddp, again.optimizer, endpoint=node.endpoint, job="unit", resume_from=restored,
                                     **again.things())
                self.assertEqual((tap.enabled, bool(node.attaches)), (fits, fits))
                if not fits:
                    self.assertIn("not those of the restored point", tap.reason)
                tap.close()

    def test_I17_hostile_numbers_in_a_list_of_points(self):
        point = self.run_of(Job(1), 1, 2)
        for bad in ({"step": 4160813071}, {"step": -1}, {"step": 1e300}, {"lineage": "x"}, {"step": None}, {"lineage": -5}):
            class Listed(PointServer):
                def answer(self, path, bad=bad):
                    status, body = super().answer(path)
                    if path.endswith("/points"):
                        body["points"].insert(0, dict(body["points"][0], **bad))
                        body["restorable"].insert(0, {k: body["points"][0].get(k) for k in ("lineage", "step")})
                    return status, body

            job = Job(2)
            with Listed([point]) as server:
                self.assertEqual(job.restore(server.endpoint).step, 2, bad)


    def test_K9_where_the_time_of_a_restore_went_is_said(self):
        point = self.run_of(Job(1), 1, 2)
        damaged = copy.deepcopy(point)
        damaged.step = damaged.entry["step"] = damaged.record["step"] = 3

        class Slow(PointServer):
            def answer(self, path):
                time.sleep(0.3 if "/state" in path else 0.0)
                return super().answer(path)

        del single.lines[:]
        with Slow([point, damaged]) as server:
            restored = Job(2).restore(server.endpoint)
        self.assertEqual(restored.step, 2)
        self.assertEqual(sorted(restored.seconds), ["check", "list", "read", "set"])
        self.assertGreater(restored.seconds["read"], 0.6)  # the candidate that was passed over counts too
        self.assertLess(restored.seconds["set"], restored.seconds["read"])
        said = "".join(single.lines)
        self.assertIn("step 3 passed over", said)
        self.assertRegex(said, r"restored: lineage 1, step 2; list \d+\.\d s, read \d+\.\d s, check \d+\.\d s, set \d")

    def test_G5_the_peak_memory_of_a_restore_is_twice_the_state(self):
        torch.manual_seed(1)
        net = nn.Sequential(*[nn.Linear(1000, 1000, bias=False) for _ in range(4)])
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        state = [(n, list(p.shape), {k: p.detach().clone().numpy() for k in ("param", "exp_avg", "exp_avg_sq")}, 0)
                 for n, p in net.named_parameters()]
        point = Point(1, 0, 1, state, {0: (b"", {})}, None)
        size = len(point.state)

        def kib(field):
            with open("/proc/self/status") as f:
                return int([line for line in f if line.startswith(field)][0].split()[1])

        with PointServer([point]) as server:
            try:
                with open("/proc/self/clear_refs", "w") as f:
                    f.write("5")  # the peak begins anew
            except OSError:
                self.skipTest("SKIPPED: the peak of memory cannot be reset here")
            before = kib("VmRSS:")
            gradtap.restore(server.endpoint, "unit", model=net, optimizer=optimizer, timeout_ms=20000)
            grown = (kib("VmHWM:") - before) * 1024
        self.assertEqual(words(optimizer.state[net[3].weight]["exp_avg"])[:100], words(net[3].weight)[:100])
        # The moments are new, the file is mapped (and may be dropped by the kernel); nothing else grows with the state.
        self.assertLess(grown, 2 * size + (24 << 20))
        self.assertGreater(grown, size // 2)


class NoCollectives(Case):
    def test_J16_K3_the_tap_issues_no_collective_of_its_own(self):
        def counted(tapped):
            torch.manual_seed(3)
            net = nn.Linear(4, 2)
            ddp, optimizer = single.DDP(net), torch.optim.SGD(net.parameters(), lr=0.1)
            before = single.dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()
            with FakeNode() as node:
                tap = single.attached(node, ddp, optimizer) if tapped else None
                for _ in range(4):
                    ddp(torch.randn(3, 4)).sum().backward()
                    optimizer.step()
                    if tap:
                        tap.commit()
                if tap:
                    tap.close()
            return single.dist.distributed_c10d._get_default_group()._get_sequence_number_for_group() - before

        self.assertEqual(counted(True), counted(False))
        self.assertGreater(counted(False), 0)


class TwoRanks(unittest.TestCase):
    def test_A17_A18_C8_K2_ranks_that_differ_from_rank_0_are_refused_by_name(self):
        with FakeNode() as node:
            job = jobs.run("user_case_ranks", "differing", node.endpoint, world=2)
        self.assertEqual(job.codes, [0, 0], job.stderr)
        said = {name: text for name, text in (line.split("=", 1) for line in job.stderr[1].splitlines() if "=" in line
                                              and line.startswith("case "))}
        self.assertIn("not the whole job", said["case group"])
        self.assertIn("rank 1 differs from rank 0 in its step: 7 there, 0 here", said["case step"])
        self.assertIn("lr of parameter group 0", said["case lr"])
        self.assertIn("in its parameters", said["case order"])
        self.assertEqual(said["case same"], "in force")


if __name__ == "__main__":
    unittest.main()
