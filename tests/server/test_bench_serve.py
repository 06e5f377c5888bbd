"""sluice bench serve against the real server, and against servers that fail in known ways.

    SLUICE=build/release/sluice python3 tests/server/test_bench_serve.py
"""

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
import urllib.request

from harness import PATIENCE, SLUICE, Server, stories


def bench(url, *args, code=0, env=None):
    """(parsed JSON, stderr) of a run that ends with `code`."""
    done = subprocess.run([SLUICE, "bench", "serve", "--url", url, "--endpoint", "completions", "--json", "-", *args],
                          capture_output=True, text=True, timeout=120 * PATIENCE, env={**os.environ, **(env or {})})
    assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr)
    return json.loads(done.stdout) if done.stdout else None, done.stderr


@unittest.skipUnless(stories("stories15M-f16"), "no stories15M in the test data")
class ContestLoad(unittest.TestCase):
    """150 requests a second for 10 s, with the lengths of instructions and answers, on default settings: none is lost.
    Thirty of them unless SLUICE_TEST_FULL is set; how long it takes does not matter."""

    def test_none_is_lost(self):
        num = 1500 if os.environ.get("SLUICE_TEST_FULL") else 30
        with Server(path=stories("stories15M-f16")) as server:
            result, _ = bench(server.url, "--rate", "150", "--arrivals", "fixed", "--requests", str(num), "--warmup", "0",
                              "--input", "lognormal:20:96", "--output", "lognormal:55:150", "--seed", "1")
            run = result["runs"][0]
            self.assertEqual((run["answered"], run["failed"]), (num, 0), run)


