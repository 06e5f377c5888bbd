#!/usr/bin/env python3
"""A conversation with sluice run, on a terminal (a pty) and over a pipe.

    tests/chat_test.py BINARY [unittest arguments]

The model is tests/golden/models/llama.gguf with a chat template: its answers mean nothing, but they are the same
each time.
"""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
import unittest

import cli_test
sys.path.append(str(pathlib.Path(__file__).resolve().parent / "server"))
import gguf_copy
from cli_test import Cli, Gguf, MODEL

WORK = None
TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}")
STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
PROMPT = "\x1b[?2004h"  # written before each prompt
STATS = re.compile(r"(\d+) tokens, \d+ tok/s, first \d+ ms([^\r\n]*)\r\n")


class Terminal:
    """A process on a terminal of its own, as a person would use it."""

    def __init__(self, *args, env=None, size=(24, 80)):
        self.seen = ""
        self.at = 0  # what has been waited for
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "XDG_STATE_HOME": str(WORK / "state"), **(env or {})})
            os.environ.pop("NO_COLOR", None) if "NO_COLOR" not in (env or {}) else None
            try:
                os.execv(cli_test.BINARY, [str(cli_test.BINARY)] + [str(a) for a in args])
            finally:
                os._exit(127)  # no program: the child must not go on as a second test
        self.resize(*size)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, wait):
        if not select.select([self.fd], [], [], wait)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def until(self, what, timeout=240):
        """Everything up to `what` (a string or a pattern), which comes after all that was waited for."""
        pattern = what if isinstance(what, re.Pattern) else re.compile(re.escape(what))
        end = time.monotonic() + timeout
        while True:
            found = pattern.search(self.seen, self.at)
            if found:
                text = self.seen[self.at:found.end()]
                self.at = found.end()
                return text
            if time.monotonic() > end:
                raise AssertionError(f"no {what!r} in {self.seen[self.at:]!r}")
            self.read(0.1)

    def send(self, text):
        os.write(self.fd, text.encode() if isinstance(text, str) else text)

    def enter(self, text):
        """A line, and everything until the next prompt."""
        self.send(text + "\r")
        return self.until(PROMPT)

    def end(self, timeout=240):
        """The exit code."""
        limit = time.monotonic() + timeout
        while time.monotonic() < limit:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0):
                    pass
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(f"still running; {self.seen[self.at:]!r}")


class Screen:
    """What a terminal of so many columns shows, as far as an answer uses it."""

    def __init__(self, columns):
        self.columns, self.lines, self.at, self.overflows = columns, [""], 0, 0

    def feed(self, text):
        for piece in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|.", text, re.S):
            line = self.lines[-1]
            if piece == "\n":
                self.lines.append("")
                self.at = 0
            elif piece == "\r":
                self.at = 0
            elif piece.startswith("\x1b"):
                if piece.endswith("D"):
                    self.at -= int(piece[2:-1])
                elif piece.endswith("K"):
                    self.lines[-1] = line[:self.at]
            else:
                self.lines[-1] = line[:self.at] + piece + line[self.at + 1:]
                self.at += 1
                self.overflows += self.at > self.columns

    def text(self):
        return "\n".join(self.lines)


def answer_of(text, line):
    """The answer in what a terminal got for a line: between the echo and the statistics."""
    text = STYLE.sub("", text)
    return text[text.rindex("> " + line) + len(line) + 2:STATS.search(text).start()].strip("\r\n").replace("\r\n", "\n")


