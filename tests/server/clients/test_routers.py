"""Routers of other people in front of two servers: sglang-router, vllm-router and LiteLLM's proxy.

Requests are counted at the servers: every one must arrive at exactly one of them. SLUICE_TEST_FULL=1 sends more.
"""

import collections
import concurrent.futures
import importlib.util
import json
import os
import pathlib
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from gguf_copy import copy_with
from harness import PATIENCE, Server, stories

FULL = os.environ.get("SLUICE_TEST_FULL") == "1"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
HELLO = [{"role": "user", "content": "Tell me of a little girl named Lily."}]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Router:
    """A router's process; `url` answers."""

    def __init__(self, command, port, folder, key=None):
        self.url = f"http://127.0.0.1:{port}"
        self.head = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
        self.path = pathlib.Path(folder) / f"router-{port}.log"
        with open(self.path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        end = time.monotonic() + 60 * PATIENCE
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"{command[:3]} did not start: {self.log()}")
            time.sleep(0.1)

    def log(self):
        return self.path.read_text(encoding="utf-8", errors="replace")[-4000:]

    def answers(self):
        try:
            return self.post("/v1/completions", {"model": "test", "prompt": "a", "max_tokens": 1})[0] == 200
        except OSError:
            return False

    def post(self, path, body):
        """(status, text)"""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), self.head)
        try:
            with urllib.request.urlopen(request, timeout=30 * PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


def random_words(draw, num):
    words = ["cat", "dog", "sun", "tree", "ball", "bird", "park", "cake", "boat", "moon", "fish", "frog", "hill"]
    return " ".join(draw.choice(words) for _ in range(num))


def shared_prompts(families, each):
    """Prompts with long beginnings that `each` of them share, in an order that no router can profit from by chance."""
    draw = random.Random(7)
    begins = [random_words(draw, 60) for _ in range(families)]
    prompts = [f"{begin}. {i}" for begin in begins for i in range(each)]
    draw.shuffle(prompts)
    return prompts


class Routed:
    """What every router is held to. `start(policy)` starts it."""

    @classmethod
    def setUpClass(cls):
        if not stories():
            raise unittest.SkipTest("no test data")
        if importlib.util.find_spec(cls.package) is None:
            raise unittest.SkipTest(f"{cls.package} is not installed: no wheel for this machine, or no network")
        cls.folder = tempfile.TemporaryDirectory()
        model = pathlib.Path(cls.folder.name) / "model.gguf"
        copy_with(stories(), model, template=TEMPLATE)
        cls.servers = [Server("--ctx", "512", "--no-log-requests", path=str(model)) for _ in range(2)]
        cls.router = cls.start()

    @classmethod
    def tearDownClass(cls):
        cls.router.stop()
        for server in cls.servers:
            server.__exit__()
        cls.folder.cleanup()

    def counts(self, name="sluice_requests_finished_total"):
        return [s.metric(name) for s in self.servers]

    def answered(self, before, num):
        """The servers' counters are there as soon as the answer is, or a moment later."""
        return self.servers[0].until(lambda: sum(self.counts()) - sum(before) == num)

    def test_chat_and_stream(self):
        body = {"model": "test", "messages": HELLO, "max_tokens": 24, "temperature": 0}
        direct = self.servers[0].request("/v1/chat/completions", body)[2]["choices"][0]["message"]["content"]
        before = self.counts()
        status, text = self.router.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["choices"][0]["message"]["content"], direct)
        status, text = self.router.post("/v1/chat/completions", {**body, "stream": True})
        self.assertEqual(status, 200, text)
        data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        self.assertEqual(data.pop(), "[DONE]")
        chunks = [json.loads(d) for d in data]
        deltas = [c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]]
        self.assertGreater(len(deltas), 5, "it came in pieces")
        self.assertEqual("".join(deltas), direct)
        self.assertTrue(self.answered(before, 2))

    def test_load(self):
        num = 400 if FULL else 60
        before = self.counts()

        def ask(i):
            status, text = self.router.post("/v1/completions", {
                "model": "test", "prompt": random_words(random.Random(i), 8), "max_tokens": 1 + i % 8, "temperature": 0, "ignore_eos": True,
                "stream": i % 3 == 0})
            return status, text.count("data: ") > 1 if i % 3 == 0 else json.loads(text)["usage"]["completion_tokens"] == 1 + i % 8
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = collections.Counter(pool.map(ask, range(num)))
        self.assertEqual(answers, {(200, True): num}, self.router.log())
        self.assertTrue(self.answered(before, num), "each request is at one server, once")
        self.assertTrue(all(now > was for now, was in zip(self.counts(), before)), "both servers work")


