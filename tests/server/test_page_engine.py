"""The live view of the engine in a real browser: idle, loaded, steps longer than the window, pools of any size."""

import json
import os
import pathlib
import tempfile
import threading
import time
import unittest

from browser import Page, chromium
from harness import Server, model

SCRIPT = (pathlib.Path(__file__).resolve().parent / "scripted.js").read_text()
SHOTS = os.environ.get("SLUICE_SCREENSHOTS")  # a folder to leave screenshots in
HELLO = {"model": "scripted", "version": "0", "now": 0, "device": "CPU", "preset": "sarathi", "pipeline": "overlap", "order": "fcfs",
         "allocator": "paged", "prefix_cache": True, "budget": 2048, "chunk": 0, "mixed_budget": 512, "short_share": 0.25, "max_seqs": 64, "max_len": 4096,
         "num_blocks": 100_000, "block_size": 16, "weights_bytes": 1e9, "kv_bytes": 1e9, "workspace_bytes": 1e8}
FRAME = {"now": 20_000_000, "steps": [], "in_flight": [], "skipped": 0, "seconds": [], "requests": [], "live": 0,
         "latency": {"ttft": {"count": 0}, "itl": {"count": 0}}, "totals": [0, 0, 0, 0, 0, 0, 0, 0, 0, 100_000]}


def shot(page, name):
    if SHOTS:
        pathlib.Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(os.path.join(SHOTS, name + ".png"))


def pixel(canvas, x, y):
    """The colour at a share of a canvas' width and a height in CSS pixels."""
    return ("(() => { const c = document.getElementById('%s'); const d = c.getContext('2d').getImageData(Math.round(c.width * %f), "
            "Math.round(%d * devicePixelRatio), 1, 1).data; return [d[0], d[1], d[2], d[3]]; })()" % (canvas, x, y))


def colour(name):
    return ("(() => { const p = document.createElement('canvas').getContext('2d'); p.fillStyle = getComputedStyle(document.documentElement)"
            ".getPropertyValue('--%s'); p.fillRect(0, 0, 1, 1); return [...p.getImageData(0, 0, 1, 1).data]; })()" % name)


def near(a, b, by=3):
    return all(abs(x - y) <= by for x, y in zip(a, b))


