#!/usr/bin/python3
"""A durable log step against a raw file with fdatasync of the same run, and how many bytes it makes the disk write.
Usage: store_report.py JSON"""
import statistics
import sys

sys.dont_write_bytecode = True
from run import repetitions  # noqa: E402

SHARE_AT_LEAST, LARGEST_MIB = 0.8, 64
AMPLIFICATION_AT_MOST = 1.05


def middle(values):
    return "%.0f (%.0f to %.0f)" % (statistics.median(values), min(values), max(values))


def main():
    found = {}
    for name, runs in repetitions(sys.argv[1]).items():
        what, mib = name.split("/")[:2]
        found[what, int(mib)] = runs
    for mib in sorted({mib for _, mib in found}):
        log, raw = found.get(("store_log_step", mib)), found.get(("raw_file_fdatasync", mib))
        if not log or not raw:
            continue
        rate = lambda runs: [run["bytes_per_second"] / 2**20 for run in runs]
        share = statistics.median(rate(log)) / statistics.median(rate(raw))
        judged = " (at least %.1f: %s)" % (SHARE_AT_LEAST, "yes" if share >= SHARE_AT_LEAST else "NO")
        print("   %2d MiB: log step %s MiB/s, raw file %s MiB/s: %.2f of it%s"
              % (mib, middle(rate(log)), middle(rate(raw)), share, judged if mib == LARGEST_MIB else ""))
        written = statistics.median(run["written_per_byte"] for run in log)
        judged = " (at most %.2f: %s)" % (AMPLIFICATION_AT_MOST, "yes" if written <= AMPLIFICATION_AT_MOST else "NO")
        print("           bytes written a byte of the log %.3f%s, raw file %.3f"
              % (written, judged if mib == LARGEST_MIB else "",
                 statistics.median(run["written_per_byte"] for run in raw)))


if __name__ == "__main__":
    main()
