#!/usr/bin/env python3
"""Our tokenizers beside the tokenizers library, one thread each, on the same texts: MB/s and load time.

    scripts/bench_tokenizers.py BINARY [--data DIR]

BINARY is bench/tokenize_bench (cmake -DSLUICE_BENCH=ON). The library comes from PyPI:

    python3 -m venv build/venv-tokenizers
    build/venv-tokenizers/bin/pip install tokenizers==0.23.3
    build/venv-tokenizers/bin/python scripts/bench_tokenizers.py build/bench/bench/tokenize_bench

Texts: eval/wiki.test.raw as one, and the prompts of workloads/spec_bench_prompts.jsonl one by one.
Both sides take the best of several rounds, in processor time, and look for special tokens.
"""
import argparse
import gzip
import json
import os
import pathlib
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


def prompts(path):
    out = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        out += entry["turns"] if "turns" in entry else [entry["prompt"]]
    return [" ".join(text.split("\n")) for text in out]


def measure(tokenizer, texts):
    size = sum(len(t.encode()) for t in texts)
    best, total, rounds = 1e9, 0.0, 0
    while rounds < 3 or total < 0.5:
        start = time.process_time()
        for text in texts:
            tokenizer.encode(text, add_special_tokens=False)
        took = time.process_time() - start
        best, total, rounds = min(best, took), total + took, rounds + 1
    return size / best / 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--data", default=os.environ.get("SLUICE_TEST_DATA", ROOT.parent / "shared" / "data"))
    args = parser.parse_args()
    data = pathlib.Path(args.data)
    wiki = (data / "eval" / "wiki.test.raw").read_text()
    short = prompts(data / "workloads" / "spec_bench_prompts.jsonl")
    print(f"{'':14} {'load ms':>8} {'theirs':>7} {'ratio':>6}   {'large MB/s':>10} {'theirs':>7} {'ratio':>6}   "
          f"{'short MB/s':>10} {'theirs':>7} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "large.txt").write_text(wiki)
        (folder / "short.jsonl").write_text("\n".join(short))  # lines: no JSON in them
        for file in sorted(data.glob("tokenizers/*/*.json.gz")):
            text = gzip.open(file, "rt").read()
            (folder / "tokenizer.json").write_text(text)
            load = []
            for _ in range(3):
                start = time.process_time()
                theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
                load.append((time.process_time() - start) * 1e3)
            done = subprocess.run([args.binary, folder / "tokenizer.json", "--speed", folder / "large.txt",
                                   folder / "short.jsonl"], capture_output=True, text=True, check=True)
            ours = [json.loads(line) for line in done.stdout.splitlines()]
            row = [(min(load), ours[0]["load_ms"]), (measure(theirs, [wiki]), ours[0]["mb_per_s"]),
                   (measure(theirs, short), ours[1]["mb_per_s"])]
            (t0, o0), (t1, o1), (t2, o2) = row
            print(f"{file.parent.name:14} {o0:8.0f} {t0:7.0f} {t0 / o0:6.1f}   {o1:10.1f} {t1:7.1f} {o1 / t1:6.1f}   "
                  f"{o2:10.1f} {t2:7.1f} {o2 / t2:6.1f}", flush=True)


if __name__ == "__main__":
    main()
