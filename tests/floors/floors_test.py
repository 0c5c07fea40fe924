#!/usr/bin/python3
"""The floors of the house: a folder includes only folders below it. Also: every folder has a README, tests and fuzz
targets are named so that the build finds them, headers open with `#pragma once`, the live page names nothing elsewhere.

Usage: floors_test.py [SOURCE_DIR]. The rules are tried on a temporary tree with one violation each first.
"""
import os
import re
import sys
import tempfile

ALLOWED = {
    "common": set(),
    "capacity": {"common"},
    "schema": {"common"},
    "dataplane": {"common", "schema"},
    "generator": {"common", "schema", "dataplane"},
    "replica": {"common", "schema"},
    "storage": {"common", "schema"},
    "link": {"common", "schema"},
    "recovery": {"common", "schema", "replica", "storage"},
    "actors": {"common", "capacity", "schema", "dataplane", "replica", "storage", "link", "recovery"},
    "apps": {"common", "capacity", "schema", "dataplane", "generator", "replica", "storage", "link", "recovery", "actors"},
}
FOLDERS_WITH_README = list(ALLOWED) + ["cluster-config", "trainer", "tests", "bench", "docs"]
PAGE = "actors/page"
# The live page brings everything along, and what comes from the network never becomes markup.
FOREIGN_IN_PAGE = re.compile(r"""https?:|\bwss?:|//[\w-]+\.|@import|url\(|\bdata:|\bblob:""")
MARKUP_IN_PAGE = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|"
                            r"\beval\(|new Function|srcdoc|<[^>]*\s(?:on\w+|style)\s*=|javascript:")
SVG_NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
SOURCES = (".h", ".hpp", ".cpp", ".cc", ".c")


def sources(root, folder):
    for path, folders, names in os.walk(os.path.join(root, folder)):
        folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__"]
        for name in sorted(names):
            if name.endswith(SOURCES):
                yield os.path.join(path, name)


def page_violations(root):
    found = []
    folder = os.path.join(root, PAGE)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        text = open(os.path.join(folder, name), encoding="utf-8").read().replace(SVG_NAMESPACE, "")
        found += ["%s/%s: %s: the page names no resource elsewhere" % (PAGE, name, m.group())
                  for m in FOREIGN_IN_PAGE.finditer(text)]
        found += ["%s/%s: %s: the page sets text, never markup" % (PAGE, name, m.group())
                  for m in MARKUP_IN_PAGE.finditer(text)]
    return found


def violations(root):
    found = page_violations(root)
    for floor, allowed in ALLOWED.items():
        for path in sources(root, floor):
            text = open(path, encoding="utf-8").read()
            shown = os.path.relpath(path, root)
            for included in INCLUDE.findall(text):
                resolved = os.path.relpath(os.path.join(os.path.dirname(path), included), root)
                named = (resolved if included.startswith(".") else included).split("/")[0]
                if named in ALLOWED and named != floor and named not in allowed:
                    found.append("%s includes %s: %s may use %s only" % (shown, included, floor,
                                                                         ", ".join(sorted(allowed)) or "nothing"))
                if included.startswith("."):
                    found.append("%s includes %s: includes are relative to the root of the project" % (shown, included))
            # DPDK and CAF stay behind their walls.
            for included in INCLUDE.findall(text):
                if included.startswith("rte_") and not shown.startswith("dataplane/dpdk/"):
                    found.append("%s includes %s: DPDK is known in dataplane/dpdk only" % (shown, included))
                if included.startswith("caf/") and floor not in ("actors", "apps"):
                    found.append("%s includes %s: no actors below the actors floor" % (shown, included))
            if path.endswith((".h", ".hpp")) and "#pragma once" not in text:
                found.append("%s: no #pragma once" % shown)
    for folder in FOLDERS_WITH_README:
        if not os.path.isfile(os.path.join(root, folder, "README.md")):
            found.append("%s: no README.md" % folder)
    for kind, ending in (("unit", "_test.cpp"), ("property", "_test.cpp"), ("fuzz", "_fuzz.cpp")):
        for path in sources(root, os.path.join("tests", kind)):
            shown = os.path.relpath(path, root)
            if path.endswith(".cpp") and not path.endswith(ending):
                found.append("%s: the build looks for *%s and does not see it" % (shown, ending))
            if kind != "fuzz" and shown.split("/")[2] not in ALLOWED:
                found.append("%s: %s is not a floor, so no test program takes it" % (shown, shown.split("/")[2]))
            if kind != "fuzz" and shown.split("/")[2] in ("capacity", "dataplane", "generator", "replica", "storage", "link", "recovery"):
                floor = shown.split("/")[2]
                for included in INCLUDE.findall(open(path, encoding="utf-8").read()):
                    named = included.split("/")[0]
                    if named in ALLOWED and named != floor and named not in ALLOWED[floor]:
                        found.append("%s includes %s: a test of %s knows no more than %s" % (shown, included, floor,
                                                                                             floor))
    return found


