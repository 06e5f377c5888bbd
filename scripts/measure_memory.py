#!/usr/bin/env python3
"""The memory ledger of `sluice inspect` beside the peak resident memory of a server whose KV pool was used whole.

    scripts/measure_memory.py [BINARY] [--kv-memory 256M] [MODEL[:FORMAT] ...]

The ledger is what `inspect --json` says of the same options, from the headers alone. The server gets prompts of token
ids until every KV block has held something, steps of the whole budget, and a step of as many sequences as it may run;
its peak is VmHWM. Prints a table and exits 1 when a model's ledger is off by more than --tolerance (2 %).
"""

import argparse
import concurrent.futures
import json
import pathlib
import random
import re
import subprocess
import sys
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFAULT = ["smollm2", "random:qwen2.5-0.5b@q4_0", "random:qwen2.5-0.5b@f16", "random:qwen3-0.6b@q8_0",
           "random:qwen2.5-1.5b@q4_k", "random:smollm2-135m@q8_0", "random:smollm2-135m@f16"]
SEQUENCES = 16


def options(model, kv):
    name, _, form = model.partition("@")
    args = [name, "--kv-memory", kv, "--ctx", "1024", "--max-seqs", str(SEQUENCES)]
    return args + (["--format", form] if form else [])


def ledger(binary, model, kv):
    out = subprocess.run([binary, "inspect", *options(model, kv), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(out.stdout)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def peak(binary, model, kv, info):
    """Bytes at the peak of a server that has touched all of its KV pool."""
    process = subprocess.Popen([binary, "serve", *options(model, kv), "--port", "0", "--served-model-name", "m"],
                               stderr=subprocess.PIPE, text=True)
    try:
        url = next(m[1] for line in process.stderr if (m := re.search(r"ready on (http://\S+)", line)))
        rng = random.Random(1)
        positions = info["ledger"]["kv"] // info["ledger"]["kv_per_token"]

        def complete(num_prompt, num_output):
            prompt = [rng.randrange(info["vocab"] - 1) for _ in range(num_prompt)]
            post(url + "/v1/completions", {"prompt": prompt, "max_tokens": num_output, "temperature": 0})

        for _ in range(positions // 1000 + 2):  # cached prefixes stay, so each prompt takes new blocks
            complete(1000, 2)
        with concurrent.futures.ThreadPoolExecutor(SEQUENCES) as pool:  # every row of logits
            list(pool.map(lambda _: complete(8, 24), range(SEQUENCES)))
        text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024
    finally:
        process.terminate()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", default=str(ROOT / "build/release/sluice"))
    parser.add_argument("models", nargs="*", default=DEFAULT)
    parser.add_argument("--kv-memory", default="256M")
    parser.add_argument("--tolerance", type=float, default=0.02)
    args = parser.parse_args()
    bad = 0
    print(f"{'model':28} {'weights':>9} {'KV':>9} {'workspace':>9} {'program':>9} {'ledger':>9} {'peak RSS':>9} {'off':>7}")
    for model in args.models:
        info = ledger(args.binary, model, args.kv_memory)
        parts = [info["ledger"][k] for k in ("weights", "kv", "workspace", "program")]
        total, measured = sum(parts), peak(args.binary, model, args.kv_memory, info)
        off = total / measured - 1
        bad += abs(off) > args.tolerance
        print(f"{model:28} " + " ".join(f"{p / 1e6:8.1f}M" for p in (*parts, total, measured)) + f" {off:+7.1%}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
