#!/usr/bin/env python3
"""The server under load, measured by sluice bench serve. Prints a table; exit status 1 when a goal is missed.

    scripts/load_test.py BINARY [streams] [overload] [disconnects] [throughput]     (default: all)
    --tiny FILE     model of the first three (default: stories260K of the test data)
    --model FILE    model of throughput (default: smollm2)
    --seconds N     of the overload (default 60)
    --no-speed      do not judge throughput and goodput: the machine has other work

streams      2,000 streams at once beside 5,000 idle connections: none lost, each text as when sent alone
overload     ten times the peak: refusals with Retry-After within 50 ms, goodput, memory
disconnects  1,000 clients that leave at random points: all blocks free afterwards
throughput   64 streams over HTTP against bench throughput, the same work, alternating

Exit status 77: the model is not there.
"""

import argparse
import json
import os
import pathlib
import random
import re
import resource
import select
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/server"))
sys.dont_write_bytecode = True


class Checks:
    def __init__(self):
        self.rows = []

    def add(self, name, value, goal, fine):
        self.rows.append((name, value, goal, fine))
        print(f"{'ok  ' if fine else 'MISS'} {name:44} {value:>16}   goal {goal}", flush=True)


def bench(url, *args):
    command = [args_of.binary, "bench", "serve", "--url", url, "--json", "-", "-q", "--endpoint", "completions", *args]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)["runs"]


def memory(server):
    """Resident bytes that are the server's own."""
    text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", text)[1]) * 1024


def thread_seconds(server):
    """CPU seconds of each of the server's threads, by name."""
    out = {}
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        text = (task / "stat").read_text()
        name, fields = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
        out[f"{name}-{task.name}"] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return out


def raise_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def streams(checks):
    num_idle = min(5000, raise_limit() - 3000)
    with Server("--max-connections-per-ip", "16000", "--max-queue", "4000", "--max-queue-tokens", "1000000",
                "--idle-timeout", "600", path=args_of.tiny) as server:
        bench(server.url, "--requests", "200", "--concurrency", "50", "--output", "8")
        before = memory(server)
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(num_idle)]
        server.until(lambda: server.metric("sluice_requests_running") == 0)
        each = (memory(server) - before) / num_idle
        checks.add("memory of an idle connection", f"{each / 1024:.1f} KiB", "<= 32 KiB", each <= 32 * 1024)
        run = bench(server.url, "--concurrency", "2000", "--requests", "2000", "--input", "16-48", "--output",
                    "32", "--check-text")[0]
        checks.add("2,000 streams, texts as when alone", f"{run['answered']} of {run['sent']}", "all",
                   run["answered"] == run["sent"] == 2000)
        closed = 0
        for s in idle:
            s.setblocking(False)
            try:
                closed += s.recv(1) == b""
            except BlockingIOError:
                pass
        checks.add("idle connections lost meanwhile", str(closed), "0", closed == 0)
        s = idle[-1]
        s.setblocking(True)
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = s.recv(100).split(b"\r\n")[0]
        checks.add("an idle connection still answers", answer.decode(), "200", b" 200 " in answer)
        for s in idle:
            s.close()


def overload(checks):
    with Server("--max-connections-per-ip", "16000", "--max-seqs", "64", "--max-queue", "128", path=args_of.tiny) as server:
        load = ("--input", "32", "--output", "64")
        peak = bench(server.url, "--concurrency", "128", "--duration", "10", "--warmup", "100", *load)[0]
        rate = peak["requests_per_s"]
        before = memory(server)
        run = bench(server.url, "--rate", f"{10 * rate:.1f}", "--duration", str(args_of.seconds), *load)[0]
        grown = memory(server) / before - 1
        again = bench(server.url, "--concurrency", "128", "--duration", "10", *load)[0]
        refused = run["failures"].get("http 429", 0)
        checks.add("asked, sent", f"{10 * rate:.0f}/s, {run['send_rate']:.0f}/s", "10 x peak",
                   run["send_rate"] > 9 * rate or args_of.no_speed)
        checks.add("failures other than 429", str(run["failed"] - refused), "0", run["failed"] == refused > 0)
        checks.add("refusals with Retry-After", f"{run['refused_with_retry_after']} of {refused}", "all",
                   run["refused_with_retry_after"] == refused)
        p99 = run["refusal_s"]["p99"] * 1e3
        checks.add("refusal p99", f"{p99:.1f} ms", "<= 50 ms", p99 <= 50 or args_of.no_speed)
        good = run["requests_per_s"] / max(rate, again["requests_per_s"])  # the peak before and after
        checks.add("goodput, of the peak", f"{100 * good:.1f} %", ">= 90 %", good >= 0.9 or args_of.no_speed)
        checks.add("memory", f"{100 * grown:+.1f} %", "< +5 %", grown < 0.05)
        if run["warnings"]:
            print("     " + "; ".join(run["warnings"]))


