"""HTTPS: real clients, streams, disconnects, and what no client should do. The certificate is made here by openssl."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

try:
    import openai
    try:
        import httpx2 as httpx  # what the openai package speaks HTTP with, since its version 3
    except ImportError:
        import httpx
except ImportError:  # the rest needs no package
    httpx = openai = None

from harness import PATIENCE, SLUICE, Server, stories

LONG = {"prompt": "Once upon a time", "max_tokens": 500, "ignore_eos": True, "temperature": 0}


def make_certificate(folder, name, kind="ec"):
    key, cert = os.path.join(folder, name + ".key"), os.path.join(folder, name + ".pem")
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"] if kind == "ec" else ["-newkey", "rsa:2048"]
    subprocess.run(["openssl", "req", "-x509", *new, "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                   check=True, capture_output=True)
    return cert, key


def refused_start(*args):
    done = subprocess.run([SLUICE, "serve", stories(), "--port", "0", *args], capture_output=True, text=True,
                          timeout=60 * PATIENCE)
    return done.returncode, done.stderr.strip()


@unittest.skipUnless(stories() and shutil.which("openssl"), "no test data, or no openssl")
class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.cert, cls.key = make_certificate(cls.folder.name, "one")
        code, said = refused_start("--tls-cert", cls.cert, "--tls-key", os.path.join(cls.folder.name, "none"))
        if "no OpenSSL" in said:
            cls.folder.cleanup()
            raise unittest.SkipTest("a build without OpenSSL")
        cls.server = Server("--tls-cert", cls.cert, "--tls-key", cls.key, "--header-timeout", "1", "--idle-timeout",
                            "3", "--send-timeout", "1", path=stories(), ca=cls.cert)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.folder.cleanup()

    def raw(self):
        return socket.create_connection(("127.0.0.1", self.server.port), 10 * PATIENCE)

    def connect(self, **versions):
        context = ssl.create_default_context(cafile=self.cert)
        for name, value in versions.items():
            setattr(context, name, value)
        return context.wrap_socket(self.raw(), server_hostname="localhost")

    def idle(self):
        return self.server.metric("sluice_requests_running") == 0 and self.server.metric("sluice_kv_cache_usage_ratio") == 0

    def send(self, s, body, path="/v1/completions"):
        body = json.dumps(body).encode()
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def test_the_first_lines(self):
        self.assertRegex(self.server.url, r"^https://127\.0\.0\.1:\d+$")
        self.assertEqual(self.server.process.stderr.readline(), f"  chat in a browser: {self.server.url}/\n")
        line = self.server.process.stderr.readline()
        self.assertIn(f"curl --cacert '{self.cert}' {self.server.url}/v1/completions", line)
        if shutil.which("curl"):
            command = line.strip().replace("curl ", "curl -sS -i ", 1)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60 * PATIENCE)
            self.assertIn("HTTP/1.1 200 OK", done.stdout, done.stderr)

    def test_versions(self):
        for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            with self.connect(minimum_version=version, maximum_version=version) as s:
                self.assertEqual(s.version(), name)
                s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertTrue(s.recv(1000).startswith(b"HTTP/1.1 200"))
        with self.raw() as plain:
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            old.set_ciphers("ALL:@SECLEVEL=0")
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with self.assertRaises(ssl.SSLError):
                old.wrap_socket(plain)

    def test_a_request_in_pieces_two_at_once_and_a_large_one(self):
        with self.connect() as s:
            for byte in b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n":
                s.sendall(bytes([byte]))
            self.assertIn(b'"version"', s.recv(1000))
            one = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
            s.sendall(one + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            answer = b""
            while piece := s.recv(65536):  # ends with a goodbye: a cut connection would raise
                answer += piece
            self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 2)
        # Larger than a record, a socket's buffer and what is read at once.
        text = "many words " * 60_000
        code, _, answer = self.server.request("/tokenize", {"prompt": text})
        self.assertEqual(code, 200)
        self.assertGreater(answer["count"], 100_000)

    def test_a_stream_is_the_same_as_plain(self):
        with Server(path=stories()) as plain:
            want = plain.request("/v1/completions", {**LONG, "max_tokens": 50})[2]["choices"][0]["text"]
        with self.connect() as s:
            self.send(s, {**LONG, "max_tokens": 50, "stream": True})
            data = b""
            while b"data: [DONE]" not in data:
                data += s.recv(65536)
        chunks = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
        self.assertGreater(len(chunks), 10)
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks if c["choices"]), want)

    def test_plain_http_is_told_so(self):
        with self.raw() as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while piece := s.recv(1000):
                answer += piece
        self.assertTrue(answer.startswith(b"HTTP/1.1 400"), answer)
        self.assertIn(b"https://", answer)

    def test_no_handshake_in_time(self):
        hello = bytearray(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        begin = time.monotonic()
        slow = [self.raw() for _ in range(3)]
        slow[1].sendall(hello)  # a hello that never ends
        slow[2].sendall(hello[:3])
        self.assertEqual(self.server.request("/health")[0], 200)
        for s in slow:
            self.assertEqual(s.recv(100), b"")
            s.close()
        self.assertLess(time.monotonic() - begin, 3 * PATIENCE)
        self.assertGreater(time.monotonic() - begin, 0.8)

    def test_nonsense_instead_of_a_handshake(self):
        for data in (b"\x00" * 100, b"\x16\x03\x01\xff\xff" + b"\xff" * 70_000, b"SSH-2.0-x\r\n", os.urandom(5000),
                     b"\x16\x03\x03\x00\x04\x0e\x00\x00\x00", b"\x15\x03\x03\x00\x02\x02\x28"):
            with self.subTest(data=data[:8]), self.raw() as s:
                try:
                    s.sendall(data)
                    while s.recv(1000):
                        pass
                except ConnectionError:
                    pass
        # And after a good one: a broken record ends the connection.
        context = ssl.create_default_context(cafile=self.cert)
        with self.raw() as s:
            with context.wrap_socket(s.dup(), server_hostname="localhost") as t:
                t.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                t.recv(1000)
                s.sendall(b"\x17\x03\x03\x00\x20" + b"\x00" * 32)
                with self.assertRaises((ssl.SSLError, ConnectionError)):
                    if not t.recv(1000):
                        raise ConnectionError
        self.assertEqual(self.server.request("/health")[0], 200)

    def test_disconnect_frees_blocks(self):
        before = self.server.metric("sluice_disconnects_total")
        for goodbye in (True, False):
            s = self.connect()
            self.send(s, {**LONG, "stream": True, "n": 8, "max_tokens": 500})
            self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") > 0))
            if goodbye:
                try:
                    s.settimeout(0.01)
                    s.unwrap()
                except (OSError, ssl.SSLError):
                    pass
            s.close()
            self.assertTrue(self.server.until(self.idle, 5))
        self.assertEqual(self.server.metric("sluice_disconnects_total"), before + 2)

    def test_stalled_reader_is_cut(self):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", self.server.port))
        with ssl.create_default_context(cafile=self.cert).wrap_socket(s, server_hostname="localhost") as t:
            self.send(t, {**LONG, "stream": True, "n": 16, "logprobs": 20, "max_tokens": 500})
            self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") > 0))
            self.assertTrue(self.server.until(self.idle, 60))
            time.sleep(2)  # longer than --send-timeout
            data = b""
            try:
                while piece := t.recv(65536):
                    data += piece
            except (ssl.SSLError, ConnectionError):
                pass
            self.assertIn(b"HTTP/1.1 200", data[:100])
            self.assertNotIn(b"[DONE]", data)

    def test_idle_connections_are_cut(self):
        with self.connect() as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertTrue(s.recv(1000))
            begin = time.monotonic()
            s.settimeout(6 * PATIENCE)
            try:
                self.assertEqual(s.recv(1000), b"")
            except (ssl.SSLError, ConnectionError):
                pass
            self.assertLess(time.monotonic() - begin, 5 * PATIENCE)

    def test_connections_are_counted(self):
        with Server("--tls-cert", self.cert, "--tls-key", self.key, "--max-connections-per-ip", "5", path=stories(),
                    ca=self.cert) as server:
            many = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(8)]
            cut = set()

            def look():
                for s in many:
                    s.settimeout(0.01)
                    try:
                        if s.recv(1) == b"":
                            cut.add(s)
                    except TimeoutError:
                        pass
                    except ConnectionError:
                        cut.add(s)
                return len(cut) >= 3

            self.assertTrue(server.until(look))
            time.sleep(0.2)
            look()
            self.assertEqual(len(cut), 3)
            for s in many:
                s.close()
            self.assertTrue(server.until(lambda: server.request("/health")[0] == 200))

    def test_files_at_fault(self):
        other_cert, other_key = make_certificate(self.folder.name, "other", "rsa")
        third_cert, third_key = make_certificate(self.folder.name, "third")
        locked = os.path.join(self.folder.name, "locked.key")
        subprocess.run(["openssl", "ec", "-in", self.key, "-aes256", "-passout", "pass:secret", "-out", locked],
                       check=True, capture_output=True)
        nowhere, empty = os.path.join(self.folder.name, "nowhere"), os.path.join(self.folder.name, "empty")
        open(empty, "w").close()
        for cert, key, want in (
            (self.cert, None, "give both or neither"), (None, self.key, "give both or neither"),
            (nowhere, self.key, "cannot read --tls-cert"), (self.cert, nowhere, "cannot read --tls-key"),
            (self.folder.name, self.key, "cannot read --tls-cert"), (empty, self.key, "it is empty"),
            (self.key, self.key, "no usable certificate"), (self.cert, self.cert, "no private key"),
            (self.cert, other_key, "does not belong"), (self.cert, third_key, "does not belong"),
            (other_cert, self.key, "does not belong"), (self.cert, locked, "encrypted"),
        ):
            args = (["--tls-cert", cert] if cert else []) + (["--tls-key", key] if key else [])
            with self.subTest(cert=cert, key=key):
                code, said = refused_start(*args)
                self.assertEqual(code, 2, said)
                self.assertIn(want, said)
                self.assertEqual(len(said.splitlines()), 1, said)

    def test_bench_serve(self):
        def bench(*args):
            return subprocess.run([SLUICE, "bench", "serve", "--concurrency", "4", "--requests", "12", "--endpoint",
                                   "completions", "--input", "8-16", "--output", "8", "--json", "-", "-q", *args],
                                  capture_output=True, text=True, timeout=120 * PATIENCE)

        for args in (("--ca", self.cert), ("--insecure",)):
            done = bench("--url", self.server.url, *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["runs"][0]["answered"], 12)
        done = bench("--url", self.server.url)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("self-signed", done.stderr.replace("self signed", "self-signed"))
        done = bench("--url", self.server.url, "--ca", make_certificate(self.folder.name, "stranger")[0])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("TLS", done.stderr)
        done = bench("--url", self.server.url, "--ca", os.path.join(self.folder.name, "nowhere"))
        self.assertEqual(done.returncode, 2, done.stderr)
        done = bench("--url", "http://127.0.0.1:1", "--insecure")
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_openai_client(self):
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0,
                               http_client=httpx.Client(verify=ssl.create_default_context(cafile=self.cert)))
        whole = client.completions.create(model="test", prompt="Once", max_tokens=20, temperature=0)
        stream = client.completions.create(model="test", prompt="Once", max_tokens=20, temperature=0, stream=True)
        self.assertEqual("".join(c.choices[0].text for c in stream), whole.choices[0].text)
        with self.assertRaises(openai.BadRequestError):
            client.completions.create(model="test", prompt="Once", max_tokens=-1)
        client.close()
        wary = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
        with self.assertRaises(openai.APIConnectionError):
            wary.models.list()
        wary.close()

    def test_a_client_that_leaves_its_stream(self):
        before = self.server.metric("sluice_disconnects_total")
        with httpx.Client(verify=ssl.create_default_context(cafile=self.cert)) as client:
            with client.stream("POST", self.server.url + "/v1/completions", json={**LONG, "stream": True, "n": 8}) as r:
                next(r.iter_lines())
        self.assertTrue(self.server.until(self.idle, 5))
        self.assertEqual(self.server.metric("sluice_disconnects_total"), before + 1)


if not openai:  # the ctest server_api runs these
    del Tls.test_openai_client, Tls.test_a_client_that_leaves_its_stream

if __name__ == "__main__":
    unittest.main()
