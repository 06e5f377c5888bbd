"""lm-eval over its local-completions model: prompts as token ids of an independent tokenizer, echoed and
scored. Its scores are compared with what the server's own log probabilities add up to."""

import gzip
import json
import math
import os
import pathlib
import tempfile
import unittest

SCRATCH = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = SCRATCH.name  # read when datasets is imported

import lm_eval
from lm_eval import utils
from lm_eval.tasks import TaskManager

from harness import ROOT, Server, model

HERE = pathlib.Path(__file__).resolve().parent
WINDOW = 32  # tokens; each text is longer


def tokenizer():
    data = pathlib.Path(os.environ.get("SLUICE_TEST_DATA") or ROOT.parent / "shared/data")
    path = data / "tokenizers/smollm2/tokenizer.reconstructed.json.gz"
    return path if path.exists() else None


@unittest.skipUnless(tokenizer(), "no test data")
@unittest.skipUnless(model(), "the default model is not in the cache")
class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "1024")
        folder = pathlib.Path(SCRATCH.name) / "tokenizer"
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes(gzip.decompress(tokenizer().read_bytes()))
        (folder / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}))
        cls.folder = folder
        cls.tasks = TaskManager(include_path=str(HERE / "tasks"), include_defaults=False)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def evaluate(self, task, **options):
        args = {"model": "test", "base_url": self.server.url + "/v1/completions", "tokenizer_backend": "huggingface",
                "tokenizer": str(self.folder), "num_concurrent": 3, "max_retries": 1, "tokenized_requests": True,
                "max_length": 1024, **options}
        answer = lm_eval.simple_evaluate(model="local-completions", model_args=args, tasks=[task], batch_size=4,
                                         task_manager=self.tasks, bootstrap_iters=0, log_samples=True)
        return answer["results"][task], answer["samples"][task]

    def ids(self, text):
        return self.server.request("/tokenize", {"prompt": text, "add_special_tokens": False})[2]["tokens"]

    def scores(self, ids):
        """Log probabilities of the tokens, and whether each was the likeliest."""
        body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
        status, _, answer = self.server.request("/v1/completions", body)
        self.assertEqual(status, 200, answer)
        probs = answer["choices"][0]["logprobs"]
        best = [top is None or max(top.values()) == p for p, top in zip(probs["token_logprobs"], probs["top_logprobs"])]
        return probs["token_logprobs"], best

    def test_multiple_choice(self):
        results, samples = self.evaluate("sluice_choice")
        docs = [json.loads(line) for line in (HERE / "tasks/choice.jsonl").read_text().splitlines()]
        self.assertEqual(len(samples), len(docs))
        right = right_by_length = 0
        for doc, sample in zip(docs, sorted(samples, key=lambda s: s["doc_id"])):
            start = len(self.ids(doc["question"]))
            sums = []
            for choice, (theirs, greedy) in zip(doc["choices"], sample["filtered_resps"]):
                probs, best = self.scores(self.ids(doc["question"] + " " + choice))
                sums.append(sum(probs[start:]))
                self.assertAlmostEqual(theirs, sums[-1], 4, (doc["question"], choice))
                self.assertEqual(greedy, all(best[start:]), (doc["question"], choice))
            by_length = [s / len(choice) for s, choice in zip(sums, doc["choices"])]
            right += sums.index(max(sums)) == doc["answer"]
            right_by_length += by_length.index(max(by_length)) == doc["answer"]
        self.assertAlmostEqual(results["acc,none"], right / len(docs))
        self.assertAlmostEqual(results["acc_norm,none"], right_by_length / len(docs))
        self.assertGreater(right, len(docs) / 2)  # a model that reads answers most of them

    def test_rolling(self):
        results, samples = self.evaluate("sluice_text", max_length=WINDOW + 2)  # one before the window, one after
        docs = [json.loads(line)["text"] for line in (HERE / "tasks/text.jsonl").read_text().splitlines()]
        total = size = words = 0
        for doc, sample in zip(docs, sorted(samples, key=lambda s: s["doc_id"])):
            windows = list(map(utils.make_disjoint_window, utils.get_rolling_token_windows(
                token_list=self.ids(doc), prefix_token=1, max_seq_len=WINDOW, context_len=1)))
            mine = 0
            for context, continuation in windows:
                probs, _ = self.scores(context + continuation)
                mine += sum(probs[len(context):])
            self.assertAlmostEqual(sample["filtered_resps"][0], mine, 3)
            total, size, words = total + mine, size + len(doc.encode()), words + len(doc.split())
        self.assertAlmostEqual(results["bits_per_byte,none"], -total / size / math.log(2), 4)
        self.assertAlmostEqual(results["byte_perplexity,none"], math.exp(-total / size), 4)
        self.assertAlmostEqual(math.log(results["word_perplexity,none"]), -total / words, 4)

    def test_generate(self):
        _, samples = self.evaluate("sluice_generate")
        for sample in samples[:4]:
            body = {"prompt": sample["doc"]["question"], "max_tokens": 8, "temperature": 0, "stop": ["."]}
            answer = self.server.request("/v1/completions", body)[2]
            self.assertEqual(sample["resps"][0][0], answer["choices"][0]["text"])

    def test_the_server_s_tokenizer(self):
        with Server("--ctx", "64", "--allow-tokenizer-info") as server:
            remote = utils.RemoteTokenizer(server.url)
            self.assertEqual((remote.bos_token, remote.eos_token), ("<|im_start|>", "<|im_end|>"))
            self.assertEqual(remote.decode(remote.encode("Hello, world")), "Hello, world")
            text = remote.apply_chat_template([{"role": "user", "content": "Hi"}])
            self.assertIn("<|im_start|>user\nHi<|im_end|>", text)
            self.assertTrue(text.endswith("<|im_start|>assistant\n"))


if __name__ == "__main__":
    unittest.main()