def disconnects(checks):
    rng = random.Random(1)
    with Server("--max-connections-per-ip", "16000", path=args_of.tiny) as server:
        body = {"max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}
        left = 1000
        open_sockets = []
        while left > 0 or open_sockets:
            while left > 0 and len(open_sockets) < 64:
                left -= 1
                data = json.dumps({**body, "prompt": "word " * rng.randrange(1, 80), "stream": left % 4 > 0}).encode()
                s = socket.create_connection(("127.0.0.1", server.port))
                head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                cut = rng.random()
                s.sendall((head + data)[:rng.randrange(len(head + data))] if cut < 0.1 else head + data)
                open_sockets.append((time.monotonic() + rng.random() * 0.3, s, cut))
            ready, _, _ = select.select([s for _, s, _ in open_sockets], [], [], 0.005)
            for s in ready:
                s.recv(65536)
            now = time.monotonic()
            for item in [i for i in open_sockets if i[0] <= now]:
                open_sockets.remove(item)
                if item[2] > 0.7:  # with a reset instead of a proper end
                    item[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                item[1].close()
        names = ("sluice_requests_running", "sluice_requests_waiting", "sluice_kv_cache_usage_ratio")
        idle = server.until(lambda: all(server.metric(n) == 0 for n in names), 5)
        checks.add("after 1,000 disconnects", f"KV {server.metric(names[2]):.4f}", "all free", idle)
        made = server.metric("sluice_generation_tokens_total")
        time.sleep(0.5)
        checks.add("tokens computed for nobody, later", f"{server.metric('sluice_generation_tokens_total') - made:.0f}",
                   "0", server.metric("sluice_generation_tokens_total") == made)
        run = bench(server.url, "--requests", "50", "--concurrency", "8")[0]
        checks.add("answers afterwards", f"{run['answered']} of 50", "all", run["answered"] == 50)


def throughput(checks):
    work = ("--input", "64", "--output", "128")
    engine = ("--ctx", "512", "--max-seqs", "64")
    with_http, offline = [], []
    for _ in range(args_of.rounds):
        command = [args_of.binary, "bench", "throughput", args_of.model, "--requests", "64", "--repeat", "1", "--json",
                   "-q", *engine, *work]
        offline.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                       ["output_tokens_per_s"])
        with Server(*engine, path=args_of.model) as server:
            bench(server.url, "--concurrency", "64", "--requests", "64", *work)
            before = thread_seconds(server)
            run = bench(server.url, "--concurrency", "64", "--requests", "64", "--warmup", "0", "--token-ids", *work)[0]
            after = thread_seconds(server)
        with_http.append(run["output_tokens_per_s"])
        tokens = run["output_tokens"]
        spent = {n.split("-")[0]: 0 for n in after}
        for n, t in after.items():
            spent[n.split("-")[0]] += t - before.get(n, 0)
        print(f"     offline {offline[-1]:.0f}, HTTP {with_http[-1]:.0f} tokens/s; CPU us per token: "
              f"client {1e6 * run['generator']['cpu'] * run['elapsed_s'] / tokens:.0f}, "
              + ", ".join(f"{n} {1e6 * t / tokens:.0f}" for n, t in spent.items()), flush=True)
    ratio = max(with_http) / max(offline)
    checks.add("64 streams over HTTP, of offline", f"{100 * ratio:.1f} %", ">= 92 %", ratio >= 0.92 or args_of.no_speed)


TESTS = {"streams": streams, "overload": overload, "disconnects": disconnects, "throughput": throughput}


def main():
    global args_of, Server
    parser = argparse.ArgumentParser(description="the server under load")
    parser.add_argument("binary")
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--tiny")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-speed", action="store_true")
    args_of = parser.parse_intermixed_args()
    for name in args_of.tests:
        if name not in TESTS:
            parser.error(f"no test {name}: {', '.join(TESTS)}")
    os.environ["SLUICE"] = args_of.binary = str(pathlib.Path(args_of.binary).resolve())
    import harness
    Server = harness.Server
    args_of.tiny = args_of.tiny or harness.stories()
    chosen = args_of.tests or list(TESTS)
    if not args_of.tiny and set(chosen) - {"throughput"}:
        print("skipped: no stories260K in the test data", file=sys.stderr)
        sys.exit(77)
    checks = Checks()
    for name in chosen:
        TESTS[name](checks)
    missed = [r for r in checks.rows if not r[3]]
    print(f"{len(checks.rows) - len(missed)} goals met, {len(missed)} missed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
