#!/usr/bin/env python3
"""Makes docs/images/engine.png: the page's Engine view while a server with the default model is under load.

usage: scripts/make_engine_picture.py BINARY [OPTION OF SERVE...]     (needs Chromium)
"""

import os
import pathlib
import random
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_BYTES = 300_000
SECONDS = 25  # of load before the picture, so that the charts have a shape

TOPICS = ["a river", "the sea", "a lighthouse", "a train", "a garden", "the moon", "an old clock", "a market"]


def load(server, number, stop):
    rng = random.Random(number)
    shared = "You are a patient storyteller who answers in full sentences. " * 4
    while not stop.is_set():
        prompt = shared + f"Tell me about {rng.choice(TOPICS)}. " * rng.randint(1, 40)
        try:
            server.request("/v1/completions", {"prompt": prompt, "max_tokens": rng.randint(20, 90), "ignore_eos": True,
                                               "n": 2 if rng.random() < 0.2 else 1}, timeout=120)
        except OSError:  # the server has been stopped
            return
        stop.wait(rng.random() * 0.5)


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    os.environ["SLUICE"] = os.path.abspath(sys.argv[1])
    sys.path.insert(0, str(ROOT / "tests/server"))
    sys.dont_write_bytecode = True
    from browser import Page, chromium
    from harness import Server, model
    if not chromium() or not model():
        sys.exit("needs Chromium and the default model (scripts/get_model.sh)")
    out = ROOT / "docs/images/engine.png"
    out.parent.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    with Server("--ctx", "2048", "--max-seqs", "16", *sys.argv[2:], name="SmolLM2-135M-Instruct") as server, Page() as page:
        threads = [threading.Thread(target=load, args=(server, i, stop)) for i in range(6)]
        for t in threads:
            t.start()
        try:
            page.size(1280, 940)
            page.scheme("light")
            page.open(server.url + "/#engine")
            time.sleep(SECONDS)
            page.screenshot(out)
        finally:
            stop.set()
            server.process.terminate()  # it drains; nobody waits for the answers
            for t in threads:
                t.join()
    size = out.stat().st_size
    print(f"{out}: {size} bytes")
    if size > MOST_BYTES:
        sys.exit(f"larger than {MOST_BYTES} bytes: make the window smaller")


if __name__ == "__main__":
    main()
