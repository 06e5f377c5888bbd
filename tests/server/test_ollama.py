"""Ollama's API: raw, and with its client where it is installed."""

import json
import math
import unittest

from harness import ScriptedServer, Server, model, stories
from scripted import TEMPLATE, call, says

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}}} for name in ("weather", "time")]
HELLO = [{"role": "user", "content": "hi"}]

# What the model writes, and the message that it comes to: content, thinking, calls.
SCRIPTS = {
    "Hello there.": ("Hello there.", "", []),
    "<think>\nSo.\n</think>\n\nYes.": ("Yes.", "So.", []),
    "I look." + call("weather", city="Rome"): ("I look.", "", [("weather", {"city": "Rome"})]),
    "<think>Two.</think>" + call("weather", city="Rome") + "\n" + call("time", city="Oslo"):
        ("", "Two.", [("weather", {"city": "Rome"}), ("time", {"city": "Oslo"})]),
    "\"quoted\"\n\\ <b>ü</b> 漢": ("\"quoted\"\n\\ <b>ü</b> 漢", "", []),
}


def script(text):
    fields = says(text)
    fields["options"] = {"num_predict": fields.pop("max_tokens")}
    return fields


def told(messages):
    """Messages of a stream, or one alone, in the form of SCRIPTS."""
    calls = [c["function"] for m in messages for c in m.get("tool_calls") or []]
    return ("".join(m.get("content") or "" for m in messages), "".join(m.get("thinking") or "" for m in messages),
            [(c["name"], c["arguments"]) for c in calls])


