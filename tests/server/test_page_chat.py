"""The chat in a real browser: streams, failures, a server that goes away, branches, exports."""

import json
import pathlib
import signal
import tempfile
import time
import unittest

from browser import Page, chromium
from harness import Server, model
from proxy import Proxy

SCRIPT = (pathlib.Path(__file__).resolve().parent / "scripted.js").read_text()
ANSWERS = "[...document.querySelectorAll('.message.assistant')]"
LAST = ANSWERS + ".at(-1)"
IDLE = "document.getElementById('send').textContent === 'Send'"
TEXT = LAST + ".querySelector(':scope > .body > :not(.note)').textContent"
BUSY = "document.getElementById('send').textContent === 'Stop'"


def settings(page, **values):
    page.js("localStorage.setItem('sluice.settings', JSON.stringify(%s))"
            % json.dumps({"values": {"temperature": "0", "seed": "1", **values}, "stop": "", "system": "", "probabilities": False}))
    page.reload()


def ask(page, text):
    page.type("#input", text)
    page.press("Enter")


class Chat(unittest.TestCase):
    """With one server and one tab; each test begins with an empty page."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "2048")
        cls.page = Page()
        cls.page.before(SCRIPT)
        cls.page.open(cls.server.url + "/")

    @classmethod
    def tearDownClass(cls):
        cls.page.__exit__()
        cls.server.__exit__()

    def setUp(self):
        self.page.js("localStorage.clear()")
        self.page.reload()
        self.page.until("document.getElementById('model').textContent === 'test'")
        self.page.problems.clear()

    def script(self, code):
        """`script.answer` for chat requests: an expression that makes a Response."""
        self.page.js("script.answer = (path, options) => path === '/v1/chat/completions' ? (%s) : null" % code)


@unittest.skipUnless(chromium(), "no Chromium here (Debian: apt-get install chromium)")
@unittest.skipUnless(model(), "the default model is not in the cache")
class Scripted(Chat):
    """What the page does with answers that a model of this size does not give."""

    def begin(self, question="Why?"):
        self.page.js("window.out = script.stream()")
        self.script("out.response")
        ask(self.page, question)
        self.page.until(BUSY)

    def test_structured_output_is_indented(self):
        self.page.js("localStorage.setItem('sluice.settings', JSON.stringify({schema: '{\"type\": \"object\"}'}))")
        self.page.reload()
        self.begin()
        self.assertEqual(self.page.js("script.sent.at(-1).json_schema"), '{"type": "object"}')
        self.page.js("out.chunk('{\"a\":[1,')")
        self.page.until(TEXT + " === '{\"a\":[1,'")  # not whole yet: as it comes
        self.page.js("out.chunk('2]}'), out.end()")
        self.page.until(IDLE)
        code = LAST + ".querySelector('pre code')?.textContent"
        self.assertEqual(json.loads(self.page.js(code)), {"a": [1, 2]})
        self.assertIn("\n", self.page.js(code).strip())
        self.page.js(LAST + ".querySelector('.raw').click()")
        self.page.until(TEXT + " === '{\"a\":[1,2]}'")
        self.page.js(LAST + ".querySelector('.raw').click()")
        self.page.until(code + " != null")

    def test_reasoning_folds_while_it_streams(self):
        page = self.page
        self.begin()
        page.js("out.chunk('<think>One two')")
        page.until("/^Thinking, 2 words/.test(document.querySelector('.think summary')?.textContent)")
        self.assertFalse(page.js("document.querySelector('.think').open"))
        page.click(".think summary")  # stays open while more comes
        page.js("out.chunk(' **three**')")
        page.until("document.querySelector('.think strong')?.textContent === 'three'")
        self.assertTrue(page.js("document.querySelector('.think').open"))
        page.js("out.chunk('</think>\\n\\nThe answer.')")
        page.until("/The answer/.test(document.querySelector('.assistant > .body > p')?.textContent)")
        self.assertEqual(page.js("document.querySelector('.think summary').textContent"), "Thoughts, 3 words")
        page.js("out.end()")
        page.until(IDLE)
        # The next question does not carry the reasoning.
        self.begin("And then?")
        self.assertEqual(page.js("script.sent.at(-1).messages"), [
            {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "The answer."}, {"role": "user", "content": "And then?"}])
        page.js("out.chunk('<think>never ends')")
        page.js("out.end('length')")
        page.until(IDLE)
        self.assertEqual(page.js(LAST + ".querySelector('.think summary').textContent"), "Thoughts without an end, 2 words")
        self.assertIn("Cut", page.js(LAST + ".querySelector('.note.cut').textContent"))

    def test_reasoning_in_a_field_of_its_own(self):
        self.begin()
        self.page.js("out.chunk('', {delta: {reasoning_content: 'hidden thoughts'}})")
        self.page.until("document.querySelector('.think .body')?.textContent === 'hidden thoughts'")
        self.page.js("out.chunk('Said.')")
        self.page.js("out.end()")
        self.page.until(IDLE)
        self.assertEqual(self.page.js(LAST + ".querySelector(':scope > .body > p').textContent"), "Said.")

    def call(self, **fields):
        piece = {"delta": {"tool_calls": [fields]}}
        self.page.js("out.chunk('', %s)" % json.dumps(piece))

    def test_tool_calls_are_boxes_and_take_results(self):
        page = self.page
        tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
        page.js("localStorage.setItem('sluice.settings', %s)" % json.dumps(json.dumps({"tools": json.dumps(tools)})))
        page.reload()
        self.begin("Rome and Oslo?")
        self.assertEqual(page.js("script.sent.at(-1).tools"), tools)
        page.js("out.chunk('', {delta: {reasoning_content: 'two cities'}})")
        self.call(index=0, id="call_1", type="function", function={"name": "weather", "arguments": ""})
        self.call(index=0, function={"arguments": '{"city": "Ro'})
        page.until(LAST + ".querySelector('.call .plain')?.textContent === '{\"city\": \"Ro'")  # as it comes
        self.call(index=0, function={"arguments": 'me", "days": [1, 2]}'})
        self.call(index=1, id="call_2", type="function", function={"name": "time", "arguments": '{"city": "<b>Oslo</b>"}'})
        page.js("out.end('tool_calls')")
        page.until(IDLE)
        boxes = "[...%s.querySelectorAll('.call')]" % LAST
        self.assertEqual(page.js(boxes + ".map((b) => b.querySelector('b').textContent)"), ["weather", "time"])
        code = page.js(boxes + ".map((b) => b.querySelector('pre code').textContent)")
        self.assertEqual([json.loads(c) for c in code], [{"city": "Rome", "days": [1, 2]}, {"city": "<b>Oslo</b>"}])
        self.assertEqual(code[0].strip().splitlines()[1], '  "city": "Rome",')  # a line each
        self.assertFalse(page.js(LAST + ".querySelector('.think').open"))
        self.assertEqual(page.js(LAST + ".querySelector('.think summary').textContent"), "Thoughts, 2 words")
        # Its results: a field per call, and they go back with the calls. What was typed outlives drawing the page anew.
        page.js("window.out = script.stream()")
        page.js("document.querySelectorAll('.results textarea').forEach((e, i) => { e.value = ['sunny', '14:05'][i]; "
                "e.dispatchEvent(new Event('input')); window.form = e.form; })")
        page.click(".edit")
        page.click(".editing button.quiet")
        self.assertFalse(page.js("window.form.isConnected"))
        self.assertEqual(page.js("[...document.querySelectorAll('.results textarea')].map((e) => e.value)"), ["sunny", "14:05"])
        page.click(".results button")
        page.until(BUSY)
        sent = page.js("script.sent.at(-1).messages")
        self.assertEqual([m["role"] for m in sent], ["user", "assistant", "tool", "tool"])
        self.assertEqual(sent[1]["tool_calls"][0], {"id": "call_1", "type": "function", "function": {
            "name": "weather", "arguments": '{"city": "Rome", "days": [1, 2]}'}})
        self.assertEqual(sent[2:], [{"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
                                    {"role": "tool", "tool_call_id": "call_2", "content": "14:05"}])
        page.js("out.chunk('Sunny, and five past two.'), out.end()")
        page.until(IDLE)
        self.assertEqual(page.js("[...document.querySelectorAll('.call.result .plain')].map((e) => e.textContent)"), ["sunny", "14:05"])
        self.assertEqual(page.js("document.querySelectorAll('.results').length"), 0)
        page.reload()  # and all of it is kept
        self.assertEqual(page.js("document.querySelectorAll('.call').length"), 4)
        self.assertEqual(page.problems, [])

    def test_a_call_that_was_cut_is_left_out(self):
        self.begin("Rome?")
        self.call(index=0, id="call_1", type="function", function={"name": "weather", "arguments": '{"city": "Ro'})
        self.page.js("out.end('length')")
        self.page.until(IDLE)
        self.assertEqual(self.page.js("document.querySelectorAll('.results').length"), 0)  # nothing to give a result for
        self.begin("And Oslo?")
        self.assertEqual(self.page.js("script.sent.at(-1).messages"), [{"role": "user", "content": "And Oslo?"}])
        self.call(index=0, id="call_2", type="function", function={"name": "weather", "arguments": '{"id": 12345678901234567890}'})
        self.page.js("out.end('tool_calls')")
        self.page.until(IDLE)
        self.assertIn("12345678901234567890", self.page.js(LAST + ".querySelector('.call').textContent"))
        self.begin("Never mind.")  # calls without results are not repeated
        self.assertEqual([m["content"] for m in self.page.js("script.sent.at(-1).messages")], ["Never mind."])
        self.page.js("out.end()")
        self.assertEqual(self.page.problems, [])

    def test_attacks_while_streaming(self):
        self.begin("<img src=x onerror=\"document.title='owned'\">")
        for piece in ("<im", "g src=x onerror=\"document.title=", "'owned'\"> </scr", "ipt><script>document.title='owned'", "</script>",
                      " [x](javascript:document.title='owned')"):
            self.page.js("out.chunk(%s)" % json.dumps(piece))
            time.sleep(0.05)
        self.page.js("out.end()")
        self.page.until(IDLE)
        self.assertEqual(self.page.js("document.querySelectorAll('#messages img, #messages script, #messages a[href^=javascript]').length"), 0)
        self.assertNotEqual(self.page.js("document.title"), "owned")
        self.assertIn("<script>", self.page.js(LAST + ".textContent"))
        self.assertEqual(self.page.problems, [])

    def test_a_selection_outlives_the_next_tokens(self):
        self.begin()
        self.page.js("out.chunk('First paragraph.\\n\\nSecond')")
        self.page.until("document.querySelectorAll('.assistant > .body > p').length === 2")
        self.page.js("getSelection().selectAllChildren(document.querySelector('.assistant > .body > p'))")
        self.page.js("out.chunk(' one.\\n\\nThird.')")
        self.page.until("document.querySelectorAll('.assistant > .body > p').length === 3")
        self.assertEqual(self.page.js("getSelection().toString().trim()"), "First paragraph.")
        self.page.js("out.end()")
        self.page.until(IDLE)

    def test_a_failed_answer_is_no_part_of_the_conversation(self):
        page = self.page
        self.begin("First.")
        page.js("out.chunk('Fine.')")
        page.js("out.end()")
        page.until(IDLE)
        self.begin("Second.")
        page.js("out.chunk('Half of')")
        page.js("out.fail('the engine lost the request')")
        page.until(IDLE)
        self.assertIn("the engine lost the request", page.js(LAST + ".querySelector('.note.error').textContent"))
        self.assertIn("Half of", page.js(LAST + ".textContent"))
        self.begin("Third.")  # neither the failed answer nor its question
        self.assertEqual([m["content"] for m in page.js("script.sent.at(-1).messages")], ["First.", "Fine.", "Third."])
        page.js("out.chunk('Three.')")
        page.js("out.end()")
        page.until(IDLE)
        # Retry replaces it, and then it counts.
        page.js("window.out = script.stream()")
        page.js(ANSWERS + "[1].querySelector('.retry').click()")
        page.until(BUSY)
        self.assertEqual([m["content"] for m in page.js("script.sent.at(-1).messages")], ["First.", "Fine.", "Second."])
        page.js("out.chunk('Two.')")
        page.js("out.end()")
        page.until(IDLE)
        self.assertEqual(page.js(ANSWERS + ".map((e) => e.querySelector('.body').textContent)"), ["Fine.", "Two."])
        self.assertEqual(page.js("document.querySelectorAll('.note.error').length"), 0)

    def test_a_failed_message_can_be_removed(self):
        self.script("new Response(JSON.stringify({error: {message: 'the prompt is too long'}}), {status: 400})")
        ask(self.page, "Too long.")
        self.page.until("/too long/.test(document.querySelector('.note.error')?.textContent)")
        self.page.until(IDLE)
        self.page.click(".remove")
        self.page.until("document.querySelectorAll('.message').length === 0")
        self.page.reload()
        self.assertEqual(self.page.js("document.querySelectorAll('.message').length"), 0)

    def test_a_server_without_resumable_streams(self):
        self.page.js("window.out = script.stream()")
        self.script("JSON.parse(options.body).stream_options.resumable ? new Response(JSON.stringify({error: {message: 'streams cannot be "
                    "resumed here', code: 'not_enabled'}}), {status: 400}) : out.response")
        ask(self.page, "Hello?")
        self.page.js("out.chunk('Yes.')")
        self.page.js("out.end()")
        self.page.until(IDLE)
        self.assertEqual(self.page.js(LAST + ".querySelector('.body').textContent"), "Yes.")


@unittest.skipUnless(chromium(), "no Chromium here (Debian: apt-get install chromium)")
@unittest.skipUnless(model(), "the default model is not in the cache")
class Real(Chat):
    """With the model's own answers."""

    def test_an_answer_streams_with_its_probabilities(self):
        page = self.page
        page.js("localStorage.setItem('sluice.settings', JSON.stringify({values: {temperature: '0', max_tokens: '90'}, "
                "stop: '', system: 'You are <b>brief</b>.', probabilities: true}))")
        page.reload()
        page.until("document.getElementById('p-temperature')?.value === '0'")
        ask(page, "Write a list of three rivers, with a <b>word</b> on each.")
        lengths = set()
        while page.js(BUSY):
            lengths.add(page.js(LAST + ".querySelector('.body').textContent.length"))
            time.sleep(0.01)
        self.assertGreater(len(lengths), 5, "the text came in pieces")
        self.assertGreater(page.js("document.querySelectorAll('.tok').length"), 20)
        self.assertEqual(page.js("document.querySelector('.message.user b')"), None)
        self.assertRegex(page.js("document.querySelector('.message.assistant .stats').textContent"),
                         r"\d+ tokens · [\d.,]+ tokens/s · first after")
        page.move(".tok:nth-child(4)")
        page.until("!document.getElementById('tip').hidden && document.querySelectorAll('#tip tr').length >= 5")
        self.assertEqual(page.js("script.sent.at(-1).messages[0]"), {"role": "system", "content": "You are <b>brief</b>."})
        # What the server says is what one reads.
        page.js("document.getElementById('p-temperature').value = '1000'; document.getElementById('p-temperature')"
                ".dispatchEvent(new Event('input'))")
        page.click(".assistant .retry")
        page.until("/temperature/.test(document.querySelector('.note.error')?.textContent)")

    def test_branches_edits_and_exports(self):
        page = self.page
        settings(page, max_tokens="8")
        ask(page, "Name a colour.")
        page.until("%s && %s.length === 1" % (IDLE, ANSWERS))
        first = page.js(TEXT)
        page.js("document.getElementById('p-seed').value = '7'; document.getElementById('p-seed').dispatchEvent(new Event('input'))")
        page.js("document.getElementById('p-temperature').value = '2'; document.getElementById('p-temperature').dispatchEvent(new Event('input'))")
        page.click(".assistant .retry")
        page.until(IDLE + " && /2 of 2/.test(document.querySelector('.assistant .walk')?.textContent)")
        second = page.js(TEXT)
        self.assertNotEqual(first, second)
        page.click(".assistant .walk button")  # back
        self.assertEqual(page.js(TEXT), first)
        ask(page, "Another.")
        page.until("%s && %s.length === 2" % (IDLE, ANSWERS))
        # The first question changed: what followed is still there, on the other branch.
        page.click(".user .edit")
        page.js("document.querySelector('.editing textarea').value = ''")
        page.type(".editing textarea", "Name a river.")
        page.press("Enter")
        page.until("%s && %s.length === 1 && /2 of 2/.test(document.querySelector('.user .walk')?.textContent)" % (IDLE, ANSWERS))
        self.assertEqual([m["content"] for m in page.js("script.sent.at(-1).messages")], ["Name a river."])
        page.reload()
        self.assertIn("Name a river.", page.js("document.querySelector('.user .body').textContent"))
        page.click(".user .walk button")
        self.assertEqual(page.js("document.querySelectorAll('.message').length"), 4)
        # Escape leaves an edit as it was.
        page.click(".user .edit")
        page.press("Escape")
        self.assertEqual(page.js("document.querySelectorAll('.editing').length"), 0)

        with tempfile.TemporaryDirectory() as folder:
            page.downloads(folder)
            for name, wanted in (("md", ".md"), ("json", ".json")):
                page.click("#export summary")
                page.click("#export-" + name)
                self.assertTrue(self.server.until(lambda: list(pathlib.Path(folder).glob("*" + wanted)), 10), name)
            self.assertTrue(self.server.until(lambda: not list(pathlib.Path(folder).glob("*.crdownload")), 10))
            text = next(pathlib.Path(folder).glob("*.md")).read_text()
            data = json.loads(next(pathlib.Path(folder).glob("*.json")).read_text())
        self.assertIn("# Name a colour.", text)
        self.assertIn("Another.", text)
        self.assertNotIn("Name a river.", text)
        self.assertEqual((data["format"], data["version"], data["model"]), ("sluice-conversation", 1, "test"))
        self.assertEqual(len(data["shown"]), 4)
        contents = [m["content"] for m in data["messages"]]
        self.assertEqual(len(contents), 7)
        self.assertIn(second, contents)
        self.assertIn("Name a river.", contents)
        parents = {m["id"]: m["parent"] for m in data["messages"]}
        self.assertEqual(sum(p == "" for p in parents.values()), 2)
        self.assertTrue(all(p == "" or p in parents for p in parents.values()))

    def test_empty_fields_show_the_models_own_sampling(self):
        own = self.server.request("/v1/models")[2]["data"][0]["default_sampling_params"]
        self.page.until(f"document.getElementById('p-temperature').placeholder === '{own['temperature']:g}'")
        self.assertEqual(self.page.js("document.getElementById('p-top_p').placeholder"), f"{own['top_p']:g}")

    def test_an_answer_cut_by_a_limit_says_so(self):
        settings(self.page, max_tokens="5")
        ask(self.page, "Tell me a long story.")
        self.page.until(IDLE + " && document.querySelector('.note.cut')")
        self.assertEqual(self.page.js("document.querySelector('.note.cut').textContent"), "Cut at 5 tokens: Max tokens in the settings.")

    def test_an_answer_links_to_its_story(self):
        settings(self.page, max_tokens="12")
        ask(self.page, "Count to ten.")
        self.page.until(IDLE + " && document.querySelector('.story')")
        self.page.click(".story")
        self.page.until("document.querySelectorAll('#story .sentences p').length >= 2")
        self.assertFalse(self.page.js("document.getElementById('engine').hidden"))
        self.assertRegex(self.page.js("document.querySelector('#story h2').textContent"), r"^Request \d+$")
        self.page.js("location.hash = '#engine/chatcmpl-unknown'")
        self.page.until("/no such request/.test(document.querySelector('#story .error')?.textContent)")
        self.page.click("#tab-chat")

    def test_stop_ends_the_request(self):
        settings(self.page)
        ask(self.page, "Tell me a very long story about a river.")
        self.page.until(LAST + "?.querySelector('.body').textContent.length > 40")
        self.page.press("Escape")
        self.page.until(IDLE)
        self.assertRegex(self.page.js("document.querySelector('.assistant .stats').textContent"), "stopped$")
        self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") == 0, 5))

    def test_an_answer_goes_on_after_a_reload(self):
        settings(self.page, max_tokens="120")
        ask(self.page, "Tell me a long story about a mountain.")
        self.page.until(LAST + "?.querySelector('.body').textContent.length > 60")
        self.page.reload()
        self.page.until(IDLE + " && document.querySelector('.assistant .stats')", 120)
        self.assertEqual(self.page.js("document.querySelectorAll('.note.error').length"), 0)
        resumed = self.page.js("JSON.parse(localStorage.getItem('sluice.conversations'))[0].messages[1].content")
        self.assertEqual(resumed, self.whole("Tell me a long story about a mountain.", 120))

    def whole(self, question, limit):
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": limit, "temperature": 0, "seed": 1}
        return self.server.request("/v1/chat/completions", body, timeout=120)[2]["choices"][0]["message"]["content"]


