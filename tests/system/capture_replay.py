#!/usr/bin/python3
"""Recorded jobs through the whole node, part of `make test`: a real gradtapd reads a capture, a test client plays the
trainer. The replica must follow bit for bit; with a wrong layout, step, recipe or byte it must stop and name why. Needs
no root. The captures are looked for in GRADTAP_CAPTURES or ../shared/captures."""
import contextlib
import json
import os
import re
import subprocess
import sys
import time

import numpy as np

import capture_edit
import harness
from harness import require
from replay_client import RANKS, Client, Expected, Node, Recording, adam, captures, layout_id, witness_positions

NEEDED = ("gloo-n4", "gloo-torch2/f32", "gloo-torch2/bf16", "gloo-torch2/amp")
TORCH1, TORCH2 = "gloo-n4", "gloo-torch2/f32"
LERP = {TORCH1: False, TORCH2: True}
SETTLE = 1.0  # how long a held replica is watched for a step that it must not take
_states = {}


def states_of(recording, name):
    if name not in _states:
        _states[name] = recording.states(LERP[name])
    return _states[name]


class Replay:
    """One node, one client, one recording."""

    def __init__(self, folder, name, pcap, checksum):
        self.name, self.recording, self.folder = name, Recording(name), folder
        self.states = states_of(self.recording, name)
        self.node = Node(folder, pcap or self.recording.pcap, checksum)
        self.client = Client(self.node, self.recording)

    def expected(self, step):
        return Expected(self.recording, self.states, step)

    def check_export(self, step):
        return harness.compare_export(self.node.export(step), self.expected(step), step)

    def check_all(self, last):
        """Parameters, moments and root of every step up to `last`."""
        self.node.wait_step("durable", last, 30)
        roots = self.node.roots(0, last)
        for step in range(last + 1):
            self.check_export(step)
            if step:
                require(roots.get(step) == self.expected(step).root, "step %d: the replica's root is %s, not %s"
                        % (step, roots.get(step), self.expected(step).root))

    def held(self, good, *names):
        """Waits for one of the gaps, then watches that nothing after step `good` is applied; returns the gap."""
        def there():
            return next((g for g in (self.node.gap(n) for n in names) if g), None)
        try:
            gap = harness.wait_until("the gap " + " or ".join(names), 20, there)
            self.node.wait_step("durable", good, 20)
        except harness.Failed as error:
            raise harness.Failed("%s; the node reports %s" % (error, harness.describe(self.node.status())))
        deadline = time.monotonic() + SETTLE
        while time.monotonic() < deadline:
            numbers = self.node.numbers()
            require(numbers["verified"] == numbers["durable"] == good, "held at step %d, but the node reports %s"
                    % (good, harness.describe(self.node.status())))
            time.sleep(0.1)
        require(there(), "the gap %s has gone without a cause" % gap["name"])
        self.check_export(good)
        return gap


@contextlib.contextmanager
def replay(case, name, pcap=None, checksum="offload", change=None):
    """change(capture, recording, copies) -> frames to leave out: edits a copy of the capture first."""
    with harness.case_folder("replay-" + case) as folder:
        if change:
            recording = Recording(name)
            capture = capture_edit.Capture(recording.pcap)
            if checksum == "required":
                capture.fix_checksums()
            sizes = {t: size for s in range(1, recording.steps + 1) for t, (_, size) in recording.tags(s).items()}
            gone = change(capture, recording, capture.copies(RANKS, sizes)) or ()
            pcap = capture.write(os.path.join(folder, "changed.pcap"), gone)
        r = Replay(folder, name, pcap, checksum)
        r.node.start()
        try:
            yield r
            require(r.node.alive(), "gradtapd ended: " + r.node.last_words())
            code = r.node.stop()
            require(code == 0, "gradtapd ended with exit code %s after SIGTERM" % code)
        finally:
            r.node.kill()


def say(case, begun, text):
    print("passed  %-28s %s, %.1f s" % (case, text, time.monotonic() - begun), flush=True)


