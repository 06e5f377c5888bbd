#!/usr/bin/env python3
"""How much of a prompt's K and V hides behind its computation: a prefill and a decode server with a 7B model's shape, whose steps
take an H200's time (21 ms for 1,024 tokens) and compute nothing, and between them a link of so many Gbit/s.

    scripts/bench_overlap.py BINARY [--links 10 25 100 400] [--prompts 1024 4096] [--chunks 256 1024 4096] [--slow 100] [--rounds 2]

The link is a relay in this script that passes no more bytes on than the rate allows, without credit for the time in which nothing came.
Everything runs --slow times slower than it says, steps and links alike, since no loopback carries 400 Gbit/s; what is printed is scaled
back. Of each prompt: the tail (from the prefill's answer to that of the decode server, one token) where the decode server is asked at the
prompt's end, where it is asked with it and blocks leave as steps end (--kv-leave steps), and where layers leave as they are computed; less
the tail of a prompt of which nothing has to move. Hidden: the share of the transfer that the last one does not show."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/server"))

MODEL = "random:qwen2.5-7b"
TOKEN_BYTES = 2 * 28 * 4 * 128 * 2
TOKEN_SECONDS = 0.021 / 1024
PIECE = 64 << 10


class Link(threading.Thread):
    """Connections to `port` of this machine, whose answers come at `rate` bytes a second, all together."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.to, self.rate, self.moved = port, 0.0, 0
        self.lock, self.free = threading.Lock(), 0.0  # free: when the link is free again
        self.listen = socket.create_server(("127.0.0.1", 0))
        self.port = self.listen.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                client = self.listen.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.to))
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            for s in (client, server):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.relay, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self.relay, args=(server, client, True), daemon=True).start()

    def relay(self, a, b, limited):
        try:
            while data := a.recv(PIECE):
                if limited:
                    time.sleep(self.wait(len(data)))
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def wait(self, num_bytes):
        """Seconds until so many bytes more have passed."""
        with self.lock:
            now = time.monotonic()
            self.free = max(self.free, now - 0.002) + num_bytes / self.rate
            self.moved += num_bytes
            return max(0.0, self.free - now)


def costs(folder, binary, slow):
    path = pathlib.Path(folder) / "costs.json"
    subprocess.run([binary, "plan", "calibrate", "random:smollm2-135m", "-t", "1", "--device", "cpu", "--limit", "1", "-q", "--out",
                    path], check=True, timeout=300)
    step = json.loads(path.read_text())
    step.update(rows=[[1, TOKEN_SECONDS * slow], [8192, 8192 * TOKEN_SECONDS * slow]], sampled=0, context=0, attended=0, prompts=0)
    path.write_text(json.dumps(step))
    return str(path)


def ask(server, tokens, params):
    """When the answer of one token came."""
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "kv_transfer_params": params}
    status, _, answer = server.request("/v1/completions", body, timeout=900, patience=1)
    if status != 200:
        sys.exit(f"error: {status}: {answer}")
    return time.monotonic(), answer


class Bench:
    def __init__(self, first, second, link, slow):
        self.first, self.second, self.link, self.slow = first, second, link, slow
        self.number = 0

    def draw(self, length):
        self.number += 1
        return [(k * 7 + self.number * 31 + k // 97 * self.number) % 900 + 5 for k in range(length)]

    def tail(self, length, early):
        """Seconds, prefill's seconds, bytes."""
        tokens, lease = self.draw(length), os.urandom(16).hex()
        fetch = {"do_remote_prefill": True, "remote_pending": True, "remote_host": "127.0.0.1", "remote_port": self.link.port,
                 "remote_request_id": lease}
        before, begin = self.link.moved, time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            later = pool.submit(ask, self.second, tokens, fetch) if early else None
            computed, _ = ask(self.first, tokens, {"do_remote_decode": True, "lease": lease})
            done, answer = later.result() if early else ask(self.second, tokens, fetch)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        if cached < length - 16:
            sys.exit(f"error: only {cached} of {length} tokens came: {self.second.lines[-3:]}")
        return (done - computed) / self.slow, (computed - begin) / self.slow, self.link.moved - before

    def bare(self, length):
        """The tail of a prompt that the decode server has."""
        tokens = self.draw(length)
        ask(self.second, tokens, None)
        begin = time.monotonic()
        return (ask(self.second, tokens, None)[0] - begin) / self.slow


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("binary")
    parser.add_argument("--links", type=float, nargs="+", default=[10, 25, 100, 400])
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--chunks", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--slow", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    o = parser.parse_args()
    binary = str(pathlib.Path(o.binary).resolve())
    os.environ["SLUICE"] = binary
    from harness import Server  # pylint: disable=import-outside-toplevel
    from test_pd import port_of  # pylint: disable=import-outside-toplevel
    with tempfile.TemporaryDirectory() as folder:
        cost = costs(folder, binary, o.slow)
        room = str(2 * max(o.prompts) * TOKEN_BYTES)
        print("chunk  prompt  chunks  Gbit/s  prefill  transfer  tail at the end  by steps  by layers  hidden   (ms, of the median round)")
        for chunk in o.chunks:
            args = ("--simulate", cost, "--ctx", str(max(o.prompts) + 64), "--budget", str(chunk), "--chunk", str(chunk), "--kv",
                    "f16", "--prefix-host", room, "-t", "1", "--kv-lease", "900")
            with Server("--role", "prefill", "--kv-leave", "steps", *args, path=MODEL) as steps, \
                    Server("--role", "prefill", "--kv-leave", "layers", *args, path=MODEL) as layers, \
                    Server("--role", "decode", *args, path=MODEL) as second:
                benches = [Bench(first, second, Link(port_of(first)), o.slow) for first in (steps, layers)]
                benches[1].number = 450  # other prompts
                for length in o.prompts:
                    bare = benches[0].bare(length)
                    for gbits in o.links:
                        rate = gbits * 1e9 / 8 / o.slow
                        for bench in benches:
                            bench.link.rate = rate
                        rounds = [[bench.tail(length, early) for _ in range(o.rounds)]
                                  for bench, early in ((benches[0], False), (benches[0], True), (benches[1], True))]
                        ended, _, early = medians = [sorted(r)[o.rounds // 2] for r in rounds]
                        alone = ended[2] / rate / o.slow
                        tails = [max(0.0, t[0] - bare) for t in medians]
                        hidden = max(0.0, min(1.0, 1 - tails[2] / alone))
                        print(f"{chunk:5} {length:7} {-(-length // chunk):7} {gbits:7g} {early[1] * 1e3:8.1f} {alone * 1e3:9.1f} {tails[0] * 1e3:16.1f} "
                              f"{tails[1] * 1e3:9.1f} {tails[2] * 1e3:10.1f} {hidden:7.0%}", flush=True)


if __name__ == "__main__":
    main()
