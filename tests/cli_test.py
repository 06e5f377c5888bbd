#!/usr/bin/env python3
"""The program as its users meet it: what it prints where, its exit codes, and one clear line for every kind
of bad input.

    tests/cli_test.py BINARY [unittest arguments]

Broken model files are made from tests/golden/models/llama.gguf, field by field.
"""

import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from sliced import SlicedLoader

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "tests/golden/models/llama.gguf"
BINARY = None
WORK = None  # a folder of our own

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

TINY = {"model_type": "qwen2", "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 201, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "max_position_embeddings": 4096}


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


class Gguf:
    """A GGUF file as lists of fields, to change and write again."""

    def __init__(self, path=MODEL):
        self.raw = path.read_bytes()
        self.at = 4
        self.version, = self.take("<I")
        num_tensors, num_keys = self.take("<QQ")
        self.keys = {}  # name -> (type, bytes of the value)
        for _ in range(num_keys):
            name = self.take_string()
            kind, = self.take("<I")
            begin = self.at
            self.skip(kind)
            self.keys[name] = (kind, self.raw[begin:self.at])
        self.tensors = {}  # name -> [dims, type, bytes]
        infos = []
        for _ in range(num_tensors):
            name = self.take_string()
            num_dims, = self.take("<I")
            dims = list(self.take(f"<{num_dims}Q"))
            kind, offset = self.take("<IQ")
            infos.append((name, dims, kind, offset))
        self.header_size = self.at
        data = (self.at + 31) // 32 * 32
        for name, dims, kind, offset in infos:
            size = 4
            for d in dims:
                size *= d
            self.tensors[name] = [dims, kind, self.raw[data + offset:data + offset + size]]

    def take(self, form):
        values = struct.unpack_from(form, self.raw, self.at)
        self.at += struct.calcsize(form)
        return values

    def take_string(self):
        size, = self.take("<Q")
        self.at += size
        return self.raw[self.at - size:self.at].decode()

    def skip(self, kind):
        if kind == STRING:
            self.take_string()
        elif kind == ARRAY:
            inner, count = self.take("<IQ")
            for _ in range(count):
                self.skip(inner)
        else:
            self.at += SIZES[kind]

    def set(self, name, kind, value):
        self.keys[name] = (kind, value)
        return self

    def set_string(self, name, text):
        return self.set(name, STRING, string(text))

    def set_u32(self, name, value):
        return self.set(name, U32, struct.pack("<I", value))

    def write(self, name):
        out = b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.keys))
        for key, (kind, value) in self.keys.items():
            out += string(key) + struct.pack("<I", kind) + value
        data = b""
        for key, (dims, kind, value) in self.tensors.items():
            out += string(key) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
            data += value + bytes(-len(value) % 32)
        out += bytes(-len(out) % 32)
        path = WORK / name
        path.write_bytes(out + data)
        return path


def run(*args, stdin=b"", env=None):
    command = [str(BINARY)] + [a if isinstance(a, bytes) else str(a) for a in args]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=480,
                          env={**os.environ, **(env or {})})


class Cli(unittest.TestCase):
    def fails(self, *args, says="", **more):
        """Exit code 2, nothing on stdout, one line on stderr that holds `says`."""
        done = run(*args, **more)
        err = done.stderr.decode(errors="replace")
        where = f"{[str(a) for a in args]}: exit {done.returncode}\n{err}"
        self.assertEqual(done.returncode, 2, where)
        self.assertEqual(done.stdout, b"", where)
        self.assertTrue(err.startswith("sluice: ") and err.endswith("\n") and err.count("\n") == 1, where)
        self.assertIn(says, err, where)
        return err

    def works(self, *args, **more):
        done = run(*args, **more)
        self.assertEqual(done.returncode, 0, f"{[str(a) for a in args]}\n{done.stderr.decode()}")
        return done.stdout

    def refuses_model(self, path, says=""):
        return self.fails("run", path, "-p", "hello", "-m", 1, "-t", 1, says=says)


class Inspect(Cli):
    def ledger(self, *args):
        return json.loads(self.works("inspect", "random:qwen2.5-7b", "--format", "bf16", "--json", *args))["ledger"]

    def test_plans_for_a_gpu_that_is_not_here(self):
        bf16 = self.ledger("--gpu-memory", "80G")
        self.assertEqual(bf16["available"], 80 << 30)
        self.assertAlmostEqual(bf16["weights"], 15.2e9, delta=0.1e9)
        self.assertLessEqual(sum(bf16[k] for k in ("weights", "kv", "workspace", "program")), 80 << 30)
        fp8 = self.ledger("--gpu-memory", "80G", "--quantize", "fp8", "--kv", "f8")
        self.assertEqual(fp8["kv_per_token"] * 2, bf16["kv_per_token"])
        self.assertGreater(fp8["full_sequences"], 2 * bf16["full_sequences"])
        int8 = self.ledger("--gpu-memory", "80G", "--quantize", "w8a8", "--kv", "f8")
        self.assertEqual(int8["weights"], fp8["weights"])
        some = self.ledger("--gpu-memory", "80G", "--quantize", "w8a8", "--quantize-exclude", "ffn_down")
        self.assertGreater(some["weights"], int8["weights"] + 28 * 3584 * 18944 * 0.99)
        self.assertLess(some["weights"], bf16["weights"])

    def test_refuses_what_no_gpu_does(self):
        model = ("inspect", "random:qwen2.5-7b")
        self.fails(*model, "--gpu-memory", "80G", "--quantize", "w4", says="on a GPU use fp8 or w8a8")
        self.fails(*model, "--gpu-memory", "80G", "--quantize", "fp8", "--quantize-exclude", "attn_q",
                   says="--quantize-exclude goes with --quantize w8a8 on a GPU")
        self.fails(*model, "--gpu-memory", "80G", "--quantize", "w8a8", "--quantize-exclude", "lm_head",
                   says="the model has no matrix of that name")
        self.fails(*model, "--gpu-memory", "80G", "--kv", "f32", says="--kv f32: on a GPU")
        self.fails("inspect", "random:qwen2.5-0.5b", "--gpu-memory", "80G", "--dtype", "f32", "--kv", "int8",
                   says="with f16 and bf16 f8 or int8")
        self.fails(*model, "--gpu-memory", "8X", says="write a size like")

    def test_what_does_not_fit_is_described(self):
        model = ("inspect", "random:llama-3.1-8b", "--format", "bf16", "--gpu-memory")
        text = self.works(*model, "12G").decode()
        self.assertRegex(text, r"does not fit +not enough memory: weights 16\.1 GB")
        self.assertRegex(text, r"would fit +--quantize fp8 --ctx \d+: 12\.\d GB with 1 sequence of")
        self.assertIn("32 layers", text)
        out = json.loads(self.works(*model, "12G", "--json"))
        self.assertFalse(out["fits"])
        self.assertIn("not enough memory", out["shortage"])
        for way in out["would_fit"]:  # each of them does, as inspect itself says
            fits = json.loads(self.works(*model, "12G", *way["options"].split(), "--json"))
            self.assertTrue(fits["fits"], way["options"])
            self.assertEqual(fits["ledger"], way["ledger"])
        self.assertEqual(json.loads(self.works(*model, "4G", "--json"))["would_fit"], [])
        self.assertRegex(self.works(*model, "4G").decode(), r"would fit +nowhere with less than 1\d\.\d GB")
        self.assertTrue(json.loads(self.works(*model, "80G", "--json"))["fits"])
        # A quantised file fits where its weights stay as they are, and then takes about its own size.
        quantised = ("inspect", "random:llama-3.1-8b", "--format", "q4_k", "--gpu-memory", "12G")
        self.assertRegex(self.works(*quantised).decode(), r"would fit +--gpu-weights stored")
        out = json.loads(self.works(*quantised, "--gpu-weights", "stored", "--json"))
        self.assertTrue(out["fits"])
        self.assertAlmostEqual(out["ledger"]["weights"] / 8.03e9 * 8, 4.625, delta=0.02)

    def test_layers_on_the_cpu_beside_a_gpu(self):
        model = ("inspect", "random:llama-3.1-8b", "--format", "q8_0", "--gpu-memory", "12G", "--json")
        out = json.loads(self.works(*model))
        self.assertFalse(out["fits"])
        best = out["gpu_layers_auto"]
        num = best["gpu_layers"]
        self.assertGreater(num, 10)
        self.assertLess(num, 32)
        chosen = json.loads(self.works(*model, "--gpu-layers", num))["ledger"]
        self.assertEqual(chosen["weights"], best["ledger"]["weights"])
        self.assertLessEqual(chosen["total"], 12 << 30)
        self.assertEqual(chosen["host"]["layers"], 32 - num)
        self.assertEqual(json.loads(self.works(*model, "-ngl", num))["ledger"]["weights"], chosen["weights"])
        automatic = json.loads(self.works(*model, "--gpu-layers", "auto"))["ledger"]
        self.assertEqual(automatic["weights"], chosen["weights"])
        more = json.loads(self.works(*model, "--gpu-layers", num + 1))
        stopped = automatic["host"]["streamed"] > 0 and more["ledger"]["host"]["streamed"] == 0
        self.assertTrue(not more["fits"] or more["ledger"]["full_sequences"] * more["ledger"]["ctx"] < 8192 or stopped)
        text = self.works(*model[:-1]).decode()
        self.assertRegex(text, rf"--gpu-layers +auto would choose {num} of 32: 12\.\d GB of the GPU")
        self.assertRegex(self.works(*model[:-1], "--gpu-layers", num).decode(), rf"on the CPU +{32 - num} layers")
        self.fails(*model, "--gpu-layers", "some", says="use auto or a number of layers")
        self.fails(*model, "--gpu-layers", "8", "--pipeline", "overlap", says="--pipeline")
        self.fails(*model, "--gpu-layers", "8", "--prefix-host", "1G", says="--prefix-host")
        self.works(*model, "--gpu-layers", "8", "--pipeline", "sync")
        self.fails("run", MODEL, "-p", "x", "--device", "cpu", "--gpu-layers", "3", says="needs a GPU")
        self.fails("run", MODEL, "-p", "x", "--device", "cpu", "--gpu-memory", "8G", says="is for a GPU")

    def test_what_does_not_fit_on_the_cpu(self):
        tiny = WORK / "huge.json"
        tiny.write_text(json.dumps({**TINY, "max_position_embeddings": 1 << 30}))
        out = json.loads(self.works("inspect", f"random:{tiny}", "--ctx", 1 << 30, "--json"))
        self.assertFalse(out["fits"])
        self.assertIn("--ctx", out["would_fit"][0]["options"])
        self.fails("run", f"random:{tiny}", "--ctx", 1 << 30, "-p", "x", says="lower --ctx")

    def test_what_cannot_run_is_described(self):
        path = Gguf().set_string("general.architecture", "mamba").write("mamba.gguf")
        done = run("inspect", path)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stdout, rb"architecture +'mamba'")
        self.assertRegex(done.stdout, rb"tensors +\d+: F32")
        self.assertIn(b"mamba", done.stderr)


