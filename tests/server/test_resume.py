"""Streams that are taken up again after a lost connection: byte-identical, every event exactly once."""

import http.client
import json
import os
import random
import re
import socket
import time
import unittest

from harness import PATIENCE, Server, model, stories

FULL = os.environ.get("SLUICE_TEST_FULL") == "1"


def body(**fields):
    return {"prompt": "Once upon a time", "max_tokens": 120, "temperature": 0.8, "seed": 5, "ignore_eos": True, "stream": True,
            "stream_options": {"resumable": True}, **fields}


class Reader:
    """Events of one connection, read as they come; close() cuts it in the middle."""

    def __init__(self, server, method, path, payload=None, headers=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30 * PATIENCE)
        headers = {"Content-Type": "application/json", **(headers or {})}
        if server.key:
            headers.setdefault("Authorization", "Bearer " + server.key)
        self.connection.request(method, path, json.dumps(payload) if payload else None, headers)
        self.answer = self.connection.getresponse()
        self.text = b""

    def event(self):
        """The next event, or None at the end; comments are no events."""
        while True:
            end = self.text.find(b"\n\n")
            if end >= 0:
                event, self.text = self.text[:end + 2], self.text[end + 2:]
                if event.startswith(b":"):
                    continue
                return event
            more = self.answer.read1(65536)
            if not more:
                return None
            self.text += more

    def events(self):
        return list(iter(self.event, None))

    def close(self):
        sock = self.connection.sock
        if sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST
        self.connection.close()


def event_id(event):
    return re.match(rb"id: (\S+)\n", event)[1].decode()


@unittest.skipUnless(stories(), "no test data")
class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--resume-seconds", "3", "--io-threads", "3", "--ping", "0.2", path=stories())

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def begin(self, **fields):
        reader = Reader(self.server, "POST", "/v1/completions", body(**fields))
        self.assertEqual(reader.answer.status, 200)
        return reader

    def take_up(self, last, headers=None):
        stream = last.rsplit(":", 1)[0]
        return Reader(self.server, "GET", "/v1/streams/" + stream, headers={"Last-Event-ID": last, **(headers or {})})

    def whole(self, **fields):
        """The text of the same request on a connection that holds."""
        answer = self.server.request("/v1/completions", {**body(**fields), "stream": False, "stream_options": None})[2]
        return [c["text"] for c in answer["choices"]]

    def texts(self, events, n=1):
        out = [""] * n
        for e in events:
            data = e.split(b"data: ", 1)[1].strip()
            if data != b"[DONE]":
                for c in json.loads(data)["choices"]:
                    out[c["index"]] += c["text"]
        return out

    def check(self, events, again, n=1, **fields):
        numbers = [int(event_id(e).rsplit(":", 1)[1]) for e in events]
        self.assertEqual(numbers, list(range(1, len(events) + 1)), "lost or doubled")
        self.assertEqual(b"".join(events), b"".join(again), "not the same bytes")
        self.assertEqual(events[-1].split(b"\n", 1)[1], b"data: [DONE]\n\n")
        self.assertEqual(self.texts(events, n), self.whole(n=n, **fields))

    def test_a_connection_lost_after_every_event(self):
        reader, events = self.begin(), []
        while (event := reader.event()) is not None:
            events.append(event)
            reader.close()
            reader = self.take_up(event_id(event))
            self.assertEqual(reader.answer.status, 200)
        again = Reader(self.server, "GET", "/v1/streams/" + event_id(events[0]).rsplit(":", 1)[0]).events()
        self.check(events, again)

    def test_lost_at_random(self):
        rng = random.Random(1)
        for round in range(200 if FULL else 20):
            fields = {"seed": round, "n": rng.randint(1, 3), "max_tokens": rng.randint(1, 60)}
            reader, events = self.begin(**fields), []
            while True:
                for _ in range(rng.randint(0, 20)):
                    event = reader.event()
                    if event is None:
                        break
                    events.append(event)
                else:
                    if not events:
                        continue
                    if rng.random() < 0.5:
                        reader.close()
                        time.sleep(rng.random() * 0.02)
                    old, reader = reader, self.take_up(event_id(events[-1]))  # perhaps beside the old one
                    old.close()
                    continue
                break
            again = Reader(self.server, "GET", "/v1/streams/" + event_id(events[0]).rsplit(":", 1)[0]).events()
            self.check(events, again, **fields)

    def test_the_same_post_again(self):
        reader = self.begin()
        events = [reader.event() for _ in range(5)]
        reader.close()
        again = Reader(self.server, "POST", "/v1/completions", body(seed=99), {"Last-Event-ID": event_id(events[-1])})
        events += again.events()
        self.assertEqual(self.texts(events), self.whole())

    def test_chat_shape_is_untouched_without_it(self):
        reader = Reader(self.server, "POST", "/v1/completions", {**body(), "stream_options": {"include_usage": True}})
        for event in reader.events():
            self.assertTrue(event.startswith(b"data: "), event)

    def test_what_cannot_be_resumed(self):
        for last, status in (("cmpl-none:3", 404), ("x", 400), ("a:b", 400)):
            reader = self.take_up(last) if ":" in last and status == 404 else Reader(
                self.server, "GET", "/v1/streams/a", headers={"Last-Event-ID": last})
            self.assertEqual(reader.answer.status, status, last)
        reader = self.begin(max_tokens=5)
        events = reader.events()
        stream = event_id(events[0]).rsplit(":", 1)[0]
        ahead = Reader(self.server, "GET", "/v1/streams/" + stream, headers={"Last-Event-ID": stream + ":999"})
        self.assertEqual(ahead.answer.status, 410)
        self.assertTrue(self.server.until(
            lambda: Reader(self.server, "GET", "/v1/streams/" + stream).answer.status == 404, 15), "kept for ever")

    def test_a_reader_that_is_far_behind(self):
        """Events are dropped before it read them: it is cut, the rest of the server goes on."""
        reader = self.begin(n=12, max_tokens=480, logprobs=20)
        first = reader.event()
        time.sleep(1.5)  # 12 x 480 events of some 2.5 KB each
        self.assertEqual(self.server.request("/health")[0], 200)
        got = [first]
        try:
            got += reader.events()
        except (OSError, http.client.HTTPException):
            pass  # cut
        numbers = [int(event_id(e).rsplit(":", 1)[1]) for e in got]
        self.assertEqual(numbers, list(range(1, len(got) + 1)), "a gap")
        self.assertIn(self.take_up(event_id(got[-1])).answer.status, (200, 410))
        self.assertEqual(self.server.request("/health")[0], 200)

    def test_a_long_stream_is_resumed_at_once(self):
        reader = self.begin(n=3, max_tokens=250, logprobs=5)
        events = reader.events()
        stream = event_id(events[0]).rsplit(":", 1)[0]
        again = Reader(self.server, "GET", "/v1/streams/" + stream).events()
        self.assertEqual(b"".join(events), b"".join(again))
        self.assertGreater(sum(map(len, events)), 200_000)

    def test_failures_before_the_first_event_are_not_kept(self):
        for _ in range(300):  # more than are kept at once
            status, _, answer = self.server.request("/v1/completions", body(timeout=1e-9))
            self.assertEqual(status, 504, answer)
        self.assertEqual(len(self.begin(max_tokens=3).events()) > 3, True)

    def test_deleted(self):
        reader = self.begin(max_tokens=400)
        stream = "/v1/streams/" + event_id(reader.event()).rsplit(":", 1)[0]
        self.assertEqual(self.server.request(stream, method="DELETE")[0], 200)
        self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") == 0, 5))
        for method in ("GET", "DELETE"):
            status, _, answer = self.server.request(stream, method=method)
            self.assertEqual((status, answer["error"]["code"]), (404, "stream_not_found"), method)
        status, head, _ = self.server.request(stream, b"{}", method="PUT")
        self.assertEqual((status, head["Allow"]), (405, "GET, DELETE"))

    def test_nobody_comes_back(self):
        reader = self.begin(max_tokens=480)
        reader.event()
        reader.close()
        self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") == 0, 15))


