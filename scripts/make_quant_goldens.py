#!/usr/bin/env python3
"""Makes tests/golden/quant: tiny random models in the 4-bit layouts of AWQ and GPTQ, with their weights
dequantised and their logits from transformers in fp32.

    python3 -m venv build/venv-goldens
    build/venv-goldens/bin/pip install torch transformers safetensors numpy
    build/venv-goldens/bin/python scripts/make_quant_goldens.py [--out DIR] [--check]

Each case NAME gives:

NAME/                    config.json and model.safetensors, as such a checkpoint is published
NAME.weights.safetensors the dequantised matrices, F32, under their names in the model. Exact, but for
                         gptq-act-order, whose matrices are rounded to halves
NAME.json, NAME.f32      as in tests/golden/models: the tokens, and the logits of the model with those
                         matrices, [positions, vocab]

The layouts, written here from their definition (W is [out, in]; codes q, zero points z and scales s are
shared by groups of columns; W = s (q - z)):

awq (gemm)  qweight [in, out / 8], qzeros [groups, out / 8]: an int32 holds eight outputs, its code i being
            output 8 j + (0, 2, 4, 6, 1, 3, 5, 7)[i]. scales [groups, out] F16.
gptq        qweight [in / 8, out]: an int32 holds eight inputs, lowest bits first. qzeros [groups, out / 8]:
            eight outputs, lowest bits first, and one less than the zero point (gptq_v2: the zero point
            itself). scales [groups, out] F16. g_idx [in]: the group of each input.
"""

import argparse
import dataclasses
import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

VOCAB, NUM_TOKENS = 96, 24
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclasses.dataclass
class Case:
    name: str
    seed: int
    family: str  # llama or qwen2
    method: str  # awq or gptq
    group: int   # -1: all columns
    version: str = ""  # checkpoint_format of gptq
    symmetric: bool = False
    act_order: bool = False


CASES = [
    Case("awq", 1, "llama", "awq", 32),
    Case("gptq", 2, "llama", "gptq", 64, "gptq"),
    Case("gptq-v2", 3, "qwen2", "gptq", -1, "gptq_v2", symmetric=True),
    Case("gptq-act-order", 4, "qwen2", "gptq", 32, "gptq", act_order=True),
]


