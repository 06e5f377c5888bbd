#!/usr/bin/env python3
"""sluice quantize as its users meet it: what it writes, what it refuses, and that an independent reader (the
PyPI package gguf, where it is installed) finds the same values in the file.

    tests/quantize_test.py BINARY [unittest arguments]
"""

import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import cli_test
from sliced import SlicedLoader
from cli_test import Cli, Gguf, MODEL

try:
    import gguf
    import numpy
except ImportError:
    gguf = None

WORK = None
TYPES = ["q8_0", "q4_0", "q4_k", "q6_k", "f16", "bf16", "f32"]
# Relative errors of normal weights: those of llama.cpp's quantisers, and a little.
RMSE = {"Q8_0": 0.0054, "Q4_0": 0.0870, "Q4_K": 0.0714, "Q6_K": 0.0179, "Q5_0": 0.0430, "F16": 0.0003,
        "BF16": 0.0018, "F32": 0}
SHAPE = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 352, "vocab_size": 300, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "tie_word_embeddings": False, "max_position_embeddings": 512}


def quantize(test, source, name, kind, *more):
    out = WORK / name
    text = test.works("quantize", source, out, "--type", kind, "--json", "-q", "--overwrite", *more)
    return out, json.loads(text)


class Quantize(Cli):
    @classmethod
    def setUpClass(cls):
        shape = WORK / "shape.json"
        shape.write_text(json.dumps(SHAPE))
        cls.source = WORK / "source.gguf"
        done = cli_test.run("quantize", f"random:{shape}", cls.source, "--type", "f32")
        assert done.returncode == 0, done.stderr

    def test_every_type(self):
        for kind in TYPES:
            out, result = quantize(self, self.source, f"{kind}.gguf", kind)
            self.assertEqual(result["file_bytes"], out.stat().st_size)
            self.assertEqual(result["bytes_after"], sum(f["bytes_after"] for f in result["formats"]))
            for row in result["formats"]:
                self.assertLessEqual(row["relative_rmse"], RMSE[row["format"]], (kind, row))
            by_name = {f["format"] for f in result["formats"]}
            want = {"f32": {"F32"}, "q4_k": {"F32", "Q4_K", "Q6_K", "Q5_0"}, "q4_0": {"F32", "Q4_0", "Q6_K"},
                    "q6_k": {"F32", "Q6_K", "Q8_0"}}
            self.assertEqual(by_name, want.get(kind, {"F32", kind.upper()}))
            listing = json.loads(self.works("inspect", out, "--json", "--tensors", "-q"))
            self.assertTrue(listing)
            self.assertFalse((WORK / f"{kind}.gguf.partial").exists())

    def test_fallbacks_are_said(self):
        _, result = quantize(self, self.source, "k.gguf", "q4_k")
        self.assertEqual({(f["wanted"], f["format"], f["columns"]) for f in result["fallbacks"]},
                         {("Q4_K", "Q5_0", 352)})
        table = self.works("quantize", self.source, WORK / "k.gguf", "--type", "q4_k", "--overwrite").decode()
        self.assertIn("Q5_0 instead of Q4_K: 2 tensors", table)

    def test_the_result_runs(self):
        for kind in TYPES:
            out, _ = quantize(self, MODEL, f"run-{kind}.gguf", kind)
            text = self.works("run", out, "-p", "hello", "-m", 8, "--temperature", 0, "-t", 1, "-q")
            if kind == "f32":
                self.assertEqual(text, self.works("run", MODEL, "-p", "hello", "-m", 8, "--temperature", 0, "-t", 1, "-q"))

    def test_metadata_is_carried_over(self):
        out, _ = quantize(self, MODEL, "meta.gguf", "f32")
        before, after = Gguf(MODEL), Gguf(out)
        for key, value in before.keys.items():
            if key not in ("general.file_type", "general.quantization_version"):
                self.assertEqual(after.keys[key], value, key)
        self.assertEqual(before.tensors, after.tensors)

    def test_hugging_face_folders(self):
        """The same as the GGUF file that other software made of the same weights."""
        for folder in sorted((cli_test.ROOT / "tests/golden/hf").iterdir()):
            golden = cli_test.ROOT / "tests/golden/models" / (folder.name + ".gguf")
            if not golden.exists():
                continue
            out, _ = quantize(self, folder, "hf.gguf", "f32")
            before, after = Gguf(golden), Gguf(out)
            self.assertEqual(before.tensors, after.tensors, folder)
            for key, value in before.keys.items():
                if not key.startswith(("general.", "tokenizer.")):
                    self.assertEqual(after.keys[key], value, (folder, key))

    def test_int4_folders(self):
        for folder in sorted(p for p in (cli_test.ROOT / "tests/golden/quant").iterdir() if p.is_dir()):
            _, result = quantize(self, folder, "int4.gguf", "q8_0")
            self.assertLess(result["relative_rmse"], 0.006, folder)

    def test_repeatable_with_any_threads(self):
        one, _ = quantize(self, self.source, "one.gguf", "q4_k", "-t", 1)
        four, _ = quantize(self, self.source, "four.gguf", "q4_k", "-t", 4)
        self.assertEqual(one.read_bytes(), four.read_bytes())

    def test_copying_changes_nothing(self):
        one, _ = quantize(self, self.source, "one.gguf", "q6_k")
        again, result = quantize(self, one, "again.gguf", "q6_k")
        self.assertEqual(one.read_bytes(), again.read_bytes())
        self.assertEqual(result["relative_rmse"], 0)

    def test_output_and_embedding(self):
        def formats(*more):
            path, _ = quantize(self, self.source, "x.gguf", "q4_0", *more)
            tensors = Gguf(path).tensors
            return tensors["output.weight"][1], tensors["token_embd.weight"][1]

        f32, q4_0, q8_0, q6_k = 0, 2, 8, 14  # GGUF's numbers
        self.assertEqual(formats(), (q6_k, q4_0))
        self.assertEqual(formats("--output-type", "q8_0"), (q8_0, q4_0))
        self.assertEqual(formats("--keep-embedding"), (q6_k, f32))

    def test_refusals(self):
        def fails(*args, says):
            self.fails("quantize", *args, says=says)

        out = WORK / "new.gguf"
        fails(self.source, out, says="--type")
        fails(self.source, out, "--type", "q9_9", says="q9_9")
        fails(WORK / "none.gguf", out, "--type", "q8_0", says="none.gguf")
        fails(self.source, self.source, "--type", "q8_0", says="same file")
        fails(self.source, self.source, "--type", "q8_0", "--overwrite", says="same file")
        link = WORK / "link.gguf"
        link.symlink_to(self.source)
        fails(link, self.source, "--type", "q8_0", "--overwrite", says="same file")
        fails(self.source, WORK, "--type", "q8_0", "--overwrite", says="folder")
        fails(self.source, WORK / "no" / "x.gguf", "--type", "q8_0", says="No such file")
        fails(self.source, "", "--type", "q8_0", says="output")
        old = WORK / "old.gguf"
        old.write_bytes(b"old")
        fails(self.source, old, "--type", "q8_0", says="--overwrite")
        self.assertEqual(old.read_bytes(), b"old")
        self.assertFalse(out.exists())

    def test_numbers_that_are_none(self):
        for bad, kind, says in ((float("nan"), "q8_0", "not finite"), (float("inf"), "q4_k", "not finite"),
                                (1e6, "f16", "too large"), (float("-inf"), "f32", "not finite")):
            model = Gguf()
            value = bytearray(model.tensors["blk.0.attn_q.weight"][2])
            value[40:44] = struct.pack("<f", bad)
            model.tensors["blk.0.attn_q.weight"][2] = bytes(value)
            out = WORK / "bad.gguf"
            err = self.fails("quantize", model.write("nan.gguf"), out, "--type", kind, says=says)
            self.assertIn("blk.0.attn_q.weight", err)
            self.assertFalse(out.exists() or out.with_name("bad.gguf.partial").exists())

    def test_no_room(self):
        """A limit on file sizes fails as a full disk does."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        out = WORK / "full.gguf"
        done = subprocess.run([str(cli_test.BINARY), "quantize", str(self.source), str(out), "--type", "f32"],
                              capture_output=True, preexec_fn=limit, restore_signals=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(b"make room", done.stderr)
        self.assertFalse(out.exists() or (WORK / "full.gguf.partial").exists())

    def test_interrupted(self):
        shape = WORK / "large.json"
        shape.write_text(json.dumps({**SHAPE, "hidden_size": 2048, "intermediate_size": 8192,
                                     "num_attention_heads": 16, "num_hidden_layers": 8}))
        out = WORK / "large.gguf"
        process = subprocess.Popen([str(cli_test.BINARY), "quantize", f"random:{shape}", str(out), "--type", "q4_k",
                                    "-t", "1"], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while not (WORK / "large.gguf.partial").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=480)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn(b"interrupted", err)
        self.assertFalse(out.exists() or (WORK / "large.gguf.partial").exists())


class IndependentReader(Cli):
    """What gguf reads is what sluice meant: its dequantised values are, bit for bit, those of sluice's own
    conversion of the same file to F32."""

    def check(self, source, kind):
        out, _ = quantize(self, source, "there.gguf", kind)
        back, _ = quantize(self, out, "back.gguf", "f32")
        theirs, ours = gguf.GGUFReader(out), gguf.GGUFReader(back)
        plain = {t.name: t for t in ours.tensors}
        self.assertEqual(len(plain), len(theirs.tensors))
        for t in theirs.tensors:
            want = gguf.quants.dequantize(t.data, t.tensor_type)
            got = plain[t.name].data
            self.assertEqual(list(t.shape), list(plain[t.name].shape), t.name)
            numpy.testing.assert_array_equal(numpy.asarray(want, numpy.float32).reshape(got.shape), got, t.name)

    def test_values(self):
        shape = WORK / "shape2.json"
        shape.write_text(json.dumps(SHAPE))
        data = pathlib.Path(os.environ.get("SLUICE_TEST_DATA", cli_test.ROOT.parent / "shared/data"))
        real = data / "models/stories15M-f16.gguf"
        for kind in TYPES:
            self.check(MODEL, kind)
            self.check(f"random:{shape}", kind)
            if kind in ("q4_0", "q4_k") and real.exists():
                self.check(real, kind)

    def test_metadata_types(self):
        def fields(path):
            return {k: (f.types, f.contents()) for k, f in gguf.GGUFReader(path).fields.items()
                    if not k.startswith("GGUF.") and k not in ("general.file_type", "general.quantization_version")}

        out, _ = quantize(self, MODEL, "there.gguf", "q8_0")
        self.assertEqual(fields(out), fields(MODEL))
        kinds = fields(out)
        self.assertEqual(kinds["llama.block_count"][0][0], gguf.GGUFValueType.UINT32)
        self.assertEqual(kinds["llama.attention.layer_norm_rms_epsilon"][0][0], gguf.GGUFValueType.FLOAT32)

    def test_encoders_that_gguf_has_agree(self):
        """Of the formats that gguf can write, ours differ in no byte."""
        for kind in ("q8_0", "q4_0", "f16", "bf16"):
            out, _ = quantize(self, MODEL, "there.gguf", kind, "--output-type", kind)
            before = {t.name: t for t in gguf.GGUFReader(MODEL).tensors}
            for t in gguf.GGUFReader(out).tensors:
                if t.tensor_type == gguf.GGMLQuantizationType.F32:
                    continue
                want = gguf.quants.quantize(before[t.name].data, t.tensor_type)
                numpy.testing.assert_array_equal(want.view(numpy.uint8).ravel(), t.data.view(numpy.uint8).ravel(), t.name)


if not gguf:  # the ctest quantize_gguf runs it
    del IndependentReader

if __name__ == "__main__":
    cli_test.BINARY = pathlib.Path(sys.argv.pop(1)).resolve()
    with tempfile.TemporaryDirectory() as folder:
        WORK = cli_test.WORK = pathlib.Path(folder)
        unittest.main(testLoader=SlicedLoader())
