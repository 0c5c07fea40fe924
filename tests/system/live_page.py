#!/usr/bin/python3
"""The live page in a headless Chromium. Three nodes and four ranks: the page of one node shows another node's death, loss
on the mirror, a stop and the recovery from it as they happen, and its own node's silence. Against a node that is not one:
hostile names stay text, a read token is asked for once, and a silent node is asked less and less.

    live_page.py [CASE...]      pictures go to build/test-logs/live-page, or to $GRADTAP_PICTURES
"""
import os
import sys
import time

import browser as browsing
import harness
import rig
from browser import Browser, FakeNode, Relay
from cluster import Cluster, small
from harness import FOUR, require

PICTURES = os.environ.get("GRADTAP_PICTURES") or os.path.join(browsing.ROOT, "build", "test-logs", "live-page")
STEPS = 1500
NEIGHBOUR, HOME, VICTIM = 1, 0, 2
LOSS_EVERY, BURST_EVERY = 40, 3  # one frame of so many, at random
SHOWN_WITHIN = 12.0              # s; a dead node counts as down after 5 s at most


# ---- a real cluster

def live():
    name, begun = "live", time.monotonic()
    with harness.case_folder("live-page") as folder, rig.Rig(ranks=4, nodes=3) as r:
        cluster = Cluster(r, folder, points_kept=20).start()
        with Relay(r, HOME) as relay, Browser(relay.origin, PICTURES) as page:
            page.open()
            page.wait("that no job is there", 20, lambda: page.word() == "WAITING" and len(page.states()) == 3)
            arguments = small(STEPS, "--step-sleep", "0.12")
            job = harness.Job(r, folder, arguments, attach=cluster.endpoints(), name="first").start()
            page.wait("that all is good", 120, lambda: page.word() == "ALL GOOD" and page.number("published") >= 10)
            numbers_agree(page, cluster)
            took = [("a node's death after %.1f s", node_kill(page, cluster))]
            one_mirror_loses(page, cluster, r)
            took += [("a stop after %.1f s", loss_burst(page, r))]
            took += [("the recovery after %.1f s", recovery(page, cluster, r, folder, arguments, job))]
            requests = page.require_own_host_only()
            # The job's old lineage may end between two questions.
            page.require_quiet_console(lambda e: "/placement" in e["message"] and e["source"] == "network")
            own_node_silent(page, cluster)
        for node in cluster.nodes:
            node.kill()
    print("passed  %-28s the page showed %s; %d requests, all to its node; %.1f s"
          % (name, ", ".join(words % seconds for words, seconds in took), requests, time.monotonic() - begun), flush=True)


def numbers_agree(page, cluster):
    """The four numbers lie between two answers to `gradtap status`."""
    before = cluster.nodes[HOME].numbers()
    time.sleep(4.0)
    shown = {k: page.number(k) for k in FOUR}
    after = cluster.nodes[HOME].numbers()
    require(all(before[k] <= shown[k] <= after[k] for k in FOUR), "the page shows %s, the status was %s and then %s"
            % (shown, before, after))
    require(shown["published"] > 0, "published is not shown: %s" % shown)


def node_kill(page, cluster):
    victim = cluster.nodes[VICTIM]
    victim.kill()
    seconds = page.wait("that %s is absent" % victim.name, SHOWN_WITHIN,
                        lambda: page.states().get(victim.name) == "absent" and page.word() == "DEGRADED"
                        and victim.name + " is absent" in page.text("verdict-text"))
    page.wait("the reason and what to do", SHOWN_WITHIN, lambda: "REPLICA_SHORT" in page.reasons()
              and "bring the missing node back" in page.text("reasons"))
    page.wait("the shards of %s as lost" % victim.name, SHOWN_WITHIN, lambda: page.cells(victim.name)
              and set(page.cells(victim.name)) == {"lost"})
    at = page.number("published")
    page.wait("published going on", 60, lambda: page.number("published") >= at + 5)
    page.picture("node-kill")
    victim.start()
    page.wait("%s back" % victim.name, 120, lambda: page.states().get(victim.name) == "present"
              and page.word() == "ALL GOOD" and set(page.cells(victim.name)) == {"in-sync"})
    return seconds


