"""Answers that nobody reads are bounded and cut, and their KV blocks freed; long answers come in pieces."""

import http.client
import json
import socket
import time
import unittest

from harness import PATIENCE, Server, stories

STALLED = 200


def post(path, body):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def memory(process):
    """Resident bytes."""
    with open(f"/proc/{process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


@unittest.skipUnless(stories(), "the test data is not there")
class Unread(unittest.TestCase):
    def idle(self, server):
        return server.metric("sluice_requests_running") == 0 and server.metric("sluice_kv_cache_usage_ratio") == 0

    def test_stalled_streams(self):
        """Scoreboard row 19."""
        with Server("--ctx", "512", "--send-timeout", "2", "--max-queue", "1000", "--max-connections-per-ip", "1000",
                    path=stories()) as server:
            body = {"prompt": "Once upon a time", "max_tokens": 500, "ignore_eos": True, "stream": True, "logprobs": 20}
            before, stalled = memory(server.process), []
            for _ in range(STALLED):
                s = socket.socket()
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                s.connect(("127.0.0.1", server.port))
                s.sendall(post("/v1/completions", body))
                stalled.append(s)
            most, end = 0, time.monotonic() + 120
            while server.metric("sluice_slow_readers_total") < STALLED and time.monotonic() < end:
                most = max(most, server.metric("sluice_unread_bytes"))
                time.sleep(0.05)
            self.assertEqual(server.metric("sluice_slow_readers_total"), STALLED)
            self.assertLessEqual(most, STALLED * (256 << 10))
            self.assertTrue(server.until(lambda: self.idle(server), 10))
            self.assertEqual(server.metric("sluice_unread_bytes"), 0)
            self.assertLess(memory(server.process) - before, STALLED * (512 << 10))
            for s in stalled:
                s.close()

    def test_long_answers(self):
        with Server("--ctx", "256", "--send-timeout", "2", path=stories()) as server:
            words = "word " * 400_000
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60 * PATIENCE)
            for path, body, check in (
                ("/tokenize", {"prompt": words, "return_token_strs": True},
                 lambda a: len(a["token_strs"]) == len(a["tokens"]) == a["count"] > 1_000_000),
                ("/v1/completions", {"prompt": ["a"] * 20, "n": 8, "max_tokens": 60, "logprobs": 20, "ignore_eos": True},
                 lambda a: sum(len(c["logprobs"]["top_logprobs"]) for c in a["choices"]) == 20 * 8 * 60),
                ("/v1/embeddings", {"input": ["a"] * 1000}, lambda a: len(a["data"]) == 1000),
                ("/tokenize", {"prompt": "word"}, lambda a: a["count"] > 0),
            ):
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                self.assertEqual(answer.getheader("Transfer-Encoding") == "chunked", len(text) > 100_000)
                self.assertTrue(check(json.loads(text)), (path, text[:200]))
            connection.close()
            # Nobody reads these.
            stalled = []
            for _ in range(10):
                s = socket.socket()
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                s.connect(("127.0.0.1", server.port))
                s.sendall(post("/tokenize", {"prompt": words, "return_token_strs": True}))
                stalled.append(s)
            self.assertTrue(server.until(lambda: server.metric("sluice_slow_readers_total") == 10, 60))
            self.assertEqual(server.metric("sluice_unread_bytes"), 0)
            for s in stalled:
                s.close()


if __name__ == "__main__":
    unittest.main()