class Plan(Cli):
    def test_simulates_a_device_that_is_not_here(self):
        page = WORK / "plan.html"
        out = json.loads(self.works("plan", "random:qwen2.5-7b", "--format", "bf16", "--device", "H200", "--rate", 4,
                                    "--requests", 40, "--input", "64-512", "--output", 32, "--slo",
                                    "ttft=500ms,tpot=30ms", "--html", page, "--json", "-q"))
        first = out["trials"][0]["figures"]
        self.assertEqual((first["requests"], first["refused"]), (40, 0))
        self.assertGreater(first["good"], 36)
        self.assertLess(first["tpot_s"]["p50"], 0.02)
        self.assertGreater(len(out["trials"]), 10)
        self.assertTrue(out["command"].startswith("sluice serve random:qwen2.5-7b --format bf16 --device cuda"))
        self.assertFalse(out["step_cost_measured"])
        self.assertTrue(any("--kv int8" in t["flags"] for t in out["trials"]))
        # Nothing of 40 easy requests can be better.
        self.assertEqual(out["best"], 0)
        self.assertTrue(out["choice"]["defaults_are_best"])
        self.assertTrue(out["choice"]["verdict"].startswith("The defaults are best"), out["choice"])
        self.assertEqual(out["command"], "sluice serve random:qwen2.5-7b --format bf16 --device cuda")
        text = page.read_text()
        for words in out["choice"]["words"]:
            self.assertIn(words, text)
        self.assertIn("<svg", text)
        self.assertNotIn("http://", text.replace("http://www.w3.org", ""))
        text = self.works("plan", "random:qwen2.5-7b", "--format", "bf16", "--device", "h200", "--requests", 5,
                          "--no-search", "-q").decode()
        self.assertIn("times real time", text)

    def test_recommends_what_gains_and_no_more(self):
        # Too many sequences at once for the pool: most requests wait for their first token.
        args = ["plan", "random:qwen2.5-7b", "--format", "bf16", "--device", "h200", "--rate", 40, "--requests", 200,
                "--input", 512, "--output", 64, "--max-seqs", 4, "--slo", "ttft=1s,tpot=50ms", "-q"]
        out = json.loads(self.works(*args, "--max-replicas", 1, "--json"))
        choice, trials = out["choice"], out["trials"]
        first, best = trials[0]["figures"], trials[out["best"]]["figures"]
        self.assertFalse(choice["defaults_are_best"])
        self.assertGreater(best["goodput_requests_per_s"], first["goodput_requests_per_s"] * (1 + choice["margin_rate"]))
        self.assertIn(trials[out["best"]]["flags"], out["command"])
        flags = trials[out["best"]]["flags"]
        self.assertEqual(sorted(n["flags"] for n in choice["needed"]), sorted(re.findall(r"--\S+ \S+", flags)))
        for n in choice["needed"]:
            without = trials[n["without"]]
            self.assertNotIn(n["flags"], without["flags"])
            self.assertLess(without["figures"]["good"], best["good"])
        self.assertTrue(all(t["replicas"] == 1 for t in trials))
        text = self.works(*args, "--max-replicas", 1).decode()
        for words in choice["words"]:
            self.assertIn(words, text)
        self.fails(*args, "--replicas", 4, "--max-replicas", 2, says="--max-replicas")
        self.fails(*args, "--max-replicas", 2, "--no-search", says="--no-search")

    def test_simulates_workers_behind_a_router(self):
        trace = WORK / "cluster.jsonl"
        lines = [{"timestamp": 20 * i, "input_length": 3000 + 40 * (i % 5), "output_length": 5,
                  "hash_ids": [100 * (i * i % 7) + b for b in range(5)]} for i in range(80)]
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        args = ["plan", "cluster", "random:qwen2.5-7b", "--format", "bf16", "--device", "h200", "--workers", 3,
                "--workload", trace, "--slo", "ttft=300ms,tpot=30ms", "-q"]
        out = json.loads(self.works(*args, "--json"))
        self.assertEqual(out, json.loads(self.works(*args, "--json")))
        rows = {(p["policy"], p["early_rejection"]): p for p in out["policies"]}
        self.assertEqual(len(rows), 5)
        for row in rows.values():
            self.assertEqual(row["figures"]["requests"], 80)
            self.assertEqual(row["figures"]["refused"], 0)
        self.assertGreater(rows["cache-aware", False]["figures"]["prefix_hit_rate"],
                           rows["round-robin", False]["figures"]["prefix_hit_rate"])
        self.assertIn("least-loaded", self.works(*args).decode())
        self.assertNotIn("least-loaded", self.works(*args, "--policy", "random,cache-aware").decode())
        self.fails(*args, "--policy", "best", says="--policy")
        self.fails(*args, "--workers", 0, says="--workers")
        apart = [a for a in args if a not in ("--workers", 3)] + ["--prefill-workers", 1, "--decode-workers", 2]
        rows = json.loads(self.works(*apart, "--json"))["policies"]
        self.assertEqual([(r["prefill"], r["decode"]) for r in rows], [(0, 0)] * 5 + [(1, 2)] * 5)
        for row in rows:
            self.assertEqual(row["figures"]["requests"], 80)
        self.assertEqual([r["handed_over"] for r in rows if r["policy"] == "round-robin"], [0, 80])
        slow = json.loads(self.works(*apart, "--link", 1, "--policy", "round-robin", "--json"))["policies"]
        self.assertEqual(slow[0]["figures"], rows[1]["figures"])
        self.assertGreater(slow[1]["figures"]["ttft_s"]["p50"], rows[6]["figures"]["ttft_s"]["p50"])
        self.fails(*args, "--prefill-workers", 1, "--decode-workers", 2, says="--workers")
        self.fails(*apart[:-2], says="--decode-workers")
        moving = json.loads(self.works(*args, "--balance-roles", "--json"))["policies"]
        self.assertEqual([(r["policy"], r["balance_roles"]) for r in moving[5:]], [("cache-aware", True)] * 2)
        self.assertEqual([r["figures"] for r in moving[:5]], [r["figures"] for r in rows[:5]])
        self.assertIn("roles changed", self.works(*args, "--balance-roles").decode())
        without = [a for a in args if a not in ("--slo", "ttft=300ms,tpot=30ms")]
        self.fails(*without, "--balance-roles", says="--slo")

    def test_calibrates_compares_and_plans_with_the_cost(self):
        shape, cost = WORK / "tiny.json", WORK / "cost.json"
        shape.write_text(json.dumps(TINY))
        model, few = f"random:{shape}", ["--ctx", 256, "-t", 1, "--max-seqs", 8, "-q"]
        self.works("plan", "calibrate", model, "--limit", 1, "--out", cost, *few)
        self.assertGreater(json.loads(cost.read_text())["steps"], 10)
        load = ["--rate", 100, "--requests", 10, "--input", 20, "--output", 8]
        out = json.loads(self.works("plan", "compare", model, "--cost", cost, "--json", *load, *few))
        figures = {f["figure"]: f for f in out["figures"]}
        self.assertGreater(figures["TTFT p50"]["measured"], 0)
        self.assertGreater(figures["TTFT p50"]["simulated"], 0)
        self.assertGreater(figures["steps"]["replayed"], 0)
        out = json.loads(self.works("plan", model, "--cost", cost, "--no-search", "--json", *load, *few))
        self.assertTrue(out["step_cost_measured"])
        self.assertIn("measured", self.works("plan", "table", model, "--cost", cost, "--devices", "l4").decode())
        self.assertEqual(out["command"], f"sluice serve {model} --threads 1 --ctx 256 --max-seqs 8 --device cpu")
        self.fails("plan", model, "--cost", cost, "-t", 2, says="add -t 1")
        self.fails("plan", model, "--cost", cost, "-t", 1, "--format", "bf16", says="in 'q8_0'")
        self.fails("plan", model, "--cost", cost, "-t", 1, "--quantize", "w4", says="with '--quantize none'")
        self.fails("plan", "random:qwen2.5-0.5b", "--cost", cost, says="plan calibrate")
        self.fails("plan", model, "--cost", cost, "--device", "h200", says="measured on a CPU")

    def test_stored_weights_are_read_as_stored(self):
        tpot = {}
        for weights in ("16bit", "stored"):
            out = json.loads(self.works("plan", "random:qwen2.5-7b", "--format", "q4_0", "--device", "l4", "--requests",
                                        2, "--gpu-weights", weights, "--no-search", "--json", "-q"))
            tpot[weights] = out["trials"][0]["figures"]["tpot_s"]["p50"]
            self.assertIn(f"--gpu-weights {weights}", out["command"])
        self.assertLess(tpot["stored"], 0.6 * tpot["16bit"])

    def test_a_trace_with_shared_prefixes(self):
        trace = WORK / "plan.jsonl"
        lines = [{"timestamp": 1000 * i, "input_length": 1100, "output_length": 4, "hash_ids": [1, 2, 10 + i]}
                 for i in range(5)]
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out = json.loads(self.works("plan", "random:qwen2.5-0.5b", "--device", "l4", "--workload", trace, "--json",
                                    "--no-search", "-q"))
        self.assertAlmostEqual(out["trials"][0]["figures"]["prefix_hit_rate"], 4 * 1024 / 5500, places=3)

    def test_table_of_devices(self):
        out = json.loads(self.works("plan", "table", "random:llama-3.1-8b", "--json"))
        cells = {(c["device"], c["format"], c["batch"]): c for c in out["cells"]}
        self.assertFalse(cells["T4", "bf16", 1]["fits"])
        self.assertTrue(cells["T4", "4-bit", 1]["fits"])
        h200, l4 = cells["H200", "bf16", 32], cells["L4", "bf16", 1]
        self.assertGreater(h200["output_tokens_per_s"], 50 * l4["output_tokens_per_s"])
        self.assertGreater(h200["dollars_per_million_output_tokens"], 0)

    def test_bad_input(self):
        model = "random:qwen2.5-0.5b"
        self.fails("plan", says="which model")
        self.fails("plan", model, "--device", "h300", says="it may be cpu, T4")
        self.fails("plan", model, "--device", "l4", "--slo", "speed=1", says="ttft=200ms")
        self.fails("plan", model, "--device", "l4", "--workload", "/nowhere.csv", says="nowhere")
        self.fails("plan", model, "--device", "l4", "--input", "x", says="--input")
        self.fails("plan", model, "--cost", "/nowhere.json", says="nowhere")
        self.fails("plan", model, "--device", "l4", "--ctx", 256, "--input", 4000, says="raise --ctx")
        self.fails("plan", "random:qwen3-14b", "--format", "bf16", "--device", "l4", says="memory")
        for option in ("--rate", "--length-scale", "--time-scale", "--price"):
            self.fails("plan", model, "--device", "l4", option, "nan", says="is not a number from")
        self.fails("plan", model, "--device", "l4", "--rate", 2, "--workload", "x.csv", says="--workload")
        self.fails("plan", model, "--device", "l4", "--length-scale", 2, says="--workload")
        self.fails("plan", model, "--device", "l4", "--rate", 1e-6, says="raise --rate")
        self.fails("plan", "table", model, "--devices", "l4,x9", says="no device")
        self.fails("plan", "calibrate", model, "--out", "/nowhere/x.json", says="cannot write")


