"""An agent with three tools through the clients that agents are written with: openai (chat completions and responses),
anthropic and litellm (as OpenAI's and as Anthropic's client), whole and streamed.

With Qwen2.5-Coder-1.5B the model plays: it makes two calls at once, answers from their results, and puts an argument
right that a tool has refused. With SmolLM2, which was never taught tools, tool_choice makes it call them: that shows the
wire format and the constraint alone."""

import copy
import json
import os
import pathlib
import tempfile
import unittest

import anthropic
import jsonschema
import litellm
import openai
from gguf_copy import copy_with
from harness import PATIENCE, ROOT, Server, coder_model, model

TEMPLATES = pathlib.Path(os.environ.get("SLUICE_TEST_DATA") or ROOT.parent / "shared/data") / "chat_templates/real"
TIMEOUT = 120 * PATIENCE
MAX_TOKENS = 200


def tool(name, description, **properties):
    return {"name": name, "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(properties),
                           "additionalProperties": False}}


TEXT = {"type": "string", "maxLength": 30}
TOOLS = [
    tool("get_weather", "The weather in a city now.", city=TEXT,
         unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
    tool("get_departures", "The next trains from a railway station.", station=TEXT),
    tool("set_alarm", "Sets an alarm.", hour={"type": "integer", "minimum": 0, "maximum": 23},
         minute={"type": "integer", "minimum": 0, "maximum": 59}),
]
# The Coder models write calls into Markdown unless they are shown where calls go.
SYSTEM = """You are an agent. Call tools to answer; never guess what a tool can tell. Write each call like this:
<tool_call>
{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}
</tool_call>
Several calls may follow one another. If a tool answers with an error, call it again with the argument put right. \
When you have all results, answer in one sentence."""


class Call:
    def __init__(self, call_id, name, arguments):
        self.id, self.name = call_id, name
        self.arguments = json.loads(arguments) if isinstance(arguments, str) else arguments

    def plain(self):
        return self.name, self.arguments


class OpenAiChat:
    """`turn` gives (text, calls) and remembers them."""

    def __init__(self, url, stream):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=TIMEOUT)
        self.stream = stream
        self.messages = [{"role": "system", "content": SYSTEM}]
        self.tools = [{"type": "function", "function": t} for t in copy.deepcopy(TOOLS)]  # litellm may change them

    def close(self):
        self.client.close()

    def say(self, text):
        self.messages.append({"role": "user", "content": text})

    def answer(self, call, text, error=False):
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": ("error: " if error else "") + text})

    def complete(self, **body):
        create = self.client.chat.completions
        if not self.stream:
            return create.create(**body)
        with create.stream(**body) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion()

    def turn(self, choice, parallel):
        if choice not in ("auto", "required"):
            choice = {"type": "function", "function": {"name": choice}}
        done = self.complete(model="test", messages=self.messages, tools=self.tools, tool_choice=choice, temperature=0,
                             parallel_tool_calls=parallel, max_tokens=MAX_TOKENS)
        message = done.choices[0].message
        calls = message.tool_calls or []
        assert done.choices[0].finish_reason == ("tool_calls" if calls else "stop"), done
        self.messages.append({"role": "assistant", "content": message.content or None, **({"tool_calls": [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in calls]} if calls else {})})
        return message.content or "", [Call(c.id, c.function.name, c.function.arguments) for c in calls]


class LiteLlm(OpenAiChat):
    """The same through litellm. Its route hosted_vllm/ would take additionalProperties out of the schemas."""

    def __init__(self, url, stream):
        super().__init__(url, stream)
        self.route = {"model": "openai/test", "api_base": url + "/v1"}

    def complete(self, **body):
        body = {**body, **self.route, "api_key": "none", "num_retries": 0, "timeout": TIMEOUT}
        if not self.stream:
            return litellm.completion(**body)
        return litellm.stream_chunk_builder(list(litellm.completion(stream=True, **body)), messages=body["messages"])


class LiteLlmAnthropic(LiteLlm):
    def __init__(self, url, stream):
        super().__init__(url, stream)
        self.route = {"model": "anthropic/test", "api_base": url}


class OpenAiResponses:
    def __init__(self, url, stream):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=TIMEOUT)
        self.stream = stream
        self.previous, self.input = None, []
        self.tools = [{"type": "function", "strict": False, **t} for t in TOOLS]

    def close(self):
        self.client.close()

    def say(self, text):
        self.input.append({"role": "user", "content": text})

    def answer(self, call, text, error=False):
        self.input.append({"type": "function_call_output", "call_id": call.id, "output": ("error: " if error else "") + text})

    def turn(self, choice, parallel):
        if choice not in ("auto", "required"):
            choice = {"type": "function", "name": choice}
        body = {"model": "test", "instructions": SYSTEM, "input": self.input, "tools": self.tools, "tool_choice": choice,
                "parallel_tool_calls": parallel, "temperature": 0, "max_output_tokens": MAX_TOKENS}
        if self.previous:
            body["previous_response_id"] = self.previous
        if self.stream:
            with self.client.responses.stream(**body) as stream:
                for _ in stream:
                    pass
                done = stream.get_final_response()
        else:
            done = self.client.responses.create(**body)
        assert done.status == "completed", done
        self.previous, self.input = done.id, []
        calls = [Call(item.call_id, item.name, item.arguments) for item in done.output if item.type == "function_call"]
        return done.output_text, calls


