#!/usr/bin/python3
"""Golden tables of NCCL's ring collectives, derived apart from dataplane/nccl_schedule.cpp: by running them.

Every rank's vector is an array of element numbers, every chunk a slice of it. Rank p starts with the chunk before its
own and from then on sends what it has just received; what a message is (partial or final) is not known to the program
but found: each element carries the set of ranks that have added to it, and a message is final when the set is full.
At the end every rank must hold every element with the full set.

What is written down here of NCCL (function and versions in dataplane/nccl_schedule.h): how a loop is cut, how many
channels and threads are used, how a chunk of Simple is sliced.

Output, one line an op:
    kind layout protocol ranks connected threads element_bytes elements root = channels threads first middle last sha256
the last three numbers being the slabs (0 where there are none). The digest is over one line a link and channel, in
order: "link POSITION CHANNEL" and its messages: P(artial) or F(inal), steps, ":begin+count" in elements, "/bytes" on the
wire; an empty message has only its steps. --full prints these lines too.

Usage: nccl_schedule_golden.py [--full] > nccl_schedule.txt     nccl_schedule_golden.py --check nccl_schedule.txt
"""
import hashlib
import io
import sys

import numpy

KIB = 1024


def ceil(a, b):
    return -(-a // b)


def up(a, b):
    return ceil(a, b) * b


class Call:
    def __init__(self, kind, layout, proto, ranks, connected, threads, esize, elements, root=0, tuned=None):
        self.kind, self.layout, self.proto, self.ranks = kind, layout, proto, ranks
        self.connected, self.threads, self.esize, self.elements, self.root = connected, threads, esize, elements, root
        # All-gathers and broadcasts are turned into ones of bytes before anything else is decided.
        self.unit = esize if kind == "allreduce" else 1
        self.units = elements * esize // self.unit
        self.configured_threads = threads
        self.tune(tuned)
        self.cut_slabs()

    def tune(self, tuned):
        total = self.elements * self.esize * (self.ranks if self.kind == "allgather" else 1)
        per_thread = 8 * self.ranks if self.proto == "LL" else 64
        candidates = [c for c in range(self.connected, 0, -1) if total >= c * self.threads * per_thread]
        self.channels = candidates[0] if candidates else 1
        while total < self.channels * self.threads * per_thread and self.threads % 128 == 0:
            self.threads //= 2
        warps = self.threads // 32 + (1 if self.proto == "Simple" else 0)
        self.threads = 32 * (max(3, warps) - (1 if self.proto == "Simple" else 0))
        self.tuned = self.channels

    def cut_slabs(self):
        """From 2.20: `slabs` is a list of unit counts, one per channel that has something to do."""
        self.slabs = None
        if self.layout == "2.20":
            share = up(ceil(self.units * self.unit, self.tuned), 16)
            align = (8 * self.threads if self.proto == "LL" else 4096) // self.unit
            each = up(ceil(share, self.unit), align)
            self.slabs, rest = [], self.units
            while rest > 0:
                self.slabs.append(min(each, rest))
                rest -= self.slabs[-1]
        if self.layout == "2.22":
            per_byte = {"allreduce": 2, "allgather": self.ranks, "broadcast": 1}[self.kind]
            size = self.units * self.unit
            budget = max(16 * KIB, max(16 * KIB, size * per_byte) // self.tuned)
            heavy = per_byte * (4 if self.proto == "LL" else 1)
            cell = up(ceil(16 * KIB, heavy), 16)
            cells = ceil(size, cell)
            each = min(cells, ceil(budget, cell * heavy))
            if self.connected == 1:
                hands = [cells]
            else:
                hands, rest = [], cells  # cells dealt out, as many to each as its budget allows
                while rest > 0:
                    hands.append(min(each, rest))
                    rest -= hands[-1]
                if len(hands) > self.connected:  # too many hands: all but the first share evenly, the last takes the rest
                    rest = cells - each
                    even = rest // (self.connected - 1)
                    hands = [each] + [even] * (self.connected - 2) + [rest - even * (self.connected - 2)]
            self.slabs = [h * cell // self.unit for h in hands]
            self.slabs[-1] -= sum(self.slabs) - self.units
        if self.slabs is not None:
            assert sum(self.slabs) == self.units and all(s > 0 for s in self.slabs), self.slabs
            self.channels = len(self.slabs)

    def chunk(self):
        if self.proto == "LL":
            return 32 * KIB // self.unit
        return (512 * KIB if self.kind == "broadcast" else 2048 * KIB) // self.unit

    def loops(self, channel):
        """For each loop of a channel the chunks that it is cut into, as slices of the unit vector."""
        vector = numpy.arange(self.units)
        pieces = self.ranks if self.kind == "allreduce" else 1
        out = []
        if self.slabs is None:
            at = 0
            while at < self.units:
                left = self.units - at
                if self.proto == "LL":
                    grain = self.threads * 8 // self.unit
                    real = self.chunk()
                    if ceil(left, self.channels * pieces * grain) * grain < real:
                        real = ceil(left, self.channels * pieces * grain) * grain
                    starts = [at + (c * self.channels + channel) * real for c in range(pieces)]
                else:
                    real = self.chunk() if left >= self.channels * pieces * self.chunk() else ceil(left, self.channels * pieces)
                    real = up(real, self.threads * 8 // self.unit)
                    starts = [at + channel * pieces * real + c * real for c in range(pieces)]
                out.append([vector[s:s + real] for s in starts])
                at += self.channels * pieces * self.chunk()
        else:
            mine = vector[sum(self.slabs[:channel]):][:self.slabs[channel]]
            while mine.size:
                loop, mine = mine[:pieces * self.chunk()], mine[pieces * self.chunk():]
                real = self.chunk()
                if loop.size < pieces * real and self.kind == "allreduce":
                    tail = 16 // self.unit if self.layout == "2.22" else (
                        8 * self.threads if self.proto == "LL" else 4096) // self.unit
                    real = up(ceil(loop.size, pieces), tail)
                out.append([loop[c * real:(c + 1) * real] for c in range(pieces)])
        return out

    def slices(self, piece):
        """A piece of the vector as the messages that carry it, with the connection steps each takes."""
        if self.proto == "LL" or self.kind == "broadcast":
            return [(piece, 1)]
        length = max(ceil(piece.size, 32) * 16, 1024 * KIB // self.unit // 32)
        return [(piece[:length], 2), (piece[length:], 2)]

    def run(self):
        """sent[position][channel] = [(units array, final?, steps)]"""
        k = self.ranks
        full = (1 << k) - 1
        sent = [[[] for _ in range(self.channels)] for _ in range(k)]
        if self.kind == "allreduce":
            have = numpy.zeros((k, self.units), dtype=numpy.uint32)
            for p in range(k):
                have[p, :] = 1 << p
            for channel in range(self.channels):
                for loop in self.loops(channel):
                    carry = [((p - 1) % k, have[p, loop[(p - 1) % k]].copy()) for p in range(k)]
                    for _ in range(2 * (k - 1)):
                        for p in range(k):
                            chunk, sets = carry[p]
                            final = chunk == p if sets.size == 0 else bool((sets == full).all())
                            for part, steps in self.slices(loop[chunk]):
                                sent[p][channel].append((part, final, steps))
                        carry = [carry[(p - 1) % k] for p in range(k)]
                        moved = []
                        for p in range(k):
                            chunk, sets = carry[p]
                            sets = sets | have[p, loop[chunk]]
                            have[p, loop[chunk]] = sets
                            moved.append((chunk, sets))
                        carry = moved
            assert (have == full).all(), "the ring does not complete"
            # What is empty carries no set: it is final in the second half of the loop's messages.
            for p in range(k):
                for channel in range(self.channels):
                    per = len(self.slices(numpy.arange(0)))
                    for i, (part, final, steps) in enumerate(sent[p][channel]):
                        half = (i // per) % (2 * (k - 1)) >= k - 1
                        if part.size == 0:
                            sent[p][channel][i] = (part, half, steps)
                        else:
                            assert final == half
        elif self.kind == "allgather":
            for channel in range(self.channels):
                for (piece,) in self.loops(channel):
                    carry = list(range(k))
                    for _ in range(k - 1):
                        for p in range(k):
                            for part, steps in self.slices(piece):
                                sent[p][channel].append((part + carry[p] * self.units, True, steps))
                        carry = [carry[(p - 1) % k] for p in range(k)]
        else:
            for channel in range(self.channels):
                for (piece,) in self.loops(channel):
                    for hop in range(k - 1):
                        sent[(self.root + hop) % k][channel].append((piece, True, 1))
        return sent

    def lines(self):
        sent = self.run()
        per_unit = self.esize // self.unit
        for p in range(self.ranks):
            for channel in range(self.channels):
                words = ["link %d %d" % (p, channel)]
                for part, final, steps in sent[p][channel]:
                    data = part.size * self.unit
                    wire = ceil(data, 8) * 16 if self.proto == "LL" else data
                    word = "%s%d" % ("F" if final else "P", steps)
                    if part.size:
                        assert (numpy.diff(part) == 1).all() and part[0] % per_unit == 0 and part.size % per_unit == 0
                        word += ":%d+%d/%d" % (part[0] // per_unit, part.size // per_unit, wire)
                    words.append(word)
                yield " ".join(words) + "\n"

    def write(self, out, full):
        slabs = [0, 0, 0]
        if self.slabs is not None:
            slabs = [self.slabs[0], self.slabs[1] if len(self.slabs) > 2 else 0, self.slabs[-1] if len(self.slabs) > 1 else 0]
        text = "".join(self.lines())
        print(self.kind, self.layout, self.proto, self.ranks, self.connected, self.configured_threads, self.esize,
              self.elements, self.root, "=", self.channels, self.threads, *slabs,
              hashlib.sha256(text.encode()).hexdigest(), file=out)
        if full:
            out.write(text)


def calls():
    for layout in ("2.19", "2.20", "2.22"):
        for proto in ("LL", "Simple"):
            # The known points of the captures, and around them.
            yield Call("allreduce", layout, proto, 2, 1, 512, 4, 5000)
            yield Call("allreduce", layout, proto, 2, 1, 512, 4, 10000)
            yield Call("allreduce", layout, proto, 2, 4, 512, 4, 5000)
            for n in (1, 2, 3, 7, 100, 1001, 2047):
                yield Call("allreduce", layout, proto, 2, 2, 512, 4, n)
            yield Call("allreduce", layout, proto, 3, 3, 512, 4, 12345)
            yield Call("allreduce", layout, proto, 4, 2, 512, 2, 33333)
            yield Call("allreduce", layout, proto, 5, 4, 256, 4, 70001)
            yield Call("allreduce", layout, proto, 8, 8, 512, 4, 262144)
            yield Call("allreduce", layout, proto, 7, 3, 512, 8, 9999)
            yield Call("allreduce", layout, proto, 16, 2, 512, 4, 40000)
            for n in (4096, 20000, 65537):
                for ranks in (2, 3, 6, 11):
                    for connected in (1, 2, 5, 8):
                        yield Call("allreduce", layout, proto, ranks, connected, 512, 4, n)
            yield Call("allgather", layout, proto, 2, 1, 512, 8, 1)
            yield Call("allgather", layout, proto, 4, 3, 512, 4, 30011)
            yield Call("broadcast", layout, proto, 2, 1, 512, 4, 10000)
            yield Call("broadcast", layout, proto, 3, 4, 512, 4, 123457, root=2)
        # Several loops of Simple: a full chunk is 2 MiB.
        yield Call("allreduce", layout, "Simple", 2, 1, 512, 4, 2000003)
        yield Call("allreduce", layout, "Simple", 3, 2, 256, 2, 7000001)
        yield Call("allgather", layout, "Simple", 3, 1, 512, 4, 1400001)
        yield Call("broadcast", layout, "Simple", 2, 2, 512, 4, 700001)
        yield Call("allreduce", layout, "LL", 4, 1, 512, 4, 100003)


def main():
    out = io.StringIO()
    for call in calls():
        call.write(out, "--full" in sys.argv)
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        same = open(sys.argv[2], encoding="utf-8").read() == out.getvalue()
        print("nccl_schedule.txt is%s what the simulation gives" % ("" if same else " NOT"))
        sys.exit(0 if same else 1)
    sys.stdout.write(out.getvalue())


if __name__ == "__main__":
    main()
