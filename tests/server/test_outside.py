"""Faults that come from outside: the log's reader, signals, clocks, disks, the model's file, threads that hang.

$SLUICE_OUTSIDE is the library that makes threads hang and clocks jump; without it those tests are skipped."""

import ctypes
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from harness import PATIENCE, SANITIZED, SLUICE, Server, stories
from test_tls import make_certificate

OUTSIDE = os.environ.get("SLUICE_OUTSIDE")
SLOW = 5 if SANITIZED else 1
SHORT = {"prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
LONG = {**SHORT, "max_tokens": 480, "n": 16}


class Outside(Server):
    """A server with its environment, whose end is the test's to judge."""

    def __init__(self, *args, model=None, key=None, ca=None, hang=False, **env):
        self.log, self.key = "", key
        self.tls = ssl.create_default_context(cafile=ca) if ca else None
        environment = {**os.environ, **env}
        if hang:
            environment["LD_PRELOAD"] = OUTSIDE
            environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        self.process = subprocess.Popen(
            [SLUICE, "serve", model or stories(), "--port", "0", "--served-model-name", "test", *args],
            stderr=subprocess.PIPE, env=environment)
        self.until_said(r"ready on (https?://\S+)\s", 120)
        self.url = re.search(r"ready on (https?://\S+)\s", self.log)[1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def read(self, seconds=0.0):
        """What came on stderr."""
        fd = self.process.stderr.fileno()
        os.set_blocking(fd, False)
        end = time.monotonic() + seconds
        while True:
            try:
                piece = os.read(fd, 65536)
                self.log += piece.decode()
                if not piece:
                    return
            except BlockingIOError:
                if time.monotonic() > end:
                    return
                time.sleep(0.01)

    def until_said(self, pattern, seconds=10):
        end = time.monotonic() + seconds * PATIENCE
        while not re.search(pattern, self.log):
            if time.monotonic() > end or self.process.poll() is not None:
                self.read()
                if re.search(pattern, self.log):
                    return
                raise AssertionError(f"no {pattern!r} in {self.log!r}; exit code {self.process.poll()}")
            self.read(0.02)

    def end(self, seconds=20, stop=True):
        """(exit code, seconds it took); stderr is in log."""
        begin = time.monotonic()
        if stop:
            self.process.send_signal(signal.SIGTERM)
        reader = threading.Thread(target=self.process.wait, args=(seconds * PATIENCE,))
        reader.start()
        while reader.is_alive():
            self.read(0.02)
        reader.join()
        self.read()
        return self.process.returncode, time.monotonic() - begin

    def hang(self, name):
        """Hangs the thread of that name."""
        tasks = f"/proc/{self.process.pid}/task"
        if name == "main":
            found = [self.process.pid]
        else:
            comm = {t: pathlib.Path(tasks, t, "comm").read_text().strip() for t in os.listdir(tasks)}
            found = [t for t, n in comm.items() if n == name]
        tgkill = {"x86_64": 234, "aarch64": 131}[os.uname().machine]
        assert found, name
        for thread in found:
            ctypes.CDLL(None).syscall(tgkill, self.process.pid, int(thread), signal.SIGUSR2)

    def post(self, body, seconds=60):
        """An answer in the making: join() it and look at `answer`."""
        def run():
            try:
                thread.answer = self.request("/v1/completions", body, timeout=seconds * SLOW)
            except OSError as e:
                thread.answer = (0, {}, repr(e))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def busy(self, num=1):
        assert self.until(lambda: self.metric("sluice_requests_running") >= num, 10 * SLOW)

    def health(self):
        """The code of what is wrong; empty: nothing. None: no answer."""
        try:
            status, _, body = self.request("/health", timeout=2 * SLOW, patience=1)
        except OSError:
            return None
        return "" if status == 200 else body["error"]["code"]


@unittest.skipUnless(stories(), "no test data")
class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as f:
                f.write(text)
        return path

    def copy_of_model(self):
        return shutil.copy(stories(), self.path("model.gguf"))


class Log(Case):
    def test_a_closed_pipe(self):
        with Outside() as server:
            server.process.stderr.close()
            want = server.request("/v1/completions", SHORT)
            for i in range(20):
                status, _, answer = server.request("/v1/completions", {**SHORT, f"unknown_{i}": 1})
                self.assertEqual((status, answer["choices"]), (200, want[2]["choices"]))
            self.assertTrue(server.until(lambda: server.metric("sluice_log_lines_dropped_total") >= 20))
            self.assertEqual(server.health(), "")
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(20 * PATIENCE), 0)

    def test_a_reader_that_stalls(self):
        keys = self.path("k" * 200, "a-key-for-tests\n")
        with Outside("--api-key-file", keys, key="a-key-for-tests") as server:
            os.unlink(keys)  # every SIGHUP gives a line of some 300 bytes
            end = time.monotonic() + 60 * SLOW
            while server.metric("sluice_log_lines_dropped_total") < 50:
                for _ in range(50):
                    server.process.send_signal(signal.SIGHUP)
                    time.sleep(0.002)
                self.assertLess(time.monotonic(), end)
            self.assertEqual(server.request("/v1/completions", SHORT, timeout=10 * SLOW)[0], 200)
            self.assertEqual(server.health(), "")
            server.until_said(r"sluice: \d+ log lines were lost: stderr took none\n")
            said = sum(map(int, re.findall(r"sluice: (\d+) log lines were lost", server.log)))
            self.assertGreaterEqual(said, 50)
            self.assertEqual(server.end()[0], 0)
            self.assertRegex(server.log, r"sluice: stopping; 0 requests may take")

    def test_a_reader_that_stalls_does_not_hold_up_the_end(self):
        keys = self.path("k" * 200, "a-key-for-tests\n")
        with Outside("--api-key-file", keys, key="a-key-for-tests") as server:
            os.unlink(keys)
            while server.metric("sluice_log_lines_dropped_total") == 0:
                for _ in range(50):
                    server.process.send_signal(signal.SIGHUP)
                    time.sleep(0.002)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(20 * PATIENCE), 0)

    def test_stderr_closed_from_the_start(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        process = subprocess.Popen(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", SLUICE, "serve", stories(), "--port",
                                    str(port)])
        try:
            data = b""
            end = time.monotonic() + 60 * SLOW
            while not data.startswith(b"HTTP/1.1 200") and time.monotonic() < end:
                time.sleep(0.05)
                try:
                    with socket.create_connection(("127.0.0.1", port), 5) as s:
                        body = json.dumps({**SHORT, "unknown_field": 1}).encode()
                        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                                  b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                        data = b""
                        while piece := s.recv(65536):
                            data += piece
                except OSError:
                    pass
            self.assertTrue(data.startswith(b"HTTP/1.1 200"), data)
            self.assertNotIn(b"ignored:", data)  # a log line in an answer
            json.loads(data.split(b"\r\n\r\n", 1)[1])
            for fd in range(3):
                self.assertEqual(os.readlink(f"/proc/{process.pid}/fd/{fd}"), "/dev/null")
        finally:
            process.terminate()
            self.assertEqual(process.wait(20 * PATIENCE), 0)


