#!/usr/bin/env python3
"""Models by name: pull, list and rm, hf: names where a model is taken, and what is said of mistyped ones.

    tests/models_test.py BINARY [unittest arguments]

The hub is tests/hub_server.py. No test leaves this machine.
"""

import http.server
import json
import os
import pathlib
import pty
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import hub_server
from sliced import SlicedLoader
from cli_test import Gguf, U32

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "tests/golden/models/llama.gguf"
DIRECTORY = ROOT / "tests/golden/hf/llama"
BINARY = None

GGUF = MODEL.read_bytes()
OTHER = (ROOT / "tests/golden/models/llama-yarn.gguf").read_bytes()


def split_gguf(count=2):
    """MODEL as parts, by name."""
    import cli_test
    parts = {}
    names = list(Gguf().tensors)
    with tempfile.TemporaryDirectory() as folder:
        cli_test.WORK = pathlib.Path(folder)
        for i in range(count):
            part = Gguf()
            share = names[i * len(names) // count:(i + 1) * len(names) // count]
            part.tensors = {n: part.tensors[n] for n in share}
            part.set("split.no", U32, struct.pack("<I", i)).set("split.count", U32, struct.pack("<I", count))
            part.set("split.tensors.count", U32, struct.pack("<I", len(names)))
            name = f"Q8_0/model-Q8_0-{i + 1:05}-of-{count:05}.gguf"
            parts[name] = part.write("part.gguf").read_bytes()
    return parts


class HubCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.home = pathlib.Path(self.folder.name)
        self.models = self.home / "cache/models"
        self.hub = hub_server.Hub()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(self.hub.close)
        self.env = {"HOME": str(self.home), "SLUICE_CACHE": str(self.home / "cache"), "HF_ENDPOINT": self.hub.url,
                    **{k: v for k, v in os.environ.items() if k == "PATH" or k.endswith("SAN_OPTIONS")}}

    def run_sluice(self, *args, stdin=b"", **env):
        command = [str(BINARY)] + [str(a) for a in args]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=480, env={**self.env, **env})

    def works(self, *args, **env):
        done = self.run_sluice(*args, **env)
        self.assertEqual(done.returncode, 0, f"{args}\n{done.stderr.decode()}")
        return done.stdout.decode()

    def fails(self, *args, code=2, says="", **env):
        """The last line on stderr holds `says`; nothing on stdout."""
        done = self.run_sluice(*args, **env)
        err = done.stderr.decode()
        self.assertEqual(done.returncode, code, f"{args}\n{err}")
        self.assertEqual(done.stdout, b"")
        last = err.splitlines()[-1]
        self.assertTrue(last.startswith("sluice: "), err)
        self.assertIn(says, last)
        return err

    def pull(self, name, **env):
        return json.loads(self.works("pull", name, "--json", **env))

    def listed(self):
        return {m["name"]: m for m in json.loads(self.works("list", "--json"))}

    def partials(self):
        return [p for p in self.home.rglob("*.partial")]