class WithoutVocabulary(unittest.TestCase):
    def test_ids_in_and_ids_as_text_out(self):
        with Server("--kv-memory", "64M", "--ctx", "512", path="random:smollm2-135m") as server:
            result, _ = bench(server.url, "--token-ids", "--concurrency", "3", "--requests", "6", "--input", "9",
                              "--output", "5", "--warmup", "0")
            run = result["runs"][0]
            self.assertEqual((run["answered"], run["input_tokens"], run["output_tokens"], run["chunks"]), (6, 54, 30, 30))
            self.assertIn("no /tokenize", result["prompts"])
            ask = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "return_token_ids": True}
            choice = self.answer(server, ask)
            ids = choice["token_ids"]
            self.assertEqual(choice["text"].split(), [str(i) for i in ids])
            # What ends a text is not part of it.
            ended = self.answer(server, {**ask, "stop_token_ids": [ids[2]]})
            self.assertEqual(ended["text"].split(), [str(i) for i in ids[:ids.index(ids[2])]])

    def answer(self, server, body):
        request = urllib.request.Request(server.url + "/v1/completions", json.dumps({"model": "test", **body}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60 * PATIENCE) as reply:
            return json.load(reply)["choices"][0]


@unittest.skipUnless(stories(), "no stories260K in the test data")
class Real(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-connections-per-ip", "2000", "--max-queue", "1000", path=stories())

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def metrics(self):
        names = ("sluice_prompt_tokens_total", "sluice_generation_tokens_total", "sluice_requests_finished_total")
        return [self.server.metric(name) for name in names]

    def test_closed_loop_counts_equal_the_servers(self):
        before = self.metrics()
        result, _ = bench(self.server.url, "--concurrency", "1,16", "--requests", "48", "--input", "8-40",
                          "--output", "4-20", "--warmup", "0", "--slo", "ttft=100s,e2e=100s")
        after = self.metrics()
        runs = result["runs"]
        self.assertEqual([r["concurrency"] for r in runs], [1, 16])
        for run in runs:
            self.assertEqual((run["sent"], run["answered"], run["failed"], run["good"]), (48, 48, 0, 48))
            self.assertEqual(run["finish_reasons"], {"length": 48})
            self.assertEqual(run["prompts_of_other_length"], 0)
            self.assertEqual(run["answers_without_usage"], 0)
            for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
                p = run[name]
                self.assertLessEqual(0, p["p50"])
                self.assertLessEqual(p["p50"], p["p90"])
                self.assertLessEqual(p["p90"], p["p95"])
                self.assertLessEqual(p["p95"], p["p99"])
                self.assertLessEqual(p["p99"], p["max"])
            self.assertEqual(run["itl_s"]["count"], run["chunks"] - 48)
            self.assertAlmostEqual(run["output_tokens_per_s"], run["output_tokens"] / run["elapsed_s"])
        self.assertIn("/tokenize", result["prompts"])
        # One tiny answer may have been asked for to learn lengths: never with /tokenize.
        self.assertEqual(after[0] - before[0], sum(r["input_tokens"] for r in runs))
        self.assertEqual(after[1] - before[1], sum(r["output_tokens"] for r in runs))
        self.assertEqual(after[2] - before[2], 96)

    def test_open_loop_sends_its_rate(self):
        for arrivals in ("fixed", "poisson"):
            result, _ = bench(self.server.url, "--rate", "60", "--arrivals", arrivals, "--duration", "3", "--input",
                              "8", "--output", "2")
            run = result["runs"][0]
            if arrivals == "fixed":
                self.assertEqual(run["sent"], 180)
                late = run["lateness_s"]["max"]  # a busy machine sends later, and says so
                self.assertTrue(180 / (3 + late) - 1 <= run["send_rate"] <= 61, (run["send_rate"], late))
            else:
                self.assertTrue(110 < run["sent"] < 260, run["sent"])  # five standard deviations
            self.assertEqual(run["lateness_s"]["count"], run["sent"])
            self.assertEqual(run["answered"], run["sent"])

    def test_trace_prompts_prefix_and_ids(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder, "trace.jsonl")
            trace.write_text("".join(json.dumps({"timestamp": 100 * i, "input_length": 1600, "output_length": 40,
                                                 "hash_ids": [1, 2, 3, 10 + i]}) + "\n" for i in range(8)))
            result, _ = bench(self.server.url, "--trace", str(trace), "--length-scale", "0.1", "--time-scale", "2")
            run = result["runs"][0]
            self.assertEqual((run["answered"], run["input_tokens"], run["output_tokens"]), (8, 8 * 160, 8 * 4))
            self.assertGreater(run["elapsed_s"], 0.3)
            self.assertGreater(run["cached_tokens"], 7 * 128)  # of 3 x 51 shared tokens, in blocks of 16

            prompts = pathlib.Path(folder, "prompts.jsonl")
            prompts.write_text('{"prompt": "Once upon", "max_tokens": 3}\n{"turns": ["There was", "x"]}\n'
                               '{"prompt": [1, 403, 407], "max_tokens": 5}\n')
            result, _ = bench(self.server.url, "--prompts", str(prompts), "--requests", "6", "--output", "4",
                              "--concurrency", "2")
            self.assertEqual(result["runs"][0]["output_tokens"], 2 * (3 + 4 + 5))

        result, _ = bench(self.server.url, "--prefix", "64", "--input", "16", "--output", "2", "--requests", "10",
                          "--token-ids")
        run = result["runs"][0]
        self.assertEqual((run["input_tokens"], run["prompts_of_other_length"]), (800, 0))
        self.assertGreaterEqual(run["cached_tokens"], 9 * 64)

    def test_whole_answers_records_report_and_texts(self):
        with tempfile.TemporaryDirectory() as folder:
            records, report = pathlib.Path(folder, "r.jsonl"), pathlib.Path(folder, "r.html")
            result, _ = bench(self.server.url, "--concurrency", "32", "--requests", "64", "--distinct", "16",
                              "--output", "8", "--seed", "5", "--check-text", "--records", str(records), "--report",
                              str(report))
            self.assertEqual(result["runs"][0]["answered"], 64)
            self.assertEqual(result["seed"], 5)
            lines = [json.loads(line) for line in records.read_text().splitlines()]
            self.assertEqual([r["index"] for r in lines], list(range(64)))
            for r in lines:
                self.assertEqual((r["fate"], r["status"], r["output_tokens"]), ("ok", 200, 8))
                self.assertTrue(r["due_s"] <= r["begin_s"] <= r["sent_s"] <= r["first_token_s"] <= r["end_s"])
            page = report.read_text()
            self.assertIn("<svg", page)
            self.assertNotIn("http-equiv", page)
        result, _ = bench(self.server.url, "--no-stream", "--requests", "4", "--output", "8")
        run = result["runs"][0]
        self.assertEqual((run["answered"], run["output_tokens"]), (4, 32))
        self.assertNotIn("ttft_s", run)

    def test_interrupt_still_reports(self):
        run = subprocess.Popen([SLUICE, "bench", "serve", "--url", self.server.url, "--endpoint", "completions",
                                "--duration", "60", "--concurrency", "4", "--json", "-"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
        before = self.server.metric("sluice_requests_finished_total")
        self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_finished_total") > before + 8))
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate(timeout=10 * PATIENCE)
        self.assertEqual(run.returncode, 0)
        result = json.loads(out)["runs"][0]
        self.assertTrue(result["interrupted"])
        self.assertEqual(result["sent"], result["answered"] + result["cancelled"])

    def test_refusals(self):
        with Server("--max-seqs", "1", "--max-queue", "2", path=stories()) as server:
            result, _ = bench(server.url, "--rate", "400", "--duration", "1", "--output", "100", "--warmup", "0",
                              code=1)
            run = result["runs"][0]
            self.assertGreater(run["failures"]["http 429"], 10)
            self.assertEqual(run["answered"] + run["failures"]["http 429"], run["sent"])
            self.assertEqual(run["refused_with_retry_after"], run["refused"])
            self.assertEqual(server.metric("sluice_refusals_total"), run["refused"])
            self.assertEqual(run["refusal_s"]["count"], run["refused"])

    def test_server_that_dies(self):
        with Server(path=stories()) as server:
            def kill_amid_answers():
                server.until(lambda: server.metric("sluice_requests_finished_total") >= 10
                             and server.metric("sluice_requests_running") >= 4, 60)
                server.process.send_signal(signal.SIGSTOP)
                time.sleep(2)  # by then every connection has a request without an answer
                server.process.kill()

            threading.Thread(target=kill_amid_answers).start()
            result, _ = bench(server.url, "--concurrency", "8", "--requests", "150", "--output", "300", "--input", "8",
                              code=1)
            run = result["runs"][0]
            self.assertGreater(run["answered"], 0)
            self.assertGreaterEqual(run["failures"].get("broken", 0) + run["failures"].get("closed", 0), 1)
            self.assertGreater(run["failures"].get("connect", 0), 0)
            self.assertEqual(run["answered"] + run["failed"], run["sent"])


class Fake:
    """Answers every POST with the same bytes and closes."""

    def __init__(self, answer):
        self.answer = answer
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.socket.getsockname()[1]
        self.heads = []
        threading.Thread(target=self.run, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def run(self):
        while True:
            try:
                s, _ = self.socket.accept()
            except OSError:
                return
            with s:
                head = s.recv(65536)
                self.heads.append(head)
                models = head.startswith(b"GET /v1/models")
                body = b'{"data":[{"id":"fake"}]}' if models else self.answer
                kind = b"application/json" if models else b"text/event-stream"
                s.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: " + kind + b"\r\n\r\n" + body)


def events(*data):
    return b"".join(b"data: " + d.encode() + b"\n\n" for d in data)


TEXT = '{"choices":[{"index":0,"text":"a","finish_reason":null}]}'
END = '{"choices":[{"index":0,"text":"","finish_reason":"length"}]}'
USAGE = '{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}'


class Faults(unittest.TestCase):
    def fates(self, answer, code=1, *args):
        with Fake(answer) as fake, tempfile.NamedTemporaryFile("w", suffix=".jsonl") as prompts:
            prompts.write('{"prompt": "x", "max_tokens": 2}\n')
            prompts.flush()
            result, _ = bench(fake.url, "--requests", "3", "--warmup", "0", "--prompts", prompts.name, *args, code=code)
            self.assertEqual(result["model"], "fake")
            return result["runs"][0]

    def test_by_kind(self):
        good = events(TEXT, TEXT, END, USAGE % 2, "[DONE]")
        self.assertEqual(self.fates(good, 0)["answered"], 3)
        for answer, kind in (
            (events(TEXT, TEXT), "broken"),
            (events(TEXT, TEXT, END, USAGE % 2), "broken"),
            (good + b"data: {", "broken"),
            (events(TEXT, '{"error":{"message":"no"}}', "[DONE]"), "error_event"),
            (events(TEXT, "{nonsense", END, "[DONE]"), "malformed"),
        ):
            with self.subTest(answer=answer):
                self.assertEqual(self.fates(answer)["failures"], {kind: 3})

    def test_without_usage_and_odd_usage(self):
        self.assertEqual(self.fates(events(TEXT, TEXT, END, "[DONE]"), 0)["answers_without_usage"], 3)
        run = self.fates(events(TEXT, TEXT, END, USAGE % 1, "[DONE]"), 0)
        self.assertEqual(run["answers_with_more_chunks_than_tokens"], 3)

    def test_short_answers_and_estimates(self):
        with Fake(events(TEXT, END, USAGE % 1, "[DONE]")) as fake:
            result, _ = bench(fake.url, "--requests", "2", "--output", "9", "--warmup", "0", code=1)
            self.assertEqual(result["runs"][0]["failures"], {"short_answer": 2})
            self.assertIn("estimated", result["prompts"])

    def test_key_and_headers(self):
        with Fake(events(TEXT, END, USAGE % 1, "[DONE]")) as fake:
            bench(fake.url, "--requests", "1", "--output", "1", "--api-key-env", "MY_KEY", "--header", "X-A: b",
                  env={"MY_KEY": "secret-1"})
            for head in fake.heads:
                self.assertIn(b"Authorization: Bearer secret-1\r\n", head)
                self.assertIn(b"X-A: b\r\n", head)


class Options(unittest.TestCase):
    def test_errors(self):
        url = "http://127.0.0.1:9"
        for args, word in (
            (["--url", "ftp://x"], "http://HOST:PORT"),
            (["--url", url, "--concurrency", "0"], "--concurrency"),
            (["--url", url, "--requests", "0"], "--requests"),
            (["--url", url, "--duration", "0"], "--duration"),
            (["--url", url, "--distinct", "0"], "--distinct"),
            (["--url", url, "--max-connections", "0"], "--max-connections"),
            (["--url", url, "--rate", "2", "--concurrency", "2"], "exclude"),
            (["--url", url, "--input", "9-3"], "--input"),
            (["--url", url, "--slo", "speed=1"], "--slo"),
            (["--url", url, "--header", "nothing"], "--header"),
            (["--url", url, "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
            (["--url", url, "--token-ids"], "completions"),
            (["--url", url, "--prompts", "/nowhere"], "/nowhere"),
            (["--url", url, "--trace", "/nowhere"], "/nowhere"),
            (["--url", url, "--extra", "[1]"], "--extra"),
            (["--url", url, "--check-text", "--temperature", "1"], "--temperature"),
            ([], "--url"),
        ):
            with self.subTest(args=args):
                done = subprocess.run([SLUICE, "bench", "serve", *args], capture_output=True, text=True, timeout=10 * PATIENCE)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertIn(word, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)

    def test_nobody_there(self):
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        done = subprocess.run([SLUICE, "bench", "serve", "--url", f"http://127.0.0.1:{port}"], capture_output=True,
                              text=True, timeout=10 * PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no answer", done.stderr)


if __name__ == "__main__":
    unittest.main()
