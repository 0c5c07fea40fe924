"""What can stand at the node's address instead of a node: servers that are slow, answer nonsense, or stay silent, and
a proxy to a real node that turns into one of them in the middle of the run."""
import select
import socket
import threading
import time

NONSENSE = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]",
    b'HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\n{"received_seq": "x", "requests": {"a": [1]}}',
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{",
    b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 999 ???\r\n\r\n",
    bytes(range(256)) * 8,
    b"\r\n" * 2000,
    b"",
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n{"session":',
    b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n" + b'{"session": null, "lineage": 1}'[:30],
]
SLOW_BYTES_PER_SECOND = 1000
RECORDED_MAX = 64 << 20


class Gateway:
    """mode: "pass" (to the target), "slow" (1 kB/s each way), "nonsense", "silent" (accepts, never answers)."""

    def __init__(self, rig, address, port, mode, target=None, recorded=None):
        """recorded: a list that gets the bytes of every connection towards the target, at most RECORDED_MAX of each."""
        self.rig = rig
        self.recorded = recorded
        self.mode = mode
        self.target = target
        self.accepted = 0
        self._stop = threading.Event()
        self._server = rig.socket(rig.monitor)
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._server.bind((address, port))
        self._server.listen(64)
        self._server.settimeout(0.2)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._stop.set()
        self._server.close()

    def _accept(self):
        while not self._stop.is_set():
            try:
                client, _ = self._server.accept()
            except socket.timeout:
                continue
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(client, self.accepted), daemon=True).start()

    def _serve(self, client, number):
        try:
            if self.mode == "nonsense":
                self._nonsense(client, number)
            elif self.target is None:
                self._crawl(client)
            else:
                self._relay(client)
        except OSError:
            pass
        finally:
            client.close()

    def _nonsense(self, client, number):
        client.settimeout(5)
        while not self._stop.is_set() and client.recv(65536):
            client.sendall(NONSENSE[number % len(NONSENSE)])
            if number % 2:
                return
            number += len(NONSENSE) + 1

    def _crawl(self, client):
        """Takes 1 kB a second; in mode slow, answers at that speed too, and never ends."""
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(1.0)
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b" " * 1000000
        at = 0
        while not self._stop.is_set():
            try:
                if not client.recv(SLOW_BYTES_PER_SECOND // 10):
                    return
            except socket.timeout:
                pass
            if self.mode == "slow":
                client.sendall(answer[at:at + SLOW_BYTES_PER_SECOND // 10])
                at += SLOW_BYTES_PER_SECOND // 10
            time.sleep(0.1)

    def _relay(self, client):
        node = self.rig.socket(self.rig.monitor)
        try:
            node.connect(self.target)
            pairs = {client: node, node: client}
            heard = bytearray()
            if self.recorded is not None:
                self.recorded.append(heard)
            while not self._stop.is_set():
                readable, _, _ = select.select(list(pairs), [], [], 0.2)
                for source in readable:
                    mode = self.mode
                    data = source.recv(65536 if mode == "pass" else SLOW_BYTES_PER_SECOND // 10)
                    if not data:
                        return
                    if mode == "nonsense" and source is node:
                        client.sendall(NONSENSE[self.accepted % len(NONSENSE)])
                        return
                    if mode == "silent":
                        continue
                    if source is client and len(heard) < RECORDED_MAX:
                        heard += data
                    pairs[source].sendall(data)
                    if mode == "slow":
                        time.sleep(0.1)
        finally:
            node.close()
