"""The page's files at / and the stream behind its dashboard; test_page_*.py have a browser."""

import http.client
import json
import os
import re
import signal
import socket
import tempfile
import threading
import time
import unittest

from harness import PATIENCE, Server, model

LETTERS = "fcospr"  # free, cached, owned, shared, pending, reserved


class Watcher:
    """Reads the dashboard's events on a thread of its own."""

    def __init__(self, server, query="?interval=100"):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30 * PATIENCE)
        headers = {"Authorization": "Bearer " + server.key} if server.key else {}
        self.connection.request("GET", "/dashboard/events" + query, headers=headers)
        self.answer = self.connection.getresponse()
        self.status, self.events = self.answer.status, []
        if self.status == 200:
            self.thread = threading.Thread(target=self.read, daemon=True)
            self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.status == 200:
            self.connection.sock.shutdown(socket.SHUT_RDWR)  # ends the reader
            self.thread.join(10)
        self.answer.close()
        self.connection.close()

    def read(self):
        event = None
        try:
            for line in self.answer:
                if line.startswith(b"event: "):
                    event = line[7:].decode().strip()
                elif line.startswith(b"data: "):
                    self.events.append((event, json.loads(line[6:])))
        except (OSError, ValueError, http.client.HTTPException):
            pass

    def frames(self):
        return [value for name, value in list(self.events) if name == "frame"]

    def until(self, condition, seconds=15):
        end = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < end:
            if found := condition(self.frames()):
                return found
            time.sleep(0.02)
        raise AssertionError("the frames never showed it")


def finished(request):
    """Whether the newest row of this request says that it has ended, and that row."""
    def look(frames):
        for frame in reversed(frames):
            for row in frame["requests"]:
                if row[0] == request and row[11] >= 0:
                    return row
    return look


def known(frames):
    return {row[0] for frame in frames for row in frame["requests"]}


