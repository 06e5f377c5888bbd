"""Cached prefixes that one worker fetches from another: the answers of one server, whatever becomes of the holder.

    SLUICE=build/release/sluice python3 tests/server/test_prefix_fetch.py
"""

import concurrent.futures
import json
import random
import signal
import socket
import tempfile
import threading
import unittest

from harness import PATIENCE, Server, stories
from test_pd import BLOCK, CASES, TEMPLATE, plain, port_of, prompt, start
from test_route import Fake, Router, echo, wait_for
from test_route_pd import HELD, answer

PATH = "/v1/completions"
LONG = "word " * 4000  # 5,000 tokens, as a router counts


def params(server, share=1.0, port=None):
    return {"do_remote_prefix": True, "remote_host": "127.0.0.1", "remote_port": port or port_of(server),
            "remote_prefix_share": share}


def key_file():
    file = tempfile.NamedTemporaryFile(suffix=".key")
    file.write(b"a key that both of them have\n")
    file.flush()
    return file


class Lying:
    """A port that passes bytes on to another one, and changes some of those that come back."""

    def __init__(self, port, draw, every=2000):
        self.port, self.draw, self.every, self.changed = port, draw, every, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.own = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                client.close()
                continue
            both = [threading.Thread(target=self.copy, args=args, daemon=True)
                    for args in ((client, server, False), (server, client, True))]
            for t in both:
                t.start()
            threading.Thread(target=self.close, args=(both, client, server), daemon=True).start()

    @staticmethod
    def close(threads, *sockets):
        for t in threads:
            t.join(60 * PATIENCE)
        for s in sockets:
            s.close()

    def copy(self, source, sink, lies):
        at, lie = 0, 72 + self.draw.randrange(self.every)  # after the hello
        try:
            while data := source.recv(65536):
                if lies and at <= lie < at + len(data):
                    data = bytearray(data)
                    data[lie - at] ^= 1 << self.draw.randrange(8)
                    self.changed += 1
                at += len(data)
                sink.sendall(data)
        except OSError:
            pass
        for side in (source, sink):
            try:
                side.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@unittest.skipUnless(stories(), "no test data")
