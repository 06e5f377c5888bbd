#!/usr/bin/env python3
"""Wraps an install tree (bin/sluice, lib/sluice, share) into a Python wheel, and prints its path.

    scripts/make_wheel.py TREE OUT

The wheel holds the tree as the package `sluice`, with a launcher for the `sluice` command. Its platform tag says
what the binaries need: the newest glibc symbol among them. Needs nothing but Python and readelf.
"""

import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Libraries that every Linux of a manylinux tag has, and NVIDIA's, which come with the GPU's software.
GLIBC = r"lib(c|m|dl|rt|pthread|resolv|util)\.so\.\d+|ld-linux[-\w]*\.so\.\d+"
ALLOWED = re.compile(rf"(?:{GLIBC}|libstdc\+\+\.so\.6|libgcc_s\.so\.1|libcublas(Lt)?\.so\.\d+)")
# libstdc++ of which glibc's distributions: the newest symbol version of GCC 11, 12, 13, 14.
GLIBC_OF_GLIBCXX = [((3, 4, 29), 34), ((3, 4, 30), 35), ((3, 4, 32), 38), ((3, 4, 33), 39)]

LAUNCHER = '''"""The sluice program, as a command of this environment: `sluice` or `python -m sluice`."""

import os
import sys

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "sluice")


def main():
    os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
'''
MAIN = "from sluice import main\n\nmain()\n"


def readelf(*args):
    return subprocess.run(["readelf", "-W", *args], check=True, capture_output=True, text=True).stdout


def needed_glibc(path):
    """The minor version of glibc that a binary needs; exits if it needs a library that a wheel must not."""
    for name in re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", path)):
        if not ALLOWED.fullmatch(name):
            sys.exit(f"make_wheel.py: {path} needs {name}, which other machines may not have: build with -DSLUICE_PORTABLE=ON")
    versions = readelf("-V", path)
    minors = [int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", versions)]
    newest = max(tuple(map(int, v.split("."))) for v in re.findall(r"\bGLIBCXX_([\d.]+)", versions) + ["0"])
    if newest > (0,):
        later = [glibc for glibcxx, glibc in GLIBC_OF_GLIBCXX if newest <= glibcxx]
        if not later:
            sys.exit(f"make_wheel.py: {path} needs GLIBCXX {newest}: add its glibc to GLIBC_OF_GLIBCXX")
        minors.append(later[0])
    return max(minors)


def project_version():
    return re.search(r"^project\(sluice VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]


def metadata(version, cuda):
    lines = ["Metadata-Version: 2.1", "Name: sluice", f"Version: {version}",
             "Summary: Inference and serving engine for open-weight language models", "License: Apache-2.0",
             "Requires-Python: >=3.8", "Classifier: License :: OSI Approved :: Apache Software License",
             "Classifier: Operating System :: POSIX :: Linux", "Description-Content-Type: text/markdown"]
    if cuda:
        major = re.search(r"libcublasLt\.so\.(\d+)", readelf("-d", cuda))[1]
        lines += ["Provides-Extra: cuda", f"Requires-Dist: nvidia-cublas>={major},<{int(major) + 1}; extra == 'cuda'"]
    return "\n".join(lines) + "\n\n" + (ROOT / "README.md").read_text()


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record = []

    def add(self, name, data, mode=0o644):
        data = data if isinstance(data, bytes) else data.encode()
        info = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))  # the same input gives the same wheel
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self, info):
        self.record.append(f"{info}/RECORD,,")
        self.zip.writestr(zipfile.ZipInfo(f"{info}/RECORD", (2000, 1, 1, 0, 0, 0)), "\n".join(self.record) + "\n")
        self.zip.close()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    tree, out = map(pathlib.Path, sys.argv[1:])
    program = tree / "bin/sluice"
    cuda = tree / "lib/sluice/libsluice_cuda.so"
    binaries = [program] + ([cuda] if cuda.exists() else [])
    version = project_version()
    tag = f"py3-none-manylinux_2_{max(map(needed_glibc, binaries))}_{platform.machine()}"
    info = f"sluice-{version}.dist-info"
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"sluice-{version}-{tag}.whl"
    wheel = Wheel(path)
    wheel.add("sluice/__init__.py", LAUNCHER)
    wheel.add("sluice/__main__.py", MAIN)
    for file in sorted(p for p in tree.rglob("*") if p.is_file()):
        mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
        wheel.add(f"sluice/{file.relative_to(tree).as_posix()}", file.read_bytes(), mode)
    wheel.add(f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
    wheel.add(f"{info}/licenses/THIRD_PARTY.md", (ROOT / "THIRD_PARTY.md").read_bytes())
    wheel.add(f"{info}/METADATA", metadata(version, cuda if cuda.exists() else None))
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: make_wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n")
    wheel.add(f"{info}/entry_points.txt", "[console_scripts]\nsluice = sluice:main\n")
    wheel.close(info)
    print(path)


if __name__ == "__main__":
    main()
