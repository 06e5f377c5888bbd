"""langchain-openai's chat and text models."""

import json
import unittest

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

from harness import Server, model


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return "fine"


class Person(BaseModel):
    """A person."""

    name: str


@unittest.skipUnless(model(), "the default model is not in the cache")
class LangChain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "1024")
        cls.options = {"model": "test", "base_url": cls.server.url + "/v1", "api_key": "none", "max_retries": 0}
        cls.chat = ChatOpenAI(temperature=0, max_tokens=12, stream_usage=True, **cls.options)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_invoke(self):
        answer = self.chat.invoke([SystemMessage("Be brief."), HumanMessage("Say hello.")])
        self.assertIsInstance(answer, AIMessage)
        self.assertTrue(answer.content)
        self.assertTrue(answer.response_metadata["id"].startswith("chatcmpl-"))
        self.assertIn(answer.response_metadata["finish_reason"], ("stop", "length"))
        usage = answer.usage_metadata
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
        self.assertEqual(answer.tool_calls, [])

    def test_stream(self):
        whole = self.chat.invoke("Say hello.")
        sum_of_parts = None
        count = 0
        for part in self.chat.stream("Say hello."):
            sum_of_parts = part if sum_of_parts is None else sum_of_parts + part
            count += 1
        self.assertGreater(count, 3)
        self.assertEqual(sum_of_parts.content, whole.content)
        self.assertEqual(sum_of_parts.usage_metadata["output_tokens"], whole.usage_metadata["output_tokens"])
        self.assertEqual(sum_of_parts.response_metadata["finish_reason"], whole.response_metadata["finish_reason"])

    def test_batch(self):
        questions = [f"What follows {i}?" for i in range(12)]
        together = [a.content for a in self.chat.batch(questions, {"max_concurrency": 6})]
        for i in (0, 5, 11):
            self.assertEqual(together[i], self.chat.invoke(questions[i]).content)

    def test_chain(self):
        chain = ChatPromptTemplate([("system", "Be brief."), ("human", "Say {word}.")]) | self.chat | StrOutputParser()
        direct = self.chat.invoke([SystemMessage("Be brief."), HumanMessage("Say hello.")]).content
        self.assertEqual(chain.invoke({"word": "hello"}), direct)
        self.assertEqual("".join(chain.stream({"word": "hello"})), direct)

    def test_logprobs_and_extras(self):
        scored = ChatOpenAI(temperature=0, max_tokens=5, logprobs=True, top_logprobs=2, **self.options)
        content = scored.invoke("Say hello.").response_metadata["logprobs"]["content"]
        self.assertEqual([len(t["top_logprobs"]) for t in content], [2] * len(content))
        fixed = ChatOpenAI(temperature=1, seed=5, n=1, max_tokens=8, stop=["\n"], extra_body={"top_k": 20, "min_p": 0.01},
                           **self.options)
        self.assertEqual(fixed.invoke("Say hello.").content, fixed.invoke("Say hello.").content)

    def test_what_is_not_supported_is_said(self):
        for runnable, param in ((self.chat.bind_tools([weather]), "tools"),
                                (self.chat.with_structured_output(Person, method="function_calling"), "tools")):
            with self.assertRaises(openai.BadRequestError) as caught:
                runnable.invoke("Who is Ann?")
            self.assertEqual((caught.exception.param, caught.exception.code), (param, "unsupported_parameter"))

    def test_structured_output(self):
        chat = ChatOpenAI(temperature=0, max_tokens=200, **self.options)
        for method in ("json_schema", "json_mode"):
            question = "Who is Ann? Answer with JSON: {\"name\": \"...\"}"
            answer = chat.with_structured_output(Person, method=method, include_raw=True).invoke(question)
            if answer["raw"].response_metadata["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(answer["raw"].content), dict)
            if method == "json_schema":
                self.assertIsInstance(answer["parsed"], Person)

    def test_text(self):
        text = OpenAI(temperature=0, max_tokens=8, **self.options)
        whole = text.invoke("The capital of France is")
        self.assertTrue(whole)
        self.assertEqual("".join(text.stream("The capital of France is")), whole)
        self.assertEqual(text.generate(["The capital of France is", "One two"]).generations[0][0].text, whole)


if __name__ == "__main__":
    unittest.main()
