#!/usr/bin/env python3
"""Fails the nth malloc, read, write, accept, mmap and pthread_create of a running server, for every n.

  faults_test.py LIBRARY     the built interposer; the server is $SLUICE

For each n and each request of the script the server answers as always, answers with an error object, or
closes the connection. Afterwards a clean request gives the same text, no sequence runs or waits, every KV
block is free, and no descriptor is left. Failures at start-up may also end the process: code 1, one line.

By default a seeded slice that takes about 20 s. SLUICE_TEST_FULL=1: every n. SLUICE_FAULTS_SEED: another
slice.
"""

import collections
import json
import mmap
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
import harness  # noqa: E402

FULL = os.environ.get("SLUICE_TEST_FULL") == "1"
SEED = int(os.environ.get("SLUICE_FAULTS_SEED", "1"))
KINDS = {"malloc": 1, "read": 2, "write": 3, "accept": 4, "thread": 5, "mmap": 6}
WAIT = 20  # seconds after which an answer counts as lost
SLICE_SECONDS = 15  # of the default run


class Control:
    """The page shared with the interposer: kind, first, num, calls, failed, live blocks, live bytes."""

    def __init__(self, path):
        path.write_bytes(bytes(4096))
        self.file = open(path, "r+b")
        self.page = mmap.mmap(self.file.fileno(), 4096)

    def get(self, index):
        return struct.unpack_from("<q", self.page, 8 * index)[0]

    def set(self, index, value):
        struct.pack_into("<q", self.page, 8 * index, value)

    def arm(self, kind, first, num=1):
        for index, value in ((0, 0), (1, first), (2, num), (3, 0), (4, 0)):
            self.set(index, value)
        self.set(0, KINDS[kind])

    def disarm(self):
        """Calls counted and calls failed."""
        self.set(0, 0)
        return self.get(3), self.get(4)


class Broken(Exception):
    """The connection ended before the answer did: allowed while something fails."""


def connect(port):
    s = socket.create_connection(("127.0.0.1", port), WAIT)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def message(path, body):
    if body is None:
        return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


def receive(s):
    data = b""
    try:
        while piece := s.recv(65536):
            data += piece
    except TimeoutError:
        raise AssertionError(f"no answer within {WAIT} s, so far: {data[-300:]!r}") from None
    except OSError as error:
        raise Broken from error
    return data


def parse(data):
    """Status and body of a complete response, chunks joined."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        raise Broken
    lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines[1:])
    status = int(lines[0].split()[1])
    if "content-length" in fields:
        if len(body) < int(fields["content-length"]):
            raise Broken
        assert len(body) == int(fields["content-length"]), "bytes behind the answer"
        return status, body.decode()
    text, rest = b"", body
    while True:
        size, found, rest = rest.partition(b"\r\n")
        if not found:
            raise Broken
        n = int(size, 16)
        if len(rest) < n + 2:
            raise Broken
        if n == 0:
            return status, text.decode()
        text, rest = text + rest[:n], rest[n + 2:]


def ask(port, path, body=None):
    try:
        with connect(port) as s:
            try:
                s.sendall(message(path, body))
            except OSError:
                pass  # cut while it was sent: an answer may still be there
            data = receive(s)
    except (ConnectionError, Broken) as error:
        raise Broken from error
    if not data:
        raise Broken
    return parse(data)


def error_of(text):
    error = json.loads(text)["error"]
    assert error["message"] and error["type"], text
    return error


def events(text):
    """The JSON of each server-sent event, "[DONE]" as it is."""
    found = []
    for event in text.split("\n\n"):
        if event.startswith("data: "):
            data = event[len("data: "):]
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


PROMPT = "Once upon a time, there was a little"


def completion(port):
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "n": 2, "logprobs": 3, "stop": ["zzzz"]}
    status, text = ask(port, "/v1/completions", body)
    if status != 200:
        return error_of(text)
    answer = json.loads(text)
    return [(c["text"], c["logprobs"]["tokens"], c["finish_reason"]) for c in answer["choices"]]


def stream(port):
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stream": True}
    status, text = ask(port, "/v1/completions", body)
    if status != 200:
        return error_of(text)
    found = events(text)
    if isinstance(found[-1], dict) and "error" in found[-1]:
        error = found.pop()["error"]
        so_far = "".join(e["choices"][0]["text"] for e in found)
        assert stream.text.startswith(so_far), f"wrong text before the error: {so_far!r}"
        return error
    assert found.count("[DONE]") == 1 and found[-1] == "[DONE]", found
    return "".join(e["choices"][0]["text"] for e in found[:-1])


def embedding(port):
    status, text = ask(port, "/v1/embeddings", {"input": [PROMPT, "The end"]})
    return [d["embedding"] for d in json.loads(text)["data"]] if status == 200 else error_of(text)


def heavy(port):
    """So large that a thread of its own parses it; too long for the context."""
    status, text = ask(port, "/v1/completions", {"prompt": "cat " * 75_000, "max_tokens": 1})
    error = error_of(text)
    return error if status >= 500 else (status, error["code"])


def metrics(port):
    status, text = ask(port, "/metrics")
    return sorted(set(re.findall(r"^sluice_steps_total", text, re.M))) if status == 200 else error_of(text)


def watch(port):
    """The dashboard's first events."""
    try:
        with connect(port) as s:
            s.sendall(message("/dashboard/events?interval=100", None))
            data = b""
            while b"event: frame" not in data:
                piece = s.recv(65536)
                if not piece:
                    break
                data += piece
    except TimeoutError:
        raise AssertionError("the dashboard sends nothing") from None
    except OSError as error:
        raise Broken from error
    if b" 200 " not in data[:20]:
        if not data:
            raise Broken
        return error_of(parse(data)[1])
    if b"event: frame" not in data:
        raise Broken
    return "frames"


