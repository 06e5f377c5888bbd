#!/usr/bin/env python3
"""Several simulated workers behind `sluice route` against the same cluster in virtual time (`sluice plan cluster`).

    scripts/cluster_check.py BINARY MODEL TRACE [--requests 300] [--gap 0.2] [--workers 4] [--repeat 3] [--simulations 15]

TRACE is Mooncake's JSONL. Its first requests that fit the model's context keep their lengths and shared blocks; gaps are times --gap.
Steps cost what a file says that is written here: 30 ms and 60 us a token, so that what this machine takes to serve is small beside it.

Beyond the load that the workers keep up with, a request that comes a millisecond later goes to another worker, and a queue of seconds
makes much of it: one run is one draw. So it is served --repeat times and simulated --simulations times, each but the first with every
arrival up to 2 ms later, and the medians are compared. Prints time to the first token, time per token, hit rate and goodput of both, the
least and the most of each, and how far the medians are apart.
"""

import argparse
import json
import pathlib
import random
import re
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

SLO = "ttft=2s,tpot=80ms"
STEP = {"rows": [[1, 0.03006], [8192, 0.03 + 8192 * 60e-6]], "sampled": 0, "context": 0, "attended": 0, "prompts": 0,
        "host_step": 0, "host_slice": 0}
ENGINE = ["-t", "1", "--ctx", "8192", "--budget", "2048", "--chunk", "512", "--short-share", "0", "--max-seqs", "64",
          "--kv-blocks", "6144"]


def run(command):
    return subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def start(command, pattern):
    process = subprocess.Popen([str(c) for c in command], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if found := re.search(pattern, line):
            subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)  # reads the rest
            return process, found[1]
    raise SystemExit(f"{command[1]} did not start")


def slice_of(o, path):
    requests = []
    for line in pathlib.Path(o.trace).read_text().splitlines():
        r = json.loads(line)
        if r["input_length"] + r["output_length"] < 8000:
            requests.append(r)
        if len(requests) == o.requests:
            break
    first = requests[0]["timestamp"]
    for r in requests:
        r["timestamp"] = int((r["timestamp"] - first) * o.gap)
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))


def simulate(o, cost, trace):
    """Figures of each simulated run."""
    requests = [json.loads(line) for line in trace.read_text().splitlines()]
    runs = []
    for k in range(o.simulations):
        draw, shifted = random.Random(k), trace.with_name("shifted.jsonl")
        moved = [{**r, "timestamp": r["timestamp"] + (draw.randint(0, 2) if k > 0 else 0)} for r in requests]
        moved.sort(key=lambda r: r["timestamp"])
        shifted.write_text("".join(json.dumps(r) + "\n" for r in moved))
        plan = json.loads(run([o.binary, "plan", "cluster", o.model, "--device", "cpu", "--cost", cost, "--workers", o.workers,
                               "--policy", "cache-aware", "--workload", shifted, "--slo", SLO, "--json", "-q", *ENGINE]))
        runs.append(plan["policies"][0]["figures"])
    return runs


def serve(o, cost, trace):
    processes, urls = [], []
    for _ in range(o.workers):
        process, url = start([o.binary, "serve", o.model, "--port", "0", "--simulate", cost, *ENGINE], r"ready on (\S+)")
        processes.append(process)
        urls.append(url)
    command = [o.binary, "route", "--port", "0", "--cost", cost, "--budget", "2048"]
    for url in urls:
        command += ["--worker", url]
    process, router = start(command, r"routing on (\S+) to")
    processes.append(process)
    for _ in range(100):
        try:
            with urllib.request.urlopen(router + "/health", timeout=60) as answer:
                if json.load(answer)["up"] == o.workers:
                    break
        except urllib.error.HTTPError:  # none is up yet
            pass
        time.sleep(0.1)
    report = json.loads(run([o.binary, "bench", "serve", "--url", router, "--endpoint", "completions", "--token-ids", "--trace", trace,
                             "--warmup", "0", "--seed", "1", "--slo", SLO, "--json", "-", "-q"]))
    for process in reversed(processes):
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    return report


def rows_of(figures, hit_rate):
    rows = {f"{name} {q}, ms": figures[key][q] * 1e3
            for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s")) for q in ("mean", "p50", "p90", "p99")}
    return {**rows, "hit rate, %": hit_rate * 100, "goodput, requests/s": figures["goodput_requests_per_s"], "good": figures["good"]}


def show(plans, reals):
    simulated = [rows_of(f, f["prefix_hit_rate"]) for f in plans]
    served = [rows_of(f, f["cached_tokens"] / f["input_tokens"]) for f in reals]
    print(f"{'':20} {'simulated':>10} {'least':>9} {'most':>9} {'served':>10} {'least':>9} {'most':>9} {'apart':>8}")
    for name in simulated[0]:
        a, b = [r[name] for r in simulated], [r[name] for r in served]
        x, y = statistics.median(a), statistics.median(b)
        print(f"{name:20} {x:10.2f} {min(a):9.2f} {max(a):9.2f} {y:10.2f} {min(b):9.2f} {max(b):9.2f} {y / x - 1 if x else 0:8.1%}")
    answered = ", ".join(f"{r['answered']} of {r['sent']}" for r in reals)
    print(f"answered: {answered}; good: requests that kept {SLO}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("binary")
    p.add_argument("model")
    p.add_argument("trace")
    p.add_argument("--requests", type=int, default=300)
    p.add_argument("--gap", type=float, default=0.2)
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--simulations", type=int, default=15)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cost, trace = pathlib.Path(folder) / "costs.json", pathlib.Path(folder) / "trace.jsonl"
        run([o.binary, "plan", "calibrate", o.model, "--device", "cpu", "-t", "1", "--limit", "2", "-q", "--out", cost])
        cost.write_text(json.dumps({**json.loads(cost.read_text()), **STEP}))
        slice_of(o, trace)
        plans = simulate(o, cost, trace)
        reals = [serve(o, cost, trace)["runs"][0] for _ in range(o.repeat)]
    show(plans, reals)


if __name__ == "__main__":
    main()
