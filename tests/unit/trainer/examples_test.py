"""The examples do what their README says: protected is plain plus lines, ends with the same bits, also after a kill."""

import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import single
import torch
from fake_node import FakeNode
from points import Point, PointServer

EXAMPLES = os.path.join(single.ROOT, "examples")
STEPS, RANKS = "30", "2"


def run(*command, restarts="0"):
    done = subprocess.run([sys.executable, os.path.join(EXAMPLES, "run_with_restarts.py"), "--ranks", RANKS,
                           "--restarts", restarts, "--pause", "0.1"] + list(command), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=280, env=dict(os.environ, GLOO_SOCKET_IFNAME="lo"))
    found = re.search(rb"SHA-256 ([0-9a-f]{64})", done.stdout)
    return done.returncode, found and found.group(1).decode(), done.stderr.decode(errors="replace")


def source(name):
    with open(os.path.join(EXAMPLES, name)) as f:
        return f.read().split('"""', 2)[2].splitlines()


class Examples(unittest.TestCase):
    def test_only_lines_were_added(self):
        changes = [line for line in difflib.ndiff(source("train_plain.py"), source("train_protected.py"))
                   if line[0] in "+-" and line.strip("+- ")]
        self.assertTrue(all(line[0] == "+" for line in changes), changes)
        self.assertLessEqual(len(changes), 14)

    def test_killed_and_restored_equals_plain(self):
        plain = os.path.join(EXAMPLES, "train_plain.py")
        protected = os.path.join(EXAMPLES, "train_protected.py")
        driver = os.path.join(single.HERE, "example_driver.py")
        code, expected, trouble = run(plain, "--steps", STEPS)
        self.assertEqual(code, 0, trouble)
        with tempfile.TemporaryDirectory() as folder, FakeNode() as node, FakeNode() as second:
            code, end, trouble = run(driver, folder, "12", "15", protected, "--steps", STEPS, "--gateways", node.endpoint,
                                     "--job", "unit")
            self.assertEqual((code, end), (1, None), trouble)
            self.assertIn("a rank ended with -9", trouble)
            state = [(n, shape, {k: v.numpy() for k, v in kinds.items()}, c)
                     for n, shape, kinds, c in torch.load(os.path.join(folder, "state.12"))]
            sides = {}
            for rank in range(2):
                m = [m for m in node.steps(rank) if m["step"] == 12][0]
                sides[rank] = (json.dumps(m).encode(), {name: node.blob(m, name) for name in m["blobs"]})
            layout = node.layout_of([m for m in node.steps() if m["step"] == 12][0]["next_layout_id"])
            with PointServer([Point(1, 12, 2, state, sides, layout)]) as server:
                code, end, trouble = run(protected, "--steps", STEPS, "--gateways", second.endpoint, "--points",
                                         server.endpoint, "--job", "unit")
            self.assertEqual(code, 0, trouble)
            self.assertIn("lineage 1, step 12", trouble)
            self.assertEqual(end, expected)
            self.assertEqual([m["step"] for m in second.steps()], list(range(13, 31)))

    def test_restart_loop_gives_up(self):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write("import sys; sys.exit(3)")
            script.flush()
            code, _, trouble = run(script.name, restarts="2")
        self.assertEqual(code, 1)
        self.assertEqual(trouble.count("a rank ended with 3"), 3)


if __name__ == "__main__":
    unittest.main()