@unittest.skipUnless(chromium(), "no Chromium here (Debian: apt-get install chromium)")
@unittest.skipUnless(model(), "the default model is not in the cache")
class LostServer(unittest.TestCase):
    QUESTION = "Tell me a long story about the sea."

    def begin(self, page, proxy, limit):
        page.open(proxy.url + "/")
        settings(page, max_tokens=str(limit))
        ask(page, self.QUESTION)
        page.until(LAST + "?.querySelector('.body').textContent.length > 60")

    def content(self, page):
        return page.js("JSON.parse(localStorage.getItem('sluice.conversations'))[0].messages[1].content")

    def whole(self, server, limit):
        body = {"messages": [{"role": "user", "content": self.QUESTION}], "max_tokens": limit, "temperature": 0, "seed": 1}
        return server.request("/v1/chat/completions", body, timeout=120)[2]["choices"][0]["message"]["content"]

    def test_a_cut_connection_is_taken_up_again(self):
        with Server("--ctx", "1024") as server, Proxy(server.port) as proxy, Page() as page:
            self.begin(page, proxy, 150)
            proxy.target = None
            proxy.cut()
            page.until("/cannot be reached/.test(document.querySelector('.note.lost')?.textContent)")
            proxy.target = server.port
            page.until(IDLE, 120)
            self.assertEqual(page.js("document.querySelectorAll('.note.error, .note.lost').length"), 0)
            self.assertEqual(self.content(page), self.whole(server, 150))

    def test_a_restarted_server_is_asked_again(self):
        with Proxy(None) as proxy, Page() as page:
            with Server("--ctx", "1024") as server:
                proxy.target = server.port
                self.begin(page, proxy, 150)
                proxy.target = None
                server.process.send_signal(signal.SIGKILL)
                server.process.wait()
                proxy.cut()
                page.until("/cannot be reached/.test(document.querySelector('.note.lost')?.textContent)")
            with Server("--ctx", "1024") as server:
                proxy.target = server.port
                page.until(IDLE, 120)
                self.assertIn("asked again", page.js("document.querySelector('.note.lost').textContent"))
                self.assertEqual(page.js("document.querySelectorAll('.note.error').length"), 0)
                self.assertEqual(self.content(page), self.whole(server, 150))

    def test_a_server_that_is_away_when_asked(self):
        with Server("--ctx", "1024") as server, Proxy(server.port) as proxy, Page() as page:
            page.open(proxy.url + "/")
            settings(page, max_tokens="10")
            proxy.target = None
            proxy.cut()
            ask(page, "Are you there?")
            page.until("/cannot be reached/.test(document.querySelector('.note.lost')?.textContent)")
            page.press("Escape")  # nobody has to wait
            page.until(IDLE)
            page.click(".assistant .retry")
            page.until("/cannot be reached/.test(document.querySelector('.note.lost')?.textContent)")
            proxy.target = server.port
            page.until(IDLE + " && document.querySelector('.note.cut')", 120)
            page.until("document.querySelector('#link.live')")


if __name__ == "__main__":
    unittest.main()
