#!/usr/bin/env python3
"""Prefill and decode of one stream, sluice and llama.cpp side by side on the same GGUF and threads.

  python3 -m venv V && V/bin/pip install llama-cpp-python      (builds llama.cpp for this machine)
  V/bin/python scripts/compare_llama_cpp.py MODEL.gguf [--sluice build/release/sluice] [--threads 2]

Rounds alternate between the two, so that a noisy machine is as unfair to one as to the other; the best
and the median of each are printed.
"""
import argparse
import json
import random
import statistics
import subprocess
import time


def run_sluice(args):
    command = [args.sluice, "bench", "latency", args.model, "--input", str(args.input), "--output",
               str(args.output + 1), "--repeat", "1", "-t", str(args.threads), "--json", "-q"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return args.input / result["ttft_s"]["p50"], 1 / result["itl_s"]["mean"]


def run_llama(llama, args):
    rng = random.Random(1)
    prompt = [rng.randrange(100, llama.n_vocab() - 1) for _ in range(args.input)]
    llama.reset()
    begin = time.perf_counter()
    llama.eval(prompt)
    prefill = args.input / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(args.output):
        llama.eval([llama.sample(temp=0.0)])
    return prefill, args.output / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--sluice", default="build/release/sluice")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-extra-buffers", action="store_true",
                        help="keep llama.cpp from repacking (its AMX path dies where the kernel forbids AMX)")
    args = parser.parse_args()
    import llama_cpp
    if args.no_extra_buffers:
        module = llama_cpp.llama_cpp
        defaults = module.llama_model_default_params

        def without_extra_buffers():
            params = defaults()
            params.use_extra_bufts = False
            return params

        module.llama_model_default_params = without_extra_buffers
    llama = llama_cpp.Llama(args.model, n_ctx=args.input + args.output + 8, n_batch=512, n_threads=args.threads,
                            n_threads_batch=args.threads, verbose=False)
    rows = {"sluice": [], "llama.cpp": []}
    run_llama(llama, args)
    for _ in range(args.rounds):
        rows["sluice"].append(run_sluice(args))
        rows["llama.cpp"].append(run_llama(llama, args))
    print(f"{'':12} {'prefill ' + str(args.input) + ', tok/s':>24} {'decode, tok/s':>24}   (best / median of {args.rounds})")
    for name, values in rows.items():
        cells = [f"{max(v):.1f} / {statistics.median(v):.1f}" for v in zip(*values)]
        print(f"{name:12} {cells[0]:>24} {cells[1]:>24}")
    ratio = [max(a) / max(b) for a, b in zip(zip(*rows["sluice"]), zip(*rows["llama.cpp"]))]
    print(f"{'ratio':12} {ratio[0]:>24.2f} {ratio[1]:>24.2f}   llama-cpp-python {llama_cpp.__version__}")


if __name__ == "__main__":
    main()
