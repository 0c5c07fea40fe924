#!/usr/bin/python3
"""Checks that are no tests of behaviour. tests/check.py [NAME...]; without a name all of them, in this order:

format      clang-format-19 changes nothing
python      every Python file parses as Python 3.9
headers     every header compiles alone
tidy        clang-tidy-19 on every floor
sanitizers  the unit and property tests under AddressSanitizer and UndefinedBehaviorSanitizer, all but those of the next
actors      the unit tests of actors and programs under the same
tsan        the same under ThreadSanitizer
fuzz        each fuzz target for FUZZ_SECONDS (default 20), with the sanitizers; hours of it: tests/fuzz_hours.py
replay      the fuzz targets without a fuzzer, built by g++: the packed inputs, then seeded mutations of them, for
            REPLAY_SECONDS (default 60) of all targets together
"""
import ast
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys
import time

import fuzz_hours

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FLOORS = ["common", "capacity", "schema", "dataplane", "generator", "replica", "storage", "link", "recovery", "actors",
          "apps"]
CPP = FLOORS + ["bench", "tests"]
SHOWN = 20  # lines of each finding
JOBS = int(os.environ.get("JOBS", os.cpu_count() or 1))


def files(folders, endings):
    for folder in folders:
        for path, folders_here, names in os.walk(os.path.join(ROOT, folder)):
            folders_here[:] = [f for f in folders_here if not f.startswith((".", "build", "__pycache__"))]
            for name in sorted(names):
                if name.endswith(endings):
                    yield os.path.relpath(os.path.join(path, name), ROOT)


def quiet(command, **options):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


def in_parallel(command_of, paths):
    """Messages of the commands that fail."""
    def one(path):
        done = quiet(command_of(path))
        if done.returncode == 0:
            return None
        lines = [line for line in (done.stdout + done.stderr).splitlines() if " warnings generated." not in line]
        return "\n".join([path] + lines[:SHOWN] + (["..."] if len(lines) > SHOWN else []))
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        return [message for message in pool.map(one, paths) if message]


def check_format():
    paths = list(files(CPP, (".h", ".cpp", ".c")))
    bad = in_parallel(lambda p: ["clang-format-19", "--dry-run", "--Werror", p], paths)
    return len(paths), [message.splitlines()[0] + ": run clang-format-19 -i on it" for message in bad]


def unions_at_run_time(tree):
    """`X | Y` in an annotation is evaluated when the function is defined, and Python 3.9 has no such operator."""
    if any(isinstance(n, ast.ImportFrom) and n.module == "__future__" and any(a.name == "annotations" for a in n.names)
           for n in tree.body):
        return []
    found = []
    for node in ast.walk(tree):
        annotations = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args.args + node.args.kwonlyargs + node.args.posonlyargs
            annotations = [a.annotation for a in arguments] + [node.returns]
        elif isinstance(node, ast.AnnAssign):
            annotations = [node.annotation]
        for annotation in filter(None, annotations):
            found += [n.lineno for n in ast.walk(annotation)
                      if isinstance(n, ast.BinOp) and isinstance(n.op, ast.BitOr)]
    return found


def check_python():
    paths = list(files(["trainer", "tests", "bench", "examples"], (".py",)))
    bad = []
    for path in paths:
        try:
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                tree = ast.parse(f.read(), path, feature_version=(3, 9))
            bad += ["%s:%d: a type union that Python 3.9 cannot evaluate" % (path, n) for n in unions_at_run_time(tree)]
        except SyntaxError as error:
            bad.append("%s:%s: %s" % (path, error.lineno, error.msg))
    return len(paths), bad


def compile_commands():
    """Of a build without precompiled headers, which would hide what a header forgets; with the generated headers."""
    for command in (["cmake", "--preset", "check"], ["cmake", "--build", "--preset", "check", "--target",
                                                     "gradtap_schema"]):
        done = quiet(command)
        if done.returncode != 0:
            raise SystemExit("CHECK FAILED: %s\n%s%s" % (" ".join(command), done.stdout, done.stderr))
    with open(os.path.join(ROOT, "build-check", "compile_commands.json")) as f:
        return {os.path.relpath(e["file"], ROOT): e for e in json.load(f)}


def flags_of_folder(commands):
    """Include paths and options of one source of each folder: what its headers are compiled with."""
    flags = {}
    for path, entry in commands.items():
        folder = os.path.dirname(path)
        words, kept, i = shlex.split(entry["command"]), [], 0
        while i < len(words):
            if words[i] in ("-isystem", "-include", "-I"):
                kept += words[i:i + 2]
                i += 1
            elif words[i].startswith(("-I", "-D", "-std", "-f", "-m")):
                kept.append(words[i])
            i += 1
        flags.setdefault(folder, kept)
    return flags