class Pull(HubCase):
    def test_gguf(self):
        commit = self.hub.add("org/tiny-GGUF", {"tiny-Q4_K_M.gguf": GGUF, "tiny-Q8_0.gguf": OTHER, "README.md": b"x"})
        out = self.pull("hf:org/tiny-GGUF")
        self.assertEqual(out["name"], "hf:org/tiny-GGUF:Q4_K_M")
        self.assertEqual(out["revision"], commit)
        self.assertTrue(out["fetched"])
        self.assertEqual(pathlib.Path(out["path"]).read_bytes(), GGUF)
        self.assertEqual(self.pull("hf:org/tiny-GGUF:q8_0")["bytes"], len(OTHER))  # without regard to case
        self.assertFalse(self.pull("hf:org/tiny-GGUF")["fetched"])
        self.assertEqual(len(self.hub.asked("cdn")), 2)
        self.assertEqual(self.partials(), [])
        self.assertTrue(self.works("pull", "hf:org/tiny-GGUF:tiny-Q8_0.gguf").endswith("/tiny-Q8_0.gguf\n"))

    def test_runs_by_name_without_asking_again(self):
        self.hub.add("org/tiny-GGUF", {"tiny-Q4_K_M.gguf": GGUF})
        done = self.run_sluice("run", "hf:org/tiny-GGUF", "-p", "hello", "-m", 3, "-t", 1)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertIn(b"getting hf:org/tiny-GGUF", done.stderr)
        asked = len(self.hub.log)
        self.works("run", "hf:org/tiny-GGUF", "-p", "hello", "-m", 3, "-t", 1, HF_HUB_OFFLINE="1")
        self.works("tokenize", "hf:org/tiny-GGUF:Q4_K_M", "hello")
        self.works("inspect", "hf:org/tiny-GGUF")
        self.works("quantize", "hf:org/tiny-GGUF", self.home / "out.gguf", "--type", "q8_0", "-t", 1)
        self.works("bench", "latency", "hf:org/tiny-GGUF", "--input", 4, "--output", 2, "--repeat", 1, "-t", 1)
        self.assertEqual(len(self.hub.log), asked)

    def test_split_gguf(self):
        self.hub.add("org/split", {**split_gguf(), "other-Q2_K-00001-of-00002.gguf": b"x"})
        out = self.pull("hf:org/split:Q8_0")
        self.assertTrue(out["path"].endswith("Q8_0/model-Q8_0-00001-of-00002.gguf"))
        self.works("run", "hf:org/split:Q8_0", "-p", "hello", "-m", 2, "-t", 1)
        self.fails("pull", "hf:org/split:Q2_K", says="1 of the 2 parts")

    def test_directory(self):
        files = {p.name: p.read_bytes() for p in DIRECTORY.iterdir()}
        self.hub.add("org/tiny", {**files, "pytorch_model.bin": b"no", "onnx/model.onnx": b"no"})
        out = self.pull("hf:org/tiny")
        self.assertEqual({p.name for p in pathlib.Path(out["path"]).iterdir() if p.name[0] != "."}, set(files))
        self.works("inspect", "hf:org/tiny")

    def test_directory_of_shards(self):
        config = (DIRECTORY / "config.json").read_bytes()
        weights = (DIRECTORY / "model.safetensors").read_bytes()
        size, = struct.unpack_from("<Q", weights)
        header = json.loads(weights[8:8 + size])
        header.pop("__metadata__", None)
        names, shards, where = sorted(header), {}, {}
        for i, share in enumerate((names[::2], names[1::2])):
            out, data = {}, b""
            for name in share:
                begin, end = header[name]["data_offsets"]
                out[name] = {**header[name], "data_offsets": [len(data), len(data) + end - begin]}
                data += weights[8 + size + begin:8 + size + end]
                where[name] = f"model-{i + 1:05}-of-00002.safetensors"
            head = json.dumps(out).encode()
            shards[f"model-{i + 1:05}-of-00002.safetensors"] = struct.pack("<Q", len(head)) + head + data
        index = json.dumps({"metadata": {}, "weight_map": where}).encode()
        self.hub.add("org/shards", {"config.json": config, "model.safetensors.index.json": index, **shards,
                                    "consolidated.safetensors": weights})
        out = self.pull("hf:org/shards")
        self.assertFalse((pathlib.Path(out["path"]) / "consolidated.safetensors").exists())
        self.works("inspect", "hf:org/shards")

    def test_newer_revision(self):
        files = {"a-Q4_0.gguf": GGUF, "b-Q8_0.gguf": OTHER}
        first = self.hub.add("org/moves", files)
        old = self.pull("hf:org/moves:Q4_0")
        self.pull("hf:org/moves:Q8_0")
        second = self.hub.add("org/moves", {**files, "a-Q4_0.gguf": OTHER})
        self.assertEqual(self.pull("hf:org/moves:Q4_0")["revision"], second)
        self.assertFalse(pathlib.Path(old["path"]).exists())
        before = len(self.hub.asked("cdn"))
        self.assertEqual(self.pull("hf:org/moves:Q8_0")["revision"], second)  # the same file: linked, not fetched
        self.assertEqual(len(self.hub.asked("cdn")), before)
        self.assertNotIn(first, os.listdir(self.models / "hf/org/moves"))
        self.works("run", "hf:org/moves:Q8_0", "-p", "x", "-m", 1, "-t", 1)

    def test_renamed_repository(self):
        self.hub.add("org/new", {"m-Q4_0.gguf": GGUF})
        self.hub.renamed["org/old"] = "org/new"
        self.hub.repos["org/old"] = self.hub.repos["org/new"]
        self.hub.heads["org/old"] = self.hub.heads["org/new"]
        self.assertEqual(self.pull("hf:org/old")["bytes"], len(GGUF))

    def test_what_there_is(self):
        self.hub.add("org/many", {"m-IQ1_S.gguf": GGUF, "m-IQ2_S.gguf": OTHER, "mmproj-F16.gguf": b"x"})
        self.fails("pull", "hf:org/many", says="there is IQ1_S (204 KB), IQ2_S (89.5 KB)")
        self.fails("pull", "hf:org/many:Q4_K_M", says="there is IQ1_S")
        self.hub.add("org/two", {"a-7b-Q4_0.gguf": GGUF, "b-1b-Q4_0.gguf": OTHER})
        self.fails("pull", "hf:org/two:Q4_0", says="name one")
        self.assertEqual(self.pull("hf:org/two:b-1b-Q4_0.gguf")["bytes"], len(OTHER))
        self.hub.add("org/none", {"README.md": b"x", "pytorch_model.bin": b"x"})
        self.fails("pull", "hf:org/none", says="holds no model")


