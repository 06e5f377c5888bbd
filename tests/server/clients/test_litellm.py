"""litellm's routes to servers of OpenAI's kind and to vLLM's."""

import asyncio
import unittest

import litellm

from harness import Server, model

HELLO = [{"role": "user", "content": "Say hello."}]


@unittest.skipUnless(model(), "the default model is not in the cache")
class LiteLlm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "1024")
        cls.options = {"api_base": cls.server.url + "/v1", "api_key": "none", "num_retries": 0, "temperature": 0,
                       "max_tokens": 10}

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_chat_by_both_routes(self):
        texts = set()
        for route in ("openai/test", "hosted_vllm/test"):
            with self.subTest(route=route):
                answer = litellm.completion(model=route, messages=HELLO, **self.options)
                self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
                self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
                texts.add(answer.choices[0].message.content)
                parts = list(litellm.completion(model=route, messages=HELLO, stream=True,
                                                stream_options={"include_usage": True}, **self.options))
                texts.add("".join(p.choices[0].delta.content or "" for p in parts if p.choices))
                self.assertEqual(parts[-1].usage.completion_tokens, answer.usage.completion_tokens)
                rebuilt = litellm.stream_chunk_builder(parts, messages=HELLO)
                texts.add(rebuilt.choices[0].message.content)
        self.assertEqual(len(texts), 1, texts)

    def test_text(self):
        whole = litellm.text_completion(model="text-completion-openai/test", prompt="The capital of France is", **self.options)
        parts = litellm.text_completion(model="text-completion-openai/test", prompt="The capital of France is", stream=True,
                                        **self.options)
        self.assertTrue(whole.choices[0].text)
        self.assertEqual("".join(p.choices[0].text or "" for p in parts), whole.choices[0].text)

    def test_parameters_of_vllm(self):
        answer = litellm.completion(model="hosted_vllm/test", messages=HELLO, top_k=1, min_p=0.1, min_tokens=4,
                                    ignore_eos=True, **{**self.options, "temperature": 1})
        greedy = litellm.completion(model="hosted_vllm/test", messages=HELLO, ignore_eos=True, **self.options)
        self.assertEqual(answer.choices[0].message.content, greedy.choices[0].message.content)
        scored = litellm.completion(model="hosted_vllm/test", messages=HELLO, logprobs=True, top_logprobs=2, **self.options)
        self.assertEqual(len(scored.choices[0].logprobs["content"][0]["top_logprobs"]), 2)

    def test_parallel(self):
        async def ask(i):
            stream = await litellm.acompletion(model="hosted_vllm/test", stream=True, **self.options,
                                               messages=[{"role": "user", "content": f"What follows {i}?"}])
            return "".join([p.choices[0].delta.content or "" async for p in stream])

        async def run():
            together = await asyncio.gather(*(ask(i) for i in range(16)))
            return together, [await ask(i) for i in (0, 7, 15)]

        together, alone = asyncio.run(run())
        self.assertEqual([together[i] for i in (0, 7, 15)], alone)

    def test_errors(self):
        for error, args in ((litellm.NotFoundError, {"model": "openai/other"}),
                            (litellm.BadRequestError, {"model": "openai/test", "top_p": 2}),
                            (litellm.ContextWindowExceededError,
                             {"model": "hosted_vllm/test", "messages": [{"role": "user", "content": "word " * 2000}]}),
                            (litellm.BadRequestError,
                             {"model": "hosted_vllm/test", "extra_body": {"guided_regex": "("}})):
            with self.subTest(args=str(args)[:80]), self.assertRaises(error):
                litellm.completion(**{"messages": HELLO, **self.options, **args})


if __name__ == "__main__":
    unittest.main()