def one_mirror_loses(page, cluster, r):
    """Holes in one node's mirror: shown in its row, not in another's; published goes on by the other copies."""
    loser, other = cluster.nodes[NEIGHBOUR].name, cluster.nodes[HOME].name
    page.wait("no loss before there is any", 40, lambda: not page.losing(loser) and not page.losing(other))
    r.mirror_loss(every=LOSS_EVERY, seed=7, node=NEIGHBOUR)
    page.wait("the loss of %s and not of %s" % (loser, other), SHOWN_WITHIN, lambda: page.losing(loser) and not page.losing(other))
    at = page.number("published")
    page.wait("published going on", 60, lambda: page.number("published") >= at + 3)
    r.stop_mirror_loss(node=NEIGHBOUR)
    page.wait("no more loss, and all good", 90, lambda: not page.losing(loser) and page.word() == "ALL GOOD")


def loss_burst(page, r):
    begun = time.monotonic()
    for node in range(3):
        r.mirror_loss(every=BURST_EVERY, seed=node + 1, node=node)
    page.wait("loss at every node", SHOWN_WITHIN + 8, lambda: all(page.losing("tap%d" % k) for k in range(3)))
    page.wait("the stop", 60, lambda: page.word() == "STOPPED" and "LOST_DEFINITIVE" in page.reasons())
    seconds = time.monotonic() - begun
    page.wait("what it means and what to do", 10, lambda: "frames were lost on every copy" in page.text("reasons")
              and "find the loss" in page.text("reasons"))
    verified = page.number("verified")
    page.wait("a lag that grows", 30, lambda: page.number("training") >= verified + 12)
    require(page.number("verified") == verified, "verified moved after the stop")
    page.picture("loss")
    page.phone()
    time.sleep(2.0)
    page.require_fits()
    page.picture("loss-phone")
    page.phone(False)
    for node in range(3):
        r.stop_mirror_loss(node=node)
    return seconds


def recovery(page, cluster, r, folder, arguments, job):
    """The job is started again from the newest point: a new lineage, and the numbers move."""
    stood_at = page.number("published")
    job.kill()
    begun = time.monotonic()
    second = harness.Job(r, folder, arguments + ["--restore", cluster.endpoints()], attach=cluster.endpoints(),
                         name="second", port=29501).start()
    page.wait("the recovery", 120, lambda: page.word() == "ALL GOOD" and page.number("published") > stood_at
              and "lineage 2" in page.text("job"))
    seconds = time.monotonic() - begun
    require(second.restored_step() == stood_at, "restored at step %s, the page showed %d" % (second.restored_step(), stood_at))
    page.wait("no old reason", 30, lambda: "LOST_DEFINITIVE" not in page.text("reasons"))
    page.wait("some steps more", 60, lambda: page.number("published") >= stood_at + 25)
    page.picture("live-page", 1500)
    page.phone()
    time.sleep(2.0)
    page.require_fits()
    page.picture("live-page-phone", 1240)
    page.phone(False)
    return seconds


def own_node_silent(page, cluster):
    node = cluster.nodes[HOME]
    node.kill()
    page.wait("that its node is silent", 15, lambda: page.word() == "NO ANSWER")
    require("since" in page.text("verdict-text"), "the page does not say since when: " + page.text("verdict-text"))
    require(page.run("return document.getElementById('main').className") == "stale", "what is old is not grey")
    require(page.number("published") > 0, "what was shown last is gone")
    page.picture("silent")
    node.start()
    page.wait("its node again", 60, lambda: page.word() in ("ALL GOOD", "DEGRADED") and page.states().get(node.name) == "present"
              and page.run("return document.getElementById('main').className") == "")


