#!/usr/bin/env python3
"""How near is `sluice plan table` for this CPU to steps that were measured here?

    scripts/table_check.py BINARY random:smollm2-135m [--formats bf16,q8_0,q4_0,q4_k] [--rounds 3]

Rounds over all formats. Each measures the kernels that the table is derived from before and behind the steps (`plan
calibrate`), and compares the mean of the two tables with the steps: machines change by the minute. Prints medians of
both, and the median, the least and the most of the rounds' ratios of tokens/s, for every batch and for a prompt. The
last line names the cell that is furthest off.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from plan_verify import run  # noqa: E402


def times_of(table, device):
    """{"batch 8": seconds of a step, ..., "prompt": seconds}"""
    cells = [cell for cell in table["cells"] if cell["device"] == device]
    return {**{f"batch {cell['batch']}": cell["step_s"] for cell in cells}, "prompt": cells[0]["ttft_s"]}


def pairs_of(before, after):
    """{name: (derived, measured)} of two tables, the second of which has the measured cost."""
    first, second, measured = times_of(before, "cpu"), times_of(after, "cpu"), times_of(after, "measured")
    return {name: ((first[name] + second[name]) / 2, measured[name]) for name in measured}


def ratios(pairs):
    """Of tokens/s, the table to what was measured."""
    return [measured / derived for derived, measured in pairs]


def furthest(all_pairs):
    """The (name, median ratio of tokens/s) that is furthest from 1."""
    medians = {name: statistics.median(ratios(pairs)) for name, pairs in all_pairs.items()}
    return max(medians.items(), key=lambda r: max(r[1], 1 / r[1]))


def table(o, words):
    with tempfile.TemporaryDirectory() as cache:  # rates that were kept are not taken
        return json.loads(run([o.binary, "plan", "table", o.model, *words, "--devices", "cpu", "--batches", o.batches,
                               "--context", o.context, "--json"], env=dict(os.environ, XDG_CACHE_HOME=cache)))


def one_round(o, fmt, folder):
    words = ["--format", fmt] if o.model.startswith("random:") else []
    cost = pathlib.Path(folder) / "cost.json"
    before = table(o, words)
    run([o.binary, "plan", "calibrate", o.model, *words, "--limit", o.limit, "--out", cost])
    return pairs_of(before, table(o, [*words, "--cost", cost]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary", type=lambda path: str(pathlib.Path(path).resolve()))
    p.add_argument("model")
    p.add_argument("--formats", default="bf16,q8_0,q4_0,q4_k", help="of a random: model")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--batches", default="1,8,16")
    p.add_argument("--context", type=int, default=128)
    p.add_argument("--limit", type=int, default=30, help="seconds of `plan calibrate`, about")
    o = p.parse_args()
    formats = o.formats.split(",") if o.model.startswith("random:") else ["file"]
    all_pairs = {}
    with tempfile.TemporaryDirectory() as folder:
        for k in range(o.rounds):
            for fmt in formats:
                print(f"table_check: round {k + 1} of {o.rounds}, {fmt}", file=sys.stderr, flush=True)
                for name, pair in one_round(o, fmt, folder).items():
                    all_pairs.setdefault(f"{fmt} {name}", []).append(pair)
    print(f"{'cell':18} {'table ms':>9} {'measured ms':>12} {'tokens/s':>9}  least and most")
    for name, pairs in all_pairs.items():
        derived, measured = (statistics.median(pair[k] for pair in pairs) * 1e3 for k in (0, 1))
        seen = ratios(pairs)
        print(f"{name:18} {derived:9.2f} {measured:12.2f} {statistics.median(seen):9.2f}  "
              f"{min(seen):.2f}-{max(seen):.2f}")
    name, ratio = furthest(all_pairs)
    print(f"furthest off: {name}, {ratio:.2f} times the measured tokens/s")


if __name__ == "__main__":
    main()
