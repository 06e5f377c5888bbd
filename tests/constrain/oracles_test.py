#!/usr/bin/env python3
"""JSON schemas judged by sluice and by three others: jsonschema, llguidance and xgrammar (all from PyPI).

    oracles_test.py BINARY [-v]

Texts are the instances of the shared schemas and seeded changes of them. jsonschema says what is right: nothing that it
rejects may be accepted. Where it accepts a text, and so do all others that know the schema (at least one), sluice does
too if it supports the schema, but for a few (counted). Skipped where the shared data is absent; without SLUICE_TEST_FULL=1 a slice runs
(SLUICE_TEST_PART, too: constrain_test.py).
"""

import collections
import copy
import importlib.machinery
import json
import pathlib
import random
import re
import sys
import types
import unittest

import jsonschema
import llguidance
import tvm_ffi  # noqa: F401  before torch is stood in for

import constrain_test
from constrain_test import FULL, SEED, Constrained, no_twice, run_jobs, shared_schemas, spelled


def import_xgrammar():
    """xgrammar imports torch and transformers for what is not used here (masks in tensors): names stand in for them."""
    class Names(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": lambda self, *args, **kwargs: None})

    for name in ("torch", "transformers"):
        module = Names(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__version__ = "2.0"
        sys.modules[name] = module
    import xgrammar
    return xgrammar


xgrammar = import_xgrammar()


def paths(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, at + (key,))


def changed(value, rng):
    """The value with one thing else: a key dropped, added or renamed, an element repeated, another value."""
    value = copy.deepcopy(value)
    at = rng.choice(list(paths(value)))
    other = rng.choice([None, True, 0, -1, 1.5, 10**9, "", "x", "2020-01-01", [], {}, [1, "a"], {"a": 1}])
    if not at:
        if isinstance(value, dict) and rng.random() < 0.7:
            value["added"] = other
            return value
        return other
    inner = value
    for key in at[:-1]:
        inner = inner[key]
    key, act = at[-1], rng.randrange(3)
    if act == 0:
        inner[key] = other
    elif act == 1:
        del inner[key]
    elif isinstance(inner, dict):
        inner[key + "_"] = inner.pop(key)
    else:
        inner.append(inner[key])
    return value


class Llguidance:
    def __init__(self, folder):
        spec = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())
        for part in ("pre_tokenizer", "decoder"):
            spec[part].update(trim_offsets=False, add_prefix_space=False, use_regex=False)
        self.tokenizer = llguidance.LLTokenizer(json.dumps(spec))

    def judges(self, schema, texts):
        """True or false for each text; nothing where the schema is refused."""
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        if llguidance.LLMatcher.validate_grammar(grammar, self.tokenizer):
            return None
        out = []
        for text in texts:
            matcher = llguidance.LLMatcher(self.tokenizer, grammar, log_level=0)
            tokens = self.tokenizer.tokenize_bytes(text.encode())
            out.append(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())
        return out


class Xgrammar:
    def __init__(self):
        tokens = [bytes([b]) for b in range(256)] + [b"</s>"]
        info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, vocab_size=257, stop_token_ids=[256])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def judges(self, schema, texts):
        text = json.dumps(schema)
        # Its compilation has no limit: counted repetitions may take it minutes.
        if len(text) > 3000 or re.search(r'"(max|min)(Length|Items|Properties)"|"pattern|\$ref|\{\d', text):
            return None
        try:
            grammar = self.compiler.compile_json_schema(text, any_whitespace=True, strict_mode=False)
        except RuntimeError:
            return None
        out = []
        for one in texts:
            matcher = xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=True)
            out.append(matcher.accept_string(one) and matcher.is_terminated())
        return out


class Oracles(Constrained):
    def setUp(self):
        self.files = shared_schemas(24)

    def texts_of(self, case, rng):
        values = [t["data"] for t in case["tests"]]
        for value in values[:4]:
            values += [changed(value, rng) for _ in range(20 if FULL else 8)]
        return list(dict.fromkeys(map(spelled, values)))

    def test_texts(self):
        rng = random.Random(SEED)
        cases = [json.loads(f.read_text()) for f in self.files]
        texts = [self.texts_of(c, rng) for c in cases]
        results = run_jobs(self.folder.name, [{"source": c["schema"], "texts": t} for c, t in zip(cases, texts)])
        others = {"llguidance": Llguidance(self.folder.name), "xgrammar": Xgrammar()}
        counts, missed, wrong = collections.Counter(), [], []
        for file, case, own_texts, result in zip(self.files, cases, texts, results):
            if not result["supported"]:
                counts["schemas refused"] += 1
                continue
            schema = case["schema"]
            kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
            judged = {name: other.judges(schema, own_texts) for name, other in others.items()}
            for i, text in enumerate(own_texts):
                valid = validator.is_valid(json.loads(text, object_pairs_hook=no_twice))
                ours = result["texts"][i]
                counts["texts"] += 1
                counts["right"] += ours == valid
                if ours and not valid:
                    wrong.append(f"{file.name}: {text[:200]}")
                for name, of in judged.items():
                    if of is not None:
                        counts[f"{name} judged"] += 1
                        counts[f"{name} accepts invalid"] += of[i] and not valid
                        counts[f"{name} rejects valid"] += valid and not of[i]
                opinions = [of[i] for of in judged.values() if of is not None]
                if valid and not ours and opinions and all(opinions):
                    missed.append(f"{file.name}: {text[:200]}")
        counts["rejected by sluice alone"] = len(missed)
        print(dict(counts), file=sys.stderr)
        for line in missed[:10]:
            print("rejected by sluice alone:", line, file=sys.stderr)
        self.assertEqual(wrong, [])
        self.assertGreater(counts["llguidance judged"], counts["texts"] // 2)
        self.assertGreater(counts["xgrammar judged"], 0)
        self.assertLessEqual(len(missed), 0.01 * counts["texts"])


if __name__ == "__main__":
    constrain_test.BINARY = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
