"""One client's requests against everybody else's: what a request may ask for, and who waits for whom."""

import asyncio
import json
import os
import resource
import threading
import time
import unittest

from harness import SANITIZED, Server, model, stories



def completion(**fields):
    return {"prompt": "Once", "max_tokens": 2, "temperature": 0, **fields}


@unittest.skipUnless(stories(), "no test data")
class Admission(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "512", "--max-seqs", "8", "--max-answer", "2M", path=stories())

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def post(self, **fields):
        return self.server.request("/v1/completions", completion(**fields), timeout=120)

    def test_sequences_of_one_request(self):
        status, _, answer = self.post(prompt=["a"] * 256, n=16, max_tokens=40, logprobs=20, ignore_eos=True)
        self.assertEqual(status, 400)
        self.assertEqual(answer["error"]["code"], "too_many_sequences")
        self.assertIn("4096 sequences", answer["error"]["message"])

    def test_bytes_of_one_answer(self):
        for fields in ({"logprobs": 20, "n": 16}, {"prompt": ["a"] * 200, "logprobs": 5}, {"prompt": ["a " * 200] * 50, "echo": True, "logprobs": 5}):
            status, _, answer = self.post(max_tokens=400, ignore_eos=True, **{"prompt": "a", **fields})
            self.assertEqual((status, answer["error"]["code"]), (400, "answer_too_large"), fields)
        # Streamed, nothing of it is kept.
        status, _, text = self.post(prompt=["a"] * 20, logprobs=5, max_tokens=400, stream=True)
        self.assertEqual(status, 200)
        self.assertTrue(text.endswith("data: [DONE]\n\n"))

    def test_many_prompts_are_all_answered_in_order(self):
        prompts = [f"Lily had {i} toys" for i in range(100)]
        status, _, answer = self.post(prompt=prompts, n=2, max_tokens=4)
        self.assertEqual(status, 200)
        self.assertEqual([c["index"] for c in answer["choices"]], list(range(200)))
        for i in (0, 7, 99):  # each as if it had come alone
            alone = self.post(prompt=prompts[i], max_tokens=4)[2]["choices"][0]["text"]
            self.assertEqual(answer["choices"][2 * i]["text"], alone)
        self.assertEqual(answer["usage"]["completion_tokens"], 800)

    def test_a_batch_leaves_room_for_others(self):
        """Two tokens for a neighbour while one request has 120 sequences to run in 8 slots."""
        done = threading.Event()

        def batch():
            self.server.request("/v1/completions", completion(prompt=["a"] * 120, max_tokens=40 if SANITIZED else 100,
                                                                ignore_eos=True), timeout=120)
            done.set()

        thread = threading.Thread(target=batch)
        thread.start()
        self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") >= 6))
        for _ in range(5):
            self.assertEqual(self.post()[0], 200)
        self.assertFalse(done.is_set(), "the neighbour was served after the batch")
        thread.join()

    def test_a_batch_is_cancelled_whole(self):
        import socket
        import json
        body = json.dumps(completion(prompt=["a"] * 200, max_tokens=300, ignore_eos=True)).encode()
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") > 0))
        self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") == 0))
        time.sleep(0.3)
        self.assertEqual(self.server.metric("sluice_requests_running"), 0, "the rest was submitted all the same")


