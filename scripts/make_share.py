#!/usr/bin/env python3
"""Writes what a package has under share/ from the program's own help: a man page and shell completions.

    scripts/make_share.py BINARY SHARE
"""

import gzip
import pathlib
import re
import subprocess
import sys

ENV = {"LC_ALL": "C.UTF-8"}  # no SLUICE_* of the user
COMPLETIONS = {
    "bash": "bash-completion/completions/sluice",
    "zsh": "zsh/vendor-completions/_sluice",
    "fish": "fish/vendor_completions.d/sluice.fish",
}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, env=ENV).stdout


def commands(binary, help_text):
    """The words that start a line of the help and have a help of their own."""
    words = dict.fromkeys(re.findall(r"^ {2,}([a-z][a-z-]*)(?= {2,}|$)", help_text, re.M))
    for word in words:
        result = subprocess.run([binary, word, "--help"], capture_output=True, text=True, env=ENV)
        if result.returncode == 0:
            yield word, result.stdout


def roff(text):
    """Text as it is: roff sees backslashes, and dots and quotes at the beginning of a line."""
    text = text.rstrip().replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.M)


def man_page(binary):
    version = output(binary, "--version").strip()
    help_text = output(binary, "--help")
    parts = [f'.TH SLUICE 1 "" "sluice {version}" "User Commands"',
             ".SH NAME", "sluice \\- inference and serving engine for open\\-weight language models",
             ".SH SYNOPSIS", ".B sluice", "COMMAND [ARGUMENTS]",
             ".SH COMMANDS", ".nf", roff(help_text), ".fi"]
    found = list(commands(binary, help_text))
    if not found:
        sys.exit(f"make_share.py: {binary} --help lists no command")
    for name, text in found:
        parts += [f'.SH "SLUICE {name.upper()}"', ".nf", roff(text), ".fi"]
    parts += [".SH ENVIRONMENT",
              "Every option can be set as SLUICE_NAME; flags win, then variables, then the file of \\-\\-config.", ".TP",
              ".B SLUICE_CACHE", "where models and measurements are kept (default: ~/.cache/sluice)",
              ".SH EXIT STATUS", "0: done. 1: the environment failed. 2: the input is at fault; one line says what to do."]
    return "\n".join(parts) + "\n"


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    binary, share = sys.argv[1], pathlib.Path(sys.argv[2])
    write(share / "man/man1/sluice.1.gz", gzip.compress(man_page(binary).encode(), 9, mtime=0))
    for shell, path in COMPLETIONS.items():
        write(share / path, output(binary, "completion", shell).encode())


if __name__ == "__main__":
    main()
