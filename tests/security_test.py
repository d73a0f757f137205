#!/usr/bin/python3
"""Who may connect to a job (docs/operate/security.md): clients that should not get in, and jobs that should not notice.

Skipped where Debian's python3-grpcio, protoc or openssl is missing (tools/setup installs them)."""
import hashlib
import hmac
import os
import shutil
import socket
import struct
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.getcwd(), "tests"))

import protocol_test  # noqa: E402
from protocol_test import EXCHANGE, PATIENCE, SERVER, STORE, WORKER, grpc  # noqa: E402

CHALLENGE = "/gradsync.proto.Door/Challenge"
SECRET = "a secret of this test"
CONFIGURATION = """
[ca]
default_ca = own
[own]
database = index.txt
new_certs_dir = .
serial = serial
default_md = sha256
policy = any
x509_extensions = here
[any]
commonName = supplied
[here]
subjectAltName = IP:127.0.0.1
"""


def setUpModule():
    global challenge_pb2
    if grpc is None or shutil.which("openssl") is None:
        raise unittest.SkipTest("python3-grpcio or openssl is not installed (tools/setup)")
    challenge_pb2 = protocol_test.compile_protos()["challenge"]


class Certificates:
    """PEM files: NAME.pem and NAME.key, of issuers and of hosts at 127.0.0.1."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "configuration").write_text(CONFIGURATION)
        (folder / "index.txt").write_text("")
        (folder / "serial").write_text("1000")
        for issuer in ("issuer", "stranger"):
            self.openssl("req", "-x509", "-subj", f"/CN={issuer}", "-days", "2", *self.new_key(issuer), "-out", f"{issuer}.pem")
        self.issue("host", "issuer", "20200101000000Z", "20990101000000Z")
        self.issue("outsider", "stranger", "20200101000000Z", "20990101000000Z")
        self.issue("late", "issuer", "20200101000000Z", "20210101000000Z")

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def new_key(self, name):
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key")

    def issue(self, name, issuer, begin, end):
        self.openssl("req", "-new", "-subj", f"/CN={name}", *self.new_key(name), "-out", f"{name}.request")
        self.openssl("ca", "-batch", "-config", "configuration", "-cert", f"{issuer}.pem", "-keyfile", f"{issuer}.key", "-notext",
                     "-startdate", begin, "-enddate", end, "-in", f"{name}.request", "-out", f"{name}.pem")

    def path(self, file):
        return str(self.folder / file)

    def flags(self, name="host", issuer="issuer"):
        return [f"--tls_cert={self.path(name + '.pem')}", f"--tls_key={self.path(name + '.key')}",
                *([f"--tls_ca={self.path(issuer + '.pem')}"] if issuer else [])]

    def read(self, file):
        return (self.folder / file).read_bytes() if file else None

    def channel(self, address, issuer="issuer", name=None):
        """As who trusts `issuer` and shows the certificate `name`; without encryption if both are None."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        if issuer is None:
            return grpc.insecure_channel(address, options=options)
        credentials = grpc.ssl_channel_credentials(self.read(f"{issuer}.pem"), self.read(name and f"{name}.key"),
                                                   self.read(name and f"{name}.pem"))
        return grpc.secure_channel(address, credentials, options=options)


def proof(secret, challenge, number):
    """docs/internals/protocol.md, "The secret"."""
    text = f"gradsync proof\n{challenge}\n{number}"
    return f"{challenge}:{number}:{hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()}"


