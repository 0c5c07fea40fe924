#!/usr/bin/python3
"""Made the golden files of format 1, once, without the code under test: messages by the `capnp` tool from text, headers
by struct, checksums by libxxhash. Kept as their description; a file that exists is never written again."""
import ctypes
import os
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", "..", ".."))
XX = ctypes.CDLL("libxxhash.so.0")
XX.XXH3_64bits.restype = ctypes.c_uint64


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


XX.XXH3_128bits.restype = Hash128


def xxh64(data):
    return XX.XXH3_64bits(data, ctypes.c_size_t(len(data)))


def xxh128(data):
    value = XX.XXH3_128bits(data, ctypes.c_size_t(len(data)))
    return struct.pack(">QQ", value.high, value.low)


def message(struct_name, text):
    return subprocess.run(["capnp", "encode", os.path.join(ROOT, "schema", "record.capnp"), struct_name],
                          input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def envelope(kind, payload):
    return b"GTRC" + struct.pack("<HHQQ", 1, kind, len(payload), xxh64(payload)) + payload


def data(values):
    return '0x"' + bytes(values).hex() + '"'


JOB = data(range(16))
SHA = data(range(100, 132))
LINEAGE = f"""(job = {JOB}, jobName = "gpt", lineage = 3, runNonce = "00112233445566778899aabbccddeeff",
 parentLineage = 2, parentStep = 40, baseStep = 41, world = 4, group = 0, sequence = 7, schemaJson = {data(b'{"a":1}')},
 optimizerClass = "AdamW", kinds = ["exp_avg", "exp_avg_sq"], recipeId = "torch1-fma", transforms = ["clip_grad_norm_"],
 shardElements = 16777216, shardCount = 9, endpoints = ["10.0.0.1", "10.0.0.2"], createdWallMs = 1700000000123,
 layoutId = {SHA})"""
STEP = f"""(lineage = 3, step = 42, rank = 1, seq = 50, layoutId = {SHA}, intervalFrom = 10, intervalTo = 12,
 verdict = skipped, json = {data(b'{"kind":"step"}')})"""
MARK = f"""(job = {JOB}, lineage = 3, shard = 8, version = 42, full = 41, logFrom = 40, logTo = 42, schemaId = {SHA}, epoch = 5,
 stateDigest = {data(range(200, 232))})"""


def main():
    payload = bytes(range(10))
    chunk = b"GTCH" + struct.pack("<HBBIIQQ", 1, 0, 0, 10, 10, 4096, 4106) + bytes(32) + payload
    digest = b"GTDG" + struct.pack("<HHI", 1, 2, len(chunk)) + xxh128(chunk) + struct.pack("<QQQ", 2, 5, 2**64 - 1)
    golden = {
        "lineage.1.hex": envelope(1, message("Lineage", LINEAGE)),
        "step.1.hex": envelope(2, message("Step", STEP)),
        "mark.1.hex": envelope(3, message("Mark", MARK)),
        "raw.1.hex": envelope(0, b"side value"),
        "../../storage/golden/chunk.1.hex": chunk,
        "../../storage/golden/digest.1.hex": digest,
    }
    for name, content in golden.items():
        path = os.path.join(HERE, name)
        if os.path.exists(path):
            print("kept", name)
            continue
        with open(path, "w", encoding="ascii") as file:
            text = content.hex()
            file.write("".join(text[i:i + 96] + "\n" for i in range(0, len(text), 96)))
        print("made", name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