class CacheAware(Routed):
    def hit_rate(self, router):
        prompts = shared_prompts(7, 16 if FULL else 6)
        before = [sum(self.counts(f"sluice_prefix_cache_{name}_total")) for name in ("hits", "queries")]
        requests = self.counts()
        for server in self.servers:
            self.assertEqual(server.request("/flush_cache", method="POST")[0], 200)
        for prompt in prompts:
            status, text = router.post("/v1/completions", {"model": "test", "prompt": prompt, "max_tokens": 1})
            self.assertEqual(status, 200, text)
        self.assertTrue(self.answered(requests, len(prompts)))
        hits, queries = (sum(self.counts(f"sluice_prefix_cache_{name}_total")) - was
                         for name, was in zip(("hits", "queries"), before))
        return hits / queries

    def test_prefixes_are_found_where_they_were(self):
        aware = self.hit_rate(self.router)
        plain = self.start("round_robin")
        try:
            blind = self.hit_rate(plain)
        finally:
            plain.stop()
        print(f"{self.package}: {aware:.3f} of the prompt tokens were cached, {blind:.3f} with round robin", file=sys.stderr)
        # Seven beginnings are computed once each, by whichever server has them; blindly, nearly once by each server.
        self.assertGreater(aware, blind + 0.05)

    def test_a_flush_reaches_both(self):
        for server in self.servers:
            server.request("/v1/completions", {"prompt": "One day a boy went to the park to play ball. " * 4, "max_tokens": 1})
        status, text = self.router.post("/flush_cache", {})
        self.assertEqual(status, 200, text)
        for server in self.servers:
            status, _, answer = server.request("/flush_cache", method="POST")
            self.assertEqual((status, answer["num_blocks"]), (200, 0))


class SglangRouter(CacheAware, unittest.TestCase):
    package = "sglang_router"

    @classmethod
    def start(cls, policy="cache_aware"):
        port = free_port()
        return Router([sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
                       "--prometheus-port", str(free_port()), "--policy", policy, "--disable-retries",
                       "--worker-urls", *(s.url for s in cls.servers)], port, cls.folder.name)

    def test_it_reads_the_load(self):
        with urllib.request.urlopen(self.router.url + "/get_loads", timeout=10 * PATIENCE) as answer:
            loads = json.load(answer)["workers"]
        self.assertEqual(len(loads), 2)
        self.assertTrue(all(w["load"] >= 0 for w in loads), f"-1 is an answer that it cannot read: {loads}")


class VllmRouter(CacheAware, unittest.TestCase):
    package = "vllm_router"

    @classmethod
    def start(cls, policy="cache_aware"):
        port = free_port()
        return Router([sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
                       "--prometheus-port", str(free_port()), "--policy", policy, "--disable-retries",
                       "--worker-urls", *(s.url for s in cls.servers)], port, cls.folder.name)


class VllmPrefillDecode(unittest.TestCase):
    """vllm-router in front of a server that computes prompts and one that goes on with them."""

    @classmethod
    def setUpClass(cls):
        if not stories():
            raise unittest.SkipTest("no test data")
        if importlib.util.find_spec("vllm_router") is None:
            raise unittest.SkipTest("vllm_router is not installed: no wheel for this machine, or no network")
        cls.folder = tempfile.TemporaryDirectory()
        model = pathlib.Path(cls.folder.name) / "model.gguf"
        copy_with(stories(), model, template=TEMPLATE)
        cls.prefill, cls.decode = (Server("--role", role, "--prefix-host", "16M", "--no-log-requests", path=str(model))
                                   for role in ("prefill", "decode"))
        port = free_port()
        cls.router = Router([sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
                             "--prometheus-port", str(free_port()), "--policy", "round_robin", "--disable-retries",
                             "--vllm-pd-disaggregation", "--prefill", cls.prefill.url, "--decode", cls.decode.url],
                            port, cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.router.stop()
        cls.prefill.__exit__()
        cls.decode.__exit__()
        cls.folder.cleanup()

    def test_prompts_are_handed_over(self):
        bytes_before = self.decode.metric("sluice_kv_transfer_received_bytes_total")
        for seed, stream in ((1, False), (2, True), (3, False)):
            body = {"model": "test", "prompt": random_words(random.Random(seed), 60), "max_tokens": 12, "temperature": 0}
            status, text = self.router.post("/v1/completions", {**body, "stream": stream})
            self.assertEqual(status, 200, text)
            if stream:
                data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                text = "".join(c["choices"][0]["text"] for c in data if c["choices"])
            else:
                text = json.loads(text)["choices"][0]["text"]
            alone = self.prefill.request("/v1/completions", body)[2]["choices"][0]["text"]
            self.assertEqual(text, alone)
        self.assertGreater(self.decode.metric("sluice_kv_transfer_received_bytes_total"), bytes_before)
        status, text = self.router.post("/v1/chat/completions", {"model": "test", "messages": HELLO, "max_tokens": 8})
        self.assertEqual(status, 200, text)
        self.assertTrue(self.prefill.until(lambda: self.prefill.metric("sluice_kv_transfer_leases") == 0))


@unittest.skipUnless(FULL, "SLUICE_TEST_FULL=1 runs it")
class LiteLlmProxy(Routed, unittest.TestCase):
    package = "litellm"

    @classmethod
    def start(cls):
        models = [{"model_name": "test", "litellm_params": {"model": "hosted_vllm/test", "api_base": s.url + "/v1",
                                                            "api_key": "none"}} for s in cls.servers]
        config = pathlib.Path(cls.folder.name) / "litellm.yaml"
        key = "sk-" + secrets.token_hex(24)  # it does not start without one
        config.write_text(json.dumps({"model_list": models, "router_settings": {"num_retries": 0},
                                      "general_settings": {"master_key": key}}), encoding="utf-8")
        port = free_port()
        return Router([sys.executable, "-m", "litellm.proxy.proxy_cli", "--config", str(config), "--host", "127.0.0.1",
                       "--port", str(port)], port, cls.folder.name, key)


if __name__ == "__main__":
    unittest.main()
