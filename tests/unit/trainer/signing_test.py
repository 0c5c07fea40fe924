"""Requests are signed with the job's secret; the judge is this file's own use of hmac, and golden values."""

import hashlib
import hmac
import os
import tempfile
import unittest

import single
import torch
import torch.nn as nn
from fake_node import FakeNode
from gradtap import signing
from gradtap.errors import RestoreError

KEY = bytes(range(32))
LINE = "GT1 demo %s\n" % KEY.hex()


class SigningNode:
    """A FakeNode that answers only what is signed by the right key: 401 without, 403 with another."""

    def __init__(self, key=KEY, key_id="demo"):
        self.node, self.seen, self.refused = FakeNode(), [], 0
        plain = self.node.handle

        def handle(method, path, headers, body):
            authorization = headers.get("Authorization") or ""
            if not authorization:
                self.refused += 1
                return 401, {"error": {"name": "UNAUTHORIZED", "what": "the job's requests must be signed"}}
            digest = hashlib.sha256(body).hexdigest()
            session, seq = headers.get("X-Gradtap-Session") or "", headers.get("X-Gradtap-Seq") or ""
            text = "%s\n%s\n%s\n%s\n%s" % (method, path, session, seq, digest)
            expected = "GT1 %s:%s" % (key_id, hmac.new(key, text.encode(), "sha256").hexdigest())
            if authorization != expected or headers.get("X-Gradtap-Content-SHA256") != digest:
                self.refused += 1
                return 403, {"error": {"name": "FORBIDDEN", "what": "the signature is not one by this key"}}
            self.seen.append((method, path.split("/")[4], seq))
            return plain(method, path, headers, body)

        self.node.handle = handle
        self.endpoint = self.node.endpoint

    def close(self):
        self.node.close()


class Signing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        single.ensure_group()

    def setUp(self):
        os.environ.pop(signing.ENVIRONMENT, None)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def secret(self, text=LINE, mode=0o600):
        path = os.path.join(self.folder.name, "secret")
        if os.path.exists(path):
            os.unlink(path)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, mode)
        return path

    def serve(self, **options):
        node = SigningNode(**options)
        self.addCleanup(node.close)
        return node

    def attach(self, endpoint, **options):
        torch.manual_seed(5)
        net = nn.Linear(6, 3)
        self.ddp = single.DDP(net)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        tap = single.gradtap.attach(self.ddp, self.optimizer, endpoint=endpoint, job="unit", attach_timeout_ms=3000,
                                    **options)
        self.addCleanup(tap.close)
        return tap

    def steps(self, tap, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            self.ddp(torch.ones(2, 6)).sum().backward()
            self.optimizer.step()
            tap.commit()

    def test_golden(self):
        signer = signing.load(self.secret())
        made = signer.headers("POST", "/v1/jobs/demo/messages", b'{"kind": "step", "seq": 7}\n',
                              "0123456789abcdef0123456789abcdef", "7")
        self.assertEqual(made["Authorization"],
                         "GT1 demo:0740888a196efff3031ab52f3f22c4af1ff13785f3294ccd0aa0a38cc4687c08")
        self.assertEqual(made["X-Gradtap-Content-SHA256"],
                         "f667e39e90f869813065c9fe6e34ca65a4873c5f0b8d9d19d4b3df897688a749")
        self.assertEqual(signer.headers("GET", "/v1/jobs/demo/points?lineage=1")["Authorization"],
                         "GT1 demo:d7b763e23eac1fb1348d9d567af9f60e01194f86e39dd14eb8865feefa8df8a3")

    def test_every_request_of_a_job_is_signed(self):
        node = self.serve()
        table = torch.zeros(5000)
        tap = self.attach(node.endpoint, secret=self.secret(), extra={"table": table})
        self.assertTrue(tap.enabled, tap.reason)
        self.steps(tap, 5)
        tap.close()
        self.assertEqual(node.refused, 0)
        self.assertEqual(len(node.node.kind("step")), 5)
        self.assertEqual({what for _, what, _ in node.seen}, {"attach", "chunks", "messages", "blobs", "detach"})
        numbers = [seq for _, what, seq in node.seen if what == "messages"]
        self.assertTrue(all(n.isdigit() for n in numbers) and numbers[0] == "1", numbers)

    def test_the_environment_names_the_secret(self):
        node = self.serve()
        os.environ[signing.ENVIRONMENT] = self.secret()
        self.addCleanup(os.environ.pop, signing.ENVIRONMENT, None)
        self.assertTrue(self.attach(node.endpoint).enabled)

    def test_without_or_with_the_wrong_secret_the_job_trains_untapped_and_says_why(self):
        node = self.serve(key=bytes(32))
        for options, word in (({}, "UNAUTHORIZED"), ({"secret": self.secret()}, "FORBIDDEN")):
            tap = self.attach(node.endpoint, **options)
            self.assertFalse(tap.enabled)
            self.assertIn(word, tap.reason)
            self.steps(tap, 2)
            tap.close()
        self.assertEqual(node.seen, [])

    def test_one_gateway_with_another_secret_is_passed_over(self):
        wrong, right = self.serve(key=bytes(32)), self.serve()
        tap = self.attach([wrong.endpoint, right.endpoint], secret=self.secret())
        self.assertTrue(tap.enabled, tap.reason)
        self.assertEqual(wrong.seen, [])

    def test_files_that_are_refused(self):
        for text, mode, word in ((LINE, 0o604, "chmod"), (LINE, 0o660, "chmod"), ("", 0o600, "no line"),
                                 ("GT1 demo abc\n", 0o600, "no line"), ("GT1 a/b %s\n" % KEY.hex(), 0o600, "no line"),
                                 ("#" * 5000, 0o600, "longer")):
            with self.assertRaises(signing.SecretError) as raised:
                signing.load(self.secret(text, mode))
            self.assertIn(word, str(raised.exception))
            self.assertNotIn(KEY.hex()[:8], str(raised.exception))
        for path in (self.folder.name, os.path.join(self.folder.name, "absent")):
            with self.assertRaises(signing.SecretError):
                signing.load(path)
            tap = self.attach("http://127.0.0.1:1", secret=path)
            self.assertFalse(tap.enabled)
            self.assertIn("secret file", tap.reason)
        self.assertIsNone(signing.load())
        # The first line signs; the daemon's group may read the file.
        two = signing.load(self.secret("# new\n\nGT1 n %s\n%s" % ("f" * 64, LINE), 0o640))
        self.assertIn("GT1 n:", two.headers("GET", "/")["Authorization"])

    def test_a_restore_signs_and_its_refusal_is_named(self):
        node = self.serve()
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def restore(**options):
            return single.gradtap.restore(node.endpoint, "unit", model=model, optimizer=optimizer, timeout_ms=2000,
                                          or_fresh=True, **options)
        self.assertTrue(restore(secret=self.secret()).fresh)  # the node has no points
        self.assertEqual([what for _, what, _ in node.seen], ["points"])
        for options, word in (({}, "UNAUTHORIZED"), ({"secret": self.secret("GT1 demo " + "0" * 64)}, "FORBIDDEN"),
                              ({"secret": os.path.join(self.folder.name, "absent")}, "secret file")):
            with self.assertRaises(RestoreError) as raised:
                restore(**options)
            self.assertEqual(raised.exception.name, "SOURCE_UNREACHABLE")
            self.assertIn(word, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