class Usage(Cli):
    def test_help_of_every_command(self):
        for command in ([], ["run"], ["tokenize"], ["inspect"], ["template"], ["perplexity"], ["bench"],
                        ["bench", "throughput"], ["bench", "latency"], ["bench", "machine"], ["bench", "kernels"],
                        ["bench", "ablate"], ["bench", "curve"], ["bench", "ladder"], ["quantize"], ["serve"], ["plan"],
                        ["plan", "calibrate"], ["plan", "table"], ["plan", "compare"], ["replay"]):
            text = self.works(*command, "--help").decode()
            self.assertIn("Usage: " + " ".join(["sluice"] + command), text)
            for line in text.splitlines():
                self.assertLessEqual(len(line), 100, line)
                self.assertEqual(line, line.rstrip())
        text = self.works("--help").decode()
        for command in ("run", "tokenize", "bench"):
            self.assertIn(command, text)

    def test_no_arguments_is_help(self):
        self.assertEqual(self.works(), self.works("--help"))

    def test_version(self):
        self.assertRegex(self.works("--version").decode(), r"^\d+\.\d+\.\d+\n$")

    def test_unknown_words(self):
        self.fails("frobnicate", says="frobnicate")
        self.fails("--frobnicate")
        self.fails("run", MODEL, "-p", "x", "--frobnicate", says="--frobnicate")
        self.fails("run", "-p", "x", says="model")
        self.fails("bench", says="subcommand")
        self.fails("bench", "nothing")

    def test_one_source_of_prompts(self):
        self.fails("run", MODEL, says="no prompt: give it behind the model")
        self.fails("run", MODEL, stdin=b"\n", says="no prompt")
        self.fails("run", MODEL, "-p", "x", "-f", "y", says="one of")
        self.fails("run", MODEL, "x", "-p", "y", says="one of")
        self.fails("tokenize", MODEL, "x", "-f", "y", says="not both")

    def test_bad_values(self):
        for flags in (["-n", "0"], ["-n", "17"], ["-n", "x"], ["--top-p", "0"], ["--top-p", "1.5"],
                      ["--top-p", "nan"], ["--temperature", "-1"], ["--temperature", "nan"],
                      ["--temperature", "warm"], ["--top-k", "-1"], ["--min-p", "2"], ["-m", "0"],
                      ["-m", "99999999999"], ["--repetition-penalty", "0"], ["--frequency-penalty", "3"],
                      ["--presence-penalty", "-3"], ["--min-tokens", "-1"], ["--seed", "x"],
                      ["--logit-bias", "5"], ["--logit-bias", "x=1"], ["--logit-bias", "264=1"],
                      ["--logit-bias", "5=nan"], ["--logit-bias", "5=101"], ["--logit-bias", "5=1x"],
                      ["--stop-id", "264"], ["--stop-id", "-1"], ["--stop-id", "x"], ["--stop", ""],
                      ["--logprobs", "21"], ["--prompt-logprobs", "-2"], ["--kv", "f64"],
                      ["--quantize", "fp8", "--device", "cpu"], ["--quantize", "w9"],
                      ["--quantize", "w8a8", "--device", "ref"], ["--quantize-exclude", "attn_output"],
                      ["--quantize-exclude", "lm_head", "--quantize", "w8a8"],
                      ["--quantize-exclude", "blk.99.*", "--quantize", "w4"],
                      ["--quantize-exclude", "attn_q,,attn_k", "--quantize", "u8"], ["--dtype", "f16", "--device", "cpu"],
                      ["--gpu-weights", "stored", "--device", "cpu"], ["--gpu-weights", "4bit"],
                      ["--device", "tpu"], ["--threads", "-1"], ["--threads", "1000000"], ["--ctx", "0"],
                      ["--ctx", "-5"], ["--block-size", "7"], ["--kv-memory", "lots"], ["--budget", "0"],
                      ["--max-seqs", "0"], ["--preset", "best"], ["--order", "best"],
                      ["--order", "fair"], ["--aging", "-1"], ["--aging", "soon"], ["--prefill-delay", "999"],
                      ["--prefill-delay", "2", "--preset", "static"], ["--prefill-batch", "-1"], ["--predict-output", "stars"],
                      ["--predict-output", "constant"], ["--predict-output", "quantile:1", "--admission", "predicted-peak"],
                      ["--predict-output", "constant:0"], ["--predict-output", "histogram"], ["--pipeline", "x"], ["--watermark", "2"],
                      ["--kv-allocator", "buddy"], ["--kv-allocator", "range"], ["--kv-allocator", "virtual"],
                      ["--kv-allocator", "virtual", "--no-prefix-cache", "--preempt", "swap"],
                      ["--kv-allocator", "virtual", "--no-prefix-cache", "--admission", "predicted-peak"],
                      ["--predict-output", "survival:0.5", "--admission", "predicted-peak"],
                      ["--kv-allocator", "reserve", "--no-prefix-cache", "--watermark", "0.5"],
                      ["--preempt", "away"], ["--preempt", "swap", "--kv-allocator", "range", "--no-prefix-cache"],
                      ["--swap-memory", "1G"], ["--swap-memory", "9", "--preempt", "swap"], ["--swap-memory", "lots"],
                      ["--prefix-host", "1G", "--no-prefix-cache"], ["--prefix-host", "9"],
                      ["--prefix-disk", "1G", "--no-prefix-cache"], ["--prefix-disk", "9"], ["--prefix-disk-dir", "x"],
                      ["--prefix-host", "900T"], ["--swap-memory", "900T", "--preempt", "swap"],
                      ["--trace", WORK / "no/such/folder/t.json"]):
            with self.subTest(flags=flags):
                name = flags[0].lstrip("-")
                err = self.fails("run", MODEL, "-p", "hello", "-t", 1, *flags) if flags[0] != "--threads" \
                    else self.fails("run", MODEL, "-p", "hello", *flags)
                spoken = {"m": "max-tokens", "stop": "stop string", "prompt-logprobs": "logprobs"}
                self.assertIn(spoken.get(name, name), err)

    def test_constraints_are_read_before_the_model(self):
        schema = WORK / "broken.json"
        schema.write_text('{"type": ')
        none = WORK / "no-model.gguf"  # nothing is loaded before these are refused
        for flags, says in ((["--json-schema", "{}", "--regex", "a"], "--json-schema and --regex both"),
                            (["--choice", "a", "--grammar", "g"], "--choice and --grammar both"),
                            (["--json-schema", WORK / "missing.json"], "missing.json"),
                            (["--json-schema", "{"], "the JSON schema"), (["--json-schema", schema], "broken.json"),
                            (["--json-schema", "-"], "stdin is for the prompt"), (["--grammar", "-"], "stdin"),
                            (["--grammar", WORK / "missing.gbnf"], "missing.gbnf")):
            with self.subTest(flags=flags):
                self.fails("run", none, "-p", "hello", *flags, says=says)

    def test_constraints_that_are_not_understood(self):
        for flags, says in ((["--json-schema", '{"uniqueItems": true}'], "uniqueItems"), (["--regex", "("], "pattern"),
                            (["--choice", ""], "empty"), (["--grammar", "root ::= a"], "'a', which is not defined"),
                            (["--regex", "a", "--min-tokens", "2"], "--min-tokens"),
                            (["--regex", "a", "--ignore-eos"], "--ignore-eos")):
            with self.subTest(flags=flags):
                self.fails("run", MODEL, "-p", "hello", "-t", 1, *flags, says=says)

    def test_flags_of_other_engines(self):
        def same(theirs, ours):
            want = self.works("run", MODEL, "-p", "hello", "-t", 1, "-q", *ours)
            self.assertEqual(self.works("run", MODEL, "-p", "hello", "-t", 1, "-q", *theirs), want)
        same(["-c", 64, "--temp", 0, "--n-predict", 3], ["--ctx", 64, "--temperature", 0, "-m", 3])
        same(["--max-model-len", 64, "-s", 3, "-m", 5, "--dtype", "auto"], ["--ctx", 64, "--seed", 3, "-m", 5])
        self.works("run", "-m", MODEL, "-p", "hello", "-t", 1, "-m", 2)
        self.works("run", "--model", MODEL, "--prompt", "hello", "--predict", 2)
        self.fails("run", MODEL, "-p", "x", "-m", "lots", says="--max-tokens")
        self.fails("run", MODEL, "-p", "x", "-ngl", 99, says="--device")
        self.fails("run", MODEL, "-p", "x", "-fa", says="leave it out")
        self.fails("run", MODEL, "-p", "x", "-n", 128, says="--max-tokens")
        self.fails("run", MODEL, "-p", "x", "--c", 64, says="do you mean")
        self.fails("run", MODEL, "-p", "x", "--thread", 2, says="do you mean --threads?")
        self.fails("serve", MODEL, "--api-key", "k", says="--api-key-file")
        self.fails("serve", MODEL, "--gpu-memory-utilization", 0.9, says="--kv-memory")
        self.fails("serve", MODEL, "--tensor-parallel-size", 4, says="--device cuda:N")
        self.fails("bench", "latency", MODEL, "--max-num-seqs", 0, says="--max-seqs")
        self.fails("rum", says="do you mean run?")
        shown = self.works("config", "show", "serve", MODEL, "--max-num-seqs", 7, "--no-enable-prefix-caching",
                           "--disable-log-requests").decode()
        self.assertRegex(shown, r"max-seqs +7 +command line")
        self.assertRegex(shown, r"no-prefix-cache +\S+ +command line")
        self.assertRegex(shown, r"log-requests +false +command line")

    def test_switches_in_a_file_of_options(self):
        path = WORK / "options.yaml"
        for text, value in (("log-requests: false", "false"), ("no-log-requests: true", "false"),
                            ("log-requests: true", "true")):
            path.write_text(text + "\n")
            shown = self.works("config", "show", "serve", MODEL, "--config", path).decode()
            self.assertRegex(shown, rf"log-requests +{value} +\S*options.yaml, line 1")

    def test_shown_options_are_resolved(self):
        def shown(*args):
            lines = self.works("config", "show", *args, env={"CUDA_VISIBLE_DEVICES": ""}).decode().splitlines()
            return {name: rest.rsplit("  ", 1)[0].strip() for name, rest in (line.split(" ", 1) for line in lines)}

        served = shown("serve", MODEL, "--device", "cpu", "-t", 3, "--preset", "orca", "--no-pin")
        for name, value in {"threads": "3", "device": "cpu", "kv": "f16", "budget": "512", "chunk": "48",
                            "mixed-budget": "0", "short-share": "0.25", "batching": "continuous",
                            "prefill": "whole", "mix": "mixed", "admission": "reserve-max", "order": "fcfs",
                            "no-pin": "true", "no-fuse": "false", "quiet": "false", "log-requests": "true",
                            "served-model-name": MODEL.stem, "max-queue": "(no limit on loopback)",
                            "pooling": "last", "tls-cert": "-", "config": "-"}.items():
            self.assertEqual(served[name], value, name)
        self.assertEqual(shown("serve", MODEL, "--host", "0.0.0.0")["max-queue"], "512")
        run = shown("run", MODEL, "--device", "cpu", "-t", 3, "--chunk", 7)
        self.assertEqual([run[k] for k in ("chunk", "short-share", "ctx")], ["7", "0", "(the model's, if it fits)"])
        self.assertEqual(shown("perplexity", MODEL, "x.txt")["ctx"], "512")
        slo = shown("serve", MODEL, "--device", "cpu", "-t", 3, "--slo", "itl_p99=50ms,ttft_p95=1s")
        self.assertEqual([slo[k] for k in ("slo", "chunk", "mixed-budget")], ["itl_p99=50ms,ttft_p95=1s", "0", "0"])
        self.assertEqual(served["slo"], "none")
        self.assertEqual(served["no-warm-up"], "false")
        self.assertEqual(served["ttft-limit"], "(none)")
        self.assertEqual(served["kv-leave"], "auto")
        # A value is missing only where an option names a file, a text or a list that was not given.
        missing = {k for k, v in served.items() if v == "-"}
        self.assertEqual(missing, {"api-key-file", "tls-cert", "tls-key", "allowed-hosts", "cors", "quantize-exclude",
                                   "tool-format", "reasoning-format",  # by the chat template
                                   "trace", "cost", "record", "config", "batch-dir", "kv-events", "kv-events-replay",
                                   "kv-events-topic", "kv-events-key", "kv-key", "simulate",
                                   "register", "register-as", "register-ca", "grpc-port"})

    def test_too_much(self):
        err = self.fails("run", MODEL, "-p", "x", "--ctx", 513, says="--ctx 513")
        self.assertIn("512", err)
        err = self.fails("run", MODEL, "-p", "x", "--kv-memory", "1000G", says="not enough memory")
        self.assertRegex(err, r"weights .*B \+ workspace .*B \+ KV cache .*B, and .*B is free")
        self.fails("run", MODEL, "-p", "x", "--kv-memory", "100", says="--kv-memory")
        self.fails("run", MODEL, "-p", "x", "--ctx", 400, "--kv-memory", "20K", says="--ctx 400")
        self.fails("run", MODEL, "-p", "x", "--budget", 2000000000, says="not enough memory")
        self.fails("bench", "latency", "random:llama-2-7b", "--kv-memory", "1000G", "--format", "f16",
                   says="not enough memory")


