#!/usr/bin/env python3
"""Makes tests/golden/beams.json: beam searches of transformers over the tiny models of tests/golden/hf.

    python3 -m venv build/venv-goldens
    build/venv-goldens/bin/pip install torch transformers numpy
    build/venv-goldens/bin/python scripts/make_beam_goldens.py [--check]

Each case: {"model": NAME, "prompt": [ids], "width": W, "length_penalty": P, "early_stopping": false, true or
"never", "max_new": N, "end": [ids], "answers": [[ids], ...], "scores": [S, ...]}. Answers come best first, each
with its end token where it has one. Random models seldom end, so the end tokens are some that greedy search
meets. A case whose scores are closer than 1e-4 is left out: rounding could change its order.
"""

import argparse
import json
import pathlib
import sys

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
MODELS = ["llama", "qwen3", "gemma2", "llama-window"]
CASES = [  # width, length_penalty, early_stopping, max_new, number of end tokens
    (1, 1.0, False, 12, 1),
    (2, 1.0, False, 16, 1),
    (3, 0.0, "never", 16, 1),
    (4, 1.0, True, 24, 1),
    (4, 2.0, "never", 20, 2),
    (5, -1.0, False, 20, 1),
    (8, 1.0, False, 24, 3),
    (4, 1.0, False, 12, 0),
]


def search(model, prompt, width, penalty, early, max_new, end):
    ids = torch.tensor([prompt])
    config = transformers.GenerationConfig(
        num_beams=width, num_return_sequences=width, do_sample=False, length_penalty=penalty,
        early_stopping=early if width > 1 else False, max_new_tokens=max_new, eos_token_id=end or None,
        pad_token_id=0, bos_token_id=None, return_dict_in_generate=True, output_scores=True)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    answers = []
    for row in out.sequences[:, len(prompt):].tolist():
        ends = [k for k, t in enumerate(row) if t in end]
        answers.append(row[:ends[0] + 1] if ends else row[:max_new])
    scores = out.sequences_scores.tolist() if width > 1 else []
    return answers, scores


def make():
    cases = []
    for name in MODELS:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            ROOT / "hf" / name, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        golden = json.loads((ROOT / "models" / f"{name}.json").read_text())
        tokens, greedy = golden["tokens"], golden["greedy"]
        for k, (width, penalty, early, max_new, num_end) in enumerate(CASES):
            prompt = tokens[:len(tokens) - 3 * k]
            with torch.no_grad():
                # End tokens: what greedy search from this prompt meets after a few tokens.
                first, _ = search(model, prompt, 1, 1.0, False, 12, [])
                end = list(dict.fromkeys(first[0][4:] + greedy))[:num_end]
                answers, scores = search(model, prompt, width, penalty, early, max_new, end)
            gaps = [a - b for a, b in zip(scores, scores[1:])]
            if gaps and min(gaps) < 1e-4:
                print(f"{name} case {k}: scores too close, left out", file=sys.stderr)
                continue
            cases.append({"model": name, "prompt": prompt, "width": width, "length_penalty": penalty,
                          "early_stopping": early, "max_new": max_new, "end": end, "answers": answers,
                          "scores": [round(s, 5) for s in scores]})
    return {"versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
            "cases": cases}


def main():
    parser = argparse.ArgumentParser(description="Beam searches of transformers as a golden file.")
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    args = parser.parse_args()
    path = ROOT / "beams.json"
    made = make()
    if args.check:
        same = json.loads(path.read_text())["cases"] == made["cases"]
        print("the same" if same else "different")
        sys.exit(0 if same else 1)
    lines = ",\n".join("  " + json.dumps(c) for c in made["cases"])
    path.write_text('{"versions": %s,\n "cases": [\n%s\n]}\n' % (json.dumps(made["versions"]), lines))
    ended = sum(a[-1] in c["end"] for c in made["cases"] for a in c["answers"])
    print(f"{path}: {len(made['cases'])} cases, {ended} answers that end by themselves")


if __name__ == "__main__":
    main()
