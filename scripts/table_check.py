#!/usr/bin/env python3
"""How near is `sluice plan table` for this CPU to steps that were measured here?

    scripts/table_check.py BINARY random:smollm2-135m [--formats bf16,q8_0,q4_0,q4_k] [--rounds 3]

Rounds over all formats: each measures the kernels anew (what the table is derived from) and the steps (`plan
calibrate`), so that a machine that slowly changes favours neither. Prints the medians of both and the ratio of their
tokens/s for every batch and for a prompt. The last line names the cell that is furthest off.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile


def run(command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"table_check: {' '.join(map(str, command))}\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def times_of(table):
    """{"batch 8": (derived, measured), ..., "prompt": ...} in seconds, of a table with one device and a cost."""
    cells = {}
    for cell in table["cells"]:
        cells.setdefault(cell["device"], []).append(cell)
    pairs = list(zip(cells["cpu"], cells["measured"]))
    out = {f"batch {derived['batch']}": (derived["step_s"], measured["step_s"]) for derived, measured in pairs}
    out["prompt"] = tuple(cell["ttft_s"] for cell in pairs[0])
    return out


def furthest(medians):
    """The (name, ratio of tokens/s) that is furthest from 1."""
    ratios = {name: measured / derived for name, (derived, measured) in medians.items()}
    return max(ratios.items(), key=lambda r: max(r[1], 1 / r[1]))


def one_round(o, fmt, folder):
    words = ["--format", fmt] if o.model.startswith("random:") else []
    cost = pathlib.Path(folder) / "cost.json"
    run([o.binary, "plan", "calibrate", o.model, *words, "--limit", o.limit, "--out", cost])
    with tempfile.TemporaryDirectory(dir=folder) as cache:  # rates that were kept are not taken
        own = dict(os.environ, XDG_CACHE_HOME=cache)
        return times_of(json.loads(run([o.binary, "plan", "table", o.model, *words, "--cost", cost, "--devices", "cpu",
                                        "--batches", o.batches, "--context", o.context, "--json"], env=own)))


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
    all_times = {}
    with tempfile.TemporaryDirectory() as folder:
        for k in range(o.rounds):
            for fmt in formats:
                print(f"table_check: round {k + 1} of {o.rounds}, {fmt}", file=sys.stderr, flush=True)
                for name, pair in one_round(o, fmt, folder).items():
                    all_times.setdefault(f"{fmt} {name}", []).append(pair)
    medians = {name: tuple(statistics.median(pair[k] for pair in pairs) for k in (0, 1))
               for name, pairs in all_times.items()}
    print(f"{'cell':18} {'table ms':>9} {'measured ms':>12} {'tokens/s':>9}  measured, least and most")
    for name, (derived, measured) in medians.items():
        seen = [pair[1] * 1e3 for pair in all_times[name]]
        print(f"{name:18} {derived * 1e3:9.2f} {measured * 1e3:12.2f} {measured / derived:9.2f}  "
              f"{min(seen):.2f}-{max(seen):.2f}")
    name, ratio = furthest(medians)
    print(f"furthest off: {name}, {ratio:.2f} times the measured tokens/s")


if __name__ == "__main__":
    main()
