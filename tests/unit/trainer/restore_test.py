"""A job that is stopped, restored in new processes and continued equals the one that ran through: bit for bit. Real ranks
over gloo; the points are written by the test, the side state is what the ranks sent."""

import json
import os
import shutil
import tempfile
import unittest

import jobs
import torch
from fake_node import FakeNode
from points import Point, PointServer


class Run:
    """One job that ran through, and the points along its way."""

    def __init__(self, world, steps, dump_at, **args):
        self.world, self.steps, self.args = world, steps, args
        self.folder = tempfile.mkdtemp()
        self.node = FakeNode()
        job = jobs.run("resuming", "through", self.node.endpoint, world=world, steps=steps, dump_at=dump_at,
                       folder=self.folder, name="through", **args)
        assert job.codes == [0] * world, job.stderr
        self.node.close()
        self.through = self.results("through")

    def results(self, name):
        found = []
        for rank in range(self.world):
            with open(os.path.join(self.folder, "%s.%d" % (name, rank))) as f:
                found.append(json.load(f))
        return found

    def close(self):
        shutil.rmtree(self.folder)

    def message(self, rank, step):
        return [m for m in self.node.steps(rank) if m["step"] == step][0]

    def point(self, step, lineage=1):
        state = [(name, shape, {k: None if v is None else v.numpy() for k, v in kinds.items()}, counter)
                 for name, shape, kinds, counter in torch.load(os.path.join(self.folder, "state.%d" % step))]
        sides = {}
        for rank in range(self.world):
            if step == 0:
                sides[rank] = (b"", {})
                continue
            m = self.message(rank, step)
            sides[rank] = (json.dumps(m).encode(), {name: self.node.blob(m, name) for name in m["blobs"]})
        layout = self.node.attaches[0]["layout"] if step == 0 else \
            self.node.layout_of(self.message(0, step)["next_layout_id"])
        return Point(lineage, step, self.world, state, sides, layout)

    def resume(self, points, endpoint="", name="resumed", during=None, **args):
        with PointServer(points) as server:
            job = jobs.run("resuming", "resumed", endpoint, world=self.world, steps=self.steps, folder=self.folder,
                           name=name, source=server.endpoint, during=during, **dict(self.args, **args))
            # No rank read a point that rank 0 did not hold, and nothing is held any more.
            assert server.unheld == [] and server.held == {}, (server.unheld, server.held, job.stderr)
            return job


class Exact(unittest.TestCase):
    def equal(self, run, step, **args):
        job = run.resume([run.point(step)], **args)
        self.assertEqual(job.codes, [0] * run.world, job.stderr)
        results = run.results("resumed")
        for rank, (through, resumed) in enumerate(zip(run.through, results)):
            self.assertEqual(resumed["step"], step)
            self.assertEqual(resumed["losses"], through["losses"][step:], "rank %d, from step %d" % (rank, step))
            self.assertEqual(resumed["ending"], through["ending"], "rank %d, from step %d" % (rank, step))
        return results

    def run_of(self, *args, **more):
        run = Run(*args, **more)
        self.addCleanup(run.close)
        return run

    def test_two_ranks_from_the_first_steps_on(self):
        run = self.run_of(2, 12, [0, 1, 2])
        self.assertEqual(self.equal(run, 0, same_seeds=True)[0]["warmed"], 0)
        self.assertEqual(self.equal(run, 1)[0]["warmed"], 2)
        with FakeNode() as node:
            results = self.equal(run, 2, endpoint=node.endpoint)
            self.assertEqual([r["tapped"] for r in results], [True, True])
            self.assertEqual([m["step"] for m in node.steps(1)], list(range(3, 13)))
            through = {m["step"]: m for m in run.node.steps(1)}
            for m in node.steps(1):  # the resumed job goes on to send what the other one sent
                for name in through[m["step"]]["blobs"]:
                    self.assertEqual(node.blob(m, name), run.node.blob(through[m["step"]], name), (m["step"], name))
        self.one_rank_fails(run)

    def one_rank_fails(self, run):
        def failing(points, **args):
            with PointServer(points) as server:
                job = jobs.run("resuming", "failing", "", world=2, folder=run.folder, source=server.endpoint, **args)
            self.assertEqual(job.codes, [0, 0], job.stderr)
            found = []
            for rank in range(2):
                path = os.path.join(run.folder, "failing.%d" % rank)
                if os.path.exists(path):
                    with open(path) as f:
                        found.append(json.load(f))
                    os.unlink(path)
            self.assertTrue(all(r["same"] for r in found), found)
            return found

        damaged = run.point(2)
        data = damaged.sides[1]
        damaged.sides[1] = data[:-1] + bytes([data[-1] ^ 1])
        zero, one = failing([damaged, run.point(1)], step=2)
        self.assertEqual((zero["name"], one["name"]), ("RANK_FAILED", "DIGEST_MISMATCH"))
        self.assertIn("rank 1: DIGEST_MISMATCH", zero["text"])
        zero, one = failing([run.point(2)], misbuilt=1)
        self.assertEqual((zero["name"], one["name"]), ("RANK_FAILED", "STATE_MISMATCH"))
        zero, one = failing([], misbuilt=1)
        self.assertEqual((zero["name"], one["name"]), ("NO_POINT", "RANK_FAILED"))
        (zero,) = failing([run.point(2)], absent=1)
        self.assertEqual(zero["name"], "RANK_FAILED")
        self.assertIn("nothing from rank 1", zero["text"])
        # Damage that only one rank sees: all take the older point.
        job = run.resume([damaged, run.point(1)])
        self.assertEqual(job.codes, [0, 0], job.stderr)
        results = run.results("resumed")
        self.assertEqual([r["step"] for r in results], [1, 1])
        self.assertIn("rank 1", results[0]["passed"][0][2])
        self.assertEqual([r["ending"] for r in results], [r["ending"] for r in run.through])

    def test_find_unused(self):
        run = self.run_of(2, 12, [4], heads=True)
        self.assertEqual(self.equal(run, 4)[0]["warmed"], 0)
        # Gradients inside the buckets are divided by 3, others multiplied by 1/3: it takes a warm-up to be inside.
        run = self.run_of(3, 12, [4], heads=True, view=True)
        self.assertEqual(self.equal(run, 4)[0]["warmed"], 1)

    def test_three_ranks_gradients_inside_the_buckets(self):
        run = self.run_of(3, 14, [4], view=True)
        self.equal(run, 4)

    def test_four_ranks_and_the_naive_restart_differs(self):
        run = self.run_of(4, 20, [10])
        self.equal(run, 10)
        job = run.resume([run.point(10)], naive=True)
        self.assertEqual(job.codes, [0] * 4, job.stderr)
        naive = run.results("resumed")
        self.assertEqual(naive[0]["ending"]["data"], run.through[0]["ending"]["data"])
        different = [k for k, v in naive[0]["ending"].items() if v != run.through[0]["ending"][k]]
        self.assertTrue(any(k.endswith("#param") for k in different), different)


if __name__ == "__main__":
    unittest.main()
