"""The asynchronous openai client: many streams at once, streams left early, retries and timeouts."""

import asyncio
import unittest

import openai

from harness import Server, model

LONG = {"model": "test", "prompt": "Once upon a time", "max_tokens": 900, "temperature": 0,
        "extra_body": {"ignore_eos": True}}


@unittest.skipUnless(model(), "the default model is not in the cache")
class OpenAi(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        asyncio.get_running_loop().set_debug(False)  # else it reports each start of a server as slow

    def client(self, server, **options):
        options = {"api_key": "none", "max_retries": 0, "timeout": 120, **options}
        client = openai.AsyncOpenAI(base_url=server.url + "/v1", **options)
        self.addAsyncCleanup(client.close)
        return client

    async def until(self, condition, seconds=10):
        for _ in range(int(seconds * 50)):
            if await asyncio.to_thread(condition):
                return True
            await asyncio.sleep(0.02)
        return False

    async def test_parallel_chats_equal_solo(self):
        with Server("--ctx", "1024") as server:
            client = self.client(server)

            async def ask(i):
                stream = await client.chat.completions.create(
                    model="test", messages=[{"role": "user", "content": f"Name the number {i}."}], max_tokens=8,
                    temperature=0, stream=True, stream_options={"include_usage": True})
                text, tokens, ids = "", 0, set()
                async for chunk in stream:
                    ids.add(chunk.id)
                    for choice in chunk.choices:
                        text += choice.delta.content or ""
                    tokens = chunk.usage.completion_tokens if chunk.usage else tokens
                return text, tokens, ids

            together = await asyncio.gather(*(ask(i) for i in range(96)))
            self.assertEqual(len({i for _, _, ids in together for i in ids}), 96)
            self.assertTrue(all(tokens > 0 and len(ids) == 1 for _, tokens, ids in together))
            for i in range(0, 96, 12):
                self.assertEqual((await ask(i))[:2], together[i][:2])

    async def test_a_stream_that_is_left_frees_its_blocks(self):
        with Server("--ctx", "1024") as server:
            client = self.client(server)

            def idle():
                return server.metric("sluice_requests_running") == 0 and server.metric("sluice_kv_cache_usage_ratio") == 0

            # Closed by hand, left with the context, and with its task cancelled while it waits for a chunk.
            stream = await client.completions.create(**LONG, stream=True)
            await anext(stream)
            self.assertFalse(idle())
            await stream.close()
            self.assertTrue(await self.until(idle, 3))
            async with await client.completions.create(**LONG, stream=True) as stream:
                async for _ in stream:
                    break
            self.assertTrue(await self.until(idle, 3))
            begun = asyncio.Event()

            async def read():
                async for _ in await client.completions.create(**LONG, stream=True):
                    begun.set()

            tasks = [asyncio.create_task(read()) for _ in range(8)]
            await begun.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.assertTrue(all(task.cancelled() for task in tasks))
            self.assertTrue(await self.until(idle, 3))
            self.assertLess(server.metric("sluice_generation_tokens_total"), 10 * 900)

    async def test_timeouts(self):
        with Server("--ctx", "1024") as server:
            with self.assertRaises(openai.APITimeoutError):
                await self.client(server, timeout=0.3).completions.create(**LONG)
            self.assertTrue(await self.until(lambda: server.metric("sluice_requests_running") == 0, 3))
            # The server's own deadline says that another try is pointless, and the client believes it.
            with self.assertRaises(openai.APIStatusError) as caught:
                await self.client(server, max_retries=3).completions.create(
                    **{**LONG, "extra_body": {"ignore_eos": True, "timeout": 0.2}})
            self.assertEqual((caught.exception.status_code, caught.exception.code), (504, "deadline_exceeded"))
            text = await asyncio.to_thread(lambda: server.request("/metrics")[2])
            self.assertIn('sluice_http_responses_total{code="504"} 1\n', text)
            # An error inside a stream is raised as one.
            with self.assertRaises(openai.APIError):
                async for _ in await self.client(server).completions.create(
                        **{**LONG, "extra_body": {"ignore_eos": True, "timeout": 0.3}}, stream=True):
                    pass

    async def test_retries_after_429(self):
        with Server("--ctx", "512", "--max-seqs", "1", "--max-queue", "2") as server:
            body = {**LONG, "max_tokens": 16}
            impatient = self.client(server)
            results = await asyncio.gather(*(impatient.completions.create(**body) for _ in range(12)),
                                           return_exceptions=True)
            refused = [r for r in results if isinstance(r, openai.RateLimitError)]
            self.assertTrue(refused)
            for error in refused:
                self.assertEqual(error.code, "queue_full")
                self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)
            self.assertTrue(all(isinstance(r, openai.types.Completion) for r in results if r not in refused))
            before = server.metric("sluice_refusals_total")
            patient = self.client(server, max_retries=100)
            answers = await asyncio.gather(*(patient.completions.create(**body) for _ in range(12)))
            self.assertEqual(len({a.choices[0].text for a in answers}), 1)
            self.assertGreater(server.metric("sluice_refusals_total"), before)

    async def test_errors(self):
        with Server("--ctx", "512") as server:
            client = self.client(server)
            chat = client.chat.completions.create
            hello = [{"role": "user", "content": "Hello"}]
            for error, code, param, args in (
                (openai.NotFoundError, "model_not_found", "model", {"model": "other", "messages": hello}),
                (openai.BadRequestError, None, "top_p", {"model": "test", "messages": hello, "top_p": 2}),
                (openai.BadRequestError, "unsupported_parameter", "tools",
                 {"model": "test", "messages": hello, "tools": [{"type": "function", "function": {"name": "f"}}]}),
                (openai.BadRequestError, "context_length_exceeded", None,
                 {"model": "test", "messages": [{"role": "user", "content": "word " * 1000}]}),
            ):
                with self.assertRaises(error) as caught:
                    await chat(**args)
                self.assertEqual(caught.exception.code, code)
                if param:
                    self.assertEqual(caught.exception.param, param)
                self.assertTrue(caught.exception.request_id)
        with self.assertRaises(openai.APIConnectionError):
            await chat(model="test", messages=hello)


if __name__ == "__main__":
    unittest.main()
