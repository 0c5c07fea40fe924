#!/usr/bin/python3
"""Lists in the documents follow the code: gap reasons, metrics, limits, links between files, what the live page advises.

Usage: docs_test.py [SOURCE_DIR]
"""
import json
import os
import re
import sys

import user_cases_test

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", ".."))
SKIP = {"build", ".git", ".demo"}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def constant_name(camel):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", camel).upper()


def enumerators(path, enum):
    body = re.search(r"enum class %s[^{]*\{(.*?)\n\};" % enum, read(path), re.S).group(1)
    return {constant_name(name): int(number) for name, number in re.findall(r"\bk(\w+) = (\d+)", body)}


def compare(found, expected, what):
    wrong = ["%s: %s %d is missing or has another number" % (what, n, v) for n, v in sorted(expected.items())
             if found.get(n) != v]
    return wrong + ["%s: %s is not in the code" % (what, n) for n in sorted(set(found) - set(expected))]


def gap_reasons():
    found = {n: int(v) for n, v in re.findall(r"^### ([A-Z_]+) \((\d+)\)$", read("docs/operations.md"), re.M)}
    wrong = compare(found, enumerators("common/gap_reason.h", "GapReason"), "docs/operations.md")
    for section in re.split(r"^### ", read("docs/operations.md"), flags=re.M)[1:]:
        wrong += ["docs/operations.md: %s has no part %s" % (section.split()[0], part)
                  for part in ("**Seen**", "**Means**", "**Do**") if part not in section]
    return wrong


def plain(markdown):
    """One line without marks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(markdown.split()))
    return re.sub(r"\*\*|`", "", text).strip()


def advice(operations):
    """{reason: {"means", "does"}} of docs/operations.md; where a reason has several parts of a kind they are joined."""
    found = {}
    for section in re.split(r"^### ", operations.split("\n## Verified behind training", 1)[1], flags=re.M)[1:]:
        body = re.split(r"^## ", section.split("\n", 1)[1], flags=re.M)[0]
        parts = re.split(r"\*\*(Seen|Means|Do)\*\*", body)[1:]
        pairs = list(zip(parts[::2], parts[1::2]))
        found[section.split()[0]] = {key: " ".join(plain(text) for kind, text in pairs if kind == title)
                                     for key, title in (("means", "Means"), ("does", "Do"))}
    return found


def page_advice():
    """The live page says what docs/operations.md says, word for word."""
    text = read("actors/page/reasons.js")
    shown = json.loads(text[text.index("const REASONS = ") + len("const REASONS = "):].rstrip().rstrip(";"))
    wanted = advice(read("docs/operations.md"))
    return ["actors/page/reasons.js: %s must be\n%s" % (n, json.dumps({n: wanted.get(n)}, ensure_ascii=False))
            for n in sorted(set(shown) | set(wanted)) if shown.get(n) != wanted.get(n)]


def metrics_in_code():
    """{name: type} of actors/metrics_text.cpp and of the node link's counters."""
    source = read("actors/metrics_text.cpp")
    found = {name: kind.lower() for name, kind in re.findall(r'MetricRow\{\s*"(\w+)",\s*k(\w+),', source)}
    assert len(found) == source.count("MetricRow{"), "a row of actors/metrics_text.cpp is not read"
    gauges = set(re.findall(r'"(link\.\w+)"', re.search(r"kRegistryGauges\{(.*?)\};", source, re.S).group(1)))
    for name in re.findall(r'counter\("(\w+\.\w+)"\)', read("link/link_counters.h")):
        series = "gradtap_" + name.replace(".", "_") + ("" if name in gauges else "_total")
        found[series.replace("expires_s", "expires_timestamp_seconds")] = "gauge" if name in gauges else "counter"
    return found