class Prompts(Cli):
    def test_empty(self):
        self.fails("run", MODEL, "-p", "", says="empty")
        (WORK / "empty.txt").write_bytes(b"")
        self.fails("run", MODEL, "-f", WORK / "empty.txt", says="empty")
        self.fails("run", MODEL, "-f", "-", says="empty")

    def test_invalid_utf8(self):
        self.fails("run", MODEL, "-p", b"caf\xe9 \xff", says="UTF-8")
        (WORK / "latin.txt").write_bytes(b"caf\xe9")
        self.fails("run", MODEL, "-f", WORK / "latin.txt", says="UTF-8")
        self.fails("run", MODEL, "-f", "-", stdin=b"\xc3", says="UTF-8")
        self.fails("tokenize", MODEL, b"\xff", says="UTF-8")
        self.fails("tokenize", MODEL, "-f", WORK / "latin.txt", says="UTF-8")

    def test_longer_than_the_context(self):
        (WORK / "long.txt").write_text("x" * 600)
        self.fails("run", MODEL, "-f", WORK / "long.txt", says="600 tokens and the context holds 512")
        self.fails("run", MODEL, "-p", "x" * 40, "--ctx", 40, says="the context holds 40")

    def test_missing_files(self):
        self.fails("run", MODEL, "-f", WORK / "none.txt", says="none.txt")
        self.fails("run", MODEL, "-f", WORK, says=str(WORK))
        self.fails("run", MODEL, "--jsonl", WORK / "none.jsonl", says="none.jsonl")
        self.fails("tokenize", MODEL, "-f", WORK / "none.txt", says="none.txt")
        self.fails("bench", "throughput", "random:smollm2-135m", "--workload", WORK / "none.csv", says="none.csv")

    def test_no_chat_template(self):
        self.fails("run", MODEL, "-p", "x", "--chat", says="chat template")
        self.fails("run", MODEL, "-p", "x", "--system", "y", says="--system needs a chat template")

    def test_chat_template_is_the_default(self):
        model = Gguf().set_string("tokenizer.chat_template",
                                  "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}").write("chat.gguf")
        def tokens(*args, **more):
            return json.loads(self.works("run", model, *args, "-m", 2, "-t", 1, "-q", "--json", **more))["usage"][
                "prompt_tokens"]
        raw = tokens("-p", "hello", "--raw")
        self.assertGreater(tokens("-p", "hello"), raw)
        for args in (["--chat", "-p", "hello"], ["hello"]):
            self.assertEqual(tokens(*args), tokens("-p", "hello"))
        self.assertEqual(tokens(stdin=b"hello\n"), tokens("-p", "hello"))
        self.assertEqual(tokens("hello", "there"), tokens("-p", "hello there"))
        self.assertGreater(tokens("hello", "--system", "be brief"), tokens("hello"))
        self.assertEqual(self.works("run", MODEL, "hello", "-m", 4, "-q", "--temperature", 0),
                         self.works("run", MODEL, "-p", "hello", "--raw", "-m", 4, "-q", "--temperature", 0))
        self.fails("run", model, "-p", "x", "--raw", "--chat", says="--raw")
        self.fails("run", model, "-p", "x", "--raw", "--system", "y", says="--system")

    def test_jsonl(self):
        good = '{"prompt": "hello", "max_tokens": 3}\n'
        path = WORK / "batch.jsonl"
        path.write_text(good + "\n" + '{"prompt": "two", "max_tokens": 2, "n": 2, "stop": ["zzz"]}\n')
        lines = self.works("run", MODEL, "--jsonl", path, "-t", 1).decode().splitlines()
        self.assertEqual([len(json.loads(x)["tokens"]) for x in lines], [3, 2])
        self.assertEqual(len(json.loads(lines[1])["choices"]), 2)
        for bad in ('{"prompt": 5}', "{", "[]", '{"prompt": "x", "max_tokens": "many"}', '{"prompt": ""}',
                    '{"prompt": "x", "max_tokens": 1e30}', '{"prompt": "x", "max_tokens": 1.5}',
                    '{"prompt": "x", "seed": -1}', '{"prompt": "x", "stop": 5}', '{"prompt": "x", "top_p": 7}',
                    '{"messages": [{"role": "user", "content": "x"}]}', '{"prompt": "' + "x" * 600 + '"}',
                    '{"prompt": "x", "n": 0}', '{"prompt": "x", "temperature": -1}'):
            with self.subTest(bad=bad[:60]):
                path.write_text(good + bad + "\n")
                self.fails("run", MODEL, "--jsonl", path, "-t", 1, says="line 2: ")
        for bad in ('{"prompt": "x", "regex": 5}', '{"prompt": "x", "regex": "a", "json_schema": {}}',
                    '{"prompt": "x", "response_format": {"type": "xml"}}', '{"prompt": "x", "regex": "("}'):
            with self.subTest(bad=bad):
                path.write_text(good + bad + "\n")
                self.fails("run", MODEL, "--jsonl", path, "-t", 1, says="line 2: ")
        path.write_text("\n \n")
        self.fails("run", MODEL, "--jsonl", path, says="no prompts")


