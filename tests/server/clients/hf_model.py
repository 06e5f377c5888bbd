"""A tiny model as a Hugging Face directory, for routers that read the tokeniser themselves."""

import json
import pathlib
import shutil

from harness import ROOT

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def byte_characters():
    """GPT-2's characters for the 256 bytes, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def make(folder):
    """tests/golden's llama with a tokeniser of one token per byte and eight special ones."""
    folder = pathlib.Path(folder)
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(ROOT / "tests/golden/hf/llama" / name, folder)
    special = [{"id": 256 + i, "content": f"<s{i}>", "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i in range(8)]
    vocabulary = {c: b for b, c in enumerate(byte_characters())}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
                 "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                           "vocab": {**vocabulary, **{s["content"]: s["id"] for s in special}}, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": None, "eos_token": "<s7>", "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512}), encoding="utf-8")
    return folder
