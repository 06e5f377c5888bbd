#!/usr/bin/env python3
"""Makes tests/golden/quant: tiny random models in the layouts of AWQ, GPTQ, compressed-tensors and fp8, with
their weights dequantised and their logits from transformers in fp32.

    python3 -m venv build/venv-goldens
    build/venv-goldens/bin/pip install torch transformers safetensors numpy compressed-tensors
    build/venv-goldens/bin/python scripts/make_quant_goldens.py [--out DIR] [--check] [CASE...]

Each case NAME gives:

NAME/                    config.json and model.safetensors, as such a checkpoint is published
NAME.weights.safetensors of some, the dequantised matrices under their names in the model: F32, exact; or F16
                         or BF16, rounded, where sluice decodes them to that
NAME.json, NAME.f32      the tokens, the format that sluice stores the matrices in, and the logits of the model
                         with those matrices, [positions, vocab]

compressed-tensors: the PyPI package of that name compresses the weights, writes their settings and decompresses
them for the reference. The other layouts, written here from their definition (W is [out, in]; codes q, zero
points z and scales s are shared by groups of columns; W = s (q - z)):

awq (gemm)  qweight [in, out / 8], qzeros [groups, out / 8]: an int32 holds eight outputs, its code i being
            output 8 j + (0, 2, 4, 6, 1, 3, 5, 7)[i]. scales [groups, out] F16.
gptq        qweight [in / n, out]: an int32 holds n = 32 / bits inputs, lowest bits first. qzeros
            [groups, out / n]: n outputs, lowest bits first, and one less than the zero point (gptq_v2: the
            zero point itself). scales [groups, out] F16. g_idx [in]: the group of each input.
fp8         weight [out, in] F8_E4M3, weight_scale_inv [out / 128, in / 128] F32, for blocks of such a size.
"""

import argparse
import dataclasses
import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

VOCAB, NUM_TOKENS = 96, 24
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclasses.dataclass
class Case:
    name: str
    seed: int
    family: str  # llama or qwen2
    method: str  # awq, gptq, fp8, or a format of compressed-tensors
    group: int   # -1: all columns
    version: str = ""  # checkpoint_format of gptq
    symmetric: bool = False
    act_order: bool = False
    bits: int = 4
    strategy: str = "group"  # compressed-tensors
    becomes: str = "INT4"
    matrices: bool = True  # kept, not only the logits

    def rounded(self, matrix):
        """As sluice decodes it."""
        kind = {"F16": torch.float16, "BF16": torch.bfloat16}.get(self.becomes, torch.float32)
        return torch.from_numpy(matrix).to(kind).to(torch.float32).numpy()


BLOCK = (24, 16)  # of fp8, that fits no matrix evenly
CASES = [
    Case("awq", 1, "llama", "awq", 32),
    Case("gptq", 2, "llama", "gptq", 64, "gptq"),
    Case("gptq-v2", 3, "qwen2", "gptq", -1, "gptq_v2", symmetric=True),
    Case("gptq-act-order", 4, "qwen2", "gptq", 32, "gptq", act_order=True, becomes="F16"),
    Case("gptq-8", 5, "llama", "gptq", 32, "gptq", symmetric=True, bits=8, becomes="Q8_0"),
    Case("gptq-8-zeros", 6, "qwen2", "gptq", 32, "gptq_v2", bits=8, becomes="F16", matrices=False),
    Case("ct-w4", 7, "llama", "pack-quantized", 32),
    Case("ct-w4-channel", 8, "qwen2", "pack-quantized", -1, symmetric=True, strategy="channel",
         matrices=False),
    Case("ct-w8", 9, "llama", "int-quantized", -1, symmetric=True, bits=8, strategy="channel", becomes="Q8_0",
         matrices=False),
    Case("ct-fp8", 10, "llama", "float-quantized", -1, symmetric=True, bits=8, strategy="channel",
         becomes="BF16"),
    Case("ct-fp8-tensor", 11, "qwen2", "float-quantized", -1, symmetric=True, bits=8, strategy="tensor",
         becomes="BF16", matrices=False),
    Case("ct-mxfp4", 13, "llama", "mxfp4-pack-quantized", 32, symmetric=True, becomes="MXFP4"),
    Case("fp8-block", 12, "qwen2", "fp8", -1, bits=8, becomes="BF16", matrices=False),
]