def check_headers():
    commands = compile_commands()
    flags = flags_of_folder(commands)
    paths = [p for p in files(CPP, (".h",))]

    def command(path):
        folder = os.path.dirname(path)
        while folder and folder not in flags:
            folder = os.path.dirname(folder)
        return (["g++-12", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
                + flags.get(folder, ["-std=c++23", "-I" + ROOT]) + ["-include", path, "-x", "c++", "/dev/null"])
    return len(paths), in_parallel(command, paths)


def check_tidy():
    commands = compile_commands()
    paths = [p for p in files(FLOORS, (".cpp",)) if p in commands]
    return len(paths), in_parallel(
        lambda p: ["clang-tidy-19", "-p", "build-check", "--quiet", "--warnings-as-errors=*", p], paths)


ACTORS = {"unit_actors", "unit_apps"}  # what takes long to compile


def test_programs():
    """Names of the doctest programs, as tests/CMakeLists.txt makes them from the folders."""
    return {"%s_%s" % (kind, floor) for kind in ("unit", "property")
            for floor in os.listdir(os.path.join(ROOT, "tests", kind))
            if any(n.endswith("_test.cpp") for n in os.listdir(os.path.join(ROOT, "tests", kind, floor)))}


def under(preset, actors):
    def check():
        programs = sorted(test_programs() & ACTORS if actors else test_programs() - ACTORS)
        for command in (["cmake", "--preset", preset], ["cmake", "--build", "--preset", preset, "--target"] + programs):
            done = quiet(command)
            if done.returncode != 0:
                return 0, [" ".join(command) + "\n" + (done.stdout + done.stderr)[-6000:]]
        folder = os.path.join(ROOT, "build-" + preset, "bin")
        environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=1:abort_on_error=0",
                           UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1", TSAN_OPTIONS="halt_on_error=1")
        bad = [] if programs else ["no unit_* program was built"]

        def one(program):
            begun = time.monotonic()
            try:
                done = quiet([os.path.join(folder, program)], env=environment, timeout=600)
                code, output = done.returncode, done.stdout + done.stderr
            except subprocess.TimeoutExpired:
                code, output = "none: ran past 600 s", ""
            print("   %-24s %s %.1f s" % (program, "passed" if code == 0 else "FAILED", time.monotonic() - begun),
                  flush=True)
            return None if code == 0 else "%s: exit code %s\n%s" % (program, code, output[-4000:])
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            bad += filter(None, pool.map(one, programs))
        return len(programs), bad
    return check


def check_fuzz():
    for command in (["cmake", "--preset", "fuzz"], ["cmake", "--build", "--preset", "fuzz"]):
        done = quiet(command)
        if done.returncode != 0:
            return 0, [" ".join(command) + "\n" + (done.stdout + done.stderr)[-6000:]]
    folder = os.path.join(ROOT, "build-fuzz", "bin")
    programs = sorted(p for p in os.listdir(folder) if p.endswith("_fuzz"))
    seconds, bad = int(os.environ.get("FUZZ_SECONDS", "20")), [] if programs else ["no *_fuzz program was built"]
    for program in programs:
        done = quiet([os.path.join(folder, program), "-max_total_time=%d" % seconds, "-timeout=10",
                      "-rss_limit_mb=2048", "-artifact_prefix=" + os.path.join(ROOT, "build-fuzz", program + "-"),
                      fuzz_hours.prepare(program[:-len("_fuzz")])])
        print("   %-24s %s" % (program, "passed" if done.returncode == 0 else "FAILED"), flush=True)
        if done.returncode != 0:
            bad.append("%s: exit code %d\n%s" % (program, done.returncode, done.stderr[-4000:]))
    return len(programs), bad


def check_replay():
    for command in (["cmake", "--preset", "asan"], ["cmake", "--build", "--preset", "asan", "--target", "replays"]):
        done = quiet(command)
        if done.returncode != 0:
            return 0, [" ".join(command) + "\n" + (done.stdout + done.stderr)[-6000:]]
    names = sorted(n[:-len("_fuzz.cpp")] for n in os.listdir(os.path.join(ROOT, "tests", "fuzz"))
                   if n.endswith("_fuzz.cpp"))
    seconds = float(os.environ.get("REPLAY_SECONDS", "60")) / max(1, len(names))

    def one(name):
        begun = time.monotonic()
        try:
            done = quiet([os.path.join(ROOT, "build-asan", "bin", name + "_replay"),
                          os.path.join(ROOT, "tests", "fuzz", "corpus", name + ".bin"), "%.2f" % seconds],
                         timeout=300)
            code, output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            code, output = "none: ran past 300 s", ""
        print("   %-24s %s %.1f s, %s" % (name, "passed" if code == 0 else "FAILED", time.monotonic() - begun,
                                          output.strip().splitlines()[-1] if output else ""), flush=True)
        return None if code == 0 else "%s: exit code %s\n%s" % (name, code, output[-4000:])
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        bad = [message for message in pool.map(one, names) if message]
    return len(names), bad if names else ["no fuzz target"]


CHECKS = {"format": check_format, "python": check_python, "headers": check_headers, "tidy": check_tidy,
          "sanitizers": under("asan", False), "actors": under("asan", True), "tsan": under("tsan", False),
          "replay": check_replay, "fuzz": check_fuzz}


def main():
    chosen = sys.argv[1:] or list(CHECKS)
    unknown = [c for c in chosen if c not in CHECKS]
    if unknown:
        print("no check named %s\n%s" % (", ".join(unknown), __doc__))
        return 2
    failed = []
    for name in chosen:
        print("== check: " + name, flush=True)
        begun = time.monotonic()
        count, bad = CHECKS[name]()
        for message in bad:
            print("   " + message.replace("\n", "\n   "))
        print("== check: %s %s, %d looked at, %d bad (%.1f s)" % (name, "FAILED" if bad else "passed", count, len(bad),
                                                                  time.monotonic() - begun), flush=True)
        if bad:
            failed.append(name)
    print("CHECK FAILED: " + ", ".join(failed) if failed else "CHECK PASSED: " + ", ".join(chosen))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
