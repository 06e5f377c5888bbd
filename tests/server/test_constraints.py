"""Answers held to a schema, a pattern, a list or a grammar: every field that asks for it, and what is refused."""

import concurrent.futures
import json
import re
import unittest

from harness import Server, model

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/models/test/generate"
ASK = [{"role": "user", "content": "A colour and a number, as JSON."}]
SCHEMA = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}, "number": {"type": "integer", "minimum": 0,
                                                                                           "maximum": 99}},
          "required": ["colour", "number"], "additionalProperties": False}
TAGS = {"structures": [{"begin": "<f>", "schema": {"enum": [1, 2]}, "end": "</f>"}], "triggers": ["<f"]}
GBNF = 'root ::= ("a" | "b") [0-9]'
LARK = 'start: ("a" | "b") DIGIT\nDIGIT: /[0-9]/'


def valid(text):
    value = json.loads(text)
    return (set(value) == {"colour", "number"} and value["colour"] in ("red", "green")
            and isinstance(value["number"], int) and 0 <= value["number"] <= 99)


@unittest.skipUnless(model(), "the default model is not in the cache")
class Constraints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "512")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def post(self, path, expect=200, **body):
        status, _, answer = self.server.request(path, body)
        self.assertEqual(status, expect, answer)
        return answer

    def chat(self, **body):
        return self.post(CHAT, **{"messages": ASK, "max_tokens": 100, "seed": 1, **body})["choices"]

    def text(self, **body):
        choice = self.post(TEXT, **{"prompt": "Here:", "max_tokens": 60, "seed": 1, **body})["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop", choice)
        return choice["text"]

    def refused(self, param, says, path=CHAT, **body):
        base = {"messages": ASK} if path == CHAT else {"prompt": "x"}
        error = self.post(path, 400, max_tokens=4, **base, **body)["error"]
        self.assertEqual((error["type"], error["param"]), ("invalid_request_error", param), error)
        self.assertIn(says, error["message"])

    def test_a_schema_whole_and_streamed(self):
        wanted = {"type": "json_schema", "json_schema": {"name": "pick", "strict": True, "schema": SCHEMA}}
        whole = self.chat(response_format=wanted, temperature=1)
        self.assertTrue(valid(whole[0]["message"]["content"]), whole)
        self.assertEqual(whole[0]["finish_reason"], "stop")
        _, _, stream = self.server.request(CHAT, {"messages": ASK, "max_tokens": 100, "seed": 1, "temperature": 1,
                                                  "response_format": wanted, "stream": True})
        chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
        self.assertEqual(text, whole[0]["message"]["content"])

    def test_choices_with_scores(self):
        choices = self.chat(guided_json=SCHEMA, temperature=1, n=3, logprobs=True, top_logprobs=2)
        for c in choices:
            self.assertTrue(valid(c["message"]["content"]), c)
            scored = c["logprobs"]["content"]
            self.assertEqual("".join(t["token"] for t in scored), c["message"]["content"])
            self.assertTrue(all(t["logprob"] <= 0 for t in scored))

    def test_every_field(self):
        for field, value, pattern in (
                ("structured_outputs", {"regex": "[ab][0-9]{2}"}, "[ab][0-9]{2}"),
                ("structured_outputs", {"choice": ["yes", "no"]}, "yes|no"),
                ("structured_outputs", {"grammar": GBNF}, "[ab][0-9]"),
                ("structured_outputs", {"json": {"enum": [[1, 2]]}, "disable_any_whitespace": True}, r"\[1,2\]"),
                ("guided_regex", "x{4}", "xxxx"), ("regex", "x{4}", "xxxx"), ("guided_choice", ["only"], "only"),
                ("guided_grammar", LARK, "[ab][0-9]"), ("grammar", GBNF, "[ab][0-9]"), ("ebnf", GBNF, "[ab][0-9]"),
                ("response_format", {"type": "grammar", "grammar": LARK}, "[ab][0-9]"),
                ("json_schema", {"const": 12}, "12"), ("json_schema", '{"enum": [null]}', "null"),
                ("response_format", {"type": "json_object", "schema": SCHEMA}, r"\{[^}]*\}")):
            with self.subTest(field=field, value=value):
                text = self.text(**{field: value})
                self.assertTrue(re.fullmatch(pattern, text), text)

    def test_any_object(self):
        for body in ({"response_format": {"type": "json_object"}}, {"guided_json_object": True},
                     {"structured_outputs": {"json_object": True}}):
            choice = self.post(TEXT, prompt="The empty object in JSON: ", max_tokens=24, temperature=0, **body)["choices"][0]
            self.assertTrue(choice["text"].startswith("{"), choice)
            if choice["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(choice["text"]), dict)

    def test_structural_tags(self):
        for body in ({"structural_tag": TAGS}, {"response_format": {"type": "structural_tag", **TAGS}},
                     {"structured_outputs": {"structural_tag": json.dumps(TAGS)}}):
            text = self.post(TEXT, prompt="<f>1</f><f>2</f><f>", max_tokens=24, temperature=0, **body)["choices"][0]["text"]
            rest = re.sub(r"<f>[12]</f>", "", text)
            self.assertTrue("<f" not in rest or re.search(r"<f(>[12]?(<(/(f)?)?)?)?\Z", rest), text)

    def test_generate(self):
        for grammar, pattern in (({"type": "regex", "value": "[xyz]{3}"}, "[xyz]{3}"), ({"type": "json", "value": {"const": 7}}, "7")):
            answer = self.post(GENERATE, inputs="x", parameters={"max_new_tokens": 20, "grammar": grammar})
            self.assertTrue(re.fullmatch(pattern, answer["generated_text"]), answer)

    def test_where_it_stops(self):
        cut = self.post(TEXT, prompt="x", regex="a{9}b", stop=["aab"], max_tokens=30)["choices"][0]
        self.assertEqual((cut["text"], cut["finish_reason"], cut["stop_reason"]), ("a" * 7, "stop", "aab"))
        cut = self.post(TEXT, prompt="x", regex="[0-9]{60}", max_tokens=3)["choices"][0]
        self.assertEqual(cut["finish_reason"], "length")
        self.assertRegex(cut["text"], r"\A[0-9]+\Z")

    def test_refusals_name_the_field_and_the_keyword(self):
        def schema(s):
            return {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}
        self.refused("response_format", "uniqueItems", response_format=schema({"type": "array", "uniqueItems": True}))
        self.refused("response_format", "no value", response_format=schema({"type": "string", "enum": [1]}))
        self.refused("response_format", "other.json", response_format=schema({"$ref": "other.json"}))
        self.refused("guided_regex", "backreference", guided_regex="(a)\\1")
        self.refused("grammar", "nowhere", grammar="root ::= nowhere")
        self.refused("structured_outputs", "empty", structured_outputs={"choice": [""]})
        self.refused("guided_json", "response_format and guided_json both", response_format={"type": "json_object"}, guided_json={})
        for name, value in (("ignore_eos", True), ("min_tokens", 2), ("bad_words", ["x"]), ("allowed_token_ids", [1])):
            self.refused(name, "does not go with regex", path=TEXT, regex="a", **{name: value})

    def test_bombs(self):
        wide = [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(40)]
        for field, bomb in (("regex", "((((a?){99}){99}){99}){99}"), ("regex", "(" * 5000 + ")" * 5000),
                            ("regex", "(?=.*a.{200})(?=.*b.{201})(?=.*c.{202}).*"),
                            ("json_schema", {"allOf": [{"pattern": f"^.*{c}.{{90}}$"} for c in "abcdefghij"]}),
                            ("json_schema", {"allOf": wide}),
                            ("json_schema", {"enum": ["x" * 30 + str(i) for i in range(20000)]}),
                            ("grammar", "root ::= " + "(" * 4000 + '"x"' + ")" * 4000),
                            ("grammar", "root ::= root root | root")):
            with self.subTest(field=field, bomb=str(bomb)[:60]):
                # What is small enough after all is answered; nothing else happens.
                status, _, answer = self.server.request(TEXT, {"prompt": "x", "max_tokens": 4, field: bomb})
                self.assertIn(status, (200, 400), answer)
                if status == 400:
                    self.assertEqual(answer["error"]["param"], field)
        self.assertEqual(self.text(regex="fine"), "fine")
        self.assertEqual(self.server.request("/health")[0], 200)

    def test_one_compilation_for_equal_requests(self):
        schema = {**SCHEMA, "title": "one compilation"}
        before = {name: self.server.metric("sluice_constraint_cache_" + name) for name in ("misses_total", "hits_total")}
        alone = self.chat(json_schema=schema, temperature=1)[0]["message"]["content"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda _: self.chat(json_schema=schema, temperature=1)[0]["message"]["content"], range(8)))
        self.assertEqual(set(together), {alone})
        self.assertTrue(valid(alone))
        self.assertEqual(self.server.metric("sluice_constraint_cache_misses_total") - before["misses_total"], 1)
        self.assertEqual(self.server.metric("sluice_constraint_cache_hits_total") - before["hits_total"], 8)

    def test_what_is_counted_and_told(self):
        metrics = self.server.request("/metrics")[2]
        before = self.server.metric("sluice_constrained_requests_total")
        answer = self.post(CHAT, messages=ASK, max_tokens=60, guided_choice=["told", "and counted"])
        metrics = self.server.request("/metrics")[2]
        self.assertIn('sluice_constrained_requests_total{kind="choice"}', metrics)
        self.assertEqual(self.server.metric("sluice_constrained_requests_total"), before + 1)
        self.assertGreater(self.server.metric("sluice_constraint_compile_seconds_count"), 0)
        self.assertGreater(self.server.metric("sluice_constraint_cache_bytes"), 0)
        story = self.server.request("/dashboard/request/" + answer["id"])[2]
        self.assertEqual(story["constraint"], "choice")
        self.assertGreater(story["compile_seconds"], 0)
        self.assertTrue(any("constraint (choice), which took" in s for s in story["sentences"]), story)


if __name__ == "__main__":
    unittest.main()
