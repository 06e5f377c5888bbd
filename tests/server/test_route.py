"""sluice route in front of real servers that die, hang and drain, and of fake ones that fail in known ways.

    SLUICE=build/release/sluice python3 tests/server/test_route.py
"""

import http.client
import http.server
import json
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from harness import PATIENCE, ROOT, SLUICE, Server, stories

MODEL = str(ROOT / "tests/golden/models/llama.gguf")


class Router:
    def __init__(self, *workers, args=(), port=0):
        command = [SLUICE, "route", "--port", str(port), *args]
        for url in workers:
            command += ["--worker", url]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            match = re.search(r"routing on http://127.0.0.1:(\d+)", line)
            if match:
                self.port = int(match[1])
                break
        else:
            raise RuntimeError("the router did not start: " + "".join(self.lines))
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(10)
        self.process.stderr.close()
        if self.process.returncode != 0:
            raise RuntimeError(f"the router ended with {self.process.returncode}: {''.join(self.lines)[-8000:]}")

    def call(self, path, body=None, headers=None, method=None, timeout=20 * PATIENCE):
        """Status, headers and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method or ("GET" if body is None else "POST"), path, data,
                               {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def metric(self, name, labels=""):
        for line in self.call("/metrics")[2].decode().splitlines():
            if line.startswith(name + labels) and not line.startswith("#"):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}{labels}")

    def wait_up(self, num, tries=200 * PATIENCE):
        for _ in range(tries):
            status, _, body = self.call("/health")
            up = json.loads(body)["up"] if status == 200 else 0
            if up == num:
                return
            time.sleep(0.05)
        raise AssertionError(f"{num} workers are not up: {''.join(self.lines)}")


def wait_for(condition, tries=200 * PATIENCE):
    for _ in range(tries):
        if condition():
            return True
        time.sleep(0.05)
    return False


class Fake(http.server.ThreadingHTTPServer):
    """A worker that does as it is told: `act(handler, body)` answers POSTs."""

    daemon_threads = True

    def __init__(self, act, role=None):
        self.act, self.seen, self.ready, self.lock = act, [], 200, threading.Lock()
        self.probes, self.cut_off = [], ()  # paths of GETs; those that get no answer
        self.hello = json.dumps({"kv_role": role} if role else {}).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.server.probes.append(self.path)
                if self.path in self.server.cut_off:
                    self.close_connection = True
                else:
                    self.whole(self.server.ready, self.server.hello)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with self.server.lock:
                    self.server.seen.append((self.path, dict(self.headers), body))
                self.server.act(self, body)

            def whole(self, status, text, **headers):
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(text)

            def begin_events(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()

            def event(self, text):
                data = f"data: {text}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

            def log_message(self, *args):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


def echo(handler, body):
    handler.whole(200, b'{"echo": %s}' % body, Content_Type="application/json", X_Request_Id="id-1")


def cut(handler, _):
    handler.close_connection = True


class FakeWorkers(unittest.TestCase):
    def test_passes_requests_and_answers_on(self):
        with Fake(echo) as a, Router(a.url) as router:
            router.wait_up(1)
            status, headers, body = router.call("/v1/completions?x=1", {"prompt": "hi"},
                                                {"Authorization": "Bearer k", "Connection": "x-secret", "X-Own": "y"})
            self.assertEqual((status, json.loads(body)), (200, {"echo": {"prompt": "hi"}}))
            self.assertEqual(headers["x-request-id"], "id-1")
            path, sent, _ = a.seen[0]
            self.assertEqual(path, "/v1/completions?x=1")
            self.assertEqual((sent["authorization"], sent["x-own"]), ("Bearer k", "y"))
            self.assertEqual(sent["x-forwarded-for"], "127.0.0.1")
            self.assertEqual(router.call("/v1/responses", {"input": "x"})[0], 404)
            self.assertEqual(router.call("/v1/completions")[0], 405)
            error = json.loads(router.call("/nothing")[2])["error"]
            self.assertEqual(error["code"], "not_found")

    def test_the_addresses_of_a_name_are_workers(self):
        with Fake(echo) as a, Router(args=["--workers-dns", f"localhost:{a.server_address[1]}"]) as router:
            router.wait_up(1)
            self.assertEqual(router.call("/v1/completions", {"prompt": "hi"})[0], 200)
            self.assertIn(f"127.0.0.1:{a.server_address[1]}: joined", "".join(router.lines))
        with Router(args=["--workers-dns", "no-such-name.invalid:80"]) as router:
            self.assertTrue(wait_for(lambda: "no-such-name.invalid" in "".join(router.lines[1:])), router.lines)
            self.assertEqual(router.call("/health")[0], 503)

    def test_a_failure_before_the_first_byte_goes_to_another(self):
        for act in (cut, lambda h, b: h.whole(503, b"{}"), lambda h, b: h.whole(429, b"{}")):
            with Fake(act) as bad, Fake(echo) as good, \
                    Router(bad.url, good.url, args=["--policy", "round-robin"]) as router:
                router.wait_up(2)
                for i in range(4):
                    self.assertEqual(router.call("/v1/completions", {"prompt": str(i)})[0], 200)
                self.assertEqual(len(good.seen), 4)
                self.assertGreaterEqual(len(bad.seen), 1)
                self.assertEqual(router.metric("sluice_route_retries_total"), len(bad.seen))

    def test_a_failure_after_the_first_byte_is_told(self):
        def half(handler, _):
            handler.begin_events()
            handler.event('{"n": 1}')
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
        with Fake(half) as bad, Router(bad.url) as router:
            router.wait_up(1)
            status, _, body = router.call("/v1/completions", {"prompt": "x", "stream": True})
            events = [e for e in body.decode().split("\n\n") if e]
            self.assertEqual((status, events[0]), (200, 'data: {"n": 1}'))
            self.assertEqual(json.loads(events[1][6:])["error"]["code"], "worker_failed")
            self.assertEqual(len(bad.seen), 1)

    def test_no_answer_anywhere_is_an_error(self):
        with Fake(cut) as a, Fake(cut) as b, Router(a.url, b.url) as router:
            router.wait_up(2)
            status, _, body = router.call("/v1/completions", {"prompt": "x"})
            self.assertEqual((status, json.loads(body)["error"]["code"]), (502, "worker_failed"))
            self.assertEqual(len(a.seen) + len(b.seen), 2)

    def test_draining_workers_get_nothing_and_come_back(self):
        with Fake(echo) as a, Fake(echo) as b, Router(a.url, b.url, args=["--policy", "round-robin"]) as router:
            router.wait_up(2)
            a.ready = 503
            router.wait_up(1)
            for i in range(4):
                self.assertEqual(router.call("/v1/completions", {"prompt": str(i)})[0], 200)
            self.assertEqual((len(a.seen), len(b.seen)), (0, 4))
            a.ready = 200
            router.wait_up(2)
            for i in range(4):
                router.call("/v1/completions", {"prompt": str(i)})
            self.assertEqual((len(a.seen), len(b.seen)), (2, 6))
            a.ready = b.ready = 503
            self.assertTrue(wait_for(lambda: router.call("/health")[0] == 503))
            status, headers, _ = router.call("/v1/completions", {"prompt": "x"})
            self.assertEqual((status, headers["retry-after"]), (503, "1"))

    def test_prefixes_and_sessions_stay(self):
        with Fake(echo) as a, Fake(echo) as b, Router(a.url, b.url) as router:
            router.wait_up(2)
            for turn in range(3):
                for k in range(6):
                    text = f"{k} " * 2000 + "more " * turn
                    router.call("/v1/completions", {"prompt": text})
            seen = [{json.loads(body)["prompt"][0] for _, _, body in w.seen} for w in (a, b)]
            self.assertFalse(seen[0] & seen[1])
            self.assertEqual(seen[0] | seen[1], set("012345"))
            self.assertGreater(router.metric("sluice_route_cached_tokens_total"),
                               router.metric("sluice_route_prompt_tokens_total") / 2)
            before = len(a.seen), len(b.seen)
            for _ in range(5):
                router.call("/v1/completions", {"prompt": "x", "user": "u"})
            grown = len(a.seen) - before[0], len(b.seen) - before[1]
            self.assertIn(0, grown)

    def test_a_slow_reader_slows_its_worker_and_no_one_else(self):
        sent = [0]

        def many(handler, _):
            handler.begin_events()
            try:
                for _ in range(4000):
                    handler.event("x" * 4000)
                    sent[0] += 4000
            except OSError:
                pass
        with Fake(many) as a, Router(a.url) as router:
            router.wait_up(1)
            with socket.create_connection(("127.0.0.1", router.port)) as s:
                body = b'{"prompt": "x", "stream": true}'
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                self.assertTrue(s.recv(100).startswith(b"HTTP/1.1 200"))
                last = -1
                for _ in range(100):
                    if sent[0] == last:
                        break
                    last = sent[0]
                    time.sleep(0.2)
                self.assertLess(sent[0], 16_000_000 * 3 // 4)
                self.assertEqual(router.call("/health")[0], 200)
            # The client is gone, and so is its request.
            self.assertTrue(wait_for(lambda: router.metric("sluice_route_requests") == 0))

    def test_a_worker_that_breaks_server_info_is_probed_no_more_often(self):
        with Fake(echo) as a:
            a.cut_off = ("/server_info",)
            with Router(a.url, args=["--kv-events"]) as router:
                router.wait_up(1)
                self.assertTrue(wait_for(lambda: a.probes.count("/server_info") >= 2))
                before = len(a.probes)
                time.sleep(1)
                self.assertLess(len(a.probes) - before, 20)
                router.wait_up(1)

    def test_rejects_early_and_says_when_to_come_back(self):
        hold = threading.Event()

        def slow(handler, body):
            hold.wait(30 * PATIENCE)
            echo(handler, body)
        with Fake(slow) as a, Router(a.url, args=["--slo", "ttft=100ms"]) as router:
            router.wait_up(1)
            text = "word " * 4000  # 5,000 tokens: 265 ms, as assumed
            first = threading.Thread(target=router.call, args=("/v1/completions", {"prompt": text}))
            first.start()
            self.assertTrue(wait_for(lambda: len(a.seen) == 1))
            answers = []
            others = [threading.Thread(target=lambda: answers.append(router.call("/v1/completions", {"prompt": text})))
                      for _ in range(4)]
            for t in others:
                t.start()
            self.assertTrue(wait_for(lambda: len(answers) >= 2))
            status, headers, body = answers[0]
            self.assertEqual((status, json.loads(body)["error"]["code"]), (429, "overloaded"))
            self.assertGreaterEqual(int(headers["retry-after"]), 1)
            hold.set()
            for t in [first, *others]:
                t.join(30 * PATIENCE)
            # Nothing waits any more: it is taken.
            self.assertEqual(router.call("/v1/completions", {"prompt": text})[0], 200)
            self.assertGreaterEqual(router.metric("sluice_route_rejected_total"), 2)


    def test_bodies_and_their_copies_are_counted(self):
        hold, go_on, size = threading.Event(), threading.Event(), 1_000_000

        def slow(handler, body):
            hold.wait(30 * PATIENCE)
            if b'"stream"' not in body:
                return echo(handler, body[:2])
            handler.begin_events()
            handler.event("first")
            go_on.wait(30 * PATIENCE)
            handler.wfile.write(b"0\r\n\r\n")
        with Fake(slow) as a, Router(a.url, args=["--max-body", "1500k", "--max-held", "3m"]) as router:
            router.wait_up(1)
            text = "x" * size
            first = threading.Thread(target=router.call, args=("/v1/completions", {"prompt": text, "stream": True}))
            first.start()
            self.assertTrue(wait_for(lambda: len(a.seen) == 1))
            held = router.metric("sluice_route_request_bytes")
            self.assertTrue(2 * size <= held < 2 * size + 1000, held)
            status, headers, body = router.call("/v1/completions", {"prompt": text})
            self.assertEqual((status, json.loads(body)["error"]["code"]), (503, "router_full"))
            self.assertEqual(headers["retry-after"], "1")
            hold.set()  # the stream begins: nobody needs its body any more
            self.assertTrue(wait_for(lambda: router.metric("sluice_route_request_bytes") == 0))
            self.assertEqual(router.metric("sluice_route_requests"), 1)
            self.assertEqual(router.call("/v1/completions", {"prompt": text})[0], 200)
            go_on.set()
            first.join(30 * PATIENCE)
            self.assertEqual(router.metric("sluice_route_request_bytes"), 0)


class Hostile(unittest.TestCase):
    def test_what_no_client_should_send(self):
        with Fake(echo) as a, Router(a.url, args=["--max-body", "64k"]) as router:
            router.wait_up(1)
            self.assertEqual(router.call("/v1/completions", b"x" * 70_000)[0], 413)
            for body in (b"", b"{", b'{"prompt":"\\', b"\xff\xfe", b"[" * 60_000, b'{"a":' * 10_000):
                self.assertEqual(router.call("/v1/completions", body)[0], 200)  # the fake takes anything
            for raw in (b"GET / HTTP/9\r\n\r\n", b"\0\0\0\0\r\n\r\n",
                        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
                        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                        b"Content-Length: 5\r\n\r\n0\r\n\r\n"):
                with socket.create_connection(("127.0.0.1", router.port), timeout=10 * PATIENCE) as s:
                    s.sendall(raw)
                    self.assertRegex(s.recv(1000), rb"^HTTP/1.1 [45]\d\d ")
            self.assertEqual(router.call("/health")[0], 200)
            self.assertEqual(router.metric("sluice_route_requests"), 0)

    def test_bad_options_are_one_line(self):
        for args, says in ((["--worker", "nonsense"], "nonsense"), (["--worker", "http://x:1", "--slo", "e2e=1s"], "--slo"),
                           (["--worker", "http://127.0.0.1:1", "--worker", "http://127.0.0.1:1"], "twice"),
                           (["--worker", "http://127.0.0.1:1", "--max-held", "8m"], "--max-body"),
                           (["--worker", "http://127.0.0.1:1", "--host", "0.0.0.0"], "--allow-no-key"),
                           (["--workers-dns", "name"], "NAME:PORT"), (["--workers-dns", "name:80/x"], "NAME:PORT"),
                           (["--workers-dns", ":80"], "NAME:PORT"), ([], "--worker")):
            done = subprocess.run([SLUICE, "route", "--port", "0", *args], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(says, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1)


class RealWorkers(unittest.TestCase):
    def setUp(self):
        self.servers = [Server("-t", "1", path=MODEL) for _ in range(2)]
        self.router = Router(*(s.url for s in self.servers), args=["--policy", "round-robin"])
        self.router.wait_up(2)

    def tearDown(self):
        self.router.__exit__()
        for server in self.servers:
            server.process.send_signal(signal.SIGCONT)
            server.__exit__()

    def stream(self, ends, silent, num_tokens=60, port=None):
        """One streamed completion; appends how it ended, and its longest silence."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.router.port, timeout=30 * PATIENCE)
        body = json.dumps({"model": "test", "prompt": "Once", "max_tokens": num_tokens, "stream": True, "ignore_eos": True})
        last, longest, text = time.monotonic(), 0.0, b""
        try:
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            while True:
                piece = answer.read1(65536)
                longest = max(longest, time.monotonic() - last)
                last = time.monotonic()
                if not piece:
                    break
                text += piece
            done, error = text.count(b"data: [DONE]"), text.count(b'"error"')
            ends.append(("whole" if done else "error", done + error))
        except (OSError, http.client.HTTPException) as e:
            ends.append((repr(e), 1))
        finally:
            connection.close()
        silent.append(longest)

    def load(self, num, act):
        ends, silent = [], []
        threads = [threading.Thread(target=self.stream, args=(ends, silent)) for _ in range(num)]
        for t in threads:
            t.start()
        act()
        for t in threads:
            t.join(60 * PATIENCE)
        self.assertEqual(len(ends), num)
        self.assertTrue(all(times == 1 and how in ("whole", "error") for how, times in ends), ends)
        return [how for how, _ in ends], max(silent)

    def test_chat_stream_and_models(self):
        status, _, body = self.router.call("/v1/completions", {"model": "test", "prompt": "Once", "max_tokens": 4})
        self.assertEqual((status, json.loads(body)["usage"]["completion_tokens"]), (200, 4))
        self.assertEqual(json.loads(self.router.call("/v1/models")[2])["data"][0]["id"], "test")
        ends, _ = self.load(8, lambda: None)
        self.assertEqual(ends, ["whole"] * 8)
        self.assertEqual(self.router.call("/v1/completions", b"{")[0], 400)
        self.assertIn("worker=", "".join(self.router.lines))

    def test_a_killed_worker_leaves_no_request_behind(self):
        ends, _ = self.load(24, lambda: (time.sleep(0.05), self.servers[0].process.kill()))
        self.assertIn("whole", ends)
        self.router.wait_up(1)
        self.assertEqual(self.load(6, lambda: None)[0], ["whole"] * 6)
        self.assertTrue(wait_for(lambda: self.router.metric("sluice_route_requests") == 0))

    def test_a_stopped_worker_is_given_up_and_comes_back(self):
        ends, silent = self.load(12, lambda: self.servers[0].process.send_signal(signal.SIGSTOP))
        self.assertIn("whole", ends)
        self.assertLess(silent, 5 * PATIENCE)
        self.router.wait_up(1)
        self.servers[0].process.send_signal(signal.SIGCONT)
        self.router.wait_up(2)
        self.assertEqual(self.load(6, lambda: None)[0], ["whole"] * 6)

    def test_two_routers_side_by_side_and_one_is_killed(self):
        other = Router(*(s.url for s in self.servers))
        try:
            other.wait_up(2)
            ends, cut, silent = [], [], []
            threads = [threading.Thread(target=self.stream, args=(list_, silent, 120, port)) for _ in range(12)
                       for list_, port in ((ends, self.router.port), (cut, other.port))]
            for t in threads:
                t.start()
            self.assertTrue(wait_for(lambda: other.metric("sluice_route_requests") > 0))
            other.process.kill()
            for t in threads:
                t.join(60 * PATIENCE)
            # What went through the other one is untouched; the killed one's connections closed.
            self.assertEqual([how for how, _ in ends], ["whole"] * 12)
            self.assertEqual(len(cut), 12)
            self.assertNotEqual([how for how, _ in cut], ["whole"] * 12)
        finally:
            other.process.kill()
            other.process.wait()
            other.reader.join(10)
            other.process.stderr.close()
        # Workers noticed that nobody reads those answers any more.
        for server in self.servers:
            self.assertTrue(server.until(lambda s=server: s.metric("vllm:num_requests_running") == 0))
        self.assertEqual(self.load(6, lambda: None)[0], ["whole"] * 6)

    def test_a_draining_worker_finishes_and_gets_no_more(self):
        ends, _ = self.load(12, lambda: (time.sleep(0.05), self.servers[0].process.send_signal(signal.SIGTERM)))
        self.assertEqual(ends, ["whole"] * 12)
        self.router.wait_up(1)
        self.assertEqual(self.load(4, lambda: None)[0], ["whole"] * 4)


