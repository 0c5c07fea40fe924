#!/usr/bin/python3
"""Runs the test suites, each under a time limit, and ends with a table and one line of counts. Those that measure no
time share the cores; then come the live ones that mostly wait, two at a time; then, one after another, those that need
the machine for themselves, and all long ones.

    tests/run.py [--all] [--list] [NAME...]      NAME: only suites whose name contains it

A suite is a program: exit code 0 passed, 77 skipped (its NOT RUN line says why), anything else failed. The output of
each is kept in build/test-logs/NAME.log; that of a failed one is shown.
"""
import argparse
import collections
import concurrent.futures
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
Suite = collections.namedtuple("Suite", "name command limit_seconds place")
Result = collections.namedtuple("Result", "name verdict seconds reason left_out")
TIMED = ("trainer/cost",)
SHARED, PAIRED, ALONE = "shared", "paired", "alone"
# Clusters of small models that sleep between steps; the others watch how fast something is.
WAITING = ("cluster_short", "restart", "points_every_step", "cluster_kill", "trainer_kill", "point_damage",
           "publish_faults", "scale_short", "scale_chaos", "doctor", "admission", "limits",
           "capture_replay")
running = set()  # children of all threads


def suites(everything):
    return [Suite(*s, SHARED) for s in sharing_suites(everything)] + live_suites(everything)


def python(*path):
    return [PYTHON, os.path.join(ROOT, *path)]


def sharing_suites(everything):
    """(name, command, limit in seconds); the longest first, so that none is left alone at the end."""
    found = [s for s in trainer_suites() if s[0] not in TIMED]
    programs = sorted(os.listdir(BIN)) if os.path.isdir(BIN) else []
    for kind, limit in (("unit", 120), ("property", 180)):
        names = [p for p in programs if p.startswith(kind + "_")]
        if not names:
            found.append((kind, ["sh", "-c", "echo no %s_* program in build/bin: run make build; exit 1" % kind], 5))
        found += [(name, [os.path.join(BIN, name)], limit) for name in names]
    if everything and "property_generator" in programs:
        found.append(("property_generator-large", ["env", "GRADTAP_LARGE=12", "GRADTAP_CASES=6000",
                                                   os.path.join(BIN, "property_generator"), "-tc=NCCL round trip*"],
                      1200))
    found.append(("floors", python("tests", "floors", "floors_test.py"), 30))
    found.append(("docs", python("tests", "floors", "docs_test.py"), 30))
    found.append(("user-cases", python("tests", "floors", "user_cases_test.py"), 30))
    return found


def trainer_suites():
    """One of each file."""
    folder = os.path.join(ROOT, "tests", "unit", "trainer")
    names = sorted(n for n in (os.listdir(folder) if os.path.isdir(folder) else []) if n.endswith("_test.py"))
    if not names:
        return [("trainer", ["sh", "-c", "echo no *_test.py in tests/unit/trainer; exit 1"], 5)]
    return [("trainer/" + n[:-len("_test.py")],
             [PYTHON, "-m", "unittest", "discover", "-s", folder, "-p", n], 300) for n in names]


def live_suites(everything):
    def system(name, arguments, limit, place):
        title = "system/" + "-".join([name] + [a.lstrip("-") for a in arguments])
        return Suite(title, python("tests", "system", name + ".py") + arguments, limit, place)
    found = [system(*s, PAIRED) for s in short_system() if s[0] in WAITING]
    found += [Suite(*s, ALONE) for s in trainer_suites() if s[0] in TIMED]
    found += [Suite("harness", python("tests", "system", "harness_test.py"), 60, ALONE),
              Suite("rig", python("tests", "system", "rig_test.py"), 120, ALONE)]
    found += [system(*s, ALONE) for s in short_system() if s[0] not in WAITING]
    return found + [system(*s, ALONE) for s in (long_system() if everything else [])]


def short_system():
    """(program, arguments, limit in seconds)"""
    return [("live_short", [], 300), ("capture_replay", [], 300), ("cluster_short", [], 240),
            ("restart", ["short"], 240), ("points_every_step", ["short"], 240), ("cluster_kill", ["short"], 240),
            ("trainer_kill", ["short"], 300), ("point_damage", ["short"], 240), ("publish_faults", ["short"], 240),
            ("nccl_live", ["short"], 240), ("link_security", ["short"], 240), ("scale_short", [], 240),
            ("scale_chaos", ["--seed", "4"], 240), ("admission", [], 120), ("user_cases", ["short"], 180),
            ("doctor", [], 120), ("gateway_attack", ["short"], 120), ("limits", [], 120)]


