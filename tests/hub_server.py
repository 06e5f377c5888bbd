"""A model hub for tests, on this machine: the part of the Hugging Face hub's HTTP interface that `sluice pull` uses.

Repositories are dictionaries of files by commit. Large files ("LFS") are answered with a redirect to a second server
of another name and port, which knows ranges; small ones directly. Faults are queued by file name and happen one
request after the other:

    hub.faults["model.gguf"] = [("cut", 1000), ("status", 503, {}), ("wrong",)]
"""

import hashlib
import http.server
import json
import re
import ssl
import threading
import urllib.parse


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def is_lfs(path):
    return path.endswith((".gguf", ".safetensors"))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, data, fault, about=None):
        """With ranges; a fault of kind cut, wrong, norange, other_range or longer changes what is sent."""
        kind = fault[0] if fault else ""
        begin = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if asked and kind != "norange":
            begin = int(asked[1])
            if begin >= len(data):
                return self.answer(416)
        if kind == "wrong":
            data = bytes([data[0] ^ 1]) + data[1:-1] + bytes([data[-1] ^ 1])
        if kind == "longer":
            data = data + b"more"
        body = data[begin:]
        headers = {**(about or {}), "Content_Length": str(len(body))}
        if begin:
            first = begin - 1 if kind == "other_range" else begin
            headers["Content_Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if kind == "cut":
            body = body[:fault[1]]
        self.answer(206 if begin else 200, body, **headers)
        if kind == "cut":
            self.wfile.flush()
            self.close_connection = True

    def take_fault(self, path):
        queue = self.hub.faults.get(path) or []
        with self.hub.lock:
            return queue.pop(0) if queue else None

    def status_fault(self, fault):
        if fault and fault[0] == "status":
            self.answer(fault[1], b"no", **fault[2])
            return True
        return False


class HubHandler(Handler):
    def do_GET(self):
        hub = self.hub
        url = urllib.parse.urlparse(self.path)
        path = urllib.parse.unquote(url.path)
        hub.log.append(("hub", path, dict(self.headers)))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path)
        if api:
            return self.send_info(api[1])
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not file or self.hidden(file[1]):
            return self.answer(404)
        repo, commit, name = file.groups()
        if repo in hub.gated and self.headers.get("Authorization") != "Bearer " + hub.gated[repo]:
            code = 403 if self.headers.get("Authorization") else 401
            return self.answer(code, X_Error_Code="GatedRepo")
        commit = hub.heads[repo] if commit == "main" else commit
        data = hub.repos[repo].get(commit, {}).get(name)
        if data is None:
            return self.answer(404, X_Error_Code="EntryNotFound")
        about = {"X_Repo_Commit": commit, "ETag": f'"{sha256(data) if is_lfs(name) else git_sha1(data)}"'}
        if is_lfs(name):
            hub.blobs[sha256(data)] = (name, data)
            where = f"{hub.cdn_url}/blob/{sha256(data)}?name={urllib.parse.quote(name)}&signature=a%2Fb"
            return self.answer(302, Location=where, X_Linked_Size=str(len(data)),
                               X_Linked_ETag=f'"{sha256(data)}"', **about)
        fault = self.take_fault(name)
        if not self.status_fault(fault):
            self.send_file(data, fault, about)

    do_HEAD = do_GET

    def answer(self, status, body=b"", **headers):
        if self.command == "HEAD":
            headers.setdefault("Content_Length", str(len(body)))
            body = b""
        super().answer(status, body, **headers)

    def hidden(self, repo):
        return repo not in self.hub.repos

    def send_info(self, repo):
        hub = self.hub
        fault = self.take_fault("api")
        if self.status_fault(fault):
            return None
        if repo in hub.renamed:
            return self.answer(307, Location=f"/api/models/{hub.renamed[repo]}?blobs=true")
        if self.hidden(repo):  # as the hub does: private and absent look alike
            return self.answer(401, b"{}", X_Error_Code="RepoNotFound")
        files = []
        for path, data in hub.repos[repo][hub.heads[repo]].items():
            entry = {"rfilename": path, "size": hub.sizes.get(path, len(data)), "blobId": git_sha1(data)}
            if is_lfs(path):
                entry["lfs"] = {"sha256": sha256(data), "size": entry["size"], "pointerSize": 134}
            files.append(entry)
        body = {"id": repo, "modelId": repo, "sha": hub.heads[repo], "private": False, "siblings": files,
                "tags": [], "downloads": 1, "likes": 0}
        return self.answer(200, json.dumps(body).encode(), Content_Type="application/json")


class CdnHandler(Handler):
    def do_GET(self):
        hub = self.hub
        hub.log.append(("cdn", self.path, dict(self.headers)))
        if self.path.startswith("/blob/") and "signature=a%2Fb" not in self.path:
            return self.answer(403)
        name, data = hub.blobs[self.path.split("/")[2].split("?")[0]]
        fault = self.take_fault(name)
        if not self.status_fault(fault):
            self.send_file(data, fault)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that went away, which some tests are about


class Hub:
    """Two servers, and what they hold."""

    def __init__(self, certificate=None):
        self.repos, self.heads, self.blobs = {}, {}, {}
        self.faults, self.gated, self.renamed, self.sizes = {}, {}, {}, {}
        self.log = []
        self.lock = threading.Lock()
        self.servers = []
        port = self.start(HubHandler, certificate)
        cdn_port = self.start(CdnHandler, certificate)
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{port}"
        self.cdn_url = f"{scheme}://localhost:{cdn_port}"

    def start(self, handler, certificate):
        bound = type(handler.__name__, (handler,), {"hub": self})
        server = Server(("127.0.0.1", 0), bound)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.servers.append(server)
        return server.server_address[1]

    def add(self, repo, files, head=True):
        """A new commit, of all of these files; its name."""
        commit = hashlib.sha1(repr(sorted((p, sha256(d)) for p, d in files.items())).encode()).hexdigest()
        self.repos.setdefault(repo, {})[commit] = files
        if head:
            self.heads[repo] = commit
        return commit

    def asked(self, where, part=""):
        return [(path, headers) for who, path, headers in self.log if who == where and part in path]

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()
