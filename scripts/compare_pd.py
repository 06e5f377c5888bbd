#!/usr/bin/env python3
"""Goodput of a prefill and a decode worker against two workers that do all, behind the same `sluice route`.

    scripts/compare_pd.py BINARY [--mix INPUT:OUTPUT:RATE[,RATE] ...] [--slo ttft=500ms,tpot=10ms] [--link 100] [--requests 150] [--slow 5]
                          [--policy cache-aware] [--json FILE]

Real servers, router, HTTP and transfers of blocks; steps sleep for what Qwen2.5-7B in bf16 takes on an H200, by the figures of
docs/performance.md: 4 ms for a decode step, 47,000 tokens of prompts a second. Everything runs --slow times slower than it says, steps,
arrivals and the link alike, so that what this machine takes to serve is small beside it; what is printed is scaled back.

The model has the shape of lab-16m, whose K and V are a fourteenth of the 7B model's. So the link between the two workers, a relay in this
script, passes on a fourteenth of the bytes of --link Gbit/s: a token takes as long as the 7B model's. It is one link for all prompts.

Lengths of a mix are drawn from half to one and a half times what it says, arrivals are a Poisson process, the same for both ways. Goodput
is the share of requests that keep both objectives, times the rate. Prints a line per rate and way; --json FILE has all figures (- is stdout).
"""

import argparse
import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from bench_overlap import Link  # noqa: E402
from cluster_check import run, start  # noqa: E402

MODEL = "random:lab-16m"
TOKEN_BYTES = {"lab-16m": 2 * 8 * 2 * 64 * 2, "qwen2.5-7b": 2 * 28 * 4 * 128 * 2}  # K and V in 16 bits
# A step's rows without its context, which an H200 reads at 0.62 of 4.8 TB/s.
ROWS = [[1, 4.03e-3], [64, 4.25e-3], [256, 5.5e-3], [8192, 0.174]]
CONTEXT = TOKEN_BYTES["qwen2.5-7b"] / (0.62 * 4.8e12)
MIXES = ["256:512:20,60", "1024:256:20,50", "3072:128:8,18", "5120:32:6,14"]
# What `serve` takes for a 7B model on a GPU.
ENGINE = ["-t", "1", "--ctx", "8192", "--budget", "8192", "--chunk", "0", "--mixed-budget", "1024", "--max-seqs", "256", "--kv-blocks",
          "16384", "--kv", "f16"]


class Renamed(threading.Thread):
    """Connections to an HTTP server, in whose answers one port stands for another with as many digits."""

    def __init__(self, to, named, instead):
        super().__init__(daemon=True)
        self.to, self.named, self.instead = to, str(named).encode(), str(instead).encode()
        if len(self.named) != len(self.instead):
            raise SystemExit(f"error: ports {named} and {instead} differ in length: try again")
        self.listen = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listen.getsockname()[1]}"
        self.start()

    def run(self):
        while True:
            client = self.listen.accept()[0]
            server = socket.create_connection(("127.0.0.1", self.to))
            for s in (client, server):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.relay, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self.relay, args=(server, client, True), daemon=True).start()

    def renamed(self, data):
        """(data with the other port, the end that may be the beginning of a port to rename)"""
        names = [name + self.named for name in (b'"kv_lease_port":', b'"remote_port":')]
        for name in names:
            data = data.replace(name, name.removesuffix(self.named) + self.instead)
        held = max((k for name in names for k in range(1, len(name)) if data.endswith(name[:k])), default=0)
        return data[:len(data) - held], data[len(data) - held:]

    def relay(self, a, b, answers):
        rest = b""
        with contextlib.suppress(OSError):
            while data := a.recv(64 << 10):
                if answers:
                    data, rest = self.renamed(rest + data)
                b.sendall(data)
            b.sendall(rest)
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


