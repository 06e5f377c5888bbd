"""llm-comply, which tests servers for conformance with OpenAI's chat completions and responses and Anthropic's messages:
every case passes or is in the table below with a reason, and a case that is neither fails."""

import dataclasses
import os
import pathlib
import tempfile
import unittest

import llm_comply.schema
import llm_comply.tests
from gguf_copy import copy_with
from harness import PATIENCE, ROOT, Server, coder_model, model
from llm_comply.config import ComplianceConfig
from llm_comply.runner import TestRunner

SPECS = {"openai-chat": "openai_chat.json", "open-responses": "openresponses.json", "anthropic": "anthropic.json"}
# Cases that do not pass, by what their only error says.
OTHERS = {
    "chat-image-input": ("HTTP 400", "only text is supported"),
    "image-input": ("HTTP 400", "only text is supported"),
    "anth-image-input": ("HTTP 400", "only text is supported"),
    # A request without a model is no error here, as with other servers of one model: it means that one.
    "chat-error-handling": ("HTTP 200", "the model need not be named"),
    "error-handling": ("HTTP 200", "the model need not be named"),
}
# What cases of reasoning look for in the model's name; without it they are skipped.
NAME = "gpt-5-claude-4"
TEMPLATES = pathlib.Path(os.environ.get("SLUICE_TEST_DATA") or ROOT.parent / "shared/data") / "chat_templates/real"


def short(case):
    """The same case for a small model, which seldom ends by itself: the same answer each time, some words or a call."""
    def request(config):
        body = case.build_request(config)
        return {**body, "temperature": 0, **({} if "tools" in body else {"guided_regex": "[A-Za-z0-9 ,]{1,20}[.]"})}

    return dataclasses.replace(case, build_request=request)


class Comply:
    """Of one model: `path`, and `change`, what is done to each case."""

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def run_format(self, name, num_cases):
        cases = [self.change(case) for case in llm_comply.tests.get_tests(name)]
        self.assertGreaterEqual(len(cases), num_cases)
        spec = pathlib.Path(llm_comply.schema.__file__).parent / "specs" / SPECS[name]
        config = ComplianceConfig(base_url=self.server.url + "/v1", api_key="none", model=NAME, timeout=60.0 * PATIENCE)
        runner = TestRunner(config, cases, llm_comply.schema.SpecLoader(str(spec)))
        for case in cases:
            with self.subTest(case.id):
                result = runner.run_one(case)
                told = "; ".join(result.errors)
                if case.id in OTHERS:
                    begins, why = OTHERS[case.id]
                    self.assertEqual(result.status.value, "failed", f"{case.id} passes: {why} is no longer so")
                    self.assertTrue(result.errors[0].startswith(begins), told)
                else:
                    self.assertEqual(result.status.value, "passed", told)

    def test_chat_completions(self):
        self.run_format("openai-chat", 8)

    def test_responses(self):
        self.run_format("open-responses", 13)

    def test_messages(self):
        self.run_format("anthropic", 9)


@unittest.skipUnless(model(), "the default model is not in the cache")
@unittest.skipUnless(TEMPLATES.exists(), "no test data")
class SmolLM2(Comply, unittest.TestCase):
    """It was never taught tools: the constraint of tool_choice makes it call them."""

    change = staticmethod(short)

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "model.gguf"
        copy_with(model(), path, template=(TEMPLATES / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text())
        cls.server = Server("--ctx", "1024", path=str(path), name=NAME)


@unittest.skipUnless(os.environ.get("SLUICE_TEST_FULL") == "1", "minutes: runs with SLUICE_TEST_FULL=1")
@unittest.skipUnless(coder_model(), "no Qwen2.5-Coder-1.5B in the cache: scripts/get_coder_model.py gets it")
class QwenCoder(Comply, unittest.TestCase):
    """A model that calls tools by itself; the cases as they are."""

    change = staticmethod(lambda case: case)

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "2048", path=coder_model(), name=NAME)


if __name__ == "__main__":
    unittest.main()
