"""sluice batch: a file of requests through real servers, and through servers that fail in known ways.

    SLUICE=build/release/sluice python3 tests/server/test_batch.py
"""

import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from harness import PATIENCE, SLUICE, Server


def request(i, **body):
    return {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
            "body": {"model": "test", "prompt": f"number {i}", "max_tokens": 4, "temperature": 0, **body}}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Fake(http.server.ThreadingHTTPServer):
    """Answers each request with the next of `answers` for its prompt; 200 once there are none."""

    daemon_threads = True

    def __init__(self, answers=(), delay=0.0, port=0):
        self.answers, self.delay, self.seen, self.lock = list(answers), delay, [], threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with self.server.lock:
                    self.server.seen.append(self.path)
                    answer = self.server.answers.pop(0) if self.server.answers else 200
                time.sleep(self.server.delay)
                if answer == "cut":
                    self.close_connection = True
                    return
                text = json.dumps({"echo": body["prompt"], "model": body["model"]}).encode()
                self.send_response(answer)
                self.send_header("Content-Length", str(len(text)))
                if answer in (429, 503):
                    self.send_header("Retry-After", "0.1")
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args):
                pass

        super().__init__(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *args):
        self.shutdown()
        super().__exit__(*args)


class Batch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.file, self.out = self.dir / "in.jsonl", self.dir / "in.results.jsonl"

    def write(self, requests):
        self.file.write_text("".join(json.dumps(r) + "\n" for r in requests))

    def start(self, *args):
        return subprocess.Popen([SLUICE, "batch", str(self.file), *args], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def batch(self, *args, code=0):
        run = self.start(*args, "--json")
        out, err = run.communicate(timeout=120 * PATIENCE)
        self.assertEqual(run.returncode, code, err)
        return json.loads(out) if out else None, err

    def results(self, num):
        """By custom_id; every request has exactly one."""
        lines = [json.loads(line) for line in self.out.read_text().splitlines()]
        self.assertEqual(sorted(r["custom_id"] for r in lines), sorted(f"r{i}" for i in range(num)))
        return {r["custom_id"]: r for r in lines}

    def test_two_real_servers(self):
        self.write([request(i) for i in range(99)] + [request(99, max_tokens=-1)])
        with Server() as one, Server() as two:
            counts, _ = self.batch("--url", one.url, "--url", two.url + "/v1", "--concurrency", "2")
            self.assertEqual((counts["done"], counts["refused"], counts["failed"]), (100, 1, 0))
            results = self.results(100)
            self.assertEqual(results["r99"]["response"]["status_code"], 400)
            self.assertIn("error", results["r99"]["response"]["body"])
            for i in range(99):
                response = results[f"r{i}"]["response"]
                self.assertEqual(response["status_code"], 200)
                self.assertTrue(response["request_id"])
                self.assertEqual(response["body"]["usage"]["completion_tokens"], 4)
            for server in one, two:  # both had a part
                self.assertGreater(server.metric("sluice_prompt_tokens_total"), 0)
            # Nothing is left to do.
            again, err = self.batch("--url", one.url)
            self.assertEqual(again["done"], 100)
            self.assertIn("100 of 100 are done already", err)

    def test_full_and_failing_servers_are_asked_again(self):
        self.write([request(i) for i in range(12)])
        with Fake([429, 503, 500, "cut", 502]) as fake:
            counts, _ = self.batch("--url", fake.url + "/x/v1", "--model", "other", "--concurrency", "3")
        self.assertEqual((counts["done"], counts["refused"], counts["failed"]), (12, 0, 0))
        self.assertEqual(set(fake.seen), {"/x/v1/completions"})
        for i, r in ((i, self.results(12)[f"r{i}"]) for i in range(12)):
            self.assertEqual(r["response"]["body"], {"echo": f"number {i}", "model": "other"})

    def test_no_answer_after_all_tries_then_again(self):
        self.write([request(0)])
        with Fake(["cut", "cut"]) as fake:
            counts, err = self.batch("--url", fake.url, "--tries", "2", code=1)
            self.assertEqual((counts["failed"], counts["refused"]), (1, 0))
            self.assertIn("sends the 1 again", err)
            self.assertIn("closed", self.results(1)["r0"]["error"]["message"])
            counts, _ = self.batch("--url", fake.url)
        self.assertEqual(counts["failed"], 0)
        self.assertEqual(self.results(1)["r0"]["response"]["status_code"], 200)

    def test_statuses_that_end_the_run(self):
        self.write([request(i) for i in range(5)])
        for status in 401, 302:
            with Fake([status]) as fake:
                counts, err = self.batch("--url", fake.url, "--concurrency", "1", code=1)
            self.assertEqual(counts["done"], 0)
            self.assertIn(f"answers {status}: check --url", err)
        with Fake([500] * 3) as fake:  # of one request; those behind it go on
            counts, _ = self.batch("--url", fake.url, "--concurrency", "1", "--tries", "1", code=1)
            self.assertEqual((counts["done"], counts["failed"]), (5, 3))
            counts, _ = self.batch("--url", fake.url)
        self.assertEqual((counts["done"], counts["failed"]), (5, 0))
        self.results(5)

    def test_a_lost_server_leaves_its_work_to_the_other(self):
        self.write([request(i) for i in range(300)])
        with Server() as lost, Server() as kept:
            run = self.start("--url", lost.url, "--url", kept.url, "--concurrency", "2")
            while not self.out.exists() or self.out.read_text().count("\n") < 10:
                self.assertIsNone(run.poll(), "it ended early")
                time.sleep(0.02)
            lost.process.kill()
            out, err = run.communicate(timeout=120 * PATIENCE)
            self.assertEqual(run.returncode, 0, err)
        for r in self.results(300).values():
            self.assertEqual(r["response"]["status_code"], 200)

    def test_killed_and_stopped_runs_go_on(self):
        self.write([request(i) for i in range(400)])
        with Fake(delay=0.02) as fake:
            for n, how in enumerate((signal.SIGKILL, signal.SIGINT)):
                run = self.start("--url", fake.url, "--concurrency", "2")
                while not self.out.exists() or self.out.read_text().count("\n") < 8 * (n + 1):
                    self.assertIsNone(run.poll(), "it ended early")
                    time.sleep(0.02)
                run.send_signal(how)
                _, err = run.communicate(timeout=60 * PATIENCE)
                if how == signal.SIGINT:
                    self.assertEqual(run.returncode, 130, err)
                    self.assertIn("goes on where it stopped", err)
            counts, _ = self.batch("--url", fake.url, "--concurrency", "16")
        self.assertEqual(counts["done"], 400)
        self.results(400)

    def test_no_server(self):
        self.write([request(0)])
        counts, err = self.batch("--url", f"http://127.0.0.1:{free_port()}", "--patience", "0.3", code=1)
        self.assertEqual(counts["done"], 0)
        self.assertIn("no server has taken a request", err)

    def test_bad_input(self):
        def refused(text, *words, args=()):
            self.file.write_text(text)
            _, err = self.batch("--url", "http://127.0.0.1:9", *args, code=2)
            self.assertEqual(err.count("\n"), 1, err)
            for word in words:
                self.assertIn(word, err)

        good = json.dumps(request(0)) + "\n"
        refused(good + "{", "line 2")
        refused(good + good, "line 2", "custom_id")
        refused(good.replace("/v1/completions", "/v1/files"), "/v1/files")
        refused(good.replace('"max_tokens"', '"stream": true, "max_tokens"'), "stream")
        refused("", "no request")
        refused(good, "ftp", args=("--url", "ftp://x"))
        refused(good, "cannot write", args=("--out", "/no/such/folder/x"))
        refused(good, "NO_SUCH", args=("--api-key-env", "NO_SUCH"))
        self.out.write_text("a text of mine\n")
        refused(good, "line 1", "--out")
        self.assertEqual(self.out.read_text(), "a text of mine\n")


if __name__ == "__main__":
    unittest.main()
