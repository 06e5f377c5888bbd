#!/usr/bin/env python3
"""What a prompt that was computed elsewhere costs: a prefill and a decode server on this machine, one prompt of N tokens
at a time, with a shared key and without, by one transport (--kv-transport) or by several in turns.

    scripts/bench_transfer.py BINARY [MODEL] [--tokens 2049] [--rounds 4] [--transport shm,tcp] [--repeat 1]
                              [--prefix-host 100M] [--no-key]

Prints for each round the prefill's time, how long the decode server fetched and how much, and its whole answer of one token;
then the decode server's time for a prompt of that length without a transfer; and in the end medians of the fetches."""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/server"))


def ask(server, tokens, **fields):
    begin = time.monotonic()
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True, **fields}
    status, _, answer = server.request("/v1/completions", body, timeout=600, patience=1)
    if status != 200:
        sys.exit(f"error: {status}: {answer}")
    return time.monotonic() - begin, answer


def fetched(server):
    """Seconds and bytes until now."""
    return [server.metric(f"sluice_kv_transfer_{m}_total") for m in ("seconds", "received_bytes")]


def run(first, second, options):
    """The seconds of each fetch."""
    took = []
    for number in range(options.rounds):
        tokens = [(k * 7 + number * 31) % 90 + 5 for k in range(options.tokens)]
        before = fetched(second)
        prefill, answer = ask(first, tokens, kv_transfer_params={"do_remote_decode": True})
        whole, _ = ask(second, tokens, kv_transfer_params=answer["kv_transfer_params"])
        seconds, size = (b - a for a, b in zip(before, fetched(second)))
        print(f"  prefill {prefill:.2f} s, fetched {size / 1e6:.1f} MB in {seconds * 1e3:.0f} ms "
              f"({size / max(seconds, 1e-9) / 1e9:.2f} GB/s), the answer after {whole:.3f} s", flush=True)
        took.append(seconds)
    tokens = [(k * 7 + options.rounds * 31) % 90 + 5 for k in range(options.tokens)]
    print(f"  computed by the decode server: {ask(second, tokens)[0]:.3f} s", flush=True)
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("binary")
    parser.add_argument("model", nargs="?", default="random:smollm2-135m")
    parser.add_argument("--tokens", type=int, default=2049)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--transport", default="", help="of --kv-transport, with commas; the default unless given")
    parser.add_argument("--prefix-host", help="of both: if small, later rounds write to memory used before")
    parser.add_argument("--no-key", action="store_true", help="measure without a key alone")
    parser.add_argument("--repeat", type=int, default=1, help="how often all of them take their turn")
    options = parser.parse_args()
    os.environ["SLUICE"] = str(pathlib.Path(options.binary).resolve())
    from harness import Server  # pylint: disable=import-outside-toplevel

    context = ("--ctx", str(options.tokens + 64), "-t", "1")
    if options.prefix_host:
        context += ("--prefix-host", options.prefix_host)
    took = {}
    with tempfile.NamedTemporaryFile(suffix=".key") as key:
        key.write(os.urandom(16).hex().encode())
        key.flush()
        for _ in range(options.repeat):
            for keyed in ((),) if options.no_key else ((), ("--kv-key", key.name)):
                for transport in options.transport.split(","):
                    name = f"{transport}{' ' if transport else ''}{'with' if keyed else 'without'} a key"
                    print(name)
                    args = (*context, *keyed, *(("--kv-transport", transport) if transport else ()))
                    with Server("--role", "prefill", *args, path=options.model) as first, \
                            Server("--role", "decode", *args, path=options.model) as second:
                        took.setdefault(name, []).extend(run(first, second, options))
    for name, times in took.items():
        print(f"{name}: {statistics.median(times) * 1e3:.1f} ms, median of {len(times)} "
              f"({min(times) * 1e3:.1f} to {max(times) * 1e3:.1f})")


if __name__ == "__main__":
    main()