def write(root, path, text):
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as f:
        f.write(text)


def self_test():
    """Each rule sees its own violation, and a clean tree has none."""
    cases = [
        (None, None, None),
        ("replica/a.cpp", '#include "dataplane/port.h"\n', "replica/a.cpp includes dataplane/port.h"),
        ("storage/a.h", '#pragma once\n  #  include <replica/shard.h>\n', "storage/a.h includes replica/shard.h"),
        ("common/a.cpp", '#include "schema/record.h"\n', "common/a.cpp includes schema/record.h"),
        ("dataplane/dpdk/a.cpp", '#include "actors/node.h"\n', "dataplane/dpdk/a.cpp includes actors/node.h"),
        ("actors/a.cpp", '#include "apps/main.h"\n', "actors/a.cpp includes apps/main.h"),
        ("replica/b.cpp", '#include "../dataplane/port.h"\n', "replica/b.cpp includes ../dataplane/port.h"),
        ("dataplane/c.cpp", "#include <rte_mbuf.h>\n", "DPDK is known in dataplane/dpdk only"),
        ("storage/c.cpp", "#include <caf/all.hpp>\n", "no actors below the actors floor"),
        ("common/b.h", "int x;\n", "no #pragma once"),
        ("tests/unit/common/wrong.cpp", "\n", "does not see it"),
        ("tests/unit/nowhere/a_test.cpp", "\n", "is not a floor"),
        ("tests/fuzz/wrong.cpp", "\n", "does not see it"),
        ("actors/page/a.html", '<script src="https://cdn.example/x.js"></script>\n', "no resource elsewhere"),
        ("actors/page/b.html", '<img src="//cdn.example/x.png">\n', "no resource elsewhere"),
        ("actors/page/c.css", "b { background: url(x.png) }\n", "no resource elsewhere"),
        ("actors/page/d.js", "x.innerHTML = name;\n", "never markup"),
        ("actors/page/e.html", '<p onclick="f()">x</p>\n', "never markup"),
        ("tests/unit/replica/a_test.cpp", '#include "storage/codec.h"\n', "knows no more than replica"),
    ]
    for path, text, expected in cases:
        with tempfile.TemporaryDirectory() as root:
            for folder in FOLDERS_WITH_README:
                write(root, folder + "/README.md", "x\n")
            write(root, "common/ok.h", "#pragma once\n#include <vector>\n")
            write(root, "replica/ok.cpp", '#include "replica/shard.h"\n#include "common/ids.h"\n')
            if path:
                write(root, path, text)
            found = violations(root)
            if path is None:
                assert not found, "a clean tree is refused: %s" % found
            else:
                assert found and all(path in f for f in found) and any(expected in f for f in found), (path, found)
    with tempfile.TemporaryDirectory() as root:
        for folder in FOLDERS_WITH_README[1:]:
            write(root, folder + "/README.md", "x\n")
        assert violations(root) == ["common: no README.md"], violations(root)
    return len(cases) + 1


def main():
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", ".."))
    print("floors: %d planted trees judged as expected" % self_test())
    found = violations(root)
    for line in found:
        print("  " + line)
    files = sum(1 for floor in ALLOWED for _ in sources(root, floor))
    print("floors: %d files, %d violations" % (files, len(found)))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
