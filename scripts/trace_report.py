#!/usr/bin/env python3
"""Where the time of a trace went (sluice ... --trace FILE), and how much of the host's work a running step hid.

    scripts/trace_report.py FILE [--skip STEPS] [--steps STEPS]

Overlap: the share of the host's time (plan and complete) in which a step ran on the device; 0 with --pipeline sync. The same
of what the threads behind the engine do (detokenise, send). Ops are those of the forward passes of these steps. By default
the first 20 steps, which warm up, are left out.
"""
import argparse
import json
import sys

HOST = ("plan", "complete")
TEXT = ("detokenise", "send")


def union(spans):
    """Disjoint and sorted."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def length(spans):
    return sum(end - begin for begin, end in spans)


def common(a, b):
    """Time in both of two disjoint, sorted lists."""
    total, i, j = 0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def report(events, skip=20, steps=None):
    """Seconds by name of span and of op, the number of steps, overlaps, and the device's busy share."""
    spans = [e for e in events if e.get("ph") == "X" and "step" in e.get("args", {})]
    numbers = sorted({e["args"]["step"] for e in spans if e["name"] == "step"})[skip:]
    if steps is not None:
        numbers = numbers[:steps]
    chosen = set(numbers)
    by_name = {}
    for e in spans:
        if e["args"]["step"] in chosen:
            by_name.setdefault(e["name"], []).append((e["ts"], e["ts"] + e["dur"]))
    device, host = union(by_name.get("step", [])), union(sum((by_name.get(n, []) for n in HOST), []))
    whole = device[-1][1] - device[0][0] if device else 0
    tracks = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    ops, text = {}, []
    for e in events:
        if e.get("ph") != "X" or "step" in e.get("args", {}) or not device:
            continue
        if not device[0][0] <= e["ts"] < device[-1][1]:
            continue
        if tracks.get(e.get("tid")) == "ops":
            ops[e["name"]] = ops.get(e["name"], 0) + e["dur"] / 1e6
        elif e["name"] in TEXT:
            by_name.setdefault(e["name"], []).append((e["ts"], e["ts"] + e["dur"]))
            text.append((e["ts"], e["ts"] + e["dur"]))
    text = union(text)
    # A track that is full ends early: ops are divided by the steps that it has.
    last_op = max((e["ts"] for e in events if e.get("ph") == "X" and tracks.get(e.get("tid")) == "ops"), default=0)
    with_ops = sum(begin <= last_op for begin, _ in by_name.get("step", []))
    return {"steps": len(chosen), "steps_with_ops": with_ops, "ops": dict(sorted(ops.items(), key=lambda op: -op[1])),
            "text_overlap": common(device, text) / length(text) if length(text) else 0, "seconds": {name: length(s) / 1e6 for name, s in sorted(by_name.items())},
            "overlap": common(device, host) / length(host) if length(host) else 0,
            "busy": length(device) / whole if whole else 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--skip", type=int, default=20, help="steps left out at the beginning")
    parser.add_argument("--steps", type=int, help="how many count (default: all that follow)")
    args = parser.parse_args()
    try:
        with open(args.file, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    except (OSError, ValueError, KeyError) as e:
        sys.exit(f"trace_report.py: {args.file} is no trace: {e}")
    r = report(events, args.skip, args.steps)
    if not r["steps"]:
        sys.exit(f"trace_report.py: {args.file} has no step behind the first {args.skip}: lower --skip")
    for name, total in r["seconds"].items():
        print(f"{name:10} {total * 1e3 / r['steps']:10.4f} ms a step {total:10.3f} s")
    for name, total in r["ops"].items():
        print(f"  op {name:15} {total * 1e3 / max(r['steps_with_ops'], 1):7.4f} ms a step {100 * total / sum(r['ops'].values()):9.1f} % of ops")
    if r["ops"] and r["steps_with_ops"] < r["steps"]:
        print(f"  ops: the track was full after {r['steps_with_ops']} of {r['steps']} steps")
    if any(name in r["seconds"] for name in TEXT):
        print(f"overlap {100 * r['text_overlap']:.1f} % of detokenising and sending (send holds detokenise in a server)")
    print(f"{r['steps']} steps; device busy {100 * r['busy']:.1f} %; overlap {100 * r['overlap']:.1f} % of the host's time")


if __name__ == "__main__":
    main()
