#!/usr/bin/python3
"""docs/user-cases.md: every case once, with a verdict; every test, code and reason that it names exists.

Usage: user_cases_test.py [SOURCE_DIR]. The rules are tried on rows with one fault each first.
"""
import glob
import os
import re
import sys

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", ".."))
TABLE = "docs/user-cases.md"
CASES_AT_LEAST = 113
ROW = re.compile(r"^\| ([A-N][0-9]+) \| (.+?) \| ([^|]+) \| (.*) \|$", re.M)
TEST = re.compile(r"`((?:trainer|system|floors)/\w+|(?:unit|property)_\w+): ([^`]+?)`(?=;|$|,| )")
CODE = re.compile(r"`([A-Z]+(?:_[A-Z]+)+|[A-Z]{6,})`")
UNTAPPED = re.compile(r"\*untapped: ([^*]+)\*")
# The path from frames to assembled ops; these two write what `gradtap inspect --dump` asks for.
INGRESS = ("dataplane/*.cpp", "actors/ingress*.cpp", "actors/assembler*.cpp")
DUMPS = {"dataplane/inspect.cpp", "dataplane/nccl_assembly.cpp"}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def joined(pattern):
    return "\n".join(read(os.path.relpath(p, ROOT)) for p in sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True)))


class Known:
    """What may be named."""

    def __init__(self):
        self.codes = set(re.findall(r"^\| \d+ \| ([A-Z_]+) \|", read("docs/errors.md"), re.M))
        self.codes |= set(re.findall(r"^### ([A-Z_]+) \(\d+\)$", read("docs/operations.md"), re.M))
        refusals = read("docs/trainer.md").split("### When a restore refuses")[1].split("\n## ")[0]
        self.codes |= {c for row in re.findall(r"^\| (`[^|]+) \|", refusals, re.M) for c in re.findall(r"`([A-Z_]+)`", row)}
        self.trainer = joined("trainer/gradtap/*.py")
        self.texts = {}

    def has_test(self, suite, name):
        kind, _, rest = suite.partition("/")
        if suite == "floors/user_cases":
            return callable(globals().get(name))
        if kind == "trainer":
            return re.search(r"^    def %s\(self\):" % re.escape(name), self.text("tests/unit/trainer/%s_test.py" % rest), re.M)
        if kind == "system":
            return re.search(r"[\"']%s[\"']|def %s\(" % (re.escape(name), re.escape(name)),
                             self.text("tests/system/%s.py" % rest) + self.text("tests/run.py"))
        kind, _, floor = suite.partition("_")
        title = r'"\s*"'.join(map(re.escape, [name]))
        return re.search(r'TEST_CASE\(\s*"%s"' % title, self.text("tests/%s/%s/*_test.cpp" % (kind, floor)))

    def text(self, pattern):
        if pattern not in self.texts:
            self.texts[pattern] = re.sub(r'"\s*\n\s*"', "", joined(pattern))
        return self.texts[pattern]


def faults(text, known):
    found, seen = [], set()
    for case, _, verdict, shown in ROW.findall(text):
        tests, codes, untapped = TEST.findall(shown), CODE.findall(shown), UNTAPPED.findall(shown)
        if case in seen:
            found.append("%s stands twice" % case)
        seen.add(case)
        if verdict not in ("tested", "refused", "partly", "not yet"):
            found.append("%s: there is no verdict %s" % (case, verdict))
        if verdict != "not yet" and not tests:
            found.append("%s is %s, and no test is named" % (case, verdict))
        if verdict == "refused" and not codes and not untapped:
            found.append("%s is refused, and neither code nor reason is named" % case)
        if verdict in ("partly", "not yet") and not re.sub(r"`[^`]*`|[;*]", "", shown).strip():
            found.append("%s: what is missing is not said" % case)
        found += ["%s: there is no test %s: %s" % (case, s, n) for s, n in tests if not known.has_test(s, n)]
        found += ["%s: there is no code %s" % (case, c) for c in codes if c not in known.codes]
        found += ["%s: the trainer never says: %s" % (case, u) for u in untapped if u not in known.trainer]
    rows = re.findall(r"^\| [A-N][0-9]+ ", text, re.M)
    if len(rows) != len(ROW.findall(text)):
        found.append("a row cannot be read")
    return found, len(seen)


def ingress_writes_no_file():
    """N8: a disk can never hold up what comes from the wire."""
    found = []
    for pattern in INGRESS:
        for path in glob.glob(os.path.join(ROOT, pattern)):
            name = os.path.relpath(path, ROOT)
            if name not in DUMPS and re.search(r"\bofstream\b|\bfopen\(|\bO_WRONLY\b|\bO_RDWR\b|\bO_CREAT\b", read(name)):
                found.append("%s opens a file for writing, on the way of the frames" % name)
    return found


def tried(known):
    """Each fault is found."""
    good = "| A1 | x | tested | `trainer/step: test_none_wire_stale` |"
    assert faults(good, known) == ([], 1), faults(good, known)
    for row, word in (("| A1 | x | tested | `trainer/step: test_of_nothing` |", "no test"),
                      ("| A1 | x | tested | `unit_replica: no such title` |", "no test"),
                      ("| A1 | x | tested | `system/restart: short-nothing` |", "no test"),
                      ("| A1 | x | tested | prose |", "no test is named"),
                      ("| A1 | x | fine | `trainer/step: test_none_wire_stale` |", "no verdict"),
                      ("| A1 | x | refused | `trainer/step: test_none_wire_stale` |", "neither code"),
                      ("| A1 | x | refused | `trainer/step: test_none_wire_stale`; `NO_SUCH_CODE` |", "no code"),
                      ("| A1 | x | refused | `trainer/step: test_none_wire_stale`; *untapped: because so* |", "never says"),
                      ("| A1 | x | not yet |  |", "not said"), ("| A1 | x | tested |", "cannot be read"),
                      (good + "\n" + good, "twice")):
        assert any(word in f for f in faults(row, known)[0]), (row, faults(row, known))


def main():
    known = Known()
    tried(known)
    found, count = faults(read(TABLE), known)
    if count < CASES_AT_LEAST:
        found.append("%s has %d cases, there were %d" % (TABLE, count, CASES_AT_LEAST))
    found += ingress_writes_no_file()
    print("\n".join(found) if found else "user cases: %d, and all that they name exists" % count)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