def hf_config(case):
    cls = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[case.family]
    return cls(vocab_size=VOCAB, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
               num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
               rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
               pad_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def quantise(weight, case, rng):
    """codes [out, in], zero points [out, groups], scales [out, groups], group of each column."""
    rows, cols = weight.shape
    size = cols if case.group == -1 else case.group
    groups = np.arange(cols) // size
    if case.act_order:
        groups = groups[rng.permutation(cols)]
    num = cols // size
    zeros, scales = np.zeros((rows, num), int), np.zeros((rows, num), np.float16)
    codes = np.zeros((rows, cols), int)
    for g in range(num):
        part = weight[:, groups == g]
        if case.symmetric:
            low = -np.abs(part).max(axis=1)
            scales[:, g], zeros[:, g] = -low / 7.5, 8
        else:
            low, high = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
            scales[:, g] = (high - low) / 15
            # gptq's first version cannot store a zero point of 0.
            zeros[:, g] = np.clip(np.round(-low / scales[:, g].astype(np.float64)),
                                  1 if case.version == "gptq" else 0, 15)
        s = scales[:, g].astype(np.float64)[:, None]
        codes[:, groups == g] = np.clip(np.round(part / s) + zeros[:, g][:, None], 0, 15)
    return codes, zeros, scales, groups


def dequantise(codes, zeros, scales, groups, rounded):
    values = scales.astype(np.float32)[:, groups] * (codes - zeros[:, groups]).astype(np.float32)
    return values.astype(np.float16).astype(np.float32) if rounded else values


def pack_words(codes, order=range(8)):
    """[n, 8 m] codes -> [n, m] int32: code i of a word is element order[i] of its eight."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for i, place in enumerate(order):
        words |= codes[:, place::8].astype(np.uint32) << np.uint32(4 * i)
    return words.view(np.int32)


def pack(case, codes, zeros, scales, groups):
    if case.method == "awq":
        return {"qweight": pack_words(codes.T, AWQ_ORDER), "qzeros": pack_words(zeros.T, AWQ_ORDER),
                "scales": np.ascontiguousarray(scales.T)}
    stored = zeros - 1 if case.version == "gptq" else zeros
    return {"qweight": np.ascontiguousarray(pack_words(codes).T), "qzeros": pack_words(stored.T),
            "scales": np.ascontiguousarray(scales.T), "g_idx": groups.astype(np.int32)}


def make_case(case):
    """Tensors of the checkpoint, of the model, and the dequantised matrices, by name."""
    rng = np.random.Generator(np.random.PCG64(case.seed))
    model = transformers.AutoModelForCausalLM.from_config(hf_config(case))
    stored, full, matrices = {}, {}, {}
    for name, value in model.state_dict().items():
        shape = tuple(value.shape)
        if name == "lm_head.weight":
            continue
        if name.endswith("_proj.weight"):
            gain = 1.5 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.0
            weight = rng.standard_normal(shape) * gain / np.sqrt(shape[1])
            parts = quantise(weight, case, rng)
            matrices[name] = full[name] = dequantise(*parts, rounded=case.act_order)
            for kind, words in pack(case, *parts).items():
                stored[name.removesuffix("weight") + kind] = np.ascontiguousarray(words)
            continue
        middle, spread = (1, 0.2) if "norm" in name else (0, 0.5)
        stored[name] = (middle + spread * rng.standard_normal(shape)).astype(np.float16)
        full[name] = stored[name].astype(np.float32)
    if case.method == "gptq" and case.family == "llama":  # as quantisers leave them
        stored["model.layers.0.mlp.down_proj.bias"] = np.zeros(64, np.float16)
    tokens = [int(t) for t in rng.integers(0, VOCAB, NUM_TOKENS)]
    return stored, full, matrices, tokens


def logits_of(case, full, tokens):
    config = hf_config(case)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    missing, unexpected = model.load_state_dict({n: torch.from_numpy(v) for n, v in full.items()}, strict=False)
    if unexpected or [n for n in missing if n != "lm_head.weight"]:
        sys.exit(f"{case.name}: missing {missing}, unexpected {unexpected}")
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def config_json(case):
    config = json.loads(hf_config(case).to_json_string())
    quant = {"quant_method": case.method, "bits": 4, "group_size": case.group}
    if case.method == "awq":
        quant |= {"version": "gemm", "zero_point": True, "modules_to_not_convert": None}
    else:
        quant |= {"desc_act": case.act_order, "sym": case.symmetric, "checkpoint_format": case.version}
    config["architectures"] = [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[case.family]]
    config["quantization_config"] = quant
    return json.dumps(config, indent=1) + "\n"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="tiny 4-bit models and their logits")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/quant")
    parser.add_argument("--check", action="store_true", help="compare with what is stored; write nothing")
    args = parser.parse_args()
    for case in CASES:
        stored, full, matrices, tokens = make_case(case)
        logits = logits_of(case, full, tokens)
        folder = args.out / case.name
        if args.check:
            old = np.fromfile(args.out / f"{case.name}.f32", "<f4").reshape(logits.shape)
            error = float(np.abs(old - logits).max() / np.abs(old).max())
            same = all(np.array_equal(v, stored[n]) for n, v in load_file(folder / "model.safetensors").items())
            print(f"{case.name}: logits differ by {error:.1e}, tensors {'agree' if same else 'differ'}")
            if error > 1e-5 or not same:
                sys.exit(1)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(config_json(case))
        save_file(matrices, args.out / f"{case.name}.weights.safetensors")
        (args.out / f"{case.name}.f32").write_bytes(logits.astype("<f4").tobytes())
        info = {"shape": list(logits.shape), "tokens": tokens}
        (args.out / f"{case.name}.json").write_text(json.dumps(info) + "\n")
        print(f"{case.name}: {sum(v.nbytes for v in stored.values())} bytes, largest logit {np.abs(logits).max():.1f}")


if __name__ == "__main__":
    main()
