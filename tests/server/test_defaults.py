#!/usr/bin/env python3
"""What a server does where nobody says: sampling from the model's files, and a line in the log for each request.

    SLUICE=BINARY tests/server/test_defaults.py [unittest arguments]

Needs no package. The model is tests/golden/models/llama.gguf.
"""

import json
import pathlib
import re
import signal
import socket
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import cli_test  # noqa: E402
import harness  # noqa: E402
from cli_test import F32, MODEL, Gguf  # noqa: E402
from harness import PATIENCE, Server  # noqa: E402

SECRET = "a secret prompt"
LINE = re.compile(r"^[\d:.]+ I (?P<method>\S+) (?P<path>\S+) (?P<status>\d+)(?: in=(?P<prompt>\d+) out=(?P<output>\d+))?"
                  r"(?: ttft=(?P<ttft>[\d.]+)s)? total=(?P<total>[\d.]+)s(?P<more>.*) id=(?P<id>\S+)$")


def setUpModule():
    cli_test.BINARY = pathlib.Path(harness.SLUICE).resolve()
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    cli_test.WORK = pathlib.Path(folder.name)


def ask(server, path="/v1/completions", headers=None, **fields):
    body = {"prompt": SECRET, "max_tokens": 6, "ignore_eos": True, "seed": 4, **fields}
    return server.request(path, body, headers)


def stop(server):
    """The log behind the start."""
    server.process.send_signal(signal.SIGTERM)
    log = server.process.stderr.read()
    server.process.wait(20 * PATIENCE)
    return log


class Sampling(unittest.TestCase):
    def texts(self, model, *args):
        """Without a temperature, and with 0."""
        with Server("-t", "1", *args, path=str(model)) as server:
            answers = [ask(server, **fields)[2]["choices"][0]["text"] for fields in ({}, {"temperature": 0})]
            return answers, server.request("/v1/models")[2]["data"][0]["default_sampling_params"], "".join(server.lines)

    def test_the_models_own_and_the_requests_first(self):
        cold = Gguf().set("general.sampling.temp", F32, struct.pack("<f", 0)).write("cold.gguf")
        (plain, greedy), shown, started = self.texts(cold)
        self.assertEqual(plain, greedy)
        self.assertEqual(shown["temperature"], 0)
        self.assertIn("sampling by default: greedy (the model's files)", started)
        (plain, greedy), shown, started = self.texts(cold, "--generation-config", "none")
        self.assertNotEqual(plain, greedy)
        self.assertEqual((shown["temperature"], shown["top_p"], shown["top_k"]), (1, 1, 0))
        (plain, greedy), shown, started = self.texts(MODEL)
        self.assertEqual((shown["temperature"], shown["top_p"]), (0.7, 0.95))

    def test_run_and_serve_agree(self):
        warm = Gguf().set("general.sampling.temp", F32, struct.pack("<f", 0.9)).write("warm.gguf")
        (plain, _), _, _ = self.texts(warm)
        done = cli_test.run("run", warm, SECRET, "-m", 6, "--ignore-eos", "--seed", 4, "-t", 1, "-q", "--json")
        self.assertEqual(json.loads(done.stdout)["text"], plain)


