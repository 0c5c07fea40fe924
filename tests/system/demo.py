#!/usr/bin/python3
"""make demo: four ranks train a small GPT for 100 steps over a switch whose mirror feeds one checkpoint node. At step
50 the node is killed with SIGKILL and restarted. At the end every parameter and moment of the replica is compared
with the trainer's own. Ends with a verdict; everything it started is gone afterwards, also after Ctrl-C."""
import os
import sys
import time

import harness
import rig

RANKS, STEPS, KILL_AT = 4, 100, 50
TRAINING = ["--steps", STEPS, "--optimizer", "adamw", "--schedule", "cosine", "--clip", "norm:1.0"]


class Table:
    """A line for each change of the four numbers, at most one in two seconds."""

    def __init__(self, node, job):
        self.node, self.job = node, job
        self.begun = time.monotonic()
        self.last, self.shown_at = None, 0.0

    def head(self):
        print("\n%8s %10s %10s %10s %10s  %8s  %s" % (("seconds",) + harness.FOUR + ("loss", "gap")), flush=True)

    def show(self, always=False):
        now = time.monotonic()
        if not always and now - self.shown_at < 2.0:
            return
        status = self.node.status()
        if status is None:
            return
        numbers = tuple(int(status.get(k, 0)) for k in harness.FOUR)
        harness.check_order(dict(zip(harness.FOUR, numbers)))
        if numbers == self.last and not always:
            return
        gaps = ", ".join(g.get("name", "?") for g in status.get("gaps", [])) or "-"
        loss = self._loss()
        print("%8.1f %10d %10d %10d %10d  %8s  %s" % ((now - self.begun,) + numbers + (loss, gaps)), flush=True)
        self.last, self.shown_at = numbers, now

    def _loss(self):
        try:
            records = self.job.records()
            return "%.3f" % records[max(records)].get("loss", float("nan")) if len(records) > 1 else "-"
        except OSError:
            return "-"


def say(text):
    print("-- " + text, flush=True)


def demo():
    begun = time.monotonic()
    with harness.case_folder("demo") as folder, rig.Rig(ranks=RANKS) as r:
        say("a switch, %d ranks and a monitor port in network namespaces %s*" % (RANKS, r.prefix))
        pause = os.path.join(folder, "go-on")
        node = harness.Node(r, folder).start()
        say("checkpoint node: gradtapd listens at %s, taps mon1, shards of %d elements" % (harness.ENDPOINT, 1 << 17))
        job = harness.Job(r, folder, TRAINING + ["--pause-at", KILL_AT, "--pause-file", pause]).start()
        say("training: GPT on text, AdamW with schedule and clipping, %d steps; rank 0 attached as job demo" % STEPS)
        table = Table(node, job)
        table.head()

        def paused():
            harness.require(job.running(), "the ranks ended before step %d" % KILL_AT)
            harness.require(node.alive(), "gradtapd ended: " + node.last_words())
            job.require_tapped()
            table.show()
            return all(os.path.exists("%s.reached.%d" % (pause, i)) for i in range(RANKS))
        harness.wait_until("all ranks to reach step %d" % KILL_AT, 90, paused)
        node.wait_step("durable", KILL_AT, 45)
        table.show(always=True)
        harness.compare_roots(node, job, KILL_AT)
        say("step %d is durable, its state root and those before it equal the trainer's: SIGKILL to gradtapd" % KILL_AT)
        node.kill()
        node.start()
        node.wait_step("durable", KILL_AT, 30)
        say("gradtapd is back, at a durable step %d; the job goes on" % node.numbers()["durable"])
        open(pause, "w").close()
        job.wait(120, table.show)
        node.wait_step("durable", STEPS, 45)
        table.show(always=True)
        print()
        count = harness.compare_roots(node, job, STEPS, first=KILL_AT + 1)
        say("state roots of the %d steps after the restart: equal" % count)
        elements = harness.compare_export(node.export(STEPS), job.final(), STEPS)
        kinds = job.final().kinds
        say("step %d: %d float32 values compared (%s), all equal" % (STEPS, elements, ", ".join(kinds)))
        code = node.stop()
        harness.require(code == 0, "gradtapd ended with exit code %s after SIGTERM" % code)
    say("%.0f seconds" % (time.monotonic() - begun))


def main():
    rig.enter_privileged()
    harness.programs_or_fail()
    try:
        demo()
    except (harness.Failed, rig.RigError) as error:
        print("\nVERDICT: not shown: %s" % error, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started is gone", flush=True)
        return 130
    print("VERDICT: bit-for-bit equal", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
