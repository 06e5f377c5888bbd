#!/usr/bin/env python3
"""Perplexity of one GGUF file from sluice and from transformers (fp32, weights dequantised by the `gguf` package).

    python3 -m venv build/venv-goldens
    build/venv-goldens/bin/pip install torch transformers gguf accelerate
    build/venv-goldens/bin/python scripts/compare_perplexity.py MODEL.gguf TEXT [--ctx 512] [--windows 64]
                                                                [--binary build/release/sluice]

The other side reads the file, tokenises the text and computes the logits with nothing of ours. Both score the
same non-overlapping windows, without BOS when the tokenizer adds none. Prints one line of JSON and exits 1 when the
two differ by more than --tolerance (0.5 %).
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys


def independent(model_path, text, ctx, windows):
    import torch
    import transformers
    path = pathlib.Path(model_path).resolve()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name,
                                                              dtype=torch.float32).eval()
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    windows = min(windows, len(ids) // ctx)
    total = squares = 0.0
    count = 0
    with torch.inference_mode():
        for w in range(windows):
            x = torch.tensor([ids[w * ctx:(w + 1) * ctx]])
            logits = model(x).logits[0, :-1].double()
            nll = torch.nn.functional.cross_entropy(logits, x[0, 1:], reduction="none")
            total += nll.sum().item()
            squares += (nll * nll).sum().item()
            count += nll.numel()
            print(f"\r{w + 1} of {windows} windows, perplexity {math.exp(total / count):.4f}", end="",
                  file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {"perplexity": math.exp(total / count), "nll": total / count, "tokens": count, "windows": windows,
            "transformers": transformers.__version__, "torch": torch.__version__}


def ours(binary, model, text, ctx, windows):
    out = subprocess.run([binary, "perplexity", model, text, "--ctx", str(ctx), "--windows", str(windows), "--json"],
                         check=True, stdout=subprocess.PIPE)
    return json.loads(out.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--binary", default="build/release/sluice")
    parser.add_argument("--tolerance", type=float, default=0.005)
    args = parser.parse_args()
    mine = ours(args.binary, args.model, args.text, args.ctx, args.windows)
    if mine["bos"]:
        sys.exit("this model's tokenizer adds BOS: the windows would differ")
    with open(args.text, encoding="utf-8", newline="") as f:
        other = independent(args.model, f.read(), args.ctx, args.windows)
    ratio = mine["perplexity"] / other["perplexity"]
    print(json.dumps({"sluice": mine, "independent": other, "ratio": ratio}))
    if mine["tokens"] != other["tokens"] or abs(ratio - 1) > args.tolerance:
        sys.exit(1)


if __name__ == "__main__":
    main()
