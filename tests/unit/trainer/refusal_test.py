"""What is refused at attach, each by name; training goes on untapped in every case."""

import time
import types
import unittest

import single
import torch
import torch.nn as nn
from fake_node import FakeNode
from gradtap import admission
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


class Custom(torch.optim.SGD):
    pass


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        single.ensure_group()

    def refused(self, ddp, optimizer, *words, **options):
        with FakeNode() as node:
            tap = single.gradtap.attach(ddp, optimizer, endpoint=node.endpoint, job="unit", **options)
            self.assertFalse(tap.enabled)
            for word in words:
                self.assertIn(word, tap.reason)
            self.assertTrue(any("untapped" in line for line in single.lines[-3:]))
            self.assertEqual(node.attaches, {})
            tap.commit()
            p = next(iter(optimizer.param_groups[0]["params"]))
            p.grad = torch.ones_like(p)
            tap.clip_grad_norm_([p], 0.5)
            tap.close()

    def ddp(self, net, **options):
        return single.DDP(net, **options)

    def sgd(self, net):
        return torch.optim.SGD(net.parameters(), lr=0.1)

    def test_not_ddp(self):
        net = nn.Linear(3, 3)
        self.refused(net, self.sgd(net), "Linear", "DistributedDataParallel")

    def test_communication_hook(self):
        net = nn.Linear(3, 3)
        ddp = self.ddp(net)
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        self.refused(ddp, self.sgd(net), "allreduce_hook")

    def test_optimizers(self):
        net = nn.Linear(3, 3)
        for optimizer in (Custom(net.parameters(), lr=0.1), torch.optim.RMSprop(net.parameters(), lr=0.1)):
            self.refused(self.ddp(net), optimizer, type(optimizer).__name__)

    def test_zero_redundancy(self):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        net = nn.Linear(3, 3)
        ddp = self.ddp(net)
        self.refused(ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1),
                     "ZeroRedundancyOptimizer")

    def test_dtypes(self):
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double())
        self.refused(self.ddp(net), self.sgd(net), "1.weight", "float64")
        # gloo cannot broadcast these, so DistributedDataParallel itself cannot be built: ask the rule directly.
        for dtype in (torch.complex64, torch.bfloat16):
            net = nn.Module()
            net.register_parameter("wave", nn.Parameter(torch.zeros(3, dtype=dtype)))
            stand_in = types.SimpleNamespace(module=net, parameters_to_ignore=[])
            self.assertIn("wave has dtype " + str(dtype).replace("torch.", ""), admission._parameters(stand_in))

    def test_sparse(self):
        net = nn.Sequential(nn.Embedding(5, 3, sparse=True))
        self.refused(self.ddp(net), self.sgd(net), "sparse", "0")

    def test_nested_ddp(self):
        net = nn.Sequential(nn.Linear(3, 3), self.ddp(nn.Linear(3, 3)))
        self.refused(self.ddp(net), self.sgd(net), "inside the model", "(1)")

    def test_shared_memory(self):
        net = nn.Linear(4, 4)
        net.register_parameter("view", nn.Parameter(net.weight.detach()[1]))
        self.refused(self.ddp(net), self.sgd(net), "weight", "view", "share memory")

    def test_not_dense(self):
        net = nn.Module()
        net.register_parameter("gappy", nn.Parameter(torch.zeros(4, 4)[:, :2]))
        self.refused(self.ddp(net), self.sgd(net), "gappy", "densely")

    def test_tensor_hyper_parameters(self):
        net = nn.Linear(3, 3)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        optimizer.param_groups[0]["betas"] = (torch.tensor(0.9), 0.999)
        self.refused(self.ddp(net), optimizer, "betas")

    def test_ignored_parameter(self):
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        single.DDP._set_params_and_buffers_to_ignore_for_model(net, ["1.weight"])
        self.refused(self.ddp(net), self.sgd(net), "1.weight", "ignored")

    def test_join(self):
        net = nn.Linear(3, 3)
        ddp = self.ddp(net)
        ddp._join_config = ddp._join_config._replace(enable=True)
        self.refused(ddp, self.sgd(net), "join")

    def test_late_attach(self):
        net = nn.Linear(3, 3)
        ddp, optimizer = self.ddp(net), self.sgd(net)
        for _ in range(2):
            ddp(torch.randn(2, 3)).sum().backward()
            optimizer.step()
        self.refused(ddp, optimizer, "after the first steps")

    def test_bad_endpoint_is_a_reason_not_an_exception(self):
        net = nn.Linear(3, 3)
        tap = single.gradtap.attach(self.ddp(net), self.sgd(net), endpoint="ftp://x", job="unit")
        self.assertIn("ftp://x", tap.reason)

    def test_a_second_tap(self):
        net, other = nn.Linear(3, 3), nn.Linear(3, 3)
        with FakeNode() as node:
            tap = single.attached(node, self.ddp(net), self.sgd(net))
            self.refused(self.ddp(other), self.sgd(other), "another tap")
            tap.close()

    def test_hook_registered_after_attach_turns_the_tap_off(self):
        net = nn.Linear(3, 3)
        ddp, optimizer = self.ddp(net), self.sgd(net)
        with FakeNode() as node:
            tap = single.attached(node, ddp, optimizer)
            ddp.register_comm_hook(None, default_hooks.allreduce_hook)
            ddp(torch.randn(2, 3)).sum().backward()
            optimizer.step()
            tap.commit()
            self.assertFalse(tap.enabled)
            self.assertIn("allreduce_hook", tap.reason)
            tap.close()
            self.assertEqual(node.steps(), [])

    def test_parameter_group_added_after_attach_turns_the_tap_off(self):
        net, more = nn.Linear(3, 3), nn.Parameter(torch.zeros(2))
        ddp, optimizer = self.ddp(net), self.sgd(net)
        with FakeNode() as node:
            tap = single.attached(node, ddp, optimizer)
            for s in range(3):
                ddp(torch.randn(2, 3)).sum().backward()
                if s == 2:
                    time.sleep(0.2)
                    optimizer.add_param_group({"params": [more]})
                optimizer.step()
                tap.commit()
            self.assertIn("groups changed", tap.reason)
            time.sleep(0.3)
            self.assertEqual([m["step"] for m in node.steps()], [1, 2])
            self.assertIn("groups changed", next(iter(node.detached.values()))["reason"])
            tap.close()

    def test_trainable_parameters_of_another_optimizer_are_unknown_by_name(self):
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        with FakeNode() as node:
            single.attached(node, self.ddp(net), torch.optim.SGD(net[0].parameters(), lr=0.1)).close()
            classes = {leaf["name"]: leaf["class"] for leaf in node.attaches[0]["inventory"]}
            self.assertEqual(classes["model.1.weight"], "unknown")
            self.assertEqual([p["group"] for p in node.attaches[0]["parameters"]], [0, 0, -1, -1])

    def test_refused_by_the_node(self):
        net = nn.Linear(3, 3)
        with FakeNode(mode="refuse") as node:
            tap = single.gradtap.attach(self.ddp(net), self.sgd(net), endpoint=node.endpoint, job="unit")
            self.assertFalse(tap.enabled)
            self.assertIn("no recipe matches", tap.reason)


if __name__ == "__main__":
    unittest.main()
