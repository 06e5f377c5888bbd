"""/v1/files and /v1/batches: uploads and their bounds, results, cancelling, owners, and a server that is killed."""

import json
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

from harness import SANITIZED, SLUICE, Server, stories

END = ("completed", "failed", "expired", "cancelled")
KEYS = ["first-key-0000", "second-key-000"]


def form(fields, file=None, name="requests.jsonl"):
    """(body, headers) of multipart/form-data."""
    mark = "----sluice-test"
    out = b""
    for key, value in fields.items():
        out += f'--{mark}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
    if file is not None:
        out += (f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
                "Content-Type: application/octet-stream\r\n\r\n").encode() + file + b"\r\n"
    return out + f"--{mark}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={mark}"}


def line(i, url="/v1/completions", **body):
    body = body or {"prompt": f"Once {i}", "max_tokens": 8, "temperature": 0}
    return json.dumps({"custom_id": f"r{i}", "method": "POST", "url": url, "body": body}) + "\n"


class Folder(unittest.TestCase):
    def setUp(self):
        if not stories():
            self.skipTest("no test data")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.dir = self.folder / "batches"

    def server(self, *args, key=None):
        server = Server("--batch-dir", str(self.dir), *args, path=stories(), key=key)
        self.addCleanup(self.stop, server)
        return server

    def stop(self, server):
        if not server.process.stderr.closed:
            server.__exit__()

    def upload(self, server, text, **fields):
        body, headers = form({"purpose": "batch", **fields}, text.encode())
        status, _, file = server.request("/v1/files", body, headers)
        self.assertEqual(status, 200, file)
        return file

    def create(self, server, file_id, endpoint="/v1/completions", **more):
        return server.request("/v1/batches", {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h",
                                              **more})

    def start(self, server, text, endpoint="/v1/completions", **more):
        status, _, batch = self.create(server, self.upload(server, text)["id"], endpoint, **more)
        self.assertEqual(status, 200, batch)
        return batch["id"]

    def get(self, server, batch_id):
        status, _, batch = server.request(f"/v1/batches/{batch_id}")
        self.assertEqual(status, 200, batch)
        return batch

    def until(self, server, batch_id, condition):
        self.assertTrue(server.until(lambda: condition(self.get(server, batch_id)), 30), self.get(server, batch_id))
        return self.get(server, batch_id)

    def ended(self, server, batch_id):
        return self.until(server, batch_id, lambda b: b["status"] in END)

    def results(self, server, file_id):
        """By custom_id; one each."""
        if file_id is None:
            return {}
        status, _, text = server.request(f"/v1/files/{file_id}/content")
        self.assertEqual(status, 200, text)
        lines = [text] if isinstance(text, dict) else [json.loads(part) for part in text.splitlines()]
        by_id = {one["custom_id"]: one for one in lines}
        self.assertEqual(len(by_id), len(lines))
        return by_id