class Reload(Case):
    def auth(self, server, key):
        return server.request("/v1/models", headers={"Authorization": "Bearer " + key})[0]

    def test_keys(self):
        keys = self.path("keys", "key-number-one\nkey-number-two\n")
        with Outside("--api-key-file", keys, key="key-number-one") as server:
            running = server.post(LONG)
            server.busy()
            self.path("keys", "key-number-two\nkey-number-three\n")
            server.process.send_signal(signal.SIGHUP)
            server.until_said(r"reloaded: 2 keys \(1 new, 1 removed\)\n")
            self.assertEqual([self.auth(server, "key-number-" + n) for n in ("one", "two", "three")], [401, 200, 200])
            running.join()
            self.assertEqual(running.answer[0], 200)
            self.assertEqual(len(running.answer[2]["choices"]), 16)
            for text in ("# none\n", "short\n", None):
                if text is None:
                    os.unlink(keys)
                else:
                    self.path("keys", text)
                server.log = ""
                server.process.send_signal(signal.SIGHUP)
                server.until_said(r"E kept the keys as they were: .*keys.*\n")
                told = [line for line in server.log.splitlines() if " I GET " not in line and " I POST " not in line]
                self.assertEqual(len(told), 1, server.log)
                self.assertEqual([self.auth(server, "key-number-" + n) for n in ("one", "two", "three")],
                                 [401, 200, 200])
            self.assertEqual(server.end()[0], 0)

    @unittest.skipUnless(shutil.which("openssl"), "no openssl")
    def test_certificate(self):
        cert, key = make_certificate(self.folder, "one")
        done = subprocess.run([SLUICE, "serve", stories(), "--port", "0", "--tls-cert", cert, "--tls-key", "/nowhere"],
                              capture_output=True, text=True)
        if "no OpenSSL" in done.stderr:
            self.skipTest("a build without OpenSSL")
        with Outside("--tls-cert", cert, "--tls-key", key, ca=cert) as server:
            def certificate():
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), 10)) as s:
                    return s.getpeercert(binary_form=True)

            first = certificate()
            context = ssl.create_default_context(cafile=cert)
            old = context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), 10),
                                      server_hostname="localhost")
            with open(cert, "a") as f:
                f.truncate(100)
            server.process.send_signal(signal.SIGHUP)
            server.until_said(r"E kept the certificate as it was: --tls-cert .*\n")
            self.assertEqual(certificate(), first)
            make_certificate(self.folder, "one")  # under the same names
            server.process.send_signal(signal.SIGHUP)
            server.until_said(r"reloaded: the certificate, for new connections\n")
            second = certificate()
            self.assertNotEqual(second, first)
            old.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # and the old one goes on
            self.assertTrue(old.recv(1000).startswith(b"HTTP/1.1 200"))
            old.close()
            server.tls = ssl.create_default_context(cafile=cert)
            self.assertEqual(server.health(), "")
            self.assertEqual(server.end()[0], 0)

    def test_without_keys_and_certificates(self):
        with Outside() as server:
            server.process.send_signal(signal.SIGHUP)
            server.until_said("nothing to reload")
            self.assertEqual(server.health(), "")
            self.assertEqual(server.end()[0], 0)