def hf_config(case):
    cls = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[case.family]
    hidden = 64 if case.seed < 5 else 32
    return cls(vocab_size=VOCAB, hidden_size=hidden, intermediate_size=64, num_hidden_layers=1,
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
    top = 2**case.bits - 1
    zeros, scales = np.zeros((rows, num), int), np.zeros((rows, num), np.float16)
    codes = np.zeros((rows, cols), int)
    for g in range(num):
        part = weight[:, groups == g]
        if case.symmetric:
            low = -np.abs(part).max(axis=1)
            scales[:, g], zeros[:, g] = -low / (top / 2), (top + 1) // 2
        else:
            low, high = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
            scales[:, g] = (high - low) / top
            # gptq's first version cannot store a zero point of 0.
            zeros[:, g] = np.clip(np.round(-low / scales[:, g].astype(np.float64)),
                                  1 if case.version == "gptq" else 0, top)
        s = scales[:, g].astype(np.float64)[:, None]
        codes[:, groups == g] = np.clip(np.round(part / s) + zeros[:, g][:, None], 0, top)
    return codes, zeros, scales, groups


def dequantise(codes, zeros, scales, groups):
    return scales.astype(np.float32)[:, groups] * (codes - zeros[:, groups]).astype(np.float32)


def pack_words(codes, bits=4, order=None):
    """[n, k m] codes -> [n, m] int32, k = 32 / bits: code i of a word is element order[i] of its k."""
    num = 32 // bits
    words = np.zeros((codes.shape[0], codes.shape[1] // num), np.uint32)
    for i, place in enumerate(order or range(num)):
        words |= codes[:, place::num].astype(np.uint32) << np.uint32(bits * i)
    return words.view(np.int32)


def pack(case, codes, zeros, scales, groups):
    if case.method == "awq":
        return {"qweight": pack_words(codes.T, order=AWQ_ORDER), "qzeros": pack_words(zeros.T, order=AWQ_ORDER),
                "scales": np.ascontiguousarray(scales.T)}
    stored = zeros - 1 if case.version == "gptq" else zeros
    return {"qweight": np.ascontiguousarray(pack_words(codes, case.bits).T), "qzeros": pack_words(stored.T, case.bits),
            "scales": np.ascontiguousarray(scales.T), "g_idx": groups.astype(np.int32)}


def scheme_of(case):
    """Settings of compressed-tensors."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    kind = "float" if case.method in ("float-quantized", "mxfp4-pack-quantized") else "int"
    dynamic = QuantizationArgs(num_bits=8, type=kind, strategy="token", dynamic=True)
    weights = QuantizationArgs(num_bits=case.bits, type=kind, symmetric=case.symmetric, strategy=case.strategy,
                               group_size=case.group if case.strategy == "group" else None)
    return QuantizationScheme(targets=["Linear"], weights=weights,
                              input_activations=None if "pack" in case.method else dynamic)


def compress(weight, case):
    """The tensors of a matrix by compressed-tensors, and the matrix that it decompresses them to."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams
    scheme = scheme_of(case)
    w = torch.from_numpy(weight).to(torch.float32)
    shape = {"group": (w.shape[0], -1, case.group), "channel": (w.shape[0], 1, -1), "tensor": (1, 1, -1)}
    parts = w.reshape(shape[case.strategy])
    low, high = parts.amin(-1), parts.amax(-1)
    if case.strategy == "tensor":
        low, high = low.flatten(), high.flatten()
    scale, zero = calculate_qparams(low, high, scheme.weights)
    if case.becomes == "MXFP4":  # a power of two that takes the largest to between 4 and 8
        scale = torch.exp2(torch.floor(torch.log2(parts.abs().amax(-1))) - 2)
    else:
        scale = scale.to(torch.bfloat16)  # as files of bf16 models have them
    compressor = BaseCompressor.get_value_from_registry(case.method)
    stored = compressor.compress({"weight": w, "weight_scale": scale, "weight_zero_point": zero}, scheme)
    wide = {"weight_scale": stored["weight_scale"].float()} if case.becomes != "MXFP4" else {}
    full = compressor.decompress(stored | wide, scheme)
    return stored, full["weight"].float().numpy()


def quantise_fp8(weight):
    rows, cols = weight.shape
    blocks = -(-rows // BLOCK[0]), -(-cols // BLOCK[1])
    scale = torch.zeros(blocks)
    w = torch.from_numpy(weight).float()
    codes, full = torch.zeros(rows, cols, dtype=torch.float8_e4m3fn), torch.zeros(rows, cols)
    for i in range(blocks[0]):
        for j in range(blocks[1]):
            at = slice(i * BLOCK[0], (i + 1) * BLOCK[0]), slice(j * BLOCK[1], (j + 1) * BLOCK[1])
            scale[i, j] = w[at].abs().max() / 448
            codes[at] = (w[at] / scale[i, j]).to(torch.float8_e4m3fn)
            full[at] = codes[at].float() * scale[i, j]
    return {"weight": codes, "weight_scale_inv": scale}, full.numpy()


def quantise_matrix(weight, case, rng):
    """The tensors of a matrix by the ends of their names, and what they say it is."""
    if case.method == "fp8":
        return quantise_fp8(weight)
    if case.method not in ("awq", "gptq"):
        return compress(weight, case)
    parts = quantise(weight, case, rng)
    tensors = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in pack(case, *parts).items()}
    return tensors, dequantise(*parts)


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
            parts, values = quantise_matrix(weight, case, rng)
            matrices[name] = full[name] = case.rounded(values)
            for kind, tensor in parts.items():
                stored[name.removesuffix("weight") + kind] = tensor.contiguous()
            continue
        middle, spread = (1, 0.2) if "norm" in name else (0, 0.5)
        values = (middle + spread * rng.standard_normal(shape)).astype(np.float16)
        stored[name], full[name] = torch.from_numpy(values), values.astype(np.float32)
    if case.method == "gptq" and case.family == "llama":  # as quantisers leave them
        stored["model.layers.0.mlp.down_proj.bias"] = torch.zeros(hf_config(case).hidden_size).half()
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


def quantization_config(case):
    if case.method == "fp8":
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": list(BLOCK), "modules_to_not_convert": ["lm_head"]}
    if case.method.endswith("-quantized"):
        from compressed_tensors.quantization import QuantizationConfig
        return QuantizationConfig(config_groups={"group_0": scheme_of(case)}, format=case.method,
                                  ignore=["lm_head", "re:.*embed.*"], quantization_status="compressed").to_dict()
    quant = {"quant_method": case.method, "bits": case.bits, "group_size": case.group}
    if case.method == "awq":
        return quant | {"version": "gemm", "zero_point": True, "modules_to_not_convert": None}
    return quant | {"desc_act": case.act_order, "sym": case.symmetric, "checkpoint_format": case.version}


def config_json(case):
    config = json.loads(hf_config(case).to_json_string())
    config["architectures"] = [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[case.family]]
    config["quantization_config"] = quantization_config(case)
    return json.dumps(config, indent=1, default=str) + "\n"


def raw_bytes(tensor):
    return bytes(tensor.flatten().clone(memory_format=torch.contiguous_format).untyped_storage())


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="tiny quantised models and their logits")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/quant")
    parser.add_argument("--check", action="store_true", help="compare with what is stored; write nothing")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names; all without")
    args = parser.parse_args()
    for case in [c for c in CASES if not args.cases or c.name in args.cases]:
        stored, full, matrices, tokens = make_case(case)
        logits = logits_of(case, full, tokens)
        folder = args.out / case.name
        if args.check:
            old = np.fromfile(args.out / f"{case.name}.f32", "<f4").reshape(logits.shape)
            error = float(np.abs(old - logits).max() / np.abs(old).max())
            kept = load_file(folder / "model.safetensors")
            same = all(raw_bytes(v) == raw_bytes(stored[n]) for n, v in kept.items())
            print(f"{case.name}: logits differ by {error:.1e}, tensors {'agree' if same else 'differ'}")
            if error > 1e-5 or not same:
                sys.exit(1)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(config_json(case))
        if case.matrices:
            kind = {"F16": torch.float16, "BF16": torch.bfloat16}.get(case.becomes, torch.float32)
            save_file({n: torch.from_numpy(v).to(kind) for n, v in matrices.items()},
                      args.out / f"{case.name}.weights.safetensors")
        (args.out / f"{case.name}.f32").write_bytes(logits.astype("<f4").tobytes())
        info = {"shape": list(logits.shape), "tokens": tokens, "format": case.becomes}
        (args.out / f"{case.name}.json").write_text(json.dumps(info) + "\n")
        print(f"{case.name}: {sum(v.nbytes for v in stored.values())} bytes, largest logit {np.abs(logits).max():.1f}")


if __name__ == "__main__":
    main()
