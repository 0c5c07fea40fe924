"""The safetensors container: an 8-byte little-endian header length, a JSON header, then the data."""

import json
import struct


def encode(tensors, metadata):
    """tensors: list of (name, bytes of float32 in memory order). Returns the body."""
    header = {"__metadata__": {str(k): str(v) for k, v in metadata.items()}}
    offset = 0
    for name, data in tensors:
        header[name] = {
            "dtype": "F32",
            "shape": [len(data) // 4],
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text] + [data for _, data in tensors])
