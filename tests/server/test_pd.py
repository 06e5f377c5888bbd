"""Prefill and decode on different servers, in vLLM's protocol: the same answers as from one server, whatever happens to
the other one. The router is a function here; vllm-router's own is in clients/test_routers.py."""

import concurrent.futures
import functools
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from harness import PATIENCE, SLUICE, Server, stories

BLOCK = 16
ASKED = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
         "remote_host": None, "remote_port": None}
WORDS = "once upon a time there was a little girl who had a red ball and a small dog in the big green park".split()


def prompt(seed, words=60):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


def start(role, *args, path=None):
    room = () if "--prefix-host" in args else ("--prefix-host", "16M")
    return Server("--role", role, "--allow-request-template", *room, *args, path=path or stories())


@functools.cache
def has_ucx():
    """Whether this build and this machine have it."""
    done = subprocess.run([SLUICE, "serve", stories(), "--port", "0", "--role", "decode", "--kv-transport", "ucx", "--kv-key",
                           "/nowhere"], capture_output=True, text=True, timeout=60 * PATIENCE)
    return "UCX" not in done.stderr


def prefill(server, path, body):
    """kv_transfer_params for the decode, or None when the prefill is gone."""
    first = {k: v for k, v in body.items() if k not in ("stream", "stream_options", "min_tokens")}
    first.update(max_tokens=1, kv_transfer_params=ASKED)
    try:
        status, _, answer = server.request(path, first)
    except OSError:
        return None
    return answer["kv_transfer_params"] if status == 200 else None


def through(first, second, path, body):
    """As a router does it."""
    params = prefill(first, path, body)
    status, _, answer = second.request(path, dict(body, kv_transfer_params=params))
    return status, answer


def plain(answer):
    """What must not depend on where the prompt was computed."""
    if isinstance(answer, str):  # a stream
        return re.sub(r'"(id|created)":("[^"]*"|\d+),', "", answer)
    kept = {k: v for k, v in answer.items() if k not in ("id", "created", "kv_transfer_params")}
    kept["usage"] = {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}
    return kept


def port_of(server):
    line = next(line for line in server.lines if "KV blocks for others" in line)
    return int(re.search(r"port (\d+)", line)[1])


TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
CASES = [
    {"temperature": 0},
    {"seed": 7, "temperature": 1, "n": 3},
    {"seed": 8, "temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    {"temperature": 0, "stop": ["the", "and"]},
    {"seed": 9, "logprobs": 5},
    {"seed": 10, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {"temperature": 0, "structured_outputs": {"regex": "[a-z ]{12}[.]"}},
    {"temperature": 0, "logit_bias": {"30": 5}, "min_tokens": 10},
    {"seed": 11, "stream": True, "stream_options": {"include_usage": False}},
    {"temperature": 0, "echo": True, "logprobs": 2},
    {"temperature": 0, "use_beam_search": True, "n": 2},
    {"temperature": 0, "bad_words": ["the"]},
    {"temperature": 0, "return_token_ids": True, "cache_salt": "of one user"},
]


@unittest.skipUnless(stories(), "no test data")
class PrefillDecode(unittest.TestCase):
    TRANSPORT = ()
    CLOSES = True  # connections that say something else

    @classmethod
    def setUpClass(cls):
        cls.key = tempfile.NamedTemporaryFile(suffix=".key")
        cls.key.write(b"a key that both of them have\n")
        cls.key.flush()
        keyed = ("--kv-key", cls.key.name, *cls.TRANSPORT)
        cls.one = Server("--allow-request-template", path=stories())
        cls.prefill = start("prefill", "--kv-lease", "15", *keyed)
        cls.decode = start("decode", *keyed)

    @classmethod
    def tearDownClass(cls):
        for server in (cls.one, cls.prefill, cls.decode):
            server.__exit__()
        cls.key.close()

    def fetches(self, result, server=None):
        text = (server or self.decode).request("/metrics")[2]
        found = re.search(rf'^sluice_kv_transfer_fetches_total{{result="{result}"}} (\S+)$', text, re.M)
        return float(found[1])

    def freed(self, server):
        """Nothing is held for others, in the end."""
        self.assertTrue(server.until(lambda: server.metric("sluice_kv_transfer_leases") == 0))
        self.assertTrue(server.until(lambda: server.metric("sluice_kv_transfer_places") == 0))

    def same(self, path, body, first=None, second=None):
        status, answer = through(first or self.prefill, second or self.decode, path, body)
        self.assertEqual(status, 200, answer)
        status, _, alone = self.one.request(path, body)
        self.assertEqual(status, 200, alone)
        self.assertEqual(plain(answer), plain(alone))
        return answer

    def test_completions_are_those_of_one_server(self):
        before = self.fetches("whole")
        for k, case in enumerate(CASES):
            with self.subTest(case=case):
                self.same("/v1/completions", {"prompt": prompt(k), "max_tokens": 24, **case})
        self.assertEqual(self.fetches("whole"), before + len(CASES))
        self.freed(self.prefill)
        self.freed(self.decode)

    def test_chats_are_those_of_one_server(self):
        body = {"messages": [{"role": "user", "content": prompt(100)}], "chat_template": TEMPLATE, "max_tokens": 20}
        for case in ({"temperature": 0}, {"seed": 3, "n": 2, "logprobs": True, "top_logprobs": 3},
                     {"seed": 4, "stream": True}):
            self.same("/v1/chat/completions", {**body, **case})

    def test_the_prompt_is_not_computed_again(self):
        body = {"prompt": prompt(200), "max_tokens": 4, "temperature": 0}
        received = self.decode.metric("sluice_kv_transfer_received_bytes_total")
        answer = self.same("/v1/completions", body)
        tokens = answer["usage"]["prompt_tokens"]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(cached, (tokens - 1) // BLOCK * BLOCK)
        self.assertGreater(cached, 2 * BLOCK)
        got = self.decode.metric("sluice_kv_transfer_received_bytes_total") - received
        self.assertGreater(got, 0)
        # What the decode has is not sent again.
        answer = self.same("/v1/completions", dict(body, prompt=body["prompt"] + " " + prompt(201)))
        more = self.decode.metric("sluice_kv_transfer_received_bytes_total") - received - got
        tokens = answer["usage"]["prompt_tokens"]
        blocks = (tokens - 1) // BLOCK - cached // BLOCK
        self.assertLessEqual(abs(more / (got / (cached // BLOCK)) - blocks), 1)

    def test_the_story_tells(self):
        answer = self.same("/v1/completions", {"prompt": prompt(300), "max_tokens": 4, "temperature": 0})
        _, _, story = self.decode.request(f"/v1/requests/{answer['id']}/story")
        self.assertEqual(story["fetched_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.assertIn("Another server computed its prompt", " ".join(story["sentences"]))

    def test_memory_is_shared_where_asked_for(self):
        """The socket beside the port, by which they find each other, is there."""
        names = pathlib.Path("/proc/net/unix").read_text(encoding="ascii")
        found = re.search(rf"@sluice-kv-1 127.0.0.1 {port_of(self.prefill)}$", names, re.M)
        self.assertEqual(found is not None, "shm" in self.TRANSPORT)

    def test_many_at_once(self):
        bodies = [{"prompt": prompt(400 + k % 9, 20 + 7 * (k % 9)), "max_tokens": 12, "seed": k} for k in range(48)]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda b: through(self.prefill, self.decode, "/v1/completions", b), bodies))
        for body, (status, answer) in zip(bodies, answers):
            self.assertEqual(status, 200)
            self.assertEqual(plain(answer), plain(self.one.request("/v1/completions", body)[2]))
        self.freed(self.prefill)
        self.freed(self.decode)

    def test_a_lease_ends_with_its_time(self):
        expired = self.prefill.metric("sluice_kv_transfer_expired_total")
        body = {"prompt": prompt(500), "max_tokens": 4, "temperature": 0}
        params = prefill(self.prefill, "/v1/completions", body)
        self.assertTrue(self.prefill.until(lambda: self.prefill.metric("sluice_kv_transfer_places") > 0))
        self.freed(self.prefill)
        self.assertGreater(self.prefill.metric("sluice_kv_transfer_expired_total"), expired)
        failed = self.fetches("failed")
        _, _, answer = self.decode.request("/v1/completions", dict(body, kv_transfer_params=params))
        self.assertEqual(plain(answer), plain(self.one.request("/v1/completions", body)[2]))
        self.assertEqual(self.fetches("failed"), failed + 1)
        self.freed(self.decode)

    def test_another_key_and_another_format_are_refused(self):
        with tempfile.NamedTemporaryFile() as other:
            other.write(b"a key that nobody else has")
            other.flush()
            on_gpu = any("cuda" in line for line in self.prefill.lines)
            for args in (("--kv-key", other.name), (), ("--kv-key", self.key.name, "--kv", "f8" if on_gpu else "f32")):
                with start("decode", *args, *self.TRANSPORT) as decode:
                    refused = self.prefill.metric("sluice_kv_transfer_refused_total")
                    body = {"prompt": prompt(600), "max_tokens": 8, "temperature": 0}
                    params = prefill(self.prefill, "/v1/completions", body)
                    status, _, answer = decode.request("/v1/completions", dict(body, kv_transfer_params=params))
                    self.assertEqual(status, 200)
                    self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
                    self.assertEqual(self.fetches("failed", decode), 1)
                    self.assertEqual(decode.metric("sluice_kv_transfer_received_bytes_total"), 0)
                    self.assertTrue(self.prefill.until(
                        lambda: self.prefill.metric("sluice_kv_transfer_refused_total") > refused))
                    self.freed(decode)

    def both_at_once(self, path, first, second):
        """As our router and SGLang's do it: the decode server knows the request before its prompt is computed."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            later = pool.submit(self.prefill.request, path, first)
            status, _, answer = self.decode.request(path, second)
            self.assertEqual(later.result()[0], 200, later.result()[2])
        self.assertEqual(status, 200, answer)
        return answer

    def test_blocks_that_are_awaited(self):
        before, failed = self.fetches("whole"), self.fetches("failed")
        for k, case in enumerate(CASES):
            body = {"prompt": prompt(1100 + k), "max_tokens": 24, **case}
            lease = f"{k:032x}"
            first = {x: v for x, v in body.items() if x not in ("stream", "stream_options", "min_tokens")}
            first.update(max_tokens=1, kv_transfer_params=dict(ASKED, lease=lease))
            params = {"do_remote_prefill": True, "remote_pending": True, "remote_host": "127.0.0.1",
                      "remote_port": port_of(self.prefill), "remote_request_id": lease}
            with self.subTest(case=case):
                answer = self.both_at_once("/v1/completions", first, dict(body, kv_transfer_params=params))
                self.assertEqual(plain(answer), plain(self.one.request("/v1/completions", body)[2]))
        self.assertEqual((self.fetches("whole"), self.fetches("failed")), (before + len(CASES), failed))
        self.freed(self.prefill)
        self.freed(self.decode)

    def test_rooms(self):
        before = self.fetches("whole")
        cases = [c for c in CASES if "use_beam_search" not in c]
        for k, case in enumerate(cases):
            body = {"prompt": prompt(1200 + k), "max_tokens": 24, **case}
            sent = dict(body, bootstrap_host="127.0.0.1", bootstrap_port=port_of(self.prefill), bootstrap_room=2**62 + k)
            with self.subTest(case=case):
                answer = self.both_at_once("/v1/completions", sent, sent)
                self.assertEqual(plain(answer), plain(self.one.request("/v1/completions", body)[2]))
        self.assertEqual(self.fetches("whole"), before + len(cases))
        self.freed(self.prefill)
        self.freed(self.decode)

    def test_rooms_that_do_not_fit(self):
        room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 7, "bootstrap_room": 9}
        for server, says, fields in ((self.one, "--role", room), (self.decode, "whole number", dict(room, bootstrap_room=-1)),
                                     (self.decode, "whole number", dict(room, bootstrap_room=[1, 2])),
                                     (self.decode, "bootstrap_host", {"bootstrap_room": 9}),
                                     (self.prefill, "one prompt", dict(room, prompt=["a", "b"])),
                                     (self.decode, "together", dict(room, kv_transfer_params=ASKED))):
            status, _, answer = server.request("/v1/completions", {"prompt": "a", **fields})
            self.assertEqual(status, 400, answer)
            self.assertIn(says, answer["error"]["message"])
        # Nobody is there: computed here.
        status, _, answer = self.decode.request("/v1/completions", {"prompt": prompt(1300), "max_tokens": 4, **room})
        self.assertEqual(status, 200, answer)

    def test_garbage_on_the_port(self):
        draw = random.Random(1)
        hello = b"SLKV" + bytes([4, 0, 1, 0]) + bytes(64)
        for k in range(40):
            with socket.create_connection(("127.0.0.1", port_of(self.prefill)), timeout=30 * PATIENCE) as s:
                begin = b"" if k % 2 else hello
                try:
                    s.sendall(begin + draw.randbytes(draw.choice((1, 8, 72, 300, 70000))))
                    s.shutdown(socket.SHUT_WR)
                    while self.CLOSES and s.recv(65536):
                        pass
                except OSError:
                    pass
        self.same("/v1/completions", {"prompt": prompt(700), "max_tokens": 8, "temperature": 0})

    def test_requests_that_do_not_fit(self):
        body = {"prompt": prompt(800), "max_tokens": 1}

        def refused(server, says, **fields):
            status, _, answer = server.request("/v1/completions", {**body, **fields})
            self.assertEqual(status, 400, answer)
            self.assertIn(says, answer["error"]["message"])
            self.assertEqual(answer["error"]["param"], "kv_transfer_params")

        refused(self.one, "--role", kv_transfer_params=ASKED)
        refused(self.decode, "role is decode", kv_transfer_params=ASKED)
        good = prefill(self.prefill, "/v1/completions", body)
        refused(self.prefill, "role is prefill", kv_transfer_params=good)
        refused(self.prefill, "stream", kv_transfer_params=ASKED, stream=True)
        refused(self.prefill, "one prompt", kv_transfer_params=ASKED, prompt=["a", "b"])
        refused(self.prefill, "object", kv_transfer_params=7)
        refused(self.decode, "remote_port", kv_transfer_params=dict(good, remote_port=70000))
        refused(self.decode, "hex digits", kv_transfer_params=dict(good, remote_request_id="x"))
        refused(self.decode, "together", kv_transfer_params=dict(good, do_remote_decode=True))
        # No lease, and an address where nobody is: computed here.
        for params in ({}, {"do_remote_prefill": True}, dict(good, remote_host="nowhere"), dict(good, remote_port=1)):
            status, _, answer = self.decode.request("/v1/completions", dict(body, kv_transfer_params=params))
            self.assertEqual(status, 200, answer)


@unittest.skipUnless(stories() and has_ucx(), "no test data, or no UCX")
class PrefillDecodeByUcx(PrefillDecode):
    TRANSPORT = ("--kv-transport", "ucx")
    CLOSES = False  # UCX keeps them
    # Nothing of these is the transport's.
    test_a_lease_ends_with_its_time = test_chats_are_those_of_one_server = None
    test_requests_that_do_not_fit = test_rooms_that_do_not_fit = None


@unittest.skipUnless(stories(), "no test data")
class PrefillDecodeByShm(PrefillDecode):
    TRANSPORT = ("--kv-transport", "shm")
    test_a_lease_ends_with_its_time = test_chats_are_those_of_one_server = test_garbage_on_the_port = None
    test_requests_that_do_not_fit = test_rooms_that_do_not_fit = test_another_key_and_another_format_are_refused = None
    test_the_story_tells = test_rooms = None

    def test_a_server_without_it_fetches_by_tcp(self):
        with start("decode", "--kv-key", self.key.name) as decode:
            body = {"prompt": prompt(1400), "max_tokens": 8, "temperature": 0}
            self.same("/v1/completions", body, second=decode)
            self.assertEqual(self.fetches("whole", decode), 1)


@unittest.skipUnless(stories(), "no test data")
class PrefillDecodeBySteps(PrefillDecode):
    TRANSPORT = ("--kv-leave", "steps")
    test_a_lease_ends_with_its_time = test_chats_are_those_of_one_server = test_garbage_on_the_port = None
    test_requests_that_do_not_fit = test_rooms_that_do_not_fit = test_another_key_and_another_format_are_refused = None


@unittest.skipUnless(stories(), "no test data")
class Failures(unittest.TestCase):
    """The prefill dies, or stops, in the middle of many requests."""

    TRANSPORT = ()

    def run_with(self, fault):
        with Server(path=stories()) as one, \
                start("prefill", "--kv-lease", "10", *self.TRANSPORT) as first, start("decode", *self.TRANSPORT) as second:
            bodies = [{"prompt": prompt(900 + k, 80), "max_tokens": 8, "temperature": 0} for k in range(24)]
            params = [prefill(first, "/v1/completions", b) for b in bodies]
            self.assertNotIn(None, params)

            def decode(k):
                if k == 6:
                    fault(first)
                return second.request("/v1/completions", dict(bodies[k], kv_transfer_params=params[k]))

            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(decode, range(len(bodies))))
            for body, (status, _, answer) in zip(bodies, answers):
                self.assertEqual(status, 200, answer)
                self.assertEqual(plain(answer), plain(one.request("/v1/completions", body)[2]))
            self.assertGreater(second.metric("sluice_kv_transfer_fetches_total"), 0)
            self.assertTrue(second.until(lambda: second.metric("sluice_kv_transfer_places") == 0))
            if first.process.poll() is None:
                first.process.send_signal(signal.SIGCONT)
                self.assertTrue(first.until(lambda: first.metric("sluice_kv_transfer_leases") == 0))
                self.assertTrue(first.until(lambda: first.metric("sluice_kv_transfer_places") == 0))
                status, answer = through(first, second, "/v1/completions", bodies[0])
                self.assertEqual(status, 200)

    def test_killed(self):
        def kill(server):
            server.process.kill()
            server.process.wait()

        self.run_with(kill)

    def test_stopped(self):
        self.run_with(lambda server: server.process.send_signal(signal.SIGSTOP))

    def run_awaited(self, fault):
        """The prefill goes while the decode server awaits its blocks."""
        with Server(path=stories()) as one, \
                start("prefill", "--kv-lease", "10", *self.TRANSPORT) as first, start("decode", *self.TRANSPORT) as second:
            body = {"prompt": prompt(970, 80), "max_tokens": 8, "temperature": 0}
            params = {"do_remote_prefill": True, "remote_pending": True, "remote_host": "127.0.0.1",
                      "remote_port": port_of(first), "remote_request_id": "ab" * 16}
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                later = pool.submit(second.request, "/v1/completions", dict(body, kv_transfer_params=params))
                time.sleep(0.3)  # it has connected by now; if not, it finds nobody
                fault(first)
                status, _, answer = later.result()
            self.assertEqual(status, 200, answer)
            self.assertEqual(plain(answer), plain(one.request("/v1/completions", body)[2]))
            self.assertEqual(second.metric("sluice_kv_transfer_places"), 0)
            first.process.send_signal(signal.SIGCONT)

    def test_awaited_and_killed(self):
        self.run_awaited(lambda server: server.process.kill())

    def test_awaited_and_stopped(self):
        self.run_awaited(lambda server: server.process.send_signal(signal.SIGSTOP))

    # Places are few, so that most blocks are not offered: the rest is computed.
    def test_little_room(self):
        with Server(path=stories()) as one, start("both", "--prefix-host", "64K") as both:
            for k in range(6):
                body = {"prompt": prompt(950 + k, 80), "max_tokens": 8, "temperature": 0}
                status, answer = through(both, both, "/v1/completions", body)
                self.assertEqual(status, 200)
                self.assertEqual(plain(answer), plain(one.request("/v1/completions", body)[2]))
            self.assertTrue(both.until(lambda: both.metric("sluice_kv_transfer_places") == 0))

    def test_options(self):
        def fails(says, *args):
            done = subprocess.run([SLUICE, "serve", stories(), "--port", "0", *args], capture_output=True, text=True,
                                  timeout=60 * PATIENCE)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)

        fails("--kv-key", "--role", "prefill", "--kv-host", "192.0.2.1")
        fails("--kv-host", "--role", "prefill", "--kv-host", "0.0.0.0")
        fails("--role", "--kv-port", "7000")
        fails("--kv-transport", "--role", "both", "--kv-transport", "pigeon")
        fails("--kv-leave", "--role", "both", "--kv-leave", "never")
        fails("--role", "--kv-leave", "layers")
        if not has_ucx():
            fails("UCX", "--role", "both", "--kv-transport", "ucx")
        fails("prefix cache", "--role", "both", "--no-prefix-cache")
        fails("--record", "--role", "both", "--record", "somewhere")
        with tempfile.NamedTemporaryFile() as key:
            key.write(b"short")
            key.flush()
            fails("16", "--role", "decode", "--kv-key", key.name)
        fails("cannot read", "--role", "decode", "--kv-key", os.path.join(tempfile.gettempdir(), "no such key"))


@unittest.skipUnless(stories(), "no test data")
class FailuresByShm(Failures):
    TRANSPORT = ("--kv-transport", "shm")
    test_little_room = test_options = test_awaited_and_killed = test_awaited_and_stopped = None


@unittest.skipUnless(stories() and has_ucx(), "no test data, or no UCX")
class FailuresByUcx(Failures):
    TRANSPORT = ("--kv-transport", "ucx")
    test_little_room = test_options = None


if __name__ == "__main__":
    unittest.main()
