"""Copies of GGUF files with other metadata."""

import pathlib
import struct


def copy_with(source, path, marks=None, numbers=None, template=None):
    """Writes a copy whose tokens with the ids of `marks` are spelled so, as control tokens; with more metadata of the
    tokeniser: `numbers`, and a chat template."""
    marks, more, replaced = marks or {}, bytearray(), set()

    def key(name):
        replaced.add(name.encode())
        return struct.pack("<Q", len(name)) + name.encode()

    for name, number in (numbers or {}).items():
        more += key("tokenizer.ggml." + name) + struct.pack("<II", 4, number)
    if template:
        more += key("tokenizer.chat_template") + struct.pack("<IQ", 8, len(template.encode())) + template.encode()
    data = pathlib.Path(source).read_bytes()
    magic, version, tensors, pairs = struct.unpack_from("<4sIQQ", data)
    assert magic == b"GGUF"
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at, out, kept = 24, bytearray(data[:24]), 0

    def text():
        nonlocal at
        (size,) = struct.unpack_from("<Q", data, at)
        at += 8 + size
        return data[at - size:at]

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        at += sizes[kind]
        return data[at - sizes[kind]:at]

    for _ in range(pairs):
        begin, name = at, text()
        (kind,) = struct.unpack_from("<I", data, at)
        at += 4
        if kind != 9:
            value(kind)
            if name not in replaced:
                out += data[begin:at]
                kept += 1
            continue
        kept += 1
        inner, count = struct.unpack_from("<IQ", data, at)
        at += 12
        out += data[begin:at]
        for i in range(count):
            item = value(inner)
            if i in marks and name == b"tokenizer.ggml.tokens":
                item = marks[i].encode()
            if i in marks and name == b"tokenizer.ggml.token_type":
                item = struct.pack("<i", 3)
            out += (struct.pack("<Q", len(item)) if inner == 8 else b"") + item
    out += more
    out[16:24] = struct.pack("<Q", kept + len(replaced))
    begin = at
    for _ in range(tensors):
        text()
        (dims,) = struct.unpack_from("<I", data, at)
        at += 4 + 8 * dims + 4 + 8
    out += data[begin:at]
    align = 32
    path.write_bytes(out + b"\0" * (-len(out) % align) + data[(at + align - 1) // align * align:])
