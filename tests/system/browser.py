"""A headless Chromium that looks at the live page, a relay into a node's namespace, and a node that is not one.

The browser runs where the test runs; the page's node may be in another network namespace, so the page is reached through
a relay on 127.0.0.1. The browser writes down every request it makes and everything on its console.
"""
import base64
import http.server
import json
import os
import shutil
import socket
import tempfile
import threading
import time

import rig
from harness import Failed, require, wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "actors", "page")
CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--disable-dev-shm-usage", "--window-size=1200,900"]
TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def needed_or_not_run():
    """Ends the program as skipped where there is no browser."""
    missing = [p for p in (CHROMIUM, DRIVER) if not os.access(p, os.X_OK)]
    try:
        import selenium  # noqa: F401
    except ImportError:
        missing.append("python3-selenium")
    if missing:
        rig.not_run("the browser is missing: %s (./setup.sh browser installs it)" % ", ".join(missing))


class Browser:
    def __init__(self, origin, pictures):
        self.origin, self.pictures = origin, pictures
        self.console, self.addresses = [], []
        os.makedirs(pictures, exist_ok=True)

    def __enter__(self):
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service
        self._profile = tempfile.mkdtemp(prefix="gradtap-browser-")
        options = Options()
        options.binary_location = CHROMIUM
        for argument in ARGUMENTS + ["--user-data-dir=" + self._profile]:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        proxies = {k: os.environ.pop(k) for k in list(os.environ) if k.lower() in ("http_proxy", "https_proxy", "all_proxy")}
        try:
            self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        except BaseException:
            shutil.rmtree(self._profile, ignore_errors=True)
            raise
        finally:
            os.environ.update(proxies)
        return self

    def __exit__(self, *_):
        try:
            self.driver.quit()
        finally:
            shutil.rmtree(self._profile, ignore_errors=True)

    # ---- looking

    def open(self):
        self.driver.get(self.origin + "/")
        return self

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self, identifier):
        """What a person reads at an element; empty where it is hidden."""
        return self.run("const e = document.getElementById(arguments[0]); return e && e.getClientRects().length ? e.innerText : ''", identifier)

    def word(self):
        return self.text("verdict-word")

    def number(self, which):
        digits = "".join(c for c in self.text(which) if c.isdigit())
        return int(digits) if digits else -1

    def reasons(self):
        return self.run("return [...document.querySelectorAll('#reasons .name')].map(e => e.firstChild.textContent.trim())")

    def states(self):
        """{node: what its row says of it}."""
        return dict(self.run("return [...document.querySelectorAll('#nodes tbody tr')].map("
                             "r => [r.dataset.node, r.querySelector('.state').innerText.trim()])"))

    def cells(self, node):
        """The kinds of a node's shards."""
        return self.run("return [...document.querySelectorAll(`.shard-row[data-node=\"${arguments[0]}\"] .cell`)]"
                        ".map(c => c.classList[1])", node)

    def losing(self, node):
        """True while the row of the node says that its mirror has holes now."""
        return self.run("const c = document.querySelector(`#flows tr[data-node=\"${arguments[0]}\"] td[data-key=holes]`);"
                        "return !!c && c.classList.contains('now')", node)

    def wait(self, what, seconds, there):
        """Seconds until there() holds. A machine with more to do than cores makes both late, the node and the page."""
        begun = time.monotonic()
        try:
            wait_until("the page to show " + what, seconds, there, pause=0.2)
        except Failed as error:
            self.picture("failed")
            shown = "it shows %s: %s; %s; nodes %s" % (self.word(), self.text("verdict-text"), self.reasons(), self.states())
            raise Failed("%s; %s" % (error, shown[:800]))
        return time.monotonic() - begun

    def phone(self, on=True):
        """A screen of 360 x 740, or the desk again."""
        if on:
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True})
        else:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def require_fits(self):
        wide = self.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        require(wide[0] <= wide[1], "the page is %d wide on a screen of %d" % tuple(wide))

    def picture(self, name, height=None):
        """The whole page, or its upper part, as a PNG."""
        size = self.run("return [window.innerWidth, document.documentElement.scrollHeight]")
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {
            "format": "png", "captureBeyondViewport": True, "optimizeForSpeed": False,
            "clip": {"x": 0, "y": 0, "width": size[0], "height": min(size[1], height or size[1]), "scale": 1}})
        path = os.path.join(self.pictures, name + ".png")
        with open(path, "wb") as f:
            f.write(base64.b64decode(shot["data"]))
        return path

    # ---- what the browser wrote down

    def read_logs(self):
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message.get("method") == "Network.requestWillBeSent":
                self.addresses.append(message["params"]["request"]["url"])
        self.console += [e for e in self.driver.get_log("browser") if self.origin in e.get("message", "")
                         or e.get("source") in ("javascript", "console-api", "security")]

    def require_own_host_only(self):
        self.read_logs()
        pages = [a for a in self.addresses if not a.startswith(("chrome:", "about:", "data:"))]  # of the browser itself
        require(pages, "the browser wrote down no request")
        foreign = sorted({a for a in pages if not a.startswith(self.origin + "/")})
        require(not foreign, "the page asked somebody else: %s" % foreign[:3])
        return len(pages)

    def require_quiet_console(self, allowed=lambda entry: False):
        self.read_logs()
        bad = [e for e in self.console if e["level"] in ("SEVERE", "WARNING") and not allowed(e)]
        require(not bad, "%d messages on the console, first %s" % (len(bad), bad[0] if bad else ""))


class Relay:
    """127.0.0.1:port here leads to the node's HTTP port in its namespace."""

    def __init__(self, r, node):
        self._rig, self._namespace = r, r.monitor_of(node)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.origin = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        self._open = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()
        for s in list(self._open):
            _close(s)

    def _accept(self):
        while True:
            try:
                here = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._carry, args=(here,), daemon=True).start()

    def _carry(self, here):
        try:
            there = self._rig.socket(self._namespace)
            there.settimeout(3)
            there.connect(("127.0.0.1", 7700))
            there.settimeout(None)
        except OSError:  # nobody listens: neither does the relay
            _close(here)
            return
        self._open |= {here, there}
        back = threading.Thread(target=_pump, args=(there, here), daemon=True)
        back.start()
        _pump(here, there)
        back.join(timeout=10)
        self._open -= {here, there}


def _pump(source, sink):
    try:
        while True:
            part = source.recv(65536)
            if not part:
                break
            sink.sendall(part)
    except OSError:
        pass
    _close(source)
    _close(sink)


def _close(s):
    try:
        s.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    s.close()


class FakeNode:
    """Serves the files of the page, without the headers that would protect them, and whatever JSON a test wants said.

    answers: {path: what is said, or a function of the request's headers that gives (status, what is said)}. mute: every
    connection is cut.
    """

    def __init__(self, answers):
        self.answers, self.mute, self.requests = answers, False, []
        node = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                node.requests.append((time.monotonic(), self.path, dict(self.headers)))
                if node.mute:
                    self.close_connection = True
                    return
                status, kind, body = node.say(self.path.split("?")[0], self.headers)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # a browser that went away
        self.origin = "http://127.0.0.1:%d" % self._server.server_address[1]

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def say(self, path, headers):
        name = "index.html" if path == "/" else path[1:]
        if name in os.listdir(PAGE):
            with open(os.path.join(PAGE, name), "rb") as f:
                return 200, TYPES[name.rsplit(".", 1)[1]], f.read()
        said = self.answers.get(path)
        status, said = said(headers) if callable(said) else (200 if path in self.answers else 404, said)
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        return status, "application/json", body
