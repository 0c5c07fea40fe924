#!/usr/bin/env python3
"""Plays gloo's ring all-reduce on small integers and prints which messages carry final values.

Independent of the C++ schedule: every rank holds one number a segment (2**rank), sends really add and overwrite, and a
message is called final when the number in it is the full sum. Output, one line a case:
    world op_bytes element_bytes messages sha256
where the digest is over one line "source index final offset bytes" a message, edges in order of the source.
"""
import hashlib
import sys

MIB = 1 << 20


def up(a, b):
    return -(-a // b) * b


def play(world, op_bytes, element):
    segments = up(max(-(-op_bytes // MIB), 2 * world), world)
    per_chunk = segments // world
    size = up(-(-op_bytes // segments), element)
    begin = [min(k * size, op_bytes) for k in range(segments + 1)]
    full = 2 ** world - 1
    held = [[2 ** rank] * segments for rank in range(world)]
    sent = [[] for _ in range(world)]

    def exchange(first_chunk, add):
        for i in range(segments - per_chunk):
            flying = []
            for rank in range(world):
                k = ((rank + first_chunk) * per_chunk + i) % segments
                flying.append((rank, k, held[rank][k]))
            for rank, k, value in flying:
                target = (rank - 1) % world
                held[target][k] = held[target][k] + value if add else value
                if begin[k + 1] > begin[k]:
                    sent[rank].append((int(value == full), begin[k], begin[k + 1] - begin[k]))

    exchange(1, True)
    exchange(0, False)
    assert all(value == full for rank in held for value in rank)
    return sent


def sizes():
    small = list(range(4, 200, 4)) + [252, 256, 260, 1000, 4096, 19232, 132756, 77108, 65540]
    large = [MIB - 4, MIB, MIB + 4, 5 * MIB, 8 * MIB - 4, 8 * MIB, 8 * MIB + 4, 10 * MIB + 4, 13 * MIB + 12, 25 * MIB,
             33 * MIB + 8]
    return small + large


def main():
    for world in (2, 3, 4, 5):
        for element in (4, 2):
            for op_bytes in sizes() + ([2, 6, 10, 14, 18, 22, 66378, 38554, MIB + 2] if element == 2 else []):
                digest = hashlib.sha256()
                count = 0
                for source, messages in enumerate(play(world, op_bytes, element)):
                    for index, (final, offset, length) in enumerate(messages):
                        digest.update(b"%d %d %d %d %d\n" % (source, index, final, offset, length))
                        count += 1
                print(world, op_bytes, element, count, digest.hexdigest())


if __name__ == "__main__":
    sys.exit(main())
