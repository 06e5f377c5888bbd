"""curl as the server prints it and with its ways to hang up; promtool on the metrics."""

import json
import re
import shutil
import subprocess
import unittest

from harness import Server, model, stories


def shell(line, want=0):
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == want, (done.returncode, done.stderr)
    return done.stdout


@unittest.skipUnless(shutil.which("curl"), "no curl")
class Curl(unittest.TestCase):
    def printed(self, server):
        """The command in the line after the one with the address."""
        line = server.process.stderr.readline().strip()
        self.assertTrue(line.startswith("curl "), line)
        return line.replace("curl ", "curl -sS --fail ", 1)

    @unittest.skipUnless(model(), "the default model is not in the cache")
    def test_the_printed_line_chats(self):
        with Server("--ctx", "64") as server:
            answer = json.loads(shell(self.printed(server)))
            self.assertTrue(answer["choices"][0]["message"]["content"])

    @unittest.skipUnless(stories(), "no test data")
    def test_the_printed_line_completes(self):
        with Server(path=stories()) as server:
            answer = json.loads(shell(self.printed(server)))
            self.assertTrue(answer["choices"][0]["text"])

    @unittest.skipUnless(model(), "the default model is not in the cache")
    def test_hanging_up_frees_the_blocks(self):
        with Server("--ctx", "4096") as server:
            body = json.dumps({"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True})
            for options in ("--max-time 0.5", "--max-time 0.5 --http1.0", "--max-time 0.5 -H 'Expect: 100-continue'"):
                before = server.metric("sluice_disconnects_total")
                out = shell(f"curl -sN {options} {server.url}/v1/completions -H 'Content-Type: application/json' -d '{body}'",
                            want=28)
                self.assertIn("data: {", out)
                self.assertTrue(server.until(lambda: server.metric("sluice_requests_running") == 0, 3))
                self.assertEqual(server.metric("sluice_kv_cache_usage_ratio"), 0)
                self.assertEqual(server.metric("sluice_disconnects_total"), before + 1)

    @unittest.skipUnless(stories(), "no test data")
    def test_ways_to_send(self):
        with Server(path=stories()) as server:
            url, kind = server.url, "-H 'Content-Type: application/json'"
            # Chunked from a pipe, kept alive over two requests, HEAD, and a status from --fail.
            out = shell(f"""printf '{{"prompt": "Once upon"}}' | curl -sS -T - -X POST {kind} {url}/tokenize""")
            self.assertGreater(json.loads(out)["count"], 1)
            out = shell(f"curl -sS -o /dev/null -o /dev/null -w '%{{num_connects}} %{{http_code}}\\n' {url}/health {url}/version")
            self.assertEqual(out, "1 200\n0 200\n")
            self.assertEqual(shell(f"curl -s -o /dev/null -w '%{{http_code}}' {url}/nowhere"), "404")
            shell(f"curl -sS --fail {url}/nowhere", want=22)
            stream = shell(f"""curl -sSN {kind} {url}/v1/completions -d '{{"prompt": "Once", "max_tokens": 5, "stream": true}}'""")
            self.assertTrue(stream.endswith("data: [DONE]\n\n"))
            self.assertTrue(all(re.match(r"data: (\{.*\}|\[DONE\])$", line) for line in stream.split("\n\n") if line))


@unittest.skipUnless(shutil.which("promtool"), "no promtool")
@unittest.skipUnless(stories(), "no test data")
class Promtool(unittest.TestCase):
    def test_metrics(self):
        with Server(path=stories()) as server:
            server.request("/v1/completions", {"prompt": "Once", "max_tokens": 20, "n": 2})
            server.request("/nowhere")
            text = server.request("/metrics")[2]
            done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
            # vLLM's names have a colon, which promtool would keep for rules: it says so, and nothing else.
            said = [line for line in (done.stdout + done.stderr).splitlines()
                    if not re.fullmatch(r"vllm:\w+ metric names should not contain ':'", line)]
            self.assertEqual(said, [])
            ours = "".join(line + "\n" for line in text.splitlines() if not re.match(r"(# \w+ )?vllm:", line))
            done = subprocess.run(["promtool", "check", "metrics"], input=ours, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
