"""Answers against OpenAI's own description of its API, where the test data has it."""

import json
import os
import pathlib
import unittest

import jsonschema
import yaml

from harness import ROOT, Server, model

HELLO = [{"role": "user", "content": "Say hello."}]


def description():
    data = pathlib.Path(os.environ.get("SLUICE_TEST_DATA") or ROOT.parent / "shared/data")
    path = data / "api/openai-openapi.yaml"
    return path if path.exists() else None


def as_json_schema(node):
    """OpenAPI 3.0's nullable, which the file still uses here and there, in the words of JSON Schema."""
    if isinstance(node, list):
        return [as_json_schema(v) for v in node]
    if not isinstance(node, dict):
        return node
    out = {k: as_json_schema(v) for k, v in node.items() if k not in ("nullable", "discriminator", "example")}
    return {"anyOf": [out, {"type": "null"}]} if node.get("nullable") is True else out


class Described:
    """The schemas of the description that are asked for, and those that they name."""

    def __init__(self, path):
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.all = yaml.load(path.read_text(), loader)["components"]["schemas"]

    def validator(self, name, change=None):
        schemas, open_names = {}, [name]
        while open_names:
            at = open_names.pop()
            if at in schemas:
                continue
            schemas[at] = as_json_schema(self.all[at])
            text = json.dumps(schemas[at])
            open_names += [part.split('"')[0] for part in text.split("#/components/schemas/")[1:]]
        if change:
            change(schemas[name])
        root = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/components/schemas/" + name,
                "components": {"schemas": schemas}}
        jsonschema.Draft202012Validator.check_schema(root)
        return jsonschema.Draft202012Validator(root)


# Where the description is narrower than OpenAI's own answers, which ours follow.
def text_completion(schema):
    logprobs = schema["properties"]["choices"]["items"]["properties"]["logprobs"]["anyOf"][0]["properties"]
    for name in ("token_logprobs", "top_logprobs"):  # nothing precedes the first token of an echo
        logprobs[name]["items"] = {"anyOf": [logprobs[name]["items"], {"type": "null"}]}


def text_chunk(schema):
    text_completion(schema)
    choice = schema["properties"]["choices"]["items"]["properties"]
    choice["finish_reason"] = {"anyOf": [choice["finish_reason"], {"type": "null"}]}
    schema["properties"]["usage"] = {"anyOf": [schema["properties"]["usage"], {"type": "null"}]}


