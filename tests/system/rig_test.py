#!/usr/bin/python3
"""The rig itself: frames are mirrored whole, the node is reachable, loss is as asked for, nothing stays behind."""
import os
import signal
import socket
import subprocess
import sys
import time

import rig


def check(condition, message):
    if not condition:
        print("FAILED: " + message)
        sys.exit(1)
    print("ok: " + message, flush=True)


def send(r, frames, size):
    """UDP from rank 0 to rank 1; returns how many frames rank 1 got."""
    receiver = r.socket(r.rank(1), kind=socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
    receiver.bind((rig.rank_address(1), 9000))
    receiver.settimeout(0.5)
    sender = r.socket(r.rank(0), kind=socket.SOCK_DGRAM)
    got = 0
    for _ in range(frames // 50):
        for _ in range(50):
            sender.sendto(bytes(size), (rig.rank_address(1), 9000))
        for _ in range(50):
            try:
                receiver.recv(65536)
                got += 1
            except socket.timeout:
                break
    sender.close()
    receiver.close()
    return got


def tcp(r, namespace, listener_namespace, address):
    server = r.socket(listener_namespace)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, 7700))
    server.listen(1)
    client = r.socket(namespace)
    client.settimeout(5)
    client.connect((address, 7700))
    client.sendall(b"x")
    peer, _ = server.accept()
    peer.settimeout(5)
    answer = peer.recv(1)
    for s in (peer, client, server):
        s.close()
    return answer == b"x"


def three_nodes():
    """Every monitor port carries the whole mirror; nodes reach one another; loss is on one port alone."""
    with rig.Rig(ranks=2, nodes=3) as r:
        before = [r.mirror_counts(k)[0] for k in range(3)]
        check(send(r, 5000, 1400) == 5000, "5000 frames reach rank 1 while three ports mirror")
        time.sleep(0.3)
        delivered = [r.mirror_counts(k)[0] - before[k] for k in range(3)]
        check(all(5000 <= d <= 5020 for d in delivered), "each of three monitor ports got them all (%s)" % delivered)
        for k in range(3):
            check(tcp(r, r.rank(0), r.monitor_of(k), rig.node_address(k)), "a rank reaches node %d" % k)
            other = (k + 1) % 3
            check(tcp(r, r.monitor_of(k), r.monitor_of(other), rig.node_address(other)),
                  "node %d reaches node %d" % (k, other))
        if rig.real_root():
            before = [r.mirror_counts(k)[0] for k in range(3)]
            r.mirror_loss(every=10, node=1)
            check(send(r, 1000, 100) == 1000, "the ranks' traffic is whole")
            time.sleep(0.2)
            counts = [r.mirror_counts(k) for k in range(3)]
            lost = [1000 - (c[0] - b) for c, b in zip(counts, before)]
            check(90 <= counts[1][1] <= 102 and lost[0] <= 0 and lost[2] <= 0,
                  "loss on the port of node 1 only (%s missing)" % [max(0, n) for n in lost])
    check(not any(n.startswith(r.prefix) for n in rig._namespaces()), "three monitor namespaces are gone")


def main():
    rig.enter_privileged()
    with rig.Rig(ranks=2, mtu=9000) as r:
        namespaces = [r.switch, r.monitor, r.rank(0), r.rank(1)]
        check(all(n in rig._namespaces() for n in namespaces), "the namespaces exist")
        before, _ = r.mirror_counts()
        check(send(r, 1000, 8000) == 1000, "1000 frames of 8042 bytes reach rank 1")
        time.sleep(0.2)
        delivered, dropped = r.mirror_counts()
        check(1000 <= delivered - before <= 1020 and dropped == 0, "the mirror delivered each once (%d, with ARP)"
              % (delivered - before))
        check(tcp(r, r.rank(1), r.monitor, rig.NODE_ADDRESS),
              "a rank reaches the monitor namespace at the address of the node")
        if rig.real_root():
            before, _ = r.mirror_counts()
            r.mirror_loss(every=100)
            check(send(r, 2000, 100) == 2000, "with a dropper on the mirror the ranks' traffic is whole")
            time.sleep(0.2)
            delivered, dropped = r.mirror_counts()
            check(19 <= dropped <= 21 and 1980 <= delivered - before <= 2010,
                  "the dropper took %d of 2000 mirrored frames" % dropped)
            r.stop_mirror_loss()
        else:
            print("SKIPPED: loss on the mirror (loading eBPF needs real root)")
        sleeper = r.start(r.rank(0), "sleep", "1000")
    check(not any(n in rig._namespaces() for n in namespaces), "the namespaces are gone")
    check(sleeper.poll() is not None, "a child left running has been ended")
    try:
        with rig.Rig(ranks=2) as r:
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    check(not any(n.startswith(r.prefix) for n in rig._namespaces()), "an exception leaves nothing behind")
    three_nodes()
    # Ctrl-C in the middle of a rig, in a process of its own.
    code = ("import sys, time; sys.path.insert(0, %r); import rig\n"
            "with rig.Rig(ranks=2) as r:\n  print(r.prefix, flush=True)\n  time.sleep(60)\n"
            % os.path.dirname(os.path.abspath(__file__)))
    for number in (2, 15):
        # A run in the background is started with SIGINT ignored, and children inherit that.
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                 text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        prefix = child.stdout.readline().strip()
        child.send_signal(number)
        child.wait(timeout=20)
        check(prefix and not any(n.startswith(prefix) for n in rig._namespaces()),
              "signal %d leaves nothing behind" % number)


if __name__ == "__main__":
    main()
