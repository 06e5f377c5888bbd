#!/usr/bin/env python3
"""Do the settings that `sluice plan` recommends beat the defaults, measured?

    scripts/plan_verify.py BINARY MODEL --slo ttft=2s,tpot=80ms --workload TRACE.csv --requests 60 [--rounds 3]
    scripts/plan_verify.py BINARY MODEL --slo ... --rate 2 --input lognormal:200:800 --output 32-128 -- -t 2 --ctx 2048

Calibrates (or takes --cost), plans, then serves the workload with both settings in turn, a fresh server each time:
defaults, recommended, recommended, defaults, ... so that a machine that slowly changes favours neither. `bench serve`
sends the requests and counts those that keep the objectives. Words behind -- are the engine's options of everything.
The last line says which is better: only if every round of one is better than every round of the other.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile

FIGURES = (("goodput_requests_per_s", "goodput/s"), ("attainment", "attained"), ("output_tokens_per_s", "tokens/s"))


def say(text):
    print(text, flush=True)


def run(command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        name = pathlib.Path(sys.argv[0]).stem
        sys.exit(f"{name}: {' '.join(map(str, command))}\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def workload_of(o, for_plan):
    """The options that name the workload. A trace's --time-scale is of gaps for plan, of the clock for bench serve."""
    if o.workload:
        scale = o.time_scale if for_plan else 1 / o.time_scale
        words = ["--workload" if for_plan else "--trace", o.workload, "--time-scale", scale,
                 "--length-scale", o.length_scale]
    else:
        words = ["--rate", o.rate, "--input", o.input, "--output", o.output]
    return [*words, "--requests", o.requests]


def recommendation(o, cost, folder):
    """What the planner says of one server, as `sluice plan --json` has it."""
    words = [o.binary, "plan", o.model, "--cost", cost, "--slo", o.slo, "--json", "-q", "--max-replicas", 1,
             *workload_of(o, True), *o.engine]
    return json.loads(run(words, cwd=folder))


def advice(planned):
    """(options of the recommended server, none where the defaults are best; lines to print)"""
    best = planned["trials"][planned["best"]]
    lines = ["The planner: " + planned["choice"]["words"][0], *planned["choice"]["words"][1:]]
    if planned["choice"]["defaults_are_best"]:
        return [], [*lines, "Nothing to measure."]
    options = shlex.split(planned["command"])[3:]  # behind `sluice serve MODEL`: the engine's, and those chosen
    return options, [*lines, "recommended: " + best["flags"]]


def serve(o, options):
    command = [o.binary, "serve", o.model, "--port", "0", "--no-log-requests", *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in server.stderr:
        lines.append(line)
        if match := re.search(r"ready on (http://\S+)", line):
            return server, match[1]
    sys.exit(f"plan_verify: {' '.join(command)}\n{''.join(lines)[-2000:]}")


def stop(server):
    server.send_signal(signal.SIGTERM)
    try:
        server.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        server.kill()
        server.communicate()


def measure(o, options, number):
    server, url = serve(o, options)
    try:
        words = [o.binary, "bench", "serve", "--url", url, "--endpoint", "completions", "--token-ids", "--slo", o.slo,
                 "--seed", number, "--json", "-", "-q", *workload_of(o, False)]
        return json.loads(run(words))["runs"][0]
    finally:
        stop(server)


def verdict(defaults, best):
    """One line; both are lists of goodput."""
    middle = statistics.median(defaults)
    ratio = statistics.median(best) / middle if middle > 0 else float("nan")
    if min(best) > max(defaults):
        return f"The recommended settings are better: {ratio:.2f} times the defaults' goodput, in every round."
    if max(best) < min(defaults):
        return f"The defaults are better: the recommended settings have {ratio:.2f} of their goodput, in every round."
    return f"No difference beyond the spread ({ratio:.2f}): keep the defaults."


def report(rounds):
    say(f"\n{'':14s} {'goodput/s':>20s} {'attained':>20s} {'tokens/s':>20s}   median (least - most)")
    for name, runs in rounds.items():
        cells = []
        for field, _ in FIGURES:
            values = [r[field] for r in runs]
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f} - {max(values):.2f})")
        say(f"{name:14s} " + " ".join(f"{c:>20s}" for c in cells))


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("model")
    p.add_argument("--slo", required=True, help="objectives, like ttft=2s,tpot=80ms")
    p.add_argument("--workload", help="a trace, as `sluice plan` reads it")
    p.add_argument("--time-scale", type=float, default=1, help="of a trace: gaps times this")
    p.add_argument("--length-scale", type=float, default=1)
    p.add_argument("--rate", type=float, default=1, help="requests per second, without a trace")
    p.add_argument("--input", default="128")
    p.add_argument("--output", default="64")
    p.add_argument("--requests", type=int, default=60)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--cost", help="a file of `sluice plan calibrate`; else it is measured first")
    p.add_argument("--limit", type=float, default=45, help="seconds of calibration")
    p.add_argument("--json", action="store_true", help="every run, at the end")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    o = p.parse_args(words[:cut])
    o.engine = words[cut + 1:]
    o.binary = os.path.abspath(o.binary)
    if o.workload:
        o.workload = os.path.abspath(o.workload)
    if o.rounds < 1 or o.requests < 1 or o.time_scale <= 0:
        p.error("--rounds, --requests and --time-scale must be positive")
    return o


def main():
    o = arguments()
    with tempfile.TemporaryDirectory() as folder:
        cost = pathlib.Path(o.cost).resolve() if o.cost else pathlib.Path(folder) / "cost.json"
        if not o.cost:
            say(f"measuring steps for {o.limit:g} s")
            run([o.binary, "plan", "calibrate", o.model, "--limit", o.limit, "--out", cost, "-q", *o.engine])
        options, lines = advice(recommendation(o, cost, folder))
    for line in lines:
        say(line)
    if not options:
        return
    settings = {"defaults": o.engine, "recommended": options}
    rounds = {name: [] for name in settings}
    for number in range(o.rounds):
        order = list(settings) if number % 2 == 0 else list(settings)[::-1]
        for name in order:
            measured = measure(o, settings[name], number + 1)
            rounds[name].append(measured)
            figures = ", ".join(f"{label} {measured[field]:.2f}" for field, label in FIGURES)
            say(f"round {number + 1}, {name}: {figures}" + (f", {measured['failed']} failed" if measured["failed"] else ""))
    report(rounds)
    goodput = {name: [r["goodput_requests_per_s"] for r in runs] for name, runs in rounds.items()}
    say("\n" + verdict(goodput["defaults"], goodput["recommended"]))
    if o.json:
        say(json.dumps({"settings": settings, "rounds": rounds}))


if __name__ == "__main__":
    main()