def long_system():
    return [("live_matrix", [], 5400), ("mirror_loss", [], 1200), ("node_kill", [], 3600), ("client_hardship", [], 1200),
            ("restart", ["long"], 3600), ("points_every_step", ["long"], 1800), ("cluster_kill", ["long"], 7200),
            ("trainer_kill", ["long"], 3600), ("point_damage", ["long"], 3600), ("publish_faults", ["long"], 2400),
            ("nccl_live", ["long"], 2400), ("link_security", ["long"], 900), ("gateway_attack", ["long"], 600),
            ("scale_awkward", [], 1800), ("scale_work", [], 600), ("packages", [], 600), ("newcomer", [], 600),
            ("scale_chaos", ["--long"], 5400), ("user_cases", ["long"], 1800), ("live_page", [], 900), ("soak", [], 2400)]


def run(command, limit, log):
    """Exit code, or None when it ran past its limit. Its whole process group ends with it."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1",
                       PYTHONPATH=os.path.join(ROOT, "trainer"), PYTHONDONTWRITEBYTECODE="1")
    with open(log, "w") as out:
        child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                 env=environment, start_new_session=True)
        running.add(child)
        try:
            return child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            end(child)
            return None
        except BaseException:
            end(child)
            raise
        finally:
            running.discard(child)


def end(child):
    os.killpg(child.pid, signal.SIGTERM)  # lets a rig take itself down
    try:
        child.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def notes(log):
    """What a suite says it left out."""
    with open(log, errors="replace") as f:
        return [line.strip() for line in f if line.startswith(("SKIPPED", "NOT RUN", "[SKIPPED"))]


def run_suite(suite):
    log = os.path.join(LOGS, suite.name.replace("/", "-") + ".log")
    begun = time.monotonic()
    code = run(suite.command, suite.limit_seconds, log)
    verdict = {0: "passed", SKIPPED: "SKIPPED"}.get(code, "FAILED")
    left_out, reason = notes(log), ""
    if verdict == "FAILED":
        reason = "ran past its limit of %d s" % suite.limit_seconds if code is None else "exit code %d" % code
    elif verdict == "SKIPPED":
        reason = left_out[0] if left_out else "no reason given"
    return Result(suite.name, verdict, time.monotonic() - begun, reason, left_out)


def report(result):
    print("%-34s %s %7.1f s  %s" % (result.name, result.verdict, result.seconds, result.reason), flush=True)
    if result.verdict == "FAILED":
        log = os.path.join(LOGS, result.name.replace("/", "-") + ".log")
        with open(log, errors="replace") as f:
            lines = f.read().splitlines()
        for line in lines[-60:]:
            print("    | " + line)
        print("    the whole output: " + os.path.relpath(log, ROOT), flush=True)
    return result


def run_all(chosen):
    """Results in the order of the suites; each is reported as it ends."""
    cores = os.cpu_count() or 1
    results = run_together([s for s in chosen if s.place == SHARED], cores)
    # Without root two rigs would share what one user may lock for receive rings.
    results += run_together([s for s in chosen if s.place == PAIRED], min(2, cores) if os.geteuid() == 0 else 1)
    for suite in chosen:
        if suite.place == ALONE:
            print("%-34s running, %d s at most" % (suite.name, suite.limit_seconds), flush=True)
            results.append(report(run_suite(suite)))
    return results


def run_together(together, at_once):
    pool = concurrent.futures.ThreadPoolExecutor(at_once)
    try:
        waiting = [pool.submit(run_suite, s) for s in together]
        for done in concurrent.futures.as_completed(waiting):
            report(done.result())
    except BaseException:
        for child in list(running):
            end(child)
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return [w.result() for w in waiting]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="the long suites too")
    parser.add_argument("--list", action="store_true", help="name the suites and end")
    parser.add_argument("only", nargs="*", metavar="NAME")
    options = parser.parse_args()
    chosen = [s for s in suites(options.all or bool(options.only))
              if not options.only or any(o in s.name for o in options.only)]
    if options.list:
        print("\n".join(s.name for s in chosen))
        return 0
    if not chosen:
        print("no suite is named like " + ", ".join(options.only))
        return 2
    os.makedirs(LOGS, exist_ok=True)
    started = time.monotonic()
    results = run_all(chosen)
    print("\n%-34s %-8s %9s" % ("suite", "verdict", "seconds"))
    for result in results:
        print("%-34s %-8s %9.1f  %s" % (result.name, result.verdict, result.seconds, result.reason))
        if result.verdict != "SKIPPED":
            for line in result.left_out:
                print("%-34s          left out: %s" % ("", line))
    count = lambda v: sum(1 for r in results if r.verdict == v)
    print("total %.1f s" % (time.monotonic() - started))
    print("%d passed, %d failed, %d skipped" % (count("passed"), count("FAILED"), count("SKIPPED")), flush=True)
    return 1 if count("FAILED") or not count("passed") else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted")
        sys.exit(130)
