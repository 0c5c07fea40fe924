#!/usr/bin/python3
"""Builds and runs the benchmarks. bench/run.py [NAME...]; medians and ranges are printed, JSON goes to build/bench/.

What a benchmark's numbers mean together is said by bench/NAME_report.py, if there is one. bench/NAME_driver.py measures a
whole system and prints its figures itself; it also runs NAME_bench, if there is one.
"""
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REPETITIONS = 5
PYTHON = "/usr/bin/python3"  # the one with torch
NOT_RUN = 77                 # what a driver ends with where it may not make network namespaces


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


def chosen(ending, extension):
    names = sorted(f.removesuffix(extension) for f in os.listdir(os.path.join(ROOT, "bench")) if f.endswith(ending))
    return [n for n in names if not sys.argv[1:] or any(w in n for w in sys.argv[1:])]


def main():
    names, drivers = chosen("_bench.cpp", ".cpp"), chosen("_driver.py", ".py")
    if not names and not drivers:
        print("no benchmark is named like that")
        return 2
    targets = names + (["gradtap", "gradtapd"] if drivers else [])
    print("== building %s" % ", ".join(targets), flush=True)
    subprocess.run(["cmake", "--build", "--preset", "release", "--target"] + targets, cwd=ROOT, check=True)
    out = os.path.join(ROOT, "build", "bench")
    os.makedirs(out, exist_ok=True)
    failed = []
    for name in names:
        if os.path.exists(os.path.join(ROOT, "bench", name.removesuffix("_bench") + "_driver.py")):
            continue  # its driver runs it
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
    for name in drivers:
        print("== %s (load before: %s)" % (name, os.getloadavg()[0]), flush=True)
        code = subprocess.run([PYTHON, os.path.join(ROOT, "bench", name + ".py")]).returncode
        if code not in (0, NOT_RUN):
            failed.append(name)
    done = len(names) + len(drivers)
    print("BENCH FAILED: " + ", ".join(failed) if failed else "BENCH DONE: %d programs" % done)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
