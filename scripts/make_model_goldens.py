#!/usr/bin/env python3
"""Makes tests/golden/models and tests/golden/hf: tiny random models as GGUF and as Hugging Face
directories, with their logits from transformers in fp32.

    python3 -m venv build/venv-goldens
    build/venv-goldens/bin/pip install torch transformers gguf numpy
    build/venv-goldens/bin/python scripts/make_model_goldens.py [--out DIR] [--only NAME] [--check | --hf-only]

Each model NAME gives models/NAME.{gguf,json,f32} and hf/NAME:

NAME.gguf  All tensors F32, names and metadata keys as llama.cpp's converter writes them: `llama` has the
           rows of attn_q and attn_k permuted for interleaved RoPE, llama3 scaling is the tensor
           rope_freqs.weight, linear and YaRN scaling are <arch>.rope.scaling.* keys, longrope's divisors are
           rope_factors_{long,short}.weight, a sliding window is <arch>.attention.sliding_window, gemma's norm
           weights have their 1 added. A query scale that the family's rule does not give is
           <arch>.attention.scale. The tokeniser is byte-level BPE over all 256 bytes.
NAME.json  {"model": "NAME.gguf", "logits": "NAME.f32", "shape": [positions, vocab], "tokens": [ids],
           "greedy": [ids], "greedy_lead": L, "pooled": {"last": [hidden], "mean": [hidden]}, "sha256": {file: sum}, "fp64_error": E, "feature_effect": D,
           "config": {...}, "versions": {...}}
           `tokens` is fed as is (no BOS is added). `greedy` is their most likely continuation, with
           `greedy_lead` the margin of its closest decision, over the largest absolute logit. `pooled` are the
           final, normed hidden states of `tokens` in fp64: of the last position, and their mean. `fp64_error`
           is what fp32 itself loses here: the largest difference to the same model in fp64, over the
           largest absolute logit. `feature_effect` is the same measure between the model and the one
           without its feature (scaling, window...), the smallest where it has several: a golden whose
           feature does not show is refused.
NAME.f32   The logits of every position, row-major [positions, vocab], little-endian float32, no header.
hf/NAME    The same weights as save_pretrained() lays them out: config.json and model.safetensors, F32.

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
    family: str  # of transformers: llama, mistral, qwen2, qwen3, phi3, gemma2, gemma3, gpt2
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
    options: dict = dataclasses.field(default_factory=dict)  # of the family's config class, as they are

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
    Spec("gpt2", 8, "gpt2", 32, 4, 4, 48, 2, tied=True, context=128),
    Spec("phi3", 9, "phi3", 32, 4, 2, 48, 2, window=8),
    Spec("phi3-longrope", 10, "phi3", 32, 2, 1, 32, 2, tied=True, context=1024,
         scaling={"rope_type": "longrope", "original_max_position_embeddings": 16,
                  "partial_rotary_factor": 0.5, "short_factor": [1.0, 1.1, 1.3, 1.6],
                  "long_factor": [1.5, 2.5, 6.0, 12.0]}),
    Spec("gemma2", 11, "gemma2", 32, 2, 1, 32, 3, head_dim=24, tied=True, eps=1e-6, window=8,
         options={"query_pre_attn_scalar": 10, "attn_logit_softcapping": 3.0,
                  "final_logit_softcapping": 6.0}),
    Spec("gemma3", 12, "gemma3", 32, 2, 1, 16, 7, head_dim=8, tied=True, theta=1000000.0, eps=1e-6, window=8,
         scaling={"rope_type": "linear", "factor": 8.0}, options={"query_pre_attn_scalar": 4}),
]
GEMMA3_LOCAL_THETA = 10000.0


def hf_config(spec):
    if spec.family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=VOCAB, n_embd=spec.hidden, n_inner=spec.ffn, n_layer=spec.layers, n_head=spec.heads,
            n_positions=spec.context, layer_norm_epsilon=spec.eps, bos_token_id=VOCAB - 1,
            eos_token_id=VOCAB - 1, **spec.options)
    classes = {"llama": transformers.LlamaConfig, "mistral": transformers.MistralConfig,
               "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config,
               "phi3": transformers.Phi3Config, "gemma2": transformers.Gemma2Config,
               "gemma3": transformers.Gemma3TextConfig}
    rope = {"rope_type": "default", "rope_theta": spec.theta, **spec.scaling}
    if spec.family == "gemma3":
        local = spec.options.get("local_theta", GEMMA3_LOCAL_THETA)
        rope = {"full_attention": rope,
                "sliding_attention": {"rope_type": "default", "rope_theta": local}}
    args = dict(vocab_size=VOCAB, hidden_size=spec.hidden, intermediate_size=spec.ffn,
                num_hidden_layers=spec.layers, num_attention_heads=spec.heads,
                num_key_value_heads=spec.kv_heads, max_position_embeddings=spec.context,
                rms_norm_eps=spec.eps, tie_word_embeddings=spec.tied, rope_parameters=rope,
                bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1, pad_token_id=None,
                **{k: v for k, v in spec.options.items() if k != "local_theta"})
    if spec.head_dim:
        args["head_dim"] = spec.head_dim
    if spec.family in ("mistral", "phi3"):
        args["sliding_window"] = spec.window or None
    if spec.family in ("gemma2", "gemma3"):
        args["sliding_window"] = spec.window or spec.context
    if "original_max_position_embeddings" in spec.scaling and spec.family == "phi3":
        args["original_max_position_embeddings"] = spec.scaling["original_max_position_embeddings"]
    return classes[spec.family](**args)


def make_weights(spec):
    """Name in transformers -> float32 array. Gains keep attention far from uniform, so that an error in
    RoPE, masks or head mapping moves the logits by much more than rounding does."""
    rng = np.random.Generator(np.random.PCG64(spec.seed))

    def normal(shape, std):
        return (rng.standard_normal(shape) * std).astype(np.float32)

    if spec.family == "gpt2":
        return gpt2_weights(spec, normal)
    d, q, kv = spec.hidden, spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    gemma = spec.family in ("gemma2", "gemma3")
    shift = 0 if gemma else 1  # gemma multiplies by 1 + weight
    w = {"model.embed_tokens.weight": normal((VOCAB, d), 0.5)}
    for i in range(spec.layers):
        at = f"model.layers.{i}."
        shapes = {"self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d),
                  "self_attn.o_proj": (d, q), "mlp.gate_proj": (spec.ffn, d),
                  "mlp.up_proj": (spec.ffn, d), "mlp.down_proj": (d, spec.ffn)}
        for name, (rows, cols) in shapes.items():
            gain = 1.5 if name.endswith(("q_proj", "k_proj")) else 1.0
            w[f"{at}{name}.weight"] = normal((rows, cols), gain / math.sqrt(cols))
        if spec.family == "phi3":
            for block, fused, parts in (("self_attn", "qkv", "qkv"), ("mlp", "gate_up", ("gate", "up"))):
                w[f"{at}{block}.{fused}_proj.weight"] = np.concatenate(
                    [w.pop(f"{at}{block}.{p}_proj.weight") for p in parts])
        norms = ["input_layernorm", "post_attention_layernorm"]
        if gemma:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for name in norms:
            w[f"{at}{name}.weight"] = shift + normal(d, 0.2)
        if spec.family == "qwen2":
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                w[f"{at}self_attn.{name}_proj.bias"] = normal(rows, 0.5)
        if spec.family in ("qwen3", "gemma3"):
            for name in ("q", "k"):
                w[f"{at}self_attn.{name}_norm.weight"] = shift + 0.2 + normal(spec.head_size, 0.3)
    w["model.norm.weight"] = shift + normal(d, 0.2)
    if not spec.tied:
        w["lm_head.weight"] = normal((VOCAB, d), 2 / math.sqrt(d))
    return w


def gpt2_weights(spec, normal):
    """Its matrices are [in, out]: Conv1D's layout."""
    d = spec.hidden
    w = {"transformer.wte.weight": normal((VOCAB, d), 0.5),
         "transformer.wpe.weight": normal((spec.context, d), 0.5)}
    for i in range(spec.layers):
        at = f"transformer.h.{i}."
        shapes = {"attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d), "mlp.c_fc": (d, spec.ffn),
                  "mlp.c_proj": (spec.ffn, d)}
        for name, (rows, cols) in shapes.items():
            w[f"{at}{name}.weight"] = normal((rows, cols), 1.5 / math.sqrt(rows))
            w[f"{at}{name}.bias"] = normal(cols, 0.3)
        for name in ("ln_1", "ln_2"):
            w[f"{at}{name}.weight"] = 1 + normal(d, 0.2)
            w[f"{at}{name}.bias"] = normal(d, 0.3)
    w["transformer.ln_f.weight"] = 1 + normal(d, 0.2)
    w["transformer.ln_f.bias"] = normal(d, 0.3)
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


