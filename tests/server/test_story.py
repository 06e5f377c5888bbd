"""Where a request's time went: /v1/requests, and `sluice explain`, which prints it."""

import json
import os
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from harness import SLUICE, Server, model, stories

KEYS = {"one": "key-number-one-1", "two": "key-number-two-2"}


def explain(*args, env=None):
    done = subprocess.run([SLUICE, "explain", *args], capture_output=True, text=True, timeout=240,
                          env={**os.environ, **(env or {})}, check=False)
    return done.returncode, done.stdout, done.stderr


@unittest.skipUnless(stories() or model(), "no model here")
class Story(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "512", path=stories() or model())

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def complete(self, **body):
        status, _, answer = self.server.request("/v1/completions", {"ignore_eos": True, **body})
        self.assertEqual(status, 200, answer)
        return answer

    def story(self, name):
        """Once the request's last bytes are known to be gone."""
        path = f"/v1/requests/{name}/story"
        ended = ("length", "stop")
        self.assertTrue(self.server.until(lambda: self.server.request(path)[2].get("state") in ended))
        self.assertTrue(self.server.until(lambda: any(p["kind"] == "delivery" and p["seconds"] > 0
                                                      for p in self.server.request(path)[2]["parts"])))
        told = None
        while told != (told := self.server.request(path)[2]):  # the last write is counted
            time.sleep(0.05)
        return told

    def test_a_story_adds_up_and_is_the_page_s(self):
        answer = self.complete(prompt="Once upon a time, " * 20, max_tokens=40)
        told = self.story(answer["id"])
        self.assertEqual((told["state"], told["output_tokens"]), ("length", 40))
        self.assertAlmostEqual(sum(p["seconds"] for p in told["parts"]), told["seconds"], delta=1e-6)
        self.assertAlmostEqual(sum(p["share"] for p in told["parts"]), 1, delta=1e-6)
        self.assertTrue(all(p["seconds"] >= 0 for p in told["parts"]), told["parts"])
        self.assertEqual(sum(s["tokens"] for s in told["prompt_steps"]), told["prompt_tokens"] - told["cached_tokens"])
        prefill = next(p["seconds"] for p in told["parts"] if p["kind"] == "prefill")
        self.assertAlmostEqual(sum(s["seconds"] for s in told["prompt_steps"]), prefill, delta=1e-6)
        self.assertGreaterEqual(len(told["sentences"]), 3)
        self.assertEqual(told, self.server.request(f"/dashboard/request/{told['request']}")[2])
        self.assertEqual(told, self.story(told["request"]))

    def test_what_is_not_known(self):
        for name in ("999999", "0", "-1", "x", "chatcmpl-0", "99999999999999999999999", "%00", "1/2"):
            status, _, answer = self.server.request(f"/v1/requests/{name}/story")
            self.assertEqual(status, 404, name)
            self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
            self.assertEqual(answer["error"]["code"], "not_found")
        for path in ("/v1/requests/", "/v1/requests/1", "/v1/requests/story", "/v1/requests/1/storyx"):
            self.assertEqual(self.server.request(path)[0], 404, path)
        self.assertEqual(self.server.request("/v1/requests/1/story", {})[0], 405)

    def test_a_list(self):
        ids = [self.story(self.complete(prompt="A", max_tokens=n)["id"])["request"] for n in (2, 200, 2)]
        status, _, latest = self.server.request("/v1/requests?limit=3")
        self.assertEqual((status, latest["object"]), (200, "list"))
        self.assertEqual([r["request"] for r in latest["data"]], ids[::-1])
        slowest = self.server.request("/v1/requests?order=slowest&limit=100")[2]["data"]
        self.assertEqual([r["seconds"] for r in slowest], sorted((r["seconds"] for r in slowest), reverse=True))
        self.assertGreaterEqual(latest["total"], len(slowest))
        for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("limit=", "limit"),
                             ("order=fastest", "order"), ("limit=2&order=", "order")):
            status, _, answer = self.server.request("/v1/requests?" + query)
            self.assertEqual((status, answer["error"]["param"]), (400, param), query)

    def test_explained_in_a_terminal(self):
        answer = self.complete(prompt="Once upon a time", max_tokens=30)
        told = self.story(answer["id"])
        code, out, err = explain(answer["id"], "--url", self.server.url)
        self.assertEqual((code, err), (0, ""))
        self.assertIn(f"Request {told['request']}: length", out)
        for sentence in told["sentences"]:
            self.assertIn(sentence, out)
        for part in told["parts"]:
            self.assertEqual(part["what"] in out, part["seconds"] > 0, part)
        self.assertIn("#", out)
        code, out, _ = explain(str(told["request"]), "--json", "--url", self.server.url + "/v1")
        self.assertEqual((code, json.loads(out)), (0, told))
        code, out, _ = explain("--url", self.server.url, "--num", "2")
        self.assertEqual(code, 0)
        self.assertIn("The slowest of", out)
        self.assertIn(f"{told['request']}  length", out)
        code, out, _ = explain("--url", self.server.url, "--json", "--num", "1")
        self.assertEqual([r["request"] for r in json.loads(out)["latest"]], [told["request"]])

    def test_errors_in_a_terminal(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            nobody = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for args, part in ((("--url", nobody), "no server answers"), (("1", "--url", nobody), "no server answers"),
                           (("--url", "nonsense"), "http"), (("999999", "--url", self.server.url), "404"),
                           (("a/b", "--url", self.server.url), "no id of a request"),
                           (("--api-key-env", "NO_SUCH_VARIABLE", "--url", self.server.url), "NO_SUCH_VARIABLE"),
                           (("--ca", "x", "--url", self.server.url), "https://"),
                           (("--num", "0", "--url", self.server.url), "--num")):
            code, out, err = explain(*args)
            self.assertEqual((code, out), (2, ""), args)
            self.assertEqual(len(err.splitlines()), 1, err)
            self.assertIn(part, err)


@unittest.skipUnless(stories() or model(), "no model here")
class Keys(unittest.TestCase):
    def test_a_key_reads_its_own_alone(self):
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write("".join(key + "\n" for key in KEYS.values()))
        self.addCleanup(os.unlink, file.name)
        with Server("--ctx", "512", "--api-key-file", file.name, path=stories() or model()) as server:
            bearer = {name: {"Authorization": "Bearer " + key} for name, key in KEYS.items()}
            body = {"prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": True}
            answers = {}

            def ask(name):
                answers[name] = server.request("/v1/completions", body, bearer[name])[2]

            threads = [threading.Thread(target=ask, args=(name,)) for name in KEYS]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            path = f"/v1/requests/{answers['one']['id']}/story"
            self.assertEqual(server.request(path)[0], 401)
            self.assertEqual(server.request("/v1/requests")[0], 401)
            status, _, told = server.request(path, headers=bearer["one"])
            self.assertEqual(status, 200)
            self.assertTrue(all(n["request"] is None for n in told["with"]), told["with"])
            for name in (answers["one"]["id"], told["request"]):
                status, _, answer = server.request(f"/v1/requests/{name}/story", headers=bearer["two"])
                self.assertEqual((status, answer["error"]["code"]), (404, "not_found"))
            for name in KEYS:
                listed = server.request("/v1/requests", headers=bearer[name])[2]
                self.assertEqual(listed["total"], 1)
                self.assertEqual(listed["data"][0]["request"] == told["request"], name == "one")
            code, out, err = explain("--url", server.url)
            self.assertEqual((code, out), (2, ""))
            self.assertIn("--api-key-env", err)
            code, out, _ = explain(answers["one"]["id"], "--url", server.url, "--api-key-env", "MY_KEY",
                                   env={"MY_KEY": KEYS["one"]})
            self.assertEqual(code, 0)
            self.assertIn(f"Request {told['request']}", out)


if __name__ == "__main__":
    unittest.main()