class Ollama(ScriptedServer):
    def ask(self, path, status=200, **body):
        got, head, answer = self.server.request(path, body)
        self.assertEqual(got, status, answer)
        if status == 200 and body.get("stream", True) and isinstance(answer, str):
            self.assertEqual(head.get_content_type(), "application/x-ndjson")
            return [json.loads(line) for line in answer.splitlines()]
        return answer

    def chat(self, status=200, **fields):
        body = {"model": "test", "messages": HELLO, "chat_template": TEMPLATE, **fields}
        return self.ask("/api/chat", status, **body)

    def test_streamed_is_whole(self):
        for text, message in SCRIPTS.items():
            with self.subTest(text=text):
                whole = self.chat(**script(text), tools=TOOLS, stream=False)
                self.assertEqual(told([whole["message"]]), message)
                lines = self.chat(**script(text), tools=TOOLS)
                self.assertEqual(told([line["message"] for line in lines]), message)
                self.assertEqual([line["done"] for line in lines], [False] * (len(lines) - 1) + [True])
                self.assertEqual({whole["done_reason"], lines[-1]["done_reason"]}, {"stop"})
                self.assertEqual(whole["eval_count"], lines[-1]["eval_count"])
                self.assertEqual(set(whole), set(lines[-1]))
                for name in ("total_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_count"):
                    self.assertGreater(whole[name], 0, name)

    def test_a_call_stays_on_one_line(self):
        text = "<tool_call>\n" + json.dumps({"name": "weather", "arguments": {"city": "Rome"}}, indent=1) + "\n</tool_call>"
        for fields in ({"stream": False}, {}):
            answer = self.chat(**script(text), tools=TOOLS, **fields)
            messages = [answer["message"]] if fields else [line["message"] for line in answer]
            self.assertEqual(told(messages), ("", "", [("weather", {"city": "Rome"})]))

    def test_a_call_that_was_cut_off(self):
        def chat(most, **fields):
            return self.chat(**{**script(call("weather", city="Rome")), "options": {"num_predict": most}}, tools=TOOLS, **fields)
        # Where /v1/chat/completions shows a broken call.
        for most in range(8, 100):
            body = {**says(call("weather", city="Rome")), "messages": HELLO, "tools": TOOLS, "max_tokens": most}
            choice = self.server.request("/v1/chat/completions", body)[2]["choices"][0]
            self.assertEqual(choice["finish_reason"], "length", "no call was cut off")
            if choice["message"]["tool_calls"]:
                break
        whole, lines = chat(most, stream=False), chat(most)
        lines = lines if isinstance(lines, list) else [lines]  # one line is JSON as a whole
        self.assertEqual({whole["done_reason"], lines[-1]["done_reason"]}, {"length"})
        self.assertEqual(told([whole["message"]])[2], [])
        self.assertEqual(told([line["message"] for line in lines])[2], [])

    def test_any_content_type_but_of_browsers(self):
        body = json.dumps({"model": "test", "messages": []}).encode()
        form = {"Content-Type": "application/x-www-form-urlencoded"}  # curl -d
        self.assertEqual(self.server.request("/api/chat", body, form)[0], 200)
        for sign in ({"Origin": self.server.url}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "cross-site"}):
            self.assertEqual(self.server.request("/api/chat", body, {**form, **sign})[0], 415)
        self.assertEqual(self.server.request("/v1/chat/completions", body, form)[0], 415)

    def test_options(self):
        answer = self.chat(stream=False, options={
            "num_predict": 6, "temperature": 0, "num_ctx": 64, "num_thread": 1, "penalize_newline": True})
        self.assertEqual((answer["eval_count"], answer["done_reason"]), (6, "length"))
        again = self.chat(stream=False, options={"num_predict": 6, "temperature": 0}, keep_alive="5m")
        self.assertEqual(answer["message"], again["message"])
        same = self.server.request("/v1/chat/completions", {"messages": HELLO, "chat_template": TEMPLATE, "max_tokens": 6,
                                                            "temperature": 0})[2]
        self.assertEqual(same["choices"][0]["message"]["content"], answer["message"]["content"])
        cut = self.chat(**{**script("One two three."), "options": {"stop": ["three"]}}, stream=False)
        self.assertEqual(cut["message"]["content"], "One two ")

    def test_format_and_think(self):
        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
        answer = self.chat(format=schema, stream=False, options={"num_predict": 100})
        self.assertIn(json.loads(answer["message"]["content"])["n"], (1, 2))
        few = {"stream": False, "options": {"num_predict": 6, "temperature": 0}}
        self.assertTrue(self.chat(think=True, **few)["message"]["thinking"])
        self.assertTrue(self.chat(think="high", **few)["message"]["thinking"])
        self.assertNotIn("thinking", self.chat(think=False, **few)["message"])
        both = self.chat(think=True, format=schema, thinking_token_budget=4, stream=False,
                         options={"num_predict": 100, "temperature": 0})["message"]
        self.assertTrue(both["thinking"])
        self.assertIn(json.loads(both["content"])["n"], (1, 2))

    def test_the_conversation_that_the_template_sees(self):
        turns = HELLO + [{"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
                             {"function": {"name": "weather", "arguments": {"city": "Rome"}}}]},
                         {"role": "tool", "tool_name": "weather", "content": call("time", city="Oslo")}]
        answer = self.chat(**script("Done."), messages=turns, tools=TOOLS, stream=False)
        self.assertEqual(told([answer["message"]]), ("Done.", "", []))  # a tool's result is no call
        chat = HELLO + [{"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                            {"type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
                        {"role": "tool", "content": call("time", city="Oslo")}]
        count = self.server.request("/tokenize", {"messages": chat, "tools": TOOLS, "chat_template": TEMPLATE})[2]["count"]
        self.assertEqual(answer["prompt_eval_count"], count)

    def test_generate(self):
        body = {"model": "test:latest", "prompt": "Once upon", "options": {"num_predict": 6, "temperature": 0}}
        plain = self.ask("/api/generate", **body, raw=True, stream=False)
        text = self.server.request("/v1/completions", {"prompt": "Once upon", "max_tokens": 6, "temperature": 0})[2]
        self.assertEqual(plain["response"], text["choices"][0]["text"])
        bare = self.ask("/api/generate", **body, raw=True, stream=False, add_special_tokens=False)
        self.assertEqual(bare["prompt_eval_count"] + 1, plain["prompt_eval_count"])
        lines = self.ask("/api/generate", **body)  # this model has no template
        self.assertEqual("".join(line["response"] for line in lines), plain["response"])
        self.assertEqual((lines[-1]["done"], lines[-1]["done_reason"], lines[-1]["eval_count"]), (True, "length", 6))
        asked = self.ask("/api/generate", model="test", prompt="hi", system="Be kind.", stream=False,
                         **script("<think>So.</think>Yes."))
        self.assertEqual((asked["response"], asked["thinking"]), ("Yes.", "So."))
        loaded = self.ask("/api/generate", model="test")
        self.assertEqual((loaded["done"], loaded["done_reason"]), (True, "load"))
        self.assertEqual(self.ask("/api/chat", model="test", messages=[])["done_reason"], "load")

    def test_embed(self):
        answer = self.ask("/api/embed", model="test", input=["One", "Two"], stream=False)
        self.assertEqual((answer["model"], len(answer["embeddings"])), ("test", 2))
        self.assertAlmostEqual(math.hypot(*answer["embeddings"][0]), 1, places=4)
        same = self.server.request("/v1/embeddings", {"input": "One"})[2]["data"][0]["embedding"]
        self.assertEqual(answer["embeddings"][0], same)
        long = "one two three " * 400
        self.assertEqual(self.ask("/api/embed", model="test", input=long)["prompt_eval_count"], 512)
        self.ask("/api/embed", 400, model="test", input=long, truncate=False)

    def test_about_the_model(self):
        (listed,) = self.server.request("/api/tags")[2]["models"]
        self.assertEqual((listed["name"], listed["details"]["family"]), ("test", "llama"))
        self.assertGreater(listed["size"], 0)
        about = self.ask("/api/show", model="test", stream=False)
        self.assertEqual(about["model_info"]["llama.context_length"], 512)
        self.assertIn("completion", about["capabilities"])
        self.assertNotIn("template", about)
        self.assertIn("version", self.server.request("/api/version")[2])

    def test_bad_input_is_refused_by_name(self):
        few = {"options": {"num_predict": 2}}
        cases = [
            ("/api/chat", {"messages": 1}, "messages"), ("/api/chat", {"messages": [1]}, "messages[0]"),
            ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["x"]}]}, "messages[0].images"),
            ("/api/chat", {"options": {"mirostat": 1}}, "mirostat"), ("/api/chat", {"options": {"x": 1}}, "options.x"),
            ("/api/chat", {"options": 1}, "options"), ("/api/chat", {"options": {"num_predict": 0}}, "num_predict"),
            ("/api/chat", {"options": {"temperature": "x"}}, "temperature"), ("/api/chat", {"format": "xml"}, "format"),
            ("/api/chat", {"think": "x"}, "think"), ("/api/chat", {"stream": 1}, "stream"),
            ("/api/chat", {"truncate": True}, "truncate"), ("/api/chat", {"logprobs": True}, "logprobs"),
            ("/api/chat", {"tools": [{"type": "x"}]}, "tools"),
            ("/api/generate", {"prompt": 1}, "prompt"), ("/api/generate", {"prompt": "x", "images": ["x"]}, "images"),
            ("/api/generate", {"prompt": "x", "template": "x"}, "template"),
            ("/api/generate", {"prompt": "x", "context": [1]}, "context"),
            ("/api/generate", {"prompt": "x", "raw": True, "system": "x"}, "system"),
            ("/api/embed", {}, "input"), ("/api/embed", {"input": "x", "dimensions": 7}, "dimensions"),
            ("/api/embed", {"input": "x", "normalize": False}, "normalize"),
            ("/api/embed", {"input": "x", "encoding_format": "base64"}, "encoding_format"),
            ("/api/generate", {"prompt": "x", "tools": TOOLS}, "use /api/chat"),
            ("/api/chat", {"options": {"penalize_newline": False}}, "penalize_newline"),
            ("/api/chat", {"options": {"num_predict": 1 << 31}}, "options.num_predict"),
            ("/api/chat", {"max_completion_tokens": 4}, "use options.num_predict"),
            ("/api/chat", {"return_tokens": True}, "return_tokens"), ("/api/show", {}, "model"),
        ]
        for path, fields, name in cases:
            with self.subTest(path=path, **fields):
                template = {"chat_template": TEMPLATE} if path == "/api/chat" else {}
                body = {} if path == "/api/show" else {"model": "test"}
                if path == "/api/chat":
                    body = {**body, "messages": HELLO, **template, **few}
                answer = self.ask(path, 400, **{**body, **fields})
                self.assertEqual(list(answer), ["error"])
                self.assertIn(name, answer["error"])
        self.assertIn("other", self.ask("/api/chat", 404, model="other", messages=HELLO)["error"])
        self.assertEqual(list(self.server.request("/api/chat")[2]), ["error"])  # 405
        self.ask("/api/show", 404, model=":latest")
        status, _, answer = self.server.request("/api/pull", {"model": "test"})
        self.assertEqual((status, list(answer)), (404, ["error"]))

    def test_ollamas_client(self):
        try:
            import ollama
        except ImportError:
            self.skipTest("no ollama package")
        client = ollama.Client(host=self.server.url)
        self.assertEqual([m.model for m in client.list().models], ["test"])
        self.assertEqual(client.show("test").modelinfo["general.architecture"], "llama")
        options = {"num_predict": 6, "temperature": 0}
        whole = client.generate(model="test", prompt="Once upon", options=options)
        pieces = list(client.generate(model="test", prompt="Once upon", options=options, stream=True))
        self.assertEqual("".join(p.response for p in pieces), whole.response)
        self.assertTrue(pieces[-1].done)
        self.assertEqual(len(client.embed(model="test", input=["a", "b"]).embeddings), 2)
        with self.assertRaises(ollama.ResponseError) as refused:  # the test's model has no template
            client.chat(model="test", messages=HELLO)
        self.assertIn("chat template", refused.exception.error)
        if not model():
            return
        with Server("--ctx", "256") as server:
            client = ollama.Client(host=server.url)
            whole = client.chat(model="test", messages=HELLO, options=options)
            pieces = list(client.chat(model="test", messages=HELLO, options=options, stream=True))
            self.assertEqual("".join(p.message.content for p in pieces), whole.message.content)
            self.assertEqual((whole.eval_count, pieces[-1].done_reason), (6, "length"))


if __name__ == "__main__":
    unittest.main()
