"""Workers that register themselves in etcd, and a router that finds them there: with a real etcd, which dies and hangs.

    SLUICE=build/release/sluice python3 tests/server/test_etcd.py
"""

import base64
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from harness import PATIENCE, SLUICE, ROOT, Server
from test_route import Router, wait_for

MODEL = str(ROOT / "tests/golden/models/llama.gguf")
FULL = os.environ.get("SLUICE_TEST_FULL") == "1"
PREFIX = "/test/workers/"
ETCD = shutil.which("etcd")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Etcd:
    command = ()  # how it is started

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory()
        self.port, self.peer = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        command = [*self.command, ETCD, "--data-dir", self.dir.name, "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                   "--listen-peer-urls", f"http://127.0.0.1:{self.peer}", "--initial-advertise-peer-urls",
                   f"http://127.0.0.1:{self.peer}", "--initial-cluster", f"default=http://127.0.0.1:{self.peer}"]
        env = {**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"}  # 3.4 asks for it there
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        if not wait_for(self.healthy):
            raise RuntimeError("etcd did not start")

    def healthy(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                return json.load(answer)["health"] == "true"
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)
        self.kill()
        self.dir.cleanup()


@unittest.skipUnless(ETCD, "no etcd here (package etcd-server)")
class Members(unittest.TestCase):
    def setUp(self):
        self.etcd = Etcd()
        self.addCleanup(self.etcd.__exit__)
        self.workers = []
        self.addCleanup(lambda: [w.__exit__() for w in self.workers])

    def worker(self, *args, port=0):
        self.workers.append(Server("--register", self.etcd.url, "--register-prefix", PREFIX, "--register-lease", "5", "-t", "1",
                                   *args, path=MODEL, port=port))
        return self.workers[-1]

    def router(self, *args):
        router = Router(args=["--etcd", self.etcd.url, "--etcd-prefix", PREFIX, *args])
        self.addCleanup(router.__exit__)
        return router

    def keys(self):
        body = {"key": base64.b64encode(PREFIX.encode()).decode(), "range_end": base64.b64encode(b"/test/workers0").decode()}
        request = urllib.request.Request(self.etcd.url + "/v3/kv/range", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10 * PATIENCE) as answer:
            return sorted(base64.b64decode(kv["key"]).decode() for kv in json.load(answer).get("kvs", []))

    def test_workers_come_and_go(self):
        router = self.router()
        a = self.worker()
        router.wait_up(1)
        b = self.worker()
        router.wait_up(2)
        self.assertEqual(self.keys(), sorted(f"{PREFIX}127.0.0.1:{w.port}" for w in (a, b)))
        # One that stops says so; one that is killed is gone with its lease.
        b.__exit__()
        self.workers.remove(b)
        self.assertTrue(wait_for(lambda: self.keys() == [f"{PREFIX}127.0.0.1:{a.port}"]))
        router.wait_up(1)
        c = self.worker()
        router.wait_up(2)
        c.process.kill()
        c.process.wait()
        self.workers.remove(c)
        c.process.stderr.close()
        self.assertTrue(wait_for(lambda: self.keys() == [f"{PREFIX}127.0.0.1:{a.port}"]))
        router.wait_up(1)
        self.assertTrue(wait_for(lambda: f"127.0.0.1:{c.port}: left etcd" in "".join(router.lines)))
        self.assertEqual(router.call("/v1/completions", {"prompt": [1, 2], "max_tokens": 2})[0], 200)

    def ask(self, router, ends):
        status, _, text = router.call("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0,
                                                          "ignore_eos": True})
        ends.append((status, json.loads(text)["choices"][0]["text"] if status == 200 else text))

    def run_load(self, router, fault):
        """Requests without a pause while `fault` runs: all end well, and alike."""
        stop, ends = threading.Event(), []

        def client():
            for _ in range(100_000):
                if stop.is_set():
                    return
                self.ask(router, ends)
        clients = [threading.Thread(target=client) for _ in range(4)]
        for t in clients:
            t.start()
        try:
            fault()
        finally:
            stop.set()
            for t in clients:
                t.join(60 * PATIENCE)
        self.assertEqual(len(set(ends)), 1, set(ends))
        self.assertEqual(ends[0][0], 200)
        self.assertGreater(len(ends), 8)

    def test_etcd_dies_and_hangs(self):
        self.worker(), self.worker()
        router = self.router("--policy", "round-robin")
        router.wait_up(2)

        def faults():
            for _ in range(10 if FULL else 1):
                self.etcd.kill()
                self.assertTrue(wait_for(lambda: "the workers known so far stay" in "".join(router.lines)))
                time.sleep(6)  # longer than the leases
                self.etcd.start()
                self.etcd.process.send_signal(signal.SIGSTOP)
                time.sleep(4)
                self.etcd.process.send_signal(signal.SIGCONT)
                self.assertTrue(wait_for(lambda: len(self.keys()) == 2))
        self.run_load(router, faults)
        router.wait_up(2)
        # All is as before: who comes is found.
        self.worker()
        router.wait_up(3)

    def test_without_etcd_a_worker_serves(self):
        self.etcd.kill()
        a = self.worker()
        self.assertEqual(a.request("/v1/completions", {"prompt": [1, 2], "max_tokens": 2})[0], 200)
        router = self.router()
        self.assertEqual(router.call("/health")[0], 503)
        self.etcd.start()  # both find it later
        router.wait_up(1)

    def test_what_is_no_worker_is_left_out(self):
        self.worker()
        router = self.router()
        router.wait_up(1)
        for k, value in enumerate((b"nonsense", b"https://127.0.0.1:1", b"http://name:80", b"\xff\xfe")):
            body = {"key": base64.b64encode(f"{PREFIX}{k}".encode()).decode(), "value": base64.b64encode(value).decode()}
            urllib.request.urlopen(urllib.request.Request(self.etcd.url + "/v3/kv/put", json.dumps(body).encode()),
                                   timeout=10 * PATIENCE).close()
        self.assertTrue(wait_for(lambda: "is no worker" in "".join(router.lines)))
        self.worker()
        router.wait_up(2)


