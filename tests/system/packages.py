#!/usr/bin/python3
"""The Debian package and the Python package: installed, started, stopped and removed, in a copy-on-write view of this
machine that nothing leaves behind. `make package` and `pip install ./trainer` make what is installed.

As root; without it NOT RUN and exit code 77.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INSIDE = "/gradtap-package-test"
NODE = """
[node]
name = "tap0"
data_dir = "/var/lib/gradtap"
listen = "127.0.0.1:7700"
[tap]
kind = "af_packet"
interface = "mon0"
queues = 1
frame_bytes = 2048
ring_frames = 1024
[objects]
directory = "/var/lib/gradtap-points"
[[job]]
name = "gpt"
endpoints = ["10.0.0.10", "10.0.0.11"]
"""


def require(condition, message):
    if not condition:
        print("FAILED: " + message, flush=True)
        sys.exit(1)
    print("ok: " + message, flush=True)


def run(*command, expect=0, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **options)
    if expect is not None and done.returncode != expect:
        print(done.stdout)
        require(False, "%s ends with %d, not %d" % (" ".join(command), expect, done.returncode))
    return done


def commands_of(unit, key):
    with open(unit, encoding="utf-8") as f:
        return [line.split("=", 1)[1].split() for line in f.read().splitlines() if line.startswith(key + "=")]


def inside():
    """In the view, as its root directory: dpkg sees a machine that nobody has touched."""
    deb = os.path.join(INSIDE, "gradtap.deb")
    first = run("dpkg", "-i", deb).stdout
    require("gradtap: write /etc/gradtap/node.toml" in first, "the first installation says what to do next")
    files = [f for f in run("dpkg", "-L", "gradtap").stdout.split() if os.path.isfile(f)]
    require({"/usr/bin/gradtapd", "/usr/bin/gradtap", "/usr/lib/systemd/system/gradtapd.service",
             "/usr/lib/python3/dist-packages/gradtap/tap.py", "/usr/share/doc/gradtap/docs/operations.md"}
            <= set(files), "%d files are installed" % len(files))
    unit = "/usr/lib/systemd/system/gradtapd.service"
    judged = run("systemd-analyze", "verify", unit, expect=None).stdout
    require(not re.search("gradtapd.service:", judged), "systemd finds nothing wrong with the unit " + judged.strip())
    run("/usr/bin/python3", "-c", "import gradtap; gradtap.attach, gradtap.restore", cwd="/")

    with open("/etc/gradtap/node.toml", "w", encoding="utf-8") as f:
        f.write(NODE)
    os.makedirs("/var/lib/gradtap-points")
    for command in commands_of(unit, "ExecStartPre"):
        run(*command)
    (start,) = commands_of(unit, "ExecStart")
    lines = tempfile.TemporaryFile("w+")
    node = subprocess.Popen(start, stdout=lines, stderr=subprocess.STDOUT)
    try:
        for _ in range(150):
            answer = run("gradtap", "status", "--endpoint", "http://127.0.0.1:7700", expect=None)
            if answer.returncode == 0 or node.poll() is not None:
                break
            time.sleep(0.2)
        if answer.returncode != 0:
            lines.seek(0)
            print(lines.read())
        require(answer.returncode == 0, "the node of the unit's ExecStart answers `gradtap status`")
        # What an upgrade does while it runs.
        run("dpkg", "-i", deb)
        require(node.poll() is None, "an upgrade leaves a node running that systemd does not know")
        node.send_signal(signal.SIGTERM)
        require(node.wait(20) == 0, "SIGTERM ends it with exit code 0")
    finally:
        node.kill()
    require(os.listdir("/var/lib/gradtap"), "it wrote its data directory")

    run("dpkg", "-r", "gradtap")
    left = [f for f in files if os.path.exists(f)]
    require(not left, "nothing that was installed is left after removal %s" % left[:3])
    require(os.path.exists("/etc/gradtap/node.toml") and os.listdir("/var/lib/gradtap"),
            "configuration and data are still there")
    last = run("dpkg", "-P", "gradtap").stdout
    require("/var/lib/gradtap is kept" in last and os.listdir("/var/lib/gradtap"), "so they are after a purge, which says so")

    # Plain `pip install ./trainer` fetches setuptools; here Debian's is used, because a test must not need a network.
    run("/usr/bin/python3", "-m", "venv", "--system-site-packages", "/venv")
    run("/venv/bin/pip", "install", "--no-build-isolation", "--no-deps", os.path.join(INSIDE, "trainer"), cwd="/")
    where = run("/venv/bin/python", "-c", "import gradtap; print(gradtap.__file__)", cwd="/").stdout.strip()
    require(where.startswith("/venv/"), "pip installs the Python package into a virtual environment: " + where)
    require("gradtap" in run("/venv/bin/pip", "uninstall", "-y", "gradtap", cwd="/").stdout, "and takes it out again")
    return 0


def main():
    if sys.argv[1:] == ["inside"]:
        return inside()
    missing = [p for p in ("python3-venv", "python3-setuptools", "dpkg-dev") if run(
        "dpkg-query", "-W", "-f", "${db:Status-Status}", p, expect=None).stdout != "installed"]
    if os.geteuid() != 0 or missing:
        print("NOT RUN: " + ("missing packages: " + " ".join(missing) if missing else "mounting needs root"))
        return 77
    run("make", "package", cwd=ROOT)
    (deb,) = [f for f in os.listdir(os.path.join(ROOT, "build")) if f.startswith("gradtap_") and f.endswith(".deb")]
    with tempfile.TemporaryDirectory() as base:
        shutil.copy(os.path.join(ROOT, "build", deb), os.path.join(base, "gradtap.deb"))
        shutil.copytree(os.path.join(ROOT, "trainer"), os.path.join(base, "trainer"),
                        ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        shutil.copy(os.path.abspath(__file__), base)
        # The kernel takes the mounts back when the last process of this namespace ends.
        script = """
set -e
mkdir -p "$1/view"; mount -t tmpfs view "$1/view"; mkdir "$1/view/upper" "$1/view/work" "$1/view/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$1/view/upper",workdir="$1/view/work" "$1/view/root"
cd "$1/view/root"
mkdir -p .%(inside)s; mount --bind "$1" .%(inside)s
mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev; mount -t tmpfs run run; mount -t tmpfs tmp tmp
ip link set lo up; ip link add mon0 type veth peer name mon1; ip link set mon1 up; ip link set mon0 up
exec chroot . /usr/bin/python3 %(inside)s/packages.py inside
""" % {"inside": INSIDE}
        done = subprocess.run(["unshare", "-m", "-n", "-p", "-f", "--propagation", "private", "sh", "-c", script, "sh", base],
                              timeout=900, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    print("VERDICT: " + ("the packages install, start, stop and leave" if done.returncode == 0 else "FAILED"))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
