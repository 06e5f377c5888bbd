#!/usr/bin/env python3
"""Random Unicode text through our tokenizers and through the libraries that define them: the ids must
be equal.

    scripts/compare_tokenizers.py BINARY [--data DIR] [--count N] [--seed S] [--only NAME] [--quick]

BINARY is tests/tokenizers/tokenize_ids of the build folder. The first run makes a virtual environment
under build/ with `tokenizers` and `sentencepiece` from PyPI; exit status 77: it cannot be made here.
Tokenizers: those under DIR/tokenizers (../shared/data) and small ones made here, which between them use
every normalizer, pre-tokenizer, model option and flag of added tokens. Exit status 1: a difference.
"""
import argparse
import gzip
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ["tokenizers==0.23.3", "sentencepiece==0.2.2"]


def ensure_environment():
    try:
        import sentencepiece  # noqa: F401
        import tokenizers  # noqa: F401
        return
    except ImportError:
        pass
    venv = ROOT / "build" / "venv-tokenizers"
    if os.environ.get("SLUICE_IN_VENV") != "1":
        pip = [str(venv / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", "--retries", "1",
               "--timeout", "15", *PACKAGES]
        if subprocess.run([sys.executable, "-m", "venv", str(venv)]).returncode or subprocess.run(pip).returncode:
            print("skipped: no virtual environment with " + " ".join(PACKAGES), file=sys.stderr)
            sys.exit(77)
        os.environ["SLUICE_IN_VENV"] = "1"
        os.execv(str(venv / "bin" / "python"), [str(venv / "bin" / "python"), *sys.argv])
    sys.exit("the virtual environment lacks its packages")


ensure_environment()
import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers  # noqa: E402

SENTENCES = [
    "The quick brown fox doesn't jump over 12 lazy dogs; it's 3.14159!",
    "Größe, naïve café, coöperate, Ångström, ﬁne ﬀ ligatures, ①②③ and ½ ¾",
    "Привет, мир! Как дела? Быстрая коричневая лиса 2024 года",
    "我能吞下玻璃而不伤身体。日本語テキスト、カタカナ。한국어 텍스트입니다",
    "def f(x):\n    return x ** 2  # comment\n\n\tif (a != b) { print(\"hi\"); }\r\n",
    "नमस्ते दुनिया क्षत्रिय العربية שלום עולם ภาษาไทย",
    "emoji 😀👨‍👩‍👧‍👦🇩🇪🏳️‍🌈 and e\u0301 a\u0323\u0301 \u1E0B\u0323 combining",
    "  leading   and    trailing spaces   \u3000\u00a0\u2003 \u200b\u200d ",
]


def alphabet():
    """Characters that appear in text, grouped so that each group is as likely as another."""
    known = [c for c in map(chr, range(0x20000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    by_category = {}
    for c in known:
        by_category.setdefault(unicodedata.category(c), []).append(c)
    groups = list(by_category.values())
    groups += [list(" \n\t\r\u00a0\u3000")] * 3 + [list("abcdefghijklmnopqrstuvwxyz")] * 4
    groups += [list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), list("0123456789"), list("'!,.?;:()[]<>|_-/\\\"@#$%^&*+=~`{}")] * 2
    groups += [list("\u0301\u0300\u0323\u0308\u0327\u0345\u3099\u1161\u11a8"), list("\u2581\u0120\u010a")]
    return groups


GROUPS = alphabet()
WORDS = sorted({w for s in SENTENCES for w in s.split()})


def random_text(rng, extra):
    parts = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 21])):
        kind = rng.random()
        if kind < 0.30:
            parts.append(rng.choice(rng.choice(GROUPS)))
        elif kind < 0.40:
            parts.append(rng.choice(rng.choice(GROUPS)) * rng.randint(2, 6))
        elif kind < 0.60:
            parts.append(rng.choice(WORDS))
        elif kind < 0.72:
            parts.append(" " * rng.choice([1, 1, 1, 2, 3]))
        elif kind < 0.80:
            parts.append(rng.choice(["'s", "'T", "'ll", "'RE", "\r\n", "\n\n", "'\u017f", "...", "!!\n", " /\n/"]))
        elif kind < 0.90 and extra:
            parts.append(rng.choice(extra))
        else:
            start = rng.randrange(len(SENTENCES))
            s = SENTENCES[start]
            at = rng.randrange(len(s))
            parts.append(s[at : at + rng.randint(1, 12)])
    return "".join(parts)


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTION + r"?|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER
         + "*" + CONTRACTION + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)
TEKKEN = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER
          + r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
             + TAIL).replace('\\"', '"')
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
CHINESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