@unittest.skipUnless(stories(), "no test data")
class Flood(unittest.TestCase):
    """Default limits: what comes from this machine is bounded by its tokens alone."""

    NUM = 150 if SANITIZED else 1500

    def flood(self, server, path, body, num=NUM):
        """The status of each of `num` requests, every one on a connection of its own, all at once."""
        text = json.dumps(body).encode()
        head = (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
                f"Content-Length: {len(text)}\r\n\r\n").encode()

        async def one(opened):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            opened.append(writer)
            if len(opened) == num:
                for w in opened:
                    w.write(head + text)
            answer = await reader.read()
            writer.close()
            return int(answer.split(b" ", 2)[1])

        async def run():
            opened = []
            return await asyncio.gather(*(one(opened) for _ in range(num)))

        return asyncio.run(run())

    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 2 * self.NUM:
            self.skipTest(f"only {hard} descriptors")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * self.NUM), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def test_all_are_answered(self):
        with Server("--allow-request-template", path=stories()) as server:
            self.assertEqual(set(self.flood(server, "/v1/completions", completion())), {200})
            chat = {"messages": [{"role": "user", "content": "Once"}], "chat_template": "{{ messages[0].content }}",
                    "max_tokens": 2, "temperature": 0}
            self.assertEqual(set(self.flood(server, "/v1/chat/completions", chat, self.NUM // 5)), {200})
            generate = {"inputs": "Once", "parameters": {"max_new_tokens": 2, "do_sample": "False"}, "stream": "False"}
            self.assertEqual(set(self.flood(server, "/models/test/generate", generate, self.NUM // 5)), {200})
            self.assertEqual(server.metric("sluice_refusals_total"), 0)

    def test_tokens_are_bounded(self):
        with Server("--max-queue-tokens", "64", "--max-seqs", "1", path=stories()) as server:
            statuses = self.flood(server, "/v1/completions", completion(prompt="Once upon a time",
                                                                        max_tokens=20 if SANITIZED else 100))
            self.assertEqual(set(statuses), {200, 429})


@unittest.skipUnless(stories(), "no test data")
class Keys(unittest.TestCase):
    def test_limits_per_key(self):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"sluice-keys-{os.getpid()}")
        with open(path, "w") as f:
            f.write("key-of-one\nkey-of-two\n")
        os.chmod(path, 0o600)
        try:
            with Server("--ctx", "512", "--max-seqs", "1", "--api-key-file", path, "--max-queue-tokens-per-key", "40", "--max-queue-per-key", "12",
                        key="key-of-one", path=stories()) as server:
                def slow(n):
                    server.request("/v1/completions", completion(max_tokens=100 if SANITIZED else 200, ignore_eos=True,
                                                                prompt="b " * 30, n=n), timeout=60)
                threads = [threading.Thread(target=slow, args=(n,)) for n in (10, 1)]
                for t in threads:
                    t.start()
                    # A prompt counts until its first token.
                    self.assertTrue(server.until(lambda: server.metric("sluice_generation_tokens_total") >= 1))
                self.assertTrue(server.until(lambda: server.request("/load")[2]["server_load"] >= 2))
                status, headers, answer = server.request("/v1/completions", completion(prompt="b " * 30))
                self.assertEqual((status, answer["error"]["code"]), (429, "queue_full"))
                self.assertIn("of this key", answer["error"]["message"])
                self.assertIn("Retry-After", headers)
                self.assertEqual(server.request("/v1/completions", completion(n=8))[0], 429)
                status = server.request("/v1/completions", completion(), headers={"Authorization": "Bearer key-of-two"}, timeout=60)[0]
                self.assertEqual(status, 200)
                for t in threads:
                    t.join()
        finally:
            os.unlink(path)


@unittest.skipUnless(model(), "no default model")
@unittest.skipIf(SANITIZED, "a step takes seconds with a sanitizer")
class ShortPrompts(unittest.TestCase):
    def test_short_prompts_do_not_wait_for_a_long_one(self):
        """Beside a decode, a long prompt takes many steps; a short one comes in between."""
        long_text = "The quick brown fox jumps over the lazy dog. " * 60
        with Server("--ctx", "4096", "--chunk", "16") as server:
            def post(text, tokens):
                return server.request("/v1/completions", {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}, timeout=300)
            decode = threading.Thread(target=post, args=("Hello", 150))
            decode.start()
            self.assertTrue(server.until(lambda: server.metric("sluice_requests_running") == 1))
            ended = threading.Event()
            prefill = threading.Thread(target=lambda: (post(long_text, 1), ended.set()))
            prefill.start()
            self.assertTrue(server.until(lambda: server.metric("sluice_requests_running") == 2))
            for _ in range(3):
                self.assertEqual(post("Say hello", 2)[0], 200)
            self.assertFalse(ended.is_set(), "the short prompts waited for the long one")
            prefill.join()
            decode.join()


if __name__ == "__main__":
    unittest.main()