class Chat(Cli):
    @classmethod
    def setUpClass(cls):
        cls.model = Gguf().set_string("tokenizer.chat_template", TEMPLATE).write("chat.gguf")

    def start(self, *more, model=None, most=12, **options):
        t = Terminal("run", model or self.model, "-t", 1, "-m", most, "--temperature", 0, *more, **options)
        t.until(PROMPT)
        return t

    def saved(self, t, name):
        path = WORK / name
        t.enter(f"/save! {path}")
        return json.loads(path.read_text())

    def test_answers_are_those_of_run(self):
        t = self.start()
        first = t.enter("hello")
        self.assertRegex(first, STATS)
        t.enter("and then")
        talk = self.saved(t, "talk.json")
        self.assertEqual([m["role"] for m in talk], ["user", "assistant", "user", "assistant"])
        self.assertEqual([m["content"] for m in talk if m["role"] == "user"], ["hello", "and then"])
        once = json.loads(self.works("run", self.model, "hello", "-m", 12, "-t", 1, "--temperature", 0, "--json", "-q"))
        self.assertEqual(talk[1]["content"], once["text"])
        lines = WORK / "lines.jsonl"
        lines.write_text(json.dumps({"messages": talk[:3]}) + "\n")
        again = json.loads(self.works("run", self.model, "--jsonl", lines, "-m", 12, "-t", 1, "--temperature", 0, "-q"))
        self.assertEqual(talk[3]["content"], again["text"])
        t.send("\x04")
        self.assertEqual(t.end(), 0)

    def test_the_second_turn_reuses_the_first(self):
        t = self.start("--block-size", 16)
        t.enter("hello, this is a message of some length to fill blocks with")
        t.enter("go on")
        stats = t.enter("/stats")
        prompt, cached = map(int, re.search(r"(\d+) tokens, (\d+) of them from the prefix cache", stats).groups())
        self.assertGreaterEqual(cached, 64)
        self.assertLess(cached, prompt)
        self.assertRegex(stats, r"context +\d+ of \d+ tokens")
        self.assertIn("2 answers", stats)
        t.send("/exit\r")
        self.assertEqual(t.end(), 0)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        endless = Gguf().set_string("tokenizer.chat_template", TEMPLATE).set_u32("llama.context_length", 1 << 16)
        t = self.start("--ignore-eos", "--device", "ref", "--kv-memory", "64M", model=endless.write("endless.gguf"),
                       most=100000)
        t.send("hello\r")
        t.until("\x1b[?2004l")
        time.sleep(0.5)
        t.send("\x03")
        text = t.until(PROMPT)
        self.assertIn("stopped", text)
        talk = self.saved(t, "stopped.json")
        self.assertEqual(len(talk), 2)
        self.assertTrue(talk[1]["content"])
        t.enter("/set max_tokens 3")
        self.assertRegex(t.enter("again"), STATS)
        t.send("\x04")
        self.assertEqual(t.end(), 0)

    def test_ctrl_c_at_the_prompt(self):
        t = self.start()
        t.send("some text")
        t.until("some text")
        t.send("\x03")
        t.until(PROMPT)
        t.send("\x03")
        self.assertIn("Ctrl-D", t.until(PROMPT))
        t.enter("/set seed 4")  # anything else forgets the first
        t.send("\x03")
        t.until(PROMPT)
        t.send("text\x03")
        t.until(PROMPT)
        t.send("\x03")
        t.until(PROMPT)
        t.send("\x03")
        self.assertEqual(t.end(), 0)
        self.assertNotRegex(t.seen, STATS)

    def test_editing_history_and_lines(self):
        t = self.start()
        t.send("wrld\x1b[D\x1b[D\x1b[Do\r")
        t.until(PROMPT)
        t.send("\x1b[A\x01x\r")  # the last one, changed
        t.until(PROMPT)
        t.send("two\\\r")
        t.send("lines\r")
        t.until(STATS)
        t.until(PROMPT)
        t.send('"""block\rof "lines"\r"""\r')
        t.until(STATS)
        t.until(PROMPT)
        t.send("\x1b[200~pasted\nlines\x1b[201~")
        t.until("lines")
        t.resize(24, 40)
        t.send("\r")
        t.until(STATS)
        t.until(PROMPT)
        talk = self.saved(t, "edited.json")
        self.assertEqual([m["content"] for m in talk if m["role"] == "user"],
                         ["world", "xworld", "two\nlines", 'block\nof "lines"', "pasted\nlines"])
        t.send("\x04")
        self.assertEqual(t.end(), 0)
        history = WORK / "state/sluice/history"
        self.assertEqual(history.stat().st_mode & 0o777, 0o600)
        t = self.start()  # in the next conversation
        t.send("\x12paste")
        t.until("pasted")
        t.send("\r")
        t.until(STATS)
        t.send("\x04")
        self.assertEqual(t.end(), 0)

    def test_commands(self):
        t = self.start()
        for name in ("system", "set", "stats", "retry", "undo", "clear", "save", "load", "json", "json-schema", "tools", "exit"):
            self.assertIn("/" + name, t.enter("/help"))
        self.assertIn("/stats?", t.enter("/stast"))
        self.assertIn("no command", t.enter("/frobnicate"))
        self.assertIn("nothing has been answered", t.enter("/stats"))
        self.assertIn("no message", t.enter("/retry"))
        self.assertIn("nothing to take back", t.enter("/undo"))
        self.assertIn("temperature", t.enter("/set"))
        self.assertIn("from 0 to 100", t.enter("/set temperature 1000"))
        self.assertIn("temperature?", t.enter("/set temprature 1"))
        t.enter("/system You are brief.")
        self.assertIn("You are brief.", t.enter("/system"))
        t.enter("/set temperature 1")
        t.enter("hi")
        first = self.saved(t, "first.json")
        t.enter("/retry")
        second = self.saved(t, "second.json")
        self.assertEqual(first[:2], second[:2])
        self.assertNotEqual(first[2], second[2])  # another draw
        shown = STYLE.sub("", t.enter("/json"))
        self.assertEqual(json.loads(shown[shown.index("["):shown.rindex("]") + 1]), second)
        self.assertIn("exists", t.enter(f"/save {WORK / 'first.json'}"))
        self.assertIn("3 messages from", t.enter(f"/load {WORK / 'first.json'}"))
        self.assertEqual(self.saved(t, "third.json"), first)
        t.enter("/undo")
        self.assertEqual(self.saved(t, "fourth.json"), first[:1])
        t.enter("/system -")
        t.enter("/clear")
        self.assertEqual(self.saved(t, "fifth.json"), [])
        self.assertIn("no such file", t.enter("/load nothing.json"))
        (WORK / "broken.json").write_text('[{"role": 1}]')
        self.assertIn("role", t.enter(f"/load {WORK / 'broken.json'}"))
        self.assertIn("cannot write", t.enter("/save /dev/null/x.json"))
        t.send("/quit\r")
        self.assertEqual(t.end(), 0)
        for leave in ("/bye\r", "/exit\r", "\x04"):
            t = self.start()
            t.send(leave)
            self.assertEqual(t.end(), 0)

    def test_what_was_saved_goes_through_the_template(self):
        t = self.start()
        t.enter("hi")
        self.saved(t, "talk.json")
        t.send("\x04")
        self.assertEqual(t.end(), 0)
        text = self.works("template", self.model, WORK / "talk.json", "--no-generation-prompt").decode()
        self.assertTrue(text.startswith("[user]hi\n[assistant]"), text)

    def test_context_full(self):
        t = self.start("--ctx", 64)
        text = t.enter("a message that takes most of a small context, and more")
        text += t.enter("and another one, which cannot fit any more")
        self.assertIn("context", text)
        self.assertIn("/clear", text)
        t.enter("/clear")
        self.assertRegex(t.enter("hi"), STATS)
        t.send("\x04")
        self.assertEqual(t.end(), 0)

    def test_an_answer_that_was_cut_says_so(self):
        t = self.start("--ignore-eos", most=3)
        self.assertIn("cut at 3 tokens: /set max_tokens N raises the limit", t.enter("hello"))
        t.enter("/set max_tokens 100000")
        self.assertIn("the model's context of 512 tokens is full", t.enter("again"))
        t.send("\x04")
        self.assertEqual(t.end(), 0)
        t = self.start("--ignore-eos", "--ctx", 64, most=1000)
        self.assertIn("the context of 64 tokens is full (--ctx N, up to 512)", t.enter("hello"))
        t.send("\x04")
        self.assertEqual(t.end(), 0)

    def test_lines_break_between_words(self):
        model = Gguf().set_string("tokenizer.chat_template", TEMPLATE)
        for env in ({}, {"NO_COLOR": "1"}):
            t = self.start("--ignore-eos", model=model.write("wrap.gguf"), most=200, size=(24, 40), env=env)
            shown = Screen(40)
            shown.feed(t.enter("hello"))
            talk = self.saved(t, "wrapped.json")
            t.send("\x04")
            self.assertEqual(t.end(), 0)
            text = shown.text()
            for word in talk[1]["content"].split():
                if len(word) < 39 and word.isprintable():
                    self.assertIn(word, text)
            self.assertEqual(shown.overflows, 0)

    def test_a_prompt_on_a_terminal_is_wrapped_too(self):
        t = Terminal("run", self.model, "hello", "-t", 1, "-m", 60, "--temperature", 0, "--ignore-eos", size=(24, 40))
        self.assertEqual(t.end(), 0)
        shown = Screen(40)
        shown.feed(t.seen.split("device: ", 1)[1].split("\n", 1)[1].rsplit("\r\n\r\n", 1)[0])
        self.assertEqual(shown.overflows, 0)
        self.assertIn("cut at 60 tokens: --max-tokens N raises the limit", " ".join(t.seen.split()))

    def test_without_a_template(self):
        t = Terminal("run", MODEL, "-t", 1, "-m", 5, "--temperature", 0)
        self.assertIn("no chat template", t.until(PROMPT))
        t.enter("hello")
        self.assertIn("no place", t.enter("/system x"))
        talk = self.saved(t, "plain.json")
        once = json.loads(self.works("run", MODEL, "-p", "hello", "-m", 5, "-t", 1, "--temperature", 0, "--json", "-q"))
        self.assertEqual(talk[1]["content"], once["text"])
        t.send("\x04")
        self.assertEqual(t.end(), 0)

    def test_template_that_refuses(self):
        model = Gguf().set_string("tokenizer.chat_template", "{{ raise_exception('only later') }}").write("refuses.gguf")
        t = self.start(model=model)
        self.assertIn("only later", t.enter("hello"))
        self.assertEqual(self.saved(t, "refused.json"), [])
        t.send("\x04")
        self.assertEqual(t.end(), 0)

    def test_dumb_terminal_and_no_colour(self):
        t = Terminal("run", self.model, "-t", 1, "-m", 5, "--temperature", 0, env={"TERM": "dumb", "NO_COLOR": "1"})
        t.until("> ")
        t.send("hello\n")
        t.until(STATS)
        t.until("> ")
        t.send("\x03")
        t.until("> ")
        t.send("\x04")
        self.assertEqual(t.end(), 0)
        self.assertNotIn("\x1b", t.seen)

    def test_pipe(self):
        done = cli_test.run("run", self.model, "-i", "-t", 1, "-m", 5, "--temperature", 0, "--ignore-eos",
                            stdin=b"hello\n/stats\ntwo\\\nlines\n/json\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        out = done.stdout.decode()
        talk = json.loads(out[out.rindex("[\n"):])
        self.assertEqual(talk[2]["content"], "two\nlines")
        self.assertEqual(out[:out.rindex("[\n")], "".join(m["content"] + "\n" for m in talk if m["role"] == "assistant"))
        self.assertIn(b"prefix cache", done.stderr)
        done = cli_test.run("run", self.model, "-i", "-t", 1, stdin=b"/nothing\n")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, b"")
        state = WORK / "other"
        done = cli_test.run("run", self.model, "-i", "-t", 1, stdin=b"/help\n", env={"XDG_STATE_HOME": str(state)})
        self.assertEqual(done.returncode, 0)
        self.assertFalse(state.exists())  # a pipe has no history
        self.assertEqual(cli_test.run("run", self.model, "-i", "-t", 1, stdin=b"").returncode, 0)
        self.assertEqual(cli_test.run("run", self.model, "-i", "-t", 1, "-q", stdin=b"\xff\n").returncode, 2)

    def test_json_schema(self):
        path = WORK / "schema.json"
        path.write_text(json.dumps({"enum": [True, False]}))
        lines = f"/json-schema\n/json-schema {path}\nhello\n/json-schema\n/json-schema -\n/json-schema\n/json\n"
        done = cli_test.run("run", self.model, "-i", "-t", 1, "-q", "-m", 8, stdin=lines.encode())
        self.assertEqual(done.returncode, 0, done.stderr)
        talk = json.loads(done.stdout[done.stdout.rindex(b"[\n"):])
        self.assertIn(talk[1]["content"], ("true", "false"))
        said = [line for line in done.stderr.decode().splitlines() if line.startswith("answers are")]
        self.assertEqual(said, ["answers are any text", "answers are constrained", "answers are any text"])
        done = cli_test.run("run", self.model, "-i", "-t", 1, "-q", "-m", 8, "--json-schema", path, stdin=b"hello\n")
        self.assertIn(done.stdout.strip(), (b"true", b"false"))
        done = cli_test.run("run", self.model, "-i", "-t", 1, stdin=b"/json-schema no-such.json\n")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(b"no-such.json", done.stderr)

    def test_a_schema_holds_for_what_follows_the_thinking(self):
        """Where the template opens it. Token 255 is made its end, which a bias asks for at once or never."""
        template = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{# </think> #}"
                    "{% if add_generation_prompt %}[assistant]<think>\n{% endif %}")
        model = WORK / "thinks.gguf"
        gguf_copy.copy_with(MODEL, model, {255: "</think>"}, template=template)
        schema = json.dumps({"enum": [True, False]})
        args = ("run", model, "-t", 1, "-q", "-m", 8, "--temperature", 0, "--logit-bias")
        for bias, answers in (("255=100", ("true", "false")), ("255=-100", ("",))):
            for flags, lines in ((["-i"], f"/json-schema {schema}\nhello\n/json\n"), (["-i", "--json-schema", schema], "hello\n/json\n")):
                done = cli_test.run(*args, bias, *flags, stdin=lines.encode())
                self.assertEqual(done.returncode, 0, done.stderr)
                out = done.stdout.decode()
                answer = json.loads(out[out.rindex("[\n"):])[1]
                self.assertIn(answer["content"], answers)
                self.assertEqual(out[:out.rindex("[\n")].strip(), answer["content"])  # thinking is not for pipes
                self.assertEqual(bool(answer.get("reasoning_content")), answers == ("",))
            done = cli_test.run(*args, bias, "--json-schema", schema, "-p", "hello")
            self.assertIn(done.stdout.decode().strip(), answers)
            done = cli_test.run(*args, bias, "--json-schema", schema, "-p", "hello", "--json", "-n", 2)
            for choice in json.loads(done.stdout)["choices"]:
                self.assertIn(choice["text"], answers)
                self.assertEqual(bool(choice["reasoning"]), answers == ("",))

    def test_tools(self):
        template = ("{% if tools %}<tools>{% for t in tools %}{{ t.function.name }} {% endfor %}</tools>"
                    "<tool_call></tool_call>{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
                    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}\n{% endfor %}[assistant]")
        model = Gguf().set_string("tokenizer.chat_template", template).write("tools.gguf")
        tools = [{"type": "function", "function": {"name": name, "description": "A tool", "parameters": {
            "type": "object", "additionalProperties": False, "required": ["city"], "properties": {"city": {"enum": ["Rome", "Oslo"]}}}}}
            for name in ("weather", "time")]
        path, talk = WORK / "tools.json", WORK / "called.json"
        path.write_text(json.dumps(tools))
        lines = f"/tools\n/tools {path}\n/tools\n/tools! {path}\n/tools\n/json-schema {{}}\nhello\n/json\n"
        done = cli_test.run("run", model, "-i", "-t", 1, "-q", "-m", 300, "--temperature", 0, stdin=lines.encode())
        self.assertEqual(done.returncode, 2, done.stderr)  # of /json-schema alone
        said = done.stderr.decode().splitlines()
        self.assertEqual(said[:3], ["no tools", "weather, time", "weather, time (every answer calls)"])
        self.assertIn("/tools - removes them", said[3])
        out, kept = done.stdout.decode().split("[\n", 1)
        call = json.loads(next(line for line in out.splitlines() if line.endswith("}}")))  # the last one may be cut off
        self.assertIn(call["name"], ("weather", "time"))
        self.assertIn(call["arguments"]["city"], ("Rome", "Oslo"))
        answer = json.loads("[" + kept)[1]
        self.assertEqual(answer["tool_calls"][0]["function"], call)
        # The lines that follow are the results, in order; then the model answers.
        talk.write_text(json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}} for i in (1, 2)]}]))
        lines = f"/tools {path}\n/load {talk}\nsunny\nrain\n/tools -\nthanks\n/json\n"
        done = cli_test.run("run", model, "-i", "-t", 1, "-m", 5, "--temperature", 0, "--ignore-eos", stdin=lines.encode())
        self.assertEqual(done.returncode, 0, done.stderr)
        kept = json.loads(done.stdout[done.stdout.rindex(b"[\n"):])
        self.assertEqual([m["role"] for m in kept], ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"])
        self.assertEqual([(m["tool_call_id"], m["content"]) for m in kept[2:4]], [("c1", "sunny"), ("c2", "rain")])
        self.assertIn(b"the next message is the result of weather", done.stderr)
        for line, says in ((f"/tools {talk}", b"tools[0]"), ("/tools [1", b"the tools"), ("/tools no-such.json", b"no-such.json")):
            done = cli_test.run("run", model, "-i", "-t", 1, "-q", stdin=line.encode() + b"\n")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)
        done = cli_test.run("run", self.model, "-i", "-t", 1, "-q", stdin=f"/tools {path}\n".encode())
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"knows no tools", done.stderr)

    def test_bad_options(self):
        self.fails("run", self.model, "-i", "-p", "x", says="-i")
        self.fails("run", self.model, "-i", "--json", says="--json")
        self.fails("run", self.model, "-i", "-n", 2, says="-n")
        self.fails("run", self.model, "-i", "--temperature", 1000, says="temperature")
        self.fails("run", MODEL, "-i", "--system", "x", says="no chat template")

    def test_a_story(self):
        data = pathlib.Path(os.environ.get("SLUICE_TEST_DATA", cli_test.ROOT.parent / "shared/data"))
        model = data / "models/stories260K-f32.gguf"
        if not model.exists():
            self.skipTest(f"{model} is not there")
        t = Terminal("run", model, "-t", 1, "-m", 30, "--temperature", 0)
        t.until(PROMPT)
        text = t.enter("Once upon a time")
        once = json.loads(self.works("run", model, "-p", "Once upon a time", "-m", 30, "-t", 1, "--temperature", 0,
                                     "--json", "-q"))
        shown = Screen(80)  # wrapped between words
        shown.feed(text)
        self.assertIn(" ".join(once["text"].split()), " ".join(shown.text().split()))
        t.send("\x04")
        self.assertEqual(t.end(), 0)


if __name__ == "__main__":
    cli_test.BINARY = pathlib.Path(sys.argv.pop(1)).resolve()
    with tempfile.TemporaryDirectory() as folder:
        WORK = cli_test.WORK = pathlib.Path(folder)
        unittest.main(testLoader=cli_test.SlicedLoader())