CORPUS = 3000  # texts to train on


def corpus():
    rng = random.Random(7)
    for _ in range(CORPUS):
        yield random_text(rng, None)
    yield from SENTENCES * 20


def prose():
    """Few characters: Unigram's trainers keep them all."""
    rng = random.Random(8)
    for _ in range(CORPUS):
        yield " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def trained(model, trainer, normalizer=None, pre=None, decoder=None, added=(), texts=corpus):
    t = tokenizers.Tokenizer(model)
    if normalizer is not None:
        t.normalizer = normalizer
    if pre is not None:
        t.pre_tokenizer = pre
    t.train_from_iterator(texts(), trainer)
    if decoder is not None:
        t.decoder = decoder
    for token in added:
        (t.add_special_tokens if token.special else t.add_tokens)([token])
    return t


def byte_bpe(pre, normalizer=None, added=(), size=600):
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return trained(models.BPE(), trainer, normalizer, pre, decoders.ByteLevel(), added)


def char_bpe(pre=None, normalizer=None, added=(), size=700, alphabet=300, options=None, **trainer_options):
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=alphabet,
                                             special_tokens=["<unk>"], **trainer_options)
    return trained(models.BPE(unk_token="<unk>", **(options or {})), trainer, normalizer, pre, None, added)


def with_bytes(t):
    """The same tokenizer with the 256 byte tokens and byte_fallback."""
    data = json.loads(t.to_str())
    model = data["model"]
    model["byte_fallback"] = True
    names = [f"<0x{b:02X}>" for b in range(256)]
    if model["type"] == "Unigram":
        model["vocab"] += [[n, 0.0] for n in names]
    else:
        model["vocab"].update({n: len(model["vocab"]) + i for i, n in enumerate(names)})
    return tokenizers.Tokenizer.from_str(json.dumps(data))


def unigram(pre=None, normalizer=None, added=(), size=800):
    trainer = tokenizers.trainers.UnigramTrainer(vocab_size=size, show_progress=False, unk_token="<unk>",
                                                 special_tokens=["<unk>", "<s>", "</s>"])
    return trained(models.Unigram(), trainer, normalizer, pre, None, added, prose)


def sentencepiece_model(kind, **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=prose(), model_writer=out, model_type=kind,
        hard_vocab_limit=False, character_coverage=0.98, minloglevel=2, **options)
    return out.getvalue()


def charsmap():
    import base64
    proto = sentencepiece_model("unigram", vocab_size=700)
    # ModelProto.normalizer_spec (3) . precompiled_charsmap (2), by hand: no protobuf needed.
    def fields(data):
        pos = 0
        def varint():
            nonlocal pos
            value = shift = 0
            while True:
                b = data[pos]
                pos += 1
                value |= (b & 127) << shift
                shift += 7
                if b < 128:
                    return value
        while pos < len(data):
            key = varint()
            if key & 7 == 0:
                yield key >> 3, varint()
            else:
                size = varint() if key & 7 == 2 else 4 if key & 7 == 5 else 8
                yield key >> 3, data[pos : pos + size]
                pos += size
    for number, value in fields(proto):
        if number == 3:
            for inner, blob in fields(value):
                if inner == 2:
                    return normalizers.Precompiled(base64.b64decode(base64.b64encode(blob)))
    raise ValueError("no charsmap")


def added(content, **flags):
    return tokenizers.AddedToken(content, **flags)


ADDED = [added("<|end|>", special=True, normalized=False), added("<tool>", normalized=False),
         added("Fox", normalized=True), added("<MASK>", special=True, lstrip=True, normalized=False),
         added("<r>", special=True, rstrip=True, normalized=False), added("lazy", single_word=True, normalized=False),
         added("<b><b>", normalized=False), added("<b>", normalized=False), added("    ", normalized=False)]
EXTRA = ["<|end|>", " <|end|> ", "<tool>", "Fox", "fox", "FOX", "  <MASK> ", " <r>  ", "lazy", "xlazy", " lazy ",
         "<b><b><b>", "    ", "<s>", "<unk>", "</s>"]