@unittest.skipUnless(stories(), "no test data")
class KvEvents(unittest.TestCase):
    """What workers have cached is what they say, not what they were sent."""

    ARGS = ("-t", "1", "--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*")
    # Two blocks of 512 bytes of text, some 450 tokens of 512 that fit.
    PROMPT = ("Once upon a time there was a little girl named Lily. She loved to play in the park with her mom. " * 12)[:1040]

    def serve(self, *args):
        try:
            server = Server(*self.ARGS, *args, path=stories())
        except RuntimeError as error:
            if "no ZeroMQ" in str(error):
                self.skipTest("this build has no ZeroMQ")
            raise
        self.addCleanup(server.__exit__)
        self.assertEqual(server.request("/flush_cache", b"", method="POST")[0], 200)  # what warming up left
        return server

    def route(self, *servers):
        router = Router(*(s.url for s in servers), args=["--kv-events"])
        self.addCleanup(router.__exit__)
        router.wait_up(len(servers))
        for s in servers:
            self.assertTrue(wait_for(lambda s=s: self.of(router, s, "kv_known") == 1), "".join(router.lines))
        return router

    def of(self, router, server, name):
        return router.metric("sluice_route_worker_" + name, f'{{worker="127.0.0.1:{server.port}"}}')

    def ask(self, router, prompt=None):
        """Sends a prompt; how many of its tokens the router expected to be cached."""
        before = router.metric("sluice_route_cached_tokens_total")
        status, headers, body = router.call("/v1/completions", {"prompt": prompt or self.PROMPT, "max_tokens": 2})
        self.assertEqual(status, 200, body)
        self.assertNotIn("x-kv-block", headers)
        return router.metric("sluice_route_cached_tokens_total") - before

    def test_an_eviction_is_known_at_once(self):
        a, b = self.serve(), self.serve()
        router = self.route(a, b)
        self.assertEqual(self.ask(router), 0)
        self.assertTrue(wait_for(lambda: sum(self.of(router, s, "kv_blocks") for s in (a, b)) > 10))
        self.assertEqual(self.ask(router), 256)
        home, other = (a, b) if self.of(router, a, "kv_blocks") > 0 else (b, a)
        self.assertEqual(home.request("/flush_cache", b"", method="POST")[0], 200)
        self.assertTrue(wait_for(lambda: self.of(router, home, "kv_blocks") == 0))
        self.assertEqual(self.ask(router), 0)
        self.assertTrue(wait_for(lambda: sum(self.of(router, s, "kv_blocks") for s in (a, b)) > 10))
        # Another client's prompts count, at a worker that this router never sent them to.
        for s in (a, b):
            s.request("/flush_cache", b"", method="POST")
        self.assertTrue(wait_for(lambda: sum(self.of(router, s, "kv_blocks") for s in (a, b)) == 0))
        self.assertEqual(other.request("/v1/completions", {"prompt": self.PROMPT, "max_tokens": 2})[0], 200)
        self.assertTrue(wait_for(lambda: self.of(router, other, "kv_blocks") > 10))
        sent = self.of(router, other, "requests_total")
        self.assertEqual(self.ask(router), 256)
        self.assertEqual(self.of(router, other, "requests_total"), sent + 1)

    def test_a_router_that_comes_late_knows_too(self):
        a = self.serve()
        self.assertEqual(a.request("/v1/completions", {"prompt": self.PROMPT, "max_tokens": 2})[0], 200)
        router = self.route(a)
        self.assertTrue(wait_for(lambda: self.of(router, a, "kv_blocks") > 10))
        self.assertEqual(self.ask(router), 0)  # it cannot tell which tokens the text is
        self.assertEqual(self.ask(router), 256)

    def test_a_restarted_worker_has_nothing(self):
        a, b = self.serve(), self.serve()
        router = self.route(a, b)
        self.ask(router)
        self.assertTrue(wait_for(lambda: sum(self.of(router, s, "kv_blocks") for s in (a, b)) > 10))
        home = a if self.of(router, a, "kv_blocks") > 0 else b
        home.process.kill()
        home.process.wait()
        self.assertTrue(wait_for(lambda: self.of(router, home, "kv_blocks") == 0))
        again = Server(*self.ARGS, path=stories(), port=home.port)
        self.addCleanup(again.__exit__)
        router.wait_up(2)
        self.assertTrue(wait_for(lambda: self.of(router, again, "kv_known") == 1))
        self.assertEqual(self.ask(router), 0)

    def test_keys(self):
        # Of no use elsewhere: pairs of zmq_curve_keypair().
        server_public, server_secret = "vHxQUFXt]^F8!wyt.mwo!j8Ke?yp>v+lsl9q)JYP", "kcp$6Kq*2&O(gj8?x9*)efGP)F1u75u*m!(4R=dN"
        own_public, own_secret = "=)z=Ednglts?s@1^U<+URxQCi+>vf)<*:j&]m{/{", "1OuPoFWt4ztcr@+vl3ITyVfBj&RU>z^ER?#?pkY5"
        with tempfile.TemporaryDirectory() as folder:
            theirs, ours, wrong = (pathlib.Path(folder) / name for name in ("theirs", "ours", "wrong"))
            theirs.write_text(f"secret {server_secret}\nclient {own_public}\n")
            ours.write_text(f"# of the router\nsecret {own_secret}\nserver {server_public}\n")
            wrong.write_text(f"secret {own_secret}\n")
            a = self.serve("--kv-events-key", str(theirs))
            with Router(a.url, args=["--kv-events"]) as without, \
                    Router(a.url, args=["--kv-events", "--kv-events-key", str(ours)]) as router:
                router.wait_up(1)
                self.assertTrue(wait_for(lambda: self.of(router, a, "kv_known") == 1))
                self.ask(router)
                self.assertTrue(wait_for(lambda: self.of(router, a, "kv_blocks") > 10))
                self.assertEqual(self.of(without, a, "kv_known"), 0)
            done = subprocess.run([SLUICE, "route", "--port", "0", "--worker", a.url, "--kv-events", "--kv-events-key", wrong],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn("server KEY", done.stderr)

    def test_without_events_it_is_assumed(self):
        with Server("-t", "1", path=stories()) as a, Router(a.url, args=["--kv-events"]) as router:
            router.wait_up(1)
            self.ask(router)
            self.assertEqual(self.of(router, a, "kv_known"), 0)
            self.assertEqual(self.ask(router), 256)
            a.request("/flush_cache", b"", method="POST")
            self.assertEqual(self.ask(router), 256)


if __name__ == "__main__":
    unittest.main()