class ModelFile(Case):
    def test_truncated(self):
        model = self.copy_of_model()
        with Outside(model=model) as server:
            whole = [server.post(LONG) for _ in range(3)]
            with socket.create_connection(("127.0.0.1", server.port), 30) as s:
                body = json.dumps({**LONG, "stream": True}).encode()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          b"Content-Length: %d\r\n\r\n" % len(body) + body)
                stream = s.recv(65536)
                server.busy(4)
                os.truncate(model, 0)
                code, took = server.end(10, stop=False)
                while piece := s.recv(65536):
                    stream += piece
            self.assertEqual(code, 1, server.log)
            self.assertLess(took, 5 * PATIENCE)
            self.assertEqual(server.log.count(f"model file {model} was truncated or cannot be read any more"), 1)
            for w in whole:
                w.join()
                self.assertEqual(w.answer[0], 503, w.answer)
                self.assertIn(w.answer[2]["error"]["code"], ("model_lost", "model_changed"))
            events = [json.loads(e[6:]) for e in stream.decode().split("\r\n\r\n", 1)[1].splitlines()
                      if e.startswith("data: {")]
            self.assertIn(events[-1]["error"]["code"], ("model_lost", "model_changed"))
            self.assertNotIn(b"[DONE]", stream)

    def test_truncated_while_idle(self):
        model = self.copy_of_model()
        with Outside(model=model) as server:
            os.truncate(model, 1000)
            self.assertTrue(server.until(lambda: server.health() == "model_changed", 5 * SLOW))
            server.until_said(f"model file {model} was truncated while it was served")
            for path, body in (("/ready", None), ("/v1/completions", SHORT)):
                status, _, answer = server.request(path, body)
                self.assertEqual((status, answer["error"]["code"]), (503, "model_changed"))
            self.assertEqual(server.end()[0], 0)

    def test_overwritten(self):
        model = self.copy_of_model()
        with Outside(model=model) as server:
            good = server.request("/v1/completions", SHORT)
            self.assertEqual(good[0], 200)
            with open(model, "r+b") as f:
                f.seek(os.path.getsize(model) // 2)
                f.write(os.urandom(100_000))
            self.assertTrue(server.until(lambda: server.health() == "model_changed", 5 * SLOW))
            server.until_said(f"E model file {model} was written to while it was served: [^\n]*\n")
            self.assertEqual(server.request("/v1/completions", SHORT)[0], 503)
            server.read(1.5)
            self.assertEqual(server.log.count("while it was served"), 1)
            self.assertEqual(server.end()[0], 0)

    def test_replaced(self):
        model = self.copy_of_model()
        with Outside(model=model) as server:
            good = server.request("/v1/completions", SHORT)[2]["choices"]
            with open(model + ".new", "wb") as f:
                f.write(b"something else")
            os.rename(model + ".new", model)
            server.until_said(f"W model file {model} was replaced: the one that was loaded is still served\n")
            self.assertEqual(server.health(), "")
            self.assertEqual(server.request("/v1/completions", SHORT)[2]["choices"], good)
            self.assertEqual(server.end()[0], 0)

    def test_another_fault_is_not_ours(self):
        with Outside() as server:
            server.process.send_signal(signal.SIGBUS)
            code, _ = server.end(10, stop=False)
            self.assertNotIn("model file", server.log)
            self.assertIn(code, (-signal.SIGBUS, 1) if SANITIZED else (-signal.SIGBUS,))


class Disk(Case):
    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_no_room_for_the_trace(self):
        done = subprocess.run([SLUICE, "serve", stories(), "--port", "0", "--trace", "/dev/full"], capture_output=True,
                              text=True, timeout=60 * SLOW)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"^sluice: cannot write trace file .*/dev/full.*: No space left on device\n$")
        trace = self.path("trace.json", "")
        with Outside("--trace", trace) as server:
            self.assertEqual(server.request("/v1/completions", SHORT)[0], 200)
            os.unlink(trace)
            os.symlink("/dev/full", trace)  # the disk has filled up meanwhile
            code, _ = server.end()
            self.assertEqual(code, 1)
            self.assertRegex(server.log, r"sluice: cannot write trace file .*trace\.json.*: No space left on device\n")


