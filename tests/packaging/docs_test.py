#!/usr/bin/env python3
"""The commands of docs/quickstart.md, run as a reader would, block after block.

    tests/packaging/docs_test.py BINARY [FILE.md ...]

Every ```sh block is a bash script in one scratch folder. A block that begins with `sluice serve` starts a server on a
free port, which the blocks after it find in place of 8080 until the next heading or server. A block is left out only
below a comment `<!-- not run: REASON -->`. Python blocks must parse. Exit status 77: the default model is not here.
"""

import ast
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"(?:^<!-- not run: (?P<why>.+?) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$|^(?P<heading>#+ [^\n]+)$",
                   re.M | re.S)


def model_file():
    cache = os.environ.get("SLUICE_CACHE") or os.path.expanduser("~/.cache/sluice")
    return pathlib.Path(cache) / "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Runner:
    def __init__(self, binary, folder):
        self.folder = folder
        self.port = None
        self.server = None
        self.env = dict(os.environ, PATH=f"{pathlib.Path(binary).resolve().parent}:{os.environ['PATH']}",
                        SLUICE_CACHE=str(model_file().parent.parent), NO_COLOR="1", CURL_HOME=folder)
        pathlib.Path(folder, ".curlrc").write_text("fail\n")  # an HTTP error is a failure

    def stop(self):
        if self.server:
            self.server.send_signal(signal.SIGTERM)
            self.server.wait(60)
            self.server = None

    def serve(self, text):
        self.stop()
        self.port = free_port()
        command = shlex.split(text, comments=True) + ["--port", str(self.port)]
        self.server = subprocess.Popen(command, env=self.env, cwd=self.folder, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5).close()
                return ""
            except OSError:
                time.sleep(0.1)
        self.server.kill()
        return f"the server did not start: {self.server.stderr.read()[-2000:]}"

    def run(self, text):
        """Empty, or why the block failed."""
        if text.startswith("sluice serve"):
            return self.serve(text)
        if ":8080" in text:
            if not self.server:
                return "asks a server at 8080, and no block before it under this heading starts one"
            text = text.replace(":8080", f":{self.port}")
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], env=self.env, cwd=self.folder,
                              capture_output=True, text=True, timeout=300)
        if done.returncode:
            return f"exit status {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"
        if not done.stdout.strip():
            return f"nothing on stdout; stderr: {done.stderr[-2000:]}"
        return ""


def check(path, binary):
    ran = failed = 0
    heading = path.name
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(binary, folder)
        try:
            for match in BLOCK.finditer(path.read_text(encoding="utf-8")):
                if match["heading"]:
                    heading = match["heading"].lstrip("# ")
                    runner.stop()
                    continue
                text, why = match["text"], ""
                first = text.splitlines()[0]
                if match["kind"] == "python":
                    ast.parse(text)
                    continue
                if match["kind"] != "sh":
                    failed += 1
                    print(f"FAILED {heading}: a ```{match['kind']} block is neither sh nor python")
                    continue
                if match["why"]:
                    print(f"left out {heading}: {first} ({match['why']})")
                    continue
                print(f"run    {heading}: {first}", flush=True)
                ran += 1
                why = runner.run(text)
                if why:
                    failed += 1
                    print(f"FAILED {heading}: {first}\n{why}")
        finally:
            runner.stop()
    print(f"{path.name}: {ran} blocks run, {failed} failed")
    return ran > 0 and failed == 0


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if not model_file().exists():
        print(f"skipped: {model_file()} is not here (scripts/get_model.sh gets it)")
        sys.exit(77)
    files = [pathlib.Path(f) for f in sys.argv[2:]] or [ROOT / "docs/quickstart.md"]
    sys.exit(0 if all([check(f, sys.argv[1]) for f in files]) else 1)


if __name__ == "__main__":
    main()
