"""Input that nobody should send: each is refused with OpenAI's error object, or the connection is closed
where HTTP itself is broken; never a 5xx, and the server goes on."""

import json
import re
import socket
import time
import unittest

from harness import PATIENCE, Server, model, stories

HELLO = [{"role": "user", "content": "Say hello."}]
COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
GENERATE = "/models/test/generate"

# What is wrong for a field of a kind. null is right everywhere: it is the same as leaving the field out.
WRONG = {
    "flag": [0, 1, 1.5, "true", "", [], {}, [True]],
    "number": ["1", "", True, [], {}, [1], 1e300, -1e300, 2**64, -(2**63)],
    "whole": ["1", "", True, [], {}, [1], 1.5, 1e300, 2**31, 2**63, 2**64, -(2**31) - 1],
    "text": [0, 1.5, True, [], {}, ["x"]],
    "ids": ["1", 1, True, {}, [1.5], ["1"], [True], [None], [[1]], [-1], [2**31], [2**64], [10**7]],
    "strings": [1, True, {}, [1], [None], [[]], [""], ["x" * 10000], ["x"] * 1000],
    "object": ["x", 1, True, [], [1]],
    "choice": [0, True, [], {}, "", "x", "Last", ["last"]],
    "input": [0, 1.5, True, {}, "", [], [""], [[]], ["x", ""], [1, "x"], ["x", 1], [[1], "x", []], [1.5], [-1], [2**31],
              [10**7], [[10**7]], [None], ["x"] * 2049, [[[1]]], "word " * 500, [1] * 97],
    "bias": ["x", 1, True, [1], {"x": 1}, {"": 1}, {"-1": 1}, {"1.5": 1}, {"1": "x"}, {"1": 101}, {"1": -101},
             {"1": None}, {"1": 2**64}, {" 1": 1}, {str(2**31): 1}, {str(10**7): 1},
             {str(i): 1 for i in range(5000)}],
    "seed": ["1", True, [], {}, 1.5, 1e300],
    "refused": [1, "x", True, [1], {"a": 1}],  # what is empty asks for nothing
    "format": ["json_object", 1, [], {}, {"type": 1}, {"type": "xml"}, {"type": "json_schema"},
               {"type": "json_schema", "json_schema": {"name": "x", "schema": []}},
               {"type": "json_schema", "json_schema": {"schema": {"uniqueItems": True}}},
               {"type": "structural_tag", "structures": 1, "triggers": 1}],
    "schema": [1, "x", [1], {"type": 1}, {"$ref": "#"}, {"not": {}}, {"pattern": "("}, {"enum": []}],
    "regex": [1, True, [1], {"a": 1}, "(", "\\1", "a^b"],
    "options": [1, "x", True, [], {}, [1], [""], ["a", None]],
    "grammar": [1, True, [1], {"a": 1}, "x", "root ::= a", "root ::= root", "start: a"],
    "structured": [1, "x", True, [1], {}, {"a": 1}, {"json": 1}, {"regex": "a", "choice": ["b"]}, {"json_object": False}],
}

SHARED = {
    "flag": ["stream", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "return_token_ids",
             "add_special_tokens"],
    "number": ["temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
               "timeout"],
    "whole": ["n", "max_tokens", "max_completion_tokens", "min_tokens", "top_k", "priority", "prompt_logprobs",
              "truncate_prompt_tokens", "best_of"],
    "text": ["model", "cache_salt", "request_id"],
    "ids": ["stop_token_ids", "allowed_token_ids"],
    "strings": ["stop", "bad_words"],
    "bias": ["logit_bias"],
    "seed": ["seed"],
    "format": ["response_format"],
    "refused": ["tools", "functions", "guided_whitespace_pattern", "grammar_lazy"],
    "schema": ["guided_json", "json_schema"],
    "regex": ["guided_regex", "regex"],
    "options": ["guided_choice"],
    "grammar": ["guided_grammar", "grammar"],
    "structured": ["structured_outputs"],
}
FIELDS = {
    COMPLETIONS: {**SHARED, "refused": SHARED["refused"] + ["suffix"], "flag": SHARED["flag"] + ["echo"], "whole": SHARED["whole"] + ["logprobs"]},
    CHAT: {**SHARED, "whole": SHARED["whole"] + ["top_logprobs"],
           "flag": SHARED["flag"] + ["logprobs", "add_generation_prompt", "continue_final_message"],
           "object": ["chat_template_kwargs"]},
    EMBEDDINGS: {"flag": ["normalize", "add_special_tokens"], "number": ["timeout"], "choice": ["encoding_format", "pooling"],
                 "whole": ["dimensions", "priority", "truncate_prompt_tokens"], "text": ["model", "cache_salt"],
                 "input": ["input"], "refused": ["messages", "stream"]},
}
PARAMETERS = {
    "flag": ["do_sample", "return_full_text", "details", "ignore_eos"],
    "number": ["temperature", "top_p", "repetition_penalty"],
    "whole": ["max_new_tokens", "top_k", "truncate"],
    "strings": ["stop"],
    "seed": ["seed"],
}