@unittest.skipUnless(chromium(), "no Chromium here (Debian: apt-get install chromium)")
@unittest.skipUnless(model(), "the default model is not in the cache")
class Scripted(unittest.TestCase):
    """What one server does not show at will: the dashboard's stream is the test's."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "512")
        cls.page = Page()
        cls.page.before(SCRIPT + "window.feed = script.stream();"
                        "script.answer = (path) => (path.startsWith('/dashboard/events') ? feed.response : null);")

    @classmethod
    def tearDownClass(cls):
        cls.page.__exit__()
        cls.server.__exit__()

    def begin(self, width=1280, **hello):
        self.page.size(width, 900)
        self.page.open("about:blank")
        self.page.open(self.server.url + "/#engine")
        self.page.js("feed.event('hello', %s)" % json.dumps({**HELLO, **hello}))
        self.page.until("document.getElementById('facts').children.length > 3")

    def frame(self, **fields):
        self.page.js("feed.event('frame', %s)" % json.dumps({**FRAME, **fields}))

    def test_settings_are_told(self):
        self.begin()
        facts = self.page.js("[...document.getElementById('facts').children].map((e) => e.textContent)")
        self.assertIn("mixed budget 512", facts)
        self.assertIn("short share 25 %", facts)
        self.begin(mixed_budget=0, chunk=64, short_share=0)
        facts = self.page.js("[...document.getElementById('facts').children].map((e) => e.textContent)")
        self.assertLessEqual({"mixed budget off", "chunk 64", "short share off"}, set(facts))

    def test_slo_is_shown(self):
        tile = "[...document.querySelectorAll('.tile')].find((t) => t.textContent.startsWith('Prompt tokens beside'))"
        self.begin()
        self.frame()
        self.assertEqual(self.page.js(f"getComputedStyle({tile}).display"), "none")
        self.begin(slo="itl_p99=50ms")
        self.assertIn("slo itl_p99=50ms", self.page.js("[...document.getElementById('facts').children].map((e) => e.textContent)"))
        self.frame(slo=[96, 40_000, 50_000, 2_500])
        self.page.until(f"/96 .*late, step 50.* ms, 20 % off/.test({tile}.textContent)")
        shot(self.page, "engine-slo")

    def test_idle_is_said(self):
        self.begin()
        self.frame()
        self.page.until("document.getElementById('state').textContent === 'Idle: no request yet'")
        step = [7, 9_000_000, 9_000_100, 9_000_200, 9_500_000, 9_500_010, 9_500_050, 0, 3, 3, 3, 0, 99_000]
        self.frame(now=9_600_000, steps=[step], live=1, totals=[1, 3, 0, 0, 0, 0, 0, 3, 2, 99_000])
        self.page.until("document.getElementById('state').textContent === '3 running, 2 waiting'")
        self.frame(now=21_900_000)
        self.page.until("document.getElementById('state').textContent === 'Idle for 12 s'")

    def test_a_step_longer_than_the_window_is_drawn(self):
        self.begin()
        # A step of ten seconds that has ended, then one that has not; the window is two milliseconds.
        long = [1, 1_000_000, 1_000_100, 1_000_200, 11_000_000, 11_000_010, 11_000_050, 2048, 0, 1, 1, 0, 99_000]
        live = {"live": 1, "totals": [1, 0, 0, 0, 0, 0, 0, 1, 0, 99_000]}
        self.frame(now=11_100_000, steps=[long], in_flight=[[2, 10_999_000, 10_999_100, 0, 8, 8]], **live)
        self.page.js("for (let i = 0; i < 12; ++i) document.getElementById('steps-in').click()")
        self.frame(now=18_000_000, in_flight=[[2, 10_999_000, 10_999_100, 0, 2048, 8]], **live)
        stats = "document.getElementById('steps-stats').textContent"
        self.page.until("/step 2 longer than the window: .* so far/.test(%s)" % stats)
        back, decode = self.page.js("getComputedStyle(document.querySelector('.panel')).backgroundColor"), self.page.js(colour("decode"))
        for x in (0.1, 0.5, 0.95):  # it fills the window
            got = self.page.js(pixel("steps", x, 100))
            self.assertGreater(got[3], 100, (got, back))
            self.assertTrue(near(got[:3], decode[:3], 8), (got, decode))
        # Back to the middle of the one that has ended.
        self.page.js("document.getElementById('steps').focus()")
        self.page.press(" ")
        self.page.js("document.getElementById('steps-out').click()")
        self.frame(now=18_100_000, steps=[[2, 10_999_000, 10_999_100, 11_000_000, 18_050_000, 18_050_010, 18_050_050, 0, 2048, 8, 8, 0, 9]], **live)
        for _ in range(13):
            self.page.js("document.getElementById('steps-out').click()")
        self.page.until("/2 steps/.test(%s)" % stats)

    def test_a_pool_of_100000_blocks_has_a_map_that_fits(self):
        # Half of it free, a tenth cached, the rest owned in turn with cached.
        cells = ["f25*2000", "c25*400"] + ["c12o13", "c13o12"] * 800
        counts = [50_000, 10_000 + 20_000, 20_000, 0, 0, 0]
        for width in (1280, 360):
            with self.subTest(width=width):
                self.begin(width)
                self.frame(blocks={"scale": 25, "counts": counts, "map": " ".join(cells)})
                self.page.until("/a cell is/.test(document.getElementById('blocks-note').textContent)")
                height = self.page.js("document.getElementById('blocks').clientHeight")
                self.assertLessEqual(height, 240)
                per_cell = int(self.page.js("document.getElementById('blocks-note').textContent.match(/a cell is (\\d+)/)[1]"))
                self.assertEqual(per_cell % 25, 0)
                drawn = self.page.js("""(() => { const c = document.getElementById('blocks'), g = c.getContext('2d');
                  const d = g.getImageData(0, 0, c.width, c.height).data, n = {};
                  for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) n[[d[i], d[i + 1], d[i + 2]]] = (n[[d[i], d[i + 1], d[i + 2]]] ?? 0) + 1;
                  return n; })()""")
                share = {name: drawn.get(",".join(map(str, self.page.js(colour(name))[:3])), 0) / sum(drawn.values())
                         for name in ("free", "cached", "owned")}
                self.assertAlmostEqual(share["free"], 0.5, delta=0.03)
                self.assertAlmostEqual(share["cached"], 0.3, delta=0.06)
                self.assertAlmostEqual(share["owned"], 0.2, delta=0.06)
                self.page.js("document.getElementById('blocks').scrollIntoView()")
                self.page.move("#blocks")
                self.page.until("/^Blocks [\\d,]+ to [\\d,]+/.test(document.getElementById('tip').textContent)")
                self.assertIn("50,000 free", self.page.js("document.getElementById('blocks').getAttribute('aria-label')"))
                shot(self.page, f"blocks-{width}")

    def test_one_block_in_a_large_pool_is_seen(self):
        self.begin(360)
        self.frame(blocks={"scale": 25, "counts": [99_999, 0, 1, 0, 0, 0], "map": "f25*1000 f24o f25*2999"})
        self.page.until("/a cell is/.test(document.getElementById('blocks-note').textContent)")
        found = self.page.js("""(() => { const want = %s; const c = document.getElementById('blocks');
          const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
          for (let i = 0; i < d.length; i += 4) if (d[i] === want[0] && d[i + 1] === want[1] && d[i + 2] === want[2]) ++n;
          return n; })()""" % colour("owned"))
        self.assertGreater(found, 2)

    def test_a_lost_stream_is_said(self):
        self.begin()
        self.frame()
        self.page.until("/^Idle/.test(document.getElementById('state').textContent)")
        self.page.js("feed.event('bye', {reason: 'the server is shutting down'})")
        self.page.until("document.getElementById('state').textContent === 'not connected'")


@unittest.skipUnless(chromium(), "no Chromium here (Debian: apt-get install chromium)")
@unittest.skipUnless(model(), "the default model is not in the cache")
class UnderLoad(unittest.TestCase):
    def test_steps_blocks_and_stories(self):
        with Server("--ctx", "2048") as server, Page() as page:
            page.open(server.url + "/#engine")
            page.until("/^Idle/.test(document.getElementById('state').textContent)")
            stop = threading.Event()

            def load(i):
                while not stop.is_set():
                    server.request("/v1/completions", {"prompt": f"Tale {i} of a river that " * 20, "ignore_eos": True,
                                                       "max_tokens": 20 + 10 * i, "n": 1 + (i == 1)}, timeout=120)

            threads = [threading.Thread(target=load, args=(i,)) for i in range(4)]
            for t in threads:
                t.start()
            try:
                page.until("/running, \\d+ waiting/.test(document.getElementById('state').textContent)")
                page.until("/device/.test(document.getElementById('steps-stats').textContent)")
                picture = "(() => { const c = document.getElementById('steps'); return [...c.getContext('2d').getImageData(" \
                          "0, 0, c.width, c.height).data].reduce((a, v, i) => (a * 31 + v * (i % 7)) % 1000003, 7); })()"
                pictures = set()
                for _ in range(4):
                    pictures.add(page.js(picture))
                    time.sleep(0.3)
                self.assertEqual(len(pictures), 4, "the timeline moves")
                time.sleep(float(os.environ.get("SLUICE_SCREENSHOT_WAIT", "2")))
                shot(page, "engine-light")
                page.js("document.querySelector('#steps').focus()")
                page.press("Enter")
                page.until("document.querySelectorAll('.slice').length > 0")
                page.js("[...document.querySelectorAll('#requests tbody tr')].at(-1).click()")
                page.until("document.querySelectorAll('#story .sentences p').length >= 2")
                shot(page, "engine-story")
                page.scheme("dark")
                page.js("document.getElementById('steps-pause').click()")
                page.js("document.getElementById('engine').scrollTop = 0")
                time.sleep(0.5)
                shot(page, "engine-dark")
                page.size(360, 780)
                time.sleep(0.5)
                self.assertLessEqual(page.js("document.documentElement.scrollWidth"), 360)
                shot(page, "engine-narrow")
                page.js("document.getElementById('engine').scrollTop = 1000")
                time.sleep(0.3)
                shot(page, "engine-narrow-2")
                page.size(1280, 900)
            finally:
                stop.set()
                for t in threads:
                    t.join()
            page.until("/^Idle for/.test(document.getElementById('state').textContent)")
            self.assertEqual(page.problems, [])

    def test_key_is_asked_for(self):
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write("only-key-123456\n")
        try:
            with Server("--ctx", "512", "--api-key-file", file.name) as server, Page() as page:
                page.open(server.url + "/")
                page.until("document.getElementById('key-dialog').open")
                page.type("#key-input", "only-key-123456")
                page.press("Enter")
                page.until("document.getElementById('model').textContent === 'test'")
                self.assertIn("only-key-123456", page.js("sessionStorage.getItem('sluice.key')"))
                page.click("#tab-engine")
                page.until("document.querySelector('#link.live') !== null")
        finally:
            os.unlink(file.name)


if __name__ == "__main__":
    unittest.main()