# ---- a node that is not one

def fake_status(**more):
    return dict({"node": "n0", "uptime_s": 60, "tap": "port", "absent": [], "warnings": [], "home": "n0", "actors": {},
                 "nodes": [], "members": [{"name": "n0", "state": "up", "membership": "in", "self": True}],
                 "jobs": [{"job": "j", "lineage": 1, "state": "tracking", "training": 7, "verified": 7, "durable": 6,
                           "published": 5, "gaps": [], "shards": 4}]}, **more)


def fake_answers(status=None, job="j", **more):
    answers = {"/v1/status": status or fake_status(), "/v1/events": {"events": []}, "/v1/nodes": {"members": []},
               "/v1/jobs/%s/placement" % job: {"shards": []}}
    answers.update(more)
    return answers


MARKUP = '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>'


def hostile():
    """Names that are markup, values of the wrong type, and more of everything than fits."""
    name, begun = "hostile", time.monotonic()
    deep = MARKUP + "<b>" + "x" * 100_000
    status = fake_status(
        node=deep, home=deep, warnings=[MARKUP, None, {"a": MARKUP}, 7] * 50, absent=[MARKUP, 5, None],
        members=[{"name": MARKUP, "state": "up", "domain": MARKUP, "last_error": MARKUP, "membership": "in"},
                 {"name": "__proto__", "state": MARKUP}, {"name": None}, 5, None, []] +
                [{"name": "m%d" % k, "state": "down", "last_error": MARKUP * 5} for k in range(2000)],
        nodes=[{"node": MARKUP, "uptime_s": "soon", "actors": {"ingress.0": {"flows": "many", "frames": -5, "drops": MARKUP,
                                                                            "decoder": []}}}, 5, None],
        jobs=[{"job": MARKUP, "lineage": 1, "shards": 4, "state": "held", "training": "<b>9</b>", "verified": -1, "durable": 1e300,
               "published": None, "warnings": [MARKUP],
               "gaps": [{"reason": 7, "name": MARKUP, "since_step": MARKUP, "evidence": deep[:20_000], "action": MARKUP},
                        {"reason": "x", "name": "constructor", "evidence": ["a"]}, None, 3, "LOST_DEFINITIVE"] * 30}])
    holders = [{"node": MARKUP, "role": "in_sync", "live": True, "version": 5}, {"node": "__proto__", "role": MARKUP}, None]
    said = fake_answers(status, **{
        "/v1/nodes": {"members": [{"name": MARKUP, "waits_for": MARKUP, "bytes_left": 5}, None], "epoch": MARKUP, "cause": MARKUP},
        "/v1/events": {"events": [{"seq": k, "wall_ms": "x", "level": MARKUP, "text": MARKUP, "fields": {MARKUP: MARKUP}}
                                  for k in range(3000)] + [None, 3]},
        "/v1/jobs/%s/placement" % "".join("%%%02X" % ord(c) if c in '<>=" /' else c for c in MARKUP):
            {"shards": [{"shard": k, "holders": holders} for k in range(20_000)] + [None, {"holders": 5}]}})
    with FakeNode(said) as node, Browser(node.origin, PICTURES) as page:
        page.open()
        page.wait("the hostile names as text", 30, lambda: MARKUP in page.text("events") and MARKUP in page.text("reasons")
                  and MARKUP in page.text("nodes") and page.cells("__proto__"))
        for _ in range(2):
            found = page.run("return {pwned: typeof window.pwned, images: document.images.length, scripts: document.scripts.length,"
                             "bold: document.querySelectorAll('main b').length, polluted: typeof ({}).state,"
                             "elements: document.querySelectorAll('*').length}")
            require(found["pwned"] == "undefined", "markup of a name was executed")
            require(found["images"] == 0 and found["scripts"] == 5 and found["bold"] == 1, "markup of a name became elements: %s" % found)
            require(found["polluted"] == "undefined", "a name changed the prototype of objects")
            require(found["elements"] < 12_000, "the page holds %d elements" % found["elements"])
            page.phone()
            time.sleep(1.5)
            page.require_fits()
        page.phone(False)
        page.wait("no harm by an answer that is no JSON", 20, lambda: said.update({"/v1/status": b"<html>" + MARKUP.encode()})
                  or page.word() == "NO ANSWER")
        said["/v1/status"] = fake_status()
        page.wait("the node again", 20, lambda: page.word() == "ALL GOOD" and page.number("published") == 5)
        page.require_quiet_console()
        page.require_own_host_only()
    print("passed  %-28s names stay text, wrong types and floods are borne, %.1f s" % (name, time.monotonic() - begun), flush=True)