def metrics():
    code = metrics_in_code()
    told = dict(re.findall(r"^\| `(gradtap_\w+)` \| (\w+) \|", read("docs/operations.md"), re.M))
    wrong = ["docs/operations.md: %s is missing or of another type" % n for n in sorted(code) if told.get(n) != code[n]]
    wrong += ["docs/operations.md: %s is not in the code" % n for n in sorted(set(told) - set(code))]
    reasons = enumerators("common/gap_reason.h", "GapReason")
    for path in ("cluster-config/alerts.yml", "cluster-config/grafana-dashboard.json"):
        text = read(path)
        used = set(re.findall(r"\bgradtap_\w+", text))
        wrong += ["%s uses %s, which no node exports" % (path, n) for n in sorted(used - set(code))]
        if not used:
            wrong.append("%s uses no metric" % path)
        for listed in re.findall(r'reason=~?\\?"([A-Z_|]+)', text):
            wrong += ["%s: there is no reason %s" % (path, r) for r in listed.split("|") if r not in reasons]
    json.loads(read("cluster-config/grafana-dashboard.json"))
    return wrong


def limit_rows():
    """{name: key of the configuration, or None} of actors/limit_table.cpp."""
    source = read("actors/limit_table.cpp")
    found = dict(re.findall(r'LimitRow\{\s*"([^"]+)",\s*"[^"]+",\s*"([^"]*)"', source))
    assert len(found) == source.count("LimitRow{"), "a row of actors/limit_table.cpp is not read"
    return {name: key.replace("cluster:", "") for name, key in found.items()}


def limits():
    """Every limit stands in docs/limits.md with its key and a test that hits it."""
    code = limit_rows()
    part = read("docs/limits.md").split("\n## The limits\n")[1]
    told = re.findall(r"^\| ([^|]+) \| [^|]+ \| (`[\w.]+`|built in: \d+) \| [^|]+ \| [^|]+ \| (.+) \|$", part, re.M)
    known, wrong = user_cases_test.Known(), []
    for name, value, shown in told:
        if name not in code:
            wrong.append("docs/limits.md: there is no limit %s" % name)
        elif value.startswith("`") != bool(code[name]) or (code[name] and value != "`%s`" % code[name]):
            wrong.append("docs/limits.md: %s is not %s" % (name, value))
        tests = user_cases_test.TEST.findall(shown)
        if not tests:
            wrong.append("docs/limits.md: no test hits %s" % name)
        wrong += ["docs/limits.md: there is no test %s: %s" % (s, n) for s, n in tests if not known.has_test(s, n)]
    wrong += ["docs/limits.md: %s is missing" % n for n in sorted(set(code) - {t[0] for t in told})]
    keys = re.findall(r"^\| `([a-z_]+\.?[a-z_]+)` \|", read("docs/configuration.md"), re.M)
    return wrong + ["actors/limit_table.cpp: there is no key %s" % k for k in sorted(set(code.values()) - {""} - set(keys))]


def links():
    wrong = []
    for path, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in SKIP and not f.startswith("build-")]
        for name in names:
            if not name.endswith(".md"):
                continue
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", open(os.path.join(path, name)).read()):
                if not os.path.exists(os.path.join(path, target)):
                    wrong.append("%s: the link to %s leads nowhere" % (os.path.relpath(os.path.join(path, name), ROOT),
                                                                       target))
    return wrong


def main():
    assert constant_name("LostDefinitive") == "LOST_DEFINITIVE"
    assert compare({"A": 1, "C": 3}, {"A": 1, "B": 2}, "x") == ["x: B 2 is missing or has another number",
                                                               "x: C is not in the code"]
    assert advice("x\n## Verified behind training\n### A_B (1)\n**Seen** s.\n**Means** m\nn. **Do** see [x](y.md), `z`.\n"
                  "\n## Durable\n### C (2)\n**Seen** s **Means** c **Do** d") == {
        "A_B": {"means": "m n.", "does": "see x, z."}, "C": {"means": "c", "does": "d"}}
    wrong = gap_reasons() + page_advice() + metrics() + limits() + links()
    print("\n".join(wrong) if wrong else "docs: lists and links follow the code")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
