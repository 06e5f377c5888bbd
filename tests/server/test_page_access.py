"""Keyboard, focus, contrast and small screens, in a real browser."""

import json
import os
import pathlib
import time
import unittest

from browser import Page, chromium
from harness import Server, model

SHOTS = os.environ.get("SLUICE_SCREENSHOTS")  # a folder to leave screenshots in
FOCUS = "(document.activeElement.id || document.activeElement.className || document.activeElement.tagName)"
ANSWER = r"""<think>Thoughts.</think>
## A heading that is rather long for a telephone held upright

| Language | Loop | Closed form | And a column that is wide |
|:---------|:----:|------------:|---------------------------|
| Python   | `O(n)` | 1.5 µs | AVeryLongWordThatDoesNotBreakAnywhereAtAllInThisCell |

```cpp
int64_t squares(int64_t n) { return n * (n + 1) * (2 * n + 1) / 6; }  // a line that is longer than the screen is wide
```

\[ \sum_{i=1}^{n} i^2 = \frac{n(n+1)(2n+1)}{6} = \frac{2n^3 + 3n^2 + n}{6} = a + b + c + d + e + f + g + h + i + j + k + l + m \]

https://example.org/an/address/that/goes/on/and/on/and/on/and/on/and/on/and/on/and/on/and/on"""
CONVERSATION = [{"id": "c", "picked": {}, "messages": [
    {"id": "a", "parent": "", "role": "user", "content": "Why?"},
    {"id": "b", "parent": "a", "role": "assistant", "content": ANSWER, "finish": "length", "limit": 256, "answer": "chatcmpl-1",
     "stats": {"output": 256, "rate": 41.3, "ttft": 312, "prompt": 48, "cached": 16}},
    {"id": "d", "parent": "a", "role": "assistant", "content": "Another.", "finish": "stop", "stats": {}},
    {"id": "e", "parent": "b", "role": "user", "content": "And?"},
    {"id": "f", "parent": "e", "role": "assistant", "content": "", "error": "temperature must be at most 5", "stats": {}}]}]
CONVERSATION[0]["picked"] = {"a": "b"}

# WCAG's contrast of every pair of text and background that the page uses.
CONTRAST = """(() => {
  const rgb = (name) => { const g = document.createElement('canvas').getContext('2d');
    g.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name); g.fillRect(0, 0, 1, 1); return [...g.getImageData(0, 0, 1, 1).data]; };
  const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const contrast = (a, b) => { const [x, y] = [light(rgb(a)), light(rgb(b))].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const out = [];
  for (const back of ['--back', '--panel', '--raised']) for (const text of ['--text', '--muted', '--accent', '--error']) out.push([text, back, contrast(text, back)]);
  for (const kind of ['comment', 'string', 'number', 'keyword', 'call', 'meta', 'key', 'added', 'removed']) out.push(['--hl-' + kind, '--panel', contrast('--hl-' + kind, '--panel')]);
  out.push(['--on-accent', '--accent', contrast('--on-accent', '--accent')]);
  return out;
})()"""

# Elements that one can use and that have no name to be read out.
NAMELESS = """[...document.querySelectorAll('button, a[href], input, textarea, summary, canvas, [tabindex="0"]')].filter((e) => e.offsetParent !== null)
  .filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label') || e.title || e.labels?.length)).map((e) => e.outerHTML.slice(0, 80))"""


