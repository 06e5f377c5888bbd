"""Fields beyond OpenAI's, /models/NAME/generate, the description of the API, and configuration."""

import concurrent.futures
import json
import os
import subprocess
import tempfile
import unittest
import urllib.request

from harness import PATIENCE, SLUICE, Server, model, stories

HELLO = [{"role": "user", "content": "Say hello."}]


def events(answer):
    """The data of a stream's events; comments are left out."""
    return [line[6:] for line in answer.splitlines() if line.startswith("data: ")]


@unittest.skipUnless(model(), "the default model is not in the cache")
class Fields(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "1024")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def post(self, path, expect=200, **body):
        status, _, answer = self.server.request(path, body)
        self.assertEqual(status, expect, answer)
        return answer

    def complete(self, expect=200, **body):
        body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8, **body}
        return self.post("/v1/completions", expect, **body)

    def test_stop_reason_is_the_string_that_matched(self):
        text = self.complete()["choices"][0]["text"]
        word = text.split()[1]
        choice = self.complete(stop=["no such text", word])["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", word))
        _, _, stream = self.server.request(
            "/v1/completions", {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8,
                                "stop": [word], "stream": True})
        last = json.loads(events(stream)[-2])
        self.assertEqual(last["choices"][0]["stop_reason"], word)

    def test_bad_words_do_not_appear(self):
        first = self.complete()["choices"][0]["text"].split()[0].strip(".,")
        text = self.complete(bad_words=[first])["choices"][0]["text"]
        self.assertNotIn(first, text.split())
        self.assertNotEqual(text, self.complete()["choices"][0]["text"])
        self.complete(expect=400, bad_words="Paris")
        self.complete(expect=400, bad_words=[""])
        self.complete(expect=400, bad_words=["long " * 50])

    def test_truncated_prompts_keep_their_end(self):
        ids = self.post("/tokenize", prompt="one two three four five six")["tokens"]
        answer = self.complete(prompt=ids, truncate_prompt_tokens=3, return_token_ids=True)
        self.assertEqual(answer["choices"][0]["prompt_token_ids"], ids[-3:])
        self.assertEqual(answer["usage"]["prompt_tokens"], 3)
        answer = self.complete(prompt=[7] * 3000, truncate_prompt_tokens=-1)
        self.assertEqual(answer["usage"]["prompt_tokens"], 1023)
        self.complete(expect=400, prompt=[7] * 3000)
        self.complete(expect=400, truncate_prompt_tokens=0)
        for side, kept in (("left", ids[-3:]), ("right", ids[:3])):
            answer = self.complete(prompt=ids, truncate_prompt_tokens=3, truncation_side=side, return_token_ids=True)
            self.assertEqual(answer["choices"][0]["prompt_token_ids"], kept)
        self.complete(expect=400, truncate_prompt_tokens=3, truncation_side="middle")

    def test_the_last_message_is_continued(self):
        begun = HELLO + [{"role": "assistant", "content": "Hello there,"}]
        ids = self.post("/tokenize", messages=begun, continue_final_message=True)["tokens"]
        text = self.post("/detokenize", tokens=ids)["prompt"]
        self.assertTrue(text.endswith("Hello there,"), text)
        self.post("/v1/chat/completions", messages=begun, continue_final_message=True, max_tokens=4)
        self.post("/v1/chat/completions", 400, messages=HELLO, continue_final_message=True)
        self.post("/v1/chat/completions", 400, messages=begun, continue_final_message=True,
                  add_generation_prompt=True)

    def test_fields_of_other_servers(self):
        plain = self.complete(repetition_penalty=1.4)["choices"][0]["text"]
        self.assertEqual(self.complete(repeat_penalty=1.4)["choices"][0]["text"], plain)
        self.assertNotEqual(self.complete()["choices"][0]["text"], plain)
        self.assertEqual(self.complete(max_tokens=None, n_predict=3)["usage"]["completion_tokens"], 3)
        self.complete(mirostat=0, typical_p=1.0, grammar="", cache_prompt=True, xtc_probability=0, tools=[])
        for name, value in (("mirostat", 2), ("typical_p", 0.9), ("dry_multiplier", 0.8),
                            ("prompt_logprobs", -1)):
            error = self.complete(expect=400, **{name: value})["error"]
            self.assertEqual(error["param"], name)
            self.assertIn(":", error["message"])

    def test_a_template_that_drops_a_role(self):
        with Server("--ctx", "256", "--allow-request-template") as server:
            template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
            body = {"messages": HELLO + [{"role": "critic", "content": "Too long."}], "chat_template": template, "max_tokens": 2}
            status, _, answer = server.request("/v1/chat/completions", body)
            self.assertEqual((status, answer["error"]["param"]), (400, "messages[1].role"))
            body["messages"][1]["role"] = "user"
            self.assertEqual(server.request("/v1/chat/completions", body)[0], 200)

    def test_a_template_in_a_request_is_refused(self):
        answer = self.post("/v1/chat/completions", 400, messages=HELLO, chat_template="{{ messages }}")
        self.assertEqual(answer["error"]["param"], "chat_template")

    def test_generate(self):
        parameters = {"max_new_tokens": 6}
        whole = self.post("/models/test/generate", inputs="The capital of France is", parameters=parameters)
        self.assertEqual(whole["generated_text"], self.complete(max_tokens=6)["choices"][0]["text"])
        self.assertEqual(len(whole["token_ids"]), 6)
        ids = self.post("/tokenize", prompt="The capital of France is")["tokens"]
        again = self.post("/models/test/generate", inputs=ids, parameters={**parameters, "details": True})
        self.assertEqual(again["token_ids"], whole["token_ids"])
        self.assertEqual(again["details"]["finish_reason"], "length")
        full = self.post("/models/test/generate", inputs="The capital of France is",
                         parameters={**parameters, "return_full_text": True})
        self.assertEqual(full["generated_text"], "The capital of France is" + whole["generated_text"])
        stream = self.post("/models/test/generate_stream", inputs=ids, parameters=parameters)
        parts = [json.loads(e) for e in events(stream)]
        self.assertEqual([p["token"]["id"] for p in parts if p["token"]["id"] is not None], whole["token_ids"])
        self.assertEqual("".join(p["token"]["text"] for p in parts), whole["generated_text"])
        self.assertEqual(parts[-1]["generated_text"], whole["generated_text"])
        written = {"max_new_tokens": "6", "do_sample": "False", "return_full_text": "True"}
        again = self.post("/models/test/generate", inputs="The capital of France is", parameters=written, stream="False")
        self.assertEqual(again["generated_text"], full["generated_text"])
        self.post("/models/test/generate", 400, inputs="a", parameters={"do_sample": "maybe"})
        self.post("/models/other/generate", 404, inputs="a")
        self.post("/models/test/nothing", 404, inputs="a")
        self.post("/models/test/generate", 400, inputs=7)
        self.post("/models/test/generate", 400, inputs="a", parameters={"max_new_tokens": "six"})

    def test_the_description_has_every_route(self):
        status, _, spec = self.server.request("/openapi.json")
        self.assertEqual(status, 200)
        described = {(method.upper(), path) for path, methods in spec["paths"].items() for method in methods}
        # The server's own list: a path that ends with / has more behind it.
        routes = [line.split() for line in self.server.request("/")[2].splitlines() if line.startswith(("GET ", "POST "))]
        self.assertGreater(len(routes), 15)
        for method, route in routes:
            begins = route if route.endswith("/") and route != "/" else None
            self.assertTrue(any(m == method and (p.startswith(begins) if begins else p == route) for m, p in described),
                            f"{method} {route}")
        self.post("/v1/completions", prompt="x", max_tokens=2)
        with urllib.request.urlopen(self.server.url + "/dashboard/events?interval=100", timeout=10 * PATIENCE) as stream:
            self.assertEqual(stream.headers.get_content_type(), "text/event-stream")
            self.assertEqual(stream.readline(), b"event: hello\n")  # the head of it: the rest has no end
            frames = (json.loads(line[6:]) for line in stream if line.startswith(b"data: {"))
            frame = next(f for f in frames if f.get("requests") and f.get("steps"))
        names = {"model": "test", "id": frame["requests"][0][0], "step": frame["steps"][-1][0], "file": "style.css"}
        for method, path in sorted(described):
            if path in ("/dashboard/events", "/tokenizer_info"):  # above, and below
                continue
            for name, value in names.items():
                path = path.replace("{" + name + "}", str(value))
            status, _, _ = self.server.request(path, method=method, body={} if method == "POST" else None)
            named = path.startswith(("/v1/streams/", "/v1/responses/", "/v1/recording/", "/v1/files", "/v1/batches"))  # there is none
            expected = (404,) if named else (200, 400)
            self.assertIn(status, expected, f"{method} {path}")

    def test_tokenizer_info(self):
        status, _, answer = self.server.request("/tokenizer_info")
        self.assertEqual((status, answer["error"]["code"]), (404, "not_enabled"))
        with Server("--ctx", "64", "--allow-tokenizer-info") as server:
            status, _, info = server.request("/tokenizer_info")
            self.assertEqual(status, 200)
            self.assertEqual((info["tokenizer_class"], info["vocab_size"]), ("GPT2TokenizerFast", 49152))
            self.assertEqual((info["bos_token"], info["eos_token"]), ("<|im_start|>", "<|im_end|>"))
            self.assertEqual((info["bos_token_id"], info["eos_token_id"]), (1, 2))
            self.assertEqual(info["added_tokens_decoder"]["2"], {"content": "<|im_end|>", "special": True})
            self.assertIn("<|im_start|>", info["chat_template"])
            spec = server.request("/openapi.json")[2]["paths"]["/tokenizer_info"]["get"]["responses"]["200"]
            schema = spec["content"]["application/json"]["schema"]
            self.assertLessEqual(set(schema["required"]), set(info))
            self.assertEqual(set(info), set(schema["properties"]))


