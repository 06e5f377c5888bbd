#!/usr/bin/env python3
"""Prefill and decode of one stream, sluice and OpenVINO GenAI side by side on the same GGUF and threads.

  python3 -m venv V && V/bin/pip install openvino-genai==2026.4.1.0
  V/bin/python scripts/compare_openvino.py MODEL.gguf [--sluice build/release/sluice] [--threads 2]

OpenVINO reads GGUF files of some families and formats itself (Q8_0, Q4_0, Q4_K_M, F16). Rounds alternate between the two, so
that a noisy machine is as unfair to one as to the other; the best and the median of each are printed.
"""
import argparse
import json
import random
import statistics
import subprocess


def run_sluice(args):
    command = [args.sluice, "bench", "latency", args.model, "--device", "cpu", "--input", str(args.input), "--output",
               str(args.output + 1), "--repeat", "1", "-t", str(args.threads), "--json", "-q"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return args.input / result["ttft_s"]["p50"], 1 / result["itl_s"]["mean"]


def run_openvino(pipe, args, seed):
    import numpy
    import openvino
    import openvino_genai
    # Other tokens every round: a cache of prefixes must not help.
    rng = random.Random(seed)
    ids = numpy.array([[rng.randrange(100, 5000) for _ in range(args.input)]], dtype=numpy.int64)
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    config = openvino_genai.GenerationConfig(max_new_tokens=args.output + 1, ignore_eos=True, do_sample=False)
    metrics = pipe.generate(inputs, config).perf_metrics
    count = metrics.get_num_generated_tokens()
    if count != args.output + 1:
        raise SystemExit(f"OpenVINO generated {count} tokens instead of {args.output + 1}")
    return args.input / (metrics.get_ttft().mean / 1000), 1000 / metrics.get_tpot().mean


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--sluice", default="build/release/sluice")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=["f32", "f16", "bf16"],
                        help="of OpenVINO's arithmetic (default: its own choice, which fails on some 64-bit ARM CPUs)")
    args = parser.parse_args()
    import openvino_genai
    properties = {"INFERENCE_NUM_THREADS": args.threads}
    if args.precision:
        properties["INFERENCE_PRECISION_HINT"] = args.precision
    pipe = openvino_genai.LLMPipeline(args.model, "CPU", **properties)
    rows = {"sluice": [], "OpenVINO": []}
    run_openvino(pipe, args, 0)
    for i in range(args.rounds):
        rows["sluice"].append(run_sluice(args))
        rows["OpenVINO"].append(run_openvino(pipe, args, i + 1))
    print(f"{'':12} {'prefill ' + str(args.input) + ', tok/s':>24} {'decode, tok/s':>24}   (best / median of {args.rounds})")
    for name, values in rows.items():
        cells = [f"{max(v):.1f} / {statistics.median(v):.1f}" for v in zip(*values)]
        print(f"{name:12} {cells[0]:>24} {cells[1]:>24}")
    ratio = [max(a) / max(b) for a, b in zip(zip(*rows["sluice"]), zip(*rows["OpenVINO"]))]
    print(f"{'ratio':12} {ratio[0]:>24.2f} {ratio[1]:>24.2f}   openvino-genai {openvino_genai.__version__}")


if __name__ == "__main__":
    main()