class BadModels(Cli):
    def test_no_such_file(self):
        self.refuses_model(WORK / "none.gguf", "none.gguf")
        self.refuses_model(WORK, str(WORK))
        self.refuses_model("", "no model")
        self.fails("bench", "latency", "random:nothing", says="qwen2.5-0.5b")
        self.fails("bench", "latency", "random:smollm2-135m", "--format", "q9_9", says="q9_9")

    def test_not_gguf(self):
        for name, data in (("empty", b""), ("short", b"GG"), ("magic", b"GGUF"), ("text", b"hello\n" * 99),
                           ("random", random.Random(1).randbytes(5000)),
                           ("after-magic", b"GGUF" + random.Random(2).randbytes(5000)),
                           ("version", b"GGUF" + struct.pack("<IQQ", 99, 0, 0)),
                           ("counts", b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63))):
            with self.subTest(name=name):
                path = WORK / (name + ".gguf")
                path.write_bytes(data)
                self.refuses_model(path)

    def test_truncated(self):
        raw, header = MODEL.read_bytes(), Gguf().header_size
        path = WORK / "cut.gguf"
        for size in (1, 8, 23, 24, 60, 200, header // 2, header - 1, header, header + 40, len(raw) // 2,
                     len(raw) - 33, len(raw) - 1):
            with self.subTest(size=size):
                path.write_bytes(raw[:size])
                self.refuses_model(path)

    def test_corrupted_header(self):
        """Any byte may change: the file is refused in one line, or it runs."""
        raw, header = MODEL.read_bytes(), Gguf().header_size
        rng = random.Random(3)
        path = WORK / "corrupt.gguf"
        places = [*range(4, 24, 3), *rng.sample(range(24, 600), 16), *rng.sample(range(600, header), 16)]
        for at in places:
            with self.subTest(at=at):
                data = bytearray(raw)
                data[at] ^= rng.randrange(1, 256)
                path.write_bytes(data)
                done = run("run", path, "-p", "hi", "-m", 1, "-t", 1, "-q")
                self.assertIn(done.returncode, (0, 2), f"{done.returncode} {done.stderr.decode()}")
                if done.returncode == 2:
                    self.assertRegex(done.stderr.decode(errors="replace"), r"\Asluice: .*\n\Z")

    def test_weights_that_are_no_numbers(self):
        model = Gguf()
        for tensor in model.tensors.values():
            tensor[2] = struct.pack("<f", float("nan")) * (len(tensor[2]) // 4)
        done = run("run", model.write("nan.gguf"), "-p", "hi", "-m", 3, "-t", 1, "-q")
        self.assertIn(done.returncode, (0, 2), done.stderr)

    def test_unknown_kinds(self):
        self.refuses_model(Gguf().set_string("general.architecture", "mamba").write("arch.gguf"), "mamba")
        self.refuses_model(Gguf().set_string("tokenizer.ggml.model", "bert").write("tok.gguf"), "bert")
        self.refuses_model(Gguf().set_string("tokenizer.ggml.pre", "klingon").write("pre.gguf"), "klingon")
        self.refuses_model(Gguf().set_string("llama.rope.scaling.type", "magic").write("rope.gguf"), "magic")
        for kind in (9999, 37):
            model = Gguf()
            model.tensors["output_norm.weight"][1] = kind
            self.refuses_model(model.write("format.gguf"), "output_norm.weight")

    def test_bad_metadata(self):
        for key, value in (("block_count", 0), ("block_count", 2**32 - 1), ("embedding_length", 0),
                           ("attention.head_count", 0), ("attention.head_count_kv", 3),
                           ("feed_forward_length", 2**31), ("context_length", 0),
                           ("attention.key_length", 12)):
            with self.subTest(key=key, value=value):
                self.refuses_model(Gguf().set_u32("llama." + key, value).write("meta.gguf"))
        for key in ("llama.block_count", "llama.context_length", "general.architecture"):
            model = Gguf()
            del model.keys[key]
            self.refuses_model(model.write("meta.gguf"), key)
        model = Gguf()
        del model.keys["tokenizer.ggml.merges"]
        self.refuses_model(model.write("merges.gguf"), "merges")
        self.refuses_model(Gguf().set_u32("tokenizer.ggml.eos_token_id", 5000).write("eos.gguf"), "eos_token_id")

    def test_no_vocabulary(self):
        model = Gguf()
        del model.keys["tokenizer.ggml.tokens"]
        path = model.write("mute.gguf")
        self.refuses_model(path, "vocabulary")
        self.fails("tokenize", path, "x", says="vocabulary")

    def test_missing_tensors_and_wrong_shapes(self):
        for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.2.ffn_down.weight", "output_norm.weight"):
            model = Gguf()
            del model.tensors[name]
            self.refuses_model(model.write("missing.gguf"), name)
        for name, dims in (("blk.1.attn_k.weight", [32, 16]), ("output_norm.weight", [16]),
                           ("blk.0.ffn_up.weight", [32, 24]), ("token_embd.weight", [16, 264])):
            model = Gguf()
            model.tensors[name][0] = dims
            self.refuses_model(model.write("shape.gguf"), name)

    def test_vocabulary_larger_than_the_model(self):
        model = Gguf()
        dims, kind, data = model.tensors["token_embd.weight"]
        model.tensors["token_embd.weight"] = [[dims[0], 100], kind, data[:100 * dims[0] * 4]]
        dims, kind, data = model.tensors["output.weight"]
        model.tensors["output.weight"] = [[dims[0], 100], kind, data[:100 * dims[0] * 4]]
        self.refuses_model(model.write("vocab.gguf"))

    def test_hostile_templates(self):
        def chat(template, says):
            path = Gguf().set_string("tokenizer.chat_template", template).write("chat.gguf")
            self.fails("run", path, "-p", "x", "--chat", "-t", 1, says=says)
        chat("{% for i in range(999999999) %}{% for j in range(999999999) %}{% endfor %}{% endfor %}", "template")
        chat("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "template")
        chat("{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
             "{{ ns.s }}", "template")
        chat("{% if %}", "template")
        chat("{{ raise_exception('no\nroles') }}", "roles")

    def test_default_model_without_cache_or_network(self):
        cache = WORK / "cache"
        cache.mkdir()
        env = {"SLUICE_CACHE": str(cache), "PATH": "/nonexistent", "http_proxy": "http://127.0.0.1:9",
               "https_proxy": "http://127.0.0.1:9"}
        done = run("run", "smollm2", "-p", "x", env=env)
        err = done.stderr.decode()
        self.assertEqual(done.returncode, 2, err)
        self.assertIn("SmolLM2-135M-Instruct", err)
        self.assertIn(str(cache), err)


class Output(Cli):
    def test_json(self):
        out = json.loads(self.works("run", MODEL, "-p", "hello", "-m", 5, "--json"))
        self.assertGreaterEqual(set(out), {"text", "tokens", "finish_reason", "usage", "timing"})
        self.assertEqual(len(out["tokens"]), 5)
        self.assertEqual(out["finish_reason"], "length")
        self.assertEqual(out["usage"], {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9,
                                        "cached_tokens": 0})
        self.assertGreater(out["timing"]["total"], 0)

    def test_constrained_answers(self):
        def text(*flags):
            out = self.works("run", MODEL, "-p", "hello", "-t", 1, "-q", "-m", 200, "--temperature", 1, *flags).decode()
            return out[:-1]
        schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
                  "required": ["a", "b"], "additionalProperties": False}
        path = WORK / "schema.json"
        path.write_text(json.dumps(schema))
        for flags in (["--json-schema", path], ["--json-schema", json.dumps(schema)], ["-j", json.dumps(schema)],
                      ["--json-schema-file", path]):
            answer = json.loads(text(*flags))
            self.assertEqual((answer["a"] in ("x", "yy"), type(answer["b"]), len(answer)), (True, bool, 2))
        self.assertRegex(text("--regex", "[0-9]{3}-[a-f]{2}"), r"\A[0-9]{3}-[a-f]{2}\Z")
        self.assertIn(text("--choice", "yes", "--choice", "no, never"), ("yes", "no, never"))
        grammar = WORK / "sum.gbnf"
        grammar.write_text('root ::= n " + " n\nn ::= [0-9]\n')
        self.assertRegex(text("--grammar", grammar), r"\A[0-9] \+ [0-9]\Z")
        self.assertIn(text("--grammar", 'root ::= "a" | "b"'), ("a", "b"))
        grammar.write_text('start: "a" NUMBER\nNUMBER: /[0-9]{2}/\n')
        self.assertRegex(text("--grammar-file", grammar), r"\Aa[0-9]{2}\Z")
        both = json.loads(self.works("run", MODEL, "-p", "hello", "-t", 1, "-n", 2, "--regex", "[ab]{4}", "--json",
                                     "--logprobs", 1))
        for choice in both["choices"]:
            self.assertRegex(choice["text"], r"\A[ab]{4}\Z")
            self.assertEqual(choice["finish_reason"], "stop")
        lines = WORK / "constrained.jsonl"
        lines.write_text('{"prompt": "x", "regex": "[xy]{5}"}\n{"prompt": "y", "structured_outputs": {"choice": ["z"]}}\n'
                         '{"prompt": "z"}\n')
        out = [json.loads(x)["text"] for x in self.works("run", MODEL, "--jsonl", lines, "-t", 1, "--regex", "q").decode().splitlines()]
        self.assertRegex(out[0], r"\A[xy]{5}\Z")
        self.assertEqual(out[1:], ["z", "q"])

    def test_json_with_choices_and_logprobs(self):
        out = json.loads(self.works("run", MODEL, "-p", "hello", "-m", 5, "-n", 2, "--temperature", 1, "--seed", 3,
                                    "--logprobs", 2, "--prompt-logprobs", 1, "--json", "-q"))
        self.assertEqual(len(out["choices"]), 2)
        self.assertNotEqual(out["choices"][0]["tokens"], out["choices"][1]["tokens"])
        self.assertEqual(len(out["choices"][0]["logprobs"]), 5)
        self.assertEqual(len(out["choices"][0]["logprobs"][0]["top"]), 2)
        self.assertEqual(len(out["prompt_logprobs"]), 3)
        self.assertEqual(out["usage"]["completion_tokens"], 10)

    def test_beams(self):
        def answers(*flags):
            out = json.loads(self.works("run", MODEL, "-p", "hello", "-m", 6, "-t", 1, "--json", "-q", *flags))
            return [c["tokens"] for c in out.get("choices", [out])]
        greedy = answers("--temperature", 0)
        self.assertEqual(answers("--beams", 1), greedy)
        four = answers("--beams", 4, "-n", 4)
        self.assertEqual(len(set(map(tuple, four))), 4)
        self.assertEqual(answers("--beams", 4, "-n", 2, "--temperature", 1), four[:2])
        self.assertEqual(answers("--beams", 4), four[:1])
        for flags, says in ((["--beams", 2, "-n", 3], "--beams"), (["--length-penalty", 2], "--beams"),
                            (["--beams", 2, "--min-tokens", 2], "min_tokens"), (["--beams", 2, "--stop", "x"], "stop"),
                            (["--beams", 65], "--beams")):
            self.fails("run", MODEL, "-p", "hello", "-m", 4, *flags, says=says)
        self.fails("run", MODEL, "-i", "--beams", 2, says="--beams")

    def test_sampling_by_default(self):
        def text(path, *args):
            return self.works("run", path, "-p", "hello", "-m", 12, "-t", 1, "-q", "--seed", 9, "--ignore-eos", *args)
        greedy = text(MODEL, "--temperature", 0)
        self.assertEqual(text(MODEL), text(MODEL, "--temperature", 0.7, "--top-p", 0.95))
        self.assertNotEqual(text(MODEL), greedy)
        self.assertEqual(text(MODEL, "--generation-config", "none"), text(MODEL, "--temperature", 1, "--top-p", 1))
        said = Gguf().set("general.sampling.temp", F32, struct.pack("<f", 0)).write("cold.gguf")
        self.assertEqual(text(said), greedy)
        self.assertEqual(text(said, "--temperature", 1, "--top-p", 1), text(MODEL, "--generation-config", "none"))
        shown = self.works("inspect", said).decode()
        self.assertRegex(shown, r"sampling +greedy \(the model's files\)")
        shown = json.loads(self.works("inspect", MODEL, "--json"))["sampling_defaults"]
        self.assertEqual((shown["temperature"], shown["top_p"], shown["top_k"]), (0.7, 0.95, 0))
        bad = Gguf().set("general.sampling.top_p", F32, struct.pack("<f", 7)).write("hot.gguf")
        self.refuses_model(bad, "general.sampling.top_p")
        self.works("run", bad, "-p", "x", "-m", 1, "--generation-config", "none")

    def test_an_answer_that_was_cut_says_so(self):
        done = run("run", MODEL, "-p", "hello", "-m", 3, "-t", 1, "--ignore-eos")
        self.assertIn(b"cut at 3 tokens: --max-tokens N raises the limit", done.stderr)
        done = run("run", MODEL, "-p", "hello", "-m", 100, "-t", 1, "--ignore-eos", "--ctx", 32)
        self.assertIn(b"the context of 32 tokens is full (--ctx N, up to 512)", done.stderr)
        both = subprocess.run([str(BINARY), "run", str(MODEL), "hello", "-m", "3", "-t", "1"], timeout=480,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertRegex(both.stdout.decode(errors="replace"), r"\n\d+ tokens in, ")

    def test_the_device_is_named(self):
        for args in (["run", MODEL, "hello", "-m", 1], ["bench", "latency", MODEL, "--input", 4, "--output", 2,
                                                        "--repeat", 1, "--limits", "cached"]):
            err = run(*args, "-t", 1, env={"XDG_CACHE_HOME": str(WORK / "cache")}).stderr.decode()
            self.assertRegex(err, r"(?m)^device: (cpu, 1 thread|cuda)", err)
            self.assertRegex(err, r"(?m) used, .* reserved for \d+ x \d+ tokens", err)
            self.assertNotIn("KV moves at", err)
        err = run("run", MODEL, "hello", "-m", 1, "-t", 1, "--preempt", "swap").stderr.decode()
        self.assertRegex(err, r"(?m)^device: .*; KV moves at \d+\.\d GB/s out, \d+\.\d GB/s in$", err)

    def test_text_on_stdout_and_the_rest_on_stderr(self):
        done = run("run", MODEL, "-p", "hello", "-m", 8, "--temperature", 1, "--seed", 4)
        quiet = run("run", MODEL, "-p", "hello", "-m", 8, "--temperature", 1, "--seed", 4, "-q")
        self.assertEqual(done.stdout, quiet.stdout)
        self.assertIn(b"tokens/s", done.stderr)
        self.assertNotIn(b"\x1b", done.stderr)  # no terminal, no escape codes
        self.assertNotIn(b"\r", done.stderr)
        self.assertEqual(quiet.stderr, b"")
        out = json.loads(self.works("run", MODEL, "-p", "hello", "-m", 8, "--temperature", 1, "--seed", 4, "--json"))
        self.assertEqual(done.stdout.decode(), out["text"] + "\n")

    def test_prompts_from_a_file_and_stdin(self):
        (WORK / "prompt.txt").write_text("hello")
        expected = self.works("run", MODEL, "-p", "hello", "-m", 4, "-q")
        self.assertEqual(self.works("run", MODEL, "-f", WORK / "prompt.txt", "-m", 4, "-q"), expected)
        self.assertEqual(self.works("run", MODEL, "-f", "-", "-m", 4, "-q", stdin=b"hello"), expected)

    def test_tokenize_and_back(self):
        for text in ("hello there, the inner one", "  tabs\tand\n\nlines ", "caf\u00e9 \u65e5\u672c \U0001f600",
                     "<|endoftext|>"):
            out = json.loads(self.works("tokenize", MODEL, text, "--json"))
            self.assertEqual(out["count"], len(out["tokens"]))
            self.assertNotIn(263, out["tokens"])  # text never becomes a special token
            ids = self.works("tokenize", MODEL, text).decode().split()
            self.assertEqual([int(i) for i in ids], out["tokens"])
            self.assertEqual(self.works("tokenize", MODEL, "--decode", " ".join(ids)).decode(), text + "\n")
            self.assertEqual(json.loads(self.works("tokenize", MODEL, "--decode", "--json", " ".join(ids)))["text"],
                             text)
        self.assertEqual(self.works("tokenize", MODEL, "<|endoftext|>", "--parse-special").strip(), b"263")
        self.assertEqual(self.works("tokenize", MODEL, stdin=b"a").strip(), b"97")
        self.fails("tokenize", MODEL, "--decode", "5 x", says="'x'")
        self.fails("tokenize", MODEL, "--decode", "264", says="264")
        self.fails("tokenize", MODEL, "--decode", "-5")

    def test_trace(self):
        path = WORK / "trace.json"
        self.works("run", MODEL, "-p", "hello", "-m", 5, "-q", "--trace", path)
        events = json.loads(path.read_text())["traceEvents"]
        tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.assertGreaterEqual(tracks, {"engine", "device", "parts of a step", "ops", "output"})
        self.assertGreaterEqual(len([e for e in events if e["name"] == "step"]), 5)
        self.assertTrue(all(e["dur"] >= 0 for e in events if e["ph"] == "X"))
        # The parts of a step lie within it, one after the other.
        parts = {}
        for e in events:
            if e["ph"] == "X" and "step" in e.get("args", {}):
                parts.setdefault(e["args"]["step"], {})[e["name"]] = e
        step = parts[2]
        self.assertGreaterEqual(set(step), {"plan", "complete", "step", "build", "forward", "sample"})
        at = [step["step"]["ts"], step["build"]["ts"], step["forward"]["ts"], step["sample"]["ts"],
              step["step"]["ts"] + step["step"]["dur"]]
        self.assertEqual(at, sorted(at))
        # Ops lie within the forward pass, one after the other; text is made behind the step.
        forward = (step["forward"]["ts"], step["forward"]["ts"] + step["forward"]["dur"])
        ops = [e for e in events if e["ph"] == "X" and forward[0] <= e["ts"] < forward[1] and e["name"] != "forward"
               and "step" not in e.get("args", {})]
        names = [e["name"] for e in ops]
        for name in ("embed", "matmul", "finish_qkv", "attention"):
            self.assertIn(name, names)
        inside = [e for e in ops if e["name"] in ("embed", "matmul", "finish_qkv", "attention")]
        ends = [0] + [e["ts"] + e["dur"] for e in inside]
        self.assertTrue(all(e["ts"] >= end for e, end in zip(inside, ends)))
        self.assertLessEqual(ends[-1], forward[1])
        text = {e["name"] for e in events if e["ph"] == "X"}
        self.assertGreaterEqual(text, {"detokenise", "send"})

    def test_attention_kinds_give_the_same_text(self):
        ask = ("run", MODEL, "-p", "hello there", "-m", 12, "--ignore-eos", "--device", "cpu", "-q")
        want = self.works(*ask)
        for kind in ("tiled", "by-head"):
            self.assertEqual(self.works(*ask, "--attention", kind), want)
        self.assertTrue(self.works(*ask, "--attention", "naive"))  # but for rounding
        self.fails(*ask[:-3], "--device", "ref", "--attention", "naive", says="--attention naive is for the CPU")
        self.fails(*ask, "--attention", "fast", says="--attention")

    def test_profile_and_full_sort(self):
        ask = ("run", MODEL, "-p", "hello", "-m", 12, "--temperature", 1, "--top-p", 0.8, "--seed", 5, "--ignore-eos", "--device", "cpu")
        done = run(*ask, "--profile-steps", 4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr.decode(), r"steps 1 to 4: \d+ of \d+ running, .*host [0-9.]+ % of both")
        self.assertEqual(self.works(*ask, "--full-sort"), done.stdout)

    def test_bench(self):
        shape = WORK / "tiny.json"
        shape.write_text(json.dumps(TINY))
        keys = {"model", "backend", "format", "elapsed_s", "input_tokens", "output_tokens", "output_tokens_per_s",
                "ttft_s", "itl_s", "steps", "step_s", "host_s", "read_bandwidth_bytes_per_s", "bandwidth_fraction"}
        small = ["--repeat", 1, "-t", 1, "--format", "q4_0"]
        out = json.loads(self.works("bench", "throughput", f"random:{shape}", "--requests", 5, "--input", "4-9",
                                    "--output", 3, "--json", "--trace", WORK / "bench.json", *small))
        self.assertGreaterEqual(set(out), keys)
        self.assertEqual(out["output_tokens"], 15)
        self.assertTrue(json.loads((WORK / "bench.json").read_text())["traceEvents"])
        out = json.loads(self.works("bench", "latency", f"random:{shape}", "--input", 8, "--output", 4, "--json",
                                    *small))
        self.assertGreaterEqual(set(out), keys)
        self.assertEqual(out["output_tokens"], 4)
        for allocator, most in (("reserve", 2), ("range", 10), ("paged", 10), ("virtual", 10)):
            # The system's pages hold several of these blocks.
            blocks = 2048 if allocator == "virtual" else 16
            kv = json.loads(self.works("bench", "throughput", f"random:{shape}", "--requests", 10, "--input", 8,
                                       "--output", 9, "--json", "--kv-allocator", allocator, "--no-prefix-cache",
                                       "--ctx", 128, "--kv-blocks", blocks, "--block-size", 16, *small))["kv"]
            self.assertEqual((kv["allocator"], kv["blocks"]), (allocator, blocks))
            self.assertIn(kv["most_sequences"], range(1, most + 1))
            if allocator != "virtual":
                self.assertEqual(kv["internal_fragmentation"]["mean"] > 0.8, allocator == "reserve", kv)
            if allocator in ("paged", "virtual"):
                self.assertEqual(kv["external_fragmentation"]["max"], 0, kv)
            self.assertLessEqual(kv["waste"]["max"], 1)
        for preempt, host in (("recompute", []), ("swap", []), ("swap", ["--swap-memory", "1M"])):
            out = json.loads(self.works("bench", "throughput", f"random:{shape}", "--requests", 10, "--input", 30,
                                        "--output", 60, "--json", "--preempt", preempt, *host, "--ctx", 128,
                                        "--kv-blocks", 16, "--block-size", 16, *small))
            tiers = out["tiers"]
            self.assertEqual(tiers["preempt"], preempt)
            self.assertGreater(out["preemptions"], 0)
            self.assertEqual(tiers["blocks_out"] > 0, preempt == "swap", tiers)
            self.assertEqual(tiers["swapped"] > 0, preempt == "swap", tiers)
            self.assertEqual(tiers["bytes_out"] > 0, preempt == "swap", tiers)
        table = self.works("bench", "latency", f"random:{shape}", "--input", 8, "--output", 4, *small).decode()
        self.assertIn("time to first token", table)

    def test_bench_slo(self):
        load = ("--device", "cpu", "--users", 2, "--input", 4, "--output", 20, "--prompt", 60, "--every", 0.3, "--duration", 0.6,
                "--warmup", 0.3, "--budgets", "16", "--kv-memory", "16M", "--quiet")
        out = json.loads(self.works("bench", "slo", MODEL, "--slo", "itl_p99=30ms,ttft_p95=1s", "--json", *load))
        self.assertEqual(([r["setting"] for r in out["runs"]], out["target"]), (["16", "slo"], "itl_p99=30ms,ttft_p95=1s"))
        self.assertTrue(all("mfu" in r and "sol_fraction" in r for r in out["runs"]), out)
        self.fails("bench", "slo", MODEL, *load, says="add one like --slo itl_p99=50ms")
        for flags, says in ((("--slo", "itl=5ms"), "itl_p99=TIME"), (("--slo", "ttft_p95=1s"), "no target between tokens"),
                            (("--slo", "itl_p99=5"), "like 50ms"),
                            (("--slo", "itl_p99=5ms", "--chunk", 32), "leave those out"),
                            (("--slo", "itl_p99=5ms", "--preset", "vllm"), "--prefill chunked"),
                            (("--slo", "itl_p99=5ms", "--pipeline", "interleave"), "overlap or sync"),
                            (("--slo", "itl_p99=5ms", "--no-record-metrics"), "leave one of them out")):
            self.fails("bench", "throughput", MODEL, *flags, says=says)
        # Budgets change schedules, never outputs.
        digests = {json.loads(self.works("bench", "throughput", MODEL, "--device", "cpu", "--requests", 4, "--input", "20-60",
                                         "--output", 12, "--repeat", 1, "-t", 1, "--json", *flags))["output_digest"]
                   for flags in ((), ("--slo", "itl_p99=1ms"), ("--slo", "itl_p99=1s"))}
        self.assertEqual(len(digests), 1)

    def test_bench_metrics(self):
        """The forms of other systems add up; without metrics the same tokens come, and nothing is timed."""
        shape = WORK / "tiny.json"
        shape.write_text(json.dumps(TINY))
        args = ["bench", "throughput", f"random:{shape}", "--requests", 4, "--input", 8, "--output", 5, "--repeat", 1,
                "-t", 1, "--format", "q4_0"]
        out = json.loads(self.works(*args, "--json"))
        self.assertRegex(out["wde"], r"^Batchsize 512, Throughput \d+\.\d{4} requests/s, .*Avg Latency .* ms, n_step \d+$")
        self.assertIn(int(out["wde"].rsplit(" ", 1)[1]), range(5, out["steps"] + 1))
        sla = out["sla"]
        self.assertGreaterEqual(sla["tbt_worst_decile_s"], out["itl_s"]["p50"])
        self.assertEqual(set(sla["fastgen_share_by_tokens_per_s"]), {"2", "4", "6"})
        self.assertGreaterEqual(out["waiting_s"]["max"], 0)
        self.assertTrue(out["mfu"] is None or out["mfu"] > 0)  # None: the machine was busy when its limits were measured
        self.assertEqual(out["sol_fraction"] is None, out["mfu"] is None)
        bare = json.loads(self.works(*args, "--json", "--no-record-metrics"))
        self.assertEqual(bare["output_digest"], out["output_digest"])
        self.assertFalse(set(bare) & {"ttft_s", "itl_s", "step_s", "wde", "sla"})
        self.assertGreater(bare["output_tokens_per_s"], 0)
        self.assertIn("not timed", self.works(*args, "--no-record-metrics").decode())
        self.fails(*args, "--no-record-metrics", "--trace", WORK / "no.json", says="--no-record-metrics")

    def test_bench_constrained(self):
        args = ["bench", "throughput", MODEL, "--requests", 2, "--input", 4, "--output", 12, "--repeat", 1, "--limits", "cached",
                "-t", 1, "-q"]
        short = json.loads(self.works(*args, "--json", "--json-schema", '{"const": 1}'))
        self.assertLess(short["output_tokens"], 24)  # each ends where its form is complete
        long = json.loads(self.works(*args, "--json", "--json-schema", '{"type": "array", "items": {"type": "null"}, "minItems": 99}'))
        self.assertEqual(long["output_tokens"], 24)
        self.fails(*args, "--json-schema", "{", says="the JSON schema")
        self.fails(*args, "--json-schema", "{}", "--no-kv-cache", says="--no-kv-cache")

    def test_bench_pipelines_and_no_cache(self):
        """Neither changes a token; without a cache the whole context is computed for every token."""
        shape = WORK / "tiny.json"
        shape.write_text(json.dumps(TINY))

        def bench(*flags):
            return json.loads(self.works("bench", "throughput", f"random:{shape}", "--requests", 4, "--input", 8, "--output", 5,
                                         "--budget", 16, "--json", "--repeat", 1, "-t", 1, "--format", "q4_0", *flags))

        digests = set()
        for pipeline in ("sync", "interleave", "overlap"):
            out = bench("--pipeline", pipeline)
            self.assertEqual((out["pipeline"], out["kv_cache"], out["computed_tokens"]), (pipeline, True, 4 * (8 + 4)))
            digests.add(out["output_digest"])
        out = bench("--no-kv-cache")
        self.assertEqual((out["kv_cache"], out["computed_tokens"]), (False, 4 * (8 + 9 + 10 + 11 + 12)))
        digests.add(out["output_digest"])
        for text in ("inline", "pipelined"):  # nor does who turns it into text
            digests.add(bench("--text", text)["output_digest"])
        self.assertEqual(len(digests), 1, digests)
        self.fails("bench", "throughput", f"random:{shape}", "--text", "inline", "--no-kv-cache", says="--text inline")
        self.assertNotEqual(bench("--seed", 5)["output_digest"], digests.pop())

    def test_bench_padded(self):
        """32 requests in batches of 8, one in eight of 100 tokens and the others of 10: 400 steps, and the
        padding is really computed."""
        shape, trace = WORK / "tiny.json", WORK / "padded.jsonl"
        shape.write_text(json.dumps(TINY))
        lengths = [(4 + i % 3, 100 if i % 8 == 0 else 10) for i in range(32)]
        trace.write_text("".join(json.dumps({"input_length": i, "output_length": o}) + "\n" for i, o in lengths))
        bench = ["bench", "throughput", f"random:{shape}", "--workload", trace, "--requests", 32, "--max-seqs", 8,
                 "--json", "--repeat", 1, "-t", 1, "--format", "q4_0", "--pipeline", "sync"]
        out = json.loads(self.works(*bench, "--preset", "static", "--padded"))
        useful = sum(i + o - 1 for i, o in lengths)
        padding = out["padding"]
        self.assertEqual((padding["prompt_tokens"], padding["output_tokens"]),
                         (sum(6 - i for i, _ in lengths), sum(100 - o for _, o in lengths)))
        self.assertEqual(out["computed_tokens"], useful + padding["prompt_tokens"] + padding["output_tokens"])
        self.assertEqual(out["output_tokens"], sum(o for _, o in lengths))
        self.assertEqual(out["steps"], 400)
        # The last batch has two requests and six rows of padding.
        fewer = [26 if flag == 32 else flag for flag in bench]
        few = json.loads(self.works(*fewer, "--preset", "static", "--padded"))
        self.assertEqual((few["steps"], few["computed_tokens"]), (400, 3 * 8 * (6 + 99) + 8 * (5 + 99)))
        plain = json.loads(self.works(*bench, "--preset", "static"))
        self.assertEqual((plain["padded"], plain["padding"]["share"], plain["computed_tokens"]), (False, 0, useful))
        self.fails(*bench, "--padded", says="--preset static")
        self.fails(*bench, "--preset", "static", "--padded", "--ctx", 128, "--kv-blocks", 16, says="--max-seqs")
        self.fails(*bench, "--preset", "static", "--padded", "--no-kv-cache", says="--no-kv-cache")

    def test_laboratory(self):
        """Experiments, curve and ladder on a tiny shape: tables, files, and errors that name what is wrong."""
        shape = WORK / "tiny.json"
        shape.write_text(json.dumps(TINY))
        small = ["--model", f"random:{shape}", "--format", "q8_0", "-t", 1, "-q"]
        names = [line.split()[0] for line in self.works("bench", "ablate", "--list").decode().splitlines()]
        self.assertGreaterEqual(set(names), {"continuous", "chunked-prefill", "paged", "waterfall"})
        self.fails("bench", "ablate", "--only", "magic", says="--list")
        out = WORK / "lab"
        done = json.loads(self.works("bench", "ablate", "--only", "continuous,multi-prefill,pipelined-text,waterfall", "--pairs", 1, "--json",
                                     "--out", out, *small))
        rows = {e["name"]: e for e in done["experiments"]}
        self.assertEqual(set(rows), {"continuous", "multi-prefill", "pipelined-text"})
        self.assertTrue(all(e["same_output"] for e in rows.values()), rows)
        steps = rows["continuous"]
        self.assertGreater(steps["beside_off"]["median"], 2 * steps["beside_on"]["median"])
        self.assertEqual(done["waterfall"][0]["row"], "A1")
        text = (out / "ablation.md").read_text()
        self.assertIn("| continuous batching (B2) |", text)
        self.assertTrue(xml.etree.ElementTree.parse(out / "images/ablation.svg").getroot().tag.endswith("svg"))
        curve = self.works("bench", "curve", "--budgets", "32,64", "--lines", "sync,vllm", "--requests", 4, "--input", 8,
                           "--output", 3, "--repeat", 1, "--out", out, *small).decode()
        self.assertEqual(len([line for line in curve.splitlines() if line.startswith(("sync,", "vllm,"))]), 4)
        self.assertEqual(curve.count("step time ="), 2)
        self.assertTrue(curve.startswith((out / "curve.csv").read_text()))
        xml.etree.ElementTree.parse(out / "curve.svg")
        self.assertNotIn("http", (out / "curve.html").read_text().replace("http://www.w3.org", ""))
        self.fails("bench", "curve", "--lines", "magic", says="--preset")
        ladder = self.works("bench", "ladder", "--long-output", 6, "--short-output", 2, *small).decode()
        self.assertEqual([line.split("  ")[0] for line in ladder.splitlines()[1:6]],
                         ["no cache", "KV cache", "static batch", "continuous", "quantised"])
        self.assertIn("MFU: of ", ladder.splitlines()[6])

    def test_bench_kernels(self):
        kernels = ["bench", "kernels", "--shape", "smollm2-135m", "--product", "o", "--rotate", "8", "-t", "1", "-q"]
        report = WORK / "kernels.json"
        table = self.works(*kernels, "--format", "q8_0", "--m", "1,2-3", "--rounds", "2", "--json", report).decode()
        self.assertIn("of limit", table)
        rows = json.loads(report.read_text())["rows"]
        self.assertEqual([r["m"] for r in rows], [1, 2, 3])
        self.assertTrue(all(0 < r["of_limit"] and r["best_s"] <= r["median_s"] for r in rows), rows)
        self.assertEqual(json.loads(self.works(*kernels, "--row", "scalar-q4_0", "--m", "1", "--json", "-"))["rows"][0][
            "kernel"], "scalar-q4_0")
        self.works(*kernels, "--format", "q8_0", "--m", "2,4", "--rounds", "1", "--json", report, "--add")
        self.assertEqual([(r["m"], len(r["passes"])) for r in json.loads(report.read_text())["rows"]],
                         [(1, 1), (2, 2), (3, 1), (4, 1)])
        self.fails(*kernels, "--add", says="--json")
        quick = ["bench", "kernels", "--quick", "--shape", "smollm2-135m", "--rotate", "8", "-t", "1", "-q", "--rounds", "1"]
        rows = json.loads(self.works(*quick, "--format", "q8_0", "--m", "1", "--json", "-"))["rows"]
        self.assertTrue(rows)
        # Against a machine that reads a thousandth, and one that reads a thousand times as fast.
        for factor, code, says in ((1e-3, 0, b"0 slower"), (1e3, 1, b"SLOWER")):
            other = json.loads(report.read_text())
            for row in other["rows"]:
                row.update(of_limit=row["of_limit"] * factor, noise=0)
            (WORK / "other.json").write_text(json.dumps(other))
            done = run(*kernels, "--format", "q8_0", "--rounds", "1", "--compare", WORK / "other.json", "--m", "1")
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(says, done.stdout)
            self.assertIn(b"1 rows compared", done.stdout)
        other["isa"] = "abacus"
        (WORK / "other.json").write_text(json.dumps(other))
        self.fails(*kernels, "--compare", WORK / "other.json", says="abacus")
        (WORK / "other.json").write_text("{}")
        self.fails(*kernels, "--compare", WORK / "other.json", says="no report")
        self.fails(*kernels, "--m", "0", says="--m")
        self.fails(*kernels, "--format", "q9_9", says="q9_9")

    def test_bench_machine(self):
        env = {"XDG_CACHE_HOME": str(WORK / "cache")}
        out = json.loads(self.works("bench", "machine", "--json", env=env))
        self.assertEqual([r["threads"] for r in out["reads"]][0], 1)
        kept, = (WORK / "cache/sluice").iterdir()
        self.assertEqual(json.loads(kept.read_text()), out)
        shape = WORK / "tiny.json"
        shape.write_text(json.dumps(TINY))
        latency = ["bench", "latency", f"random:{shape}", "--input", 8, "--output", 4, "--repeat", 1, "--limits", "cached",
                   "--json"]
        run_out = json.loads(self.works(*latency, env=env))
        # The cached figure, not a new one; the fast number parser may miss the last bit.
        got = run_out["read_bandwidth_bytes_per_s"]
        self.assertTrue(any(abs(got / r["bytes_per_s"] - 1) < 1e-9 for r in out["reads"]), (got, out["reads"]))
        # Cells of this CPU come from rates of its kernels, which are measured once and kept.
        table = ["plan", "table", "random:qwen2.5-0.5b", "--format", "q8_0", "--devices", "cpu", "--batches", 1, "--json"]
        self.works(*table, "--context", 1, env=env)
        limits = json.loads(kept.read_text())
        self.assertGreaterEqual(len(limits["kernels"]), 3)  # a product, and attention of decodes and of prompts
        for kernel in limits["kernels"]:
            kernel["points"] = [{"rows": 1, "seconds": 1e-10}]
        kept.write_text(json.dumps(limits))
        cell, = json.loads(self.works(*table, "--context", 1, env=env))["cells"]
        self.assertAlmostEqual(cell["step_s"] / (0.494e9 * 1e-10), 1, delta=0.05)
        self.assertEqual(json.loads(kept.read_text()), limits)
        kept.write_text("{")
        done = run(*latency, "-q", env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"measured again", done.stderr)
        self.assertEqual(json.loads(kept.read_text())["cpu"], out["cpu"])

    def test_bench_workloads(self):
        shape = WORK / "tiny.json"
        shape.write_text(json.dumps(TINY))
        trace = WORK / "trace.csv"
        trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,7,2\n2023-11-16 18:15:50,9,3\n")
        out = json.loads(self.works("bench", "throughput", f"random:{shape}", "--workload", trace, "--repeat", 1,
                                    "--json", "-t", 1))
        self.assertEqual((out["input_tokens"], out["output_tokens"]), (16, 5))
        trace.write_text('{"input_length": 4, "output_length": 2}\n{"input_length": 0}\n')
        self.fails("bench", "throughput", f"random:{shape}", "--workload", trace, says="line 2")
        self.fails("bench", "throughput", f"random:{shape}", "--input", "9-3", says="--input")
        self.fails("bench", "throughput", f"random:{shape}", "--output", "x", says="--output")
        self.fails("bench", "latency", f"random:{shape}", "--input", "5000", says="context")
        shape.write_text("{}")
        self.fails("bench", "latency", f"random:{shape}")


if __name__ == "__main__":
    BINARY = pathlib.Path(sys.argv.pop(1)).resolve()
    with tempfile.TemporaryDirectory() as folder:
        WORK = pathlib.Path(folder)
        unittest.main(testLoader=SlicedLoader())
