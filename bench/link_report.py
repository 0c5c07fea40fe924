#!/usr/bin/python3
"""The node link against a raw TLS connection of the same run, and its control round trips. Usage: link_report.py JSON"""
import json
import statistics
import sys

SHARE_AT_LEAST = 0.8
MEDIAN_MS, P99_MS = 5.0, 50.0


def main():
    rows = {}
    with open(sys.argv[1], encoding="utf-8") as f:
        for row in json.load(f)["benchmarks"]:
            if row.get("run_type") == "iteration":
                rows.setdefault(row["run_name"], []).append(row)
    named = lambda part: next(runs for name, runs in rows.items() if name.startswith(part))
    rate = lambda part: statistics.median(r["bytes_per_second"] for r in named(part)) / 1e9
    raw, tls, plain = rate("raw_tls"), rate("link_bulk/tls:1"), rate("link_bulk/tls:0")
    print("   node link under TLS %.2f GB/s, raw TLS %.2f GB/s: %.2f of it (at least %.1f: %s); plain %.2f GB/s"
          % (tls, raw, tls / raw, SHARE_AT_LEAST, "yes" if tls >= SHARE_AT_LEAST * raw else "NO", plain))
    for load, words in ((0, "alone"), (1, "beside bulk bytes")):
        runs = named("control_round_trip/load:%d" % load)
        median = statistics.median(r["median_us"] for r in runs) / 1e3
        p99 = statistics.median(r["p99_us"] for r in runs) / 1e3
        print("   control round trip %s: median %.2f ms, p99 %.2f ms, longest %.2f ms (below %g and %g: %s)"
              % (words, median, p99, max(r["max_us"] for r in runs) / 1e3, MEDIAN_MS, P99_MS,
                 "yes" if median < MEDIAN_MS and p99 < P99_MS else "NO"))


if __name__ == "__main__":
    main()
