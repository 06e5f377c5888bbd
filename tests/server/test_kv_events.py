"""KV events: what a subscriber makes of them is what the server has cached. Needs pyzmq and msgpack."""

import itertools
import random
import re
import subprocess
import tempfile
import unittest

from harness import SLUICE, Server, stories

try:
    import zmq
    from kv_subscriber import Gap, Subscriber
except ImportError:
    zmq = None

LOCAL = "tcp://127.0.0.1:*"
QUIET = 500  # milliseconds without a message: there is none on its way


def addresses(server):
    line = next(line for line in server.lines if "KV events on" in line)
    return re.search(r"KV events on (\S+?)(?:, replay on (\S+))?$", line.strip()).groups()


def refused(*args):
    done = subprocess.run([SLUICE, "serve", stories(), "--port", "0", *args], capture_output=True, text=True, timeout=60,
                          check=False)
    return done.returncode, done.stderr


class NoEvents(unittest.TestCase):
    def test_addresses_and_keys_are_checked(self):
        if not stories():
            self.skipTest("no test data")
        if refused("--kv-events", "tcp://127.0.0.1:99999")[1].find("no ZeroMQ") >= 0:
            self.skipTest("this build has no ZeroMQ")
        for args, word in ((["--kv-events", "tcp://0.0.0.0:5557"], "--kv-events-key"),
                           (["--kv-events", LOCAL, "--kv-events-replay", "tcp://*:5558"], "--kv-events-key"),
                           (["--kv-events", "127.0.0.1:5557"], "no address"),
                           (["--kv-events", LOCAL, "--kv-events-key", "/nowhere"], "cannot read"),
                           (["--kv-events", LOCAL, "--no-prefix-cache"], "prefix cache"),
                           (["--kv-events-replay", LOCAL], "--kv-events")):
            code, text = refused(*args)
            self.assertEqual(code, 2, text)
            self.assertIn(word, text)


