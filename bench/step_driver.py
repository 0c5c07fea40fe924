#!/usr/bin/python3
"""What gradtap costs a training job: the same job with and without it, interleaved, and the same job that saves whole
checkpoints instead. Usage: step_driver.py [PAIRS [save]] [--steps N] [--keep FILE]

CPU seconds are those of all threads of both training processes, for each step after the warm-up. The rig, its mirror and the
node are there in both halves of a pair: what the virtual switch does to copy frames is a switch's work, and here it is
charged to whoever sends. The node shares the cores with the training: wall times are what a machine feels that trains and
taps at once.
"""
import argparse
import json
import os
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "system"))
sys.dont_write_bytecode = True
import harness  # noqa: E402
import rig  # noqa: E402

RANKS = 2
JOB = ["--width", 256, "--layers", 4, "--context", 32, "--batch", 1, "--bucket-mb", 2, "--clip", "norm:1.0", "--no-roots"]
WARM = 4  # buckets are rebuilt after the first step; attach has taken the baseline before
AT_MOST = 1.02


class Figures:
    def __init__(self, cpu_ms, wall_ms):
        self.cpu_ms, self.wall_ms = cpu_ms, wall_ms


def figures(job):
    clocks = [job.report(i)["clock"][WARM:] for i in range(RANKS)]
    steps = len(clocks[0]) - 1
    return Figures(1e3 * sum(c[-1][0] - c[0][0] for c in clocks) / steps,
                   1e3 * (clocks[0][-1][1] - clocks[0][0][1]) / steps)


def kept(path):
    if not path or not os.path.exists(path):
        return []
    with open(path) as f:
        return [{name: Figures(**values) for name, values in pair.items()} for pair in json.load(f)]


def run(r, folder, name, port, steps, attach="", more=()):
    job = harness.Job(r, folder, JOB + ["--steps", steps] + list(more), attach=attach, name=name, port=port).start()
    try:
        job.wait(300)
    finally:
        job.kill()
    if attach:
        harness.require(job.report()["tapped"], "the job ended untapped")
    return figures(job)


def pair(number, steps, save):
    with harness.case_folder("bench-step") as folder, rig.Rig(ranks=RANKS) as r:
        node = harness.Node(r, folder).start()
        found = {}
        ways = [("alone", "", ()), ("tapped", harness.ENDPOINT, ())]
        ways = ways[::-1] if number % 2 else ways
        ways += [("save", "", ("--save", "plain")), ("save-thread", "", ("--save", "thread"))] if save else []
        for i, (name, attach, more) in enumerate(ways):
            found[name] = run(r, folder, name, 29500 + i, steps, attach, more)
        harness.require(node.alive(), "gradtapd ended: " + node.last_words())
        followed = node.numbers()["verified"]
        harness.require(followed >= steps - 2, "the node followed %d steps of %d" % (followed, steps))
    return found


def middle(values, form="%.2f"):
    return (form + " (" + form + " to " + form + ")") % (statistics.median(values), min(values), max(values))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("pairs", nargs="?", type=int, default=5)
    p.add_argument("save", nargs="?", default="")
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--keep", default="", help="a file of pairs of earlier runs, which count too; new ones are added")
    a = p.parse_args()
    rig.enter_privileged()
    harness.programs_or_fail()
    pairs = kept(a.keep)
    for number in range(len(pairs), len(pairs) + a.pairs):
        pairs.append(pair(number, a.steps, a.save))
        if a.keep:
            with open(a.keep, "w") as f:
                json.dump([{name: vars(figures) for name, figures in p.items()} for p in pairs], f)
        print("   pair %d: %s" % (number + 1, ", ".join("%s %.1f ms CPU, %.1f ms" % (name, f.cpu_ms, f.wall_ms)
                                                       for name, f in sorted(pairs[-1].items()))), flush=True)
    names = sorted({name for p in pairs for name in p})
    for name in names:
        those = [p[name] for p in pairs if name in p]
        print("   %-11s CPU %s ms a step of %d ranks, wall %s ms"
              % (name, middle([f.cpu_ms for f in those], "%.1f"), RANKS, middle([f.wall_ms for f in those], "%.1f")))
    for name in (n for n in names if n != "alone"):
        those = [p for p in pairs if name in p]
        cpu = [p[name].cpu_ms / p["alone"].cpu_ms for p in those]
        wall = [p[name].wall_ms / p["alone"].wall_ms for p in those]
        judged = " (at most %.2f: %s)" % (AT_MOST, "yes" if statistics.median(cpu) <= AT_MOST else "NO")
        print("   %s / alone: CPU %s%s, wall %s" % (name, middle(cpu, "%.3f"), judged if name == "tapped" else "",
                                                   middle(wall, "%.3f")))


if __name__ == "__main__":
    main()