@unittest.skipUnless(OUTSIDE, "SLUICE_OUTSIDE is not set")
class Clock(Case):
    def test_a_day_ahead_and_back(self):
        clock = self.path("clock", "\0" * 8)
        with Outside("--request-timeout", "60", hang=True, SLUICE_TEST_CLOCK=clock) as server:
            want = server.request("/v1/completions", SHORT)[2]
            for days in (1, -1, 0):
                running = server.post(LONG)
                server.busy()
                with open(clock, "r+b") as f:
                    f.write(struct.pack("q", days * 86_400 * 10**9))
                answer = server.request("/v1/completions", SHORT, timeout=20 * SLOW)[2]
                self.assertEqual(answer["choices"], want["choices"])
                self.assertAlmostEqual(answer["created"] - time.time(), days * 86_400, delta=60)  # it did jump
                running.join()
                self.assertEqual(running.answer[0], 200)
                time.sleep(1.2)  # a beat or two
                self.assertEqual(server.health(), "")
            mean = server.metric("sluice_request_seconds_sum") / server.metric("sluice_request_seconds_count")
            self.assertTrue(0 < mean < 60, mean)
            self.assertEqual(server.metric("sluice_log_lines_dropped_total"), 0)
            self.assertEqual(server.end()[0], 0)