class Faults(HubCase):
    def setUp(self):
        super().setUp()
        self.hub.add("org/m", {"m-Q4_0.gguf": GGUF})

    def faults(self, *faults):
        self.hub.faults["m-Q4_0.gguf"] = list(faults)

    def test_cut_connections(self):
        self.faults(("cut", 1000), ("cut", 70_000))
        out = self.pull("hf:org/m")
        self.assertEqual(pathlib.Path(out["path"]).read_bytes(), GGUF)
        ranges = [h.get("Range") for _, h in self.hub.asked("cdn")]
        self.assertEqual(ranges, [None, "bytes=1000-", "bytes=71000-"])

    def test_goes_on_after_the_process_ended(self):
        self.faults(("cut", 100_000), *[("status", 503, {"Retry_After": "60"})] * 9)
        process = subprocess.Popen([BINARY, "pull", "hf:org/m"], env=self.env, stderr=subprocess.PIPE)
        line = b""
        while b"trying again in 60 s" not in line:
            line = process.stderr.readline()
            self.assertTrue(line, "ended early")
        process.kill()
        process.wait()
        process.stderr.close()
        partial, = self.partials()
        self.assertEqual(partial.read_bytes(), GGUF[:100_000])
        name, = [m for m in self.listed().values()]
        self.assertFalse(name["complete"])
        self.assertIn("incomplete, 49%", self.works("list"))
        self.faults()
        self.pull("hf:org/m")
        self.assertEqual(self.hub.asked("cdn")[-1][1].get("Range"), "bytes=100000-")
        self.assertEqual(self.partials(), [])

    def test_a_partial_file_that_is_damaged(self):
        self.faults(("cut", 100_000), ("status", 404, {}))
        self.fails("pull", "hf:org/m", says="is not on")
        partial, = self.partials()
        partial.write_bytes(bytes(100_000))
        done = self.run_sluice("pull", "hf:org/m")
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertIn(b"getting it anew", done.stderr)

    def test_server_without_ranges(self):
        self.faults(("cut", 1000), ("norange",))
        self.assertEqual(pathlib.Path(self.pull("hf:org/m")["path"]).read_bytes(), GGUF)

    def test_partial_longer_than_the_server_has(self):
        self.faults(("cut", 1000), ("status", 416, {}))
        self.assertEqual(pathlib.Path(self.pull("hf:org/m")["path"]).read_bytes(), GGUF)

    def test_wrong_checksum(self):
        self.faults(("wrong",))
        self.fails("pull", "hf:org/m", code=1, says="is damaged (SHA-256 ")
        self.assertEqual(self.partials(), [])
        self.assertEqual(list(self.home.rglob("*.gguf")), [])
        self.fails("run", "hf:org/m", "-p", "x", says="HF_HUB_OFFLINE", HF_HUB_OFFLINE="1")
        self.pull("hf:org/m")

    def test_wrong_checksum_of_a_small_file(self):
        self.hub.add("org/d", {p.name: p.read_bytes() for p in DIRECTORY.iterdir()})
        self.hub.faults["config.json"] = [("wrong",)]
        self.fails("pull", "hf:org/d", code=1, says="config.json of hf:org/d: is damaged (Git hash ")

    def test_a_file_that_changes_between_tries(self):
        self.faults(("cut", 1000), ("other_range",))
        self.fails("pull", "hf:org/m", code=1, says="the file has changed")
        self.hub.add("org/m", {"m-Q4_0.gguf": OTHER})  # a new commit: what is left of the old one is not used
        self.faults()
        out = self.pull("hf:org/m")
        self.assertEqual(pathlib.Path(out["path"]).read_bytes(), OTHER)
        self.assertIsNone(self.hub.asked("cdn")[-1][1].get("Range"))
        self.assertEqual(self.partials(), [])

    def test_a_file_longer_than_listed(self):
        self.faults(("longer",))
        self.fails("pull", "hf:org/m", code=1, says="the file has changed")

    def test_passing_errors(self):
        self.hub.faults["api"] = [("status", 500, {}), ("status", 429, {"Retry_After": "1"})]
        self.faults(("status", 500, {}), ("status", 429, {"Retry_After": "1"}))
        done = self.run_sluice("pull", "hf:org/m")
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertEqual(done.stderr.count(b"trying again"), 4, done.stderr.decode())

    def test_limits_that_last(self):
        self.hub.faults["api"] = [("status", 429, {"Retry_After": "3600"})]
        self.fails("pull", "hf:org/m", code=1, says="limits how often")

    def test_names_that_lead_out(self):
        for bad in ("../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "a\\..\\evil.gguf", "a\n.gguf"):
            self.hub.add("org/bad", {bad: GGUF})
            self.fails("pull", "hf:org/bad", code=1, says="refused")
        index = json.dumps({"weight_map": {"a": "../model.safetensors"}}).encode()
        self.hub.add("org/bad", {"config.json": b"{}", "model.safetensors.index.json": index})
        self.fails("pull", "hf:org/bad", says="which the repository does not have")
        self.assertEqual(list(self.home.rglob("evil*")), [])

    def test_too_large_for_the_disk(self):
        self.hub.sizes["m-Q4_0.gguf"] = 1 << 60
        self.fails("pull", "hf:org/m", code=1, says="SLUICE_CACHE")
        self.assertEqual(self.hub.asked("cdn"), [])

    def test_folder_that_cannot_be_written(self):
        self.models.parent.mkdir(parents=True)
        self.models.write_text("in the way")
        self.fails("pull", "hf:org/m", code=1, says="SLUICE_CACHE")

    def test_two_at_once(self):
        self.faults(("cut", 100_000))
        both = [subprocess.Popen([BINARY, "pull", "hf:org/m"], env=self.env, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE) for _ in range(2)]
        for process in both:
            out, err = process.communicate(timeout=480)
            self.assertEqual(process.returncode, 0, err.decode())
        self.assertLessEqual(len(self.hub.asked("cdn")), 2)


class Access(HubCase):
    def setUp(self):
        super().setUp()
        self.hub.add("org/m", {"m-Q4_0.gguf": GGUF})

    def test_unknown_names(self):
        self.fails("run", "hf:org/nothing", "-p", "x", says="hf:org/nothing is not on 127.0.0.1")
        self.fails("pull", "hf:org/nothing", says="HF_TOKEN")
        for bad in ("hf:org", "hf:", "hf:org/", "hf:a/b/c", "hf:org/m:", "hf:../m", "hf:org/m:../x", "hf:o rg/m"):
            self.fails("pull", bad, says="write hf:ORG/REPO")

    def test_gated(self):
        self.hub.gated["org/m"] = "secret"
        self.fails("pull", "hf:org/m", says="is gated: accept its terms")
        self.fails("pull", "hf:org/m", says="has no access", HF_TOKEN="other")
        self.pull("hf:org/m", HF_TOKEN="secret")

    def test_token_stays_with_the_hub(self):
        self.hub.gated["org/m"] = "secret"
        token = self.home / ".cache/huggingface/token"
        token.parent.mkdir(parents=True)
        token.write_text("secret\n")
        self.pull("hf:org/m")
        self.assertTrue(all(h.get("Authorization") == "Bearer secret" for _, h in self.hub.asked("hub")))
        self.assertTrue(self.hub.asked("cdn"))
        self.assertTrue(all("Authorization" not in h for _, h in self.hub.asked("cdn")))
        self.fails("pull", "hf:org/m", says="HF_TOKEN holds more than a token", HF_TOKEN="a b")

    def test_no_network(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.fails("run", "hf:org/m", "-p", "x", code=1, says="check the network", HF_ENDPOINT=nobody)
        self.fails("pull", "hf:org/m", code=1, says="cannot find", HF_ENDPOINT="http://no-such-host.invalid")
        self.fails("pull", "hf:org/m", says="HF_HUB_OFFLINE", HF_HUB_OFFLINE="1")
        self.fails("pull", "hf:org/m", says="HF_ENDPOINT", HF_ENDPOINT="ftp://x")

    def test_proxy(self):
        seen = []

        class Proxy(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                import urllib.request
                seen.append((self.path, self.headers.get("Proxy-Authorization")))
                handler = urllib.request.ProxyHandler({})
                opener = urllib.request.build_opener(handler, NoRedirect)
                try:
                    answer = opener.open(self.path)
                except urllib.error.HTTPError as e:
                    answer = e
                body = answer.read()
                self.send_response(answer.status)
                for name in ("Location", "Content-Type"):
                    if name in answer.headers:
                        self.send_header(name, answer.headers[name])
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        import urllib.error
        import urllib.request

        class NoRedirect(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *args):
                return None

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        proxy = f"http://user:pa%20ss@127.0.0.1:{server.server_address[1]}"
        self.pull("hf:org/m", http_proxy=proxy)
        self.assertTrue(seen and all(p.startswith("http://") for p, _ in seen), seen)
        self.assertEqual({a for _, a in seen}, {"Basic dXNlcjpwYSBzcw=="})
        before = len(seen)
        self.pull("hf:org/m", http_proxy=proxy, no_proxy="127.0.0.1,localhost")
        self.assertEqual(len(seen), before)
        self.fails("pull", "hf:org/m", code=1, says="http_proxy is not", http_proxy="socks5://127.0.0.1:1")


@unittest.skipUnless(shutil.which("openssl"), "no openssl")
class Tls(HubCase):
    def certificate(self, name, hosts):
        cert, key = self.home / f"{name}.pem", self.home / f"{name}-key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
                        "-days", "2", "-subj", "/CN=" + name, "-addext", "subjectAltName=" + hosts],
                       check=True, capture_output=True)
        return cert, key

    def setUp(self):
        super().setUp()
        cert, key = self.certificate("localhost", "DNS:localhost,IP:127.0.0.1")
        self.tls = hub_server.Hub((cert, key))
        self.addCleanup(self.tls.close)
        self.tls.add("org/m", {"m-Q4_0.gguf": GGUF})
        self.env.update(HF_ENDPOINT=self.tls.url, SSL_CERT_FILE=str(cert))
        done = self.run_sluice("pull", "hf:org/m")
        if b"no OpenSSL" in done.stderr:
            self.assertEqual(done.returncode, 2)
            self.skipTest("a build without OpenSSL")
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.works("rm", "hf:org/m", "--yes")

    def test_certificates_are_checked(self):
        self.fails("pull", "hf:org/m", code=1, says="name the file of your own authority in SSL_CERT_FILE",
                   SSL_CERT_FILE="/dev/null")
        cert, key = self.certificate("other.example", "DNS:other.example,IP:127.0.0.9")
        other = hub_server.Hub((cert, key))
        self.addCleanup(other.close)
        other.add("org/m", {"m-Q4_0.gguf": GGUF})
        self.fails("pull", "hf:org/m", code=1, says="IP address mismatch", HF_ENDPOINT=other.url,
                   SSL_CERT_FILE=str(cert))
        self.assertEqual(other.log, [])

    def test_never_from_https_to_http(self):
        self.tls.cdn_url = self.hub.cdn_url
        self.fails("pull", "hf:org/m", code=1, says="redirected from https to")
        self.assertEqual(self.hub.log, [])

    def test_proxy_tunnel(self):
        asked = []

        class Tunnel(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_CONNECT(self):
                asked.append((self.path, self.headers.get("Proxy-Authorization")))
                host, port = self.path.split(":")
                with socket.create_connection((host, int(port))) as other:
                    self.send_response(200)
                    self.end_headers()
                    pair = {self.connection: other, other: self.connection}
                    while True:
                        for ready in select.select(list(pair), [], [])[0]:
                            data = ready.recv(65536)
                            if not data:
                                self.close_connection = True
                                return None
                            pair[ready].sendall(data)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tunnel)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.pull("hf:org/m", https_proxy=f"http://u:p@127.0.0.1:{server.server_address[1]}")
        hosts = {path for path, _ in asked}
        self.assertEqual(hosts, {self.tls.url.split("//")[1], self.tls.cdn_url.split("//")[1]})
        self.assertEqual({a for _, a in asked}, {"Basic dTpw"})


class HubCache(HubCase):
    """What Hugging Face's own tools have fetched."""

    def setUp(self):
        super().setUp()
        self.cache = self.home / ".cache/huggingface/hub"

    def store(self, repo, commit, files):
        folder = self.cache / ("models--" + repo.replace("/", "--"))
        for name, data in files.items():
            blob = folder / "blobs" / (hub_server.sha256(data))
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(data)
            link = folder / "snapshots" / commit / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs/main").write_text(commit)
        return folder

    def test_is_used_and_left_alone(self):
        self.store("org/m", "a" * 40, {"m-Q4_0.gguf": GGUF})
        self.store("org/d", "b" * 40, {p.name: p.read_bytes() for p in DIRECTORY.iterdir()})
        before = sorted(self.cache.rglob("*"))
        self.works("run", "hf:org/m", "-p", "x", "-m", 1, "-t", 1)
        self.works("inspect", "hf:org/d")
        self.assertEqual(self.hub.log, [])
        listed = self.listed()
        self.assertTrue(listed["hf:org/m:Q4_0"]["read_only"])
        self.assertIn("hf:org/d", listed)
        self.fails("rm", "hf:org/m", "--yes", says="which sluice only reads")
        self.assertEqual(sorted(self.cache.rglob("*")), before)

    def test_incomplete_ones_are_not_used(self):
        folder = self.store("org/m", "a" * 40, {"m-Q4_0.gguf": GGUF})
        for blob in (folder / "blobs").iterdir():
            blob.unlink()
        self.store("org/d", "b" * 40, {"config.json": b"{}", "tokenizer.json": b"{}"})
        self.hub.add("org/m", {"m-Q4_0.gguf": GGUF})
        self.pull("hf:org/m")
        self.assertEqual(len(self.hub.asked("cdn")), 1)
        self.fails("inspect", "hf:org/d", says="is not on")

    def test_pull_of_what_is_there(self):
        commit = self.hub.add("org/m", {"m-Q4_0.gguf": GGUF})
        self.store("org/m", commit, {"m-Q4_0.gguf": GGUF})
        out = self.pull("hf:org/m")
        self.assertFalse(out["fetched"])
        self.assertTrue(out["path"].startswith(str(self.cache)))
        self.hub.add("org/m", {"m-Q4_0.gguf": OTHER})  # moved on: then it is fetched
        self.assertTrue(self.pull("hf:org/m")["fetched"])

    def test_by_the_real_client(self):
        try:
            import huggingface_hub  # noqa: F401
        except ImportError:
            self.skipTest("no huggingface_hub")
        files = {**{p.name: p.read_bytes() for p in DIRECTORY.iterdir()}, "m-Q4_0.gguf": GGUF}
        self.hub.add("org/real", files)
        code = ("import huggingface_hub as h; print(h.snapshot_download('org/real')); "
                "print(h.model_info('org/real', files_metadata=True).siblings)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              env={**self.env, "HF_HUB_DISABLE_XET": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        asked = len(self.hub.log)
        self.works("run", "hf:org/real:Q4_0", "-p", "x", "-m", 1, "-t", 1)
        self.works("inspect", "hf:org/real")
        self.assertEqual(len(self.hub.log), asked)


class ListAndRm(HubCase):
    def setUp(self):
        super().setUp()
        self.hub.add("org/m", {"m-Q4_0.gguf": GGUF, "m-Q8_0.gguf": OTHER})
        self.models.mkdir(parents=True)

    def test_list(self):
        done = self.run_sluice("list")
        self.assertEqual((done.returncode, done.stdout), (0, b""))
        self.assertIn(b"no models in", done.stderr)
        self.assertEqual(self.works("list", "--json"), "[]\n")
        self.pull("hf:org/m:Q4_0")
        shutil.copy(MODEL, self.models / "own.gguf")
        shutil.copytree(DIRECTORY, self.models / "folder")
        (self.models / "broken.gguf").write_bytes(b"GGUF")
        listed = self.listed()
        self.assertEqual(set(listed), {"hf:org/m:Q4_0", "own", "folder", "broken"})
        m = listed["hf:org/m:Q4_0"]
        self.assertEqual((m["bytes"], m["kind"], m["format"], m["used"]), (len(GGUF), "gguf", "Q4_0", None))
        self.assertEqual(m["revision"], self.hub.heads["org/m"])
        self.assertEqual(m["architecture"], "llama")
        self.assertEqual(m["parameters"], listed["own"]["parameters"])
        self.assertEqual((listed["own"]["format"], listed["folder"]["format"]), ("F32", "F32"))
        self.assertIn("error", listed["broken"])
        text = self.works("list").splitlines()
        self.assertEqual(text[0].split(), ["NAME", "SIZE", "FORMAT", "PARAMETERS", "USED"])
        self.assertEqual(text[2].split(), ["folder", *text[2].split()[1:3], "safetensors", "F32",
                                           text[2].split()[5], "never"])
        self.works("run", "own", "-p", "x", "-m", 1, "-t", 1)  # by name, from anywhere
        self.works("inspect", "folder")
        self.works("tokenize", "own.gguf", "x")
        self.assertIsNotNone(self.listed()["own"]["used"])
        self.assertIn("just now", self.works("list"))

    def test_rm(self):
        self.pull("hf:org/m:Q4_0")
        self.pull("hf:org/m:Q8_0")
        shutil.copy(MODEL, self.models / "own.gguf")
        outside = self.home / "outside.gguf"
        shutil.copy(MODEL, outside)
        self.fails("rm", "own", says="--yes")
        self.fails("rm", outside, "--yes", says="is not in sluice's cache folder")
        self.fails("rm", "owm", "--yes", says="did you mean own?")
        self.fails("rm", "nothing", "--yes", says="see sluice list")
        self.fails("rm", "hf:org/m", "--yes", says="say which: hf:org/m:Q4_0, hf:org/m:Q8_0")
        self.fails("rm", "own", "nothing", "--yes")  # all or none
        self.works("rm", "own", "hf:org/m:Q4_0", "--yes")
        self.assertEqual(set(self.listed()), {"hf:org/m:Q8_0"})
        self.works("rm", "hf:org/m", "--yes")
        self.assertEqual(list(self.models.rglob("*")), [self.models / "hf"])
        self.assertTrue(outside.exists())

    def test_rm_of_a_link(self):
        outside = self.home / "outside.gguf"
        shutil.copy(MODEL, outside)
        (self.models / "link.gguf").symlink_to(outside)
        self.works("rm", "link", "--yes")
        self.assertEqual(self.listed(), {})
        self.assertTrue(outside.exists())

    def test_rm_asks_on_a_terminal(self):
        shutil.copy(MODEL, self.models / "own.gguf")

        def answer(text):
            terminal, ours = pty.openpty()
            process = subprocess.Popen([BINARY, "rm", "own"], env=self.env, stdin=ours, stderr=subprocess.PIPE)
            os.close(ours)
            os.write(terminal, text)
            err = process.communicate(timeout=480)[1]
            os.close(terminal)
            return process.returncode, err

        code, err = answer(b"n\n")
        self.assertEqual(code, 1)
        self.assertIn(b"[y/N]", err)
        self.assertTrue((self.models / "own.gguf").exists())
        self.assertEqual(answer(b"y\n")[0], 0)
        self.assertFalse((self.models / "own.gguf").exists())


class Mistyped(HubCase):
    def test_names(self):
        self.models.mkdir(parents=True)
        shutil.copy(MODEL, self.models / "stories.gguf")
        for command in (["run", "-p", "x"], ["serve", "--port", "0"], ["tokenize"], ["inspect"]):
            self.fails(command[0], "smolm2", *command[1:], says="did you mean smollm2?")
        self.fails("template", "smolm2", "-", says="did you mean smollm2?")
        self.fails("perplexity", "smolm2", MODEL.with_suffix(".json"), says="did you mean smollm2?")
        self.fails("bench", "latency", "smolm2", says="did you mean smollm2?")
        self.fails("quantize", "smolm2", self.home / "x.gguf", "--type", "q8_0", says="did you mean smollm2?")
        self.fails("run", "storys", "-p", "x", says="did you mean stories?")
        self.fails("run", "nothing-like-it", "-p", "x", says="sluice list")
        self.fails("inspect", "random:qwen2.5-05b", says="did you mean random:qwen2.5-0.5b?")
        self.fails("run", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "-p", "x",
                   says="did you mean hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF?")
        self.fails("pull", "https://huggingface.co/Qwen/Qwen3-0.6B", says="did you mean hf:Qwen/Qwen3-0.6B?")

    def test_paths(self):
        folder = self.home / "weights"
        folder.mkdir()
        shutil.copy(MODEL, folder / "llama.gguf")
        self.fails("run", folder / "lama.gguf", "-p", "x", says=f"did you mean {folder}/llama.gguf?")
        self.fails("run", self.home / "weigths/llama.gguf", "-p", "x", says=f"did you mean {folder}/llama.gguf?")
        self.fails("run", self.home / "weigths/lama.gguf", "-p", "x", says=f"did you mean {folder}/llama.gguf?")
        self.fails("run", folder / "other.gguf", "-p", "x", says="no model or file")


if __name__ == "__main__":
    BINARY = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(testLoader=SlicedLoader())
