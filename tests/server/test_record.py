#!/usr/bin/env python3
"""serve --record and sluice replay: under load, killed, cut off, damaged, kept; a disk that fails.

    SLUICE=BINARY tests/server/test_record.py [unittest arguments]

Needs no package. The model is tests/golden/models/llama.gguf.
"""

import concurrent.futures
import json
import pathlib
import random
import resource
import signal
import subprocess
import tempfile
import time
import unittest

import harness
from harness import PATIENCE, ROOT, Server

MODEL = str(ROOT / "tests/golden/models/llama.gguf")
SMALL = ("-t", "1", "--no-warm-up", "--kv-blocks", "32", "--block-size", "8", "--max-seqs", "6", "--budget", "48",
         "--ctx", "160")


def replay(path, *args, code=0):
    """What it prints; `code` None: with any exit code."""
    done = subprocess.run([harness.SLUICE, "replay", str(path), *args], capture_output=True, text=True,
                          timeout=60 * PATIENCE)
    assert code is None or done.returncode == code, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout + done.stderr


def schedule(path, code=0):
    return json.loads(replay(path, "--schedule", "--json", code=code))


def ask(server, k, **fields):
    body = {"prompt": [(7 * p + k % 3) % 200 + 3 for p in range(5 + k * 7 % 60)], "max_tokens": 4 + k % 17,
            "ignore_eos": True, "seed": k, "temperature": 0.8, "priority": k % 3, **fields}
    return server.request("/v1/completions", body)


def load(server, num=40):
    """Prompts that share their beginnings, choices, stop strings, and a client that leaves."""
    def one(k):
        if k % 7 == 3:
            return ask(server, k, n=2)
        if k % 7 == 5:
            return ask(server, k, stop=["a", "the"])
        if k % 11 == 4:
            return ask(server, k, stream=True, max_tokens=60)
        return ask(server, k)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(num)))
    assert all(a[0] == 200 for a in answers), answers


