#!/usr/bin/env python3
"""JSON schemas against the PyPI package jsonschema: `sluice constrain` judges instances and makes random texts.

    constrain_test.py BINARY SUITE [-v]     SUITE: the folder tests/draft2020-12 of JSON-Schema-Test-Suite

Nothing invalid may be accepted. Schemas of the shared data are skipped where it is absent; without
SLUICE_TEST_FULL=1, which takes half a minute, a slice of them runs (SLUICE_TEST_SEED picks another one).
SLUICE_TEST_PART=K/N takes the K-th of N parts of a full run.
"""

import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("SLUICE_TEST_DATA") or ROOT.parent / "shared/data")
FULL = os.environ.get("SLUICE_TEST_FULL") == "1"
SEED = int(os.environ.get("SLUICE_TEST_SEED") or 1)
PART, NUM_PARTS = map(int, (os.environ.get("SLUICE_TEST_PART") or "1/1").split("/"))
BINARY = SUITE = None


def shared_schemas(num_sampled):
    """The files of shared schemas that this run takes."""
    files = sorted((DATA / "schemas").glob("*.json"))
    if not files:
        raise unittest.SkipTest(f"no schemas in {DATA / 'schemas'}: set SLUICE_TEST_DATA")
    if not FULL:
        return random.Random(SEED).sample(files, num_sampled)
    assert 1 <= PART <= NUM_PARTS <= len(files), "SLUICE_TEST_PART is K/N, K from 1 to N"
    return files[PART - 1::NUM_PARTS]


def byte_alphabet():
    """The characters that byte-level BPE writes bytes as."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def write_vocabulary(folder):
    """All bytes, an end token, and the merges that JSON invites: quotes with punctuation, blanks, short words."""
    table = byte_alphabet()
    tokens = [table[b] for b in range(256)]
    merges = []
    pairs = ['": ', '", ', '"}', '":', '",', '{"', '["', '"]', '"a', 'a"', 'ab', 'tr', 'ue', ', ', ': ', '\n ', '12', '.5', 'é']
    for text in pairs:
        parts = [table[b] for b in text.encode()]
        left = parts[0]
        for right in parts[1:]:
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
            left += right
    end = len(tokens)
    spec = {"version": "1.0", "added_tokens": [{"id": end, "content": "<|endoftext|>", "special": True, "single_word": False,
                                                "lstrip": False, "rstrip": False, "normalized": False}],
            "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            "post_processor": None, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}}
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))


def run_jobs(model, jobs):
    lines = "\n".join(json.dumps(job) for job in jobs)
    done = subprocess.run([BINARY, "constrain", str(model), "--jsonl", "-"], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"exit {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def spelled(value):
    return json.dumps(value, ensure_ascii=False)


def hints_of(schema, instances):
    """Keys and values that texts of the schema are made of, as they are spelled."""
    keys, values, required = set(), set(), set()

    def walk(value, names=False):
        """Of a schema: the names of properties, and anything that may be a constant."""
        if isinstance(value, dict):
            keys.update(value if names else ())
            for key, below in value.items():
                if key == "required" and isinstance(below, list):
                    required.update(name for name in below if isinstance(name, str))
                walk(below, key == "properties" and not names)
        elif isinstance(value, list):
            for below in value:
                walk(below)
        elif len(spelled(value)) <= 40:
            values.add(spelled(value))

    def walk_instance(value, root=True):
        if isinstance(value, dict):
            keys.update(value)
        for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk_instance(below, False)
        if not root and len(spelled(value)) <= 1000:
            values.add(spelled(value))

    walk(schema)
    for instance in instances:
        walk_instance(instance)
    needed = [spelled(k) + ":" for k in sorted(required)]
    return needed * 10 + sorted(spelled(k) + ":" for k in keys)[:300] + sorted(values)[:300] + [",", "}", "]"] * 5


def no_twice(pairs):
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key twice")
    return out


class Constrained(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        write_vocabulary(pathlib.Path(cls.folder.name))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()


class SharedSchemas(Constrained):
    def setUp(self):
        self.files = shared_schemas(60)

    def test_schemas(self):
        cases = [json.loads(f.read_text()) for f in self.files]
        jobs = [{"source": c["schema"], "texts": [spelled(t["data"]) for t in c["tests"]], "samples": 60 if FULL else 6,
                 "hints": hints_of(c["schema"], [t["data"] for t in c["tests"] if t["valid"]])} for c in cases]
        results = run_jobs(self.folder.name, jobs)
        if FULL:
            self.sample_more(jobs, results)
        right = outputs = 0
        for file, case, result in zip(self.files, cases, results):
            if not result["supported"]:
                self.assertTrue(result["error"], file.name)
                continue
            judged = [(t["valid"], ok) for t, ok in zip(case["tests"], result["texts"])]
            self.assertNotIn((False, True), judged, f"{file.name}: an invalid instance is accepted")
            right += all(valid == ok for valid, ok in judged)
            self.assertEqual(result["failures"], [], file.name)
            self.check_samples(file.name, case["schema"], result)
            outputs += len(result["samples"])
        print(f"{right} of {len(cases)} schemas supported with all instances judged right, {outputs} random outputs valid",
              file=sys.stderr)
        self.assertGreaterEqual(right, (0.88 if FULL and NUM_PARTS == 1 else 0.75) * len(cases))

    def sample_more(self, jobs, results):
        """Random texts of some schemas seldom end before the limit of tokens: those get more tries."""
        for _ in range(4):
            few = [i for i, r in enumerate(results) if r["supported"] and not r["failures"] and len(r["samples"]) < 50]
            for i in few:
                jobs[i]["samples"] *= 4
            for i, result in zip(few, run_jobs(self.folder.name, [jobs[i] for i in few]) if few else []):
                results[i] = result

    def check_samples(self, name, schema, result):
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
        for text in result["samples"]:
            value = json.loads(text, object_pairs_hook=no_twice)
            errors = [e.message for e in validator.iter_errors(value)]
            self.assertEqual(errors[:1], [], f"{name}: {text}")
        if FULL:
            self.assertGreaterEqual(len(result["samples"]), 50, name)


class OfficialSuite(Constrained):
    def test_suite(self):
        groups = []
        for file in sorted(SUITE.glob("*.json")):
            groups += [(f"{file.stem}: {g['description']}", g) for g in json.loads(file.read_text())]
        self.assertGreater(len(groups), 200)
        jobs = [{"source": g["schema"], "texts": [spelled(t["data"]) for t in g["tests"]]} for _, g in groups]
        counts = collections.Counter()
        accepted = []
        for (name, group), result in zip(groups, run_jobs(self.folder.name, jobs)):
            if not result["supported"]:
                self.assertTrue(result["error"], name)
                # A schema without valid values is refused as such, which judges all its instances.
                none = "no value is valid" in result["error"]
                counts["right" if none else "refused"] += len(group["tests"])
                self.assertFalse(none and any(t["valid"] for t in group["tests"]), name)
                continue
            for test, ok in zip(group["tests"], result["texts"]):
                if ok and not test["valid"]:
                    accepted.append(f"{name}: {test['description']}")
                counts["right" if ok == test["valid"] else "wrong"] += 1
        total = sum(counts.values())
        print(f"official suite: {dict(counts)} of {total}", file=sys.stderr)
        self.assertEqual(accepted, [])
        self.assertGreaterEqual(counts["right"], 0.6 * total)


if __name__ == "__main__":
    BINARY = str(pathlib.Path(sys.argv.pop(1)).resolve())
    SUITE = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
