#!/usr/bin/python3
"""Short live jobs, part of `make test`: the replica's root equals the trainer's at every step."""
import sys

import harness
import rig

CLIP = ["--optimizer", "adamw", "--clip", "norm:1.0"]


def cases():
    live = harness.live_case
    return [
        ("n4-adamw-clip", lambda: live("n4-adamw-clip", ranks=4, steps=30, arguments=CLIP)),
        ("n2-sgd", lambda: live("n2-sgd", ranks=2, steps=20, arguments=["--optimizer", "sgd"])),
        ("n3-adam-mtu9000", lambda: live("n3-adam-mtu9000", ranks=3, mtu=9000, steps=20,
                                         arguments=["--optimizer", "adam"])),
    ]


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
