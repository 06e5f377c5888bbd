#!/usr/bin/env python3
"""What int8 K and V cost by how many elements share a scale, down to one scale per tensor (the baseline that no cache
should use), on the real K and V of a model. Nothing of ours computes here.

    python3 -m venv build/venv-goldens
    build/venv-goldens/bin/pip install torch transformers gguf accelerate
    build/venv-goldens/bin/python scripts/compare_kv_scales.py MODEL.gguf TEXT [--ctx 512] [--windows 32]

Inside `transformers` (fp32, weights dequantised by the `gguf` package) K after RoPE and V are rounded before
attention as a cache would hold them: f16, or int8 codes round(x / scale) with f16 scales max |x| / 127 over groups of
dimensions, or over a layer's whole tensor (all heads and positions of the window: a scale fixed in
advance, which a cache would need, can only be worse). Prints perplexity over the same windows, its change against f16,
and the signal-to-noise ratio of K and V over all layers. Deterministic.
"""

import argparse
import math
import pathlib
import sys

MODES = ["none", "f16", "int8:8", "int8:32", "int8:64", "int8, one scale per tensor"]


def rounded(x, mode):
    import torch
    if mode == "none":
        return x
    if mode == "f16":
        return x.half().float()
    if mode.endswith("tensor"):
        parts = x.reshape(1, -1)
    else:
        parts = x.reshape(-1, int(mode.split(":")[1]))
    scale = (parts.abs().amax(dim=1, keepdim=True) / 127).clamp_min(1e-7).half().float()
    return (torch.round(parts / scale).clamp(-127, 127) * scale).reshape(x.shape)


class Rounding:
    """Stands in for the attention function and rounds its K and V; keeps signal and noise."""

    def __init__(self, attend):
        self.attend = attend
        self.mode = "none"
        self.power = {}

    def __call__(self, module, query, key, value, *args, **kwargs):
        out = []
        for name, x in (("k", key), ("v", value)):
            y = rounded(x, self.mode)
            signal, noise = self.power.get((self.mode, name), (0.0, 0.0))
            self.power[self.mode, name] = (signal + x.double().square().sum().item(),
                                           noise + (x - y).double().square().sum().item())
            out.append(y)
        return self.attend(module, query, *out, *args, **kwargs)

    def snr(self, mode, name):
        signal, noise = self.power[mode, name]
        return 10 * math.log10(signal / noise) if noise else math.inf


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--windows", type=int, default=32)
    args = parser.parse_args()

    import torch
    import transformers
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    path = pathlib.Path(args.model).resolve()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa").eval()
    rounding = Rounding(ALL_ATTENTION_FUNCTIONS["sdpa"])
    ALL_ATTENTION_FUNCTIONS["sdpa"] = rounding
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    modes = [m for m in MODES if not (":" in m and head_dim % int(m.split(":")[1]))]

    ids = tokenizer(pathlib.Path(args.text).read_text(encoding="utf-8"), add_special_tokens=False,
                    verbose=False)["input_ids"]
    windows = min(args.windows, len(ids) // args.ctx)
    nll = dict.fromkeys(modes, 0.0)
    with torch.inference_mode():
        for w in range(windows):
            x = torch.tensor([ids[w * args.ctx:(w + 1) * args.ctx]])
            for mode in modes:
                rounding.mode = mode
                logits = model(x, use_cache=False).logits[0, :-1].double()
                nll[mode] += torch.nn.functional.cross_entropy(logits, x[0, 1:], reduction="sum").item()
            print(f"\r{w + 1} of {windows} windows", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    tokens = windows * (args.ctx - 1)
    base = math.exp(nll["f16"] / tokens)
    print(f"{windows} windows of {args.ctx}, transformers {transformers.__version__}, torch {torch.__version__}")
    print("| K and V | perplexity | of f16 | SNR of K, dB | SNR of V, dB |\n|---|---:|---:|---:|---:|")
    for mode in modes:
        perplexity = math.exp(nll[mode] / tokens)
        print(f"| {mode} | {perplexity:.3f} | {100 * (perplexity / base - 1):+.2f} % | {rounding.snr(mode, 'k'):.1f} | "
              f"{rounding.snr(mode, 'v'):.1f} |")


if __name__ == "__main__":
    main()
