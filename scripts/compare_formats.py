#!/usr/bin/env python3
"""One model in every format that `sluice quantize` writes and every form that `--quantize` makes of it at load:
memory, perplexity and speed, as a table.

    scripts/compare_formats.py TEXT [--model smollm2] [--binary build/release/sluice] [--windows 64] [--threads 2]
                               [--types f16 q8_0 w8a8 ...] [--source f16] [--exclude ffn_down,token_embd] [--no-speed]

The first line is the model as it is. w8a8, w4 and u8 are made from the model in --source, with and without --exclude
(an empty one: only without); what is excluded stays in the source's format. Perplexity: windows of --ctx tokens. Speed: `bench latency`, best of --repeat; decode of
--users requests at once: `bench throughput`.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = ["f32", "f16", "bf16", "q8_0", "q6_k", "q4_k", "q4_0"]
AT_LOAD = ["w8a8", "w4", "u8"]


def run(*args):
    out = subprocess.run([str(a) for a in args], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(out.stdout)


def measure(args, name, path, flags):
    flags = ["--device", "cpu", *flags]
    size = run(args.binary, "inspect", path, "--json", *flags)["ledger"]["weights"]
    cells = [name, f"{size / 1e6:.1f}"]
    if args.windows > 0:
        p = run(args.binary, "perplexity", path, args.text, "--ctx", args.ctx, "--windows", args.windows, "--json",
                "-t", args.threads, *flags)
        cells.append(f"{p['perplexity']:.3f} ± {p['perplexity_error']:.2f}")
    if args.speed:
        one = run(args.binary, "bench", "latency", path, "-t", args.threads, "--input", 512, "--output", 64,
                  "--repeat", args.repeat, "--json", *flags)
        many = run(args.binary, "bench", "throughput", path, "-t", args.threads, "--requests", args.users,
                   "--input", 16, "--output", 64, "--repeat", args.repeat, "--json", *flags)
        cells += [f"{1 / one['itl_s']['p50']:.0f}", f"{512 / one['ttft_s']['p50']:.0f}",
                  f"{args.users / many['decode_step_s']['p50']:.0f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--binary", default=str(ROOT / "build/release/sluice"))
    parser.add_argument("--windows", type=int, default=64, help="0: no perplexity")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a window")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--types", nargs="*", default=FILES + AT_LOAD, choices=FILES + AT_LOAD)
    parser.add_argument("--source", default="f16", choices=FILES)
    parser.add_argument("--exclude", default="ffn_down,token_embd")
    parser.add_argument("--no-speed", dest="speed", action="store_false")
    args = parser.parse_args()
    columns = ["format", "weights, MB"] + ["perplexity"] * (args.windows > 0)
    if args.speed:
        columns += ["decode, tokens/s", "prefill 512, tokens/s", f"{args.users} users decoding, tokens/s"]
    print("| " + " | ".join(columns) + " |\n|---" + "|---:" * (len(columns) - 1) + "|")
    measure(args, "as it is", args.model, [])
    with tempfile.TemporaryDirectory() as folder:
        def file_of(kind):
            path = os.path.join(folder, kind + ".gguf")
            if not os.path.exists(path):
                run(args.binary, "quantize", args.model, path, "--type", kind, "--json")
            return path

        for kind in args.types:
            if kind in FILES:
                measure(args, kind, file_of(kind), [])
                if kind != args.source:
                    os.remove(file_of(kind))
                continue
            measure(args, f"`--quantize {kind}`", file_of(args.source), ["--quantize", kind])
            if args.exclude:
                measure(args, f"{kind} but for {args.exclude}", file_of(args.source),
                        ["--quantize", kind, "--quantize-exclude", args.exclude])


if __name__ == "__main__":
    main()
