#!/usr/bin/env python3
"""Writes the seeds of the fuzzers of model files, valid files of a few hundred bytes: fuzz/corpus/gguf
(between them every value type, every tensor format and both versions), fuzz/corpus/safetensors, and
fuzz/corpus/hf_checkpoint (a config.json, a zero byte, a safetensors file)."""

import json
import pathlib
import struct

OUT = pathlib.Path(__file__).resolve().parent.parent / "fuzz" / "corpus" / "gguf"
SCALARS = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"),
           "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "B"), "u64": (10, "Q"), "i64": (11, "q"),
           "f64": (12, "d")}
STRING, ARRAY = 8, 9
FORMATS = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
           "Q8_0": (8, 32, 34), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2),
           "MXFP4": (39, 32, 17)}


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def scalar(key, kind, value):
    number, code = SCALARS[kind]
    return string(key) + struct.pack("<I" + code, number, value)


def text(key, value):
    return string(key) + struct.pack("<I", STRING) + string(value)


def array(key, kind, values):
    if kind == "str":
        body = struct.pack("<IQ", STRING, len(values)) + b"".join(string(v) for v in values)
    elif kind == "nested":
        inner = struct.pack("<IQ2B", 0, 2, 1, 2)
        body = struct.pack("<IQ", ARRAY, len(values)) + inner * len(values)
    else:
        number, code = SCALARS[kind]
        body = struct.pack("<IQ%d%s" % (len(values), code), number, len(values), *values)
    return string(key) + struct.pack("<I", ARRAY) + body


