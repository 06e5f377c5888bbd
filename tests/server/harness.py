"""A sluice server for tests: started on a free port, stopped by SIGTERM. The binary is $SLUICE."""

import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import time
import unittest
import urllib.error
import urllib.request

# How many times longer a wait may take than on an idle machine with a release build. A wait ends when its condition
# holds: the limit only ends a test that hangs, and speed is for benchmarks.
PATIENCE = 8
SANITIZED = os.environ.get("SLUICE_SANITIZED", "")  # which sanitizers the build has
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SLUICE = os.environ.get("SLUICE", str(ROOT / "build/release/sluice"))


def cached_model(name):
    cache = os.environ.get("SLUICE_CACHE") or os.path.expanduser("~/.cache/sluice")
    path = pathlib.Path(cache) / "models" / name
    return str(path) if path.exists() else None


def model():
    return cached_model("SmolLM2-135M-Instruct.Q4_1.gguf")


def coder_model():
    """Qwen2.5-Coder-1.5B, which can call tools; scripts/get_coder_model.py gets it."""
    return cached_model("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf")


def stories(name="stories260K-f32"):
    """A tiny model from the test data."""
    data = pathlib.Path(os.environ.get("SLUICE_TEST_DATA") or ROOT.parent / "shared/data")
    path = data / f"models/{name}.gguf"
    return str(path) if path.exists() else None


class Server:
    def __init__(self, *args, key=None, path=None, ca=None, hosts=("x",), name="test", port=0, inside=None):
        """`hosts`: --allowed-hosts; tests that write their own HTTP say "Host: x". `inside`: a network namespace."""
        enter = ["ip", "netns", "exec", inside] if inside else []
        command = [*enter, SLUICE, "serve", path or model(), "--port", str(port), "--served-model-name", name, *args]
        for host in hosts:
            command += ["--allowed-hosts", host]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.key = key
        self.tls = ssl.create_default_context(cafile=ca) if ca else None
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            match = re.search(r"ready on (https?://\S+)", line)
            if match:
                self.url = match[1]
                break
        else:
            raise RuntimeError("the server did not start: " + "".join(self.lines))
        self.port = int(self.url.rsplit(":", 1)[1])

    def grpc_port(self):
        """Told below the line that says "ready"."""
        for line in self.process.stderr:
            self.lines.append(line)
            if match := re.search(r"gRPC: \S+ port (\d+)", line):
                return int(match[1])
        raise RuntimeError("no gRPC: " + "".join(self.lines))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20 * PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        rest = self.process.stderr.read()
        self.process.stderr.close()
        if self.process.returncode not in (0, -signal.SIGKILL):  # a sanitizer's report, too
            raise RuntimeError(f"the server ended with {self.process.returncode}: {rest[-8000:]}")

    def request(self, path, body=None, headers=None, method=None, timeout=30, patience=PATIENCE):
        """(status, headers, parsed or plain body); errors are answers too."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers or {}, method=method)
        if data is not None and not request.has_header("Content-type"):
            request.add_header("Content-Type", "application/json")
        if self.key and not request.has_header("Authorization"):
            request.add_header("Authorization", "Bearer " + self.key)
        try:
            with urllib.request.urlopen(request, timeout=timeout * patience, context=self.tls) as answer:
                status, head, text = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            status, head, text = error.code, error.headers, error.read()
        try:
            return status, head, json.loads(text)
        except ValueError:
            return status, head, text.decode()

    def metric(self, name):
        """The sum over a metric's series."""
        text = self.request("/metrics")[2]
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)
        return sum(map(float, values))

    def until(self, condition, seconds=10):
        end = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.02)
        return False


class ScriptedServer(unittest.TestCase):
    """Tests of one server with a tiny model, whose requests may bring their own chat template."""

    @classmethod
    def setUpClass(cls):
        if not stories():
            raise unittest.SkipTest("no test data")
        cls.server = Server("--allow-request-template", path=stories())

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
