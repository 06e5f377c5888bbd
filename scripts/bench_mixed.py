#!/usr/bin/env python3
"""Steps that run prompts and decodes, by their rows: throughput and latency of closed-loop users over HTTP.

  scripts/bench_mixed.py [BINARY] [--model random:qwen2.5-7b] [--users 256] [--input 512] [--output 128]
                         [--settings 'mixed=0,mixed=1024,chunk=512,...']

A setting is mixed=N (--mixed-budget N) or chunk=N (--chunk N), one server each, in the order given; name the first one
last again to see the noise. The table kGpuMixedBudgets of src/runtime/placement.cc is filled in from this.
"""
import argparse
import json
import subprocess
import sys

from bench_cpu import free_port, header, row, wait_until_ready

SETTINGS = "mixed=0,mixed=512,mixed=768,mixed=1024,mixed=1280,mixed=1536,mixed=2048,chunk=512,mixed=0"


def run(args, setting):
    kind, number = setting.split("=")
    flag = {"mixed": "--mixed-budget", "chunk": "--chunk"}[kind]
    port = free_port()
    server = subprocess.Popen([args.binary, "serve", args.model, "--format", args.format, "--device", args.device,
                               "--port", str(port), "--max-seqs", str(args.users), flag, number, "-q", *args.serve.split()],
                              stdout=subprocess.DEVNULL)
    try:
        wait_until_ready(port)
        command = [args.binary, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--endpoint", "completions",
                   "--token-ids", "--concurrency", str(args.users), "--requests", str(args.requests), "--input", args.input,
                   "--output", args.output, "--seed", "1", "--json", "-"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout.strip().splitlines()[-1])["runs"][0]
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", nargs="?", default="build/gpu/sluice")
    parser.add_argument("--model", default="random:qwen2.5-7b")
    parser.add_argument("--format", default="bf16", help="of random weights")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--users", type=int, default=256)
    parser.add_argument("--requests", type=int, default=1024, help="for each setting")
    parser.add_argument("--input", default="512")
    parser.add_argument("--output", default="128")
    parser.add_argument("--settings", default=SETTINGS)
    parser.add_argument("--serve", default="", help="more options of the server, as in --serve='--quantize fp8 --kv f8'")
    parser.add_argument("--json", help="file for all results")
    args = parser.parse_args()
    settings = args.settings.split(",")
    for s in settings:
        if not s.startswith(("mixed=", "chunk=")) or not s.split("=")[1].isdigit():
            sys.exit(f"--settings {s}: use mixed=N and chunk=N")
    print(f"{args.users} users over HTTP, {args.input} in, {args.output} out, {args.model} {args.serve}\n")
    header("setting", "output tokens/s", "ITL p50, ms", "ITL p99, ms", "TTFT p50, ms", "TTFT p99, ms", "failed")
    results = {}
    for s in settings:
        r = run(args, s)
        results.setdefault(s, []).append(r)
        ms = lambda values, p: f"{values[p] * 1e3:.1f}"
        row(s, f"{r['output_tokens_per_s']:.0f}", ms(r["itl_s"], "p50"), ms(r["itl_s"], "p99"), ms(r["ttft_s"], "p50"),
            ms(r["ttft_s"], "p99"), sum(r["failures"].values()))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f)


if __name__ == "__main__":
    main()
