#!/usr/bin/python3
"""Builds and runs the benchmarks. bench/run.py [NAME...]; medians and ranges are printed, JSON goes to build/bench/.

What a benchmark's numbers mean together is said by bench/NAME_report.py, if there is one.
"""
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REPETITIONS = 5


def repetitions(path):
    """The repetitions of each benchmark in a JSON file, in order of appearance."""
    rows = {}
    with open(path, encoding="utf-8") as f:
        for row in json.load(f)["benchmarks"]:
            if row.get("run_type") == "iteration":
                rows.setdefault(row["run_name"], []).append(row)
    return rows


def show(rows):
    failed = False
    for name, runs in rows.items():
        wrong = [run["error_message"] for run in runs if run.get("error_occurred")]
        if wrong:
            print("   %-48s FAILED: %s" % (name, wrong[0]))
            failed = True
            continue
        times = [run["real_time"] for run in runs]
        text = "   %-48s %12.1f %s  (%.1f to %.1f)" % (name, statistics.median(times), runs[0]["time_unit"], min(times),
                                                      max(times))
        for key, scale, unit in (("bytes_per_second", 1e9, "GB/s"), ("items_per_second", 1e6, "M items/s")):
            if key in runs[0]:
                print("%s  %8.2f %s" % (text, statistics.median(run[key] for run in runs) / scale, unit))
                break
        else:
            print(text)
    return failed


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
                               "--benchmark_enable_random_interleaving=true"], stdout=subprocess.DEVNULL)
        if done.returncode != 0 or show(repetitions(path)):
            failed.append(name)
            continue
        report = os.path.join(ROOT, "bench", name.removesuffix("_bench") + "_report.py")
        if os.path.exists(report):
            subprocess.run([sys.executable, report, path], check=True)
    print("BENCH FAILED: " + ", ".join(failed) if failed else "BENCH DONE: %d programs" % len(names))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