class Cluster:
    """Two workers and a router, as a context. `apart`: of the roles prefill and decode, with a link in between."""

    def __init__(self, o, cost, apart):
        self.o, self.cost, self.apart = o, cost, apart
        self.processes, self.link = [], None

    def start(self, command, pattern):
        process, found = start([self.o.binary, *command], pattern)
        self.processes.append(process)
        return found

    def worker(self, *args):
        return self.start(["serve", MODEL, "--port", "0", "--simulate", self.cost, *ENGINE, *args], r"ready on (\S+)")

    def prefill_worker(self):
        url = self.worker("--role", "prefill", "--kv-lease", "300")
        port = int(url.rsplit(":", 1)[1])
        with urllib.request.urlopen(url + "/ready", timeout=60) as answer:
            lease = json.load(answer)["kv_lease_port"]
        self.link = Link(lease)
        self.link.rate = (self.o.link * 1e9 / 8 * TOKEN_BYTES["lab-16m"] / TOKEN_BYTES["qwen2.5-7b"] / self.o.slow)
        return Renamed(port, lease, self.link.port).url

    def __enter__(self):
        try:
            if self.apart:
                urls = [self.prefill_worker(), self.worker("--role", "decode")]
            else:
                urls = [self.worker(), self.worker()]
            command = ["route", "--port", "0", "--cost", self.cost, "--budget", "8192", "--policy", self.o.policy]
            for url in urls:
                command += ["--worker", url]
            self.router = self.start(command, r"routing on (\S+) to")
            self.wait_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_up(self):
        for _ in range(600):
            with contextlib.suppress(urllib.error.HTTPError):  # none is up yet
                with urllib.request.urlopen(self.router + "/health", timeout=60) as answer:
                    if json.load(answer)["up"] == 2:
                        return
            time.sleep(0.1)
        raise SystemExit("error: the workers did not come up")

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()

    def metric(self, name):
        with urllib.request.urlopen(self.router + "/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split(" ")[0] == name))


def scaled_slo(slo, slow):
    """ttft=500ms,tpot=10ms in units of a slower clock."""
    out = []
    for part in slo.split(","):
        name, _, value = part.partition("=")
        number = value.removesuffix("ms") if value.endswith("ms") else value.removesuffix("s")
        try:
            out.append(f"{name}={float(number) * (1 if value.endswith('ms') else 1e3) * slow:g}ms")
        except ValueError:
            raise SystemExit(f"error: --slo is like ttft=500ms,tpot=10ms, not {slo}") from None
    return ",".join(out)


def costs(o, path):
    run([o.binary, "plan", "calibrate", MODEL, "--device", "cpu", "-t", "1", "--limit", "1", "-q", "--out", path])
    step = json.loads(path.read_text())
    step.update(rows=[[n, s * o.slow] for n, s in ROWS], context=CONTEXT * o.slow, sampled=0, attended=0, prompts=0, host_step=0, host_slice=0)
    path.write_text(json.dumps(step))
    return str(path)


def mix_of(text):
    try:
        size, output, rates = text.split(":")
        mix = int(size), int(output), [float(r) for r in rates.split(",")]
    except ValueError:
        raise SystemExit(f"error: --mix is INPUT:OUTPUT:RATE[,RATE], not {text}") from None
    if min(mix[0], mix[1], *mix[2]) <= 0 or (mix[0] + mix[1]) * 3 // 2 >= 8192:
        raise SystemExit(f"error: --mix {text}: lengths and rates are above 0, and prompt and output take up to 8,192 tokens")
    return mix


def spread(n):
    return f"{max(1, n // 2)}-{n * 3 // 2}"


def measure(o, cost, mix, rate, apart):
    size, output, _ = mix
    with Cluster(o, cost, apart) as cluster:
        report = json.loads(run([o.binary, "bench", "serve", "--url", cluster.router, "--endpoint", "completions", "--token-ids", "--rate",
                                 rate / o.slow, "--requests", o.requests, "--input", spread(size), "--output", spread(output), "--warmup",
                                 "0", "--seed", "1", "--slo", scaled_slo(o.slo, o.slow), "--json", "-", "-q"]))["runs"][0]
        split, fallbacks = cluster.metric("sluice_route_prefills_total"), cluster.metric("sluice_route_fallbacks_total")
        moved = cluster.link.moved if cluster.link else 0
    share = report["good"] / report["sent"]
    out = {"input": size, "output": output, "rate": rate, "way": "P/D" if apart else "colocated", "requests": report["sent"],
           "answered": report["answered"], "good": share, "goodput": share * rate, "split": split, "fallbacks": fallbacks,
           "moved_tokens": moved // TOKEN_BYTES["lab-16m"], "late_p99_ms": report["lateness_s"]["p99"] * 1e3 / o.slow}
    for name, key in (("ttft", "ttft_s"), ("tpot", "tpot_s")):
        out |= {f"{name}_{q}_ms": report[key][q] * 1e3 / o.slow for q in ("p50", "p90", "p99")}
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("binary")
    p.add_argument("--mix", action="append", help="INPUT:OUTPUT:RATE[,RATE], requests a second; may be repeated")
    p.add_argument("--slo", default="ttft=500ms,tpot=10ms")
    p.add_argument("--link", type=float, default=100, help="Gbit/s")
    p.add_argument("--requests", type=int, default=150, help="of each rate and way")
    p.add_argument("--slow", type=float, default=5)
    p.add_argument("--policy", default="cache-aware")
    p.add_argument("--json", help="a file for all figures; - is stdout, in place of the table")
    o = p.parse_args()
    o.binary = str(pathlib.Path(o.binary).resolve())
    mixes = [mix_of(m) for m in o.mix or MIXES]
    scaled_slo(o.slo, o.slow)  # says what is wrong with it
    if o.link <= 0 or o.slow <= 0 or o.requests <= 0:
        raise SystemExit("error: --link, --slow and --requests are above 0")
    rows, table = [], o.json != "-"
    if table:
        print(f"{'prompt':>6} {'output':>6} {'rate':>6}  {'way':9} {'goodput':>8} {'good':>6} {'TTFT p50':>9} {'p99':>7} {'TPOT p50':>9} "
              f"{'p99':>6} {'split':>6}")
    with tempfile.TemporaryDirectory() as folder:
        cost = costs(o, pathlib.Path(folder) / "costs.json")
        for mix in mixes:
            for rate in mix[2]:
                for apart in (False, True):
                    r = measure(o, cost, mix, rate, apart)
                    rows.append(r)
                    if table:
                        print(f"{r['input']:6} {r['output']:6} {rate:6g}  {r['way']:9} {r['goodput']:8.2f} {r['good']:6.1%} "
                              f"{r['ttft_p50_ms']:9.1f} {r['ttft_p99_ms']:7.1f} {r['tpot_p50_ms']:9.2f} {r['tpot_p99_ms']:6.2f} {r['split']:6}",
                              flush=True)
    if o.json:
        text = json.dumps({"slo": o.slo, "link_gbit_s": o.link, "slow": o.slow, "policy": o.policy, "runs": rows}, indent=1)
        print(text) if o.json == "-" else pathlib.Path(o.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
