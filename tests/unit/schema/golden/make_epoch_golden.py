#!/usr/bin/python3
"""Made the golden files of epoch records of format 1, once, without the code under test: messages by the `capnp` tool
from text, the envelope by struct and libxxhash. A file that exists is never written again."""
import hashlib
import os
import subprocess
import sys

from make_golden import HERE, ROOT, data, envelope


def message(text):
    return subprocess.run(["capnp", "encode", os.path.join(ROOT, "schema", "epoch.capnp"), "Epoch"],
                          input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def member(index, domain, capacity, state, since):
    return ('(name = "tap%d", link = "10.77.0.%d:7800", http = "http://10.77.0.%d:7700", domain = "%s", capacity = %d,'
            ' state = %d, sinceEpoch = %d)' % (index, 100 + index, 100 + index, domain, capacity, state, since))


FIRST = f"""(number = 1, previous = {data(bytes(32))}, replicas = 1, members = [{member(0, "rack-a", 1, 0, 1)}], owners = [],
 proposer = "tap0", cause = "first start", createdWallMs = 1700000000123)"""
SEVENTH = f"""(number = 7, previous = {data(range(7, 39))}, replicas = 2,
 members = [{member(0, "rack-a", 1, 0, 1)}, {member(1, "rack-b", 65535, 1, 1)}, {member(2, "rack-b", 3, 2, 4)},
            {member(3, "rack-b", 2, 0, 7)}],
 owners = [[0, 3], [3, 0], [1, 0], [3], [0, 1]], proposer = "operator", cause = "drain tap1",
 createdWallMs = 1700000000456)"""


def main():
    for name, text in (("epoch_first.1.hex", FIRST), ("epoch.1.hex", SEVENTH)):
        content = envelope(7, message(text))
        path = os.path.join(HERE, name)
        print(name, len(content), "bytes, SHA-256", hashlib.sha256(content).hexdigest())
        if os.path.exists(path):
            continue
        with open(path, "w", encoding="ascii") as file:
            digits = content.hex()
            file.write("".join(digits[i:i + 96] + "\n" for i in range(0, len(digits), 96)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