def pooled_of(spec, weights, tokens):
    with torch.no_grad():
        states = model_of(spec, weights, torch.float64).base_model(torch.tensor([tokens]), use_cache=False)
    rows = states.last_hidden_state[0].numpy()
    return {"last": [float(f"{x:.9g}") for x in rows[-1]], "mean": [float(f"{x:.9g}") for x in rows.mean(0)]}


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


def without_features(spec, weights):
    """The model with one of the features that give it its name left out: [(spec, weights)]."""
    def but(**changes):
        return dataclasses.replace(spec, **changes), weights

    def option(name, value):
        return but(options={**spec.options, name: value})

    def with_weights(change, *suffixes):
        return spec, {n: change(v) if n.endswith(suffixes) else v for n, v in weights.items()}

    if spec.family == "qwen2":
        return [with_weights(np.zeros_like, ".bias")]
    if spec.family == "qwen3":
        return [with_weights(np.ones_like, "q_norm.weight", "k_norm.weight")]
    if spec.family == "gpt2":
        return [with_weights(np.zeros_like, "ln_1.bias", "ln_2.bias", "ln_f.bias"),
                with_weights(np.zeros_like, "c_attn.bias", "c_proj.bias", "c_fc.bias"),
                with_weights(np.zeros_like, "wpe.weight"), option("activation_function", "relu")]
    if spec.name == "phi3-longrope":
        s = spec.scaling
        return [but(scaling={**s, "long_factor": s["short_factor"]}), but(context=16),
                but(scaling={**s, "attention_factor": 1.0})]
    if spec.family == "gemma2":
        return [but(window=0), option("query_pre_attn_scalar", spec.head_size),
                option("attn_logit_softcapping", None), option("final_logit_softcapping", None),
                option("hidden_activation", "silu"),
                with_weights(np.zeros_like, "post_attention_layernorm.weight",
                             "post_feedforward_layernorm.weight")]
    if spec.family == "gemma3":
        return [but(window=0), option("query_pre_attn_scalar", spec.head_size), but(scaling={}),
                option("local_theta", spec.theta), option("layer_types", ["sliding_attention"] * spec.layers),
                with_weights(np.zeros_like, "q_norm.weight", "k_norm.weight")]
    if not (spec.scaling or spec.window):
        return [but(theta=spec.theta * 4)]
    return [but(scaling={}, window=0)]


