"""Side state on its way to the node: encoded and digested in the sender thread, small values inside the message, the
others uploaded under their digest before the message that names them.

An upload counts for one gateway and one connection (an epoch): after a fail-over, or after the node lost what it had
received, the values of messages that are not durable are uploaded again. Their bytes stay until then.
"""

import base64
import hashlib

from . import sidestate

INLINE_BYTES = 8 << 10
INLINE_TOTAL = 96 << 10  # of one message
KNOWN_DIGESTS = 4096


class Blobs:
    """put(digest, data) uploads: True done, False refused for good; raises what the caller of `ready` handles."""

    def __init__(self, outbox, put, blob_bytes):
        self._outbox, self._put, self._blob_bytes = outbox, put, blob_bytes
        self._uploaded = {}  # digest -> epoch, in the order of upload
        self._latest = {}  # name -> bytes: equal values share them
        self._epoch = 0
        self.uploaded_bytes = 0
        self.trouble = None  # why the last value could not be sent

    def renew(self):
        """What was uploaded may be gone."""
        self._epoch += 1

    def ready(self, message):
        """Brings the side state of one message to the node. Only a message that is not written yet learns of losses."""
        written = message.line is not None
        room = INLINE_TOTAL
        for captured in list(message.side or ()):
            if captured.blob is None and captured.failed is None:
                self._encode(captured)
            if captured.failed is not None:
                self._missing(message, captured, captured.failed)
                continue
            entry = message.blobs.get(captured.name, {"digest": captured.digest, "bytes": len(captured.blob)})
            if not written and len(captured.blob) <= INLINE_BYTES and len(captured.blob) <= room:
                room -= len(captured.blob)
                entry["inline"] = base64.b64encode(captured.blob).decode("ascii")
                message.blobs[captured.name] = entry
            if "inline" in entry:
                continue
            if self._uploaded.get(captured.digest) != self._epoch:
                if not self._put(captured.digest, captured.blob):
                    self._missing(message, captured, "refused by the node")
                    continue
                self.uploaded_bytes += len(captured.blob)
                self._note(captured.digest)
            message.blobs[captured.name] = entry

    def _encode(self, captured):
        try:
            data = sidestate.encode(captured)
            if len(data) > self._blob_bytes:
                raise sidestate.codec.TooLarge("%d bytes, the limit is %d" % (len(data), self._blob_bytes))
        except Exception as error:
            captured.failed = sidestate.reason_of(error)
            return
        before = self._latest.get(captured.name)
        if before is not None and before[0] == data:
            data, digest = before
        else:
            digest = hashlib.sha256(data).hexdigest()
            self._latest[captured.name] = (data, digest)
        self._outbox.encoded(captured, data, digest)

    def _missing(self, message, captured, why):
        self.trouble = "side state %s does not travel: %s" % (captured.name, why)
        if message.line is None and captured.name not in message.missing:
            message.missing.append(captured.name)
            self._outbox.blobs_missing += 1

    def _note(self, digest):
        self._uploaded.pop(digest, None)
        self._uploaded[digest] = self._epoch
        while len(self._uploaded) > KNOWN_DIGESTS:
            del self._uploaded[next(iter(self._uploaded))]
