#!/usr/bin/env python3
"""Writes tests/golden/formats.json: blocks of every format and the values an independent decoder
gives them (the PyPI packages gguf and numpy). Needs: pip install gguf numpy."""

import json
import pathlib

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "formats.json"
NAMES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q6_K", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
         "IQ4_NL", "MXFP4"]
# Where a block holds its halves.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q6_K": [208], "Q5_0": [0], "Q5_1": [0, 2],
          "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "IQ4_NL": [0], "MXFP4": []}


def random_blocks(rng, name, num):
    """Arbitrary bytes, with finite scales."""
    kind = gguf.GGMLQuantizationType[name]
    elems, size = gguf.GGML_QUANT_SIZES[kind]
    if elems == 1:
        bits = rng.integers(0, 0x7C00 if name == "F16" else 0x7F80, size=64, dtype=np.uint16)
        bits |= rng.integers(0, 2, size=64, dtype=np.uint16) << 15
        bits[:6] = [0, 0x8000, 1, 0x3FF, 0x400, 0x3C00]
        return bits.view(np.uint8)
    blocks = rng.integers(0, 256, size=(num, size), dtype=np.uint8)
    for at in HALVES[name]:
        scale = (rng.standard_normal(num) * 0.1).astype(np.float16)
        scale[0] = np.float16(2.0**-24)  # a subnormal
        blocks[:, at : at + 2] = scale.reshape(-1, 1).view(np.uint8)
    return blocks.reshape(-1)


def bits_of(values):
    return np.ascontiguousarray(values, dtype="<f4").tobytes().hex()


def main():
    rng = np.random.default_rng(7)
    decode = []
    for name in NAMES:
        blocks = random_blocks(rng, name, 2 if name.endswith("_K") else 4)
        values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
        decode.append({"format": name, "blocks": blocks.tobytes().hex(), "f32": bits_of(values)})
    encode = []
    values = rng.standard_normal(128).astype(np.float32)
    values[96:] = 0
    for name in ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"]:
        blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
        encode.append({"format": name, "f32": bits_of(values), "blocks": blocks.tobytes().hex()})
    OUT.parent.mkdir(parents=True, exist_ok=True)
    lines = lambda rows: ",\n".join("  " + json.dumps(row) for row in rows)
    OUT.write_text('{"decode": [\n%s\n], "encode": [\n%s\n]}\n' % (lines(decode), lines(encode)))


if __name__ == "__main__":
    main()