class Fetched(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.key = key_file()
        keyed = ("--kv-key", cls.key.name, "--kv-lease", "5", "-t", "1")
        cls.one = Server("--allow-request-template", "-t", "1", path=stories())
        cls.holder = start("both", *keyed)
        cls.other = start("both", *keyed)

    @classmethod
    def tearDownClass(cls):
        for server in (cls.one, cls.holder, cls.other):
            server.__exit__()
        cls.key.close()

    def freed(self):
        for server in (self.holder, self.other):
            for name in HELD:
                self.assertTrue(server.until(lambda: server.metric(name) == 0), f"{name} {server.metric(name)}")

    def fetch(self, body, path=PATH, **changed):
        """The other worker's answer with the holder's prefix, which is that of one server; and how much was cached."""
        status, head, got = self.other.request(path, dict(body, kv_transfer_params={**params(self.holder), **changed}))
        self.assertEqual(status, 200, got)
        self.assertIn("x-kv-fetched", head)
        self.assertEqual(plain(got), plain(self.one.request(path, body)[2]))
        return 0 if isinstance(got, str) else got["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_answers_are_those_of_one_server(self):
        received = self.other.metric("sluice_kv_transfer_received_bytes_total")
        for k, case in enumerate(CASES):
            with self.subTest(case=case):
                text = prompt(k) + " "
                salt = {f: case[f] for f in ("cache_salt",) if f in case}
                self.holder.request(PATH, {"prompt": text + prompt(k + 50, 9), "max_tokens": 1, **salt})
                self.fetch({"prompt": text + prompt(k + 100, 9), "max_tokens": 24, **case})
                got = self.other.metric("sluice_kv_transfer_received_bytes_total")
                self.assertGreater(got, received)
                received = got
        self.freed()
        self.assertGreaterEqual(self.holder.metric("sluice_kv_transfer_prefixes_total"), len(CASES))

    def test_chats_too(self):
        for k, case in enumerate(({"temperature": 0}, {"seed": 4, "stream": True})):
            body = {"messages": [{"role": "user", "content": prompt(200 + k)}], "chat_template": TEMPLATE, "max_tokens": 20}
            self.holder.request("/v1/chat/completions", body)
            self.fetch({**body, **case}, "/v1/chat/completions")

    def test_what_is_cached_there_is_not_computed(self):
        body = {"prompt": prompt(300), "max_tokens": 4, "temperature": 0}
        tokens = self.holder.request(PATH, body)[2]["usage"]["prompt_tokens"]
        self.assertEqual(self.fetch(body), (tokens - 1) // BLOCK * BLOCK)
        # A part of it, as much as the router says, and a block more since it estimates.
        body["prompt"] = prompt(301)
        tokens = self.holder.request(PATH, body)[2]["usage"]["prompt_tokens"]
        cached = self.fetch(body, remote_prefix_share=0.5)
        self.assertEqual(cached, (tokens // BLOCK // 2 + 1) * BLOCK)
        # A longer prompt: what the holder has of it.
        body["prompt"] = prompt(302)
        tokens = self.holder.request(PATH, body)[2]["usage"]["prompt_tokens"]
        cached = self.fetch({**body, "prompt": body["prompt"] + " and then " + prompt(303)})
        self.assertLessEqual(abs(cached - tokens), BLOCK)

    def test_tenants_share_nothing(self):
        body = {"prompt": prompt(400), "max_tokens": 4, "temperature": 0}
        self.holder.request(PATH, {**body, "cache_salt": "a"})
        self.assertEqual(self.fetch({**body, "cache_salt": "b"}), 0)
        self.assertEqual(self.fetch(body), 0)
        self.freed()

    def test_what_the_holder_has_evicted_is_computed(self):
        body = {"prompt": prompt(500), "max_tokens": 8, "temperature": 0}
        self.holder.request(PATH, body)
        self.assertEqual(self.holder.request("/flush_cache", b"")[0], 200)
        self.assertEqual(self.fetch(body), 0)
        self.freed()

    def test_nobody_is_there(self):
        body = {"prompt": prompt(600), "max_tokens": 8, "temperature": 0}
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.assertEqual(self.fetch(body, remote_port=silent.getsockname()[1]), 0)
        self.assertEqual(self.fetch({**body, "prompt": prompt(601)}, remote_port=1), 0)
        self.assertEqual(self.fetch({**body, "prompt": prompt(602)}, remote_host="nowhere"), 0)
        self.freed()

    # Frames have MACs: whatever is changed on the way is refused, and the prompt computed.
    def test_a_holder_that_lies(self):
        draw = random.Random(9)
        with Lying(port_of(self.holder), draw) as lying:
            for k in range(24):
                body = {"prompt": prompt(700 + k), "max_tokens": 8, "temperature": 0}
                self.holder.request(PATH, body)
                self.fetch(body, remote_port=lying.own)
        self.assertGreater(lying.changed, 12)
        self.freed()

    def test_many_at_once(self):
        bodies = [{"prompt": prompt(800 + k % 6, 40) + " " + prompt(900 + k, 20), "max_tokens": 12, "seed": k} for k in range(48)]
        for k in range(6):
            self.holder.request(PATH, {"prompt": prompt(800 + k, 40), "max_tokens": 1})
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            list(pool.map(self.fetch, bodies))
        self.freed()

    def test_requests_that_do_not_fit(self):
        good = params(self.holder)
        for server, wrong, says in ((self.one, good, "--role"), (self.other, dict(good, do_remote_decode=True), "together"),
                                    (self.other, dict(good, remote_prefix_share=1.5), "remote_prefix_share"),
                                    (self.other, dict(good, remote_port=0), "remote_port")):
            status, _, got = server.request(PATH, {"prompt": "a", "kv_transfer_params": wrong})
            self.assertEqual((status, got["error"]["param"]), (400, "kv_transfer_params"))
            self.assertIn(says, got["error"]["message"])
        with start("prefill") as prefill:
            status, _, got = prefill.request(PATH, {"prompt": "a", "kv_transfer_params": good})
            self.assertEqual(status, 400)
            self.assertIn("do_remote_prefix", got["error"]["message"])

    # Without a key a server neither lends its cache nor asks others for theirs.
    def test_no_key_no_prefixes(self):
        ready = self.holder.request("/ready")[2]
        self.assertEqual((ready["kv_host"], ready["kv_port"]), ("127.0.0.1", port_of(self.holder)))
        with start("both", "-t", "1") as bare:
            ready = bare.request("/ready")[2]
            self.assertGreater(ready.pop("kv_tokens"), 0)
            self.assertEqual(ready, {"status": "ready", "kv_role": "both", "kv_lease_host": "127.0.0.1",
                                     "kv_lease_port": port_of(bare)})
            status, _, got = bare.request(PATH, {"prompt": "a", "kv_transfer_params": params(self.holder)})
            self.assertEqual((status, got["error"]["param"]), (400, "kv_transfer_params"))
            self.assertIn("--kv-key", got["error"]["message"])
            body = {"prompt": prompt(650), "max_tokens": 4, "temperature": 0}
            bare.request(PATH, body)
            self.assertEqual(self.fetch(body, remote_port=port_of(bare)), 0)
            self.assertEqual(bare.metric("sluice_kv_transfer_prefixes_total"), 0)


@unittest.skipUnless(stories(), "no test data")
class HolderFails(unittest.TestCase):
    """The holder is killed or stopped in the middle of many fetches."""

    def run_with(self, fault):
        with key_file() as key, Server("-t", "1", path=stories()) as one, \
                start("both", "-t", "1", "--kv-lease", "5", "--kv-key", key.name) as holder, \
                start("both", "-t", "1", "--kv-key", key.name) as other:
            bodies = [{"prompt": prompt(1000 + k, 80), "max_tokens": 8, "temperature": 0} for k in range(24)]
            for body in bodies:
                holder.request(PATH, body)
            there = params(holder)

            def ask(k):
                if k == 6:
                    fault(holder)
                return other.request(PATH, dict(bodies[k], kv_transfer_params=there))

            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(ask, range(len(bodies))))
            for body, (status, _, got) in zip(bodies, answers):
                self.assertEqual(status, 200, got)
                self.assertEqual(plain(got), plain(one.request(PATH, body)[2]))
            self.assertGreater(other.metric("sluice_kv_transfer_received_bytes_total"), 0)
            for name in HELD:
                self.assertTrue(other.until(lambda: other.metric(name) == 0), name)
            if holder.process.poll() is None:
                holder.process.send_signal(signal.SIGCONT)
                for name in HELD:
                    self.assertTrue(holder.until(lambda: holder.metric(name) == 0), name)

    def test_killed(self):
        self.run_with(lambda server: (server.process.kill(), server.process.wait()))

    def test_stopped(self):
        self.run_with(lambda server: server.process.send_signal(signal.SIGSTOP))


class Routed(unittest.TestCase):
    """Who is told to fetch what, by workers that do as they are told. Steps are small, so that a holder is not busy."""

    ARGS = ["--budget", "256"]

    def both(self, act, port):
        fake = Fake(act, "both")
        fake.hello = json.dumps({"kv_role": "both", "kv_host": "127.0.0.1", "kv_port": port}).encode()
        return fake

    def ask_many(self, router, num):
        """As many at once, of one prefix that a worker has: they wait there until `hold` is set."""
        threads = [threading.Thread(target=router.call, args=(PATH, {"prompt": f"{LONG}{k}"})) for k in range(num)]
        for t in threads:
            t.start()
        return threads

    def run_fakes(self, args, num=24):
        """What the second worker was told with each request, of those that came at once and of as many later."""
        hold = threading.Event()
        hold.set()

        def act(handler, body):
            hold.wait(30 * PATIENCE)
            echo(handler, body)
        with self.both(act, 7001) as a, self.both(act, 7002) as b, Router(a.url, b.url, args=args) as router:
            router.wait_up(2)
            router.call(PATH, {"prompt": LONG})
            first, second = (a, b) if a.seen else (b, a)
            told = []
            for turn in (1, 2):
                hold.clear()
                before = len(second.seen)
                threads = self.ask_many(router, num)
                self.assertTrue(wait_for(lambda: len(a.seen) + len(b.seen) == turn * num + 1))
                bodies = [json.loads(body) for _, _, body in second.seen[before:]]
                told.append([x.get("kv_transfer_params") for x in bodies])
                hold.set()
                for t in threads:
                    t.join(30 * PATIENCE)
            return told, router.metric("sluice_route_fetches_total"), 7001 if first is a else 7002, router

    def test_a_hot_prefix_is_fetched_once(self):
        (told, later), fetches, port, router = self.run_fakes(self.ARGS)
        # Those that come while it is fetched stay with the holder.
        self.assertEqual({**told[0], "remote_prefix_share": 1}, {
            "do_remote_prefix": True, "remote_host": "127.0.0.1", "remote_port": port, "remote_prefix_share": 1})
        self.assertGreater(told[0]["remote_prefix_share"], 0.95)
        # From then on the second worker has it.
        self.assertGreater(len(later), 1)
        self.assertEqual((told[1:] + later, fetches), ([None] * (len(told) + len(later) - 1), 1))
        self.assertIn(" fetch=", "".join(router.lines))

    def test_not_where_it_is_off(self):
        told, fetches, _, _ = self.run_fakes([*self.ARGS, "--no-prefix-fetch"])
        self.assertEqual((fetches, [t for list_ in told for t in list_ if t]), (0, []))

    def test_a_worker_about_to_stop_lends(self):
        with self.both(echo, 7001) as a, self.both(echo, 7002) as b, Router(a.url, b.url, args=self.ARGS) as router:
            router.wait_up(2)
            router.call(PATH, {"prompt": LONG})
            holder, other = (a, b) if a.seen else (b, a)
            holder.ready = 503
            router.wait_up(1)
            other.act = lambda h, body: h.whole(200, b'{"choices":[]}', x_kv_fetched="0.9800 0.900000")
            before = router.metric("sluice_route_transfer_seconds")
            status, headers, _ = router.call(PATH, {"prompt": LONG + "more"})
            self.assertEqual((status, "x-kv-fetched" in headers), (200, False))
            self.assertIn(b"do_remote_prefix", other.seen[0][2])
            # 180 us a token: learned from an answer that is no stream.
            self.assertGreater(router.metric("sluice_route_transfer_seconds"), before)

    def test_a_worker_that_fetches_nothing_any_more_does_all(self):
        def takes_none(handler, body):
            (answer(400) if b"do_remote_prefix" in body else echo)(handler, body)
        with self.both(echo, 7001) as a, self.both(echo, 7002) as b, Router(a.url, b.url, args=self.ARGS) as router:
            router.wait_up(2)
            router.call(PATH, {"prompt": LONG})
            holder, other = (a, b) if a.seen else (b, a)
            holder.ready, other.act = 503, takes_none
            router.wait_up(1)
            status, _, text = router.call(PATH, {"prompt": LONG})
            self.assertEqual((status, json.loads(text)), (200, {"echo": {"prompt": LONG}}))
            self.assertEqual((len(other.seen), router.metric("sluice_route_fallbacks_total")), (2, 0))

    @unittest.skipUnless(stories(), "no test data")
    def test_real_workers(self):
        with key_file() as key, start("both", "-t", "1", "--kv-key", key.name) as a, \
                start("both", "-t", "1", "--kv-key", key.name) as b, Server("-t", "1", path=stories()) as one, \
                Router(a.url, b.url, args=["--budget", "4"]) as router:  # computing looks slow
            router.wait_up(2)
            received = 0
            for k in range(20):  # until one is told to fetch what the other has
                shared = prompt(1100 + k, 150)
                bodies = [{"prompt": f"{shared} {prompt(1200 + n, 10)}", "max_tokens": 120, "ignore_eos": True, "seed": n}
                          for n in range(4)]
                router.call(PATH, {"prompt": shared, "max_tokens": 1})
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    answers = list(pool.map(lambda body: json.loads(router.call(PATH, body)[2]), bodies))
                for body, got in zip(bodies, answers):
                    self.assertEqual(plain(got), plain(one.request(PATH, body)[2]))
                received = sum(w.metric("sluice_kv_transfer_received_bytes_total") for w in (a, b))
                if received > 0:
                    break
            self.assertGreater(received, 0)
            self.assertGreater(router.metric("sluice_route_fetches_total"), 0)
            for w in (a, b):  # both have it now
                cached = w.request(PATH, bodies[0])[2]["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertGreater(cached, 100)


if __name__ == "__main__":
    unittest.main()
