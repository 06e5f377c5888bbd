"""/v1/embeddings with the openai client: forms of input, encodings, pooling, limits."""

import base64
import math
import struct
import threading
import unittest

import openai

from harness import Server, model

TEXTS = ["The river runs to the sea.", "A stream flows into the ocean.", "Compilers translate source code.", "One"]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@unittest.skipUnless(model(), "the default model is not in the cache")
class Embeddings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "256")
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def vectors(self, given, **extra):
        status, _, answer = self.server.request("/v1/embeddings", {"input": given, "model": "test", **extra})
        self.assertEqual(status, 200, answer)
        self.assertEqual([d["index"] for d in answer["data"]], list(range(len(answer["data"]))))
        return [d["embedding"] for d in answer["data"]]

    def test_the_client_in_both_encodings(self):
        floats = self.client.embeddings.create(model="test", input=TEXTS, encoding_format="float")
        default = self.client.embeddings.create(model="test", input=TEXTS)  # the client asks for base64 itself
        self.assertEqual(floats.model, "test")
        self.assertEqual([d.index for d in floats.data], [0, 1, 2, 3])
        self.assertEqual(len(floats.data[0].embedding), 576)
        for a, b in zip(floats.data, default.data):
            self.assertEqual([struct.pack("<f", x) for x in a.embedding], [struct.pack("<f", x) for x in b.embedding])
            self.assertAlmostEqual(sum(x * x for x in a.embedding), 1, places=5)
        counts = [self.server.request("/tokenize", {"prompt": t})[2]["count"] for t in TEXTS]
        for answer in (floats, default):
            self.assertEqual((answer.usage.prompt_tokens, answer.usage.total_tokens), (sum(counts), sum(counts)))
        raw = self.client.embeddings.create(model="test", input="One", encoding_format="base64").data[0].embedding
        if isinstance(raw, str):  # what was asked for explicitly is not decoded
            raw = list(struct.unpack(f"<{576}f", base64.b64decode(raw, validate=True)))
        self.assertEqual(len(raw), 576)

    def test_forms_of_input(self):
        ids = [self.server.request("/tokenize", {"prompt": t})[2]["tokens"] for t in TEXTS]
        together = self.vectors(TEXTS)
        self.assertEqual(self.vectors(ids), together)
        for text, tokens, want in zip(TEXTS, ids, together):
            self.assertEqual(self.vectors(text), [want])
            self.assertEqual(self.vectors(tokens), [want])
        self.assertEqual(len({tuple(v) for v in together}), 4)

    def test_pooling_and_length(self):
        last, mean = self.vectors(TEXTS[0]), self.vectors(TEXTS[0], pooling="mean")
        self.assertNotEqual(last, mean)
        self.assertEqual(self.vectors(TEXTS[0], pooling="last"), last)
        # Of one token, the mean is the last.
        self.assertEqual(self.vectors([28], pooling="mean"), self.vectors([28], pooling="last"))
        raw = self.vectors(TEXTS[0], pooling="mean", normalize=False)[0]
        length = math.sqrt(sum(x * x for x in raw))
        self.assertGreater(abs(length - 1), 0.1)
        for x, y in zip(raw, mean[0]):
            self.assertAlmostEqual(x / length, y, places=6)
        # A mean over the same words in other surroundings says roughly the same.
        means = self.vectors(TEXTS, pooling="mean")
        self.assertGreater(cosine(means[0], means[1]), cosine(means[0], means[2]))
        with Server("--ctx", "256", "--pooling", "mean") as other:
            answer = other.request("/v1/embeddings", {"input": TEXTS[0]})[2]
            self.assertEqual(answer["data"][0]["embedding"], mean[0])

    def test_the_same_among_others(self):
        want = self.vectors(TEXTS, pooling="mean") + self.vectors(TEXTS)
        got = {}

        def embed(i):
            got[i] = self.vectors(TEXTS[i % 4], pooling="mean" if i < 4 else "last")[0]

        def chat():
            self.server.request("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True})

        threads = [threading.Thread(target=chat) for _ in range(4)]
        threads += [threading.Thread(target=embed, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([got[i] for i in range(8)], want)

    def test_limits(self):
        self.assertEqual(len(self.vectors([1] * 256)), 1)  # all of the context
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.embeddings.create(model="test", input=[1] * 257)
        self.assertEqual((caught.exception.param, caught.exception.code), ("input", "context_length_exceeded"))
        cut = self.vectors([1] * 10 + [5] * 300, truncate_prompt_tokens=-1)
        self.assertEqual(cut, self.vectors([5] * 256))
        self.assertEqual(len(self.vectors("One", dimensions=576)[0]), 576)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.embeddings.create(model="test", input="One", dimensions=64)
        self.assertEqual(caught.exception.param, "dimensions")
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="other", input="One")

    def test_counted_like_other_requests(self):
        before = [self.server.metric(n) for n in ("sluice_prompt_tokens_total", "sluice_request_seconds_count")]
        finished = self.server.metric("sluice_requests_finished_total")
        self.vectors([[1, 2, 3], [4, 5]])
        self.assertEqual(self.server.metric("sluice_prompt_tokens_total"), before[0] + 5)
        self.assertEqual(self.server.metric("sluice_request_seconds_count"), before[1] + 2)
        self.assertEqual(self.server.metric("sluice_requests_finished_total"), finished + 2)
        self.assertEqual(self.server.metric("sluice_kv_cache_usage_ratio"), 0)
        status, _, answer = self.server.request("/v1/embeddings", {"input": [[7] * 250] * 40, "timeout": 0.001})
        self.assertEqual((status, answer["error"]["code"]), (504, "deadline_exceeded"))
        self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") == 0))

    def test_queue(self):
        with Server("--ctx", "256", "--max-queue", "4") as server:
            answers = []

            def ask():
                answers.append(server.request("/v1/embeddings", {"input": [[3] * 250] * 3})[:2])

            threads = [threading.Thread(target=ask) for _ in range(12)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            codes = [a[0] for a in answers]
            self.assertEqual(set(codes), {200, 429})
            self.assertTrue(all("Retry-After" in head for code, head in answers if code == 429))


if __name__ == "__main__":
    unittest.main()