class AccessLog(unittest.TestCase):
    def test_a_line_for_each_request(self):
        with Server("-t", "1", path=str(MODEL)) as server:
            self.assertRegex("".join(server.lines), r"(?m)^device: ")
            ask(server, headers={"x-request-id": "mine-1"})
            ask(server, headers={"x-request-id": "mine-2"}, stream=True)
            ask(server, headers={"x-request-id": "mine-3"}, temperature=-1)
            server.request("/nothing/here?key=" + SECRET.replace(" ", "+"))
            server.request("/v1/models")
            for probe in ("/health", "/ready", "/metrics"):
                server.request(probe)
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(b"nonsense\r\n\r\n")
                raw.recv(1000)
            log = stop(server)
        lines = [m.groupdict() for m in map(LINE.match, log.splitlines()) if m]
        by_id = {x["id"]: x for x in lines}
        for name in ("mine-1", "mine-2"):
            x = by_id[name]
            self.assertEqual((x["method"], x["path"], x["status"], x["output"]), ("POST", "/v1/completions", "200", "6"))
            self.assertGreater(int(x["prompt"]), 0)
            self.assertLessEqual(float(x["ttft"]), float(x["total"]))
        self.assertEqual(by_id["mine-3"]["status"], "400")
        self.assertIsNone(by_id["mine-3"]["prompt"])
        self.assertEqual([(x["path"], x["status"]) for x in lines if x["method"] == "GET"],
                         [("/nothing/here", "404"), ("/v1/models", "200")])
        self.assertEqual(len(lines), 5, log)
        self.assertRegex(log, r"(?m) I - - 400 ")
        self.assertNotIn("secret", log)

    def test_a_client_that_leaves(self):
        with Server("-t", "1", "--device", "ref", path=str(MODEL)) as server:
            body = json.dumps({"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                            b"x-request-id: gone\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                raw.recv(200)
            self.assertTrue(server.until(lambda: server.metric("sluice_requests_running") == 0))
            log = stop(server)
        self.assertRegex(log, r"in=1 out=\d+ .*error=cancelled client=gone id=gone")

    def test_off(self):
        with Server("-t", "1", "--no-log-requests", path=str(MODEL)) as server:
            ask(server)
            self.assertNotRegex(stop(server), LINE)


class Traces(unittest.TestCase):
    def test_what_io_threads_do_is_in_the_trace(self):
        path = cli_test.WORK / "server-trace.json"
        with Server("-t", "1", "--trace", str(path), path=str(MODEL)) as server:
            ask(server)
            ask(server, stream=True)
            stop(server)
        events = json.loads(path.read_text())["traceEvents"]
        io = {e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"].startswith("io-")}
        spans = [e for e in events if e["ph"] == "X" and e["tid"] in io]
        text = [e for e in spans if e["name"] == "detokenise"]
        self.assertEqual(len(text), 12)  # a token each
        sends = [e for e in spans if e["name"] == "send"]
        for e in text:  # within the span that hands the token on
            self.assertTrue(any(s["tid"] == e["tid"] and s["ts"] <= e["ts"] and
                                e["ts"] + e["dur"] <= s["ts"] + s["dur"] + 0.001 for s in sends), (e, sends))


class KvAllocators(unittest.TestCase):
    """Answers do not depend on where KV blocks come from; what an allocator cannot share is refused."""

    def test_same_answers(self):
        want = None
        for allocator in ("paged", "range", "reserve", "virtual"):
            with Server("-t", "1", "--kv-allocator", allocator, "--no-prefix-cache") as server:
                status, _, body = ask(server)
                self.assertEqual(status, 200, body)
                text = body["choices"][0]["text"]
                want = want or text
                self.assertEqual(text, want)
                status, _, body = ask(server, n=2)
                self.assertEqual(status, 200 if allocator == "paged" else 400, body)
                if allocator != "paged":
                    error = body["error"]
                    self.assertEqual(error["type"], "invalid_request_error")
                    self.assertIn(f"--kv-allocator {allocator}", error["message"])
                self.assertGreaterEqual(server.metric("sluice_requests_running_peak"), 1)
                for name in ("internal_fragmentation", "external_fragmentation", "waste"):
                    self.assertIn(f"\nsluice_kv_{name}_ratio ", server.request("/metrics")[2])


class Tiers(unittest.TestCase):
    """A prefix that the KV cache dropped comes back from host memory, and changes no answer."""

    def test_prefix_host(self):
        prompts = [letter * 90 for letter in "abcd"]  # bytes are tokens: each fills most of the pool
        small = ("-t", "1", "--ctx", "128", "--block-size", "16", "--kv-blocks", "8")
        with Server(*small, path=str(MODEL)) as server:
            want = [ask(server, prompt=p)[2]["choices"][0]["text"] for p in prompts]
            self.assertEqual(server.metric("sluice_kv_blocks_out_total"), 0)
        with Server(*small, "--prefix-host", "64M", "--preempt", "swap", path=str(MODEL)) as server:
            for turn in range(2):
                for prompt, text in zip(prompts, want):
                    status, _, body = ask(server, prompt=prompt)
                    self.assertEqual(status, 200, body)
                    self.assertEqual(body["choices"][0]["text"], text)
                hits = server.metric("sluice_tier_prefix_hits_total")
                self.assertEqual(hits > 0, turn == 1, hits)
            for name in ("blocks", "bytes"):
                self.assertGreater(server.metric(f"sluice_kv_{name}_out_total"), 0)
                self.assertGreater(server.metric(f"sluice_kv_{name}_in_total"), 0)
            self.assertGreater(server.metric("sluice_tier_usage_ratio"), 0)
            # Another salt is another owner.
            status, _, body = ask(server, prompt=prompts[0], cache_salt="mine")
            self.assertEqual(status, 200, body)
            self.assertEqual(server.metric("sluice_tier_prefix_hits_total"), hits)

    def test_prefix_disk(self):
        """A restarted server's first request hits; damage, other owners and a disk that fails change no answer."""
        prompt, small = "a" * 90, ("-t", "1", "--ctx", "128", "--block-size", "16")
        with tempfile.TemporaryDirectory() as folder:
            kv = pathlib.Path(folder) / "kv"
            disk = (*small, "--prefix-disk", "8M", "--prefix-disk-dir", str(kv))

            def cached(server, **fields):
                status, _, body = ask(server, prompt=prompt, **fields)
                self.assertEqual(status, 200, body)
                return body["usage"]["prompt_tokens_details"]["cached_tokens"], body["choices"][0]["text"]

            with Server(*disk, path=str(MODEL)) as server:
                tokens, want = cached(server)
                self.assertEqual(tokens, 0)
                self.assertGreater(server.metric("sluice_disk_blocks_written_total"), 0)
                # One process at a time: another one serves without it.
                with Server(*disk, path=str(MODEL)) as other:
                    self.assertIn("the disk tier is off", "".join(other.lines))
                    self.assertEqual(cached(other), (0, want))
            self.assertEqual(kv.stat().st_mode & 0o777, 0o700)
            for file in kv.iterdir():
                self.assertEqual(file.stat().st_mode & 0o777, 0o600, file)
                self.assertLess(file.stat().st_size, 9 << 20)
            with Server(*disk, path=str(MODEL)) as server:
                tokens, text = cached(server)
                self.assertEqual(text, want)
                self.assertGreaterEqual(tokens, 80)
                self.assertGreaterEqual(server.metric("sluice_disk_prefix_hits_total"), tokens)
                self.assertGreater(server.metric("sluice_disk_usage_ratio"), 0)
                self.assertEqual(cached(server, cache_salt="mine")[0], 0)
            for file in kv.glob("blocks-*"):  # every page of it
                with file.open("r+b") as out:
                    for at in range(4096 + 200, file.stat().st_size, 4096):
                        out.seek(at)
                        out.write(b"damaged")
            with Server(*disk, path=str(MODEL)) as server:
                self.assertEqual(cached(server), (0, want))
                self.assertGreater(server.metric("sluice_disk_blocks_lost_total"), 0)
            kv.chmod(0o755)
            with Server(*disk, path=str(MODEL)) as server:
                self.assertIn("chmod 700", "".join(server.lines))
                self.assertEqual(cached(server), (0, want))


if __name__ == "__main__":
    unittest.main()