@unittest.skipUnless(chromium(), "no Chromium here (Debian: apt-get install chromium)")
@unittest.skipUnless(model(), "the default model is not in the cache")
class Access(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "512")
        cls.page = Page()
        cls.page.open(cls.server.url + "/")

    @classmethod
    def tearDownClass(cls):
        cls.page.__exit__()
        cls.server.__exit__()

    def begin(self, width=1280, height=900, scheme="light"):
        self.page.size(width, height)
        self.page.scheme(scheme)
        self.page.open("about:blank")
        self.page.open(self.server.url + "/")
        self.page.js("localStorage.clear(); localStorage.setItem('sluice.conversations', %s)" % json.dumps(json.dumps(CONVERSATION)))
        self.page.reload()
        self.page.until("document.querySelectorAll('.message').length === 4")

    def shot(self, name):
        if SHOTS:
            pathlib.Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(os.path.join(SHOTS, name + ".png"))

    def test_nothing_is_wider_than_a_phone(self):
        page = self.page
        for width in (360, 800):
            for scheme in ("light", "dark"):
                self.begin(width, 780, scheme)
                self.assertLessEqual(page.js("document.documentElement.scrollWidth"), width)
                wide = page.js("[...document.querySelectorAll('#chat *')].filter((e) => e.offsetParent && !e.closest('.scroll, pre, math') && "
                               "e.getBoundingClientRect().right > %d + 0.5).map((e) => e.outerHTML.slice(0, 90))" % width)
                self.assertEqual(wide, [])
                self.shot(f"chat-{width}-{scheme}")
                page.click("#tab-engine")
                page.until("document.querySelector('#link.live')")
                time.sleep(0.4)
                self.assertLessEqual(page.js("document.documentElement.scrollWidth"), width)
                self.shot(f"engine-{width}-{scheme}")
                page.click("#tab-chat")

    def test_panels_on_a_phone(self):
        page = self.page
        self.begin(360, 780)
        page.click("#show-list")
        self.assertEqual(page.js("document.getElementById('show-list').getAttribute('aria-expanded')"), "true")
        page.click("#show-settings")  # one at a time
        self.assertFalse(page.js("document.getElementById('conversations').classList.contains('open')"))
        self.assertFalse(page.js("document.getElementById('settings').hidden"))
        self.shot("settings-360")
        page.press("Escape")
        self.assertTrue(page.js("document.getElementById('settings').hidden"))
        self.assertEqual(page.js(FOCUS), "show-settings")
        page.click("#show-list")
        page.click("#conversations li button")
        self.assertFalse(page.js("document.getElementById('conversations').classList.contains('open')"))

    def test_contrast_in_both_schemes(self):
        for scheme in ("light", "dark"):
            self.page.scheme(scheme)
            for text, back, ratio in self.page.js(CONTRAST):
                self.assertGreaterEqual(ratio, 4.5, (scheme, text, back))

    def test_the_theme_button_goes_round(self):
        self.begin()
        seen = []
        for _ in range(3):
            self.page.click("#theme")
            seen.append((self.page.js("document.getElementById('theme').textContent"),
                         self.page.js("getComputedStyle(document.documentElement).colorScheme")))
        self.assertEqual(seen, [("Light", "light"), ("Dark", "dark"), ("Auto", "light")])

    def test_everything_has_a_name(self):
        self.begin()
        self.assertEqual(self.page.js(NAMELESS), [])
        self.page.click("#tab-engine")
        self.page.until("document.querySelector('#link.live')")
        self.assertEqual(self.page.js(NAMELESS), [])

    def test_the_keyboard_reaches_everything(self):
        page = self.page
        self.begin()
        page.js("document.getElementById('tab-chat').focus()")
        page.press("ArrowRight")
        self.assertEqual(page.js(FOCUS), "tab-engine")
        page.until("!document.getElementById('engine').hidden")
        page.press("ArrowLeft")
        self.assertEqual(page.js(FOCUS), "tab-chat")
        seen, outlines = [], []
        for _ in range(60):
            page.press("Tab")
            seen.append(page.js(FOCUS))
            outlines.append(page.js("getComputedStyle(document.activeElement).outlineStyle"))
            if seen[-1] == "send":
                break
        for wanted in ("quiet small copy", "quiet small retry", "quiet small edit", "quiet small remove", "small story", "SUMMARY", "input", "send"):
            self.assertIn(wanted, seen)
        self.assertNotIn("none", outlines[:-1], list(zip(seen, outlines)))

    def test_an_edit_takes_the_focus(self):
        self.begin()
        self.page.click(".user .edit")
        self.assertEqual(self.page.js("document.activeElement.getAttribute('aria-label')"), "Edit the message")
        self.page.press("Escape")
        self.assertEqual(self.page.js("document.querySelectorAll('.editing').length"), 0)

    def test_the_end_of_an_answer_is_read_out(self):
        self.begin()
        self.page.js("localStorage.setItem('sluice.settings', JSON.stringify({values: {max_tokens: '3'}, stop: '', system: ''}))")
        self.page.reload()
        self.page.type("#input", "Hello")
        self.page.press("Enter")
        self.page.until("document.getElementById('say').textContent === 'Answer complete, 3 tokens.'")


if __name__ == "__main__":
    unittest.main()
