"""The rig: N rank namespaces, a switch that mirrors their ports, and a monitor namespace for each checkpoint node.

    rank i     eth0 10.77.0.(10+i)   <-- veth -->  p<i> |
                                                        | br0 in the switch namespace
    monitor k  http0 10.77.0.(100+k) <-- veth -->  h<k> |
    monitor k  mon1 (no address)     <-- veth -->  mon<k> <== tc mirror of the ports p<i>

Each monitor port carries the whole mirror. Ranks reach a node's HTTP, and nodes one another, over the bridge; frames
that enter at h<k> are not mirrored. Every name carries the process id, so several rigs can coexist and what a killed test left is recognised
and swept. Everything is removed on exit, exception, Ctrl-C and SIGTERM.

Needs real root, or a user namespace made by `unshare -Urnm` (enter_privileged re-executes the program there).
"""
import ctypes
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

NOT_RUN = 77
NODE_ADDRESS = "10.77.0.100"
UNREACHABLE_ADDRESS = "10.77.0.200"
_INNER = "GRADTAP_RIG_USERNS"
_HERE = os.path.dirname(os.path.abspath(__file__))
_NAME = re.compile(r"^gt(\d+)-(sw|mon\d*|r\d+)$")


class RigError(RuntimeError):
    pass


def not_run(reason):
    """Ends the program the way the test runner understands as 'skipped, because'."""
    print("NOT RUN: " + reason, flush=True)
    sys.exit(NOT_RUN)


def node_address(node):
    return "10.77.0.%d" % (100 + node)


def rank_address(rank):
    return "10.77.0.%d" % (10 + rank)


def real_root():
    """Root of the machine, not of a user namespace."""
    if os.geteuid() != 0 or os.environ.get(_INNER):
        return False
    try:
        with open("/proc/self/uid_map") as f:
            return f.read().split() == ["0", "0", "4294967295"]
    except OSError:
        return False


LIMITED_LINK_MBIT = 80  # of each rank, where RLIMIT_MEMLOCK keeps the capture rings small; nodes share the limit


def memlock_bytes():
    """Bytes of AF_PACKET rings this process may lock; None when there is no limit."""
    if real_root():
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard


def enter_privileged():
    """Returns when this process may make network namespaces; re-executes under `unshare -Urnm` if it must.

    Where neither works the program ends with NOT RUN, the reason and exit code 77.
    """
    for tool in ("ip", "tc", "ethtool", "nsenter", "unshare", "sysctl"):
        if not _which(tool):
            not_run("the program `%s` is missing (./setup.sh installs it)" % tool)
    if os.environ.get(_INNER) or os.geteuid() == 0:
        _sweep()
        probe = "gt%d-r999" % os.getpid()
        made = subprocess.run([_which("ip"), "netns", "add", probe], capture_output=True, text=True)
        if made.returncode != 0:
            not_run("cannot make network namespaces: " + made.stderr.strip())
        subprocess.run([_which("ip"), "netns", "del", probe], capture_output=True)
        limit = memlock_bytes()
        if limit is not None and limit < 1 << 20:
            not_run("RLIMIT_MEMLOCK is %d bytes, capture rings need at least 1 MiB (ulimit -l)" % limit)
        return
    inner = "mount -t tmpfs tmpfs /run && mkdir -p /run/netns"
    probe = subprocess.run([_which("unshare"), "-Urnm", "sh", "-c", inner], capture_output=True, text=True)
    if probe.returncode != 0:
        not_run("not root, and `unshare -Urnm` fails here: " + (probe.stderr.strip() or "no message"))
    os.environ[_INNER] = "1"
    os.execv(_which("unshare"), ["unshare", "-Urnm", "sh", "-c", inner + ' && exec "$@"', "sh", sys.executable]
             + [os.path.abspath(sys.argv[0])] + sys.argv[1:])


def _which(tool):
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin")


