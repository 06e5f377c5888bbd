#!/usr/bin/env python3
"""What a prompt that was computed elsewhere costs: a prefill and a decode server on this machine, one prompt of N tokens
at a time, with a shared key and without.

    scripts/bench_transfer.py BINARY [MODEL] [--tokens 2049] [--rounds 4]

Prints for each round the prefill's time, how long the decode server fetched and how much, and its whole answer of one token;
then the decode server's time for a prompt of that length without a transfer."""

import argparse
import os
import pathlib
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("binary")
    parser.add_argument("model", nargs="?", default="random:smollm2-135m")
    parser.add_argument("--tokens", type=int, default=2049)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    os.environ["SLUICE"] = str(pathlib.Path(options.binary).resolve())
    from harness import Server  # pylint: disable=import-outside-toplevel

    context = ("--ctx", str(options.tokens + 64), "-t", "1")
    with tempfile.NamedTemporaryFile(suffix=".key") as key:
        key.write(os.urandom(16).hex().encode())
        key.flush()
        for keyed in (), ("--kv-key", key.name):
            print("with a key" if keyed else "without a key")
            with Server("--role", "prefill", *context, *keyed, path=options.model) as first, \
                    Server("--role", "decode", *context, *keyed, path=options.model) as second:
                for number in range(options.rounds + 1):
                    tokens = [(k * 7 + number * 31) % 90 + 5 for k in range(options.tokens)]
                    if number == options.rounds:
                        print(f"  computed by the decode server: {ask(second, tokens)[0]:.3f} s")
                        break
                    before = [second.metric(f"sluice_kv_transfer_{m}_total") for m in ("seconds", "received_bytes")]
                    prefill, answer = ask(first, tokens, kv_transfer_params={"do_remote_decode": True})
                    whole, _ = ask(second, tokens, kv_transfer_params=answer["kv_transfer_params"])
                    after = [second.metric(f"sluice_kv_transfer_{m}_total") for m in ("seconds", "received_bytes")]
                    seconds, size = (b - a for a, b in zip(before, after))
                    print(f"  prefill {prefill:.2f} s, fetched {size / 1e6:.1f} MB in {seconds * 1e3:.0f} ms "
                          f"({size / max(seconds, 1e-9) / 1e9:.2f} GB/s), the answer after {whole:.3f} s")


if __name__ == "__main__":
    main()
