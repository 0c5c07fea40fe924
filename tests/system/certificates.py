"""Certificates of a cluster under test: those of `gradtap ca`, and wrong ones that the openssl program makes."""
import os
import shutil
import subprocess

import harness
from harness import require


def ca(*arguments, code=0):
    command = [os.path.join(harness.BIN, "gradtap"), "ca"] + [str(a) for a in arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    require(done.returncode == code, "%s: exit code %d: %s" % (" ".join(command[1:]), done.returncode,
                                                               (done.stderr or done.stdout).strip()[-600:]))
    return done.stdout + done.stderr


def openssl(*arguments):
    done = subprocess.run(["openssl"] + [str(a) for a in arguments], capture_output=True, text=True, timeout=60)
    require(done.returncode == 0, "openssl %s: %s" % (arguments[0], done.stderr.strip()[-600:]))
    return done.stdout


class Authority:
    """The folder of `gradtap ca`, beside the cluster's files; every node reads its own files in it directly."""

    def __init__(self, folder, addresses):
        """addresses: {name of a node: its address}."""
        self.folder = os.path.join(folder, "ca")
        ca("init", self.folder)
        for name, address in addresses.items():
            ca("issue", self.folder, name, "--address", address)

    def file(self, node, name):
        return os.path.join(self.folder, "nodes", node, name)

    def section(self, node):
        """[security] of that node's configuration; new files are found within a second."""
        return ('\n[security]\nca_file = "%s"\ncertificate_file = "%s"\nkey_file = "%s"\nreload_interval_ms = 500\n'
                % tuple(self.file(node, name) for name in ("ca.crt", "node.crt", "node.key")))

    def rotate(self, phase=None):
        return ca("rotate", self.folder, *(["--authority", phase] if phase else []))

    def keep(self, node, folder):
        """A copy of a node's three files; its paths for ssl.SSLContext: (certificate, key)."""
        shutil.copytree(os.path.join(self.folder, "nodes", node), folder)
        return os.path.join(folder, "node.crt"), os.path.join(folder, "node.key")

    def wrong(self, folder, name, days=30, foreign=False):
        """A certificate that openssl makes: (certificate, key). days < 0: it has expired. foreign: of another
        authority."""
        os.makedirs(folder, exist_ok=True)
        certificate, key, request, names = (os.path.join(folder, n) for n in ("crt", "key", "csr", "ext"))
        with open(names, "w") as f:
            f.write("subjectAltName=DNS:%s\nextendedKeyUsage=serverAuth,clientAuth\n" % name)
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out",
                request, "-subj", "/CN=" + name)
        issuer = os.path.join(self.folder, "ca.pem")
        if foreign:
            issuer = os.path.join(folder, "foreign.pem")
            openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", issuer,
                    "-out", issuer + ".crt", "-subj", "/CN=another authority", "-days", 30)
            with open(issuer, "a") as f, open(issuer + ".crt") as made:
                f.write(made.read())
        openssl("x509", "-req", "-in", request, "-CA", issuer, "-CAkey", issuer, "-CAcreateserial", "-days", days,
                "-extfile", names, "-out", certificate)
        return certificate, key
