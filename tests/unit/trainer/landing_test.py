"""Where a restore's bytes land, and what a source that ends early leaves there; the digests in native code."""

import contextlib
import ctypes
import os
import socket
import tempfile
import threading
import unittest
from unittest import mock

import single
import torch
from gradtap import digest, landing, log, native, source


class Landing(unittest.TestCase):
    def test_memory_where_it_is_plenty_else_the_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            for free, expected, wish, memory in ((1 << 30, 1 << 20, None, True), (8 << 20, 1 << 20, None, True),
                                                 ((8 << 20) - 1, 1 << 20, None, False), (0, 0, None, True),
                                                 (1 << 30, 1 << 20, folder, False)):
                with mock.patch.object(landing, "free_bytes", lambda: free), \
                        mock.patch.object(tempfile, "tempdir", folder):
                    with landing.open_landing(expected, 2, wish) as out:
                        where = os.readlink("/proc/self/fd/%d" % out.fileno())
                self.assertEqual(where.startswith("/memfd:"), memory, (free, where))
                self.assertTrue(memory or where.startswith(os.path.realpath(folder)), where)
                self.assertEqual(os.listdir(folder), [])

    def test_a_control_group_counts(self):
        texts = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 1000 kB\n", "/proc/self/cgroup": "0::/a/b\n",
                 "/sys/fs/cgroup/a/b/memory.max": "max\n", "/sys/fs/cgroup/a/b/memory.current": "100\n",
                 "/sys/fs/cgroup/a/memory.max": "70000\n", "/sys/fs/cgroup/a/memory.current": "20000\n"}
        with mock.patch.object(landing, "_text", lambda path: texts.get(path, "")):
            self.assertEqual(landing.free_bytes(), 50000)
            texts["/sys/fs/cgroup/a/memory.max"] = "10\n"
            self.assertEqual(landing.free_bytes(), 0)
            texts["/proc/self/cgroup"] = "7:cpu:/a\n3:memory,x:/c\n"
            self.assertEqual(landing.free_bytes(), 1000 << 10)
            texts["/sys/fs/cgroup/memory/c/memory.limit_in_bytes"] = "300"
            texts["/sys/fs/cgroup/memory/c/memory.usage_in_bytes"] = "100"
            self.assertEqual(landing.free_bytes(), 200)
        self.assertGreater(landing.free_bytes(), 0)

    def test_what_was_read_is_lent_to_this_machine_and_cannot_change(self):
        with mock.patch.object(landing, "free_bytes", lambda: 1 << 30):
            out = landing.open_landing(100, 1)
        with out:
            out.write(b"bytes of a point")
            landing.seal(out)
            what = landing.told(out)
            with landing.open_told(what) as file:
                self.assertEqual(file.read(), b"bytes of a point")
            for change in (lambda: out.write(b"!"), lambda: out.truncate(3), lambda: out.truncate(1 << 20)):
                with self.assertRaises(PermissionError):
                    change()
            for other in (dict(what, bytes=15), dict(what, pid=0), dict(what, fd=4000), {}, None, {"pid": "1"}):
                with self.assertRaises((OSError, TypeError)) as caught:
                    landing.open_told(other)
                self.assertIsInstance(caught.exception, OSError, other)
        with self.assertRaises(OSError):
            landing.open_told(what)

    def test_ranks_of_this_machine(self):
        for value, ranks in (("4", 4), ("99", 8), ("0", 1), ("x", 8), (None, 8)):
            with mock.patch.dict(os.environ, {} if value is None else {"LOCAL_WORLD_SIZE": value}):
                if value is None:
                    os.environ.pop("LOCAL_WORLD_SIZE", None)
                self.assertEqual(landing.ranks_here(8), ranks)


@contextlib.contextmanager
def answers(texts):
    """A server that gives one text after another, whole connections."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)

        def serve():
            for text in texts:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(text)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield "http://127.0.0.1:%d" % listening.getsockname()[1]
    thread.join(5)


class Download(unittest.TestCase):
    def test_what_ends_early_is_asked_for_again_and_nothing_of_it_stays(self):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
        with answers([head + b"x" * 999, head + b"y" * 1000]) as endpoint, tempfile.TemporaryFile(buffering=0) as out:
            source.HttpSource([endpoint], 5).state("job", 1, 2, out, 1000)
            out.seek(0)
            self.assertEqual(out.read(), b"y" * 1000)

    def test_what_is_too_long_is_refused(self):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
        with answers([head + b"x" * 1000]) as endpoint, tempfile.TemporaryFile(buffering=0) as out:
            with self.assertRaisesRegex(source.PointUnreadable, "more than the 999 bytes"):
                source.HttpSource([endpoint], 5).state("job", 1, 2, out, 999)

    def test_a_program_that_writes_too_much_is_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "gradtap")
            with open(program, "w") as f:
                f.write('#!/bin/sh\nfor a; do case "$a" in /dev/fd/*) exec cat /dev/zero >"$a";; esac; done\n')
            os.chmod(program, 0o755)
            with mock.patch.dict(os.environ, GRADTAP_BIN=program), tempfile.TemporaryFile(buffering=0) as out:
                with self.assertRaisesRegex(source.PointUnreadable, "more than the 5000000 bytes"):
                    source.DirectorySource(folder, 10).state("job", 1, 2, out, 5000000)


def plain(words):
    """The digests by the definition, from integers."""
    keys = [t.tolist() for t in digest.tables()]
    return [s & digest.MASK for begin in range(0, len(words), digest.BLOCK)
            for k in (0, 1) for s in [sum((w & 0xFFFFFFFF) * key for w, key in
                                          zip(words[begin:begin + digest.BLOCK].tolist(), keys[k]))]]


class Native(unittest.TestCase):
    def find(self, function):
        said = []
        with mock.patch.object(native, "_candidates", lambda: [__file__]), \
                mock.patch.object(native, "_load", lambda path: function), \
                mock.patch.object(log, "say", said.append):
            return native._find(digest.tables(), digest.BLOCK, digest._torch_sums), said

    def test_the_library_digests_as_the_definition_says(self):
        path = os.environ.get("GRADTAP_BIN") or os.path.join(single.ROOT, "build", "bin")
        path = os.path.join(path, "gradtap") if os.path.isdir(path) else path
        if not os.path.isfile(path):
            self.skipTest("needs the built program")
        with mock.patch.dict(os.environ, GRADTAP_BIN=path):
            function = native._find(digest.tables(), digest.BLOCK, digest._torch_sums)
        self.assertIsNotNone(function, "no library beside %s" % path)
        generator = torch.Generator().manual_seed(3)
        for count in (1, 2, 31, digest.BLOCK - 1, digest.BLOCK, 2 * digest.BLOCK + 77):
            words = torch.randint(-(1 << 31), 1 << 31, (count,), generator=generator).to(torch.int32)
            self.assertEqual(native._call(function, words, digest.tables(), digest.BLOCK), plain(words))

    def test_a_library_that_digests_otherwise_is_not_used(self):
        def wrong(words, count, keys0, keys1, block, sums):
            for n in range(len(sums)):
                sums[n] = 7

        function, said = self.find(wrong)
        self.assertIsNone(function)
        self.assertIn("digests otherwise", said[0])

        def right(words, count, keys0, keys1, block, sums):
            values = torch.frombuffer((ctypes.c_int32 * count).from_address(words), dtype=torch.int32)
            for n, s in enumerate(digest._torch_sums(values)):
                sums[n] = s

        function, said = self.find(right)
        self.assertIs(function, right)
        self.assertEqual(said, [])


if __name__ == "__main__":
    unittest.main()
