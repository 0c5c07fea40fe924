#!/usr/bin/python3
"""Builds and runs the benchmarks. bench/run.py [NAME...]; the medians are printed, JSON goes to build/bench/."""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REPETITIONS = 5


def main():
    names = sorted(f[:-4] for f in os.listdir(os.path.join(ROOT, "bench")) if f.endswith("_bench.cpp"))
    names = [n for n in names if not sys.argv[1:] or any(w in n for w in sys.argv[1:])]
    if not names:
        print("no benchmark is named like that")
        return 2
    print("== building %s" % ", ".join(names), flush=True)
    subprocess.run(["cmake", "--build", "--preset", "release", "--target"] + names, cwd=ROOT, check=True)
    out = os.path.join(ROOT, "build", "bench")
    os.makedirs(out, exist_ok=True)
    failed = []
    for name in names:
        print("== %s (load before: %s)" % (name, os.getloadavg()[0]), flush=True)
        path = os.path.join(out, name + ".json")
        done = subprocess.run([os.path.join(ROOT, "build", "bin", name), "--benchmark_out=" + path,
                               "--benchmark_out_format=json", "--benchmark_repetitions=%d" % REPETITIONS,
                               "--benchmark_report_aggregates_only=true"], stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            failed.append(name)
            continue
        with open(path) as f:
            for row in json.load(f)["benchmarks"]:
                if row.get("aggregate_name") == "median":
                    rate = row.get("bytes_per_second") or row.get("items_per_second")
                    unit = "GB/s" if row.get("bytes_per_second") else "M items/s"
                    print("   %-48s %12.1f %s%s" % (row["run_name"], row["real_time"], row["time_unit"],
                          "  %8.2f %s" % (rate / (1e9 if unit == "GB/s" else 1e6), unit) if rate else ""))
    print("BENCH FAILED: " + ", ".join(failed) if failed else "BENCH DONE: %d programs" % len(names))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