def synthetic():
    """name -> function that makes the tokenizer."""
    B, P, N = byte_bpe, pre_tokenizers, normalizers
    seq, norm = P.Sequence, N.Sequence
    meta = {s: P.Metaspace(prepend_scheme=s) for s in ("always", "first", "never")}
    spaces = norm([N.Prepend("\u2581"), N.Replace(" ", "\u2581")])
    made = {
        "gpt2": lambda: B(P.ByteLevel(add_prefix_space=False)),
        "gpt2-prefix": lambda: B(P.ByteLevel(add_prefix_space=True), added=ADDED),
        "llama3": lambda: B(seq([split(LLAMA3), BYTE_LEVEL])),
        "qwen2": lambda: B(seq([split(QWEN2), BYTE_LEVEL]), N.NFC()),
        "qwen35": lambda: B(seq([split(QWEN35), BYTE_LEVEL]), N.NFC()),
        "o200k": lambda: B(seq([split(O200K, "removed", True), BYTE_LEVEL])),
        "tekken": lambda: B(seq([split(TEKKEN), BYTE_LEVEL])),
        "deepseek3": lambda: B(seq([split(r"\p{N}{1,3}"), split(CHINESE), split(DEEPSEEK3), BYTE_LEVEL])),
        "deepseek-coder": lambda: B(seq([split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CHINESE),
                                         P.Digits(True), BYTE_LEVEL])),
        "line-end": lambda: B(seq([split(r"\s?[!-/:-~\uff01-\uff0f\u3000-\u3002]+"), split(r"\s+$"), BYTE_LEVEL])),
        "cl100k-pcre": lambda: B(seq([split(CL100K), BYTE_LEVEL])),
        "falcon": lambda: B(seq([P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=False), P.Digits(False),
                                 split("[0-9][0-9][0-9]")])),
        "digits": lambda: B(seq([P.Digits(True), P.ByteLevel(add_prefix_space=False)])),
        "words-pcre": lambda: B(seq([split(r"\w+|\d+\b|[^\w\s]{2,}"), BYTE_LEVEL])),
        "look-pcre": lambda: B(seq([split(r"(?<=\s)\S+|(?=\p{Lu})|(?i:ab|the)|^.|.$"), BYTE_LEVEL])),
        "empty-pcre": lambda: B(seq([split(r"x*", "merged_with_previous"), BYTE_LEVEL])),
        "nfd": lambda: B(P.ByteLevel(add_prefix_space=False), N.NFD()),
        "nfkc": lambda: B(P.ByteLevel(add_prefix_space=False), N.NFKC(), ADDED),
        "nfkd-accents": lambda: B(P.ByteLevel(add_prefix_space=False), norm([N.NFKD(), N.StripAccents()])),
        "lower-strip": lambda: B(P.ByteLevel(add_prefix_space=False), norm([N.Strip(), N.Lowercase()]), ADDED),
        "strip-left": lambda: B(P.ByteLevel(add_prefix_space=False), N.Strip(left=True, right=False), ADDED),
        "nmt": lambda: B(P.ByteLevel(add_prefix_space=False), N.Nmt()),
        "bert": lambda: B(seq([P.BertPreTokenizer(), BYTE_LEVEL]), N.BertNormalizer(), ADDED),
        "bert-plain": lambda: B(seq([P.BertPreTokenizer(), BYTE_LEVEL]),
                                N.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False,
                                                 lowercase=False)),
        "byte-normalizer": lambda: char_bpe(P.WhitespaceSplit(), N.ByteLevel()),
        "replace": lambda: B(P.ByteLevel(add_prefix_space=False),
                             norm([N.Replace("the", "THE"), N.Replace(Regex(r"\s{2,}|\d+x?"), " "), N.Prepend("a")]),
                             ADDED),
        "whitespace": lambda: char_bpe(P.Whitespace(), added=ADDED),
        "whitespace-split": lambda: char_bpe(P.WhitespaceSplit(), options={"fuse_unk": True}),
        "delimiter": lambda: char_bpe(P.CharDelimiterSplit("e")),
        "fixed": lambda: char_bpe(P.FixedLength(3)),
        "prefix-suffix": lambda: char_bpe(P.Whitespace(), options={"continuing_subword_prefix": "##",
                                                                   "end_of_word_suffix": "</w>"},
                                          continuing_subword_prefix="##", end_of_word_suffix="</w>"),
        "no-unk": lambda: trained(models.BPE(), tokenizers.trainers.BpeTrainer(vocab_size=500, show_progress=False,
                                                                               limit_alphabet=100)),
        "llama2": lambda: with_bytes(char_bpe(None, spaces, ADDED, options={"fuse_unk": True})),
        "gemma": lambda: with_bytes(char_bpe(P.Split(" ", "merged_with_previous"), N.Replace(" ", "\u2581"), ADDED)),
        "unigram": lambda: unigram(meta["always"], None, ADDED),
        "unigram-first": lambda: unigram(meta["first"], N.NFKC(), ADDED),
        "unigram-strip-first": lambda: unigram(meta["first"], N.Strip(), ADDED),
        "unigram-never": lambda: unigram(P.Metaspace(prepend_scheme="never", split=False), N.Lowercase(), ADDED),
        "unigram-bytes": lambda: with_bytes(unigram(meta["always"])),
        "unigram-precompiled": lambda: unigram(meta["always"], norm([charsmap(), N.Replace(Regex(" {2,}"), " ")]), ADDED),
    }
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            name = f"split-{behavior}{'-invert' if invert else ''}"
            made[name] = lambda b=behavior, i=invert: B(seq([split(r"[aeiou]|\s", b, i), BYTE_LEVEL]), added=ADDED)
        made[f"punctuation-{behavior}"] = lambda b=behavior: B(seq([P.Punctuation(b), BYTE_LEVEL]))
        made[f"literal-{behavior}"] = lambda b=behavior: B(seq([P.Split("th", b), P.Split(" ", b), BYTE_LEVEL]))
    return made


