#!/usr/bin/env python3
"""Writes src/text/unicode_tables.inc: what the tokenizers need to know about characters.

    python3 -m venv build/venv-unicode
    build/venv-unicode/bin/pip install unicodedata2==16.0.0 regex tokenizers==0.23.3
    build/venv-unicode/bin/python scripts/make_unicode_tables.py > src/text/unicode_tables.inc

The version is fixed because patterns and normalizers are defined by libraries that follow it; a newer
one would only move characters that no vocabulary was trained on. `regex` knows the properties that
unicodedata2 lacks (Alphabetic, those of grapheme clusters); it is asked only about characters that
the fixed version assigns. What the normalizers and pre-tokenizers of tokenizer.json do is defined by
the library `tokenizers`, parts of which follow older versions (normal forms: 9.0; punctuation: 8.0)
and one a newer: it is asked which characters it knows.
"""
import sys

import regex
import unicodedata2 as ud
from tokenizers import normalizers, pre_tokenizers

VERSION = "16.0.0"
WHITE_SPACE = {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
WHITE_SPACE |= set(range(0x09, 0x0E)) | set(range(0x2000, 0x200B))
# The order of enum class Category in unicode.h.
CATEGORIES = "Cn Cc Cf Co Cs Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp".split()
# The order of enum class GraphemeClass in graphemes.cc; Hangul syllables and RI, ZWJ, CR, LF are computed.
GRAPHEMES = ["other", "CN", "EX", "PP", "SM", "L", "V", "T"]
SURROGATES = range(0xD800, 0xE000)
LAST = 0x110000
NFD, NFKD = normalizers.NFD(), normalizers.NFKD()
BLOCK = 128


def characters():
    return (cp for cp in range(LAST) if cp not in SURROGATES)


def knows_mark(cp):
    # U+0345 has the highest combining class: a mark that is known goes before it.
    return cp == 0x345 or NFD.normalize_str("\u0345" + chr(cp)) != "\u0345" + chr(cp)


def knows_form(cp):
    return NFKD.normalize_str(chr(cp)) == ud.normalize("NFKD", chr(cp))


def combining(cp):
    c = ud.combining(chr(cp))
    return c if c != 0 and knows_mark(cp) else 0


def is_hangul(cp):
    return 0xAC00 <= cp < 0xAC00 + 11172


def canonical(cp):
    d = ud.decomposition(chr(cp))
    return None if not d or d[0] == "<" or not knows_form(cp) else [int(x, 16) for x in d.split()]


def members(pattern):
    match = regex.compile(pattern).match
    return {cp for cp in characters() if ud.category(chr(cp)) != "Cn" and match(chr(cp))}


def emit(kind, name, comment, items, per_line):
    print(f"// {comment}")
    print(f"inline constexpr {kind} {name}[] = {{")
    for i in range(0, len(items), per_line):
        print("    " + ", ".join(items[i : i + per_line]) + ",")
    print("};")


def emit_runs(name, comment, shift, value):
    runs, last = [], 0
    for cp in range(LAST):
        v = 0 if cp in SURROGATES else value(cp)
        if v != last:
            runs.append(f"0x{cp << shift | v:x}")
            last = v
    emit("uint32_t", name, comment, runs, 10)


def emit_properties():
    word = members(r"\p{Alphabetic}") | {0x200C, 0x200D}
    word |= {cp for cp in characters() if ud.category(chr(cp))[0] == "M" or ud.category(chr(cp)) in ("Nd", "Pc")}
    index, blocks = [], []
    for start in range(0, LAST, BLOCK):
        block = []
        for cp in range(start, start + BLOCK):
            gc = "Cs" if cp in SURROGATES else ud.category(chr(cp))
            block.append(CATEGORIES.index(gc) | (cp in WHITE_SPACE) << 5 | (cp in word) << 6)
        if block not in blocks:
            blocks.append(block)
        index.append(blocks.index(block))
    kind = "uint16_t" if len(blocks) > 256 else "uint8_t"
    emit(kind, "kPropertyBlock", f"which block holds the properties of {BLOCK} characters", list(map(str, index)), 20)
    emit("uint8_t", "kProperties", "Category | White_Space << 5 | word character << 6",
         [str(p) for block in blocks for p in block], 24)


def emit_compatibility():
    entries, pool = [], []
    for cp in characters():
        d = ud.normalize("NFKD", chr(cp))
        if is_hangul(cp) or d == ud.normalize("NFD", chr(cp)) or not knows_form(cp):
            continue
        entries.append("{0x%x, %d, %d}" % (cp, len(pool), len(d)))
        pool += [f"0x{ord(c):x}" for c in d]
    emit("uint32_t", "kCompatibilityPool", "full compatibility decompositions, end to end", pool, 14)
    emit("Compatibility", "kCompatibility", "{character, where in the pool, length}", entries, 6)


def emit_lower():
    lower = normalizers.Lowercase().normalize_str  # one character at a time: no final sigma
    entries = [f"{{0x{cp:x}, 0x{ord(lower(chr(cp))[0]):x}}}" for cp in characters() if lower(chr(cp)) != chr(cp)]
    more = [cp for cp in characters() if len(lower(chr(cp))) > 1]
    assert more == [0x130], more
    emit("CasePair", "kLower", "{character, lower case}; U+0130 also gives U+0307", entries, 8)


def emit_library():
    def bert(**options):
        none = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
        return normalizers.BertNormalizer(**{**none, **options})

    def splits(pre, cp):
        return len(pre.pre_tokenize_str("a" + chr(cp) + "a")) > 1

    digits, punctuation = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("isolated")
    accents, marks, clean = normalizers.StripAccents(), bert(strip_accents=True), bert(clean_text=True)
    emit_runs("kLibraryRuns",
              "first code point of a run << 5 | numeric | punctuation << 1 | accent << 2 | "
              "accent for BERT << 3 | control for BERT << 4", 5,
              lambda cp: splits(digits, cp) | splits(punctuation, cp) << 1
              | (accents.normalize_str(chr(cp)) == "") << 2 | (marks.normalize_str(chr(cp)) == "") << 3
              | (clean.normalize_str(chr(cp)) == "") << 4)


def main():
    if ud.unidata_version != VERSION:
        sys.exit(f"need Unicode {VERSION}, have {ud.unidata_version}")
    print(f"// Generated by scripts/make_unicode_tables.py from Unicode {VERSION}. Do not edit.")
    emit_properties()
    emit_runs("kCombiningRuns", "first code point of a run << 8 | combining class", 8, combining)

    full = []
    for cp in characters():
        d = canonical(cp)
        if not is_hangul(cp) and d is not None:
            full.append("{0x%x, 0x%x, 0x%x}" % (cp, d[0], d[1] if len(d) == 2 else 0))
    emit("Decomposition", "kDecompositions",
         "{character, first, second or 0}: one canonical step, by character; Hangul is computed", full, 6)

    compose = []
    for cp in characters():
        d = None if is_hangul(cp) else canonical(cp)
        if d and len(d) == 2 and ud.normalize("NFC", chr(cp)) == chr(cp):
            compose.append((d[0], d[1], cp))
    compose.sort()
    emit("Composition", "kCompositions", "{first, second, character}, by first and second",
         ["{0x%x, 0x%x, 0x%x}" % c for c in compose], 6)

    # Quick check: a text is NFC already when none of its characters is in here (conservative: any
    # character that composes backwards, decomposes, or has a combining class).
    seconds = {c[1] for c in compose} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    emit_runs("kNfcSuspectRuns", "first code point of a run << 1 | may change under NFC", 1,
              lambda cp: int(cp in seconds or combining(cp) != 0
                             or (knows_form(cp) and ud.normalize("NFC", chr(cp)) != chr(cp))))
    emit_compatibility()
    emit_lower()
    emit_library()

    grapheme = {}
    for number, name in enumerate(GRAPHEMES[1:], 1):
        grapheme.update(dict.fromkeys(members(r"\p{GCB=%s}" % name), number))
    pictographic = {cp for cp in characters() if regex.match(r"\p{ExtPict}", chr(cp))}
    consonants, linkers = members(r"\p{InCB=Consonant}"), members(r"\p{InCB=Linker}")
    conjoining = members(r"\p{InCB=Extend}")
    emit_runs("kGraphemeRuns",
              "first code point of a run << 7 | GraphemeClass | Extended_Pictographic << 3 | "
              "InCB=Consonant << 4 | Linker << 5 | Extend << 6", 7,
              lambda cp: grapheme.get(cp, 0) | (cp in pictographic) << 3 | (cp in consonants) << 4
              | (cp in linkers) << 5 | (cp in conjoining) << 6)


main()