class FakeEtcd:
    """The part of etcd's gateway that is used, and what may go wrong with it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.keys, self.asked, self.leases = {}, [], 0
        self.wrong = {}  # by path: (status, body) in place of the answer
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self):
                try:
                    super().handle()
                except ConnectionError:
                    pass  # a client that has heard enough

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with fake.lock:
                    status, text = fake.wrong.get(self.path) or (200, json.dumps(fake.answer(self.path, body)).encode())
                    one = self.path == "/v3/kv/range" and "range_end" not in body
                    fake.asked.append(("one key" if one else self.path, status))
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path, body):
        text = {k: base64.b64decode(v).decode() for k, v in body.items() if k in ("key", "value")}
        if path == "/v3/kv/put":
            self.keys[text["key"]] = text["value"]
        if path == "/v3/lease/grant":
            self.leases += 1
            return {"header": {}, "ID": str(self.leases), "TTL": body["TTL"]}
        if path == "/v3/lease/keepalive":
            return {"result": {"header": {}, "ID": body["ID"], "TTL": "5"}}
        if path == "/v3/kv/range":
            found = [v for k, v in self.keys.items() if "range_end" in body or k == text["key"]]
            return {"header": {}, "kvs": [{"value": base64.b64encode(v.encode()).decode()} for v in found]}
        return {"header": {}}

    def num_asked(self, path, status=200):
        with self.lock:
            return self.asked.count((path, status))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Failures(unittest.TestCase):
    """By a gateway that does as it is told."""

    def setUp(self):
        self.etcd = self.fake()

    def fake(self):
        fake = FakeEtcd()
        self.addCleanup(fake.__exit__)
        return fake

    def worker(self, *etcd):
        urls = [x for url in etcd or (self.etcd.url,) for x in ("--register", url)]
        worker = Server(*urls, "--register-lease", "5", "-t", "1", path=MODEL)
        self.addCleanup(worker.__exit__)
        return worker

    def router(self, *etcd):
        router = Router(args=[x for url in etcd or (self.etcd.url,) for x in ("--etcd", url)])
        self.addCleanup(router.__exit__)
        return router

    # A name that cannot be looked up is no reason to stop, now or later.
    def test_a_name_that_nobody_knows(self):
        self.worker("http://nowhere.invalid:1", self.etcd.url)
        self.assertTrue(wait_for(lambda: self.etcd.keys))
        self.router("http://nowhere.invalid:1", self.etcd.url).wait_up(1)

    def test_the_next_one_is_asked_after_any_failure(self):
        other = self.fake()
        self.etcd.wrong = {"/v3/lease/grant": (200, b"{}"), "/v3/kv/range": (200, b"[]")}
        self.worker(self.etcd.url, other.url)
        self.assertTrue(wait_for(lambda: other.keys))
        self.router(self.etcd.url, other.url).wait_up(1)

    def test_a_key_that_was_deleted_comes_back(self):
        self.worker()
        # While it is there it is not put again: etcd keeps a history.
        self.assertTrue(wait_for(lambda: self.etcd.num_asked("one key") > 0))
        puts = self.etcd.num_asked("/v3/kv/put")
        self.assertTrue(wait_for(lambda: self.etcd.num_asked("one key") > 2))
        self.assertEqual(self.etcd.num_asked("/v3/kv/put"), puts)
        with self.etcd.lock:
            self.etcd.keys.clear()
        self.assertTrue(wait_for(lambda: self.etcd.keys))
        self.assertEqual(self.etcd.leases, 1)

    def test_a_put_that_fails_is_tried_again_with_the_same_lease(self):
        self.etcd.wrong = {"/v3/kv/put": (503, b"")}
        self.worker()
        self.assertTrue(wait_for(lambda: self.etcd.num_asked("/v3/kv/put", 503) > 1))
        self.etcd.wrong = {}
        self.assertTrue(wait_for(lambda: self.etcd.keys))
        self.assertEqual(self.etcd.leases, 1)

    def test_nothing_is_put_without_a_lease(self):
        self.etcd.wrong = {"/v3/lease/grant": (200, b'{"header":{}}')}
        self.worker()
        self.assertTrue(wait_for(lambda: self.etcd.num_asked("/v3/lease/grant") > 1))
        self.assertEqual(self.etcd.num_asked("/v3/kv/put"), 0)
        self.etcd.wrong = {}
        self.assertTrue(wait_for(lambda: self.etcd.keys))

    def test_endless_answers(self):
        long = b'{"header":{},"kvs":[' + b" " * (2 << 20) + b"]}"
        self.worker()
        router = self.router()
        router.wait_up(1)
        self.etcd.wrong = {"/v3/kv/range": (200, long), "/v3/lease/keepalive": (200, long)}
        self.assertTrue(wait_for(lambda: "more than 1048576 bytes; the workers" in "".join(router.lines)))
        self.assertTrue(wait_for(lambda: self.etcd.num_asked("/v3/lease/keepalive") > 1))
        router.wait_up(1)

    # etcd was away for longer than the leases: it names those that have registered again.
    def test_workers_that_answer_stay_after_a_failure(self):
        a, b = (self.worker() for _ in range(2))
        router = self.router()
        router.wait_up(2)
        self.etcd.wrong = {"/v3/kv/range": (503, b""), "/v3/kv/put": (503, b"")}
        self.assertTrue(wait_for(lambda: "answers 503; the workers" in "".join(router.lines)))
        with self.etcd.lock:
            self.etcd.keys = {k: v for k, v in self.etcd.keys.items() if v.endswith(f":{a.port}")}
        self.etcd.wrong = {"/v3/kv/put": (503, b"")}
        before = self.etcd.num_asked("/v3/kv/range")
        self.assertTrue(wait_for(lambda: self.etcd.num_asked("/v3/kv/range") > before + 2))
        router.wait_up(2)
        self.assertNotIn("left etcd", "".join(router.lines))
        # One that does not answer either is gone.
        b.process.kill()
        self.assertTrue(wait_for(lambda: f"127.0.0.1:{b.port}: left etcd" in "".join(router.lines)))
        router.wait_up(1)

    def test_one_that_is_not_named_leaves(self):
        a, _ = (self.worker() for _ in range(2))
        router = self.router()
        router.wait_up(2)
        self.etcd.wrong = {"/v3/kv/put": (503, b"")}
        with self.etcd.lock:
            self.etcd.keys = {k: v for k, v in self.etcd.keys.items() if v.endswith(f":{a.port}")}
        router.wait_up(1)


class Options(unittest.TestCase):
    def test_options(self):
        def fails(says, *command):
            done = subprocess.run([SLUICE, *command], capture_output=True, text=True, timeout=60 * PATIENCE)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)
        serve = ("serve", MODEL, "--port", "0")
        fails("--register-as", *serve, "--register", "http://127.0.0.1:1", "--host", "0.0.0.0", "--allow-no-key")
        fails("--register-as", *serve, "--register", "http://127.0.0.1:1", "--register-as", "name")
        fails("http", *serve, "--register", "nowhere")
        fails("--register-prefix", *serve, "--register", "http://127.0.0.1:1", "--register-prefix", "")
        fails("--register-lease", *serve, "--register", "http://127.0.0.1:1", "--register-lease", "4")
        fails("--register-lease", *serve, "--register", "http://127.0.0.1:1", "--register-lease", "7.5")
        fails("nowhere.pem", *serve, "--register", "https://127.0.0.1:1", "--register-ca", "nowhere.pem")
        fails("nowhere.pem", "route", "--etcd", "https://127.0.0.1:1", "--ca", "nowhere.pem")
        fails("--worker, --workers-dns or --etcd", "route")
        fails("--etcd-prefix", "route", "--etcd", "http://127.0.0.1:1", "--etcd-prefix", "")


if __name__ == "__main__":
    unittest.main()