def cancelled(port):
    """A stream whose client goes away after the first token."""
    body = {"prompt": PROMPT, "max_tokens": 400, "temperature": 0, "stream": True, "ignore_eos": True}
    try:
        with connect(port) as s:
            s.sendall(message("/v1/completions", body))
            s.recv(100)
    except TimeoutError:
        raise AssertionError("no first token") from None
    except OSError as error:
        raise Broken from error
    return "gone"


SCRIPT = [stream, completion, embedding, cancelled, metrics, heavy, watch]
# Threads are made with the first heavy request and the first watcher, so these come first in a new server.
FIRST = [heavy, watch]


class Server(harness.Server):
    def __init__(self, library, control):
        self.control = control
        environment = dict(os.environ)
        os.environ.update(LD_PRELOAD=library, SLUICE_FAULTS=control.file.name)
        try:
            # A queue of four: what leaks from it is missed soon.
            super().__init__("--max-queue", "4", "--io-threads", "2", "--kv-blocks", "64", path=harness.stories())
        finally:
            os.environ.clear()
            os.environ.update(environment)
        os.set_blocking(self.process.stderr.fileno(), False)
        for step in SCRIPT:
            step.text = None
        self.expected = {step: step(self.port) for step in SCRIPT if step not in FIRST}
        stream.text = self.expected[stream]
        self.settle()
        self.descriptors = self.count_descriptors()

    def count_descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def settle(self):
        """Waits until nothing runs or waits and every KV block is free or cached."""
        names = ("sluice_requests_running", "sluice_requests_waiting", "sluice_kv_cache_usage_ratio")
        state = None
        for attempt in range(2000):
            status, text = ask(self.port, "/metrics")
            state = [float(re.search(rf"^{name} (\S+)$", text, re.M)[1]) for name in names]
            if not any(state):
                return
            time.sleep(0.002)
        raise AssertionError(f"not idle: {dict(zip(names, state))}")

    def drain_log(self):
        while self.process.stderr.read(1 << 16):
            pass

    def check(self):
        """The server is as before."""
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
        got = stream(self.port)
        assert got == self.expected[stream], f"wrong text afterwards: {got!r}"
        self.settle()
        for attempt in range(500):
            if (now := self.count_descriptors()) <= self.descriptors:
                break
            time.sleep(0.002)
        assert now <= self.descriptors, f"{now - self.descriptors} descriptors leaked"
        self.drain_log()


class Totals:
    def __init__(self):
        self.tried = collections.Counter()
        self.outcomes = collections.defaultdict(collections.Counter)

    def add(self, kind, outcome):
        self.tried[kind] += 1
        self.outcomes[kind][outcome] += 1

    def show(self):
        for kind, tried in self.tried.items():
            shares = ", ".join(f"{n} {what}" for what, n in sorted(self.outcomes[kind].items()))
            print(f"{kind}: {tried} faults: {shares}", flush=True)


def attempt(server, step, kind, n, num, totals):
    """False: the nth call was not reached."""
    server.control.arm(kind, n, num)
    try:
        got = step(server.port)
        outcome = "answered"
        if isinstance(got, dict):
            outcome = "error object"
        elif step in server.expected:
            assert got == server.expected[step], f"a wrong answer: {got!r}, not {server.expected[step]!r}"
        else:
            server.expected[step] = got
    except Broken:
        outcome = "connection closed"
    if step is cancelled:  # its end comes after the client's
        time.sleep(0.003)
    calls, failed = server.control.disarm()
    name = kind if num == 1 else f"{kind} x{num}"
    if failed:
        totals.add(name, outcome)
    server.check()
    return failed > 0


