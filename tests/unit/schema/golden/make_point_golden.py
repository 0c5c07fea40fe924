#!/usr/bin/python3
"""Made the golden files of the object store's format 1, once, without the code under test: messages by the `capnp` tool
from text, headers and digests by struct, hashlib and libxxhash. A file that exists is never written again."""
import hashlib
import os
import struct
import subprocess
import sys

import make_golden
from make_golden import HERE, ROOT, data, envelope, xxh64, xxh128

JOB_NAME = "gpt-2.small"
JOB = hashlib.sha256(JOB_NAME.encode()).digest()[:16]
LINEAGE = 3
PREFIX = "jobs/%s/%020d" % (JOB_NAME, LINEAGE)


def message(struct_name, text):
    return subprocess.run(["capnp", "encode", os.path.join(ROOT, "schema", "point.capnp"), struct_name],
                          input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def sha(first):
    return data(range(first, first + 32))


def ref(key, size, first):
    return '(key = "%s", bytes = %d, sha256 = %s)' % (key, size, sha(first))


def step_object(folder, step, size, first):
    return "(step = %d, object = %s)" % (step, ref("%s/%s/%020d-u%d" % (PREFIX, folder, step, step), size, first))


CLAIM = f"""(job = {data(JOB)}, jobName = "{JOB_NAME}", lineage = {LINEAGE},
 runNonce = "00112233445566778899aabbccddeeff", parentLineage = 2, parentStep = 40, parentRecord = {sha(7)}, baseStep = 40,
 node = "tap0",
 createdWallMs = 1700000000123)"""
LAYOUT = b'{"buckets":[]}'
CANONICAL = f"""(format = 1, job = {data(JOB)}, jobName = "{JOB_NAME}", lineage = {LINEAGE}, parentLineage = 2,
 parentStep = 40, parentRecord = {sha(7)}, step = 43, stateRoot = {sha(9)},
 shards = [(shard = 0, digest = {sha(10)}), (shard = 1, digest = {sha(11)})],
 ranks = [(rank = 0, digest = {sha(12)}), (rank = 1, digest = {sha(13)})], schemaId = {sha(14)}, layoutId = {sha(15)},
 layoutJson = {data(LAYOUT)}, stepMessage = {sha(16)}, verdict = skipped, world = 2, recipeId = "torch1-fma",
 optimizerClass = "AdamW", qualifiedBy = "baseline")"""
SHARDS = ", ".join(
    "(shard = %d, baseStep = %d, base = %s, logs = [%s])" %
    (shard, base, ref("%s/shard/%05d/full/%020d-b%d" % (PREFIX, shard, base, shard), 1000 + shard, 20 + shard),
     ", ".join(step_object("shard/%05d/log" % shard, step, 500 + step, 30 + step) for step in range(base + 1, 44)))
    for shard, base in ((0, 41), (1, 42)))
POINT = f"""(canonical = {CANONICAL}, shards = [{SHARDS}],
 steps = [{step_object("step", 42, 700, 80)}, {step_object("step", 43, 701, 81)}],
 side = {ref("%s/side/%020d-s" % (PREFIX, 43), 800, 90)}, meta = {ref(PREFIX + "/meta/m", 900, 91)},
 previousStep = 42, previousRecord = {sha(92)}, publisher = "tap1", createdWallMs = 1700000000456, training = 45,
 verified = 44, durable = 43, published = 42, software = "gradtap 0.1.0")"""
RANKS = [(0, b'{"rank":0}', {"rng.python": b"\x01\x02", "scheduler": b""}),
         (1, b'{"rank":1}', {"rng.torch": bytes(40)})]
SIDE = "(lineage = 3, step = 43, ranks = [%s])" % ", ".join(
    "(rank = %d, message = %s, blobs = [%s])" %
    (rank, data(text), ", ".join('(name = "%s", bytes = %s)' % (name, data(blob) if blob else '""')
                                 for name, blob in sorted(blobs.items())))
    for rank, text, blobs in RANKS)


def side_digest(rank, text, blobs):
    h = hashlib.sha256(b"gradtap side state 1")
    h.update(struct.pack("<QQ", rank, len(text)) + text + struct.pack("<Q", len(blobs)))
    for name, blob in sorted(blobs.items()):
        h.update(struct.pack("<Q", len(name)) + name.encode() + struct.pack("<Q", len(blob)) + blob)
    return h.hexdigest()


def data_object(kind, shard, step, payload, chunk=1 << 20):
    table = b"".join(struct.pack("<Q", xxh64(payload[i:i + chunk])) for i in range(0, len(payload), chunk))
    head = b"GTOB" + struct.pack("<HBBB3xI", 1, kind, 0, 0, shard) + JOB
    head += struct.pack("<IIQQQ", LINEAGE, chunk, step, len(payload), len(payload)) + xxh128(table) + bytes(8)
    assert len(head) == 88
    return head + struct.pack("<Q", xxh64(head)) + payload + table


def main():
    parts = struct.pack("<II", 2, 0) + struct.pack("<B7xQ", 16, 5) + struct.pack("<B7xQ", 128, 3) + b"paramstt"
    golden = {
        "claim.1.hex": envelope(4, message("LineageClaim", CLAIM)),
        "point.1.hex": envelope(5, message("Point", POINT)),
        "side.1.hex": envelope(6, message("SideState", SIDE)),
        "../../storage/golden/object_log.1.hex": data_object(2, 7, 43, bytes(range(100))),
        "../../storage/golden/object_full.1.hex": data_object(1, 7, 40, parts),
        "../../storage/golden/object_chunks.1.hex": data_object(2, 7, 44, bytes(range(256)) * 40, chunk=4096),
        "../../storage/golden/object_empty.1.hex": data_object(2, 0, 1, b""),
    }
    for name, content in golden.items():
        path = os.path.join(HERE, name)
        print(name, len(content), "bytes, SHA-256", hashlib.sha256(content).hexdigest())
        if os.path.exists(path):
            continue
        with open(path, "w", encoding="ascii") as file:
            text = content.hex()
            file.write("".join(text[i:i + 96] + "\n" for i in range(0, len(text), 96)))
    for rank in RANKS:
        print("side digest of rank", rank[0], side_digest(*rank))
    return 0


if __name__ == "__main__":
    assert make_golden.HERE == HERE
    sys.exit(main())