# ---- the recorded job, followed

def follow(case, name):
    begun = time.monotonic()
    with replay(case, name) as r:
        r.client.attach()
        r.client.attach_others()
        r.client.tell(r.client.layout(r.recording.rebuilt))
        for step in range(1, r.recording.steps + 1):
            r.client.tell(r.recording.message(step))
            for rank in (1, 2, 3):
                r.client.tell({"kind": "step", "step": step, "interval": r.recording.intervals[step], "blobs": {},
                               "counters": {}}, rank=rank)
        r.check_all(r.recording.steps)
        job = r.node.status()
        require(("lerp" in job["recipe"]) == LERP[name] and "nofma" not in job["recipe"],
                "the recipe found is %s" % job["recipe"])
        require(any("recorded probe" in w for w in job["warnings"]), "the recorded probe is not shown as a warning")
        require(job["binding"]["strong_buckets"] == 1 + 3 * len(r.recording.rebuilt["buckets"]),
                "buckets proven by their witness: %s" % job["binding"])
        shards = r.node.shards()
        require([s["digest"] for s in shards] == r.expected(r.recording.steps).shards, "digests of the shards")
    say(case, begun, "%d steps, recipe %s, %d shards" % (r.recording.steps, job["recipe"], len(shards)))


def inspected(case, name):
    """The gradients on the wire, bucket by bucket, as `gradtap inspect --dump` writes them."""
    begun = time.monotonic()
    recording = Recording(name)
    with harness.case_folder("replay-" + case) as folder:
        done = subprocess.run([os.path.join(harness.BIN, "gradtap"), "inspect", recording.pcap, "--json", "--dump", folder],
                              capture_output=True, text=True, timeout=120)
        require(done.returncode == 0, "gradtap inspect: exit code %d: %s" % (done.returncode, done.stderr[-400:]))
        report = json.loads(done.stdout)
        require(report["ranks"] == RANKS, "ranks %s" % report["ranks"])
        by_tag = {o["tag"]: o for o in report["ops"]}
        half = recording.meta.get("prec") == "bf16"
        tags = {}
        for step in range(1, recording.steps + 1):
            tags.update({t: (step, b, size // 2 if half else size) for t, (b, size) in recording.tags(step).items()})
        require(set(tags) == set(by_tag), "all-reduces %s on the wire, %s expected" % (sorted(by_tag), sorted(tags)))
        for tag, (step, bucket, size) in sorted(tags.items()):
            op = by_tag[tag]
            require(op["complete"] and not op["conflict"] and op["bytes"] == size,
                    "tag %d: %s" % (tag, op))
            path = os.path.join(folder, op["file"])
            if half:
                wire = np.fromfile(path, np.uint16).astype(np.uint32) << 16
            else:
                wire = np.fromfile(path, np.uint32)
            gradient = recording.bucket_gradient(step, recording.layout(step), bucket).view(np.uint32)
            require(np.array_equal(wire, gradient), "step %d bucket %d differs from grads.f32 in %d elements"
                    % (step, bucket, np.count_nonzero(wire != gradient) if len(wire) == len(gradient) else -1))
    say(case, begun, "%d buckets of %d steps equal grads.f32" % (len(tags), recording.steps))


# ---- wrong layouts, steps, messages

def permuted(layout, a, b):
    """The same sizes, with two parameters of one size exchanged."""
    swap = {a: b, b: a}
    return dict(layout, buckets=[[[swap.get(i, i), n] for i, n in bucket] for bucket in layout["buckets"]])


def wrong_layout(case):
    begun = time.monotonic()
    with replay(case, TORCH1) as r:
        wrong = permuted(r.recording.first, 0, 4)
        r.client.attach(layout=wrong)
        r.client.tell(r.client.layout(r.recording.rebuilt), r.recording.message(1, layout=wrong),
                      *r.client.steps(2, 4))
        gap = r.held(0, "WITNESS_MISMATCH")
        require("step 1 bucket 0" in gap["evidence"], gap["evidence"])
    say(case, begun, "WITNESS_MISMATCH: " + gap["evidence"][:60])


def layout_missing(case):
    begun = time.monotonic()
    with replay(case, TORCH2) as r:
        r.client.attach()
        r.client.tell(*r.client.steps(1, 4))
        wanted = layout_id(r.recording.rebuilt)
        gap = r.held(1, "LAYOUT_UNKNOWN")
        require(wanted[:16] in gap["evidence"], gap["evidence"])
        # The answer to the next post asks for it by its id.
        status, answer = r.node.request("POST", r.client.path("messages"), "\n", r.client.sessions[0])
        require(status in (200, 202) and any(q["kind"] == "layout" and q["layout_id"] == wanted
                                             for q in answer["requests"]), "requests: %s" % answer)
        r.client.tell(r.client.layout(r.recording.rebuilt))
        r.check_all(4)
        require(r.node.gap("LAYOUT_UNKNOWN") is None, "the gap has stayed")
    say(case, begun, "LAYOUT_UNKNOWN at step 1, cleared by the layout")


def wrong_step(case, change, name, good=2):
    """change(recording) -> the message of step 3, which is not what it should be."""
    begun = time.monotonic()
    with replay(case, TORCH2) as r:
        r.client.attach()
        r.client.tell(r.client.layout(r.recording.rebuilt), *r.client.steps(1, 2))
        r.client.tell(change(r.recording), r.recording.message(4))
        gap = r.held(good, name)
        relearnt = r.node.status()["binding"]["relearnt_deltas"]
        require(relearnt == good - 2, "%d learnt offsets were replaced" % relearnt)
    say(case, begun, "%s: %s" % (gap["name"], gap["evidence"][:60]))


def of_step_4(recording):
    return recording.message(3, interval=recording.intervals[4])


def off_by_one(recording):
    begin, end = recording.intervals[3]
    return recording.message(3, interval=[begin - 1, end - 1])


def of_step_2(recording):
    """Two collectives too early: what a trainer's clock looks like after a monitored barrier. The witness finds the
    bytes of step 3 itself; the offset learnt from it then fits no honest interval."""
    return recording.message(3, interval=recording.intervals[2])


def foreign_witness(recording):
    """One bucket as of another step: no assignment of collectives gives both."""
    message = recording.message(3)
    message["witness"]["0"] = recording.message(3, gradients_of=4)["witness"]["0"]
    return message


def message_missing(case):
    begun = time.monotonic()
    with replay(case, TORCH1) as r:
        r.client.attach()
        r.client.tell(r.client.layout(r.recording.rebuilt), r.recording.message(1))
        third, second = r.client.steps(2, 3)[1], r.recording.message(2)
        late = r.client.seqs[0]
        r.client.seqs[0] += 1
        status, answer = r.client.post(third, r.recording.message(4))
        require(status in (200, 202) and answer["received_seq"] == late - 1, "received_seq: %s" % answer)
        gap = r.held(1, "SCALARS_MISSING")
        require("step 2" in gap["evidence"], gap["evidence"])
        r.client.seqs[0] = late
        status, answer = r.client.post(second)
        require(status in (200, 202) and answer["received_seq"] == late + 2, "received_seq: %s" % answer)
        r.check_all(4)
    say(case, begun, "SCALARS_MISSING at step 1, cleared by the message")


def message_dropped(case):
    begun = time.monotonic()
    with replay(case, TORCH1) as r:
        r.client.attach()
        r.client.tell(r.client.layout(r.recording.rebuilt), r.recording.message(1))
        lost = r.client.seqs[0]
        r.client.seqs[0] += 1
        r.client.tell({"kind": "dropped", "steps": [2], "seqs": [lost]}, *r.client.steps(3, 4))
        gap = r.held(1, "SCALARS_MISSING")
        require("dropped" in gap["evidence"] and "step 2" in gap["evidence"], gap["evidence"])
    say(case, begun, "SCALARS_MISSING: " + gap["evidence"][:60])


# ---- wrong recipes

def recipe_refused(case, make, code):
    """make(recording, states) -> probe; the attach must end refused with this error, and stay so."""
    begun = time.monotonic()
    with replay(case, TORCH1) as r:
        status, answer = r.client.open()
        require(status == 200, "attach: %d %s" % (status, answer))
        r.client.sessions[0], r.client.seqs[0] = answer["session"], answer["next_seq"]
        status, told = r.client.put("probe", 0, make(r.recording))
        require(status >= 400 and told["error"]["name"] == code, "probe: %d %s" % (status, told))
        progress = r.client.progress()
        require(progress["state"] == "refused" and progress["error"]["name"] == code, "progress: %s" % progress)
        r.client.put("baseline", 0, r.recording.baseline())
        status, told = r.client.post(r.recording.message(1))
        require(status == 409, "messages after the refusal: %d %s" % (status, told))
        time.sleep(SETTLE / 2)
        numbers = r.node.numbers()
        require(not any(numbers.values()), "after the refusal: %s" % numbers)
        require(not r.node.shards(), "shards exist after the refusal")
    say(case, begun, told["error"]["name"] + " after " + code + ": " + told["error"].get("where", "")[:50])


def coupled_decay(recording):
    """Outputs of Adam (weight decay in the gradient) where the job says AdamW."""
    changed = {}
    for i in (0, 1):
        p = recording.piece(recording.params[0], i)
        m = v = np.zeros(len(p), np.float32)
        for s in range(1, 5):
            p, m, v = adam(recording.meta["optimizer"], False, s, p, m, v, recording.piece(recording.grads[s - 1], i),
                           decoupled=False)
            changed["%d:param:out%d" % (i, s)] = p
        changed["%d:exp_avg:out4" % i], changed["%d:exp_avg_sq:out4" % i] = m, v
    return recording.probe(changed)


def other_family(recording):
    """The second tensor as the other family of recipes computes it: no one recipe gives both."""
    changed, i = {}, 0
    p = recording.piece(recording.params[0], i)
    m = v = np.zeros(len(p), np.float32)
    for s in range(1, 5):
        p, m, v = adam(recording.meta["optimizer"], True, s, p, m, v, recording.piece(recording.grads[s - 1], i))
        changed["%d:param:out%d" % (i, s)] = p
    changed["%d:exp_avg:out4" % i], changed["%d:exp_avg_sq:out4" % i] = m, v
    require(not np.array_equal(p, recording.piece(recording.params[4], i)), "the families agree here: a useless case")
    return recording.probe(changed)


def one_bit(recording):
    out = recording.piece(recording.params[4], 0).copy()
    out.view(np.uint32)[-1] ^= 1
    return recording.probe({"0:param:out4": out})


def silent_probe(recording):
    """Zero gradients: every recipe gives the same."""
    changed, decay = {}, np.float32(1 - recording.meta["optimizer"]["lr"] * recording.meta["optimizer"]["weight_decay"])
    for i in (0, 1):
        p = recording.piece(recording.params[0], i)
        for s in range(1, 5):
            p = p * decay
            changed["%d:grad:grad%d" % (i, s)] = np.zeros(len(p), np.float32)
            changed["%d:param:out%d" % (i, s)] = p
        for kind in ("exp_avg", "exp_avg_sq"):
            changed["%d:%s:out4" % (i, kind)] = np.zeros(len(p), np.float32)
    return recording.probe(changed)


# ---- changed and lost bytes

STEP = 3  # the step whose bytes are changed; step 2 is the last good one


def third_step(recording, bucket=0):
    """(tag, bytes) of a bucket of step 3."""
    return next((tag, size) for tag, (b, size) in recording.tags(STEP).items() if b == bucket)


def change_byte(capture, copies, tag, position, streams, fix):
    """Flips a bit of byte `position` in every frame of the first `streams` flows that carry it; frames changed."""
    chosen = sorted({c.stream for c in capture_edit.covering(copies, tag, position)})
    require(len(chosen) == 3, "byte %d of tag %d crosses %d flows, not 3" % (position, tag, len(chosen)))
    changed = []
    for c in capture_edit.covering(copies, tag, position):
        if c.stream in chosen[:streams]:
            capture.frames[c.frame].raw[c.at + position - c.begin] ^= 1
            if fix:
                capture.frames[c.frame].fix_checksum()
            changed.append(c.frame)
    return changed


def play_all(r):
    r.client.attach()
    r.client.tell(r.client.layout(r.recording.rebuilt), *r.client.steps(1, 4))


def drops(node):
    """Frames that the node dropped for their checksum."""
    return sum(count for actor, body in node.get("/v1/status")["actors"].items() if actor.startswith("ingress")
               for reason, count in body["drops"].items() if "checksum" in reason)


def intact_required(case):
    begun = time.monotonic()
    with replay(case, TORCH1, checksum="required", change=lambda *_: ()) as r:
        play_all(r)
        r.check_all(4)
        require(drops(r.node) == 0, "%d frames dropped of an intact capture" % drops(r.node))
    say(case, begun, "every checksum verified, 4 steps equal")


def unfilled_required(case):
    """The capture as it is: its checksums were never filled in, so no byte of it may be used."""
    begun = time.monotonic()
    with replay(case, TORCH1, checksum="required") as r:
        play_all(r)
        gap = r.held(0, "LOST_DEFINITIVE")
        dropped = drops(r.node)
        require(dropped > 1000, "%d frames dropped" % dropped)
    say(case, begun, "%d frames dropped, nothing applied, %s" % (dropped, gap["name"]))


def bad_checksum(case):
    """One copy changed, its checksum not: dropped and filled from another."""
    begun = time.monotonic()
    changed = []

    def change(capture, recording, copies):
        tag, size = third_step(recording)
        changed.extend(change_byte(capture, copies, tag, size // 2, 1, fix=False))
    with replay(case, TORCH1, checksum="required", change=change) as r:
        play_all(r)
        r.check_all(4)
        require(drops(r.node) == len(changed), "%d frames changed, %d dropped" % (len(changed), drops(r.node)))
    say(case, begun, "%d frame dropped, 4 steps equal" % len(changed))


def conflict(case, streams, name=TORCH1):
    begun = time.monotonic()

    def change(capture, recording, copies):
        tag, size = third_step(recording)
        change_byte(capture, copies, tag, size // 2, streams, fix=True)
    with replay(case, name, checksum="required", change=change) as r:
        play_all(r)
        gap = r.held(STEP - 1, "CONFLICT")
        require("tag %d" % third_step(r.recording)[0] in gap["evidence"], gap["evidence"])
        require(drops(r.node) == 0, "%d frames dropped" % drops(r.node))
    say(case, begun, "CONFLICT: " + gap["evidence"][:60])


def changed_everywhere(case):
    begun = time.monotonic()

    def change(capture, recording, copies):
        place = witness_positions(recording.rebuilt, STEP, 1)[5] * 4
        change_byte(capture, copies, third_step(recording, 1)[0], place, 3, fix=True)
    with replay(case, TORCH1, checksum="required", change=change) as r:
        play_all(r)
        gap = r.held(STEP - 1, "WITNESS_MISMATCH")
        require("step 3 bucket 1" in gap["evidence"] and "position 5" in gap["evidence"], gap["evidence"])
        require(drops(r.node) == 0, "%d frames dropped" % drops(r.node))
    say(case, begun, "WITNESS_MISMATCH: " + gap["evidence"][:60])


def lost_everywhere(case, with_header, name=TORCH1):
    begun = time.monotonic()
    ranges = []

    def change(capture, recording, copies):
        tag, size = third_step(recording, 1)
        begin, length = next((b, n) for final, b, n in capture_edit.ring_messages(0, size, 4) if final)
        # The first byte behind a header, or one in the middle of a message; in every flow.
        gone = {c.frame for c in capture_edit.covering(copies, tag, begin + (0 if with_header else length // 2))}
        for frame in gone:
            header = capture.holds_header(frame, [c for c in copies if c.frame == frame])
            require(header == with_header, "frame %d %s a header" % (frame, "holds" if header else "lacks"))
        ranges.extend(capture_edit.missing_without(copies, tag, size, gone))
        require(len(ranges) == 1 and len(gone) >= 3, "%s missing, %d frames" % (ranges, len(gone)))
        return gone
    with replay(case, name, change=change) as r:
        play_all(r)
        gap = r.held(STEP - 1, "LOST_DEFINITIVE")
        named = [[int(x) for x in pair.split(",")] for pair in re.findall(r"\[(\d+,\d+)\)", gap["evidence"])]
        begin, end = ranges[0]
        # Behind a lost header the rest of its message has no place any more on that flow.
        right = any(b <= begin and end <= e for b, e in named) if with_header else named == [[begin, end]]
        require(right and "tag %d" % third_step(r.recording, 1)[0] in gap["evidence"], "[%d,%d) is missing; %s"
                % (begin, end, gap["evidence"]))
    say(case, begun, "LOST_DEFINITIVE: " + gap["evidence"][:70])


def lost_in_one(case):
    begun = time.monotonic()

    def change(capture, recording, copies):
        tag, size = third_step(recording)
        return {capture_edit.covering(copies, tag, size // 2)[0].frame}
    with replay(case, TORCH1, change=change) as r:
        play_all(r)
        r.check_all(4)
    say(case, begun, "filled from the other copies, 4 steps equal")


# ---- lineage, inventory, restart

def second_run(case):
    begun = time.monotonic()
    with replay(case, TORCH2) as r:
        first = r.client.attach()
        r.client.tell(r.client.layout(r.recording.rebuilt), *r.client.steps(1, 2))
        r.node.wait_step("durable", 2, 20)
        again = Client(r.node, r.recording, "f" * 32)
        second = again.attach()
        require(second["lineage"] > first["lineage"] and second["session"] != first["session"],
                "first %s, second %s" % (first, second))
        status, told = r.client.post(r.recording.message(3))
        require(status == 409 and told["error"]["name"] == "LINEAGE_SUPERSEDED", "the old session: %d %s" % (status, told))
        status, told = r.client.open()
        require(status == 409 and told["error"]["name"] == "LINEAGE_SUPERSEDED", "the old nonce: %d %s" % (status, told))
        numbers = r.node.numbers()
        require(numbers["verified"] == 0 and r.node.status()["lineage"] == second["lineage"],
                "after the second attach: %s" % harness.describe(r.node.status()))
        r.check_export(0)
    say(case, begun, "lineage %d, then %d; 409 for the old one" % (first["lineage"], second["lineage"]))


def unknown_leaf(case):
    begun = time.monotonic()
    with replay(case, TORCH2) as r:
        inventory = r.recording.attach("0" * 32)["inventory"]
        leaf = {"name": "extra.mystery_queue", "class": "unknown", "type": "collections.deque"}
        r.client.attach(inventory=inventory + [leaf])
        r.client.tell(r.client.layout(r.recording.rebuilt), *r.client.steps(1, 4))
        r.check_all(4)
        gap = r.node.gap("UNKNOWN_STATE")
        require(gap and leaf["name"] in gap["evidence"], "gaps: %s" % r.node.status()["gaps"])
        require(r.node.numbers()["published"] == 0, "published with unknown state")
    say(case, begun, "UNKNOWN_STATE: " + gap["evidence"])


def restart(case):
    begun = time.monotonic()
    with replay(case, TORCH1) as r:
        r.client.attach()
        r.client.tell(r.client.layout(r.recording.rebuilt), *r.client.steps(1, 2))
        r.node.wait_step("durable", 2, 20)
        session = r.client.sessions[0]
        r.node.kill()
        r.node.start()  # the same file once more: the session goes on
        require(r.node.numbers()["durable"] == 2, "after the first restart: %s" % harness.describe(r.node.status()))
        r.check_export(2)
        status, answer = r.client.open()
        require(status == 200 and answer["session"] == session and answer["next_seq"] == r.client.seqs[0],
                "the same attach after the restart: %d %s" % (status, answer))
        r.client.tell(*r.client.steps(3, 4))
        r.node.wait_step("durable", 4, 20)
        require(r.node.roots(3, 4) == {s: r.expected(s).root for s in (3, 4)}, "roots after the restart")
        r.node.kill()
        r.node.configure(None)  # no tap at all
        r.node.start()
        require(r.node.numbers()["durable"] == 4, "after the second restart: %s" % harness.describe(r.node.status()))
        for step in range(5):
            r.check_export(step)
        status, answer = r.node.request("POST", r.client.path("messages"), "\n", session)
        require(status in (200, 202) and answer["received_seq"] == r.client.seqs[0] - 1, "the session: %d %s"
                % (status, answer))
    say(case, begun, "killed at steps 2 and 4, both recovered, same session")


def cases():
    found = [("follow-torch1", lambda n: follow(n, TORCH1)), ("follow-torch2", lambda n: follow(n, TORCH2))]
    found += [("inspect-" + name.rsplit("-", 1)[-1].replace("/", "-"), lambda n, name=name: inspected(n, name))
              for name in NEEDED]
    found += [
        ("wrong-layout", wrong_layout),
        ("layout-missing", layout_missing),
        ("wrong-step-later", lambda n: wrong_step(n, of_step_4, "WITNESS_MISMATCH")),
        ("wrong-step-witness", lambda n: wrong_step(n, foreign_witness, "WITNESS_MISMATCH")),
        ("wrong-step-off-by-one", lambda n: wrong_step(n, off_by_one, "ANCHOR_LOST")),
        ("wrong-step-shifted", lambda n: wrong_step(n, of_step_2, "ANCHOR_LOST", good=3)),
        ("message-missing", message_missing),
        ("message-dropped", message_dropped),
        ("recipe-coupled-decay", lambda n: recipe_refused(n, coupled_decay, "RECIPE_NO_MATCH")),
        ("recipe-two-families", lambda n: recipe_refused(n, other_family, "RECIPE_NO_MATCH")),
        ("recipe-one-bit", lambda n: recipe_refused(n, one_bit, "RECIPE_NO_MATCH")),
        ("recipe-silent-probe", lambda n: recipe_refused(n, silent_probe, "RECIPE_AMBIGUOUS")),
        ("intact-required", intact_required),
        ("unfilled-required", unfilled_required),
        ("bad-checksum", bad_checksum),
        ("conflict-one-of-three", lambda n: conflict(n, 1)),
        ("conflict-two-of-three", lambda n: conflict(n, 2)),
        # Two buckets: after a shift by two, the next step's collectives have the same sizes.
        ("conflict-two-buckets", lambda n: conflict(n, 1, TORCH2)),
        ("changed-everywhere", changed_everywhere),
        ("lost-in-one", lost_in_one),
        ("lost-everywhere", lambda n: lost_everywhere(n, False)),
        ("lost-two-buckets", lambda n: lost_everywhere(n, False, TORCH2)),
        ("lost-with-header", lambda n: lost_everywhere(n, True)),
        ("second-run", second_run),
        ("unknown-leaf", unknown_leaf),
        ("restart", restart),
    ]
    return [(name, lambda name=name, run=run: run(name)) for name, run in found]


if __name__ == "__main__":
    absent = [n for n in NEEDED if not os.path.exists(os.path.join(captures(), n, "meta.json"))]
    if absent:
        print("SKIPPED capture_replay: no captures %s in %s" % (", ".join(absent), captures()))
        sys.exit(77)
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
