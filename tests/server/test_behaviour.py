"""Load, keys, disconnects, deadlines and shutdown, over real sockets."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import openai

from harness import PATIENCE, SLUICE, Server, model

LONG = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}


def raw(server, data, timeout=10 * PATIENCE):
    """A socket to the server with `data` sent."""
    s = socket.create_connection(("127.0.0.1", server.port), timeout)
    s.sendall(data)
    return s


def post(path, body):
    body = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def read_all(s):
    data = b""
    try:
        while piece := s.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def status(data):
    return int(data.split(b" ", 2)[1]) if data else None


@unittest.skipUnless(model(), "the default model is not in the cache")
class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "2048", "--header-timeout", "0.5", "--body-timeout", "0.5", "--idle-timeout", "1",
                            "--send-timeout", "1", "--max-connections-per-ip", "40")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_malformed(self):
        for data, want in (
            (b"NONSENSE\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
            (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
            (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
            (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
            (b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20000 + b"\r\n\r\n", 431),
            (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: a\r\n" * 101 + b"\r\n", 431),
        ):
            with self.subTest(data=data[:60]), raw(self.server, data) as s:
                answer = read_all(s)
                self.assertEqual(status(answer), want)
                self.assertIn(b"Connection: close", answer)

    def test_chunked_pipelined_and_old(self):
        body = b'{"prompt": "hello"}'
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 5]), body[i:i + 5]) for i in range(0, len(body), 5))
        chunked = (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        last = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        with raw(self.server, chunked + chunked + last) as s:
            answer = read_all(s)
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 3)
        self.assertEqual(answer.count(b'"count":1'), 2)
        with raw(self.server, post("/v1/completions", {**LONG, "max_tokens": 3, "stream": True})
                 .replace(b"HTTP/1.1", b"HTTP/1.0", 1)) as s:
            answer = read_all(s)
        self.assertNotIn(b"chunked", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"))

    def test_expect_continue(self):
        head, body = post("/tokenize", {"prompt": "hello"}).split(b"\r\n\r\n", 1)
        with raw(self.server, head + b"\r\nExpect: 100-continue\r\n\r\n") as s:
            self.assertEqual(status(s.recv(1000)), 100)
            s.sendall(body)
            self.assertEqual(status(s.recv(1000)), 200)

    def test_slow_senders_are_cut(self):
        begin = time.monotonic()
        slow = [raw(self.server, b"GET /health HTTP/1.1\r\nHo"),
                raw(self.server, b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{"),
                raw(self.server, b"")]
        self.assertEqual(self.server.request("/health")[0], 200)
        for s, limit in zip(slow, (1.5, 1.5, 2.5)):
            self.assertEqual(read_all(s), b"")
            self.assertLess(time.monotonic() - begin, limit * PATIENCE)
            s.close()

    def test_connections_per_address(self):
        many = [raw(self.server, b"") for _ in range(60)]
        answers = []
        for s in many[45:]:
            s.settimeout(5 * PATIENCE)
            answers.append(read_all(s))
        for s in many:
            s.close()
        self.assertTrue(any(status(a) == 503 for a in answers))
        self.assertTrue(self.server.until(lambda: self.server.request("/health")[0] == 200))

    def idle(self):
        return self.server.metric("sluice_requests_running") == 0 and self.server.metric("sluice_kv_cache_usage_ratio") == 0

    def test_disconnect_frees_blocks(self):
        before = self.server.metric("sluice_disconnects_total")
        for streamed, half in ((True, False), (False, False), (True, True)):
            s = raw(self.server, post("/v1/completions", {**LONG, "stream": streamed, "n": 2}))
            self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") > 0))
            self.assertGreater(self.server.metric("sluice_kv_cache_usage_ratio"), 0)
            if half:
                s.shutdown(socket.SHUT_WR)
            else:
                s.close()
            self.assertTrue(self.server.until(self.idle, 3))
            s.close()
        self.assertEqual(self.server.metric("sluice_disconnects_total"), before + 3)

    def test_random_disconnects(self):
        for i in range(60):
            with raw(self.server, post("/v1/completions", {**LONG, "stream": True, "prompt": f"{i} " * 50})) as s:
                s.settimeout(0.01 * (i % 7) + 0.001)
                try:
                    s.recv(2000)
                except TimeoutError:
                    pass
        self.assertTrue(self.server.until(self.idle, 5))

    def test_stalled_reader_is_cut(self):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", self.server.port))
        s.sendall(post("/v1/completions", {**LONG, "stream": True, "n": 16, "logprobs": 20}))
        self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") > 0))
        self.assertTrue(self.server.until(self.idle, 90))  # a slow build takes long to fill the sockets
        self.assertLess(self.server.metric("sluice_generation_tokens_total"), 16 * 1900)
        s.close()


@unittest.skipUnless(model(), "the default model is not in the cache")
class Behaviour(unittest.TestCase):
    def test_overload(self):
        with Server("--ctx", "512", "--max-queue", "3", "--max-seqs", "2", "--max-queue-tokens", "400") as server:
            answers = []

            def ask():
                begin = time.monotonic()
                body = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True}
                code, head, answer = server.request("/v1/completions", body)
                answers.append((code, head, answer, time.monotonic() - begin))

            threads = [threading.Thread(target=ask) for _ in range(24)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            refused = [a for a in answers if a[0] == 429]
            served = [a for a in answers if a[0] == 200]
            self.assertEqual(len(refused) + len(served), 24)
            self.assertGreaterEqual(len(served), 3)
            self.assertGreater(len(refused), 0)
            for _, head, answer, _ in refused:
                self.assertGreaterEqual(int(head["Retry-After"]), 1)
                self.assertGreater(int(head["retry-after-ms"]), 0)
                self.assertEqual(answer["error"]["type"], "rate_limit_error")
            self.assertEqual(server.metric("sluice_refusals_total"), len(refused))
            # A client that honours the header gets through.
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=10)
            self.assertTrue(client.completions.create(model="test", prompt="Once", max_tokens=4).choices[0].text)
            client.close()

    def test_keys(self):
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write("# two of them\nfirst-key-123\nsecond-key-456\n")
        try:
            with Server("--ctx", "512", "--api-key-file", file.name, key="second-key-456") as server:
                for path in ("/health", "/ready", "/"):
                    self.assertEqual(server.request(path, headers={"Authorization": "x"})[0], 200)
                for path in ("/v1/models", "/v1/models/test", "/metrics", "/version", "/nowhere", "/tokenize"):
                    for wrong in ("", "Bearer", "Bearer ", "Bearer first-key-12", "Bearer first-key-1234",
                                  "Basic first-key-123", "Bearer " + "first-key-123" * 2):
                        code, _, answer = server.request(path, headers={"Authorization": wrong or " "})
                        self.assertEqual((code, answer["error"]["code"]), (401, "invalid_api_key"), (path, wrong))
                self.assertEqual(server.request("/v1/models")[0], 200)
                wrong = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
                with self.assertRaises(openai.AuthenticationError):
                    wrong.models.list()
                wrong.close()
                # The prefix cache is a tenant's own.
                body = {"prompt": "word " * 100, "max_tokens": 1}

                def cached(key):
                    answer = server.request("/v1/completions", body, {"Authorization": "Bearer " + key})[2]
                    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

                self.assertEqual(cached("first-key-123"), 0)
                self.assertGreater(cached("first-key-123"), 50)
                self.assertEqual(cached("second-key-456"), 0)
        finally:
            os.unlink(file.name)

    def test_long_texts(self):
        with Server("--ctx", "512") as server:
            # More bytes than any 512 tokens have: refused unseen.
            for path, body in (("/v1/completions", {"prompt": "a " * 3_000_000}),
                               ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a " * 3_000_000}]}),
                               ("/v1/embeddings", {"input": ["a", "a " * 3_000_000]}),
                               ("/models/test/generate", {"inputs": "a " * 3_000_000})):
                code, _, answer = server.request(path, body)
                self.assertEqual((code, answer["error"]["code"]), (400, "context_length_exceeded"), path)
                self.assertIn("at least", answer["error"]["message"])
            # One that is tokenised all the same, because it says how to shorten it: nobody waits for that.
            words = " ".join(f"{i}th word" for i in range(500_000))
            want = server.request("/v1/completions", {"prompt": words[-3000:], "max_tokens": 3, "temperature": 0,
                                                      "truncate_prompt_tokens": 100})[2]
            answers, waits, begin = [], [], time.monotonic()

            def ask():
                answers.append(server.request("/v1/completions", {"prompt": words, "max_tokens": 3, "temperature": 0,
                                                                  "truncate_prompt_tokens": 100}, timeout=120))

            threads = [threading.Thread(target=ask) for _ in range(2)]
            for t in threads:
                t.start()
            while any(t.is_alive() for t in threads):
                at = time.monotonic()
                self.assertEqual(server.request("/health")[0], 200)
                waits.append(time.monotonic() - at)
                time.sleep(0.01)
            took = time.monotonic() - begin
            for code, _, answer in answers:
                self.assertEqual(code, 200, answer)
                self.assertEqual(answer["choices"][0]["text"], want["choices"][0]["text"])
                self.assertEqual(answer["usage"]["prompt_tokens"], 100)
            self.assertLess(max(waits), took / 2)

    def test_no_key_beyond_this_machine(self):
        done = subprocess.run([SLUICE, "serve", model(), "--host", "0.0.0.0", "--port", "0"], capture_output=True,
                              text=True, timeout=20 * PATIENCE)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--api-key-file", done.stderr)

    def test_drain(self):
        with Server("--ctx", "2048") as server:
            s = raw(server, post("/v1/completions", {**LONG, "max_tokens": 150, "stream": True}))
            self.assertTrue(server.until(lambda: server.metric("sluice_requests_running") > 0))
            server.process.send_signal(signal.SIGTERM)
            self.assertTrue(server.until(lambda: server.request("/ready")[0] == 503, 1))
            code, head, answer = server.request("/v1/completions", {"prompt": "x"})
            self.assertEqual((code, answer["error"]["code"]), (503, "shutting_down"))
            self.assertIn("Retry-After", head)
            s.settimeout(30 * PATIENCE)
            self.assertIn(b"data: [DONE]", read_all(s))
            s.close()
            self.assertEqual(server.process.wait(5 * PATIENCE), 0)

    def test_second_signal_stops_at_once(self):
        with Server("--ctx", "2048", "--grace", "60") as server:
            s = raw(server, post("/v1/completions", {**LONG, "stream": True, "n": 4}))
            self.assertTrue(server.until(lambda: server.metric("sluice_requests_running") > 0))
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            self.assertTrue(server.until(lambda: server.request("/ready")[0] == 503, 1))
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(5 * PATIENCE), 0)
            self.assertLess(time.monotonic() - begin, 5 * PATIENCE)  # not the 60 s of grace
            s.close()


if __name__ == "__main__":
    unittest.main()