class Manager:
    """What systemd's side of the notify socket hears."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)

    def hears(self, seconds):
        """The messages of so long a time."""
        heard, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                heard.append(self.socket.recv(1000).decode())
            except TimeoutError:
                break
        return heard


@unittest.skipUnless(OUTSIDE, "SLUICE_OUTSIDE is not set")
class Hang(Case):
    STALL = ("--stall-timeout", str(1 * SLOW), "--grace", "1")

    def test_every_thread_is_watched(self):
        for name, request in (("io-1", None), ("engine", None), ("worker", {**SHORT, "prompt": "word " * 80_000}),
                              ("main", None)):
            with self.subTest(thread=name), Outside("--io-threads", "2", *self.STALL, hang=True) as server:
                if request:  # the thread exists from its first work on
                    self.assertEqual(server.request("/v1/completions", request)[0], 400)
                self.assertEqual(server.health(), "")
                server.hang(name)
                # Every second connection may go to a thread that hangs: some get no answer.
                self.assertTrue(server.until(lambda: server.health() == "stuck", 15 * SLOW))
                if name == "main":  # the one that would log it
                    continue
                server.until_said(f"the thread {name} has given no sign of life for [0-9]+ s: /health says 503\n")

    def test_the_watchdog_is_fed_by_life_alone(self):
        manager = Manager(self.folder)
        self.addCleanup(manager.socket.close)
        with Outside(*self.STALL, hang=True, NOTIFY_SOCKET=manager.path) as server:
            self.assertIn("READY=1", manager.hears(0.5))
            self.assertGreaterEqual(manager.hears(2 * SLOW).count("WATCHDOG=1"), 2)  # idle
            server.hang("engine")
            server.until_said("the thread engine has given no sign of life")
            manager.hears(0.2)
            self.assertEqual(manager.hears(2), [])

    @unittest.skipIf(SANITIZED, "a step would take minutes")
    def test_a_long_step_is_no_stall(self):
        """A step that takes several times the limit, on a model made for it."""
        manager = Manager(self.folder)
        self.addCleanup(manager.socket.close)
        limit = 1
        with Outside("--stall-timeout", str(limit), "--threads", "1", "--ctx", "2048", "--budget", "2048",
                     model="random:smollm2-135m", NOTIFY_SOCKET=manager.path) as server:
            manager.hears(0.5)
            running = server.post({"prompt": list(range(100, 2000)), "max_tokens": 1})
            seen, beats = set(), 0
            while running.is_alive():
                seen.add(server.health())
                beats += manager.hears(limit).count("WATCHDOG=1")
            self.assertEqual(running.answer[0], 200, running.answer)
            longest = max(float(b) for b, n in re.findall(
                r'sluice_step_seconds_bucket\{le="([0-9.e+-]+)"\} (\d+)', server.request("/metrics")[2])
                if int(n) < server.metric("sluice_step_seconds_count"))
            if longest < 2 * limit:
                self.skipTest(f"this machine is too fast: no step took more than {longest} s")
            self.assertEqual(seen, {""}, server.read() or server.log)
            self.assertGreaterEqual(beats, 3)
            self.assertEqual(server.end()[0], 0)

    def test_sigterm_ends_it_whatever_hangs(self):
        for name in ("io-0", "engine", "device", "log", "main"):
            with self.subTest(thread=name), Outside(*self.STALL, hang=True) as server:
                running = server.post(LONG)
                server.busy()
                server.hang(name)
                time.sleep(0.1)
                code, took = server.end(10)
                self.assertLess(took, 1 + 2 + 5 * SLOW)  # grace + 2 s, and a busy machine
                running.join()
                if name != "log":
                    self.assertEqual(code, 1)
                    self.assertRegex(server.log, r"sluice: did not stop in time: ended by force\n$")

    def test_a_second_signal_shortens_the_wait(self):
        with Outside("--grace", "100", hang=True) as server:
            running = server.post(LONG)
            server.busy()
            server.hang("engine")
            server.process.send_signal(signal.SIGTERM)
            server.until_said("sluice: stopping")
            code, took = server.end(10)
            self.assertEqual(code, 1)
            self.assertLess(took, 2 + 5 * SLOW)
            running.join()


if __name__ == "__main__":
    unittest.main()
