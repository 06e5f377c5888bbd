#!/usr/bin/env python3
"""One model in every format that `sluice quantize` writes: size, perplexity and speed, as a table.

    scripts/compare_formats.py TEXT [--model smollm2] [--binary build/release/sluice] [--windows 64] [--threads 2]

The first line is the model as it is. Perplexity: windows of 512 tokens. Speed: `bench latency`, best of --repeat.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPES = ["f32", "f16", "bf16", "q8_0", "q6_k", "q4_k", "q4_0"]


def run(*args):
    out = subprocess.run([str(a) for a in args], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(out.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--binary", default=str(ROOT / "build/release/sluice"))
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--types", nargs="*", default=TYPES)
    args = parser.parse_args()
    print("| format | weights, MB | perplexity | decode, tokens/s | prefill 512, tokens/s |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for kind in ["as it is", *args.types]:
            path = args.model
            if kind != "as it is":
                path = os.path.join(folder, kind + ".gguf")
                run(args.binary, "quantize", args.model, path, "--type", kind, "--json")
            size = run(args.binary, "inspect", path, "--json")["ledger"]["weights"]
            p = run(args.binary, "perplexity", path, args.text, "--ctx", 512, "--windows", args.windows, "--json",
                    "-t", args.threads)
            speed = run(args.binary, "bench", "latency", path, "-t", args.threads, "--input", 512, "--output", 128,
                        "--repeat", args.repeat, "--json")
            print(f"| {kind} | {size / 1e6:.1f} | {p['perplexity']:.3f} ± {p['perplexity_error']:.2f} | "
                  f"{1 / speed['itl_s']['p50']:.0f} | {512 / speed['ttft_s']['p50']:.0f} |", flush=True)
            if kind != "as it is":
                os.remove(path)


if __name__ == "__main__":
    main()
