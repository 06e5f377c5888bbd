#!/usr/bin/env python3
"""The least time that a GPU needs for a throughput workload whose requests are all there from the start.

  scripts/throughput_floor.py SHAPE [--requests 256] [--input 100-1024] [--output 100-1024]
                              [--copy 4.24] [--rate 720]

SHAPE is a name in shapes/ (qwen3-0.6b). A step of decodes reads K and V, and reads the weights (16 bits) or computes,
whichever takes longer; prompts compute. --copy is memory in TB/s, --rate products in TFLOP/s, as `sluice bench gpu`
measures them. Lengths are drawn evenly by Python's own generator (seed 0). Attention's arithmetic between decodes,
launches, norms and sampling count nothing.
"""
import argparse
import json
import pathlib
import random


def span(text):
    low, _, high = text.partition("-")
    try:
        low, high = int(low), int(high or low)
    except ValueError:
        low = 0
    if not 1 <= low <= high <= 1 << 20:
        raise argparse.ArgumentTypeError(f"'{text}': a length like 1024, or a range like 100-1024")
    return low, high


def positive(kind):
    def read(text):
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"'{text}': a number above 0")
        return value

    return read


def main():
    shapes = pathlib.Path(__file__).resolve().parent.parent / "shapes"
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", choices=sorted(f.stem for f in shapes.glob("qwen*.json")), metavar="SHAPE")
    p.add_argument("--requests", type=positive(int), default=256)
    p.add_argument("--input", type=span, default=(100, 1024))
    p.add_argument("--output", type=span, default=(100, 1024))
    p.add_argument("--copy", type=positive(float), default=4.24)
    p.add_argument("--rate", type=positive(float), default=720)
    o = p.parse_args()
    copy, rate = o.copy * 1e12, o.rate * 1e12
    s = json.loads((shapes / f"{o.shape}.json").read_text())
    hidden, layers, heads = s["hidden_size"], s["num_hidden_layers"], s["num_attention_heads"]
    kv_heads, dim = s["num_key_value_heads"], s.get("head_dim") or hidden // heads
    weights = layers * hidden * (2 * heads * dim + 2 * kv_heads * dim + 3 * s["intermediate_size"])
    with_output = weights + s["vocab_size"] * hidden
    random.seed(0)
    inputs = [random.randint(*o.input) for _ in range(o.requests)]
    outputs = [random.randint(*o.output) for _ in range(o.requests)]
    attended = sum(4 * layers * heads * dim * n * n / 2 for n in inputs)
    prompts = (2 * weights * sum(inputs) + attended) / rate
    steps = positions = 0
    for t in range(1, max(outputs)):
        live = [n + t for n, last in zip(inputs, outputs) if last > t]
        steps += max(2 * with_output / copy, 2 * len(live) * with_output / rate)
        positions += sum(live)
    kv = positions * layers * kv_heads * dim * 2 * 2 / copy
    total = prompts + steps + kv
    print(f"{o.shape}: {total:.2f} s, {sum(outputs) / total:,.0f} output tokens/s"
          f" (K and V {kv:.2f} s, steps {steps:.2f}, prompts {prompts:.2f})")


if __name__ == "__main__":
    main()
