"""One keep-alive HTTP connection to one of the node's gateways. Every call is bounded in time and in memory."""

import http.client
import json
import urllib.parse

MAX_ANSWER = 1 << 20
LEARNT_MAX = 256


class LinkError(Exception):
    """The gateway could not be reached or did not answer as the protocol says."""


class Link:
    def __init__(self, endpoints, timeout_s, signer=None):
        self._signer = signer
        self._endpoints = [parse_endpoint(e) for e in endpoints]
        self._given = list(self._endpoints)
        self._at = 0
        self._connection = None
        self.timeout_s = timeout_s

    def endpoint(self):
        return "%s:%d" % self._endpoints[self._at][1:3]

    def local_address(self):
        """This host's address towards the gateway; connects if needed."""
        try:
            self._connected()
            return self._connection.sock.getsockname()[0]
        except OSError:
            self.fail_over()
            return None

    def __len__(self):
        return len(self._endpoints)

    def learn(self, endpoints):
        """The cluster's members as a gateway names them now: tried besides the ones given at the start.

        What is no endpoint, or comes after LEARNT_MAX, is passed over. The connection in use stays.
        """
        learnt = []
        for text in endpoints[:LEARNT_MAX] if isinstance(endpoints, list) else []:
            try:
                learnt.append(parse_endpoint(text))
            except (ValueError, TypeError, AttributeError):
                continue
        current = self._endpoints[self._at]
        self._endpoints = self._given + [e for e in dict.fromkeys(learnt) if e not in self._given]
        if current in self._endpoints:
            self._at = self._endpoints.index(current)
        elif self._connection is not None:
            self._endpoints.append(current)
            self._at = len(self._endpoints) - 1
        else:
            self._at = 0

    def fail_over(self):
        """Drops the connection; the next call tries the next gateway."""
        self.close()
        self._at = (self._at + 1) % len(self._endpoints)

    def close(self):
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:
                pass

    def abandon(self):
        """After fork: let go of the parent's connection without a word on it."""
        self._connection = None

    def call(self, method, path, body=None, headers=None, timeout_s=None):
        """(status, answer object). LinkError if there is no usable answer."""
        timeout = self.timeout_s if timeout_s is None else timeout_s
        headers = dict(headers or {})
        if self._signer is not None:
            headers.update(self._signer.headers(method, path, body, headers.get("X-Gradtap-Session", ""),
                                                headers.get("X-Gradtap-Seq", "")))
        for attempt in (0, 1):
            fresh = self._connection is None
            try:
                self._connected(timeout)
                self._connection.sock.settimeout(timeout)
                self._connection.request(method, path, body=body, headers=headers)
                response = self._connection.getresponse()
                data = response.read(MAX_ANSWER + 1)
                if len(data) > MAX_ANSWER:
                    raise LinkError("answer longer than %d bytes" % MAX_ANSWER)
                if response.will_close:
                    self.close()
                break
            except LinkError:
                self.close()
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                # A kept connection may have been closed by the gateway meanwhile: requests are idempotent, try anew.
                stale = isinstance(error, (ConnectionError, http.client.BadStatusLine))
                if fresh or attempt or not stale:
                    raise LinkError("%s %s at %s: %r" % (method, path, self.endpoint(), error)) from None
        try:
            answer = json.loads(data.decode("utf-8")) if data.strip() else {}
        except ValueError:
            raise LinkError("%s %s at %s: status %d, the answer is not JSON"
                            % (method, path, self.endpoint(), response.status)) from None
        if not isinstance(answer, dict):
            raise LinkError("%s %s at %s: the answer is not an object" % (method, path, self.endpoint()))
        return response.status, answer

    def _connected(self, timeout=None):
        if self._connection is not None:
            return
        scheme, host, port = self._endpoints[self._at]
        make = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        connection = make(host, port, timeout=self.timeout_s if timeout is None else timeout)
        connection.connect()
        connection.auto_open = 0
        self._connection = connection


def parse_endpoint(text):
    parts = urllib.parse.urlsplit(text if "//" in text else "http://" + text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("endpoint %r is not http://host:port" % (text,))
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


# The node that answered cannot help now, another one might.
ELSEWHERE = (502, 503)
UNTRUSTED = (401, 403)  # by this gateway; all must have the same secret
LATER = (429, 500, 502, 503)


def session_unknown(status, answer):
    """The gateway does not know the session or the job: it was restarted, or another one took over before it heard."""
    error = answer.get("error")
    name = error.get("name") if isinstance(error, dict) else None
    return status in (404, 409) and name in ("SESSION_UNKNOWN", "JOB_UNKNOWN")


def split_endpoints(endpoint):
    """A list of endpoints from one, several separated by commas, or a list of either."""
    texts = [endpoint] if isinstance(endpoint, str) else list(endpoint)
    found = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if not found:
        raise ValueError("no endpoint given")
    return found


def error_text(answer):
    """A short sentence from an error body, whatever its shape."""
    error = answer.get("error")
    if not isinstance(error, dict):
        return str(error)[:300] if error else "no reason given"
    parts = [str(error.get(k)) for k in ("name", "what", "where") if error.get(k)]
    for key in ("field", "expected", "actual", "remedy"):
        if error.get(key):
            parts.append("%s %s" % (key, error[key]))
    return ", ".join(parts)[:600] or "no reason given"
