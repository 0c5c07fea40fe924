#!/usr/bin/python3
"""The live matrix, part of `make test-all`: optimizers with and without clipping over 200 steps; 2, 3 and 4 ranks; MTU
1500 and 9000; bucket sizes and rebuilds of every kind."""
import sys

import harness
import rig

LIMIT = 600


def at_least_three(report):
    harness.require(len(report["buckets"]) >= 3, "only %d buckets" % len(report["buckets"]))
    harness.require(sum(report["buckets"]) >= 4 << 20, "less than 1 M parameters")
    harness.require(len(report["first_buckets"]) == 1, "the first iteration has more than one bucket")


def one_large(report):
    harness.require(max(report["buckets"]) >= 8 << 20, "no bucket of 8 MiB: %s" % report["buckets"])


def one_segment(report):
    # A ring of N ranks cuts a bucket into at least 2 N segments of at least 4 bytes: only 4 bytes make one segment.
    harness.require(report["buckets"][0] == 4, "the first bucket is not one element: %s" % report["buckets"])


def sizes_change(report):
    harness.require(report["first_buckets"] != report["buckets"], "the rebuild changed no size")


def only_permutes(report):
    harness.require(report["first_buckets"] == report["buckets"], "the rebuild changed sizes: %s -> %s"
                    % (report["first_buckets"], report["buckets"]))
    order = report["ready_order"]
    harness.require(order != sorted(order), "the rebuild permuted nothing")


def cases():
    found = []

    def add(name, arguments, **options):
        found.append((name, lambda: harness.live_case(name, arguments=arguments, **dict(dict(
            steps=200, seconds=LIMIT, buckets=at_least_three), **options))))

    optimizers = [("sgd", ["--optimizer", "sgd"]), ("adam", ["--optimizer", "adam"]),
                  ("adamw-amsgrad", ["--optimizer", "adamw", "--amsgrad"])]
    for optimizer, flags in optimizers:
        add("n4-%s" % optimizer, flags)
        add("n4-%s-clipnorm" % optimizer, flags + ["--clip", "norm:0.5"])
    add("n4-adamw-clipvalue", ["--optimizer", "adamw", "--clip", "value:0.005"], steps=60)
    add("n4-sgd-maximize", ["--optimizer", "sgd", "--maximize", "--lr", "0.001"], steps=40)
    for ranks in (2, 3, 4):
        for mtu in (1500, 9000):
            add("n%d-mtu%d" % (ranks, mtu), ["--clip", "norm:1.0"], ranks=ranks, mtu=mtu, steps=40)
    add("bucket-8mib", ["--bucket-mb", "9", "--layers", "12"], steps=40, buckets=one_large)
    add("bucket-one-segment", ["--first-bucket-bytes", "4"], steps=40, buckets=one_segment)
    add("rebuild-sizes", ["--bucket-mb", "0.5"], steps=20, buckets=sizes_change)
    add("rebuild-permutes", ["--bucket-mb", "100", "--first-bucket-bytes", str(100 << 20)], steps=20,
        buckets=only_permutes)
    add("mlp", ["--model", "mlp", "--width", "256"], steps=60)
    return found


if __name__ == "__main__":
    rig.enter_privileged()
    harness.programs_or_fail()
    sys.exit(harness.run_cases(harness.chosen(cases(), sys.argv[1:])))
