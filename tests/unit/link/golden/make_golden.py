#!/usr/bin/python3
"""Made the golden frames of format 1, once, without the code under test: headers by the `capnp` tool from text, heads by
struct, checksums by libxxhash. Kept as their description; a file that exists is never written again."""
import ctypes
import os
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", "..", ".."))
XX = ctypes.CDLL("libxxhash.so.0")
XX.XXH3_64bits.restype = ctypes.c_uint64


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


XX.XXH3_128bits.restype = Hash128


def message(struct_name, text):
    return subprocess.run(["capnp", "encode", os.path.join(ROOT, "schema", "link.capnp"), struct_name],
                          input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def frame(kind, header, payload):
    digest = XX.XXH3_128bits(payload, ctypes.c_size_t(len(payload)))
    head = b"GTLK" + struct.pack("<HHII", 1, kind, len(header), len(payload)) + struct.pack(">QQ", digest.high, digest.low)
    covered = head + header
    return head + struct.pack("<Q", XX.XXH3_64bits(covered, ctypes.c_size_t(len(covered)))) + header + payload


def data(values):
    return '0x"' + bytes(values).hex() + '"'


def main():
    frames = {
        "hello.1.hex": frame(1, message("LinkHello", f'(name = "tap0", peer = "tap1", cluster = {data(range(32))}, '
                                                     'kind = 2)'), b""),
        "request.1.hex": frame(3, message("LinkRequest", f'(kind = 4, job = {data(range(16))}, lineage = 3, shard = 8, '
                                                         'step = 42, argument = 7, text = "t", firstChunk = 5, '
                                                         'bodyBytes = 3, credits = 64)'), b"\x01\x02\x03"),
        "answer.1.hex": frame(5, message("LinkAnswer", '(fault = (code = 507, what = "gone", where = "shard 8", '
                                                       'expected = "e", actual = "a", remedy = "r"))'), b""),
        "chunk.1.hex": frame(6, message("LinkChunk", "(index = 9)"), bytes(range(100))),
    }
    for name, content in frames.items():
        path = os.path.join(HERE, name)
        if not os.path.exists(path):
            with open(path, "w", encoding="ascii") as file:
                text = content.hex()
                file.write("\n".join(text[i:i + 64] for i in range(0, len(text), 64)) + "\n")


if __name__ == "__main__":
    main()