@unittest.skipUnless(stories(), "no test data")
class Others(unittest.TestCase):
    def test_off_and_other_keys(self):
        with Server("--resume-seconds", "0", path=stories()) as server:
            self.assertEqual(server.request("/v1/completions", body())[0], 400)
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"sluice-resume-{os.getpid()}")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("first-key\nsecond-key\n")
        try:
            with Server("--api-key-file", path, path=stories(), key="first-key") as server:
                reader = Reader(server, "POST", "/v1/completions", body())
                last = event_id(reader.event())
                stolen = Reader(server, "GET", "/v1/streams/" + last.rsplit(":", 1)[0],
                                headers={"Authorization": "Bearer second-key"})
                self.assertEqual(stolen.answer.status, 404)
                self.assertIsNotNone(reader.event())
                reader.close()
                plain = {"prompt": "Once", "max_tokens": 2}
                for headers, status in (({"X-Api-Key": "second-key"}, 200), ({"X-Api-Key": "no-such-key"}, 401), ({}, 401)):
                    server.key = None
                    self.assertEqual(server.request("/v1/completions", plain, headers)[0], status)
        finally:
            os.unlink(path)

    def test_one_key_has_its_share(self):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"sluice-resume-keys-{os.getpid()}")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("first-key\nsecond-key\n")
        text = json.dumps(body(max_tokens=400, logprobs=20)).encode()  # more than a client that reads nothing takes

        def begin(server, key):
            """The status of a stream that is not read any further."""
            s = socket.socket()
            self.addCleanup(s.close)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.settimeout(60 * PATIENCE)
            s.connect(("127.0.0.1", server.port))
            s.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
                       f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n").encode() + text)
            return int(s.recv(64).split()[1])

        try:
            with Server("--api-key-file", path, "--send-timeout", "300", path=stories(), key="first-key") as server:
                self.assertEqual({begin(server, "first-key") for _ in range(64)}, {200})
                self.assertEqual(begin(server, "first-key"), 429)
                self.assertEqual(begin(server, "second-key"), 200)
        finally:
            os.unlink(path)

    @unittest.skipUnless(model(), "the default model is not in the cache")
    def test_left_before_the_first_event(self):
        # Nobody knows its id, so nobody can come back for it.
        with Server("--ctx", "2048", "--resume-seconds", "600", "--budget", "16", "--max-seqs", "4") as server:
            text = json.dumps(body(prompt="Once upon a time " * 300, max_tokens=800)).encode()
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                               b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
                self.assertTrue(server.until(lambda: server.metric("sluice_requests_running") == 1, 60))
            self.assertTrue(server.until(lambda: server.metric("sluice_requests_running") == 0, 120))
            self.assertLess(server.metric("sluice_generation_tokens_total"), 400)


if __name__ == "__main__":
    unittest.main()
