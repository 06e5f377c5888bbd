"""/v1/completions with a suffix: a model that has tokens for it, and one that has none."""

import pathlib
import tempfile
import unittest

from gguf_copy import copy_with
from harness import Server, stories


@unittest.skipUnless(stories(), "no test data")
class Infill(unittest.TestCase):
    def post(self, server, status, path="/v1/completions", **body):
        got, _, answer = server.request(path, body)
        self.assertEqual(got, status, answer)
        return answer

    def ids(self, server, text):
        return self.post(server, 200, "/tokenize", prompt=text, add_special_tokens=False)["tokens"]

    def test_a_model_with_tokens_for_it(self):
        marks = {500: "<|fim_prefix|>", 501: "<|fim_suffix|>", 502: "<|fim_middle|>"}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "fim.gguf"
            copy_with(stories(), path, marks)
            with Server(path=str(path)) as server:
                body = {"prompt": "Once upon", "max_tokens": 8, "temperature": 0, "return_token_ids": True}
                filled = self.post(server, 200, **body, suffix=" the end.")
                prompt = [1, 500, *self.ids(server, "Once upon"), 501, *self.ids(server, " the end."), 502]
                self.assertEqual(filled["choices"][0]["prompt_token_ids"], prompt)
                self.assertEqual(filled["usage"]["prompt_tokens"], len(prompt))
                same = self.post(server, 200, **{**body, "prompt": prompt})
                self.assertEqual(filled["choices"][0]["text"], same["choices"][0]["text"])
                plain = self.post(server, 200, **body, suffix="")
                self.assertEqual(plain["choices"][0]["prompt_token_ids"], [1, *self.ids(server, "Once upon")])
                two = self.post(server, 200, **{**body, "prompt": ["A", "B"]}, suffix="C")
                self.assertEqual(len(two["choices"]), 2)
                for bad in ({"prompt": [1, 2]}, {"echo": True}, {"truncate_prompt_tokens": 4}):
                    refused = self.post(server, 400, **{**body, **bad}, suffix="x")
                    self.assertEqual(refused["error"]["param"], "suffix")
                self.post(server, 400, **body, suffix="x " * 5000)

    def test_a_file_that_names_its_tokens(self):
        names = {"fim": ("fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id"),
                 "old": ("prefix_token_id", "suffix_token_id", "middle_token_id")}
        for kind, (before, after, middle) in names.items():
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "fim.gguf"
                copy_with(stories(), path, numbers={before: 500, after: 501, middle: 502})
                with self.subTest(kind), Server(path=str(path)) as server:
                    filled = self.post(server, 200, prompt="A", suffix="B", max_tokens=1, return_token_ids=True)
                    self.assertEqual(filled["choices"][0]["prompt_token_ids"],
                                     [1, 500, *self.ids(server, "A"), 501, *self.ids(server, "B"), 502])

    def test_a_model_without(self):
        with Server(path=stories()) as server:
            refused = self.post(server, 400, prompt="x", suffix="y")
            self.assertEqual((refused["error"]["param"], refused["error"]["code"]), ("suffix", "unsupported_parameter"))
            self.post(server, 200, prompt="x", max_tokens=1, suffix="")


if __name__ == "__main__":
    unittest.main()