def gguf(keys, tensors=(), version=3, alignment=32):
    """tensors: (name, dims, format)."""
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(keys)) + b"".join(keys)
    data = b""
    for name, dims, form in tensors:
        number, elems, size = FORMATS[form]
        count = 1
        for d in dims:
            count *= d
        data += b"\0" * (-len(data) % alignment)
        head += string(name) + struct.pack("<I%dQIQ" % len(dims), len(dims), *dims, number, len(data))
        data += bytes(i % 61 for i in range(count // elems * size))
    return head + b"\0" * (-len(head) % alignment) + data if tensors else head


def safetensors(tensors, metadata=None):
    """tensors: (name, dtype, bytes per element, shape)."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, dtype, size, shape in tensors:
        count = size
        for d in shape:
            count *= d
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + count]}
        data += bytes(i % 61 for i in range(count))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def make_safetensors():
    out = OUT.parent / "safetensors"
    out.mkdir(parents=True, exist_ok=True)
    types = [("F64", 8), ("F32", 4), ("F16", 2), ("BF16", 2), ("I64", 8), ("I32", 4), ("I16", 2), ("I8", 1),
             ("U64", 8), ("U32", 4), ("U16", 2), ("U8", 1), ("BOOL", 1), ("F8_E4M3", 1), ("F8_E5M2", 1)]
    seeds = {
        "empty": safetensors([]),
        "metadata": safetensors([("a", "F32", 4, [2])], {"format": "pt"}),
        "types": safetensors([(name, name, size, [2]) for name, size in types]),
        "shapes": safetensors([("scalar", "F32", 4, []), ("none", "F16", 2, [0, 3]), ("v", "BF16", 2, [3]),
                               ("m", "F32", 4, [2, 3]), ("c", "U8", 1, [1, 2, 3])]),
        "layer": safetensors([("model.layers.0.self_attn.q_proj.weight", "BF16", 2, [4, 4]),
                              ("model.layers.0.self_attn.q_proj.qweight", "I32", 4, [1, 4])]),
    }
    for name, data in seeds.items():
        (out / (name + ".safetensors")).write_bytes(data)


def hf_checkpoint(quant, parts):
    """A llama of one layer whose up_proj [8, 32] is made of `parts`, as safetensors() takes them."""
    config = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8,
              "intermediate_size": 8, "vocab_size": 2, "max_position_embeddings": 8, "tie_word_embeddings": True}
    if quant:
        config["quantization_config"] = quant
    layer = "model.layers.0."
    shapes = {"self_attn.q_proj": [8, 32], "self_attn.k_proj": [8, 32], "self_attn.v_proj": [8, 32],
              "self_attn.o_proj": [32, 8], "mlp.gate_proj": [8, 32], "mlp.down_proj": [32, 8],
              "input_layernorm": [32], "post_attention_layernorm": [32]}
    tensors = [(layer + n + ".weight", "F16", 2, shape) for n, shape in shapes.items()]
    tensors += [("model.embed_tokens.weight", "F16", 2, [2, 32]), ("model.norm.weight", "F16", 2, [32])]
    tensors += [(layer + "mlp.up_proj." + name, *rest) for name, *rest in parts]
    return json.dumps(config, separators=(",", ":")).encode() + b"\0" + safetensors(tensors)


def make_hf_checkpoints():
    out = OUT.parent / "hf_checkpoint"
    out.mkdir(parents=True, exist_ok=True)

    def packed(kind, bits, strategy, group=None, name="pack-quantized"):
        weights = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group}
        return {"quant_method": "compressed-tensors", "format": name, "config_groups": {"g": {"weights": weights}}}

    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 16, "dynamic": {"+:x": {"bits": 8}}}
    seeds = {
        "plain": hf_checkpoint(None, [("weight", "BF16", 2, [8, 32])]),
        "gptq": hf_checkpoint(gptq, [("qweight", "I32", 4, [4, 8]), ("qzeros", "I32", 4, [2, 1]),
                                     ("scales", "F16", 2, [2, 8])]),
        "gptq-8": hf_checkpoint(gptq, [("qweight", "I32", 4, [8, 8]), ("qzeros", "I32", 4, [1, 2]),
                                       ("scales", "F32", 4, [1, 8])]),
        "awq": hf_checkpoint({"quant_method": "awq", "group_size": 32, "version": "gemm"},
                             [("qweight", "I32", 4, [32, 1]), ("qzeros", "I32", 4, [1, 1]),
                              ("scales", "F16", 2, [1, 8])]),
        "w4": hf_checkpoint(packed("int", 4, "group", 16),
                            [("weight_packed", "I32", 4, [8, 4]), ("weight_scale", "BF16", 2, [8, 2]),
                             ("weight_zero_point", "I32", 4, [1, 2])]),
        "w8": hf_checkpoint(packed("int", 8, "channel", name="int-quantized"),
                            [("weight", "I8", 1, [8, 32]), ("weight_scale", "F32", 4, [8, 1]),
                             ("weight_zero_point", "I8", 1, [8, 1]), ("input_scale", "F32", 4, [1])]),
        "mxfp4": hf_checkpoint(packed("float", 4, "group", 32, "mxfp4-pack-quantized"),
                               [("weight_packed", "U8", 1, [8, 16]), ("weight_scale", "U8", 1, [8, 1])]),
        "fp8": hf_checkpoint({"quant_method": "fp8", "weight_block_size": [3, 20]},
                             [("weight", "F8_E4M3", 1, [8, 32]), ("weight_scale_inv", "F32", 4, [3, 2])]),
    }
    for name, data in seeds.items():
        (out / name).write_bytes(data)


def main():
    make_safetensors()
    make_hf_checkpoints()
    OUT.mkdir(parents=True, exist_ok=True)
    arch = text("general.architecture", "llama")
    seeds = {
        "empty": gguf([]),
        "scalars": gguf([scalar("k." + kind, kind, 1) for kind in SCALARS] + [arch], version=2),
        "arrays": gguf([array("a." + kind, kind, [0, 1]) for kind in SCALARS]),
        "vocabulary": gguf([arch, array("tokenizer.ggml.tokens", "str", ["a", "", "bc"]),
                            array("tokenizer.ggml.scores", "f32", [0, -1, -2])]),
        "nested": gguf([array("nested", "nested", [0, 1]), arch]),
        "formats": gguf([arch], [(name.lower(), (256,), name) for name in FORMATS]),
        "shapes": gguf([arch], [("v", (4,), "F32"), ("m", (32, 2), "Q8_0"), ("c", (2, 2, 2), "F16"),
                                ("d", (1, 2, 1, 2), "BF16")]),
        "aligned": gguf([scalar("general.alignment", "u32", 64)],
                        [("a", (3,), "F32"), ("b", (5,), "F16")], alignment=64),
        "split": gguf([scalar("split.no", "u16", 0), scalar("split.count", "u16", 2),
                       scalar("split.tensors.count", "i32", 2)], [("a", (2,), "F32")]),
    }
    for name, data in seeds.items():
        (OUT / (name + ".gguf")).write_bytes(data)


if __name__ == "__main__":
    main()