@unittest.skipUnless(model(), "the default model is not in the cache")
class Feed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "2048")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def complete(self, **body):
        body = {"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True, "temperature": 0, **body}
        code, _, answer = self.server.request("/v1/completions", body)
        self.assertEqual(code, 200, answer)
        return answer["usage"]

    def test_a_request_in_steps_and_rows(self):
        with Watcher(self.server) as w:
            w.until(len)
            name, hello = w.events[0]
            self.assertEqual((name, hello["model"], hello["max_len"]), ("hello", "test", 2048))
            before = known(w.frames())
            usage = self.complete(prompt="A word of its own. " * 30)
            request = w.until(lambda frames: known(frames) - before).pop()
            row = w.until(finished(request))
            self.assertEqual(row[1], "length")
            self.assertEqual((row[4], row[6]), (usage["prompt_tokens"], 20))
            frames = w.frames()
        steps = {s[0]: s for f in frames for s in f["steps"]}
        mine = []
        for number, s in steps.items():
            self.assertTrue(all(a <= b for a, b in zip(s[1:6], s[2:7])), s)
            self.assertGreater(s[7] + s[8], 0)
            code, _, story = self.server.request(f"/dashboard/step/{number}")
            self.assertEqual(code, 200)
            self.assertEqual(sum(x["count"] for x in story["slices"]), s[7] + s[8])
            self.assertEqual(len(story["slices"]), s[9])
            mine += [x for x in story["slices"] if x["request"] == request]
        prompt = sum(x["count"] for x in mine if x["prefill"])
        self.assertEqual(prompt, usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
        # The last token is sampled and not run; with overlap one more may be run and dropped.
        self.assertIn(sum(not x["prefill"] for x in mine), (19, 20))
        self.assertEqual(sorted(steps), list(steps))
        self.assertEqual(sum(f["skipped"] for f in frames), 0)

    def test_blocks_conserve(self):
        with Watcher(self.server) as w:
            threads = [threading.Thread(target=self.complete, kwargs={"prompt": f"{i} and so on, " * 20, "n": 2,
                                                                      "max_tokens": 60}) for i in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            w.until(lambda frames: any("blocks" in f and sum(f["blocks"]["counts"][2:]) == 0 for f in frames[-3:]))
            hello, frames = w.events[0][1], w.frames()
        maps = [f["blocks"] for f in frames if "blocks" in f]
        self.assertGreater(len(maps), 1)
        for m in maps:
            self.assertEqual(sum(m["counts"]), hello["num_blocks"])
            cells = {letter: 0 for letter in LETTERS}
            for cell in m["map"].split(" "):
                text, _, times = cell.partition("*")
                for letter, n in re.findall(r"([a-z])(\d*)", text):
                    cells[letter] += int(n or 1) * int(times or 1)
            self.assertEqual([cells[x] for x in LETTERS], m["counts"])
        self.assertTrue(any(m["counts"][2] > 0 for m in maps), "some were owned")
        self.assertTrue(any(m["counts"][3] > 0 for m in maps), "two choices share their prompt")
        self.assertGreater(maps[-1]["counts"][1], 0)

    def test_prefix_hits_are_told(self):
        prompt = "The same words again and again. " * 20
        self.complete(prompt=prompt)
        with Watcher(self.server) as w:
            w.until(len)
            usage = self.complete(prompt=prompt)
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            self.assertGreater(cached, 64)
            hits = w.until(lambda frames: [b for f in frames for b in f.get("hits", [])])
            self.assertEqual(len(hits), cached // w.events[0][1]["block_size"])
            self.assertEqual(len(set(hits)), len(hits))

    def test_a_request_explained(self):
        with Watcher(self.server) as w:
            w.until(len)
            before, walls = known(w.frames()), {}

            def ask(i):
                begin = time.monotonic()
                self.complete(prompt=f"Number {i}. " * (60 + 10 * i), max_tokens=80)
                walls[60 + 10 * i] = time.monotonic() - begin

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            mine = known(w.frames()) - before
            self.assertEqual(len(mine), 3)
            for request in mine:
                w.until(finished(request))
        stories = [self.server.request(f"/dashboard/request/{r}")[2] for r in mine]
        stories.sort(key=lambda s: s["prompt_tokens"])
        for story, (_, wall) in zip(stories, sorted(walls.items())):
            self.assertEqual(story["state"], "length")
            self.assertEqual(story["output_tokens"], 80)
            self.assertAlmostEqual(sum(p["seconds"] for p in story["parts"]), story["seconds"], delta=1e-6)
            self.assertTrue(all(p["seconds"] >= 0 for p in story["parts"]), story["parts"])
            self.assertLess(story["seconds"], wall)
            self.assertLess(wall - story["seconds"], 0.25 * wall + 0.5)
            parts = {p["kind"]: p["seconds"] for p in story["parts"]}
            self.assertGreater(parts["prefill"], 0)
            self.assertGreater(parts["decode"] + parts["crowded"], 0)
            self.assertGreaterEqual(len(story["sentences"]), 3)
            self.assertGreater(len(story["timeline"]), 1)
        together = {n["request"] for s in stories for n in s["with"]}
        self.assertEqual(together, {s["request"] for s in stories})

    def test_a_request_by_the_id_of_its_answer(self):
        body = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True}
        answer = self.server.request("/v1/completions", body)[2]
        self.assertTrue(self.server.until(lambda: self.server.request("/dashboard/request/" + answer["id"])[0] == 200))
        story = self.server.request("/dashboard/request/" + answer["id"])[2]
        self.assertEqual(story["output_tokens"], 5)
        self.assertEqual(self.server.request(f"/dashboard/request/{story['request']}")[2]["request"], story["request"])

    def test_settings_are_told(self):
        with Watcher(self.server) as w:
            w.until(len)
            hello = w.events[0][1]
        self.assertGreater(hello["chunk"], 0)
        self.assertEqual((hello["mixed_budget"], hello["short_share"]), (0, 0.25))

    def test_unknown_things(self):
        for path in ("/dashboard/request/999999", "/dashboard/request/x", "/dashboard/request/chatcmpl-0", "/dashboard/request/", "/dashboard/step/0", "/dashboard/step/-1",
                     "/dashboard/step/99999999999999999999999", "/page/nothing.js", "/page/../service.cc", "/page/"):
            self.assertEqual(self.server.request(path)[0], 404, path)
        for interval in ("0", "99", "5001", "x", "", "100x"):
            self.assertEqual(self.server.request("/dashboard/events?interval=" + interval)[0], 400)

    def test_at_most_sixteen_watch(self):
        watchers = [Watcher(self.server, "") for _ in range(16)]
        one_more = Watcher(self.server)
        self.assertEqual([w.status for w in watchers], [200] * 16)
        self.assertEqual(one_more.status, 429)
        self.assertTrue(one_more.answer.getheader("Retry-After"))
        for w in [*watchers, one_more]:
            w.__exit__()
        def again():
            with Watcher(self.server) as w:
                return w.status == 200
        self.assertTrue(self.server.until(again, 5))

    def test_files(self):
        code, head, text = self.server.request("/", headers={"Accept": "text/html,*/*"})
        self.assertEqual((code, head["Content-Type"]), (200, "text/html; charset=utf-8"))
        links = re.findall(r'(?:src|href)="(/[^"]+)"', text)
        self.assertGreater(len(links), 1)
        total, seen = len(text), set()
        while links:
            path = links.pop()
            if path in seen:
                continue
            seen.add(path)
            code, head, text = self.server.request(path)
            self.assertEqual(code, 200, path)
            total += len(text)
            links += ["/page/" + name for name in re.findall(r"from '\./([^']+)'", text)]
            policy = head["Content-Security-Policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual((head["X-Content-Type-Options"], head["X-Frame-Options"], head["Referrer-Policy"]),
                             ("nosniff", "DENY", "no-referrer"))
            code, again, body = self.server.request(path, headers={"If-None-Match": head["ETag"]})
            self.assertEqual((code, body, again["ETag"]), (304, "", head["ETag"]))
            self.assertNotIn("innerHTML", text)
            self.assertFalse(re.search(r"(src|href|url\()\s*=?\s*[\"']?(https?:)?//", text), path)
        self.assertGreater(len(seen), 5)
        self.assertLess(total, 300_000)
        self.assertIn("/v1/chat/completions", self.server.request("/")[2])  # for those who are no browser


@unittest.skipUnless(model(), "the default model is not in the cache")
class Lifecycle(unittest.TestCase):
    def test_keys_and_drain(self):
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write("only-key-123456\n")
        try:
            with Server("--ctx", "512", "--api-key-file", file.name) as server:
                for path in ("/dashboard/events", "/dashboard/request/1", "/dashboard/step/1"):
                    self.assertEqual(server.request(path)[0], 401)
                for path in ("/", "/page/app.js", "/page/style.css"):
                    self.assertEqual(server.request(path, headers={"Accept": "text/html"})[0], 200)
                server.key = "only-key-123456"
                with Watcher(server) as w:
                    w.until(len)
                    begin = time.monotonic()
                    server.process.send_signal(signal.SIGTERM)
                    self.assertEqual(server.process.wait(10 * PATIENCE), 0)
                    self.assertLess(time.monotonic() - begin, 3 * PATIENCE)
                    w.thread.join(5 * PATIENCE)
                    self.assertEqual(w.events[-1][0], "bye")
        finally:
            os.unlink(file.name)


if __name__ == "__main__":
    unittest.main()
