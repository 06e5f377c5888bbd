"""What keeps web pages of others off a server on this machine: Host, Origin, content types, CORS. Raw HTTP, and
a browser where Chromium is installed. Also exit codes of a server that cannot start."""

import http.server
import json
import socket
import subprocess
import tempfile
import threading
import unittest

from browser import Page, chromium
from harness import PATIENCE, SLUICE, Server, stories

APP = "https://app.example"
BODY = {"prompt": "Once", "max_tokens": 4}


def ask(server, method, path, fields, body=None):
    """(status, header fields in lower case, body) of one request with just these fields."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nConnection: close\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    if data:
        head += f"Content-Length: {len(data)}\r\n"
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), 20) as s:
        s.sendall(head.encode() + b"\r\n" + data)
        while piece := s.recv(65536):
            got += piece
    head, _, text = got.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), {k.lower(): v for k, v in (l.split(": ", 1) for l in lines[1:])}, text


@unittest.skipUnless(stories(), "the test data is not there")
class Guard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plain = Server("--ctx", "128", path=stories(), hosts=())
        cls.keys = tempfile.NamedTemporaryFile("w")
        cls.keys.write("the-key-123\n")
        cls.keys.flush()
        cls.cors = Server("--ctx", "128", "--cors", APP, "--api-key-file", cls.keys.name, path=stories(), hosts=())

    @classmethod
    def tearDownClass(cls):
        cls.plain.__exit__()
        cls.cors.__exit__()
        cls.keys.close()

    def test_hosts(self):
        for host, want in (("localhost", 200), (f"127.0.0.1:{self.plain.port}", 200), ("[::1]", 200),
                           ("rebound.example", 421), (f"rebound.example:{self.plain.port}", 421), ("gpu-box", 421)):
            for method, path, body in (("GET", "/health", None), ("POST", "/v1/completions", BODY)):
                fields = {"Host": host, "Content-Type": "application/json"}
                status, _, text = ask(self.plain, method, path, fields, body)
                self.assertEqual(status, want, (host, path))
                if want == 421:
                    error = json.loads(text)["error"]
                    self.assertEqual(error["code"], "unknown_host")
                    self.assertIn("--allowed-hosts", error["message"])
                    self.assertIn(host.split(":")[0], error["message"])
        # With keys a page of others has nothing to offer.
        self.assertEqual(ask(self.cors, "GET", "/health", {"Host": "rebound.example"})[0], 200)

    def test_types_and_origins(self):
        own, json_type = f"http://localhost:{self.plain.port}", {"Content-Type": "application/json"}
        host = {"Host": f"localhost:{self.plain.port}"}
        for fields, want in (({}, 200), (json_type, 200), ({**json_type, "Origin": own}, 200),
                             ({**json_type, "Sec-Fetch-Site": "same-origin", "Origin": own}, 200),
                             ({"Origin": own}, 415), ({"Sec-Fetch-Site": "cross-site"}, 415),
                             ({"Content-Type": "text/plain", "Origin": own}, 415),
                             ({**json_type, "Origin": "https://evil.example"}, 403),
                             ({**json_type, "Origin": "null"}, 403), ({"Origin": "https://evil.example"}, 403)):
            status, head, text = ask(self.plain, "POST", "/v1/completions", {**host, **fields}, BODY)
            self.assertEqual(status, want, (fields, text))
            self.assertNotIn("access-control-allow-origin", head)
        status, _, text = ask(self.plain, "GET", "/v1/models", {**host, "Origin": "https://evil.example"})
        self.assertEqual((status, json.loads(text)["error"]["code"]), (403, "foreign_origin"))

    def test_preflight(self):
        wish = {"Host": "localhost", "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type"}
        status, head, text = ask(self.cors, "OPTIONS", "/v1/chat/completions", {**wish, "Origin": APP})
        self.assertEqual((status, text), (204, b""))
        self.assertEqual(head["access-control-allow-origin"], APP)
        self.assertEqual(head["vary"], "Origin")
        for name in ("authorization", "content-type", "x-request-id", "last-event-id", "x-api-key", "anthropic-version",
                     "anthropic-beta", "anthropic-dangerous-direct-browser-access"):
            self.assertIn(name, head["access-control-allow-headers"])
        self.assertIn("POST", head["access-control-allow-methods"])
        for server, origin in ((self.cors, "https://evil.example"), (self.plain, APP), (self.cors, "null")):
            status, head, _ = ask(server, "OPTIONS", "/v1/chat/completions", {**wish, "Origin": origin})
            self.assertEqual(status, 403)
            self.assertNotIn("access-control-allow-origin", head)
        # No preflight: a key is needed, as ever.
        self.assertEqual(ask(self.cors, "OPTIONS", "/v1/models", {"Host": "localhost"})[0], 401)

    def test_answers_for_a_listed_origin(self):
        fields = {"Host": "localhost", "Origin": APP, "Content-Type": "application/json"}
        key = {"Authorization": "Bearer the-key-123"}
        for extra, body, want in ((key, BODY, 200), (key, {**BODY, "stream": True}, 200), ({}, BODY, 401),
                                  (key, {"prompt": 1.5}, 400)):
            status, head, text = ask(self.cors, "POST", "/v1/completions", {**fields, **extra}, body)
            self.assertEqual(status, want, text)
            self.assertEqual(head["access-control-allow-origin"], APP)
            self.assertIn("x-request-id", head["access-control-expose-headers"])
            self.assertIn("Origin", head["vary"])

    @unittest.skipUnless(chromium(), "Chromium is not installed")
    def test_browser(self):
        class Quiet(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<title>a page of others</title>")

            def log_message(self, *_):
                pass

        site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
        threading.Thread(target=site.serve_forever, daemon=True).start()
        origin = f"http://localhost:{site.server_port}"
        script = """(async () => { try {
            const r = await fetch(%s, {method: 'POST', body: %s, headers: %s}); return r.status + ' ' + await r.text();
            } catch (e) { return 'blocked'; } })()"""
        typed = json.dumps({"Content-Type": "application/json"})
        try:
            with Server("--ctx", "128", "--cors", origin, path=stories(), hosts=()) as listed, Page() as page:
                page.open(origin)
                for server, works in ((listed, True), (self.plain, False)):
                    for stream in (False, True):
                        url = json.dumps(server.url + "/v1/completions")
                        body = json.dumps(json.dumps({**BODY, "stream": stream}))
                        answer = page.js(script % (url, body, typed))
                        self.assertEqual(answer.startswith("200"), works, answer)
                        self.assertEqual("[DONE]" in answer, works and stream)
                page.open(self.plain.url + "/")  # the server's own page
                answer = page.js(script % (json.dumps("/v1/completions"), json.dumps(json.dumps(BODY)), typed))
                self.assertTrue(answer.startswith("200"), answer)
        finally:
            site.shutdown()
            site.server_close()


@unittest.skipUnless(stories(), "the test data is not there")
class Start(unittest.TestCase):
    def fails(self, *args):
        done = subprocess.run([SLUICE, "serve", stories(), *args], capture_output=True, text=True, timeout=30 * PATIENCE)
        return done.returncode, done.stderr

    def test_environment_and_usage_differ(self):
        with socket.create_server(("127.0.0.1", 0)) as busy:
            code, err = self.fails("--port", str(busy.getsockname()[1]))
        self.assertEqual(code, 1, err)
        self.assertIn("in use", err)
        self.assertEqual(len(err.strip().splitlines()), 1, err)
        for args, says in ((("--cors", "example.org"), "--cors"), (("--allowed-hosts", "http://x"), "--allowed-hosts"),
                           (("--host", "192.0.2.1", "--allow-no-key"), "cannot listen")):
            code, err = self.fails("--port", "0", *args)
            self.assertEqual(code, 2, err)
            self.assertIn(says, err)

    def test_no_descriptors(self):
        for limit in (3, 4, 5):
            command = ["bash", "-c", f"ulimit -n {limit}; exec \"$@\"", "bash", SLUICE, "serve", stories(), "--port", "0"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30 * PATIENCE)
            self.assertIn(done.returncode, (1, 127), (limit, done.stderr))  # 127: not even the program was loaded


if __name__ == "__main__":
    unittest.main()