class Anthropic:
    def __init__(self, url, stream):
        self.client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT)
        self.stream = stream
        self.messages = []
        self.tools = [{"name": t["name"], "description": t["description"], "input_schema": t["parameters"]} for t in TOOLS]

    def close(self):
        self.client.close()

    def add(self, block):
        if not self.messages or self.messages[-1]["role"] != "user":
            self.messages.append({"role": "user", "content": []})
        self.messages[-1]["content"].append(block)

    def say(self, text):
        self.add({"type": "text", "text": text})

    def answer(self, call, text, error=False):
        self.add({"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": error})

    def turn(self, choice, parallel):
        kinds = {"auto": {"type": "auto"}, "required": {"type": "any"}}
        body = {"model": "test", "system": SYSTEM, "messages": self.messages, "tools": self.tools, "max_tokens": MAX_TOKENS,
                "tool_choice": {**kinds.get(choice, {"type": "tool", "name": choice}),
                                "disable_parallel_tool_use": not parallel}, "temperature": 0}
        if self.stream:
            with self.client.messages.stream(**body) as stream:
                for _ in stream:
                    pass
                done = stream.get_final_message()
        else:
            done = self.client.messages.create(**body)
        calls = [Call(b.id, b.name, b.input) for b in done.content if b.type == "tool_use"]
        assert done.stop_reason == ("tool_use" if calls else "end_turn"), done
        self.messages.append({"role": "assistant", "content": [b.model_dump(include={"type", "text", "id", "name", "input"})
                                                               for b in done.content]})
        return "".join(b.text for b in done.content if b.type == "text"), calls


ROUTES = (OpenAiChat, OpenAiResponses, Anthropic, LiteLlm, LiteLlmAnthropic)


class Agent:
    """Runs `play` of a class below through every route; a stream and a whole answer must tell the same story."""

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def run_route(self, route):
        stories = []
        for stream in (False, True):
            with self.subTest(stream=stream):
                client = route(self.server.url, stream)
                try:
                    stories.append(self.play(client))
                finally:
                    client.close()
        self.assertEqual(len(stories), 2)
        self.assertEqual(stories[0], stories[1])

    def turn(self, client, choice="auto"):
        """A turn whose calls follow the schemas of their tools: as many as the model likes, or one that is forced."""
        text, calls = client.turn(choice, parallel=choice == "auto")
        schemas = {t["name"]: t["parameters"] for t in TOOLS}
        for call in calls:
            jsonschema.validate(call.arguments, schemas[call.name])
        self.assertEqual(len({c.id for c in calls}), len(calls))
        return text, calls

    def test_openai_chat(self):
        self.run_route(OpenAiChat)

    def test_openai_responses(self):
        self.run_route(OpenAiResponses)

    def test_anthropic(self):
        self.run_route(Anthropic)

    def test_litellm(self):
        self.run_route(LiteLlm)

    def test_litellm_anthropic(self):
        self.run_route(LiteLlmAnthropic)


@unittest.skipUnless(os.environ.get("SLUICE_TEST_FULL") == "1", "minutes: runs with SLUICE_TEST_FULL=1")
@unittest.skipUnless(coder_model(), "no Qwen2.5-Coder-1.5B in the cache: scripts/get_coder_model.py gets it")
class QwenCoder(Agent, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "2048", path=coder_model())

    def play(self, client):
        client.say("What is the weather in Paris and in Rome, in celsius? Ask for both at once.")
        text, calls = self.turn(client)
        self.assertEqual([c.plain() for c in calls], [("get_weather", {"city": "Paris", "unit": "celsius"}),
                                                      ("get_weather", {"city": "Rome", "unit": "celsius"})], text)
        for call, told in zip(calls, ('{"degrees": 18, "sky": "rain"}', '{"degrees": 26, "sky": "clear"}')):
            client.answer(call, told)
        weather, more = self.turn(client)
        self.assertEqual(more, [])
        self.assertIn("18", weather)
        self.assertIn("26", weather)

        client.say("Which train leaves next from Rome Termini?")  # it would rather guess
        text, calls = self.turn(client, "required")
        self.assertEqual([c.name for c in calls], ["get_departures"], text)
        self.assertNotEqual(calls[0].arguments, {"station": "RMT"})  # nobody has told it the code
        client.answer(calls[0], "stations are named by their code. The code of Rome Termini is RMT.", error=True)
        text, calls = self.turn(client, "required")
        self.assertEqual([c.plain() for c in calls], [("get_departures", {"station": "RMT"})], text)
        client.answer(calls[0], '{"train": "to Naples", "leaves": "14:05"}')
        train, more = self.turn(client)
        self.assertEqual(more, [])
        self.assertIn("Naples", train)

        client.say("Set an alarm for 16:45.")
        text, calls = self.turn(client, "required")
        self.assertEqual([c.plain() for c in calls], [("set_alarm", {"hour": 16, "minute": 45})], text)
        return weather, train


@unittest.skipUnless(model(), "the default model is not in the cache")
@unittest.skipUnless(TEMPLATES.exists(), "no test data")
class SmolLM2(Agent, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "model.gguf"
        copy_with(model(), path, template=(TEMPLATES / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text())
        cls.server = Server("--ctx", "2048", path=str(path))

    def play(self, client):
        client.say("What is the weather in Paris? Then set an alarm.")
        story = []
        for name, told in (("get_weather", "rain"), ("set_alarm", "done")):
            text, calls = self.turn(client, name)
            self.assertEqual({c.name for c in calls}, {name})
            self.assertEqual(text, "")
            for call in calls:
                client.answer(call, told, error=name == "get_weather")
            story.append([c.plain() for c in calls])
        return story


if __name__ == "__main__":
    unittest.main()