class Recording(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name) / "rec"

    def server(self, *args):
        return Server(*SMALL, "--record", str(self.dir), "--record-size", "4M", *args, path=MODEL)

    def files(self):
        return sorted(self.dir.glob("*.slrec"))

    def kept(self):
        return sorted(self.dir.glob("kept-*/*.slrec"))

    def test_a_server_under_load_replays_with_equal_plans(self):
        base = self.dir
        for args in (("--order", "priority", "--aging", "0.05", "--preempt", "swap", "--prefix-host", "1M"),
                     ("--record-text", "--slo", "itl_p99=20ms", "--short-share", "0.5")):
            self.dir = base / args[0].strip("-")
            with self.subTest(args=args), self.server(*args) as server:
                load(server)
                server.process.send_signal(signal.SIGUSR1)
                self.assertTrue(server.until(self.kept), "SIGUSR1 keeps the recording")
                status, _, answer = server.request("/v1/recording/keep", {})
                self.assertEqual((status, answer["object"]), (200, "recording"))
                self.assertTrue(server.until(lambda: list(pathlib.Path(answer["folder"]).glob("*.slrec"))))
                load(server, 10)
            whole = schedule(self.dir)
            self.assertTrue(whole["equal"])
            self.assertGreater(whole["plans"], 100)
            self.assertTrue(all(s["tail"] == "whole" for s in whole["segments"]))
            self.assertTrue(schedule(answer["folder"])["equal"])
            self.assertIn("all equal", replay(self.dir))
            # Pseudonyms suffice to simulate, and not to compute.
            text = replay(self.dir, "--what-if", "budget=16,max_seqs=2,order=fcfs")
            self.assertRegex(text, r"as recorded +[\d.]+")
            self.assertRegex(text, r"what if +[\d.]+")
            self.assertIn("tall", text)
            plan = subprocess.run([harness.SLUICE, "plan", MODEL, "--workload", str(self.dir), "--device", "l4",
                                   "--no-search", "--json"], capture_output=True, text=True, timeout=60 * PATIENCE)
            self.assertEqual(plan.returncode, 0, plan.stderr)
            arrivals = sum(s["arrivals"] for s in whole["segments"])
            self.assertEqual(json.loads(plan.stdout)["trials"][0]["figures"]["requests"], arrivals)
            if "--record-text" in args:
                text = replay(self.dir, "--model", MODEL, "-t", "2", "-q")
                self.assertIn("equal, byte for byte", text)
            else:
                self.assertIn("record with --record-text", replay(self.dir, "--model", MODEL, "-q", code=2))
        self.assertIn("settings are budget", replay(self.dir, "--what-if", "x=1", code=2))

    def test_a_stall_is_explained(self):
        """Steps take a device's time by their tokens: a long prompt holds up what decodes beside it."""
        cost = self.dir.parent / "cost.json"
        subprocess.run([harness.SLUICE, "plan", "calibrate", MODEL, "-t", "1", "--limit", "1", "-q", "--out", cost],
                       check=True, timeout=120)
        steps = json.loads(cost.read_text())
        steps.update(rows=[[1, 0.02], [4, 0.02], [128, 0.4]], sampled=0, context=0, attended=0, prompts=0)
        cost.write_text(json.dumps(steps))
        args = [a if a != "48" else "128" for a in SMALL]  # the budget
        with Server(*args, "--chunk", "0", "--simulate", str(cost), "--record", str(self.dir), path=MODEL) as server, \
                concurrent.futures.ThreadPoolExecutor(1) as pool:
            long = pool.submit(ask, server, 1, prompt=[5, 6, 7], max_tokens=100)
            self.assertTrue(server.until(lambda: server.metric("sluice_requests_running") == 1))
            self.assertEqual(ask(server, 2, prompt=list(range(3, 123)), max_tokens=2)[0], 200)
            self.assertEqual(long.result()[0], 200)
        text = replay(self.dir, "--stall")
        self.assertRegex(text, r"The longest stall: step \d+ took [\d.]+ ms, steps that only decode [\d.]+ ms")
        self.assertRegex(text, r"1 sequences waited for their next token while 120 prompt tokens ran, 120 of them "
                               r"request \d+'s prompt from position 0 on")
        self.assertRegex(text, r"With --chunk (64|32|16) it would not have happened")

    def test_killed_and_started_again_in_the_same_folder(self):
        for k in range(2):
            with self.server() as server:
                load(server, 20)
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    running = pool.submit(lambda: self.assertRaises(OSError, ask, server, 1, max_tokens=100, n=4))
                    time.sleep(0.2)
                    server.process.kill()
                    running.exception()
        runs = schedule(self.dir)
        self.assertTrue(runs["equal"])
        self.assertGreater(runs["plans"], 50)
        self.assertEqual(replay(self.dir).count("run "), 2)

    def test_cut_or_damaged_files(self):
        with self.server() as server:
            load(server)
        (file,) = self.files()
        data = file.read_bytes()
        part = self.dir / "part.slrec"
        dice = random.Random(5)
        for size in [len(data) - 1, *(dice.randrange(20_000, len(data)) for _ in range(6))]:
            part.write_bytes(data[:size])
            (segment,) = schedule(part)["segments"]
            self.assertTrue(segment["equal"])
        for at in (dice.randrange(20_000, len(data)) for _ in range(4)):
            part.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1:])
            text = replay(part, code=None)  # in a record's length it looks like a cut
            self.assertTrue("DAMAGED" in text or "ends within" in text, text)
        part.write_bytes(b"not a recording")
        self.assertIn("this is no recording", replay(part, code=2))
        self.assertIn("cannot read", replay(self.dir / "none.slrec", code=2))
        whole = replay(file, "--model", MODEL, "--device", "cuda", code=2)
        self.assertIn("give --deterministic here too", whole)
        self.assertIn("--device", replay(file, "--model", MODEL, "--device", "ref", code=2))

    def test_the_ring_is_bounded(self):
        with self.server("--record-text") as server:
            for _ in range(12):
                load(server, 60)
                self.assertLess(sum(f.stat().st_size for f in self.files()), 4 << 20)
        self.assertTrue(schedule(self.dir)["equal"])

    def test_folders_that_cannot_be_used(self):
        with self.server():
            with self.assertRaisesRegex(RuntimeError, "another process records there"):
                self.server()
        blocked = pathlib.Path(str(self.dir) + "-file")
        blocked.write_text("")
        with self.assertRaisesRegex(RuntimeError, "--record .*-file"):
            Server(*SMALL, "--record", str(blocked), path=MODEL)

    def test_without_a_recording_nothing_is_kept(self):
        with Server(*SMALL, path=MODEL) as server:
            self.assertEqual(server.request("/v1/recording/keep", {})[0], 404)
            server.process.send_signal(signal.SIGUSR1)
            self.assertEqual(ask(server, 1)[0], 200)

    def test_a_full_disk_ends_the_recording_and_not_the_serving(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        try:
            server = self.server()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with server:
            load(server, 60)
            self.assertEqual(ask(server, 1)[0], 200)
            time.sleep(0.5)  # it writes every 50 ms
            self.assertEqual(server.request("/v1/recording/keep", {})[0], 503)
            server.process.send_signal(signal.SIGTERM)
            log = server.process.stderr.read()
        self.assertEqual(log.count("the recording in"), 1, log[-2000:])
        self.assertIn("File too large", log)
        self.assertTrue(schedule(self.dir)["equal"])


if __name__ == "__main__":
    unittest.main()