class Files(Folder):
    def test_a_file_comes_and_goes(self):
        server = self.server()
        text = "".join(map(line, range(3000)))
        file = self.upload(server, text, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"})
        self.assertEqual((file["object"], file["bytes"], file["filename"], file["purpose"]),
                         ("file", len(text), "requests.jsonl", "batch"))
        self.assertEqual(file["expires_at"], file["created_at"] + 7200)
        other = self.upload(server, line(0))
        self.assertEqual(server.request("/v1/files/" + file["id"])[2], file)
        self.assertEqual(server.request(f"/v1/files/{file['id']}/content")[2], text)
        page = server.request("/v1/files")[2]
        self.assertEqual({f["id"] for f in page["data"]}, {file["id"], other["id"]})
        self.assertFalse(page["has_more"])
        first = server.request("/v1/files?limit=1&order=asc")[2]
        second = server.request("/v1/files?limit=1&order=asc&after=" + first["last_id"])[2]
        self.assertEqual((first["has_more"], second["has_more"]), (True, False))
        self.assertEqual({first["data"][0]["id"], second["data"][0]["id"]}, {file["id"], other["id"]})
        self.assertEqual(server.request("/v1/files?purpose=batch_output")[2]["data"], [])
        status, _, gone = server.request("/v1/files/" + file["id"], method="DELETE")
        self.assertEqual((status, gone["deleted"]), (200, True))
        for path in ("", "/content"):
            self.assertEqual(server.request(f"/v1/files/{file['id']}{path}")[0], 404)
        self.assertEqual(server.request("/v1/files/" + file["id"], method="DELETE")[0], 404)
        self.assertEqual(sorted(p.name for p in (self.dir / "files").iterdir()), [other["id"], other["id"] + ".json"])

    def test_bad_uploads(self):
        server = self.server("--batch-bytes", "64K", "--max-body", "1M")
        good = line(0).encode()
        for want, param, (body, headers) in (
            (415, None, (b"{}", {})),
            (400, None, (b"x", {"Content-Type": "multipart/form-data; boundary=x"})),
            (400, "file", form({"purpose": "batch"})),
            (400, "file", form({"purpose": "batch"}, b"")),
            (400, "purpose", form({}, good)),
            (400, "purpose", form({"purpose": "fine-tune"}, good)),
            (400, "expires_after[seconds]", form({"purpose": "batch", "expires_after[seconds]": "60"}, good)),
            (400, "other", form({"purpose": "batch", "other": "1"}, good)),
            (413, "file", form({"purpose": "batch"}, b"x" * (65 << 10))),
        ):
            status, _, answer = server.request("/v1/files", body, headers)
            self.assertEqual((status, answer["error"]["param"]), (want, param), answer)
        self.assertEqual(server.request("/v1/files")[2]["data"], [])
        self.assertEqual(list((self.dir / "files").iterdir()), [])

    def test_off_without_a_folder(self):
        with Server(path=stories()) as server:
            for path, body in (("/v1/files", None), ("/v1/batches", None), ("/v1/files/file-1", None), ("/v1/batches", {})):
                status, _, answer = server.request(path, body)
                self.assertEqual((status, answer["error"]["code"]), (404, "not_enabled"))
                self.assertIn("--batch-dir", answer["error"]["message"])

    def test_one_server_per_folder(self):
        self.server()
        done = subprocess.run([SLUICE, "serve", stories(), "--port", "0", "--batch-dir", str(self.dir)], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("another server uses it", done.stderr)


class Batches(Folder):
    def counted(self, server, name):
        """A metric by the value of its label."""
        text = server.request("/metrics")[2]
        return {m[1]: float(m[2]) for m in re.finditer(rf'^{name}{{\w+="(\w+)"}} (\S+)$', text, re.M)}

    def test_results(self):
        server = self.server()
        text = "".join(line(i) for i in range(30)) + line(30, prompt="x", top_p=7) + line(31, prompt="x", model="other")
        batch = self.ended(server, self.start(server, text, metadata={"team": "a"}))
        self.assertEqual((batch["status"], batch["object"], batch["metadata"]), ("completed", "batch", {"team": "a"}))
        self.assertEqual(batch["request_counts"], {"total": 32, "completed": 30, "failed": 2})
        good, bad = (self.results(server, batch[name]) for name in ("output_file_id", "error_file_id"))
        self.assertEqual((set(good), set(bad)), ({f"r{i}" for i in range(30)}, {"r30", "r31"}))
        self.assertEqual([bad[i]["response"]["status_code"] for i in ("r30", "r31")], [400, 404])
        alone = server.request("/v1/completions", {"prompt": "Once 7", "max_tokens": 8, "temperature": 0})[2]
        self.assertEqual(good["r7"]["response"]["status_code"], 200)
        self.assertEqual(good["r7"]["response"]["body"]["choices"][0]["text"], alone["choices"][0]["text"])
        self.assertEqual(server.request("/v1/files/" + batch["output_file_id"])[2]["purpose"], "batch_output")
        self.assertEqual(list((self.dir / "batches").iterdir()), [self.dir / "batches" / (batch["id"] + ".json")])
        for state in ("created_at", "in_progress_at", "finalizing_at", "completed_at", "expires_at"):
            self.assertGreater(batch[state], 0)
        self.assertEqual(self.counted(server, "sluice_batch_lines_total"), {"completed": 30, "failed": 2})
        self.assertEqual({k: v for k, v in self.counted(server, "sluice_batches").items() if v}, {"completed": 1})
        self.assertEqual(server.metric("sluice_batch_lines_waiting"), 0)

    def test_other_endpoints_and_long_answers(self):
        server = self.server()
        ids = [self.start(server, "".join(line(i, url, **body) for i in range(4)), url) for url, body in (
            ("/v1/embeddings", {"input": ["a", "b"]}),
            ("/v1/completions", {"prompt": "Once", "max_tokens": 400, "n": 8, "logprobs": 5, "ignore_eos": True}))]
        for one in ids:
            batch = self.ended(server, one)
            self.assertEqual(batch["request_counts"], {"total": 4, "completed": 4, "failed": 0}, batch)
            for result in self.results(server, batch["output_file_id"]).values():
                self.assertIn("usage", result["response"]["body"])
        page = server.request("/v1/batches?limit=1")[2]
        self.assertTrue(page["has_more"])
        rest = server.request("/v1/batches?after=" + page["last_id"])[2]
        self.assertEqual({page["data"][0]["id"], rest["data"][0]["id"]}, set(ids))

    def test_bad_batches(self):
        server = self.server()
        file = self.upload(server, line(0))["id"]
        good = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        for param, change in (("input_file_id", {"input_file_id": "file-none"}), ("input_file_id", {"input_file_id": None}),
                              ("endpoint", {"endpoint": "/metrics"}), ("completion_window", {"completion_window": "1h"}),
                              ("metadata", {"metadata": {"a": 1}}),
                              ("output_expires_after.seconds", {"output_expires_after": {"anchor": "created_at", "seconds": 1}})):
            status, _, answer = server.request("/v1/batches", {**good, **change})
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
        self.assertEqual(server.request("/v1/batches/batch_none")[0], 404)
        self.assertEqual(server.request("/v1/batches/batch_none/cancel", b"", method="POST")[0], 404)
        for path, method, allowed in (("/v1/batches/batch_none", "POST", "GET"), ("/v1/batches/b/cancel", "GET", "POST"),
                                      ("/v1/files/f/content", "DELETE", "GET"), ("/v1/files/f", "PUT", "GET, DELETE")):
            status, head, _ = server.request(path, b"", method=method)
            self.assertEqual((status, head["Allow"]), (405, allowed), path)
        for text, said in (("no json\n", "line 1"), (line(0) + line(0), "custom_id"), ("\n", "no request"),
                           (line(0) + line(1, "/v1/embeddings", input="a"), "url is /v1/embeddings")):
            batch = self.ended(server, self.start(server, text))
            self.assertEqual(batch["status"], "failed")
            self.assertIn(said, batch["errors"]["data"][0]["message"])
            self.assertNotIn(str(self.dir), json.dumps(batch))

    def test_cancel(self):
        server = self.server("--max-seqs", "2")
        file = self.upload(server, "".join(line(i, prompt="Once", max_tokens=200, ignore_eos=True) for i in range(2000)))
        batch = self.create(server, file["id"])[2]["id"]
        self.until(server, batch, lambda b: b["request_counts"]["completed"] > 3)
        self.assertEqual(self.counted(server, "sluice_batches")["in_progress"], 1)
        done = server.metric("sluice_batch_lines_total")
        self.assertTrue(0 < server.metric("sluice_batch_lines_waiting") <= 2000 - done)
        self.assertEqual(server.request("/v1/files/" + file["id"], method="DELETE")[0], 409)
        status, _, answer = server.request(f"/v1/batches/{batch}/cancel", b"", method="POST")
        self.assertEqual((status, answer["status"]), (200, "cancelling"))
        end = self.ended(server, batch)
        self.assertEqual(end["status"], "cancelled")
        good, bad = (self.results(server, end[name]) for name in ("output_file_id", "error_file_id"))
        self.assertGreater(len(good), 3)
        self.assertGreater(len(bad), 3)
        self.assertEqual(set(good) | set(bad), {f"r{i}" for i in range(2000)})
        self.assertFalse(set(good) & set(bad))
        self.assertEqual({b["error"]["code"] for b in bad.values()}, {"batch_cancelled"})
        self.assertEqual(end["request_counts"], {"total": 2000, "completed": len(good), "failed": len(bad)})
        self.assertEqual(server.request(f"/v1/batches/{batch}/cancel", b"", method="POST")[0], 409)
        self.assertTrue(server.until(lambda: server.metric("sluice_requests_running") == 0))
        self.assertEqual(server.request("/v1/files/" + file["id"], method="DELETE")[0], 200)

    def test_no_room_for_results(self):
        server = self.server("--batch-bytes", "40K")
        batch = self.ended(server, self.start(server, "".join(map(line, range(100)))))
        self.assertEqual((batch["status"], batch["errors"]["data"][0]["code"]), ("failed", "storage_full"))
        good, bad = (self.results(server, batch[name]) for name in ("output_file_id", "error_file_id"))
        self.assertEqual(set(good) | set(bad), {f"r{i}" for i in range(100)})
        self.assertTrue(good and bad)

    def test_others_go_first(self):
        server = self.server("--max-seqs", "2")
        batch = self.start(server, "".join(line(i, prompt="Once", max_tokens=200, ignore_eos=True) for i in range(2000)))
        self.until(server, batch, lambda b: b["request_counts"]["completed"] > 0)
        # Batches take one of the two slots, so that somebody who asks never waits for one of their requests.
        for _ in range(20):
            self.assertLessEqual(server.metric("sluice_requests_running"), 1)
            status, _, answer = server.request("/v1/completions", {"prompt": "x", "max_tokens": 4})
            self.assertEqual(status, 200, answer)
        self.assertIn(self.get(server, batch)["status"], ("in_progress",))

    def test_owners(self):
        keys = self.folder / "keys"
        keys.write_text("\n".join(KEYS))
        keys.chmod(0o600)
        server = self.server("--api-key-file", str(keys), key=KEYS[0])
        batch = self.ended(server, self.start(server, line(0)))
        self.assertEqual(batch["status"], "completed")
        other = {"Authorization": "Bearer " + KEYS[1]}
        for path in (f"/v1/batches/{batch['id']}", f"/v1/files/{batch['input_file_id']}",
                     f"/v1/files/{batch['output_file_id']}/content"):
            self.assertEqual(server.request(path)[0], 200)
            self.assertEqual(server.request(path, headers=other)[0], 404)
        for path in ("/v1/batches", "/v1/files"):
            self.assertTrue(server.request(path)[2]["data"])
            self.assertEqual(server.request(path, headers=other)[2]["data"], [])
        self.assertEqual(self.create_as(server, batch["input_file_id"], other)[0], 400)
        self.assertEqual(server.request("/v1/files/" + batch["input_file_id"], method="DELETE", headers=other)[0], 404)
        # The key may move in its file: the owner is the key, not its line.
        self.stop(server)
        keys.write_text("\n".join(reversed(KEYS)))
        again = self.server("--api-key-file", str(keys), key=KEYS[0])
        self.assertEqual(again.request(f"/v1/batches/{batch['id']}")[2], batch)
        self.assertNotIn(KEYS[0], "".join(p.read_text() for p in self.dir.rglob("*.json")))

    def create_as(self, server, file_id, headers):
        return server.request("/v1/batches", {"input_file_id": file_id, "endpoint": "/v1/completions",
                                              "completion_window": "24h"}, headers)


class Restarts(Folder):
    NUM, STEP = (90, 8) if SANITIZED else (400, 20)  # requests, those between two faults

    def long_batch(self, server):
        lines = (line(i, prompt=f"Once {i}", max_tokens=60, temperature=0, ignore_eos=True) for i in range(self.NUM))
        return self.start(server, "".join(lines))

    def test_killed_again_and_again(self):
        args = ("--max-seqs", "4")
        server = self.server(*args)
        batch, done = self.long_batch(server), set()
        for _ in range(3):
            state = self.until(server, batch,
                               lambda b: b["request_counts"]["completed"] > len(done) + self.STEP or b["status"] in END)
            self.assertEqual(state["status"], "in_progress", "too fast to be killed in the middle")
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            # The last line may be cut; the others stay as they are.
            lines = (self.dir / "batches" / (batch + ".results.jsonl")).read_text().split("\n")[:-1]
            self.assertGreaterEqual(set(lines), done)
            done = set(lines)
            self.assertGreaterEqual(len(done), state["request_counts"]["completed"])
            server = self.server(*args)
        end = self.ended(server, batch)
        self.assertEqual((end["status"], end["request_counts"]),
                         ("completed", {"total": self.NUM, "completed": self.NUM, "failed": 0}))
        self.assertIsNone(end["error_file_id"])
        good = self.results(server, end["output_file_id"])
        self.assertEqual(set(good), {f"r{i}" for i in range(self.NUM)})
        self.assertGreaterEqual({g["id"] for g in good.values()}, {json.loads(one)["id"] for one in done})
        alone = server.request("/v1/completions", {"prompt": f"Once {self.NUM // 2}", "max_tokens": 60, "temperature": 0,
                                                   "ignore_eos": True})[2]
        self.assertEqual(good[f"r{self.NUM // 2}"]["response"]["body"]["choices"][0]["text"], alone["choices"][0]["text"])

    def test_a_stop_goes_on_later(self):
        server = self.server("--max-seqs", "4")
        batch = self.long_batch(server)
        self.until(server, batch, lambda b: b["request_counts"]["completed"] > 20)
        self.stop(server)
        results = (self.dir / "batches" / (batch + ".results.jsonl")).read_text().splitlines()
        self.assertEqual({json.loads(r)["response"]["status_code"] for r in results}, {200})
        server = self.server("--max-seqs", "4")
        end = self.ended(server, batch)
        self.assertEqual(end["request_counts"], {"total": self.NUM, "completed": self.NUM, "failed": 0})

    def test_expiry(self):
        server = self.server("--max-seqs", "2")
        batch = self.long_batch(server)
        file = self.upload(server, line(0))["id"]
        self.until(server, batch, lambda b: b["request_counts"]["completed"] > 5)
        self.stop(server)
        for path in (self.dir / "batches" / (batch + ".json"), self.dir / "files" / (file + ".json")):
            record = json.loads(path.read_text())
            path.write_text(json.dumps({**record, "expires_at": int(time.time()) - 1}))
        server = self.server("--max-seqs", "2")
        end = self.ended(server, batch)
        self.assertEqual(end["status"], "expired")
        good, bad = (self.results(server, end[name]) for name in ("output_file_id", "error_file_id"))
        self.assertEqual(len(good) + len(bad), self.NUM)
        self.assertTrue(good and bad)
        self.assertEqual({b["error"]["code"] for b in bad.values()}, {"batch_expired"})
        self.assertEqual(server.request("/v1/files/" + file)[0], 404)

    def test_what_an_interrupted_end_left(self):
        """A batch whose results are files already, but whose record does not say so yet, ends the same way."""
        server = self.server()
        batch = self.ended(server, self.start(server, "".join(map(line, range(5)))))
        content = server.request(f"/v1/files/{batch['output_file_id']}/content")[2]
        self.stop(server)
        path = self.dir / "batches" / (batch["id"] + ".json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": "finalizing", "has_output": False}))
        (self.dir / "batches" / (batch["id"] + ".results.jsonl")).write_text(content)
        (self.dir / "files" / "temp-7").write_text("x")
        (self.dir / "batches" / "batch_odd.json").write_text("{")
        server = self.server()
        again = self.ended(server, batch["id"])
        self.assertEqual(again["output_file_id"], batch["output_file_id"])
        self.assertEqual(server.request(f"/v1/files/{batch['output_file_id']}/content")[2], content)
        self.assertFalse((self.dir / "files" / "temp-7").exists())
        self.assertEqual([b["id"] for b in server.request("/v1/batches")[2]["data"]], [batch["id"]])


