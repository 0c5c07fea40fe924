"""What the user sees: single lines on stderr, at most one a minute after attach, and never an exception."""

import sys
import time

INTERVAL_S = 60.0


def say(text):
    """Prints one line now. For attach and close only."""
    try:
        sys.stderr.write("gradtap: " + text + "\n")
        sys.stderr.flush()
    except Exception:  # a closed stderr must not reach the training loop
        pass


class RateLimited:
    """Says at most one line per interval; what was held back is counted in the next line."""

    def __init__(self, interval_s=INTERVAL_S, clock=time.monotonic, write=say):
        self._interval = interval_s
        self._clock = clock
        self._write = write
        self._last = None
        self._held = 0

    def say(self, text):
        now = self._clock()
        if self._last is not None and now - self._last < self._interval:
            self._held += 1
            return
        self._last = now
        held, self._held = self._held, 0
        self._write(text + (" (%d earlier lines held back)" % held if held else ""))
