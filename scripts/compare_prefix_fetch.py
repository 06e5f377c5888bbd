#!/usr/bin/env python3
"""How much workers find cached with prefixes that they fetch from one another, and without.

    scripts/compare_prefix_fetch.py BINARY MODEL [--requests N] [--clients N] [--prefixes N]

Two servers of --role both behind `sluice route --kv-events`. One prefix after the other becomes hot: one client asks with it
alone, then all of them at once, which is more than the worker that has it can take. Prints the share of prompt tokens found cached (fetched ones too), tokens computed, fetches, how many of
all prompt tokens went to one worker, and times.
"""

import argparse
import concurrent.futures
import json
import random
import tempfile
import time

from compare_kv_routing import call, metric, start

PREFIX_BYTES, BUDGET = 2048, 64


def run(options, fetch):
    with tempfile.NamedTemporaryFile(suffix=".key") as key:  # prefixes move only with one
        key.write(random.randbytes(32).hex().encode())
        key.flush()
        return run_with(options, fetch, key.name)


def run_with(options, fetch, key):
    processes, workers = [], []
    for _ in range(2):
        process, url = start([options.binary, "serve", options.model, "--port", "0", "-t", "1", "--role", "both", "--kv-key",
                              key, "--budget", str(BUDGET), "--prefix-host", "256M", "--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay",
                              "tcp://127.0.0.1:*"], r"ready on (\S+)")
        processes.append(process)
        workers.append(url)
    command = [options.binary, "route", "--port", "0", "--kv-events", "--budget", str(BUDGET)]
    for url in workers:
        command += ["--worker", url]
    process, router = start(command + ([] if fetch else ["--no-prefix-fetch"]), r"routing on (\S+) to")
    processes.append(process)
    for _ in range(600):
        if metric(router, "sluice_route_worker_kv_known") == len(workers):
            break
        time.sleep(0.05)
    draw = random.Random(7)
    words = "once upon a time there was little girl boy dog tree park sun mom day play big red".split()
    prefixes = [" ".join(draw.choices(words, k=800))[:PREFIX_BYTES] for _ in range(options.prefixes)]

    def ask(k):
        prefix = prefixes[k // (options.requests // options.prefixes)]
        begin = time.monotonic()
        usage = json.loads(call(router, "/v1/completions", {"prompt": f"{prefix} {words[k % len(words)]} {k}", "max_tokens": 16,
                                                            "temperature": 0, "ignore_eos": True}))["usage"]
        return time.monotonic() - begin, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    begin = time.monotonic()
    answers, each = [], options.requests // options.prefixes
    with concurrent.futures.ThreadPoolExecutor(options.clients) as pool:
        for first in range(0, each * options.prefixes, each):
            answers.append(ask(first))
            answers += pool.map(ask, range(first + 1, first + each))
    took = time.monotonic() - begin
    tokens, cached = sum(a[1] for a in answers), sum(a[2] for a in answers)
    times = sorted(a[0] for a in answers)
    found = {"hits": cached / tokens, "computed": tokens - cached, "fetches": metric(router, "sluice_route_fetches_total"),
             "whole": sum(metric(u, 'sluice_kv_transfer_fetches_total{result="whole"}') for u in workers),
             "split": max(metric(u, "vllm:prompt_tokens_total") for u in workers) / tokens, "mean": sum(times) / len(times), "p90": times[len(times) * 9 // 10], "took": took}
    for process in reversed(processes):
        process.terminate()
        process.wait(60)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--prefixes", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    for _ in range(options.rounds):
        for fetch in (False, True):
            r = run(options, fetch)
            print(f"{'with fetches' if fetch else 'without':14} hits {r['hits']:6.1%}, computed {r['computed']:6.0f} tokens, "
                  f"fetches {r['fetches']:.0f} ({r['whole']:.0f} whole), "
                  f"busier worker {r['split']:.0%}, answers {r['mean']:.2f} s mean, {r['p90']:.2f} s p90, "
                  f"{r['took']:.1f} s in all", flush=True)


if __name__ == "__main__":
    main()