class SecurityTest(protocol_test.Case):
    FLAGS = ["--model=mlp", "--data=synthetic", "--batch_size=4", "--world_size=2", "--seed=19", "--steps=20"]
    PS = ["--topology=ps", "--link=grpc", "--num_servers=1"]
    RING = ["--topology=ring", "--link=grpc"]
    PS_OVER_TCP = ["--topology=ps", "--link=tcp", "--num_servers=1"]
    RING_OVER_TCP = ["--topology=ring", "--link=tcp"]

    def setUp(self):
        super().setUp()
        (self.folder / "certificates").mkdir()
        self.certificates = Certificates(self.folder / "certificates")
        self.secret = self.folder / "secret"
        self.secret.write_text(SECRET + "\n")

    def begin(self, name, topology, flags):
        """Rank 0 and, with one, the server; the job waits for rank 1."""
        first, store = self.start(WORKER, *self.FLAGS, *topology, *flags, "--rank=0", "--master=127.0.0.1:0", port=f"{name}_store")
        if "--topology=ps" not in topology:
            return [first], store, None
        server, address = self.start(SERVER, f"--master={store}", *flags, port=f"{name}_server")
        return [first, server], store, address

    def end(self, processes, store, topology, flags):
        """With rank 1: the hash of the parameters."""
        second, _ = self.start(WORKER, *self.FLAGS, *topology, *flags, "--rank=1", f"--master={store}")
        return protocol_test.hash_of(self, processes + [second])

    def job(self, name, topology, flags):
        processes, store, _ = self.begin(name, topology, flags)
        return self.end(processes, store, topology, flags)

    def refused(self, channel, method, metadata=()):
        """The status of a call that should not be answered, as text."""
        call = channel.stream_stream(method) if method == EXCHANGE else channel.unary_unary(method)
        with self.assertRaises(grpc.RpcError, msg=method) as refused:
            if method == EXCHANGE:
                next(call(iter(()), metadata=metadata, timeout=PATIENCE))
            else:
                call(b"", metadata=metadata, timeout=PATIENCE)
        return f"{refused.exception.code().name} {refused.exception.details()}"

    def challenge(self, channel):
        reply = channel.unary_unary(CHALLENGE)(b"", timeout=PATIENCE)
        return challenge_pb2.ChallengeReply.FromString(reply).challenge

    def ends_at_once(self, argv, *expected, code=None):
        process, _ = self.start(*argv)
        text, _ = process.communicate(timeout=PATIENCE)
        self.assertNotEqual(process.returncode, 0, text)
        if code is not None:
            self.assertEqual(process.returncode, code, text)
        for each in expected:
            self.assertIn(each, text)
        self.assertNotIn(SECRET, text)
        return text

    def test_strangers_are_refused_and_the_job_does_not_notice(self):
        expected = self.job("plain", self.PS, [])
        flags = [*self.certificates.flags(), f"--secret_file={self.secret}"]
        processes, store, server = self.begin("guarded", self.PS, flags)
        methods = ((store, STORE + "Get"), (store, STORE + "Join"), (server, EXCHANGE))
        for who in ((None, None), ("stranger", "host"), ("issuer", None), ("issuer", "outsider"), ("issuer", "late")):
            for address, method in methods:
                with self.certificates.channel(address, *who) as channel:
                    self.assertRegex(self.refused(channel, method), "^UNAVAILABLE", who)
        for address, method in methods:
            with self.certificates.channel(address, "issuer", "host") as channel:
                run = [("gradsync-run-bin", b"job"), ("gradsync-key", "0" * 32)]
                self.assertRegex(self.refused(channel, method, run), "^UNAUTHENTICATED .* found none$")
                for wrong in (proof("another secret", self.challenge(channel), 1), proof(SECRET, "challenge", 1), "x" * 4000):
                    self.assertRegex(self.refused(channel, method, run + [("gradsync-proof", wrong)]), "^UNAUTHENTICATED")
                # Good once: whoever plays it again, on a connection of his own, is refused.
                right = run + [("gradsync-proof", proof(SECRET, self.challenge(channel), 1))]
                self.assertNotIn("UNAUTHENTICATED", self.refused(channel, method, right))
                with self.certificates.channel(address, "issuer", "host") as other:
                    self.assertRegex(self.refused(other, method, right), "^UNAUTHENTICATED .* shown before$")
        worker = [WORKER, *self.FLAGS, *self.PS, "--rank=1", f"--master={store}", "--timeout=1500ms"]
        self.ends_at_once([*worker], f"store at {store}")
        self.ends_at_once([*worker, *self.certificates.flags("outsider")], f"store at {store}")
        other_secret = self.folder / "other"
        other_secret.write_text("another secret")
        self.ends_at_once([*worker, *self.certificates.flags(), f"--secret_file={other_secret}"], "another secret")
        self.assertEqual(self.end(processes, store, self.PS, flags), expected)

    def test_jobs_end_with_the_same_parameters_whatever_guards_them(self):
        expected = self.job("plain", self.RING, [])
        shared = self.certificates.flags(issuer=None)
        self.assertEqual(self.job("ring", self.RING, self.certificates.flags()), expected)
        self.assertEqual(self.job("ring_secret", self.RING, [f"--secret_file={self.secret}"]), expected)
        self.assertEqual(self.job("ps", self.PS, shared), expected)
        self.assertEqual(self.job("tcp_ring", self.RING_OVER_TCP, self.certificates.flags()), expected)

    def hears(self, address, *records):
        """What a listener of the TCP link says to a stranger until it ends the connection."""
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            connection.sendall(b"".join(records))
            heard = b""
            try:
                while more := connection.recv(4096):
                    heard += more
            except ConnectionResetError:
                pass
            return heard

    def test_strangers_over_tcp_are_refused_and_the_job_does_not_notice(self):
        """docs/internals/protocol.md, "Over TCP"."""
        def record(kind, header=b""):
            return struct.pack("<2sBBIQ", b"GS", 1, kind, len(header), 0) + header

        def opening(has_secret):
            return record(1, struct.pack("<IIBI", 1, 1, has_secret, 3) + b"job" + b"0" * 32)
        flags = [*self.certificates.flags(), f"--secret_file={self.secret}"]
        expected = self.job("tcp_plain", self.PS_OVER_TCP, [])
        processes, store, server = self.begin("tcp_guarded", self.PS_OVER_TCP, flags)
        self.assertIn(b"encrypts", self.hears(server, opening(1)))
        self.assertNotIn(b"GS", self.hears(server, record(10), opening(1)))  # inside TLS there is nothing
        self.assertEqual(self.end(processes, store, self.PS_OVER_TCP, flags), expected)
        secret = [f"--secret_file={self.secret}"]
        processes, store, server = self.begin("tcp_secret", self.PS_OVER_TCP, secret)
        self.assertIn(b"found none", self.hears(server, opening(0)))
        self.assertIn(b"found", self.hears(server, opening(1), record(3, b"challenge:1:" + b"0" * 64)))
        for nonsense in (record(5, b"x"), record(99), b"GS" + bytes(100), opening(1) + opening(1)):
            self.assertIn(b"GS\x01\x07", self.hears(server, nonsense))
        self.assertEqual(self.end(processes, store, self.PS_OVER_TCP, secret), expected)

    def test_a_bad_file_is_one_line_at_the_start(self):
        def path(file):
            return self.certificates.path(file)
        damaged = self.folder / "damaged.pem"
        damaged.write_bytes(self.certificates.read("host.pem")[:200])
        empty = self.folder / "empty"
        empty.write_text("\n")
        for flags, expected in (
                ([f"--tls_cert={path('host.pem')}"], "--tls_key: expected both"),
                ([f"--tls_key={path('host.key')}"], "--tls_cert: expected both"),
                ([f"--tls_cert={path('none.pem')}"], "--tls_cert: expected a file that can be read"),
                ([f"--tls_cert={damaged}", f"--tls_key={path('host.key')}"], "--tls_cert: expected PEM certificates"),
                ([f"--tls_cert={path('host.pem')}", f"--tls_key={path('late.key')}"], "--tls_key: expected the key of --tls_cert"),
                ([f"--tls_cert={path('host.pem')}", f"--tls_key={path('host.pem')}"], "--tls_key: expected a PEM private key"),
                (self.certificates.flags("late"), "found one that has expired"),
                ([*self.certificates.flags(issuer=None), f"--tls_ca={path('host.key')}"], "--tls_ca: expected PEM certificates"),
                ([f"--tls_ca={path('issuer.pem')}"], "--tls_cert: expected a certificate, to listen at"),
                ([f"--secret_file={empty}"], "--secret_file: expected a file with a secret"),
                (["--listen=0.0.0.0:0"], "--insecure: expected TLS (--tls_cert), a secret (--secret_file, GRADSYNC_JOB_KEY) or this flag"),
                (["--listen=localhost.example:0"], "--insecure: expected TLS")):
            text = self.ends_at_once([SERVER, *flags], expected, code=2)
            self.assertEqual(text.count("\n"), 1, text)
        self.ends_at_once([WORKER, *self.FLAGS, "--rank=0", "--master=127.0.0.1:0", "--topology=ring", "--link=gloo",
                           *self.certificates.flags()], "--link: expected one that can encrypt", code=2)
        for flags in (["--insecure"], [f"--secret_file={self.secret}"], self.certificates.flags()):
            server, _ = self.start(SERVER, "--listen=0.0.0.0:0", *flags, port=f"open{len(flags)}{flags[0][2]}")
            server.terminate()


if __name__ == "__main__":
    unittest.main(verbosity=2)
