#!/usr/bin/env python3
"""One model on a GPU with its weights, and its K and V, in every form that a GPU has: memory, perplexity and speed, as
a table of Markdown.

    scripts/compare_gpu_formats.py TEXT [--model smollm2] [--binary build/gpu/sluice] [--windows 64] [--ctx 512]
                                   [--users 64] [--context 1024] [--rows w8a8 int8 ...] [--no-speed]

Rows: the file's weights in 16 bits, `--quantize w8a8` and fp8, as stored, and in Q8_0 and Q4_0 as stored (made of
them); then K and V in f8 and in int8 with a scale per 8, 32 or 64 dimensions; then both. Perplexity: --windows windows
of --ctx tokens, against the first row. Speed: one user's decode, a prompt of 512, and --users decoding after prompts of
--context tokens.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
W8A8, FP8, STORED = ["--quantize", "w8a8"], ["--quantize", "fp8"], ["--gpu-weights", "stored"]
# name: (weights, K and V, the file in this format, flags)
ROWS = {
    "16bit": ("16 bits", "16 bits", None, []),
    "w8a8": ("`--quantize w8a8`", "16 bits", None, W8A8),
    "fp8": ("`--quantize fp8`", "16 bits", None, FP8),
    "stored": ("as stored", "16 bits", None, STORED),
    "q8_0": ("Q8_0, stored", "16 bits", "q8_0", STORED),
    "q4_0": ("Q4_0, stored", "16 bits", "q4_0", STORED),
    "f8": ("16 bits", "`--kv f8`", None, ["--kv", "f8"]),
    "int8:8": ("16 bits", "`--kv int8:8`", None, ["--kv", "int8:8"]),
    "int8": ("16 bits", "`--kv int8`", None, ["--kv", "int8"]),
    "int8:64": ("16 bits", "`--kv int8:64`", None, ["--kv", "int8:64"]),
    "w8a8+int8": ("`--quantize w8a8`", "`--kv int8`", None, W8A8 + ["--kv", "int8"]),
    "fp8+f8": ("`--quantize fp8`", "`--kv f8`", None, FP8 + ["--kv", "f8"]),
    "stored+int8": ("as stored", "`--kv int8`", None, STORED + ["--kv", "int8"]),
}


def run(*args):
    out = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if out.returncode != 0:
        sys.exit(f"{' '.join(str(a) for a in args)}: {out.stderr.strip()}")
    return json.loads(out.stdout)


def speeds(args, path, flags):
    one = run(args.binary, "bench", "latency", path, "--input", 512, "--output", 64, "--repeat", args.repeat, "--json",
              *flags)
    many = run(args.binary, "bench", "throughput", path, "--requests", args.users, "--max-seqs", args.users, "--input",
               args.context, "--output", 64, "--repeat", 1, "--json", *flags)
    return [f"{1 / one['itl_s']['p50']:.0f}", f"{512 / one['ttft_s']['p50']:.0f}",
            f"{args.users / many['decode_step_s']['p50']:.0f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--binary", default=str(ROOT / "build/gpu/sluice"))
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a window")
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--no-speed", dest="speed", action="store_false")
    args = parser.parse_args()
    columns = ["weights", "K and V", "weights, MB", "KV per token, KB", "perplexity", "of the first"]
    if args.speed:
        columns += ["decode, tokens/s", "prompt of 512, tokens/s", f"{args.users} users at {args.context}, tokens/s"]
    print("| " + " | ".join(columns) + " |\n|---|---" + "|---:" * (len(columns) - 2) + "|", flush=True)
    first = None
    with tempfile.TemporaryDirectory() as folder:
        for row in args.rows:
            weights, kv, kind, flags = ROWS[row]
            path = args.model
            if kind:
                path = os.path.join(folder, kind + ".gguf")
                run(args.binary, "quantize", args.model, path, "--type", kind, "--json")
            memory = run(args.binary, "inspect", path, "--json", "--gpu-memory", "80G", *flags)["ledger"]
            flags = ["--device", "cuda", *flags]
            p = run(args.binary, "perplexity", path, args.text, "--ctx", args.ctx, "--windows", args.windows, "--json",
                    *flags)
            first = first or p["perplexity"]
            cells = [weights, kv, f"{memory['weights'] / 1e6:.1f}", f"{memory['kv_per_token'] / 1e3:.1f}",
                     f"{p['perplexity']:.3f} ± {p['perplexity_error']:.2f}",
                     f"{100 * (p['perplexity'] / first - 1):+.2f} %"]
            if args.speed:
                cells += speeds(args, path, flags)
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
