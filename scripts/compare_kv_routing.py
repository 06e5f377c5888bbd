#!/usr/bin/env python3
"""How much workers find cached, by what a router knows of their caches: what it sent, or their KV events.

    scripts/compare_kv_routing.py BINARY MODEL [--requests N]

Two servers with small caches, requests whose prompts begin with one of several long prefixes, some oftener than others:

    one    one router
    two    two routers side by side, which get requests by turns
    others one router; as many requests again come to a worker drawn at random, from elsewhere

MODEL is a small one with a vocabulary: nothing is timed. Prints the share of prompt tokens that the workers found cached,
and the share that the router expected.
"""

import argparse
import json
import random
import re
import signal
import subprocess
import urllib.request

NUM_PREFIXES, PREFIX_BYTES, BLOCKS = 24, 1100, 160  # a prefix takes some 20 blocks: a worker keeps 7 of 24


def start(command, pattern):
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if found := re.search(pattern, line):
            subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)  # reads the rest
            return process, found[1]
    raise SystemExit(f"{command[1]} did not start")


def call(url, path, body=None):
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body else None,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def metric(url, name):
    return sum(map(float, re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", call(url, "/metrics"), re.M)))


def run(options, events, scenario):
    processes, workers, routers = [], [], []
    kv = ["--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*"] if events else []
    for _ in range(2):
        process, url = start([options.binary, "serve", options.model, "--port", "0", "-t", "1", "--max-seqs", "4",
                              "--kv-blocks", str(BLOCKS), *kv], r"ready on (\S+)")
        processes.append(process)
        workers.append(url)
    for _ in range(2 if scenario == "two" else 1):
        command = [options.binary, "route", "--port", "0", *(["--kv-events"] if events else [])]
        for url in workers:
            command += ["--worker", url]
        process, url = start(command, r"routing on (\S+) to")
        processes.append(process)
        routers.append(url)
    draw = random.Random(7)
    words = "once upon a time there was little girl boy dog tree park sun mom day play big red".split()
    prefixes = [" ".join(draw.choices(words, k=400))[:PREFIX_BYTES] for _ in range(NUM_PREFIXES)]
    for url in routers:
        for _ in range(600):
            if metric(url, "sluice_route_worker_kv_known" if events else "sluice_route_worker_up") == len(workers):
                break
            subprocess.run(["sleep", "0.05"], check=True)
    hits = total = 0
    for k in range(options.requests):
        for turn in range(2 if scenario == "others" else 1):
            prefix = prefixes[min(int(draw.paretovariate(0.7)) - 1, NUM_PREFIXES - 1)]
            body = {"prompt": f"{prefix} {draw.choice(words)} {k}", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
            url = draw.choice(workers) if turn == 1 else routers[k % len(routers)]
            usage = json.loads(call(url, "/v1/completions", body))["usage"]
            if turn == 0 and k >= options.requests // 4:
                hits += usage["prompt_tokens_details"]["cached_tokens"]
                total += usage["prompt_tokens"]
    expected = sum(metric(u, "sluice_route_cached_tokens_total") for u in routers)
    sent = sum(metric(u, "sluice_route_prompt_tokens_total") for u in routers)
    for process in reversed(processes):
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    return hits / total, expected / sent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=600)
    options = parser.parse_args()
    print(f"{'':10} {'sent: hits':>12} {'expected':>10} {'events: hits':>14} {'expected':>10}")
    for scenario in ("one", "two", "others"):
        assumed, known = run(options, False, scenario), run(options, True, scenario)
        print(f"{scenario:10} {assumed[0]:12.1%} {assumed[1]:10.1%} {known[0]:14.1%} {known[1]:10.1%}", flush=True)


if __name__ == "__main__":
    main()
