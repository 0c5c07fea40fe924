"""The bounded queue between the training thread and the sender thread.

Messages stay until the node says they are durable. At the bound the side state of the oldest steps goes first, then the
oldest step message; what went is declared. Captured values are shared between steps and count once.
Thread rule: any thread; every method is short and takes the one lock.
"""

import json
import threading
from collections import OrderedDict

MAX_BYTES = 64 << 20
MAX_MESSAGES = 1024
BATCH_LINES = 64
BATCH_BYTES = 1 << 20
DECLARED_AT_ONCE = 4096


class Message:
    """One message. `render(seq)` gives the JSON object; it runs in the sender thread, once."""

    __slots__ = ("seq", "kind", "step", "render", "line", "size", "side", "blobs", "missing")

    def __init__(self, seq, kind, step, render, size, side=None, missing=()):
        self.seq, self.kind, self.step, self.render, self.size = seq, kind, step, render, size
        self.line = None
        self.side = side  # [Captured]; None for messages that never have any
        self.blobs = {}  # what the message says of each, filled in by the sender
        self.missing = list(missing)  # names of side state that will not come


class Outbox:
    def __init__(self, rank, max_bytes=MAX_BYTES, max_messages=MAX_MESSAGES):
        self._rank = rank
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._messages = OrderedDict()
        self._next = 1
        self._gaps = []  # [first seq, last seq, first step, last step], steps and seqs in lock step; not yet declared
        self.bytes = 0
        self.dropped = 0  # messages that will never come
        self.blobs_missing = 0  # values of side state that will never come
        self.received = 0
        self.durable = 0
        self.unspoken = None  # why the last message that could not be written could not
        self.renew()

    def renew(self):
        """After fork the lock of the parent may be held by nobody who lives here."""
        self._lock = threading.Lock()

    def clear(self):
        with self._lock:
            for message in self._messages.values():
                message.side = None
            self._messages.clear()
            self._gaps = []
            self.bytes = 0

    def append(self, kind, step, render, size, side=None, missing=()):
        """Takes a message; makes room by dropping. Returns its seq."""
        with self._lock:
            seq = self._next
            self._next += 1
            self._messages[seq] = Message(seq, kind, step, render, size, side, missing)
            self.blobs_missing += len(missing)
            self.bytes += size
            for captured in side or ():
                if captured.refs == 0:
                    self.bytes += captured.size
                captured.refs += 1
            if self.bytes > self._max_bytes:
                self._strip_side_state()
            while len(self._messages) > self._max_messages or (
                    self.bytes > self._max_bytes and len(self._messages) > 1):
                self._drop_oldest()
            return seq

    def _strip_side_state(self):
        """Oldest first, only of messages that are not written yet: what was said once is not said otherwise."""
        for message in self._messages.values():
            if self.bytes <= self._max_bytes:
                return
            if message.side and message.line is None:
                names = [c.name for c in message.side]
                message.missing += names
                self.blobs_missing += len(names)
                self._release(message)
                message.side = []

    def _release(self, message):
        for captured in message.side or ():
            captured.refs -= 1
            if captured.refs == 0:
                self.bytes -= captured.size

    def encoded(self, captured, blob, digest):
        """The sender has made bytes of a value: they are what it weighs from now on."""
        with self._lock:
            if captured.refs > 0:
                self.bytes += len(blob) - captured.size
            captured.size, captured.blob, captured.digest, captured.value = len(blob), blob, digest, None

    def _drop_oldest(self):
        # Layouts are few and later steps need them: they go only when nothing else is left.
        victim = next((m for m in self._messages.values() if m.kind == "step"), None)
        if victim is None:
            victim = next(iter(self._messages.values()))
        self._forget(victim)
        if victim.seq > self.received:
            self._declare(victim)

    def _forget(self, message):
        del self._messages[message.seq]
        self.bytes -= message.size
        self._release(message)
        message.side = None

    def _declare(self, message):
        self.dropped += 1
        seq, step = message.seq, message.step
        if self._gaps and step is not None:
            last = self._gaps[-1]
            if last[1] + 1 == seq and last[3] is not None and last[3] + 1 == step:
                last[1], last[3] = seq, step
                return
        self._gaps.append([seq, seq, step, step])

    def reject(self, seq):
        """The node will not take this message (422, 413, 400): it becomes a declared gap."""
        with self._lock:
            message = self._messages.get(seq)
            if message is not None:
                self._forget(message)
                self._declare(message)

    def batch(self, max_lines=BATCH_LINES, declare=True, ready=None):
        """[(seq, line)] from the first message the node has not received. Declarations of gaps lead, because the
        node's cumulative answer cannot pass a gap that it does not know. While the node cannot be reached
        (declare=False) gaps only add up. ready(message) brings a message's side state to the node first."""
        with self._lock:
            if self._gaps and declare:
                self._append_declaration()
            chosen = [m for m in self._messages.values() if m.kind == "dropped" and m.seq > self.received]
            chosen = chosen[:max_lines // 2]
            size = sum(m.size for m in chosen)
            for m in self._messages.values():
                if m.seq > self.received and m.kind != "dropped":
                    chosen.append(m)
                    size += m.size
                    if len(chosen) == max_lines or size > BATCH_BYTES:
                        break
        lines, size = [], 0
        for m in chosen:
            if m.side and ready is not None:
                ready(m)
            if m.line is None:
                try:
                    self._write(m)
                except Exception as error:  # a value that cannot be spelled costs its step, not the tap
                    self.unspoken = "message %d cannot be written: %r" % (m.seq, error)
                    self.reject(m.seq)
                    continue
                with self._lock:
                    if m.seq in self._messages:
                        self.bytes += len(m.line) - m.size
                    m.size = len(m.line)
                m.render = None
            if lines and size + len(m.line) > BATCH_BYTES:
                break
            lines.append((m.seq, m.line))
            size += len(m.line)
        return lines

    def _write(self, message):
        body = message.render(message.seq)
        with self._lock:  # from here on what it says of its side state is fixed
            if message.blobs:
                body["blobs"] = {k: v for k, v in message.blobs.items() if k not in message.missing}
            if message.missing:
                body["blobs_missing"] = sorted(set(message.missing))
            message.line = json.dumps(body, separators=(",", ":")).encode("utf-8") + b"\n"

    def last_unsure(self):
        """The newest message that is received but not durable: sent again to learn how far durability has come."""
        with self._lock:
            for m in reversed(self._messages.values()):
                if m.line is not None and self.durable < m.seq <= self.received:
                    return [(m.seq, m.line)]
            return []

    def _append_declaration(self):
        seqs, steps, rest = [], [], []
        for first, last, step_first, step_last in self._gaps:
            count = last - first + 1
            take = min(count, DECLARED_AT_ONCE - len(seqs))
            seqs.extend(range(first, first + take))
            if step_first is not None:
                steps.extend(range(step_first, step_first + take))
            if take < count:
                rest.append([first + take, last, None if step_first is None else step_first + take, step_last])
        self._gaps = rest
        seq = self._next
        self._next += 1
        body = {"kind": "dropped", "seq": seq, "rank": self._rank, "steps": steps, "seqs": seqs}
        message = Message(seq, "dropped", None, None, 0)
        message.line = json.dumps(body, separators=(",", ":")).encode("utf-8") + b"\n"
        message.size = len(message.line)
        self._messages[seq] = message
        self.bytes += message.size

    def acknowledge(self, received, durable):
        """The node's cumulative answer. received may fall back to durable after a restart of the node."""
        with self._lock:
            received = min(max(received, 0), self._next - 1)
            durable = min(max(durable, 0), received)
            self.received = received
            self.durable = max(self.durable, durable)
            while self._messages:
                m = next(iter(self._messages.values()))
                if m.seq > self.durable:
                    break
                self._forget(m)

    def rewind(self, from_seq):
        with self._lock:
            self.received = min(self.received, max(from_seq - 1, self.durable))

    def unsent(self):
        with self._lock:
            return self._next - 1 - self.received

    def pending(self):
        with self._lock:
            return len(self._messages) + (1 if self._gaps else 0)
