#!/usr/bin/python3
"""The path of a newcomer: every command of docs/try.md, in its order, with a script of a form that no example has. The job is
killed under protection, started again from the newest point, and ends with the bits of a run without a break.

Everything happens in namespaces of its own and in a temporary folder. Needs root, or user namespaces; NOT RUN otherwise.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import rig

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PUBLISHED = 12  # before the accident; the job has 40 steps
# Between the blocks of the document: what a reader does with the eyes.
UNTIL_PUBLISHED = """
for i in $(seq 600); do
  at=$(build/bin/gradtap status --json 2>/dev/null | /usr/bin/python3 -c '
import json, sys
jobs = json.load(sys.stdin)["jobs"]
print(jobs[0].get("published") or 0 if jobs else 0)' 2>/dev/null || echo 0)
  [ "${at:-0}" -ge %d ] && break
  sleep 0.1
done
echo "published before the accident: $at"
""" % PUBLISHED
UNTIL_READY = """
for i in $(seq 300); do grep -q ready try/node.log && break; sleep 0.1; done
"""


def blocks():
    """The commands of each section of the document, by its heading; one block each, joined."""
    with open(os.path.join(ROOT, "docs", "try.md"), encoding="utf-8") as f:
        text = f.read()
    return [(title, re.findall(r"^```\n(.*?)^```$", body, re.M | re.S))
            for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S)]


def program():
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for title, commands in blocks():
        for command in commands:
            lines.append("echo '-- %s'" % title)
            lines.append(command)
            if "node=$!" in command:
                lines.append(UNTIL_READY)
            if "first=$!" in command:
                lines.append(UNTIL_PUBLISHED)
    return "\n".join(lines)


def digests(path):
    with open(path, encoding="utf-8") as f:
        return sorted(re.findall(r"^rank (\d) digest ([0-9a-f]{64})$", f.read(), re.M))


def require(condition, message):
    if not condition:
        print("FAILED: " + message, flush=True)
        sys.exit(1)


def main():
    rig.enter_privileged()
    for name in ("gradtapd", "gradtap"):
        require(os.path.exists(os.path.join(ROOT, "build", "bin", name)), "build/bin/%s is missing: make build" % name)
    commands = program()
    require(commands.count("train my_train.py") == 3, "docs/try.md trains three times")
    with tempfile.TemporaryDirectory(prefix="gradtap-newcomer-") as folder:
        for name in ("build", "trainer"):
            os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
        shutil.copy(os.path.join(HERE, "newcomer_train.py"), os.path.join(folder, "my_train.py"))
        inner = "ip link set lo up; mount -t tmpfs tmpfs /run && mkdir -p /run/netns && exec bash -c \"$1\""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GRADTAP")}
        done = subprocess.run(["unshare", "-m", "-n", "--propagation", "private", "--pid", "--fork", "--mount-proc",
                               "bash", "-c", inner, "bash", commands],
                              cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
                              env=environment)

        def log(name):
            path = os.path.join(folder, "try", name)
            return open(path, encoding="utf-8", errors="replace").read() if os.path.exists(path) else "(none)"
        if done.returncode != 0:
            print(done.stdout)
            for name in ("node.log", "unprotected.log", "first.log", "second.log"):
                print("== %s\n%s" % (name, log(name)[-3000:]))
            require(False, "a command of docs/try.md ended with %d" % done.returncode)
        whole, second = (digests(os.path.join(folder, "try", name)) for name in ("unprotected.log", "second.log"))
        begun = re.search(r"^begins after step (\d+), protected: True$", log("second.log"), re.M)
        require(begun, "the second run was not protected: " + log("second.log")[:2000])
        require(len(whole) == 2 and whole[0][1] != whole[1][1], "the two ranks have digests of their own: %s" % whole)
        require(int(begun.group(1)) >= PUBLISHED, "it began after step %s, not from the newest point" % begun.group(1))
        require(not digests(os.path.join(folder, "try", "first.log")), "the first run ended before the accident")
        require(whole == second, "the bits differ: %s without a break, %s restored" % (whole, second))
    print("passed  docs/try.md: killed, restored after step %s, both ranks bit for bit as without a break"
          % begun.group(1), flush=True)


if __name__ == "__main__":
    main()
