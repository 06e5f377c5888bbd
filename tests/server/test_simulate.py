"""serve --simulate: a server that answers as others do, in the time of another device, and says so.

    SLUICE=build/release/sluice python3 tests/server/test_simulate.py
"""

import concurrent.futures
import json
import pathlib
import subprocess
import tempfile
import time
import unittest

from harness import ROOT, SLUICE, Server

MODEL = str(ROOT / "tests/golden/models/llama.gguf")


class Simulate(unittest.TestCase):
    def complete(self, server, **body):
        status, _, answer = server.request("/v1/completions", {"prompt": "Once", "max_tokens": 6, "ignore_eos": True, **body})
        self.assertEqual(status, 200, answer)
        return answer

    def test_answers_and_says_so(self):
        with Server("-t", "1", "--simulate", "l4", path=MODEL) as server:
            self.assertIn("SIMULATED", "".join(server.lines))
            self.assertTrue(server.request("/server_info")[2]["simulated"])
            one, two = (self.complete(server, temperature=0) for _ in range(2))
            self.assertEqual(one["usage"]["completion_tokens"], 6)
            self.assertEqual(one["choices"][0]["text"], two["choices"][0]["text"])
            logprobs = self.complete(server, logprobs=2, n=2)["choices"][1]["logprobs"]
            self.assertEqual(len(logprobs["token_logprobs"]), 6)
            text = self.complete(server, guided_regex="[xyz]{4}", max_tokens=20, ignore_eos=False)["choices"][0]["text"]
            self.assertRegex(text, "^[xyz]{4}$")
            vector = server.request("/v1/embeddings", {"input": "Once"})[2]["data"][0]["embedding"]
            self.assertEqual(sum(x * x for x in vector), 1)
        with Server("-t", "1", path=MODEL) as server:
            self.assertFalse(server.request("/server_info")[2]["simulated"])

    def costs(self, folder, rows):
        """A file of costs in which only the number of rows counts."""
        path = pathlib.Path(folder) / "costs.json"
        subprocess.run([SLUICE, "plan", "calibrate", MODEL, "-t", "1", "--limit", "1", "-q", "--out", path], check=True,
                       timeout=120)
        costs = json.loads(path.read_text())
        costs.update(rows=rows, sampled=0, context=0, attended=0, prompts=0)
        path.write_text(json.dumps(costs))
        return path

    def test_steps_take_the_time_of_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = self.costs(folder, [[1, 0.05], [1000, 0.06]])
            with Server("-t", "1", "--simulate", str(path), path=MODEL) as server:
                begin = time.monotonic()
                self.complete(server, max_tokens=10)
                self.assertGreaterEqual(time.monotonic() - begin, 0.5)

    def test_who_would_be_late_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = self.costs(folder, [[1, 0.02], [1001, 20.02]])

            def ask(server, word):
                body = {"prompt": [word] * 60, "max_tokens": 1, "ignore_eos": True}
                return server.request("/v1/completions", body)

            record = ["--record", folder + "/record", "--slo", "itl_p99=2s"]
            late = ["--simulate", str(path), "--cost", str(path), "--ttft-limit", "1500ms", *record]
            with Server("-t", "1", *late, path=MODEL) as server, concurrent.futures.ThreadPoolExecutor(6) as pool:
                self.assertEqual(ask(server, 5)[0], 200)
                answers = list(pool.map(lambda k: ask(server, 10 + k), range(6)))
                served = [a for a in answers if a[0] == 200]
                refused = [a for a in answers if a[0] == 429]
                self.assertEqual(len(served) + len(refused), 6)
                self.assertGreaterEqual(len(served), 1)
                self.assertGreaterEqual(len(refused), 2)  # six prompts take seven seconds
                for _, headers, answer in refused:
                    self.assertEqual(answer["error"]["code"], "would_be_late")
                    self.assertGreaterEqual(int(headers["retry-after-ms"]), 1)
                    self.assertLess(int(headers["Retry-After"]), 10)
                time.sleep(max(int(headers["retry-after-ms"]) for _, headers, _ in refused) / 1000)
                self.assertEqual(ask(server, 30)[0], 200)
            # Only what was taken is recorded, and --slo begins in the recording where it began here.
            done = subprocess.run([SLUICE, "replay", folder + "/record"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            done = subprocess.run([SLUICE, "serve", MODEL, "--port", "0", "--device", "cuda", "--cost", path],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("has costs of a CPU", done.stderr)

    def test_what_will_not_do(self):
        for args, says in ((["--simulate", "abacus"], "abacus"), (["--simulate", "/nowhere.json"], "/nowhere.json"),
                           (["--simulate", "l4", "--device", "ref"], "--device"),
                           (["--ttft-limit", "1s"], "--cost"), (["--cost", "/nowhere.json"], "/nowhere.json"),
                           (["--cost", "cpu", "--ttft-limit", "soon"], "'soon' is no time")):
            done = subprocess.run([SLUICE, "serve", MODEL, "--port", "0", *args], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            errors = [line for line in done.stderr.splitlines() if line.startswith("sluice:")]
            self.assertEqual(len(errors), 1, done.stderr)
            self.assertIn(says, errors[0])


if __name__ == "__main__":
    unittest.main()
