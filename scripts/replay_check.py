#!/usr/bin/env python3
"""Serves a model, records it under load, and computes the recording again: every result must be equal.

    scripts/replay_check.py BINARY MODEL [--device cuda] [--segments 5] [--seconds 25] [--ring 16M] [-- OPTIONS]

The server runs with --deterministic on a GPU, --record-text and a small ring. Requests share beginnings, have
several choices, are sampled with seeds, and some clients leave, until the recording has so many segments or the time
is up. Then the recording is kept, the server stops, and `sluice replay` computes all segments in a row, one from the
middle alone, and one that is cut off. OPTIONS are for the server; --kv, --quantize, --dtype, --gpu-weights and --format
are for the replay too. Exit code 1: something differed, or nothing was compared.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from cluster_check import start

FOR_BOTH = ("--kv", "--quantize", "--dtype", "--gpu-weights", "--format")
COMPUTED = re.compile(r"from segment (\d+) on(?:, after K and V of (\d+) positions)?: "
                      r"(\d+) results, (\d+) tokens: (.*)")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("model")
    p.add_argument("--device", default="cuda")
    p.add_argument("--segments", type=int, default=5, help="at least so many, if there is time")
    p.add_argument("--seconds", type=float, default=25, help="of load, at most")
    p.add_argument("--ring", default="16M", help="bytes of the recording")
    p.add_argument("--users", type=int, default=12, help="requests at a time")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    o = p.parse_args(words[:cut])
    o.options = words[cut + 1:]
    o.both = [w for k, w in enumerate(o.options)
              if w.split("=")[0] in FOR_BOTH or (k > 0 and o.options[k - 1] in FOR_BOTH)]
    o.both += ["--device", o.device] + ([] if o.device == "cpu" else ["--deterministic"])
    return o


def serve(o, folder):
    words = [o.binary, "serve", o.model, "--device", o.device, "--port", "0", "--no-log-requests", "--record", folder,
             "--record-text", "--record-size", o.ring, *([] if o.device == "cpu" else ["--deterministic"]), *o.options]
    server, at = start(words, r"ready on http://([^:\s]+:\d+)")
    host, port = at.split(":")
    return server, (host, int(port))


def request_of(k):
    """The k-th request: its beginning is one of three, its length and its output differ."""
    prompt = [(7 * p + k % 3) % 200 + 3 for p in range(24 + k * 13 % 130)]
    body = {"prompt": prompt, "max_tokens": 16 + k * 5 % 80, "ignore_eos": True, "seed": k,
            "temperature": 0.0 if k % 4 == 0 else 0.8}
    if k % 7 == 3:
        body["n"] = 3
    if k % 5 == 2:
        body["logprobs"] = 2
    return body


def post(address, path, body):
    request = urllib.request.Request("http://%s:%d%s" % (*address, path), body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as r:
        return json.load(r)


def ask(address, k):
    body = json.dumps(request_of(k)).encode()
    return sum(len(c["text"]) > 0 for c in post(address, "/v1/completions", body)["choices"])


def leave(address, k):
    """A client that goes away in the middle of its output."""
    body = json.dumps({**request_of(k), "stream": True, "max_tokens": 96, "n": 1}).encode()
    with socket.create_connection(address, timeout=60) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        s.recv(2000)
    return 1


def load(o, address, folder):
    """Returns the number of requests."""
    end, k = time.monotonic() + o.seconds, 0
    with concurrent.futures.ThreadPoolExecutor(o.users) as pool:
        while time.monotonic() < end and len(list(folder.glob("*.slrec"))) <= o.segments:
            todo = [pool.submit(leave if n % 11 == 4 else ask, address, n) for n in range(k, k + 4 * o.users)]
            if any(t.result() == 0 for t in todo):
                sys.exit("replay_check: a request got no text")
            k += len(todo)
    return k


def replay(o, path, what, whole=False):
    """Returns (results, whether all were equal). `whole`: no segment may be left out."""
    words = [o.binary, "replay", str(path), "--model", o.model, *o.both]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    parts = COMPUTED.findall(done.stdout)
    results, tokens = sum(int(p[2]) for p in parts), sum(int(p[3]) for p in parts)
    equal = done.returncode == 0 and results > 0 and all(p[4].startswith("equal") for p in parts)
    equal = equal and not (whole and "left out" in done.stdout)
    print(f"{what}: {results} results, {tokens} tokens, K and V of {sum(int(p[1] or 0) for p in parts)} positions "
          f"computed first: {'equal' if equal else 'UNEQUAL'}", flush=True)
    if not equal:
        print((done.stdout + done.stderr)[-3000:])
    return results, equal


def check(o, kept, folder):
    """Everything in a row, every second segment, and segments alone, cut off."""
    files = sorted(kept.glob("*.slrec"))
    done = [replay(o, kept, f"{len(files)} segments in a row", whole=True)]
    gaps = folder / "gaps"
    gaps.mkdir()
    for f in files[::2]:
        (gaps / f.name).write_bytes(f.read_bytes())
    done.append(replay(o, gaps, f"every second one, {len(files[::2])} segments"))
    middle = files[len(files) // 2]
    done.append(replay(o, middle, f"{middle.name} alone"))
    cut = folder / "cut.slrec"
    data = middle.read_bytes()
    cut.write_bytes(data[:len(data) - 1000])
    done.append(replay(o, cut, f"{middle.name} without its last 1,000 bytes"))
    return done


def main():
    o = arguments()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        record = folder / "record"
        server, address = serve(o, record)
        try:
            num = load(o, address, record)
            kept = post(address, "/v1/recording/keep", b"{}")
            time.sleep(1)  # its thread makes the folder
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
        folders = sorted(record.glob("kept-*"))
        if not folders:
            sys.exit(f"replay_check: nothing was kept: {kept}")
        print(f"{num} requests on {o.device}, {len(list(folders[-1].glob('*.slrec')))} segments kept", flush=True)
        done = check(o, folders[-1], folder)
    equal = sum(ok for _, ok in done)
    print(f"{equal} of {len(done)} replays equal, {len(done) - equal} unequal; {time.monotonic() - begin:.0f} s")
    sys.exit(0 if equal == len(done) else 1)


if __name__ == "__main__":
    main()
