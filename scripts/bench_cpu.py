#!/usr/bin/env python3
"""The CPU's figures of docs/performance.md in one run: one stream, a long prompt, sixteen users, and the server.

  scripts/bench_cpu.py [BINARY] [--model random:qwen2.5-0.5b ...] [--formats q8_0,w8a8,...] [--parts decode,...]

Run it on a quiet machine; every figure is the best of --repeat, beside the limit that the same run measured.
Formats are files' (q8_0, q4_0, bf16, ...) or made at load from q8_0 (w8a8, w4, u8).
"""
import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request

AT_LOAD = ("w8a8", "w4", "u8")
FORMATS = "q8_0,w8a8,q4_0,q4_k,w4,u8,bf16,f16"


def engine_options(model, form, threads):
    source, quantize = ("q8_0", ["--quantize", form]) if form in AT_LOAD else (form, [])
    return [model, "--format", source, "-t", str(threads), "--device", "cpu", *quantize]


def bench(args, kind, model, form, *more):
    command = [args.binary, "bench", kind, *engine_options(model, form, args.threads), "--repeat", str(args.repeat),
               "--json", "-q", *map(str, more)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def int8_peak(result):
    peaks = result.get("peak_ops_per_s", {})
    whole = {k: v for k, v in peaks.items() if any(word in k for word in ("tdpbssd", "vpdpbusd", "vpmaddubsw", "mmla", "dot"))
             and "bf" not in k}
    return max(whole.items(), key=lambda kv: kv[1], default=("", 0))


def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)


def header(*cells):
    row(*cells)
    row(*("---" if i == 0 else "---:" for i in range(len(cells))))


def decode(args):
    print("\nOne stream, context 128, of the read bandwidth measured in the same run:\n")
    header("model, format", "tokens/s", "GB/s", "limit", "of it")
    for model in args.model:
        for form in args.formats:
            r = bench(args, "latency", model, form, "--input", 128, "--output", 65)
            step, limit = r["decode_step_s"]["p50"], r["read_bandwidth_bytes_per_s"]
            rate = r["step_bytes"] / step
            row(f"{model} {form}", f"{1 / step:.1f}", f"{rate / 1e9:.1f}", f"{limit / 1e9:.1f}", f"{rate / limit:.0%}")


def prefill(args):
    print("\nA prompt of 512 tokens, whole model, of the int8 peak:\n")
    header("model, format", "tokens/s", "Gop/s", "of peak")
    for model in args.model:
        for form in args.formats:
            r = bench(args, "latency", model, form, "--input", 512, "--output", 2)
            name, peak = int8_peak(r)
            ops = r["prefill_ops_per_s"]
            row(f"{model} {form}", f"{512 / r['ttft_s']['p50']:.0f}", f"{ops / 1e9:.0f}",
                f"{ops / peak:.0%} ({name})" if peak else "-")


def users(args):
    print("\nSixteen users decoding (16 in, 64 out):\n")
    header("model, format", "tokens/s", "step, ms")
    for form in args.formats:
        r = bench(args, "throughput", args.model[0], form, "--requests", 16, "--input", 16, "--output", 64)
        step = r["decode_step_s"]["p50"]
        row(f"{args.model[0]} {form}", f"{16 / step:.0f}", f"{step * 1e3:.1f}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until_ready(port):
    for _ in range(1200):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    sys.exit("the server did not become ready")


def http(args):
    print("\nSixteen closed-loop users over HTTP, 128 in, output as given; the load generator on the same cores:\n")
    header("model, format", "output", "tokens/s", "TTFT p50, ms", "ITL p50, ms", "ITL p99, ms")
    for form in args.formats:
        port = free_port()
        server = subprocess.Popen([args.binary, "serve", *engine_options(args.model[0], form, args.threads), "--port",
                                   str(port), "--max-seqs", "16", "--ctx", "512", "-q", *args.serve.split()],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until_ready(port)
            for output in ("64", "32-96"):
                command = [args.binary, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--endpoint", "completions",
                           "--token-ids", "--concurrency", "16", "--requests", str(args.requests), "--input", "128",
                           "--output", output, "--seed", "1", "--json", "-"]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                r = json.loads(done.stdout.strip().splitlines()[-1])["runs"][0]
                ms = lambda d, p: f"{d[p] * 1e3:.0f}" if d[p] < 10 else f"{d[p]:.0f}"
                row(f"{args.model[0]} {form}", output, f"{r['output_tokens_per_s']:.0f}", ms(r["ttft_s"], "p50"),
                    ms(r["itl_s"], "p50"), ms(r["itl_s"], "p99"))
        finally:
            server.terminate()
            server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", nargs="?", default="build/release/sluice")
    parser.add_argument("--model", nargs="+", default=["random:qwen2.5-0.5b", "random:qwen2.5-1.5b"])
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--parts", default="decode,prefill,users,http")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64, help="over HTTP, for each line")
    parser.add_argument("--serve", default="", help="more options of the server, as in --serve='--chunk 0'")
    args = parser.parse_args()
    args.formats = args.formats.split(",")
    parts = {"decode": decode, "prefill": prefill, "users": users, "http": http}
    for part in args.parts.split(","):
        if part not in parts:
            sys.exit(f"--parts {part}: use {', '.join(parts)}")
        parts[part](args)


if __name__ == "__main__":
    main()
