"""/v1/completions with a suffix: a model that has tokens for it, and one that has none."""

import pathlib
import struct
import tempfile
import unittest

from harness import Server, stories


def with_marks(source, path, marks):
    """A copy of a GGUF file whose tokens with these ids are spelled so, as control tokens."""
    data = pathlib.Path(source).read_bytes()
    magic, version, tensors, pairs = struct.unpack_from("<4sIQQ", data)
    assert magic == b"GGUF"
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at, out = 24, bytearray(data[:24])

    def text():
        nonlocal at
        (size,) = struct.unpack_from("<Q", data, at)
        at += 8 + size
        return data[at - size:at]

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        at += sizes[kind]
        return data[at - sizes[kind]:at]

    for _ in range(pairs):
        begin, name = at, text()
        (kind,) = struct.unpack_from("<I", data, at)
        at += 4
        if kind != 9:
            value(kind)
            out += data[begin:at]
            continue
        inner, count = struct.unpack_from("<IQ", data, at)
        at += 12
        out += data[begin:at]
        for i in range(count):
            item = value(inner)
            if i in marks and name == b"tokenizer.ggml.tokens":
                item = marks[i].encode()
            if i in marks and name == b"tokenizer.ggml.token_type":
                item = struct.pack("<i", 3)
            out += (struct.pack("<Q", len(item)) if inner == 8 else b"") + item
    begin = at
    for _ in range(tensors):
        text()
        (dims,) = struct.unpack_from("<I", data, at)
        at += 4 + 8 * dims + 4 + 8
    out += data[begin:at]
    align = 32
    path.write_bytes(out + b"\0" * (-len(out) % align) + data[(at + align - 1) // align * align:])


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
            with_marks(stories(), path, marks)
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

    def test_a_model_without(self):
        with Server(path=stories()) as server:
            refused = self.post(server, 400, prompt="x", suffix="y")
            self.assertEqual((refused["error"]["param"], refused["error"]["code"]), ("suffix", "unsupported_parameter"))
            self.post(server, 200, prompt="x", max_tokens=1, suffix="")


if __name__ == "__main__":
    unittest.main()