def verdicts():
    """What is called what: with answers made by hand, each against the word and sentence that an operator must read."""
    name, begun = "verdicts", time.monotonic()

    def status(gaps=(), members=(), state="tracking", **numbers):
        made = fake_status(members=[{"name": "n0", "state": "up", "membership": "in", "self": True}] + list(members))
        made["jobs"][0].update(state=state, gaps=[{"reason": n, "name": g, "since_step": 6, "evidence": "e", "action": ""}
                                                  for g, n in gaps], **numbers)
        return made
    cases = [  # what the node says, the word, a part of the sentence, the earliest and latest moment after the first look (s)
        (status(), "ALL GOOD", "every node is there", 0, 4),
        (status(gaps=[("IN_FLIGHT", 2)]), "ALL GOOD", "", 0, 4),
        (status(gaps=[("IN_FLIGHT", 2)], training=9), "DEGRADED", "IN_FLIGHT", 10, 20),
        (status(gaps=[("PUBLISH_INTERVAL", 31)]), "ALL GOOD", "", 0, 4),
        (status(gaps=[("LOST_DEFINITIVE", 7)], state="held"), "STOPPED", "does not follow training: verified stands at step 7", 2, 7),
        (status(gaps=[("STORAGE_FULL", 23)]), "STOPPED", "Nothing newer comes to disk: durable stands at step 6", 2, 7),
        (status(gaps=[("OBJECT_STORE_ERROR", 33)]), "STOPPED", "No new recovery point comes: published stands at step 5", 2, 7),
        (status(gaps=[("REPLICA_SHORT", 25)]), "DEGRADED", "REPLICA_SHORT", 0, 4),
        (status(members=[{"name": "n1", "state": "down", "membership": "in"}]), "DEGRADED", "n1 is absent", 0, 4),
        (status(members=[{"name": "n1", "state": "syncing", "membership": "in"}]), "DEGRADED", "n1 is catching up", 0, 4),
        (status(members=[{"name": "n1", "state": "up", "membership": "draining"}]), "ALL GOOD", "", 0, 4),
        (status(members=[{"name": "n1", "state": "down", "membership": "out"}]), "ALL GOOD", "", 0, 4),
        (status(gaps=[("UNSUPPORTED", 12)], state="refused"), "STOPPED", "without protection", 0, 4),
        (status(state="unattached", lineage=0), "WAITING", "No job is attached", 0, 4),
        (status(state="probe_pending"), "WAITING", "probe_pending", 0, 4)]
    said = fake_answers()
    with FakeNode(said) as node, Browser(node.origin, PICTURES) as page:
        for answer, word, sentence, earliest, latest in cases:
            said["/v1/status"] = answer
            page.open()
            if word == "ALL GOOD":
                time.sleep(4)  # and it must stay so
            took = page.wait("%s (%s)" % (word, sentence), latest, lambda: page.word() == word
                             and sentence in page.text("verdict-text"))
            require(took >= earliest - 0.5, "%s came after %.1f s already, for %s" % (word, took, answer["jobs"][0]["gaps"]))
        said["/v1/status"] = fake_status(members=[{"name": "n0", "state": "up"}, {"name": "n1", "state": "up", "membership": "draining"},
                                                  {"name": "n2", "state": "down"}])
        page.wait("a member of each state", 5, lambda: page.states() == {"n0": "present", "n1": "draining", "n2": "absent"})
        page.require_quiet_console()
    print("passed  %-28s %d answers, each with its word, %.1f s" % (name, len(cases), time.monotonic() - begun), flush=True)


