#!/usr/bin/python3
"""The node link of a running cluster under attack, while a job trains: strangers and peers with no certificate, a wrong,
an expired or another member's one, plain text, old TLS, half a handshake, garbage and thousands of idle connections are
refused, by name and counted by reason, in bounded memory and descriptors; then certificates are rotated and the
authority is replaced under the job. No member is ever seen down, and the end equals the trainer's, bit for bit.

    link_security.py [short|long]
"""
import json
import os
import resource
import socket
import ssl
import sys
import time

import harness
import rig
from cluster import Cluster, PublishWatch, small
from harness import require

PORT = 7800
TARGET = 1  # the node that is attacked
IDLE = {"short": 2000, "long": 10000}
STEPS = {"short": 110, "long": 400}
# Beyond what the node had before: 64 connections that have not said who they are, and some for its own work.
DESCRIPTORS_MORE = 256  # hellos, connections that are heard out, a burst of the listen queue
MEMORY_MORE_MIB = 64
PAUSE_SECONDS_AT_MOST = 6.0


class Attacker:
    """Connects to the link port of the target from the namespace of another node, or of a rank."""

    def __init__(self, r, cluster, folder):
        self.rig, self.cluster, self.folder = r, cluster, folder
        self.address = (rig.node_address(TARGET), PORT)
        with open(os.path.join(harness.ROOT, "tests", "unit", "link", "golden", "hello.1.hex")) as f:
            self.hello = bytes.fromhex("".join(f.read().split()))  # of tap0, to tap1

    def connect(self, namespace=None):
        found = self.rig.socket(namespace or self.rig.monitor_of(0))
        found.settimeout(20)
        found.connect(self.address)
        return found

    def context(self, certificate=None, newest=ssl.TLSVersion.TLSv1_3):
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
        made.maximum_version = newest
        if certificate:
            made.load_cert_chain(*certificate)
        return made

    def says(self, certificate=None, **how):
        """What the node tells a TLS client, which greets as tap0: an alert's text, or bytes."""
        with self.connect() as plain:
            try:
                with self.context(certificate, **how).wrap_socket(plain) as secure:
                    secure.sendall(self.hello)
                    return secure.recv(4096)
            except OSError as error:
                return str(error)

    def plain(self, data):
        with self.connect() as found:
            found.sendall(data)
            answer = b""
            try:
                while part := found.recv(4096):
                    answer += part
            except ConnectionResetError:
                pass
            return answer

    def client_hello(self):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = self.context().wrap_bio(incoming, outgoing)
        try:
            secure.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return outgoing.read()


def link_counters(cluster, number):
    found = cluster.nodes[number].get("/v1/status")["link"]
    return {name[len("link."):]: value for name, value in found.items()}


class Usage:
    """What a node's process holds."""

    def __init__(self, node):
        self.pid = node.child.pid
        self.descriptors, self.memory_mib = self.now()
        self.most = (0, 0.0)

    def now(self):
        with open("/proc/%d/status" % self.pid) as f:
            kib = next(int(line.split()[1]) for line in f if line.startswith("VmRSS:"))
        return len(os.listdir("/proc/%d/fd" % self.pid)), kib / 1024.0

    def check(self):
        descriptors, memory = self.now()
        self.most = (max(self.most[0], descriptors), max(self.most[1], memory))
        require(descriptors <= self.descriptors + DESCRIPTORS_MORE, "the node holds %d descriptors, %d before the attack"
                % (descriptors, self.descriptors))
        require(memory <= self.memory_mib + MEMORY_MORE_MIB, "the node holds %.0f MiB, %.0f before the attack"
                % (memory, self.memory_mib))


def expect(cluster, counter, attack, *arguments, told=None):
    """The attack raises this counter by one or more, and an event names the reason. Events come once a second at most."""
    before = link_counters(cluster, TARGET)[counter]
    answer = attack(*arguments)
    harness.wait_until("%s to count" % counter, 10, lambda: link_counters(cluster, TARGET)[counter] > before)
    if told:
        def seen():
            events = cluster.nodes[TARGET].get("/v1/events")["events"]
            return any(told in json.dumps(e) and rig.node_address(0) in json.dumps(e) for e in events)
        if not seen():
            time.sleep(1.1)
            attack(*arguments)
        harness.wait_until("an event that says: " + told, 10, seen)
    return answer


def attack_all(r, cluster, folder):
    authority, attacker = cluster.authority, Attacker(r, cluster, folder)
    made = lambda name, *a, **k: authority.wrong(os.path.join(folder, "wrong-" + name), *a, **k)
    expired, foreign, other = made("expired", "tap0", days=-1), made("foreign", "tap0", foreign=True), made("name", "tap9")
    words = expect(cluster, "refused_no_certificate", attacker.says, told="shows no certificate")
    require("CERTIFICATE_REQUIRED" in str(words), "without a certificate the node said: %s" % words)
    words = expect(cluster, "refused_authority", attacker.says, foreign, told="not of this cluster's authority")
    require("UNKNOWN_CA" in str(words), "with a foreign certificate the node said: %s" % words)
    words = expect(cluster, "refused_expired", attacker.says, expired, told="has expired")
    require("EXPIRED" in str(words), "with an expired certificate the node said: %s" % words)
    words = expect(cluster, "refused_name", attacker.says, other, told="has another name")
    require(isinstance(words, bytes) and words[:4] == b"GTLK", "with another name the node said: %s" % words)
    expect(cluster, "refused_handshake", lambda: attacker.says(newest=ssl.TLSVersion.TLSv1_2), told="older TLS")
    expect(cluster, "refused_plain_text", attacker.plain, attacker.hello, told="does not speak TLS")
    expect(cluster, "refused_plain_text", attacker.plain, b"GET / HTTP/1.1\r\n\r\n")
    expect(cluster, "refused_handshake", attacker.plain, b"\x16\x03\x01\x00\x40" + os.urandom(64))
    expect(cluster, "handshake_timeouts", attacker.plain, attacker.client_hello()[:100], told="did not finish its handshake")
    require(expect(cluster, "refused_address", lambda: attacker.connect(r.rank(0)).recv(1)) == b"",
            "a stranger got bytes")
    return attacker


