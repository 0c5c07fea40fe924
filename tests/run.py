#!/usr/bin/python3
"""Runs the test suites one after another, each under a time limit, and ends with a table and one line of counts.

    tests/run.py [--all] [--list] [NAME...]      NAME: only suites whose name contains it

A suite is a program: exit code 0 passed, 77 skipped (its NOT RUN line says why), anything else failed. The output of
each is kept in build/test-logs/NAME.log; that of a failed one is shown.
"""
import argparse
import os
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.path.join(ROOT, "build", "bin")
LOGS = os.path.join(ROOT, "build", "test-logs")
PYTHON = "/usr/bin/python3"
SKIPPED = 77


def suites(everything):
    """(name, command, limit in seconds)"""
    found = []
    programs = sorted(os.listdir(BIN)) if os.path.isdir(BIN) else []
    for kind, limit in (("unit", 120), ("property", 180)):
        names = [p for p in programs if p.startswith(kind + "_")]
        if not names:
            found.append((kind, ["sh", "-c", "echo no %s_* program in build/bin: run make build; exit 1" % kind], 5))
        found += [(name, [os.path.join(BIN, name)], limit) for name in names]
    python = lambda *path: [PYTHON, os.path.join(ROOT, *path)]
    found.append(("floors", python("tests", "floors", "floors_test.py"), 30))
    found.append(("docs", python("tests", "floors", "docs_test.py"), 30))
    trainer = os.path.join(ROOT, "tests", "unit", "trainer")
    if any(n.endswith("_test.py") for n in (os.listdir(trainer) if os.path.isdir(trainer) else [])):
        found.append(("trainer", [PYTHON, "-m", "unittest", "discover", "-s", trainer, "-p", "*_test.py"], 480))
    else:
        found.append(("trainer", ["sh", "-c", "echo no *_test.py in tests/unit/trainer; exit 1"], 5))
    found.append(("harness", python("tests", "system", "harness_test.py"), 60))
    found.append(("rig", python("tests", "system", "rig_test.py"), 120))
    for name, arguments, limit in short_system() + (long_system() if everything else []):
        title = "system/" + "-".join([name] + arguments)
        found.append((title, python("tests", "system", name + ".py") + arguments, limit))
    return found


def short_system():
    """(program, arguments, limit in seconds)"""
    return [("live_short", [], 300), ("capture_replay", [], 300), ("cluster_short", [], 240),
            ("restart", ["short"], 240), ("points_every_step", ["short"], 240), ("cluster_kill", ["short"], 240),
            ("trainer_kill", ["short"], 300), ("point_damage", ["short"], 240), ("publish_faults", ["short"], 240)]


def long_system():
    return [("live_matrix", [], 5400), ("mirror_loss", [], 1200), ("node_kill", [], 3600), ("client_hardship", [], 1200),
            ("restart", ["long"], 3600), ("points_every_step", ["long"], 1800), ("cluster_kill", ["long"], 7200),
            ("trainer_kill", ["long"], 3600), ("point_damage", ["long"], 3600), ("publish_faults", ["long"], 2400),
            ("soak", [], 2400)]


def run(command, limit, log):
    """Exit code, or None when it ran past its limit. Its whole process group ends with it."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1",
                       PYTHONPATH=os.path.join(ROOT, "trainer"), PYTHONDONTWRITEBYTECODE="1")
    with open(log, "w") as out:
        child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                 env=environment, start_new_session=True)
        try:
            return child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)  # lets a rig take itself down
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            return None
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
            raise


def notes(log):
    """What a suite says it left out."""
    with open(log, errors="replace") as f:
        return [line.strip() for line in f if line.startswith(("SKIPPED", "NOT RUN", "[SKIPPED"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="the long suites too")
    parser.add_argument("--list", action="store_true", help="name the suites and end")
    parser.add_argument("only", nargs="*", metavar="NAME")
    options = parser.parse_args()
    chosen = [s for s in suites(options.all or bool(options.only))
              if not options.only or any(o in s[0] for o in options.only)]
    if options.list:
        print("\n".join(name for name, _, _ in chosen))
        return 0
    if not chosen:
        print("no suite is named like " + ", ".join(options.only))
        return 2
    os.makedirs(LOGS, exist_ok=True)
    results, started = [], time.monotonic()
    for name, command, limit in chosen:
        print("%-28s " % name, end="", flush=True)
        log = os.path.join(LOGS, name.replace("/", "-") + ".log")
        begun = time.monotonic()
        code = run(command, limit, log)
        seconds = time.monotonic() - begun
        verdict = {0: "passed", SKIPPED: "SKIPPED"}.get(code, "FAILED")
        reason = ""
        if verdict == "FAILED":
            reason = "ran past its limit of %d s" % limit if code is None else "exit code %d" % code
        left_out = notes(log)
        if verdict == "SKIPPED":
            reason = left_out[0] if left_out else "no reason given"
        print("%s %7.1f s  %s" % (verdict, seconds, reason), flush=True)
        if verdict == "FAILED":
            with open(log, errors="replace") as f:
                lines = f.read().splitlines()
            for line in lines[-60:]:
                print("    | " + line)
            print("    the whole output: " + os.path.relpath(log, ROOT), flush=True)
        results.append((name, verdict, seconds, reason, left_out))
    print("\n%-28s %-8s %9s" % ("suite", "verdict", "seconds"))
    for name, verdict, seconds, reason, left_out in results:
        print("%-28s %-8s %9.1f  %s" % (name, verdict, seconds, reason))
        if verdict != "SKIPPED":
            for line in left_out:
                print("%-28s          left out: %s" % ("", line))
    count = lambda v: sum(1 for r in results if r[1] == v)
    print("total %.1f s" % (time.monotonic() - started))
    print("%d passed, %d failed, %d skipped" % (count("passed"), count("FAILED"), count("SKIPPED")), flush=True)
    return 1 if count("FAILED") or not count("passed") else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted")
        sys.exit(130)