def _run(*command, check=True):
    done = subprocess.run([_which(command[0]) or command[0]] + list(command[1:]), capture_output=True, text=True,
                          timeout=60)
    if check and done.returncode != 0:
        raise RigError("`%s` failed: %s" % (" ".join(command), (done.stderr or done.stdout).strip()))
    return done


def _namespaces():
    done = _run("ip", "netns", "list", check=False)
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]


def _sweep():
    """Removes rigs whose process is gone."""
    for name in _namespaces():
        match = _NAME.match(name)
        if match and not os.path.exists("/proc/" + match.group(1)):
            _delete_namespace(name)


def _delete_namespace(name):
    for pid in _run("ip", "netns", "pids", name, check=False).stdout.split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
    _run("ip", "netns", "del", name, check=False)


def _raise_interrupt(number, _frame):
    raise KeyboardInterrupt("signal %d" % number)


class Rig:
    """mirror: "all:in" (frames that enter the switch from each rank), "all:both", "0:both", "0,2:in", "0:out", "none".

    offload=True leaves TSO/GSO/GRO on, so the mirror carries super-frames. checksums=False leaves transmit checksum
    offload on, so captured TCP checksums are not filled in.
    """

    def __init__(self, ranks=4, mtu=1500, mirror="all:in", queues=4, offload=False, checksums=True, nodes=1):
        self.ranks = ranks
        self.nodes = nodes
        self.mtu = mtu
        self.mirror = mirror
        self.queues = queues
        self.offload = offload
        self.checksums = checksums
        self.prefix = "gt%d-" % os.getpid()
        self.switch = self.prefix + "sw"
        self.monitor = self.monitor_of(0)
        self._children = []
        self._handlers = {}
        self._loss_every = None

    def rank(self, i):
        return self.prefix + "r%d" % i

    def monitor_of(self, node):
        return self.prefix + ("mon%d" % node if node else "mon")

    def _monitors(self):
        return [self.monitor_of(k) for k in range(self.nodes)]

    # ---- life

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._handlers[number] = signal.signal(number, _raise_interrupt)
        try:
            self._up()
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(self, *_):
        self._down()

    def _up(self):
        _sweep()
        for name in [self.switch] + self._monitors() + [self.rank(i) for i in range(self.ranks)]:
            _run("ip", "netns", "add", name)
            self.run(name, "ip", "link", "set", "lo", "up")
            self.run(name, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1",
                     "net.ipv6.conf.default.disable_ipv6=1", check=False)
        mtu = str(self.mtu)
        ip = lambda *a: self.run(self.switch, "ip", *a)
        ip("link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0")
        ip("link", "set", "br0", "mtu", mtu, "up")
        for k in range(self.nodes):
            self._monitor_port(k, ip, mtu)
            self._link("h%d" % k, self.monitor_of(k), "http0", node_address(k))
        for i in range(self.ranks):
            self._link("p%d" % i, self.rank(i), "eth0", rank_address(i))
            self.run(self.switch, "tc", "qdisc", "add", "dev", "p%d" % i, "clsact")
            if memlock_bytes() is not None:
                # Rings of a few MiB hold some milliseconds of what these links can carry: slower links instead.
                self.run(self.rank(i), "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                         "%dmbit" % (LIMITED_LINK_MBIT // self.nodes), "burst", "32kb", "latency", "200ms")
        if self.mirror != "none":
            who, direction = self.mirror.split(":")
            ports = range(self.ranks) if who == "all" else [int(x) for x in who.split(",")]
            hooks = {"in": ["ingress"], "out": ["egress"], "both": ["ingress", "egress"]}[direction]
            for i in ports:
                for hook in hooks:
                    self.run(self.switch, "tc", "filter", "add", "dev", "p%d" % i, hook, "protocol", "all", "prio",
                             "10", "u32", "match", "u32", "0", "0", *self._mirror_actions())

    def _mirror_actions(self):
        actions = []
        for k in range(self.nodes):
            actions += ["action", "mirred", "egress", "mirror", "dev", "mon%d" % k]
            actions += ["pipe"] if k + 1 < self.nodes else []
        return actions

    def add_wire(self, name="wire0"):
        """A port that carries what a traffic generator in the switch sends to `name`; the mirror copies all of it."""
        mtu = str(self.mtu)
        self.run(self.switch, "ip", "link", "add", name, "mtu", mtu, "type", "veth", "peer", "name", name + "t",
                 "mtu", mtu)
        for port in (name, name + "t"):
            self.run(self.switch, "ip", "link", "set", port, "arp", "off", "promisc", "on", "up")
            self._offloads(self.switch, port)
        self.run(self.switch, "tc", "qdisc", "add", "dev", name + "t", "clsact")
        self.run(self.switch, "tc", "filter", "add", "dev", name + "t", "ingress", "protocol", "all", "prio", "10",
                 "u32", "match", "u32", "0", "0", *self._mirror_actions())
        return name

    def _monitor_port(self, k, ip, mtu):
        queues, port, namespace = str(self.queues), "mon%d" % k, self.monitor_of(k)
        ip("link", "add", port, "numtxqueues", queues, "numrxqueues", queues, "mtu", mtu, "type", "veth",
           "peer", "name", "mon1", "netns", namespace, "numtxqueues", queues, "numrxqueues", queues, "mtu", mtu)
        ip("link", "set", port, "up")
        # No ARP on the tap: it must never answer for the node's address.
        self.run(namespace, "ip", "link", "set", "mon1", "arp", "off", "promisc", "on", "up")
        self._offloads(self.switch, port)
        self._offloads(namespace, "mon1")

    def _link(self, port, namespace, device, address):
        mtu = str(self.mtu)
        self.run(self.switch, "ip", "link", "add", port, "mtu", mtu, "type", "veth", "peer", "name", device,
             "netns", namespace, "mtu", mtu)
        self.run(namespace, "ip", "addr", "add", address + "/24", "dev", device)
        self.run(namespace, "ip", "link", "set", device, "up")
        self.run(self.switch, "ip", "link", "set", port, "master", "br0", "up")
        self._offloads(self.switch, port)
        self._offloads(namespace, device)
        if self.checksums:
            self.run(namespace, "ethtool", "-K", device, "tx", "off")

    def _offloads(self, namespace, device):
        if not self.offload:
            for feature in ("tso", "gso", "gro", "lro", "tx-udp-segmentation", "tx-sctp-segmentation"):
                self.run(namespace, "ethtool", "-K", device, feature, "off", check=False)

    def _down(self):
        previous = None
        if threading.current_thread() is threading.main_thread():
            previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half a rig
        try:
            for child in self._children:
                kill_group(child)
            for name in [self.rank(i) for i in range(self.ranks)] + self._monitors() + [self.switch]:
                if name in _namespaces():
                    _delete_namespace(name)
        finally:
            if previous is not None:
                signal.signal(signal.SIGINT, previous)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers = {}

    # ---- use

    def command(self, namespace, *command):
        # nsenter and not `ip netns exec` or `ip -n`: those mount a new /sys, which containers may forbid.
        return [_which("nsenter"), "--net=/run/netns/" + namespace, "--"] + list(command)

    def run(self, namespace, *command, check=True, timeout=60):
        done = subprocess.run(self.command(namespace, _which(command[0]) or command[0], *command[1:]),
                              capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            raise RigError("`%s` in %s failed: %s" % (" ".join(command), namespace,
                                                      (done.stderr or done.stdout).strip()))
        return done

    def start(self, namespace, *command, **options):
        """A child in a process group of its own, killed with the rig."""
        child = subprocess.Popen(self.command(namespace, *command), start_new_session=True, **options)
        self._children.append(child)
        return child

    def socket(self, namespace, family=socket.AF_INET, kind=socket.SOCK_STREAM):
        """A socket that lives in the given namespace."""
        result = []

        def enter():
            libc = ctypes.CDLL(None, use_errno=True)
            fd = os.open("/run/netns/" + namespace, os.O_RDONLY)
            try:
                if libc.setns(fd, 0x40000000) != 0:  # CLONE_NEWNET, this thread only
                    result.append(OSError(ctypes.get_errno(), "setns " + namespace))
                    return
                result.append(socket.socket(family, kind))
            finally:
                os.close(fd)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if isinstance(result[0], OSError):
            raise result[0]
        return result[0]

    def capture(self, path):
        """tcpdump on the tap; returns a function that stops it and waits until the file is complete."""
        if not real_root():
            raise RigError("tcpdump needs real root: it changes its groups, which a user namespace forbids")
        log = open(path + ".log", "w")
        child = self.start(self.monitor, _which("tcpdump"), "-i", "mon1", "-n", "-s", "0", "-B", "65536",
                           "--immediate-mode", "-Z", "root", "-w", path, stderr=log)
        deadline = time.monotonic() + 10
        while "listening" not in open(path + ".log").read():
            if time.monotonic() > deadline or child.poll() is not None:
                raise RigError("tcpdump does not listen: " + open(path + ".log").read())
            time.sleep(0.05)

        def stop():
            time.sleep(0.5)
            os.killpg(child.pid, signal.SIGTERM)
            child.wait(timeout=20)
            log.close()
            return open(path + ".log").read()
        return stop

    # ---- loss on the mirror only; the ranks' own traffic never passes mon<k>

    def mirror_loss(self, every, burst=1, seed=None, node=0):
        """Drops `burst` of every `every` frames mirrored to one node; with a seed value, at random with that rate."""
        if not real_root():
            raise RigError("loading the eBPF dropper needs real root")
        clang = _which("clang-19") or _which("clang")
        if not clang:
            raise RigError("clang-19 is missing (./setup.sh check installs it)")
        folder = tempfile.mkdtemp(prefix="gradtap-bpf-")
        try:
            compiled = os.path.join(folder, "mirror_loss.o")
            multiarch = subprocess.run(["gcc-12", "-print-multiarch"], capture_output=True, text=True).stdout.strip()
            _run(clang, "-O2", "-g", "-target", "bpf", "-I/usr/include/" + (multiarch or "x86_64-linux-gnu"),
                 "-DEVERY=%d" % every, "-DBURST=%d" % burst, "-DAT_RANDOM=%d" % (seed is not None), "-c",
                 os.path.join(_HERE, "mirror_loss.bpf.c"), "-o", compiled)
            port = "mon%d" % node
            self.run(self.switch, "tc", "qdisc", "replace", "dev", port, "clsact", check=False)
            self.run(self.switch, "tc", "filter", "add", "dev", port, "egress", "bpf", "da", "obj", compiled,
                     "sec", "tc")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def stop_mirror_loss(self, node=0):
        self.run(self.switch, "tc", "filter", "del", "dev", "mon%d" % node, "egress", check=False)

    def mirror_counts(self, node=0):
        """(frames the mirror delivered to the node's tap, frames the dropper took)."""
        text = self.run(self.monitor_of(node), "cat", "/proc/net/dev").stdout
        delivered = next(int(line.split(":")[1].split()[1]) for line in text.splitlines() if "mon1:" in line)
        shown = self.run(self.switch, "tc", "-s", "qdisc", "show", "dev", "mon%d" % node, "clsact", check=False).stdout
        match = re.search(r"dropped (\d+)", shown)
        return delivered, int(match.group(1)) if match else 0


def kill_group(child, number=signal.SIGKILL):
    if child.poll() is None:
        try:
            os.killpg(child.pid, number)
        except OSError:
            pass
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass
