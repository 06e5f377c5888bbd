#!/usr/bin/env python3
"""Makes tests/golden/models: tiny random models as GGUF, with their logits from transformers in fp32.

    python3 -m venv build/venv-goldens
    build/venv-goldens/bin/pip install torch transformers gguf numpy
    build/venv-goldens/bin/python scripts/make_model_goldens.py [--out DIR] [--only NAME] [--check]

Each model NAME gives three files:

NAME.gguf  All tensors F32, names and metadata keys as llama.cpp's converter writes them: `llama` has the
           rows of attn_q and attn_k permuted for interleaved RoPE, llama3 scaling is the tensor
           rope_freqs.weight, linear and YaRN scaling are <arch>.rope.scaling.* keys, a sliding window is
           <arch>.attention.sliding_window. The tokeniser is byte-level BPE over all 256 bytes.
NAME.json  {"model": "NAME.gguf", "logits": "NAME.f32", "shape": [positions, vocab], "tokens": [ids],
           "greedy": [ids], "greedy_lead": L, "sha256": {file: sum}, "fp64_error": E, "feature_effect": D,
           "config": {...}, "versions": {...}}
           `tokens` is fed as is (no BOS is added). `greedy` is their most likely continuation, with
           `greedy_lead` the margin of its closest decision, over the largest absolute logit. `fp64_error`
           is what fp32 itself loses here: the largest difference to the same model in fp64, over the
           largest absolute logit. `feature_effect` is the same measure between the model and the one
           without its feature (scaling, window...): a golden whose feature does not show is refused.
NAME.f32   The logits of every position, row-major [positions, vocab], little-endian float32, no header.

Weights come from numpy's PCG64 with a fixed seed per model, so a second run gives the same GGUF byte for
byte; logits agree to rounding between versions of torch (--check compares instead of writing).
"""

import argparse
import dataclasses
import hashlib
import importlib.metadata
import json
import math
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers

NUM_TOKENS = 40
NUM_GREEDY = 32
MERGES = ["Ġ t", "h e", "i n", "e r", "Ġ a", "o n", "Ġt he"]
END_OF_TEXT = "<|endoftext|>"
VOCAB = 256 + len(MERGES) + 1


@dataclasses.dataclass
class Spec:
    name: str
    seed: int
    family: str  # of transformers: llama, mistral, qwen2, qwen3
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    layers: int
    head_dim: int = 0  # 0: hidden / heads, and no key_length in the GGUF
    tied: bool = False
    context: int = 512
    theta: float = 10000.0
    eps: float = 1e-5
    scaling: dict = dataclasses.field(default_factory=dict)
    window: int = 0

    @property
    def arch(self):
        return "llama" if self.family == "mistral" else self.family

    @property
    def head_size(self):
        return self.head_dim or self.hidden // self.heads


SPECS = [
    Spec("llama", 1, "llama", 32, 4, 2, 48, 3, head_dim=16),
    Spec("llama-linear", 2, "llama", 32, 2, 1, 32, 2, tied=True,
         scaling={"rope_type": "linear", "factor": 4.0}),
    Spec("llama-llama3", 3, "llama", 32, 2, 1, 32, 2, tied=True,
         scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 128}),
    Spec("llama-yarn", 4, "llama", 32, 2, 1, 32, 2, tied=True, context=1024,
         scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}),
    Spec("llama-window", 5, "mistral", 32, 2, 1, 32, 2, tied=True, window=8),
    Spec("qwen2", 6, "qwen2", 48, 3, 1, 48, 2, tied=True, theta=1000000.0, eps=1e-6),
    Spec("qwen3", 7, "qwen3", 32, 4, 2, 48, 2, head_dim=32, tied=True, theta=1000000.0, eps=1e-6),
]


def hf_config(spec):
    classes = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig,
               "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}
    args = dict(vocab_size=VOCAB, hidden_size=spec.hidden, intermediate_size=spec.ffn,
                num_hidden_layers=spec.layers, num_attention_heads=spec.heads,
                num_key_value_heads=spec.kv_heads, max_position_embeddings=spec.context,
                rms_norm_eps=spec.eps, tie_word_embeddings=spec.tied,
                rope_parameters={"rope_type": "default", "rope_theta": spec.theta, **spec.scaling},
                bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1, pad_token_id=None)
    if spec.head_dim:
        args["head_dim"] = spec.head_dim
    if spec.family == "mistral":
        args["sliding_window"] = spec.window or None
    return classes[spec.family](**args)


def make_weights(spec):
    """Name in transformers -> float32 array. Gains keep attention far from uniform, so that an error in
    RoPE, masks or head mapping moves the logits by much more than rounding does."""
    rng = np.random.Generator(np.random.PCG64(spec.seed))

    def normal(shape, std):
        return (rng.standard_normal(shape) * std).astype(np.float32)

    d, q, kv = spec.hidden, spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    w = {"model.embed_tokens.weight": normal((VOCAB, d), 0.5)}
    for i in range(spec.layers):
        at = f"model.layers.{i}."
        shapes = {"self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d),
                  "self_attn.o_proj": (d, q), "mlp.gate_proj": (spec.ffn, d),
                  "mlp.up_proj": (spec.ffn, d), "mlp.down_proj": (d, spec.ffn)}
        for name, (rows, cols) in shapes.items():
            gain = 1.5 if name.endswith(("q_proj", "k_proj")) else 1.0
            w[f"{at}{name}.weight"] = normal((rows, cols), gain / math.sqrt(cols))
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[f"{at}{name}.weight"] = 1 + normal(d, 0.2)
        if spec.family == "qwen2":
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                w[f"{at}self_attn.{name}_proj.bias"] = normal(rows, 0.5)
        if spec.family == "qwen3":
            for name in ("q", "k"):
                w[f"{at}self_attn.{name}_norm.weight"] = 1.2 + normal(spec.head_size, 0.3)
    w["model.norm.weight"] = 1 + normal(d, 0.2)
    if not spec.tied:
        w["lm_head.weight"] = normal((VOCAB, d), 2 / math.sqrt(d))
    return w


def make_tokens(spec):
    rng = np.random.Generator(np.random.PCG64(1000 + spec.seed))
    return [int(t) for t in rng.integers(0, VOCAB - 1, NUM_TOKENS)]