def idle_flood(r, cluster, attacker, count, usage, watch):
    """Opens `count` connections and keeps them open, and looks at the node while it does so and for some time after."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 1024, max(hard, soft)), max(hard, soft)))
    open_ones, before = [], watch.published()
    begun = time.monotonic()
    for i in range(count):
        found = r.socket(r.monitor_of(0))
        found.setblocking(False)
        found.connect_ex(attacker.address)
        open_ones.append(found)
        if i % 250 == 249:
            usage.check()
            require(cluster.whole(), "a member is seen down after %d idle connections" % (i + 1))
    for _ in range(20):
        usage.check()
        time.sleep(0.1)
    require(cluster.whole(), "a member is seen down after %d idle connections" % count)
    harness.wait_until("published to move under the flood", 20, lambda: watch.published() > before + 3)
    seconds = time.monotonic() - begun
    for found in open_ones:
        found.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return seconds


def rotate(cluster, phase=None):
    """Every node finds its new files, its connections are replaced, and nobody is seen down."""
    before = [link_counters(cluster, k) for k in range(len(cluster.nodes))]
    cluster.authority.rotate(phase)

    def there():
        require(cluster.whole(), "a member is seen down while certificates change")
        now = [link_counters(cluster, k) for k in range(len(cluster.nodes))]
        return all(n["certificates_read"] > b["certificates_read"] for n, b in zip(now, before)) and \
            sum(n["tunnels_renewed"] for n in now) > sum(b["tunnels_renewed"] for b in before)
    harness.wait_until("new certificates to be in use", 30, there)


def security(name, which):
    begun = time.monotonic()
    steps = STEPS[which]
    with harness.case_folder(name) as folder, rig.Rig(ranks=2, nodes=2) as r:
        cluster = Cluster(r, folder).start()
        job = harness.Job(r, folder, small(steps, "--step-sleep", "0.15"), attach=cluster.endpoints()).start()
        with PublishWatch(cluster) as watch:
            cluster.wait_step("published", 5, 90)
            attacked, before = time.monotonic(), link_counters(cluster, TARGET)
            usage = Usage(cluster.nodes[TARGET])
            attacker = attack_all(r, cluster, folder)
            usage.check()
            seconds = idle_flood(r, cluster, attacker, IDLE[which], usage, watch)
            require(job.running(), "the job ended before the certificates were rotated")
            old = cluster.authority.keep("tap0", os.path.join(folder, "old"))
            rotate(cluster)
            if which == "long":
                for phase in ("trust", "switch", "retire"):
                    rotate(cluster, phase)
                words = expect(cluster, "refused_authority", attacker.says, old)
                require("UNKNOWN_CA" in str(words), "with a certificate of the retired authority: %s" % words)
            require(job.running(), "the job ended before the certificates were rotated")
            job.wait(240, cluster.watch(job))
            cluster.wait_step("published", steps, 60)
            pause = watch.longest_pause(attacked, time.monotonic())
            watch.check()
        require(pause <= PAUSE_SECONDS_AT_MOST, "published paused for %.1f s" % pause)
        points = cluster.check_points(job)
        require(points[-1] == steps and len(points) == steps, "%d points of %d steps" % (len(points), steps))
        harness.compare_export(cluster.export(steps), job.final(), steps)
        after = link_counters(cluster, TARGET)
        for counter in ("tunnels_failed", "calls_timed_out"):
            require(after[counter] == before[counter], "%s rose from %d to %d" % (counter, before[counter], after[counter]))
        cluster.stop()
    print("passed  %-28s %d idle connections in %.1f s, at most %d descriptors (%d before) and %.0f MiB (%.0f before); "
          "longest pause of published %.1f s; %d points; %.1f s"
          % (name, IDLE[which], seconds, usage.most[0], usage.descriptors, usage.most[1], usage.memory_mib, pause,
             len(points), time.monotonic() - begun), flush=True)


def refuses_to_start(name):
    """Without certificates a node of a cluster does not start, and says what to do; security = "none" must be written."""
    with harness.case_folder(name) as folder, rig.Rig(ranks=2, nodes=2) as r:
        cluster = Cluster(r, folder)
        os.unlink(cluster.authority.file("tap0", "node.key"))
        node = cluster.nodes[0].start(wait=False)
        code = node.child.wait(timeout=30)
        words = node.last_words(20)
        require(code == 2 and "E523" in words and "node.key" in words and "gradtap ca" in words,
                "a node without its key: exit code %s: %s" % (code, words))
        plain = Cluster(r, folder, security="none").start()
        warnings = plain.nodes[0].get("/v1/status")["warnings"]
        require(any("security is none" in w for w in warnings), "no warning: %s" % warnings)
        require("SECURITY IS NONE" in plain.nodes[0].last_words(50), "nothing in the log")
        plain.stop()
    print("passed  %-28s" % name, flush=True)


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    CASES = [("link-security-start", lambda: refuses_to_start("link-security-start")),
             ("link-security-short", lambda: security("link-security-short", "short")),
             ("link-security-long", lambda: security("link-security-long", "long"))]
    words = sys.argv[1:]
    if words == ["short"]:
        chosen = CASES[:2]
    elif words == ["long"]:
        chosen = CASES[2:]
    else:
        chosen = harness.chosen(CASES, words)
    sys.exit(harness.run_cases(chosen))