def sweep(server, step, kind, num, totals, rng, seconds):
    """Every n, or random ones for so long."""
    where = f"{step.__name__}, {kind}"
    n = 0
    try:
        if FULL:
            misses = 0
            while misses < 3:  # threads race: a call more or less
                n += 1
                misses = 0 if attempt(server, step, kind, n, num, totals) else misses + 1
            return
        server.control.arm(kind, 1 << 60)
        try:
            step(server.port)
        except Broken:
            pass
        most, _ = server.control.disarm()
        end = time.monotonic() + seconds
        order = rng.sample(range(1, most + 1), most)
        for n in order:
            if time.monotonic() > end:
                break
            attempt(server, step, kind, n, num, totals)
    except Exception:
        print(f"at: {where}, n = {n}, {num} in a row, seed {SEED}", file=sys.stderr)
        raise


def run_requests(library, folder, totals):
    rng = random.Random(SEED)
    control = Control(folder / "control")
    cases = [("malloc", 1), ("read", 1), ("write", 1), ("accept", 1), ("thread", 1), ("mmap", 1)]
    with Server(library, control) as server:
        for kind in ("thread", "malloc"):
            for step in FIRST:
                attempt(server, step, kind, 1, 1, totals)
        for _ in range(20):  # what grows once has grown
            for step in SCRIPT:
                step(server.port)
        server.check()
        before = control.get(5), control.get(6)
        weight = {"malloc": 10}
        shares = sum(weight.get(kind, 1) for kind, _ in cases) * len(SCRIPT)
        for kind, num in cases:
            for step in SCRIPT:
                sweep(server, step, kind, num, totals, rng, SLICE_SECONDS * weight.get(kind, 1) / shares)
        for _ in range(20):
            for step in SCRIPT:
                step(server.port)
        server.check()
        blocks, size = control.get(5) - before[0], control.get(6) - before[1]
        faults = sum(totals.tried.values())
        print(f"after {faults} faults: {blocks:+d} live allocations, {size:+d} bytes", flush=True)
        # A leak is a block per fault. Bytes may grow: the dashboard's buffers do, with the steps recorded.
        assert blocks < 50 + faults // 100 and size < (2 << 20), "memory leaked"
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(20)
        os.set_blocking(server.process.stderr.fileno(), True)
        last = server.process.stderr.read()
        assert "stopping; 0 requests" in last, f"requests are counted that have ended: {last[-500:]}"
        assert server.process.returncode == 0, server.process.returncode


def run_bursts(library, folder, totals):
    """Eight mallocs fail in a row. Here the process may end too, as a start-up does: code 1, one line."""
    rng = random.Random(SEED)
    server = None
    try:
        with Server(library, Control(folder / "bursts")) as server:
            for _ in range(20):
                for step in SCRIPT:
                    step(server.port)
            for step in SCRIPT:
                sweep(server, step, "malloc", 8, totals, rng, SLICE_SECONDS / 3 / len(SCRIPT))
    except RuntimeError as error:  # by the end of `with`: its text ends with the process's stderr
        if server is None or server.process.returncode != 1 or not re.search(r"(^|\n)sluice: [^\n]+\n?$", str(error)):
            raise
        totals.add("malloc x8", "code 1")


def start_once(library, control, kind, n):
    """Exit code and stderr of a server whose nth call fails; a code of 0: it became ready."""
    environment = dict(os.environ, LD_PRELOAD=library, SLUICE_FAULTS=control.file.name,
                       SLUICE_FAULTS_AT_START=f"{KINDS[kind]} {n}")
    command = [harness.SLUICE, "serve", harness.stories(), "--port", "0", "--kv-blocks", "64"]
    control.disarm()
    control.set(3, 0)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "ready on" in line:
            control.disarm()
            process.send_signal(signal.SIGTERM)
    process.wait(WAIT)
    process.stderr.close()
    return process.returncode, lines


def run_starts(library, folder, totals):
    rng = random.Random(SEED)
    control = Control(folder / "start")
    for kind, most in (("thread", 30), ("mmap", 4), ("read", 4), ("malloc", 30)):
        assert start_once(library, control, kind, 1 << 60)[0] == 0
        calls = control.get(3)
        wanted = min(calls, 2000 if FULL else most)
        for n in sorted(rng.sample(range(1, calls + 1), wanted)):
            code, lines = start_once(library, control, kind, n)
            where = f"{kind} {n} of {calls} at start-up"
            name = f"{kind} at start-up (of {calls})"
            if code == 0:
                totals.add(name, "ready")
                continue
            said = [line for line in lines if line.startswith("sluice: ")]
            assert len(said) == 1, f"{where}: ended with {code} and not one line: {''.join(lines)}"
            # A header that asks for too much memory is bad input, and cannot be told from too little memory.
            header = code == 2 and "too little memory for the model file's header" in said[0]
            assert code == 1 or header, f"{where}: ended with {code}: {said[0]}"
            totals.add(name, f"code {code}")


def main():
    if not harness.stories():
        print("skipped: the test data has no stories260K model")
        return 77
    totals = Totals()
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            run_starts(sys.argv[1], pathlib.Path(folder), totals)
            run_requests(sys.argv[1], pathlib.Path(folder), totals)
            run_bursts(sys.argv[1], pathlib.Path(folder), totals)
    finally:
        totals.show()
    print(f"{time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