class OpenAiClient(Folder):
    def test_openais_client(self):
        try:
            import openai
        except ImportError:
            self.skipTest("no openai package; runs with scripts/test_server.sh")
        server = self.server()
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            path = self.folder / "in.jsonl"
            path.write_text("".join(map(line, range(20))))
            with path.open("rb") as f:
                file = client.files.create(file=f, purpose="batch",
                                           expires_after={"anchor": "created_at", "seconds": 86400})
            self.assertEqual((file.filename, file.bytes), ("in.jsonl", path.stat().st_size))
            batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h",
                                          metadata={"a": "b"})
            self.ended(server, batch.id)
            batch = client.batches.retrieve(batch.id)
            self.assertEqual((batch.status, batch.request_counts.completed), ("completed", 20))
            lines = client.files.content(batch.output_file_id).text.splitlines()
            self.assertEqual({json.loads(one)["custom_id"] for one in lines}, {f"r{i}" for i in range(20)})
            self.assertEqual([b.id for b in client.batches.list(limit=5)], [batch.id])
            self.assertEqual({f.id for f in client.files.list()}, {file.id, batch.output_file_id})
            with self.assertRaises(openai.ConflictError):
                client.batches.cancel(batch.id)
            self.assertTrue(client.files.delete(file.id).deleted)
            with self.assertRaises(openai.NotFoundError):
                client.files.retrieve(file.id)


if __name__ == "__main__":
    unittest.main()