def cases(fields):
    for kind, names in fields.items():
        for name in names:
            for value in WRONG[kind]:
                yield name, value


@unittest.skipUnless(model(), "the default model is not in the cache")
class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "96", "--header-timeout", "2", "--body-timeout", "2")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def tearDown(self):
        status, _, answer = self.server.request("/health")
        self.assertEqual((status, answer), (200, {"status": "ok"}))
        text = self.server.request("/metrics")[2]
        self.assertEqual(re.findall(r'^sluice_http_responses_total\{code="5.*', text, re.M), [])

    def check_error(self, status, answer, what, wants=(400,)):
        self.assertIn(status, wants, what)
        self.assertIsInstance(answer, dict, what)
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"}, what)
        self.assertTrue(error["message"] and error["type"], what)
        self.assertLess(len(error["message"]), 1000, what)
        return error

    def refused(self, path, body, wants=(400,), headers=None, method=None):
        status, _, answer = self.server.request(path, body, headers, method)
        what = (path, body[:80] if isinstance(body, bytes) else str(body)[:200], answer)
        return self.check_error(status, answer, what, wants)

    def raw(self, data, half=False):
        """All that the server answers to `data` until it closes; with `half`, nothing more is sent."""
        got = b""
        with socket.create_connection(("127.0.0.1", self.server.port), 10 * PATIENCE) as s:
            try:
                s.sendall(data)
                if half:
                    s.shutdown(socket.SHUT_WR)
                while piece := s.recv(65536):
                    got += piece
            except (ConnectionResetError, BrokenPipeError):
                pass
        return got

    def test_wrong_types_of_every_field(self):
        right = {COMPLETIONS: {"prompt": "Once", "max_tokens": 1}, CHAT: {"messages": HELLO, "max_tokens": 1},
                 EMBEDDINGS: {"input": "Once"}}
        for path, fields in FIELDS.items():
            for name, value in cases(fields):
                with self.subTest(path=path, name=name, value=str(value)[:60]):
                    wants = (404,) if name == "model" and isinstance(value, str) else (400,)
                    error = self.refused(path, {**right[path], name: value}, wants)
                    self.assertEqual(error["param"].split("[")[0].split(".")[0], name)

    def test_wrong_types_of_the_parameters_of_generate(self):
        for name, value in cases(PARAMETERS):
            if value in ("true", "1") and name not in ("stop", "seed"):
                continue  # some clients send booleans and numbers as text
            with self.subTest(name=name, value=str(value)[:60]):
                self.refused(GENERATE, {"inputs": "Once", "parameters": {name: value}})
        for parameters in ("x", 1, True, [], [1]):
            self.refused(GENERATE, {"inputs": "Once", "parameters": parameters})

    def test_wrong_prompts_messages_and_ids(self):
        for prompt in (None, 1, 1.5, True, {}, [], [[]], [1.5], [True], [None], [{}], ["x", 1], [1, "x"], [[1], "x", 1],
                       [-1], [2**31], [2**64], [[2**64]], [[[1]]], ["x"] * 300):
            self.refused(COMPLETIONS, {"prompt": prompt})
            if not isinstance(prompt, list) or prompt:
                self.refused("/tokenize", {"prompt": prompt})
        for message in (None, 1, "x", [], {}, {"role": "user"}, {"content": "x"}, {"role": 1, "content": "x"},
                        {"role": "", "content": "x"}, {"role": "user", "content": 1},
                        {"role": "user", "content": {}}, {"role": "user", "content": [1]},
                        {"role": "user", "content": [{}]}, {"role": "user", "content": [{"type": "text"}]},
                        {"role": "user", "content": [{"type": "text", "text": 1}]},
                        {"role": "user", "content": [{"type": 1, "text": "x"}]},
                        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}):
            for path in (CHAT, "/tokenize"):
                self.refused(path, {"messages": [message]})
                self.refused(path, {"messages": [*HELLO, message]})
        for messages in (1, "x", {}, True):
            self.refused(CHAT, {"messages": messages})
        for tokens in WRONG["ids"]:
            self.refused("/detokenize", {"tokens": tokens})
        self.refused("/detokenize", {})
        for inputs in (None, 1, True, {}, [1.5], ["x"], [-1], [10**7], []):
            self.refused(GENERATE, {"inputs": inputs})

    def test_huge_values(self):
        for path, right in ((COMPLETIONS, {"prompt": "Once"}), (CHAT, {"messages": HELLO})):
            for fields in ({"n": 10**6}, {"n": 2**31 - 1}, {"best_of": 10**6}, {"max_tokens": 10**10},
                           {"prompt_logprobs": 10**6}, {"stop": ["x"] * 10**5}, {"stop": "x" * 10**6},
                           {"bad_words": ["x"] * 10**5}, {"stop_token_ids": [1] * 10**5},
                           {"allowed_token_ids": [1] * (2 * 10**6)}, {"request_id": "x" * 10**5},
                           {"logit_bias": {str(i): 0 for i in range(10**5)}}, {"timeout": 1e9},
                           {"model": "x" * 10**5}):
                with self.subTest(path=path, fields=str(fields)[:60]):
                    wants = (400, 404) if "model" in fields else (400,)
                    self.refused(path, {**right, **fields}, wants)
        for name in ("top_p", "repetition_penalty"):  # above zero, but not as a float
            self.assertEqual(self.refused(COMPLETIONS, {"prompt": "Once", name: 5e-324})["param"], name)
        self.refused(COMPLETIONS, {"prompt": "Once", "logprobs": 10**6})
        self.refused(CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 10**6})
        # A long text or list is a long prompt; as many tokens as max_tokens likes end with the context.
        for prompt in ("a" * (4 << 20), [1] * 10**6, "\U0001f600" * 10**5):
            self.assertEqual(self.refused(COMPLETIONS, {"prompt": prompt})["code"], "context_length_exceeded")
        self.refused(CHAT, {"messages": HELLO * 10000})
        status, _, answer = self.server.request(
            COMPLETIONS, {"prompt": "Once", "max_tokens": 2**31 - 1, "ignore_eos": True, "temperature": 0}, timeout=200)
        self.assertEqual((status, answer["usage"]["total_tokens"]), (200, 96))

    def test_json_bombs(self):
        nested = b"[" * 100000 + b"]" * 100000
        objects = b'{"a":' * 50000 + b"1" + b"}" * 50000
        for body in (nested, objects, b"[" * 4000000, b'{"prompt":' + nested + b"}",
                     b'{"prompt":"x","unknown":' + nested + b"}", b'{"prompt":[' + b"[" * 70 + b"]" * 70 + b"]}",
                     b'{"messages":[{"role":"user","content":' + objects + b"}]}",
                     b"[" + b"1," * 1000000 + b"1]", b'"' + b"\\u0041" * 500000 + b'"'):
            for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize", GENERATE):
                self.refused(path, body)
        for number in (b"1" * 100000, b"1e" + b"9" * 10000, b"-1e400", b"0." + b"0" * 100000 + b"1", b"1" + b"0" * 400,
                       b"99999999999999999999", b"1e-400000000000000000000"):
            for name in (b"n", b"max_tokens", b"seed"):
                body = b'{"prompt":"Once","max_tokens":1,"' + name + b'":' + number + b"}"
                status, _, answer = self.server.request(COMPLETIONS, body)
                if status != 200:  # 0.00...01 is a fine number, not a whole one
                    self.check_error(status, answer, (name, number[:20]))
                else:
                    self.fail((name, number[:20]))
        # Of a name that comes twice the last counts; a thousand unknown names are no harm.
        status, _, answer = self.server.request(COMPLETIONS, b'{"prompt":"a","prompt":"Once","max_tokens":-1,"max_tokens":1}')
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 1))
        self.refused(COMPLETIONS, b'{"prompt":"Once","max_tokens":1,"max_tokens":-1}')
        many = {f"unknown{i}": i for i in range(10000)}
        self.assertEqual(self.server.request(COMPLETIONS, {"prompt": "Once", "max_tokens": 1, **many})[0], 200)

    def test_broken_json(self):
        for body in (b"", b" ", b"{", b"}", b"{}{}", b"{,}", b'{"prompt"}', b'{"prompt":}', b'{"prompt":"x",}',
                     b"{'prompt':'x'}", b'{prompt:"x"}', b'{"prompt":"x"', b'{"prompt":"x}', b"nul", b"NaN", b"Infinity",
                     b'{"prompt":NaN}', b'{"prompt":01}', b'{"prompt":+1}', b'{"prompt":.5}', b'{"prompt":0x10}',
                     b'{"prompt":"x"}x', b'/**/{"prompt":"x"}', b'\xef\xbb\xbf{"prompt":"x"}',
                     '{"prompt":"x"}'.encode("utf-16"), b"\x00", b"\x1f\x8b\x08\x00", b"\x80" * 1000,
                     b'{"prompt":"a\nb"}', b'{"prompt":"a\x00b"}', b'{"prompt":"\\x41"}', b'{"prompt":"\\u12"}',
                     b'{"prompt":"x"}\x00'):
            for path in (COMPLETIONS, "/tokenize"):
                self.refused(path, body)

    def test_bad_utf8(self):
        for text in (b"\xff", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80",
                     b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80", b"a\xbfb", b"\\ud800", b"\\udc00", b"\\ud800\\u0041",
                     b"\\udc00\\ud800"):
            for body in (b'{"prompt":"%s"}', b'{"prompt":"x","stop":"%s"}', b'{"prompt":"x","%s":1}', b'{"model":"%s"}'):
                self.refused(COMPLETIONS, body % text, (400,))
            self.refused(CHAT, b'{"messages":[{"role":"user","content":"%s"}]}' % text)
        # Strange but sound: NUL, the highest code point, a non-character, a bare combining mark.
        for text in ("\0", "a\0b", "\U0010ffff", "\uffff", "\u0301", "\u202e", "\x7f\x1b[31m"):
            status, _, answer = self.server.request("/tokenize", {"prompt": text})
            self.assertEqual(status, 200, answer)
            status, _, back = self.server.request("/detokenize", {"tokens": answer["tokens"]})
            self.assertEqual((status, back), (200, {"prompt": text}))

    def test_routes_and_methods(self):
        for path in ("/nowhere", "/v1", "/v1/", "/v1/chat", "/v1/completions/", "/v2/completions", "//v1/completions",
                     "/v1/images", "/v1/embeddings/", "/..", "/../../etc/passwd", "/page/../../etc/passwd", "/page/%2e%2e/passwd",
                     "/%00", "/%ff", "/v1/models/other", "/v1/models/te%73t/x", "/models", "/health/x",
                     "/" + "x" * 4000, "/page/none.js", "/dashboard/request/x", "/dashboard/step/-1",
                     "/dashboard/request/99999999999999999999"):
            self.refused(path, None, (400, 404))
        for path in ("/v1/models/other/generate", "/models/", "/models/test/", "/models//generate",
                     "/models/test/generate/x", "/models/other/generate_stream"):
            self.refused(path, {"inputs": "x"}, (404,) if path.startswith("/models") else (404, 405))
        for path, method in ((COMPLETIONS, "GET"), (COMPLETIONS, "PUT"), (CHAT, "DELETE"), ("/health", "POST"),
                             ("/metrics", "PATCH"), ("/v1/models", "POST"), ("/tokenize", "OPTIONS"),
                             ("/", "POST"), ("/version", "TRACE"), ("/health", "PROPFIND")):
            status, head, answer = self.server.request(path, b"{}", method=method)
            self.check_error(status, answer, (path, method), (405,))
            self.assertIn(head["Allow"], ("GET", "POST"))
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "*/*", "x" * 5000):
            self.refused(COMPLETIONS, b'{"prompt":"x"}', (415,), {"Content-Type": kind})
        self.refused(COMPLETIONS, b"x" * (9 << 20), (413,))

    def test_broken_http(self):
        get = b"GET /health HTTP/1.1\r\nHost: x\r\n"
        post = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
        for data in (
            b"\r\n" * 10 + b"x", b"\x00" * 100, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /health\r\n\r\n", b"GET  /health HTTP/1.1\r\n\r\n",
            b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n", b"GET /hea lth HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", b"G\xffT /health HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET " + b"/x" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"A" * 20000 + b" / HTTP/1.1\r\n\r\n",
            get + b"No colon\r\n\r\n", get + b": no name\r\n\r\n", get + b"Sp ace: x\r\n\r\n", get + b"A: \x00\r\n\r\n",
            get + b"A: b\r\n continued: x\x01\r\n\r\n", get + b"A\x80: x\r\n\r\n", get + b"A: " + b"b" * 60000 + b"\r\n\r\n",
            get + b"A: b\r\n" * 1000 + b"\r\n", get + b"Host: y\r\n\r\n",
            post + b"Content-Length: x\r\n\r\n{}", post + b"Content-Length: -1\r\n\r\n{}",
            post + b"Content-Length: 1e1\r\n\r\n{}", post + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
            post + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", post + b"Content-Length: 0x2\r\n\r\n{}",
            post + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
            post + b"Transfer-Encoding: deflate\r\n\r\n", post + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
            chunked + b"x\r\n{}\r\n0\r\n\r\n", chunked + b"-2\r\n{}\r\n0\r\n\r\n", chunked + b"2\r\n{}extra\r\n0\r\n\r\n",
            chunked + b"\r\n\r\n", chunked + b"ffffffffffffffffffff\r\n{}\r\n", chunked + b"7fffffffffffffff\r\n{}\r\n",
            chunked + b"2 \x00\r\n{}\r\n0\r\n\r\n",
        ):
            with self.subTest(data=data[:90]):
                got = self.raw(data, half=True)
                if got:
                    head, body = got.split(b"\r\n\r\n", 1)
                    version = re.match(rb"\S+ \S+ HTTP/1[.]|\S*$", data.split(b"\r\n", 1)[0])
                    wants = (400, 413, 431) if version else (400, 431, 505)
                    self.check_error(int(head.split()[1]), json.loads(body), data[:90], wants)
                    self.assertIn(b"Connection: close", head)

    def test_bytes_that_are_no_body_are_bounded(self):
        head = (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n")
        for tail in (b"2;", b"0\r\nA: ", b"f" * 16):
            with self.subTest(tail=tail):
                got = self.raw(head + tail + b"x" * (1 << 20))
                self.assertTrue(got, "not refused")
                self.check_error(int(got.split()[1]), json.loads(got.split(b"\r\n\r\n", 1)[1]), tail)

    def test_lengths_that_lie(self):
        post = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        body = b'{"prompt":"hello"}'
        # Too long: the rest never comes. Too short: what is left over is no request.
        self.assertEqual(self.raw(post + b"Content-Length: 1000\r\n\r\n" + body, half=True), b"")
        self.assertEqual(self.raw(post + b"Content-Length: 1000\r\n\r\n" + body), b"")
        self.assertEqual(self.raw(post + b"Transfer-Encoding: chunked\r\n\r\n12\r\n{", half=True), b"")
        got = self.raw(post + b"Content-Length: 10\r\n\r\n" + body)
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", got), [b"400", b"400"])
        # No length is an empty body, and what follows is no request.
        self.assertIn(b"HTTP/1.1 400", self.raw(post + b"\r\n" + body))

    def test_pipelined(self):
        one = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
        body = b"{"
        bad = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n" + body
        last = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        got = self.raw(one * 50 + bad + one * 49 + last)
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", got), [b"200"] * 50 + [b"400"] + [b"200"] * 50)
        got = self.raw(one * 3 + b"NONSENSE\r\n\r\n" + one * 3)
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", got), [b"200"] * 3 + [b"400"])

    def test_absurd_headers(self):
        for name, value in (("Authorization", "Bearer " + "x" * 8000), ("X-Request-Id", "x" * 8000),
                            ("X-Request-Id", "<script>"), ("Accept", "nothing/at-all"), ("Accept-Encoding", "br;q=x"),
                            ("Connection", "close, keep-alive, upgrade"), ("Upgrade", "h2c"), ("Range", "bytes=-1"),
                            ("Cookie", "a=" + "b" * 8000), ("Expect", "a miracle"), ("If-Match", '"x"'),
                            ("Origin", "null"), ("X-Forwarded-For", "1.2.3.4, " * 500), ("Max-Forwards", "-1")):
            with self.subTest(name=name):
                status, head, answer = self.server.request("/version", headers={name: value})
                self.assertIn("version", answer)
                self.assertLess(len(head["x-request-id"]), 129)
                self.assertNotIn("<", head["x-request-id"])


@unittest.skipUnless(stories(), "the tiny test model is absent; set SLUICE_TEST_DATA")
class HostileJsonAndTemplates(unittest.TestCase):
    """Bodies and templates made to be slow or large: 400 at once, and neighbours are served."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--allow-request-template", path=stories())

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def refused(self, path, body, message):
        start = time.monotonic()
        status, _, answer = self.server.request(path, body)
        took = time.monotonic() - start
        self.assertEqual(status, 400, answer)
        self.assertRegex(answer["error"]["message"], message)
        self.assertLess(len(answer["error"]["message"]), 1000)
        self.assertNotIn("\n", answer["error"]["message"])
        self.assertLess(took, 10)  # at most 0.3 s with the transfer of the body
        self.assertEqual(self.server.request("/health")[0], 200)

    def test_json(self):
        size = (8 << 20) - 100
        keys = b",".join(b'"%d":0' % i for i in range(600_000))
        bodies = {
            b'{"prompt":{' + keys + b"}}": "too many keys",
            b'{"prompt":[' + b"1," * (size // 2) + b"1]}": "too many values",
            b"[" * 100_000: "too deep",
            b'{"a":' * 100_000: "too deep",
            b'{"prompt":"' + b"x" * size + b'\xff"}': "invalid JSON",
            b"{" + b'"k":1,' * (size // 6) + b'"k":1}': "too many keys",
        }
        for body, message in bodies.items():
            with self.subTest(body=body[:20], message=message):
                self.refused(COMPLETIONS, body, message)

    def test_colliding_keys(self):
        # FNV-1a, as Boost.JSON hashes, in a table of 4,096 whose address is 16 more than a page's.
        keys, i, prime = [], 0, 0x100000001B3
        want = 7 * pow(prime, -1, 4096) % 4096
        while len(keys) < 4096:
            text, h = b"%x" % i, (0xCBF29CE484222325 + 16) % 4096
            for c in text:
                h = (c ^ h) * prime % 4096
            if 96 < h ^ want < 123:  # a letter that leads to bucket 7
                keys.append(b'"%s%c":0' % (text, h ^ want))
            i += 1
        message = b'{"role":"user","content":"x",' + b",".join(keys) + b"}"
        self.refused(CHAT, b'{"messages":[' + b",".join([message] * 60) + b"]}", "too many keys")

    def test_templates(self):
        shared = ("{% set ns=namespace(l=(1,)) %}{% for i in range(60) %}{% set ns.l=(ns.l,ns.l) %}{% endfor %}")
        steps = "too many steps|takes too long"  # the latter on a machine under load
        for template, message in (
            (shared + "{% set d={ns.l:1} %}{{ d }}", steps),
            (shared + "{{ ns.l|tojson }}", steps),
            ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", steps),
            ("{{ 'x' * 10**9 }}", "out of memory"),
            ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "the output is too long"),
            ("{% set l = range(99999)|list %}{% macro f() %}{% for x in l if f() %}{% endfor %}{% endmacro %}{{ f() }}",
             "out of memory"),
            ("{{ " + "[" * 100_000, "chat template"),
            ("{{ raise_exception('x\\n' * 100000) }}", "x x x"),
        ):
            with self.subTest(template=template[:60], message=message):
                self.refused(CHAT, {"messages": HELLO, "chat_template": template, "max_tokens": 1}, message)


if __name__ == "__main__":
    unittest.main()