@unittest.skipUnless(description(), "no test data")
@unittest.skipUnless(model(), "the default model is not in the cache")
class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        described = Described(description())
        cls.chat = described.validator("CreateChatCompletionResponse")
        cls.chat_chunk = described.validator("CreateChatCompletionStreamResponse")
        cls.text = described.validator("CreateCompletionResponse", text_completion)
        cls.text_chunk = described.validator("CreateCompletionResponse", text_chunk)
        cls.embeddings = described.validator("CreateEmbeddingResponse")
        cls.models = described.validator("ListModelsResponse")
        cls.model = described.validator("Model")
        cls.error = described.validator("ErrorResponse")
        cls.server = Server("--ctx", "512")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def valid(self, validator, answer):
        problems = [f"{e.json_path}: {e.message}" for e in validator.iter_errors(answer)]
        self.assertEqual(problems, [], json.dumps(answer)[:2000])

    def ask(self, path, **body):
        status, head, answer = self.server.request(path, {"temperature": 0, "max_tokens": 6, **body})
        self.assertEqual(status, 200, answer)
        if not body.get("stream"):
            return answer
        self.assertEqual(head.get_content_type(), "text/event-stream")
        events = [line[6:] for line in answer.splitlines() if line.startswith("data: ")]
        self.assertEqual(events.pop(), "[DONE]")
        return [json.loads(e) for e in events]

    def test_the_validators_can_fail(self):
        answer = self.ask("/v1/chat/completions", messages=HELLO, logprobs=True)
        self.valid(self.chat, answer)
        for break_it in (lambda a: a.pop("id"), lambda a: a["choices"][0].pop("logprobs"),
                         lambda a: a["choices"][0]["message"].pop("refusal"),
                         lambda a: a["choices"][0].update(finish_reason="eos"),
                         lambda a: a["choices"][0]["logprobs"]["content"][0].update(bytes="x"),
                         lambda a: a["usage"].update(total_tokens="7")):
            broken = json.loads(json.dumps(answer))
            break_it(broken)
            self.assertFalse(self.chat.is_valid(broken))

    def test_chat(self):
        for extra in ({}, {"n": 2}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3, "n": 2},
                      {"stop": ["e"]}, {"max_tokens": 60, "return_token_ids": True, "prompt_logprobs": 1}):
            with self.subTest(extra=extra):
                self.valid(self.chat, self.ask("/v1/chat/completions", messages=HELLO, **extra))

    def test_chat_stream(self):
        for extra in ({}, {"n": 2}, {"logprobs": True, "top_logprobs": 3},
                      {"stream_options": {"include_usage": True}},
                      {"n": 2, "logprobs": True, "max_tokens": 60,
                       "stream_options": {"include_usage": True, "continuous_usage_stats": True}}):
            with self.subTest(extra=extra):
                chunks = self.ask("/v1/chat/completions", messages=HELLO, stream=True, **extra)
                self.assertGreater(len(chunks), 2)
                for chunk in chunks:
                    self.valid(self.chat_chunk, chunk)

    def test_completions(self):
        for extra in ({}, {"n": 2}, {"logprobs": 0}, {"logprobs": 3, "n": 2}, {"logprobs": 2, "echo": True},
                      {"prompt": ["One", "Two"]}, {"prompt": [1, 2, 3]}, {"echo": True, "max_tokens": 0, "logprobs": 1},
                      {"stop": "e"}):
            with self.subTest(extra=extra):
                self.valid(self.text, self.ask("/v1/completions", **{"prompt": "The sky is", **extra}))

    def test_every_token_of_a_completion_has_a_score(self):
        # The end token too, though it is not in the text: scorers cut off max_tokens scores.
        answer = self.ask("/v1/completions", prompt="<|im_start|>", max_tokens=4, logprobs=1, echo=True)
        ended = self.ask("/v1/completions", prompt="It was stronger than before.", logprobs=1, echo=True, max_tokens=2,
                         allowed_token_ids=[2])  # <|im_end|>
        self.assertEqual(ended["choices"][0]["finish_reason"], "stop")
        self.assertEqual(ended["choices"][0]["text"], "It was stronger than before.")
        for a in (answer, ended):
            self.assertEqual(len(a["choices"][0]["logprobs"]["tokens"]), a["usage"]["total_tokens"])
        chunks = self.ask("/v1/completions", prompt="It was", logprobs=1, allowed_token_ids=[2], stream=True)
        scored = [c for c in chunks if c["choices"][0]["logprobs"]]
        self.assertEqual(len(scored), 1)
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks), "")

    def test_completions_stream(self):
        for extra in ({}, {"n": 2}, {"logprobs": 3}, {"logprobs": 1, "echo": True},
                      {"stream_options": {"include_usage": True}}):
            with self.subTest(extra=extra):
                chunks = self.ask("/v1/completions", prompt="The sky is", stream=True, **extra)
                self.assertGreater(len(chunks), 2)
                for chunk in chunks:
                    self.valid(self.text_chunk, chunk)

    def test_embeddings(self):
        for extra in ({}, {"input": ["One", "Two"]}, {"input": [1, 2, 3]}, {"pooling": "mean", "normalize": False}):
            status, _, answer = self.server.request("/v1/embeddings", {"input": "The sky", "model": "test", **extra})
            self.assertEqual(status, 200, answer)
            self.valid(self.embeddings, answer)

    def test_models(self):
        self.valid(self.models, self.server.request("/v1/models")[2])
        self.valid(self.model, self.server.request("/v1/models/test")[2])

    def test_errors(self):
        for path, body, want in (("/v1/chat/completions", {"messages": []}, 400), ("/v1/completions", {}, 400),
                                 ("/v1/completions", {"prompt": "x", "model": "y"}, 404), ("/v1/completions", b"{", 400),
                                 ("/v1/models/other", None, 404), ("/nowhere", None, 404), ("/v1/completions", None, 405),
                                 ("/v1/completions", b"x" * (9 << 20), 413),
                                 ("/v1/completions", {"prompt": "x " * 600}, 400)):
            status, _, answer = self.server.request(path, body)
            self.assertEqual(status, want)
            self.valid(self.error, answer)
        # After the head has gone out, an error is an event.
        _, _, text = self.server.request("/v1/completions", {"prompt": "x", "max_tokens": 500, "ignore_eos": True,
                                                             "stream": True, "timeout": 0.2})
        last = [line[6:] for line in text.splitlines() if line.startswith("data: ")][-1]
        self.valid(self.error, json.loads(last))


if __name__ == "__main__":
    unittest.main()