@unittest.skipUnless(stories(), "no test data")
class Options(unittest.TestCase):
    def test_silent_streams_get_a_comment(self):
        # One sequence at a time: the second request waits in silence until the first is done.
        with Server("--max-seqs", "1", "--ping", "0.2", path=stories()) as server:
            body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 1}
            def ask():
                request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(),
                                                 {"Content-Type": "application/json"})
                return urllib.request.urlopen(request, timeout=60 * PATIENCE)
            # urlopen returns with the head, which a waiting stream gets with its first comment.
            with concurrent.futures.ThreadPoolExecutor(64) as threads:
                texts = list(threads.map(lambda _: ask().read().decode(), range(64)))
            self.assertTrue(all(text.endswith("data: [DONE]\n\n") for text in texts))
            self.assertTrue(any(": ping\n\n" in text for text in texts))

    def test_flags_over_variables_over_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "serve.yaml")
            with open(path, "w") as f:
                f.write("model: " + stories() + "\nport: 1\nmax_seqs: 3\nbudget: 64\nallow-no-key: true\n")
            env = {**os.environ, "SLUICE_MAX_SEQS": "5", "SLUICE_BUDGET": "32"}
            out = subprocess.run([SLUICE, "config", "show", "serve", "--config", path, "--budget", "128"],
                                 env=env, capture_output=True, text=True, check=True).stdout
            rows = {line.split()[0]: line for line in out.splitlines()}
            self.assertRegex(rows["budget"], r"budget +128 +command line")
            self.assertRegex(rows["max-seqs"], r"max-seqs +5 +SLUICE_MAX_SEQS")
            self.assertRegex(rows["port"], r"port +1 +.*serve.yaml, line 2")
            self.assertRegex(rows["allow-no-key"], r"true +.*line 5")
            self.assertRegex(rows["host"], r"host +127.0.0.1 +default")
            for text, words in (("prot: 1\n", "there is no option 'prot'"), ("port: [1\n", "line "),
                                ("allow-no-key: maybe\n", "true or false"), ("- 1\n", "a map")):
                with open(path, "w") as f:
                    f.write(text)
                run = subprocess.run([SLUICE, "config", "show", "serve", "x", "--config", path],
                                     capture_output=True, text=True)
                self.assertEqual(run.returncode, 2, text)
                self.assertIn(words, run.stderr)
                self.assertEqual(run.stderr.count("\n"), 1, run.stderr)

    def test_the_file_of_earlier_serving_scripts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "llama.yaml")
            with open(path, "w") as f:
                f.write("""model_config:
    model_name: 'llama_7b'
    seq_length: [128, 256]
    decode_batch_size: [8, 16]
    zactivate_len: [512, 1024]
    batching_strategy: 'continuous'
serving_config:
    server_ip: '127.0.0.1'
    server_port: 0
pa_config:
    num_blocks: 64
    block_size: 16
tokenizer:
    type: LlamaTokenizer
""")
            out = subprocess.run([SLUICE, "config", "show", "serve", stories(), "--config", path],
                                 capture_output=True, text=True, check=True)
            self.assertRegex(out.stdout, r"max-seqs +16 +.*line 4")
            self.assertRegex(out.stdout, r"ctx +256 +.*line 3")
            self.assertRegex(out.stdout, r"kv-blocks +64 ")
            self.assertIn("zactivate_len", out.stderr)


if __name__ == "__main__":
    unittest.main()
