"""Signs requests with the job's secret (docs/side-channel.md, Signatures). Standard library only.

The secret is read once, when attach or restore is called, and is never written, logged or put into an exception.
"""

import hashlib
import hmac
import os
import re
import stat

ENVIRONMENT = "GRADTAP_SECRET_FILE"
MAX_BYTES = 4096
LINE = re.compile(r"GT1 ([0-9A-Za-z._-]{1,64}) ([0-9a-f]{64})\Z")
EMPTY = hashlib.sha256(b"").hexdigest()


class SecretError(Exception):
    """The secret file cannot be used."""


class Signer:
    def __init__(self, key_id, key):
        self._key_id, self._key = key_id, key

    def headers(self, method, target, body=None, session="", first_seq=""):
        """The headers that prove who sends this; target is path?query as in the request line."""
        digest = hashlib.sha256(body).hexdigest() if body else EMPTY
        text = "\n".join((method, target, session, first_seq, digest))
        signature = hmac.new(self._key, text.encode("utf-8"), hashlib.sha256).hexdigest()
        return {"X-Gradtap-Content-SHA256": digest, "Authorization": "GT1 %s:%s" % (self._key_id, signature)}


def load(path=None):
    """The signer of a secret file; of the one that the environment names; None without either."""
    path = os.fspath(path) if path else os.environ.get(ENVIRONMENT)
    if not path:
        return None
    try:
        with open(path, "rb") as f:
            about = os.fstat(f.fileno())
            data = f.read(MAX_BYTES + 1) if stat.S_ISREG(about.st_mode) else None
    except OSError as error:
        raise SecretError("the secret file %s cannot be read: %s" % (path, error.strerror or error)) from None
    if data is None:
        raise SecretError("the secret file %s is not a file" % path)
    if about.st_mode & (stat.S_IWGRP | stat.S_IRWXO):
        raise SecretError("others may read or change the secret file %s: chmod 600 it" % path)
    if len(data) > MAX_BYTES:
        raise SecretError("the secret file %s is longer than %d bytes" % (path, MAX_BYTES))
    for line in data.decode("utf-8", "replace").splitlines():
        if not line or line.startswith("#"):
            continue
        match = LINE.match(line)
        if not match:
            break
        return Signer(match.group(1), bytes.fromhex(match.group(2)))
    raise SecretError("the secret file %s has no line `GT1 id 64-hex-digits`; gradtap secret new makes one" % path)