def read_token():
    name, begun = "read-token", time.monotonic()
    secret = "s3cret/+=token"

    def guarded(said):
        def answer(headers):
            if headers.get("Authorization") == "Bearer " + secret:
                return 200, said
            return 401, {"error": {"name": "UNAUTHORIZED", "what": "a read token is wanted"}}
        return answer
    with FakeNode({k: guarded(v) for k, v in fake_answers().items()}) as node, Browser(node.origin, PICTURES) as page:
        page.open()
        form = lambda: page.run("return !document.getElementById('token-form').hidden")
        page.wait("a form for the token", 20, form)
        require(page.number("published") == -1, "the page shows numbers without a token")
        asked = len(node.requests)
        time.sleep(3)
        require(len(node.requests) == asked, "the page goes on asking without a token")
        page.run("document.getElementById('token').value = 'wrong'; document.querySelector('#token-form button').click()")
        page.wait("that the token was refused", 10, lambda: "refused" in page.text("token-refused"))
        page.picture("read-token", 500)
        page.run("document.getElementById('token').value = arguments[0]; document.querySelector('#token-form button').click()", secret)
        page.wait("the numbers", 10, lambda: page.number("published") == 5 and not form())
        page.open()
        page.wait("the numbers after a reload, unasked", 10, lambda: page.number("published") == 5 and not form())
        require(page.run("return localStorage.length + document.cookie.length") == 0, "the token is kept beyond the tab")
        require(not any(secret in path for _, path, _ in node.requests), "the token stands in an address")
        require(page.run("return document.documentElement.outerHTML.includes(arguments[0])", secret) is False,
                "the token stands in the page")
        page.require_own_host_only()
    print("passed  %-28s asked once, refused once, kept in the tab, %.1f s" % (name, time.monotonic() - begun), flush=True)


def silent_node():
    name, begun = "silent-node", time.monotonic()
    with FakeNode(fake_answers()) as node, Browser(node.origin, PICTURES) as page:
        page.open()
        page.wait("the numbers", 20, lambda: page.number("published") == 5)
        node.mute = True
        page.wait("the silence", 10, lambda: page.word() == "NO ANSWER")
        since = page.text("verdict-text")
        asked = len(node.requests)
        time.sleep(16)
        # After 1, 2, 4, 8 s and then every 8 s; a browser may ask a second time on a fresh connection.
        require(0 < len(node.requests) - asked <= 10, "a silent node was asked %d times in 16 s" % (len(node.requests) - asked))
        require(page.text("verdict-text") == since, "the time of the silence moves: %s, then %s" % (since, page.text("verdict-text")))
        node.mute = False
        page.wait("the numbers again", 15, lambda: page.word() == "ALL GOOD")
    print("passed  %-28s asked less and less, then shown again, %.1f s" % (name, time.monotonic() - begun), flush=True)


if __name__ == "__main__":
    browsing.needed_or_not_run()
    chosen = harness.chosen([("verdicts", verdicts), ("hostile", hostile), ("read-token", read_token), ("silent-node", silent_node), ("live", live)],
                            sys.argv[1:])
    if any(case is live for _, case in chosen):
        rig.enter_privileged()
        if not rig.real_root():
            rig.not_run("loading the eBPF dropper needs real root")
        harness.programs_or_fail()
    sys.exit(harness.run_cases(chosen))
