"""Deaths at chosen places inside the training loop: what a signal from outside can hit only by luck."""
import http.client
import os
import signal
import time

PLACES = ("backward", "before-commit", "after-commit", "upload")


def die(out, rank):
    open(os.path.join(out, "died.%d" % rank), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)


class DieAt:
    """spec "STEP:PLACE" for one rank; without a spec nothing happens.

    backward: while the gradients of step STEP are being computed, some of them already reduced. before-commit: after
    the optimizer's step, once the other ranks have had time to commit. after-commit: right after it. upload: in the
    middle of the body of the first baseline chunk (STEP is not used).
    """

    def __init__(self, a, model):
        self.out, self.rank = a.out, a.rank
        self.at, self.place = None, None
        if not a.die_at or a.rank != a.die_rank:
            return
        at, self.place = a.die_at.split(":")
        if self.place not in PLACES:
            raise SystemExit("--die-at: there is no place %s" % self.place)
        self.at, self.now = int(at), 0
        if self.place == "backward":
            middle = [p for p in model.parameters() if p.requires_grad]
            middle[len(middle) // 2].register_hook(self._in_backward)
        elif self.place == "upload":
            self._patch_upload()

    def step_begins(self, step):
        self.now = step

    def before_commit(self):
        if self.place == "before-commit" and self.now == self.at:
            time.sleep(0.5)
            die(self.out, self.rank)

    def after_commit(self):
        if self.place == "after-commit" and self.now == self.at:
            die(self.out, self.rank)

    def _in_backward(self, gradient):
        if self.now == self.at:
            time.sleep(0.02)  # lets the other bucket go
            die(self.out, self.rank)
        return gradient

    def _patch_upload(self):
        plain = http.client.HTTPConnection.request
        out, rank = self.out, self.rank

        def request(connection, method, url, body=None, headers=None, **more):
            if method == "PUT" and "/chunks/baseline/" in url:
                connection.putrequest(method, url)
                for key, value in dict(headers or {}, **{"Content-Length": str(len(body))}).items():
                    connection.putheader(key, value)
                connection.endheaders(bytes(body[:len(body) // 2]))
                time.sleep(0.05)
                die(out, rank)
            return plain(connection, method, url, body=body, headers=headers or {}, **more)
        http.client.HTTPConnection.request = request
