"""Reads a capture of gloo jobs, finds every copy of a reduced byte in it, and writes changed copies of the file.

Everything here is written from the wire format alone (numpy and the standard library); nothing is shared with the node.
"""
import struct

ALL_REDUCE = 4
HEADER = struct.Struct("<6Q")


class Copy:
    """Bytes [begin, end) of all-reduce `tag`, final values, as frame `frame` carries them from offset `at`."""

    def __init__(self, tag, begin, end, stream, frame, at):
        self.tag, self.begin, self.end, self.stream, self.frame, self.at = tag, begin, end, stream, frame, at


def ring_messages(rank, size, world, element=4):
    """[(final, op offset, bytes)] of the data messages that `rank` sends in a ring all-reduce of `size` bytes."""
    segments = max(-(-size // (1 << 20)), 2 * world)
    segments += -segments % world
    per_chunk = segments // world
    segment = -(-size // segments)
    segment += -segment % element
    found = []
    for final, first in ((False, (rank + 1) * per_chunk), (True, rank * per_chunk)):
        for i in range(segments - per_chunk):
            begin = (first + i) % segments * segment
            if begin < size:
                found.append((final, begin, min(segment, size - begin)))
    return found


class Frame:
    __slots__ = ("head", "raw", "key", "sequence", "flags", "payload", "end")

    def __init__(self, head, raw):
        self.head, self.raw, self.key = head, bytearray(raw), None
        if len(raw) < 54 or raw[12:14] != b"\x08\x00" or raw[23] != 6:
            return
        tcp = 14 + (raw[14] & 15) * 4
        self.end = 14 + struct.unpack_from(">H", raw, 16)[0]
        source, target, self.sequence = struct.unpack_from(">HHI", raw, tcp)
        self.flags = raw[tcp + 13]
        self.payload = tcp + (raw[tcp + 12] >> 4) * 4
        self.key = (bytes(raw[26:30]), source, bytes(raw[30:34]), target)

    def fix_checksum(self):
        tcp = 14 + (self.raw[14] & 15) * 4
        self.raw[tcp + 16:tcp + 18] = b"\0\0"
        segment = bytes(self.raw[tcp:self.end])
        data = bytes(self.raw[26:34]) + struct.pack(">HH", 6, len(segment)) + segment + b"\0" * (len(segment) & 1)
        total = sum(struct.unpack(">%dH" % (len(data) // 2), data))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        struct.pack_into(">H", self.raw, tcp + 16, total ^ 0xFFFF)


class Stream:
    """One direction of a TCP connection: its bytes, and which frames carried them."""

    def __init__(self, key, frames):
        self.key, self.parts = key, []
        opened = [f.sequence + 1 for _, f in frames if f.flags & 2]
        start = opened[0] if opened else min(f.sequence for _, f in frames)
        for index, frame in frames:
            length = frame.end - frame.payload
            if length > 0 and not frame.flags & 2:
                self.parts.append(((frame.sequence - start) & 0xFFFFFFFF, length, index, frame.payload))
        self.data = bytearray(max((p + n for p, n, _, _ in self.parts), default=0))
        by_index = dict(frames)
        for position, length, index, at in self.parts:
            self.data[position:position + length] = by_index[index].raw[at:at + length]

    def header(self, at):
        """(bytes of the message, opcode, slot, length) when gloo's header stands there."""
        if at + HEADER.size > len(self.data):
            return None
        size, opcode, slot, offset, length, roffset = HEADER.unpack_from(self.data, at)
        sound = opcode in (1, 2, 3) and offset == roffset == 0 and size == 48 + (length if opcode == 1 else 0)
        return (size, opcode, slot, length) if sound else None

    def messages(self):
        """[(type, tag, position of the payload, bytes)] of the data messages; None when this is not gloo."""
        at = next((at for at in (0, 8) if self.header(at)), None)
        if at is None:
            return None
        found = []
        while at < len(self.data):
            header = self.header(at)
            if header is None:
                raise ValueError("no header at %d of %r" % (at, self.key))
            size, opcode, slot, length = header
            if opcode == 1:
                found.append((slot >> 56, slot >> 24 & 0xFFFFFFFF, at + 48, length))
            at += size
        return found

    def carried(self, begin, end):
        """[(begin, end, frame, offset in the frame)] of every frame that carried a part of [begin, end)."""
        return [(max(begin, p), min(end, p + n), index, at + max(begin, p) - p) for p, n, index, at in self.parts
                if p < end and p + n > begin]


class Capture:
    def __init__(self, path):
        with open(path, "rb") as f:
            raw = f.read()
        self.head = raw[:24]
        magic, link = struct.unpack_from("<I", raw)[0], struct.unpack_from("<I", raw, 20)[0]
        if magic not in (0xA1B2C3D4, 0xA1B23C4D) or link != 1:
            raise ValueError("%s: not a little-endian Ethernet capture" % path)
        self.frames, at = [], 24
        while at < len(raw):
            size = struct.unpack_from("<I", raw, at + 8)[0]
            self.frames.append(Frame(raw[at:at + 16], raw[at + 16:at + 16 + size]))
            at += 16 + size

    def write(self, path, without=()):
        gone = set(without)
        with open(path, "wb") as f:
            f.write(self.head)
            for i, frame in enumerate(self.frames):
                if i not in gone:
                    f.write(frame.head)
                    f.write(frame.raw)
        return path

    def fix_checksums(self):
        for frame in self.frames:
            if frame.key:
                frame.fix_checksum()

    def copies(self, ranks, sizes):
        """Every Copy of the all-reduces in sizes {tag: bytes}; ranks are addresses in rank order."""
        by_key = {}
        for index, frame in enumerate(self.frames):
            if frame.key:
                by_key.setdefault(frame.key, []).append((index, frame))
        number = {bytes(int(x) for x in address.split(".")): i for i, address in enumerate(ranks)}
        found = []
        for key, frames in by_key.items():
            source, target = number.get(key[0]), number.get(key[2])
            if source is None or target != (source - 1) % len(ranks):
                continue
            stream = Stream(key, frames)
            seen = {}
            for kind, tag, payload, length in stream.messages() or ():
                if kind != ALL_REDUCE or tag not in sizes:
                    continue
                schedule = ring_messages(source, sizes[tag], len(ranks))
                index = seen.get(tag, 0)
                seen[tag] = index + 1
                final, offset, size = schedule[index]
                if size != length:
                    raise ValueError("tag %d message %d of rank %d has %d bytes, not %d" % (tag, index, source, length,
                                                                                         size))
                if final:
                    found += [Copy(tag, offset + b - payload, offset + e - payload, key, frame, at)
                              for b, e, frame, at in stream.carried(payload, payload + length)]
            for tag, count in seen.items():
                if count != len(ring_messages(source, sizes[tag], len(ranks))):
                    raise ValueError("tag %d of rank %d: %d messages" % (tag, source, count))
        return found

    def holds_header(self, frame, copies_of_frame):
        """True when the frame carries bytes that are no payload of the one message given."""
        f = self.frames[frame]
        return sum(c.end - c.begin for c in copies_of_frame) != f.end - f.payload


def covering(copies, tag, position):
    return [c for c in copies if c.tag == tag and c.begin <= position < c.end]


def missing_without(copies, tag, size, gone):
    """Byte ranges of the op that no frame outside `gone` carries."""
    ranges, at = [], 0
    for begin, end in sorted((c.begin, c.end) for c in copies if c.tag == tag and c.frame not in gone):
        if begin > at:
            ranges.append((at, begin))
        at = max(at, end)
    return ranges + ([(at, size)] if at < size else [])