def model_of(spec, weights, dtype):
    config = hf_config(spec)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    state = {name: torch.from_numpy(value).to(dtype) for name, value in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing = [name for name in missing if not (spec.tied and name == "lm_head.weight")]
    if missing or unexpected:
        sys.exit(f"{spec.name}: missing {missing}, unexpected {unexpected}")
    return model


def logits_of(spec, weights, tokens, dtype=torch.float32):
    with torch.no_grad():
        return model_of(spec, weights, dtype)(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def greedy_of(spec, weights, tokens):
    """The most likely continuation in fp64, without a cache, and how clear its closest decision was: the
    smallest lead of a chosen token over the second, over the largest absolute logit."""
    model, out, lead = model_of(spec, weights, torch.float64), list(tokens), math.inf
    for _ in range(NUM_GREEDY):
        with torch.no_grad():
            row = model(torch.tensor([out]), use_cache=False).logits[0, -1]
        best = torch.topk(row, 2)
        lead = min(lead, float((best.values[0] - best.values[1]) / row.abs().max()))
        out.append(int(best.indices[0]))
    return out[len(tokens):], lead


def relative(a, b):
    return float(np.max(np.abs(a.astype(np.float64) - b)) / np.max(np.abs(b)))


def feature_effect(spec, weights, tokens, logits):
    """How far the logits move when the feature that gives the model its name is left out."""
    plain = dict(weights)
    without = dataclasses.replace(spec, scaling={}, window=0)
    if spec.family == "qwen2":
        plain = {n: np.zeros_like(v) if n.endswith(".bias") else v for n, v in weights.items()}
    elif spec.family == "qwen3":
        plain = {n: np.ones_like(v) if n.endswith(("q_norm.weight", "k_norm.weight")) else v
                 for n, v in weights.items()}
    elif without == spec:
        without = dataclasses.replace(spec, theta=spec.theta * 4)
    return relative(logits_of(without, plain, tokens), logits)


def interleave_rope_rows(weight, heads):
    """[heads * d, in]: row j and j + d/2 of a head, which rotate together, become rows 2j and 2j + 1."""
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def llama3_factors(spec):
    """What each RoPE frequency is divided by: [head_size / 2]."""
    s = spec.scaling
    old = s["original_max_position_embeddings"]
    factors = []
    for i in range(spec.head_size // 2):
        wavelength = 2 * math.pi * spec.theta ** (2 * i / spec.head_size)
        turns = old / wavelength
        if turns > s["high_freq_factor"]:
            factors.append(1.0)
        elif turns < s["low_freq_factor"]:
            factors.append(s["factor"])
        else:
            smooth = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def gguf_tensors(spec, weights):
    short = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
             "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
             "post_attention_layernorm": "ffn_norm"}
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}
    for name, value in weights.items():
        if name in top:
            yield top[name], value
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        stem, kind = rest.rsplit(".", 1)
        if spec.arch == "llama" and stem == "self_attn.q_proj":
            value = interleave_rope_rows(value, spec.heads)
        if spec.arch == "llama" and stem == "self_attn.k_proj":
            value = interleave_rope_rows(value, spec.kv_heads)
        yield f"blk.{layer}.{short[stem]}.{kind}", value
    if spec.scaling.get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_factors(spec)


def byte_alphabet():
    """GPT-2's character for each byte: printable ones stand for themselves, the rest follow U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable}
    table.update({b: chr(256 + i) for i, b in enumerate(others)})
    return [table[b] for b in range(256)]


def add_tokenizer(writer):
    tokens = byte_alphabet() + [m.replace(" ", "") for m in MERGES] + [END_OF_TEXT]
    types = [gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(VOCAB - 1)
    writer.add_eos_token_id(VOCAB - 1)
    writer.add_add_bos_token(False)


def write_gguf(spec, weights, path):
    writer = gguf.GGUFWriter(path, spec.arch)
    writer.add_name(f"tiny random {spec.name}")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(spec.ffn)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_rope_freq_base(spec.theta)
    writer.add_layer_norm_rms_eps(spec.eps)
    if spec.head_dim:
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
    if spec.arch == "llama":
        writer.add_vocab_size(VOCAB)
        writer.add_rope_dimension_count(spec.head_size)
    kind = spec.scaling.get("rope_type")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(spec.scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(spec.scaling["original_max_position_embeddings"])
    if spec.window:
        writer.add_sliding_window(spec.window)
    add_tokenizer(writer)
    for name, value in gguf_tensors(spec, weights):
        writer.add_tensor(name, np.ascontiguousarray(value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make(spec, out):
    weights, tokens = make_weights(spec), make_tokens(spec)
    logits = logits_of(spec, weights, tokens)
    fp64_error = relative(logits, logits_of(spec, weights, tokens, torch.float64))
    effect = feature_effect(spec, weights, tokens, logits)
    greedy, lead = greedy_of(spec, weights, tokens)
    if not (fp64_error < 1e-5 and effect > 1e-2 and lead > 1e-4):
        sys.exit(f"{spec.name}: not a usable golden: fp64_error {fp64_error}, effect {effect}, lead {lead}")
    model, raw = out / f"{spec.name}.gguf", out / f"{spec.name}.f32"
    write_gguf(spec, weights, model)
    raw.write_bytes(logits.astype("<f4").tobytes())
    info = {"model": model.name, "logits": raw.name, "shape": list(logits.shape), "tokens": tokens,
            "greedy": greedy, "greedy_lead": float(f"{lead:.1e}"),
            "sha256": {p.name: sha256(p) for p in (model, raw)},
            "fp64_error": float(f"{fp64_error:.1e}"), "feature_effect": float(f"{effect:.1e}"),
            "config": dataclasses.asdict(spec),
            "versions": {name: importlib.metadata.version(name)
                         for name in ("torch", "transformers", "gguf", "numpy")}}
    text = json.dumps(info, indent=1)
    for key in ("shape", "tokens", "greedy"):
        text = text.replace(json.dumps(info[key], indent=1).replace("\n", "\n "), json.dumps(info[key]))
    (out / f"{spec.name}.json").write_text(text + "\n")
    print(f"{spec.name}: {model.stat().st_size} + {raw.stat().st_size} bytes, "
          f"fp64 error {fp64_error:.1e}, effect of the feature {effect:.1e}")


def check(spec, out):
    """Compares what is stored with what would be made now."""
    weights = make_weights(spec)
    info = json.loads((out / f"{spec.name}.json").read_text())
    stored = np.fromfile(out / info["logits"], dtype="<f4").reshape(info["shape"])
    error = relative(stored, logits_of(spec, weights, info["tokens"]))
    same = greedy_of(spec, weights, info["tokens"])[0] == info["greedy"]
    print(f"{spec.name}: stored logits differ by {error:.1e}, greedy tokens {'agree' if same else 'differ'}")
    return error < 1e-5 and same


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="tiny random models and their logits")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/models")
    parser.add_argument("--only", help="one model of: " + ", ".join(s.name for s in SPECS))
    parser.add_argument("--check", action="store_true", help="compare with what is stored; write nothing")
    args = parser.parse_args()
    specs = [s for s in SPECS if args.only in (None, s.name)]
    if not specs:
        sys.exit(f"no model {args.only}")
    if args.check:
        sys.exit(0 if all([check(s, args.out) for s in specs]) else 1)
    args.out.mkdir(parents=True, exist_ok=True)
    for spec in specs:
        make(spec, args.out)


if __name__ == "__main__":
    main()