def feature_effect(spec, weights, tokens, logits):
    """How far the logits move when a feature is left out: the smallest of its features' effects."""
    effects = [relative(logits_of(s, w, tokens), logits) for s, w in without_features(spec, weights)]
    if len(effects) > 1:
        print(f"{spec.name}: effects", ", ".join(f"{e:.1e}" for e in effects))
    return min(effects)


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
             "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
             "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
             "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             # gpt2
             "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
             "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight", "transformer.wte.weight": "token_embd.weight",
           "transformer.wpe.weight": "position_embd.weight", "transformer.ln_f.weight": "output_norm.weight",
           "transformer.ln_f.bias": "output_norm.bias"}
    gemma = spec.family in ("gemma2", "gemma3")
    if gemma:
        short.update({"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                      "post_feedforward_layernorm": "post_ffw_norm"})
    for name, value in weights.items():
        if gemma and name.endswith("norm.weight"):
            value = value + np.float32(1)
        if name in top:
            yield top[name], value
            continue
        layer, rest = name.removeprefix("model.layers.").removeprefix("transformer.h.").split(".", 1)
        stem, kind = rest.rsplit(".", 1)
        if spec.arch == "llama" and stem == "self_attn.q_proj":
            value = interleave_rope_rows(value, spec.heads)
        if spec.arch == "llama" and stem == "self_attn.k_proj":
            value = interleave_rope_rows(value, spec.kv_heads)
        if spec.arch == "gpt2" and value.ndim == 2:
            value = value.T
        yield f"blk.{layer}.{short[stem]}.{kind}", value
    if spec.scaling.get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_factors(spec)
    if spec.scaling.get("rope_type") == "longrope":
        for kind in ("long", "short"):
            yield f"rope_factors_{kind}.weight", np.array(spec.scaling[f"{kind}_factor"], dtype=np.float32)


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


def add_decoder_keys(spec, writer):
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_rope_freq_base(spec.theta)
    writer.add_layer_norm_rms_eps(spec.eps)
    if spec.head_dim:
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
    if spec.arch == "llama":
        writer.add_vocab_size(VOCAB)
    if spec.arch in ("llama", "phi3"):
        writer.add_rope_dimension_count(int(spec.head_size * spec.scaling.get("partial_rotary_factor", 1)))
    kind, old = spec.scaling.get("rope_type"), spec.scaling.get("original_max_position_embeddings")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(spec.scaling["factor"])
    if kind in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(old)
    if kind == "longrope":
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(spec.context / old) / math.log(old)))
    if spec.window:
        writer.add_sliding_window(spec.window)
    if "attn_logit_softcapping" in spec.options:
        writer.add_attn_logit_softcapping(spec.options["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(spec.options["final_logit_softcapping"])
    if "query_pre_attn_scalar" in spec.options:
        writer.add_attention_scale(spec.options["query_pre_attn_scalar"] ** -0.5)


def write_gguf(spec, weights, path):
    writer = gguf.GGUFWriter(path, spec.arch)
    writer.add_name(f"tiny random {spec.name}")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(spec.ffn)
    writer.add_head_count(spec.heads)
    if spec.arch == "gpt2":
        writer.add_layer_norm_eps(spec.eps)
    else:
        add_decoder_keys(spec, writer)
    add_tokenizer(writer)
    for name, value in gguf_tensors(spec, weights):
        writer.add_tensor(name, np.ascontiguousarray(value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_hf(spec, weights, path):
    model_of(spec, weights, torch.float32).save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    (path / "model.safetensors").chmod(0o644)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make(spec, out, hf):
    weights, tokens = make_weights(spec), make_tokens(spec)
    logits = logits_of(spec, weights, tokens)
    fp64_error = relative(logits, logits_of(spec, weights, tokens, torch.float64))
    effect = feature_effect(spec, weights, tokens, logits)
    greedy, lead = greedy_of(spec, weights, tokens)
    if not (fp64_error < 1e-5 and effect > 1e-2 and lead > 1e-4):
        sys.exit(f"{spec.name}: not a usable golden: fp64_error {fp64_error}, effect {effect}, lead {lead}")
    model, raw = out / f"{spec.name}.gguf", out / f"{spec.name}.f32"
    write_gguf(spec, weights, model)
    write_hf(spec, weights, hf / spec.name)
    raw.write_bytes(logits.astype("<f4").tobytes())
    info = {"model": model.name, "logits": raw.name, "shape": list(logits.shape), "tokens": tokens,
            "greedy": greedy, "greedy_lead": float(f"{lead:.1e}"),
            "pooled": pooled_of(spec, weights, tokens),
            "sha256": {p.name: sha256(p) for p in (model, raw)},
            "fp64_error": float(f"{fp64_error:.1e}"), "feature_effect": float(f"{effect:.1e}"),
            "config": {k: v for k, v in dataclasses.asdict(spec).items() if k != "options" or v},
            "versions": {name: importlib.metadata.version(name)
                         for name in ("torch", "transformers", "gguf", "numpy")}}
    text = json.dumps(info, indent=1)
    for value in (info["shape"], tokens, greedy, *info["pooled"].values()):
        for indent in ("\n ", "\n  "):
            text = text.replace(json.dumps(value, indent=1).replace("\n", indent), json.dumps(value))
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
    pooled = pooled_of(spec, weights, info["tokens"])
    off = max(relative(np.array(pooled[kind]), np.array(info["pooled"][kind])) for kind in pooled)
    print(f"{spec.name}: stored logits differ by {error:.1e}, pooled states by {off:.1e}, greedy tokens "
          f"{'agree' if same else 'differ'}")
    return error < 1e-5 and off < 1e-5 and same


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="tiny random models and their logits")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/models")
    parser.add_argument("--hf-out", type=pathlib.Path, default=root / "tests/golden/hf")
    parser.add_argument("--only", help="one model of: " + ", ".join(s.name for s in SPECS))
    parser.add_argument("--check", action="store_true", help="compare with what is stored; write nothing")
    parser.add_argument("--hf-only", action="store_true", help="write the Hugging Face directories alone")
    args = parser.parse_args()
    specs = [s for s in SPECS if args.only in (None, s.name)]
    if not specs:
        sys.exit(f"no model {args.only}")
    if args.check:
        sys.exit(0 if all([check(s, args.out) for s in specs]) else 1)
    args.out.mkdir(parents=True, exist_ok=True)
    for spec in specs:
        if args.hf_only:
            write_hf(spec, make_weights(spec), args.hf_out / spec.name)
        else:
            make(spec, args.out, args.hf_out)


if __name__ == "__main__":
    main()
