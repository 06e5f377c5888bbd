"""What the page makes of an answer's text, in a real browser: cases as data in page_cases.json, and text that attacks."""

import json
import pathlib
import unittest

from browser import Page, chromium
from harness import Server, stories

HERE = pathlib.Path(__file__).resolve().parent
MARKDOWN = """import('/page/markdown.js').then((m) => {
  const box = document.createElement('div');
  document.body.append(box);
  box.append(...m.markdown(%s));
  const html = box.innerHTML;
  box.remove();
  return html;
})"""

# Text that must stay text: no element of its own, no script, no request, no address that runs.
ATTACKS = [
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    "</script><script>document.title='owned'</script>",
    "<svg onload=document.title='owned'>",
    "<iframe srcdoc=\"<script>parent.document.title='owned'</script>\"></iframe>",
    "[click](javascript:document.title='owned')",
    "[click](JaVaScRiPt:document.title='owned')",
    "[click](&#106;avascript:document.title='owned')",
    "[click](\tjavascript:document.title='owned')",
    "[click](data:text/html,<script>alert(1)</script>)",
    "[click](vbscript:x)",
    "![x](javascript:document.title='owned')",
    "![x](https://example.org/pixel.png)",
    "[a](https://example.org/\" onmouseover=\"document.title='owned')",
    "`<img src=x onerror=alert(1)>`",
    "```html\n<img src=x onerror=alert(1)>\n```",
    "```\"><img src=x onerror=alert(1)>\ncode\n```",
    "| <img src=x onerror=alert(1)> |\n|---|\n| <b>x</b> |",
    "- [ ] <img src=x onerror=alert(1)>",
    "\\(\\text{<img src=x onerror=alert(1)>}\\)",
    "\\[ \\href{javascript:alert(1)}{x} \\]",
    "$$\\mathrm{</math><img src=x onerror=alert(1)>}$$",
    "<think><img src=x onerror=alert(1)></think>",
    "# <img src=x onerror=alert(1)>",
]
ALLOWED = {"P", "BR", "STRONG", "EM", "DEL", "CODE", "PRE", "SPAN", "A", "DIV", "BUTTON", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD",
           "UL", "OL", "LI", "INPUT", "H3", "H4", "H5", "H6", "HR", "BLOCKQUOTE",
           "math", "mrow", "mi", "mo", "mn", "mtext", "mspace"}

# An answer, and its parts: [reasoning?, text, has it not ended?]
THINKING = [
    ("plain", [[False, "plain", False]]),
    ("", [[False, "", False]]),
    ("<think>why</think>\n\nso", [[True, "why", False], [False, "so", False]]),
    ("<think>\nwhy", [[True, "\nwhy", True]]),
    ("<think>", [[True, "", True]]),
    ("why</think>so", [[True, "why", False], [False, "so", False]]),
    ("  <thinking>a</thinking> b", [[True, "a", False], [False, " b", False]]),
    ("<think>a</think><think>b</think>c", [[True, "a", False], [True, "b", False], [False, "c", False]]),
    ("Use `</think>` to end.", [[False, "Use `</think>` to end.", False]]),
    ("```\n</think>\n```\nx", [[False, "```\n</think>\n```\nx", False]]),
    ("<think>```\ncode</think>so", [[True, "```\ncode", False], [False, "so", False]]),
    ("The tag <think> begins it.", [[False, "The tag <think> begins it.", False]]),
]


@unittest.skipUnless(chromium(), "no Chromium here (Debian: apt-get install chromium)")
@unittest.skipUnless(stories(), "no test data")
class Render(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(path=stories())
        cls.page = Page()
        cls.page.open(cls.server.url + "/")
        cls.page.until("document.getElementById('model').textContent === 'test'")

    @classmethod
    def tearDownClass(cls):
        cls.page.__exit__()
        cls.server.__exit__()

    def markdown(self, text):
        return self.page.js(MARKDOWN % json.dumps(text))

    def test_cases(self):
        cases = json.loads((HERE / "page_cases.json").read_text())
        self.assertGreater(len(cases), 30)
        for case in cases:
            with self.subTest(case["name"]):
                self.assertEqual(self.markdown(case["text"]), case["html"])

    def test_attacks_stay_text(self):
        title, requests = self.page.js("document.title"), "performance.getEntriesByType('resource').map((r) => r.name)"
        before = set(self.page.js(requests))
        for text in ATTACKS:
            with self.subTest(text):
                found = self.page.js("""import('/page/markdown.js').then((m) => {
                  const box = document.createElement('div');
                  document.body.append(box);
                  box.append(...m.markdown(%s));
                  for (const e of box.querySelectorAll('a, button')) if (e.tagName !== 'A') e.click();
                  const all = [...box.querySelectorAll('*')];
                  const out = {tags: all.map((e) => e.tagName), links: all.filter((e) => e.href).map((e) => e.getAttribute('href')),
                    names: all.flatMap((e) => [...e.attributes].map((a) => a.name))};
                  box.remove();
                  return out;
                })""" % json.dumps(text))
                self.assertLessEqual(set(found["tags"]), ALLOWED)
                self.assertTrue(all(link.startswith("https://") for link in found["links"]), found["links"])
                self.assertFalse([n for n in found["names"] if n.startswith("on") or n in ("src", "srcdoc", "style")])
        self.assertEqual(self.page.js("document.title"), title)
        self.assertFalse([r for r in set(self.page.js(requests)) - before if not r.startswith(self.server.url)])

    def test_text_that_wants_time_or_depth(self):
        # Each returns; a pattern that backtracks without end would not.
        for text in ("*a**" * 3000, "[" * 20000, "**" * 10000 + "x", ">" * 5000 + "x", "`" * 9999, "$" * 9999 + "x", "_a" * 9000,
                     "\\(" * 5000, "{" * 3000, "\\[" + "{" * 2000 + "\\]", "\\[" + "\\sqrt" * 900 + "{x}\\]", "- " * 3000 + "x",
                     "| a " * 3000 + "\n" + "|---" * 3000, "~~" * 9000, "![" * 9000, "<" * 50000, "a\n" * 5000, "```js\n" + "/*" * 30000,
                     "```html\n" + "<!--" * 9000, "```css\n" + "a:" * 9000, "```yaml\n" + "-" * 30000, "```lua\n" + "--[[" * 9000):
            with self.subTest(text[:12]):
                plain = self.page.js("import('/page/message.js').then((m) => { const e = m.messageElement({messages: [], picked: {}}, "
                                     "{role: 'assistant', content: %s, stats: {}}, null); return e.textContent.length; })" % json.dumps(text))
                self.assertGreater(plain, 0)

    def test_reasoning_is_split_off(self):
        for text, parts in THINKING:
            with self.subTest(text):
                found = self.page.js("import('/page/thinking.js').then((m) => m.splitThinking(%s).map((p) => [p.think, p.text, p.open]))"
                                     % json.dumps(text))
                self.assertEqual(found, parts)


if __name__ == "__main__":
    unittest.main()
