#!/usr/bin/env python3
"""Every relative link of the Markdown files leads to a file of the tree, and every #anchor to a heading of it.

    scripts/check_links.py [--root DIR]     prints file:line: reason; exit status 1 when a link is broken
    scripts/check_links.py --self-test      shows that each kind of broken link is found
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*(?:\"[^\"]*\")?$")
HTML = re.compile(r"<(?:img|a|source)\b[^>]*?\b(?:src|href|srcset)=\"([^\"\s]+)\"")
ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.I)
FENCE = re.compile(r"^\s*(```+|~~~+)")


def prose(text):
    """(line number, line) of what is no code; inline code is blanked."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if fence is None and match:
            fence = match[1]
        elif fence is not None:
            if match and match[1].startswith(fence):
                fence = None
        else:
            yield number, re.sub(r"(`+)(?:(?!\1).)+\1", lambda m: "`" * len(m[0]), line)


def anchors(path):
    """The anchors that GitHub gives to a file's headings, and those written as <a id="...">."""
    found, seen = set(), {}
    fenced = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if FENCE.match(line):
            fenced = not fenced
        heading = None if fenced else re.match(r"#{1,6}\s+(.+?)\s*#*$", line)
        if heading:
            text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            count = seen[slug] = seen.get(slug, -1) + 1
            found.add(f"{slug}-{count}" if count else slug)
        found.update(re.findall(r'<a (?:id|name)="([^"]+)"', line))
    return found


def markdown_files(root):
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
                             capture_output=True, check=True).stdout
        return [root / name for name in out.decode().split("\0") if name and (root / name).exists()]
    except (OSError, subprocess.CalledProcessError):  # a source archive
        return [p for p in root.rglob("*.md") if not p.relative_to(root).parts[0].startswith(("build", "."))]


def broken_links(root):
    root = root.resolve()
    for path in sorted(markdown_files(root)):
        name = path.relative_to(root).as_posix()
        for number, line in prose(path.read_text(encoding="utf-8")):
            definition = DEFINITION.match(line)
            targets = LINK.findall(line) + HTML.findall(line) + ([definition[1]] if definition else [])
            for target in targets:
                if ELSEWHERE.match(target):
                    continue
                file, _, anchor = target.partition("#")
                to = (path.parent / file).resolve() if file else path
                if root not in (to, *to.parents):
                    yield name, number, f"{target} leads out of the tree"
                elif not to.exists():
                    yield name, number, f"{target} is not there"
                elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                    yield name, number, f"{target}: no such heading"


def self_test():
    good = {
        "README.md": "# A b\n[x](docs/a.md) [y](docs/a.md#two-words-1) [z](#a-b) [w](https://example.org/no)\n"
                     "`[no](link)`\n```\n[no](code)\n```\n![i](docs/i.png)\n[ref]: docs/a.md\n",
        "docs/a.md": "# Two words\n## Two words\n[up](../README.md) [folder](../docs) <img src=\"i.png\">\n",
        "docs/i.png": "",
    }
    bad = {
        "missing file": ("docs/b.md", "[x](c.md)\n", 1),
        "missing image": ("docs/b.md", "\n![x](none.png)\n", 2),
        "missing html image": ("docs/b.md", '<img src="none.png">\n', 1),
        "missing heading": ("docs/b.md", "[x](a.md#three)\n", 1),
        "missing own heading": ("docs/b.md", "# b\n[x](#c)\n", 2),
        "missing definition": ("docs/b.md", "[x]: c.md\n", 1),
        "out of the tree": ("docs/b.md", "[x](../../secret.md)\n", 1),
        "second link of a line": ("docs/b.md", "[x](a.md) and [y](c.md)\n", 1),
    }
    failures = []
    for title, (name, text, line) in {"": ("", "", 0), **bad}.items():
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for file, content in {**good, **({name: text} if name else {})}.items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(content)
            found = [(f, n) for f, n, _ in broken_links(root)]
            if found != ([(name, line)] if title else []):
                failures.append(f"{title or 'a clean tree'}: found {found}")
    print("\n".join(failures) or f"self-test: {len(bad)} kinds of broken link found, a clean tree accepted")
    return not failures


def main():
    parser = argparse.ArgumentParser(description="relative links of the Markdown files")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        sys.exit(0 if self_test() else 1)
    found = list(broken_links(args.root))
    for name, number, reason in found:
        print(f"{name}:{number}: {reason}")
    print(f"{len(found)} broken links")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
