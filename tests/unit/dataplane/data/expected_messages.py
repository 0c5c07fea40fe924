#!/usr/bin/env python3
"""Prints the gloo data messages of a complete capture, one per line, decoded independently of the product:
whole streams are put together first and parsed afterwards.
    source target tag type index length sha256
source and target are the last digits of 10.77.0.1<rank>.  Usage: expected_messages.py FILE.pcap"""
import collections
import hashlib
import struct
import sys

data = open(sys.argv[1], "rb").read()
assert struct.unpack_from("<I", data, 0)[0] == 0xA1B2C3D4
streams = collections.OrderedDict()
at = 24
while at < len(data):
    captured = struct.unpack_from("<I", data, at + 8)[0]
    frame = data[at + 16:at + 16 + captured]
    at += 16 + captured
    if frame[12:14] != b"\x08\x00" or frame[23] != 6:
        continue
    ip = (frame[14] & 15) * 4
    total = struct.unpack_from(">H", frame, 16)[0]
    tcp = 14 + ip
    sport, dport, seq = struct.unpack_from(">HHI", frame, tcp)
    if 29500 in (sport, dport):
        continue
    payload = frame[tcp + (frame[tcp + 12] >> 4) * 4:14 + total]
    key = (frame[29] - 10, sport, frame[33] - 10, dport)
    if frame[tcp + 13] & 2:
        streams[key] = (seq + 1, {})
    elif payload:
        first, pieces = streams[key]
        offset = (seq - first) & 0xFFFFFFFF
        assert offset < 1 << 30
        if len(pieces.get(offset, b"")) < len(payload):
            pieces[offset] = payload

for (source, _, target, _), (_, pieces) in streams.items():
    stream = bytearray()
    for offset in sorted(pieces):
        assert offset <= len(stream), "the capture has a hole"
        stream[offset:offset + len(pieces[offset])] = pieces[offset]
    position, count = 0, collections.Counter()
    if len(stream) >= 56 and struct.unpack_from("<Q", stream, 0)[0] < 48:
        position = 8  # the hello of torch 2
    while position < len(stream):
        nbytes, opcode, slot, offset, length, roffset = struct.unpack_from("<6Q", stream, position)
        assert offset == 0 and roffset == 0 and opcode in (1, 2, 3), (position, opcode)
        if opcode == 1:
            body = stream[position + 48:position + nbytes]
            assert len(body) == length
            print(source, target, slot >> 24 & 0xFFFFFFFF, slot >> 56, count[slot], length,
                  hashlib.sha256(body).hexdigest())
            count[slot] += 1
        position += nbytes
