#!/usr/bin/env python3
"""Writes a GGUF model (llama family) as a Hugging Face directory in a quantised layout, its matrices rounded to
nearest: to compare such files with others, and to try one without a download.

    python3 -m venv build/venv-goldens
    build/venv-goldens/bin/pip install torch transformers safetensors numpy compressed-tensors gguf
    build/venv-goldens/bin/python scripts/make_quant_dir.py MODEL.gguf OUT LAYOUT --tokenizer tokenizer.json

LAYOUT is bf16 or a case of make_quant_goldens.py (gptq, awq, gptq-8, ct-w4, ct-w8, ct-fp8, ct-mxfp4, ...); --group
sets another group size. Embeddings, norms and the output matrix stay in BF16. tokenizer.json may be gzipped.
"""

import argparse
import dataclasses
import gzip
import json
import pathlib

import gguf
import make_quant_goldens as layouts
import numpy as np
import torch
from safetensors.torch import save_file

NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(name):
    parts = name.removesuffix(".weight").split(".")
    return TOP[parts[0]] if parts[0] != "blk" else f"model.layers.{parts[1]}.{NAMES[parts[2]]}"


def halves_together(matrix, heads):
    """GGUF has the rows that rotate together side by side, Hugging Face half a head apart."""
    rows, cols = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def config_of(fields, tied):
    get = lambda key: fields["llama." + key].contents()
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
            "num_hidden_layers": get("block_count"), "max_position_embeddings": get("context_length"),
            "hidden_size": get("embedding_length"), "intermediate_size": get("feed_forward_length"),
            "num_attention_heads": get("attention.head_count"),
            "num_key_value_heads": get("attention.head_count_kv"),
            "rms_norm_eps": get("attention.layer_norm_rms_epsilon"), "rope_theta": get("rope.freq_base"),
            "vocab_size": get("vocab_size"), "tie_word_embeddings": tied,
            "bos_token_id": fields["tokenizer.ggml.bos_token_id"].contents(),
            "eos_token_id": fields["tokenizer.ggml.eos_token_id"].contents()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("layout", choices=["bf16"] + [c.name for c in layouts.CASES])
    parser.add_argument("--group", type=int, help="columns that share a scale")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    args = parser.parse_args()
    reader = gguf.GGUFReader(args.model)
    case = next((c for c in layouts.CASES if c.name == args.layout), None)
    if case and args.group:
        case = dataclasses.replace(case, group=args.group)
    heads = {k: reader.fields[f"llama.attention.head_count{tail}"].contents()
             for k, tail in (("attn_q", ""), ("attn_k", "_kv"))}
    rng = np.random.Generator(np.random.PCG64(0))
    stored = {}
    for t in reader.tensors:
        values = np.array(gguf.quants.dequantize(t.data, t.tensor_type), np.float32)
        kind = t.name.split(".")[-2]
        if kind in heads:
            values = halves_together(values, heads[kind])
        if case and t.name.startswith("blk.") and values.ndim == 2:
            tensors = layouts.quantise_matrix(values.astype(np.float64), case, rng)[0]
        else:
            tensors = {"weight": torch.from_numpy(values).to(torch.bfloat16)}
        for end, tensor in tensors.items():
            stored[f"{hf_name(t.name)}.{end}"] = tensor.contiguous()
    args.out.mkdir(parents=True, exist_ok=True)
    config = config_of(reader.fields, "lm_head.weight" not in stored)
    if case:
        config["quantization_config"] = layouts.quantization_config(case)
    (args.out / "config.json").write_text(json.dumps(config, indent=1, default=str) + "\n")
    save_file(stored, args.out / "model.safetensors", metadata={"format": "pt"})
    text = args.tokenizer.read_bytes()
    (args.out / "tokenizer.json").write_bytes(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)
    print(f"{args.out}: {sum(v.nbytes for v in stored.values())} bytes")


if __name__ == "__main__":
    main()
