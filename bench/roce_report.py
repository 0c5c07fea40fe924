#!/usr/bin/python3
"""What roce_bench's numbers say, as the tables of docs/performance.md: bench/roce_report.py FILE.json

Costs are nanoseconds of one core a frame. "received" is a frame written into the port's buffer, through the port and
back to the pool: what this core does for a frame that nobody looks at. Everything else is what taking it out costs, with
the port's share in it; a rate is of one core that does both.
"""
import statistics
import sys

sys.dont_write_bytecode = True
from run import repetitions  # noqa: E402

DEPTHS = [("receive", "receive only"), ("copy", "plain copy of the payload"), ("decode", "decode, flow tracking"),
          ("place", "placed"), ("place_icrc", "placed, ICRC verified")]


def cost(run):
    return run["real_time"] * 1e6 * run["iterations"] / run["frames"]  # ms a pass


def middle(values):
    return "%.0f (%.0f to %.0f)" % (statistics.median(values), min(values), max(values))


def main():
    rows = {}
    for name, runs in repetitions(sys.argv[1]).items():
        _, protocol, mtu, depth = name.split("/")[:4]
        rows.setdefault((protocol, mtu), {})[depth] = runs
    print("| traffic | depth | frames | ns a frame | million frames/s, received too "
          "| payload GB/s |")
    print("|---|---|---|---|---|---|")
    rows = dict(sorted(rows.items(), reverse=True, key=lambda row: (row[0][0], -int(row[0][1]))))
    for (protocol, mtu), depths in rows.items():
        sent = statistics.median(run["send_ns"] for run in depths["receive"])
        for depth, title in DEPTHS:
            runs = depths[depth]
            costs = [cost(run) for run in runs]
            whole = statistics.median(costs) + sent
            payload = runs[0]["payload_bytes"] / runs[0]["frames"]
            print("| %s, MTU %s | %s | %.1fM | %s | %.2f | %.2f |" %
                  (protocol, mtu, title, sum(run["frames"] for run in runs) / 1e6, middle(costs), 1e3 / whole,
                   payload / whole))
    print()
    print("| traffic | writing a frame into the buffer, ns | placed / receive only | placed / copy | placed / receive "
          "only, pointers alone | ICRC, ns a frame |")
    print("|---|---|---|---|---|---|")
    for (protocol, mtu), depths in rows.items():
        sends = [run["send_ns"] for run in depths["receive"]]
        sent = statistics.median(sends)
        receive, copy, place, verified = (statistics.median(cost(run) for run in depths[depth])
                                          for depth in ("receive", "copy", "place", "place_icrc"))
        print("| %s, MTU %s | %s | %.2f | %.2f | %.3f | %.0f |" %
              (protocol, mtu, middle(sends), (sent + receive) / (sent + place), (copy - receive) / (place - receive),
               receive / place, verified - place))


if __name__ == "__main__":
    main()