@unittest.skipUnless(zmq and stories(), "no pyzmq and msgpack, or no test data")
class KvEvents(unittest.TestCase):
    def serve(self, *args):
        try:
            server = Server("--ctx", "256", "--kv-events", LOCAL, *args, path=stories())
        except RuntimeError as error:
            if "no ZeroMQ" in str(error):
                self.skipTest("this build has no ZeroMQ")
            raise
        self.addCleanup(server.__exit__)
        return server

    def follow(self, server, **options):
        publish, replay = addresses(server)
        subscriber = Subscriber(publish, replay, **options)
        self.addCleanup(subscriber.close)
        return subscriber

    def complete(self, server, prompt, **body):
        status, _, answer = server.request("/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0, **body})
        self.assertEqual(status, 200, answer)
        return answer["usage"]

    def catch_up(self, subscriber):
        """A subscriber that came late asks for what it missed."""
        for _ in range(20):
            subscriber.fill(0, 10_000)
            subscriber.read(QUIET)
            if subscriber.cleared:
                return
        self.fail("nothing was published")

    def load(self, server, num, seed=1):
        draw = random.Random(seed)
        begins = [[draw.randrange(3, 500) for _ in range(draw.randrange(20, 120))] for _ in range(12)]
        for _ in range(num):
            self.complete(server, draw.choice(begins) + [draw.randrange(3, 500) for _ in range(draw.randrange(1, 40))])
        return begins

    def check_equal(self, server, subscriber, begins):
        """The model of the cache finds the same prefixes as the server does, and has as many blocks."""
        size = server.request("/server_info")[2]["page_size"]
        for begin in begins:
            prompt = begin + [3]
            known = subscriber.prefix(prompt[:-1], size)
            self.assertEqual(self.complete(server, prompt, max_tokens=1)["prompt_tokens_details"]["cached_tokens"], known)
            subscriber.read(QUIET)
        blocks = subscriber.count("GPU")
        self.assertGreater(blocks, 0)
        self.assertEqual(server.request("/flush_cache", method="POST")[2]["num_blocks"], blocks)
        subscriber.read(QUIET)
        self.assertEqual(subscriber.blocks, {})

    def test_a_subscriber_knows_what_is_cached(self):
        server = self.serve("--kv-events-replay", LOCAL, "--kv-blocks", "40")
        subscriber = self.follow(server)
        self.catch_up(subscriber)
        self.assertEqual(subscriber.cleared, 1, "a run begins with all that is known being void")
        begins = self.load(server, 60)
        subscriber.read(QUIET)
        self.assertLessEqual(subscriber.count("GPU"), 40)
        self.assertGreater(subscriber.events, 100, "blocks were evicted")
        self.check_equal(server, subscriber, begins[:6])
        self.assertEqual(subscriber.cleared, 1, "no snapshot was needed")
        self.assertEqual(server.metric("sluice_kv_events_dropped_total"), 0)
        self.assertGreater(server.metric("sluice_kv_events_total"), 100)

    def test_evicted_blocks_are_in_host_memory(self):
        server = self.serve("--kv-events-replay", LOCAL, "--kv-blocks", "24", "--prefix-host", "4M")
        subscriber = self.follow(server)
        begins = self.load(server, 40)
        self.catch_up(subscriber)
        self.assertGreater(subscriber.count("CPU"), 0)
        self.check_equal(server, subscriber, begins[:4])

    def test_a_gap_is_filled(self):
        server = self.serve("--kv-events-replay", LOCAL)
        subscriber = self.follow(server)
        self.catch_up(subscriber)
        self.load(server, 3)
        self.assertIsNotNone(subscriber.skip(10_000))
        with self.assertRaises(Gap) as gap:
            for seed in range(2, 20):
                self.load(server, 1, seed)
                subscriber.read(QUIET)
        self.assertGreater(subscriber.fill(gap.exception.first, 10_000), 1)
        while subscriber.skip(QUIET) is not None:  # these came by the other way
            pass
        whole = self.follow(server)
        self.catch_up(whole)
        self.assertEqual(subscriber.blocks, whole.blocks)
        self.assertEqual(subscriber.fill(subscriber.last + 1, 10_000), 0, "nothing was missed")

    def test_what_cannot_be_filled_becomes_a_snapshot(self):
        server = self.serve("--kv-events-replay", LOCAL, "--kv-events-buffer", "3")
        early, late = self.follow(server), self.follow(server)
        self.catch_up(early)
        begins = self.load(server, 12)
        early.read(QUIET)
        while late.skip(QUIET) is not None:  # it slept
            pass
        self.assertEqual(late.fill(0, 10_000), 0, "that is too long ago")
        self.assertEqual(late.read(QUIET), 1)
        self.assertEqual((late.cleared, late.blocks), (1, early.blocks))
        self.assertEqual(server.metric("sluice_kv_event_snapshots_total"), 2, "at the start, and for this")
        early.read(QUIET)
        self.assertEqual((early.cleared, early.blocks), (2, late.blocks), "all subscribers get it")
        self.check_equal(server, late, begins[:2])

    def test_a_restart_has_another_epoch(self):
        epochs = set()
        for _ in range(2):
            server = self.serve("--kv-events-replay", LOCAL)
            subscriber = self.follow(server)
            self.complete(server, "Once upon a time there was a little girl named Lily.")
            self.catch_up(subscriber)
            self.assertGreater(subscriber.count("GPU"), 0)
            epochs.add(subscriber.epoch)
        self.assertEqual(len(epochs), 2, epochs)

    def test_topics(self):
        server = self.serve("--kv-events-replay", LOCAL, "--kv-events-topic", "kv@here")
        wanted, other = self.follow(server, topic=b"kv@"), self.follow(server, topic=b"elsewhere")
        seeds = itertools.count()  # what is cached already makes no event
        self.assertTrue(server.until(lambda: self.load(server, 1, next(seeds)) and wanted.skip(200) is not None))
        self.assertIsNone(other.skip(QUIET))

    def test_only_those_with_a_key_may_read(self):
        if not zmq.has("curve"):
            self.skipTest("pyzmq has no CURVE")
        (public, secret), mine, stranger = (zmq.curve_keypair() for _ in range(3))
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write(f"# ours\nsecret {secret.decode()}\nclient {mine[0].decode()}\n")
            keys.flush()
            server = self.serve("--kv-events-replay", LOCAL, "--kv-events-key", keys.name)
        friend = self.follow(server, keys=(public, *mine))
        self.load(server, 4)
        friend.fill(0, 10_000)
        self.assertGreater(friend.count("GPU"), 0)
        for wrong in ((public, *stranger), None):
            out = self.follow(server, keys=wrong)
            with self.assertRaises(TimeoutError):
                out.fill(0, 1000)
            self.load(server, 2, 9)
            self.assertIsNone(out.skip(QUIET))


if __name__ == "__main__":
    unittest.main()
