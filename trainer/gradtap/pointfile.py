"""Files of a recovery point as they come from a source: safetensors, read through a private mapping."""

import json
import mmap
import os
import struct

import torch

MAX_HEADER = 256 << 20
_DTYPES = {"F32": (torch.float32, 4), "U8": (torch.uint8, 1)}


class Damaged(Exception):
    """The file is not what the record says it is."""


class TensorFile:
    """Tensors by name, and metadata. Nothing is trusted but that offsets lie inside the file."""

    def __init__(self, file):
        """file: an open file object; it may be closed afterwards."""
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise Damaged("%d bytes are no safetensors file" % size)
        # Private and writable: torch wants writable memory, and nothing reaches the file.
        self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        (length,) = struct.unpack("<Q", self._map[:8])
        if length > min(MAX_HEADER, size - 8):
            raise Damaged("a header of %d bytes in a file of %d" % (length, size))
        try:
            header = json.loads(self._map[8:8 + length].decode("utf-8"))
        except (ValueError, RecursionError):
            raise Damaged("the header is not JSON") from None
        if not isinstance(header, dict):
            raise Damaged("the header is not an object")
        self.metadata = header.pop("__metadata__", {})
        if not isinstance(self.metadata, dict):
            raise Damaged("the metadata is not an object")
        self._begin = 8 + length
        self._entries = {name: self._entry(name, entry, size) for name, entry in header.items()}

    def _entry(self, name, entry, size):
        try:
            dtype, width = _DTYPES[entry["dtype"]]
            shape = [int(n) for n in entry["shape"]]
            begin, end = (int(n) for n in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise Damaged("tensor %s has no readable description" % name) from None
        count = width
        for n in shape:
            if n < 0 or count > size:
                raise Damaged("tensor %s has the shape %s" % (name, shape))
            count *= n
        if begin < 0 or end < begin or self._begin + end > size or end - begin != count:
            raise Damaged("tensor %s: bytes %d to %d for shape %s in a file of %d bytes" % (name, begin, end, shape,
                                                                                            size))
        return dtype, shape, self._begin + begin, self._begin + end

    def names(self):
        return self._entries.keys()

    def shape(self, name):
        return self._entries[name][1]

    def is_float(self, name):
        return self._entries[name][0] is torch.float32

    def tensor(self, name):
        """A view into the mapping, valid until close."""
        dtype, shape, begin, end = self._entries[name]
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        width = 4 if dtype is torch.float32 else 1
        if begin % width:
            return torch.frombuffer(bytearray(self._map[begin:end]), dtype=dtype).reshape(shape)
        return torch.frombuffer(self._map, dtype=dtype, count=(end - begin) // width, offset=begin).reshape(shape)

    def data(self, name):
        _, _, begin, end = self._entries[name]
        return self._map[begin:end]

    def json(self, key, default=None):
        """Metadata that is JSON text."""
        if key not in self.metadata:
            return default
        try:
            return json.loads(self.metadata[key])
        except (ValueError, TypeError, RecursionError):
            raise Damaged("metadata %s is not JSON" % key) from None

    def close(self):
        self._entries = {}
        try:
            self._map.close()
        except BufferError:  # somebody still looks at a tensor: the mapping goes with the last view
            pass