def pieces():
    """name -> SentencePiece models. Where symbols overlap, a Unigram model weighs them by the last bit of a sum."""
    symbols = ["<tool>", "<b>", "<b><b>"]
    return {
        "sp-unigram": lambda: sentencepiece_model("unigram", vocab_size=900),
        "sp-unigram-bytes": lambda: sentencepiece_model("unigram", vocab_size=1200, byte_fallback=True),
        "sp-unigram-symbols": lambda: sentencepiece_model("unigram", vocab_size=900,
                                                          user_defined_symbols=["<tool>"]),
        "sp-unigram-overlap": lambda: sentencepiece_model("unigram", vocab_size=900, user_defined_symbols=symbols),
        "sp-bpe": lambda: sentencepiece_model("bpe", vocab_size=900),
        "sp-bpe-bytes": lambda: sentencepiece_model("bpe", vocab_size=1200, byte_fallback=True,
                                                    normalization_rule_name="identity",
                                                    remove_extra_whitespaces=False),
        "sp-bpe-symbols": lambda: sentencepiece_model("bpe", vocab_size=900, user_defined_symbols=symbols,
                                                      add_dummy_prefix=False),
    }


def ours(binary, path, texts):
    lines = "".join(json.dumps(t) + "\n" for t in texts)
    done = subprocess.run([binary, str(path), "--ids"], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip()
    return [line if line.startswith("error") else [int(x) for x in line.split()]
            for line in done.stdout.splitlines()]


def report(name, texts, expected, got):
    if isinstance(got, str):
        print(f"{name:24} cannot be read: {got}")
        return 1
    wrong = [i for i in range(len(texts)) if i >= len(got) or got[i] != expected[i]]
    print(f"{name:24} {len(texts):8} texts {len(wrong):6} differences", flush=True)
    for i in wrong[:3]:
        print(f"    {texts[i]!r}\n      expected {expected[i]}\n      got      {got[i] if i < len(got) else 'nothing'}")
    return len(wrong)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--data", default=os.environ.get("SLUICE_TEST_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of many minutes")
    args = parser.parse_args()
    if args.quick:
        global CORPUS
        CORPUS, args.count = 300, 300
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    rng = random.Random(args.seed)
    plain = [random_text(rng, EXTRA) for _ in range(args.count)]
    # Without the control symbols, which SentencePiece takes for text and we for themselves.
    for_pieces = [random_text(rng, ["<tool>", "<b><b><b>", "  "]).replace("\0", "") for _ in range(args.count)]
    # Long ones too: sums of scores lose precision there.
    for texts in (plain, for_pieces):
        texts += ["".join(rng.choices(texts, k=rng.randint(300, 1200))) for _ in range(args.count // 2000)]
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def compare(name, t):
            nonlocal differences
            path = folder / "tokenizer.json"
            path.write_text(t.to_str())
            t = tokenizers.Tokenizer.from_str(path.read_text())  # as the file has it: the library rounds scores it reads
            expected = [e.ids for e in t.encode_batch(plain, add_special_tokens=False)]
            differences += report(name, plain, expected, ours(args.binary, path, plain))

        for file in sorted(pathlib.Path(args.data).glob("tokenizers/*/*.json.gz")):
            if args.only in file.parent.name:
                compare(file.parent.name, tokenizers.Tokenizer.from_str(gzip.open(file, "rt").read()))
        for name, make in synthetic().items():
            if args.only in name:
                compare(name, make())
        models = {f.parent.name: f.read_bytes for f in sorted(pathlib.Path(args.data).glob("tokenizers/*/*.model"))}
        for name, make in {**models, **pieces()}.items():
            if args.only in name:
                path = folder / "tokenizer.model"
                path.write_bytes(make())
                processor = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
                expected = processor.encode(for_pieces)
                differences += report(name, for_pieces, expected, ours(args.binary, path, for_pieces))
    print(f"{differences} differences in all")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
