#!/usr/bin/env python3
"""scripts/: which parts set-up builds on which machine, a build's progress, and the report of a test run.
Machines are made of a PATH with small programs in it."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True
import compare_pd  # noqa: E402
import plan_verify  # noqa: E402
import replay_check  # noqa: E402
import table_check  # noqa: E402
import test_report  # noqa: E402
import trace_report  # noqa: E402

NVCC = 'echo "Cuda compilation tools, release {0}, V{0}.88"'
# What `python3 -m venv DIR` and `DIR/bin/pip install` leave: packages with an nvcc.
PYTHON = r"""
[[ $1 == -m && $2 == venv ]] || exec /usr/bin/python3 "$@"
mkdir -p "$3/bin"
cat >"$3/bin/pip" <<'PIP'
#!/bin/bash
root=$(dirname "$0")/../lib/python3.11/site-packages/nvidia/cu13
echo "$@" >>"$PIP_SAYS"
[[ -z $OFFLINE ]] || { echo "no network"; exit 1; }
mkdir -p "$root/bin" "$root/lib"
cp /bin/true "$root/bin/nvcc"
PIP
chmod +x "$3/bin/pip"
"""


class Machine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bin = self.folder / "bin"
        self.bin.mkdir()

    def program(self, name, script):
        path = self.bin / name
        path.write_text("#!/bin/bash\n" + script + "\n")
        path.chmod(0o755)

    def bash(self, script, **env):
        """(exit code, stdout, stderr) of a script that has the functions of scripts/."""
        sources = "".join(f'source "{ROOT}/scripts/{name}.sh"\n' for name in ("common", "build"))
        begin = f'set -euo pipefail\n{sources}BUILD={self.folder}/build LOGS={self.folder}/build/log\n'
        done = subprocess.run(
            ["bash", "-c", begin + f'source "{ROOT}/scripts/cuda.sh"\n' + script], capture_output=True, text=True,
            timeout=480, stdin=subprocess.DEVNULL,
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "CUDA_HOME": "/nowhere", "SLUICE_DRIVER": "", **env})
        return done.returncode, done.stdout, done.stderr

    def plan(self, **env):
        """(what the user is told, cmake's arguments)"""
        code, out, err = self.bash('plan_cuda; echo "$CUDA_PART"; echo "${CUDA_ARGS[*]}"', **env)
        self.assertEqual(code, 0, err)
        return out.splitlines()


class Pipes(unittest.TestCase):
    def test_what_is_read_is_read_to_its_end(self):
        """`grep -q` leaves early, what writes to it is killed now and then, and with pipefail the pipe fails."""
        early = re.compile(r"(?<!\|)\|\s*grep\s+-\w*q")
        self.assertTrue(early.search("ldconfig -p | grep -qF x") and not early.search("false || grep -q x file"))
        for script in [ROOT / "sluice.sh", *sorted((ROOT / "scripts").rglob("*.sh"))]:
            for line in script.read_text().splitlines():
                self.assertIsNone(early.search(line.split("#")[0]), f"{script.name}: {line}")


class ReplayCheck(unittest.TestCase):
    def test_reads_what_a_replay_prints(self):
        text = ("run 1 of x\n  from segment 0 on: 7 results, 9 tokens: equal, byte for byte\n"
                "  from segment 3 on, after K and V of 12 positions: 10 results, 20 tokens: DIFFERENT: step 3\n")
        self.assertEqual(replay_check.COMPUTED.findall(text),
                         [("0", "", "7", "9", "equal, byte for byte"), ("3", "12", "10", "20", "DIFFERENT: step 3")])

    def test_requests_share_their_beginnings(self):
        requests = [replay_check.request_of(k) for k in range(40)]
        self.assertEqual(requests[0]["prompt"][:24], requests[3]["prompt"][:24])
        self.assertNotEqual(requests[0]["prompt"][:24], requests[1]["prompt"][:24])
        self.assertTrue(all(max(r["prompt"]) < 256 and len(r["prompt"]) + r["max_tokens"] <= 256 for r in requests))


class ComparePd(unittest.TestCase):
    def test_its_own_mixes_are_taken(self):
        self.assertEqual(len([compare_pd.mix_of(m) for m in compare_pd.MIXES]), 4)

    def test_a_port_in_several_pieces(self):
        """However an answer is cut, the other port stands in it, and only where it is named."""
        relay = compare_pd.Renamed.__new__(compare_pd.Renamed)  # without its sockets
        relay.named, relay.instead = b"12345", b"54321"
        answer = b'{"n":12345,"kv_lease_port":12345,"to":{"remote_port":12345},"kv_lease_port":1234}'
        expected = answer.replace(b'_port":12345', b'_port":54321')
        for cut in range(len(answer)):
            sent, rest = relay.renamed(answer[:cut])
            more, rest = relay.renamed(rest + answer[cut:])
            self.assertEqual(sent + more + rest, expected, cut)


class TableCheck(unittest.TestCase):
    def test_the_cell_that_is_furthest_off(self):
        def cells(*rows):
            return {"cells": [dict(zip(("device", "batch", "step_s", "ttft_s"), row)) for row in rows]}

        pairs = table_check.pairs_of(cells(("cpu", 1, 0.006, 0.5), ("cpu", 8, 0.021, 0.5)),
                                     cells(("measured", 1, 0.010, 0.6), ("measured", 8, 0.021, 0.6),
                                           ("cpu", 1, 0.010, 0.7), ("cpu", 8, 0.021, 0.7)))
        self.assertEqual(pairs, {"batch 1": (0.008, 0.010), "batch 8": (0.021, 0.021), "prompt": (0.6, 0.6)})
        rounds = {name: [pair] for name, pair in pairs.items()}
        self.assertEqual(table_check.furthest(rounds), ("batch 1", 1.25))
        rounds["batch 8"] += [(0.030, 0.020), (0.030, 0.020)]
        self.assertEqual(table_check.furthest(rounds)[0], "batch 8")


class PlanVerify(unittest.TestCase):
    def test_better_means_in_every_round(self):
        self.assertIn("recommended settings are better: 1.50", plan_verify.verdict([2, 1.9], [2.9, 2.95]))
        self.assertIn("defaults are better", plan_verify.verdict([2, 1.9], [1, 1.1]))
        self.assertIn("keep the defaults", plan_verify.verdict([2, 1], [2.9, 1.5]))
        self.assertIn("keep the defaults", plan_verify.verdict([0, 0], [0, 0]))

    def test_nothing_is_measured_where_the_defaults_are_best(self):
        trials = [{"flags": ""}, {"flags": "--kv int8 --budget 512"}]
        choice = {"defaults_are_best": True, "words": ["The defaults are best: ...", "Tried: --kv int8."]}
        flags, lines = plan_verify.advice({"trials": trials, "best": 0, "choice": choice})
        self.assertEqual(flags, [])
        self.assertEqual(lines, ["The planner: The defaults are best: ...", "Tried: --kv int8.", "Nothing to measure."])
        choice = {"defaults_are_best": False, "words": ["--kv int8 --budget 512 gains"]}
        command = "sluice serve 'my model.gguf' --threads 2 --device cpu --kv int8 --budget 512"
        options, lines = plan_verify.advice({"trials": trials, "best": 1, "choice": choice, "command": command})
        self.assertEqual(options, ["--threads", "2", "--device", "cpu", "--kv", "int8", "--budget", "512"])
        self.assertEqual(lines[-1], "recommended: --kv int8 --budget 512")

    def test_a_traces_clock_is_the_reciprocal_of_its_gaps(self):
        o = argparse.Namespace(workload="t.csv", time_scale=4.0, length_scale=0.5, requests=7)
        self.assertEqual(plan_verify.workload_of(o, True), ["--workload", "t.csv", "--time-scale", 4.0,
                                                            "--length-scale", 0.5, "--requests", 7])
        self.assertEqual(plan_verify.workload_of(o, False)[:4], ["--trace", "t.csv", "--time-scale", 0.25])


class CudaPart(Machine):
    def test_no_driver_and_no_nvcc(self):
        self.assertEqual(self.plan(), ["CPU part only (no NVIDIA driver)", "-DSLUICE_CUDA=OFF"])

    def test_nvcc(self):
        self.program("nvcc", NVCC.format("13.0"))
        self.assertEqual(self.plan(), ["CPU and GPU parts (nvcc 13.0)",
                                       f"-DSLUICE_CUDA=ON -DSLUICE_NVCC={self.bin}/nvcc -DSLUICE_CUDA_ARCHS=90a"])

    def test_an_old_nvcc(self):
        self.program("nvcc", NVCC.format("12.4"))
        said, args = self.plan()
        self.assertEqual(args, "-DSLUICE_CUDA=OFF")
        self.assertIn("nvcc 12.4 is older than 12.9", said)
        said, args = self.plan(SLUICE_DRIVER="580.65.06")
        self.assertEqual(said, "CPU and GPU parts (driver 580.65.06, nvcc from PyPI)")

    def test_a_driver_without_nvcc(self):
        said, args = self.plan(SLUICE_DRIVER="580.65.06")
        self.assertEqual(said, "CPU and GPU parts (driver 580.65.06, nvcc from PyPI)")
        self.assertIn("-DSLUICE_CUDA=ON", args)

    def test_a_driver_that_is_too_old(self):
        said, args = self.plan(SLUICE_DRIVER="570.124.06")
        self.assertEqual(args, "-DSLUICE_CUDA=OFF")
        self.assertIn("driver 570.124.06 is older than 580", said)

    def test_gpus(self):
        for capabilities, word, archs in (("7.5", "CPU part only (the GPU has compute capability 7.5;", None),
                                          ("8.6", "CPU and GPU", "86"), ("9.0", "CPU and GPU", "90a"),
                                          ("12.0", "CPU and GPU", "120"), ("", "CPU and GPU", "90a"),
                                          ("12.0\\n8.9\\n7.5\\n8.9", "CPU and GPU", "89;120")):
            self.program("nvidia-smi", f'printf "{capabilities}\\n"')
            said, args = self.plan(SLUICE_DRIVER="580.65.06")
            self.assertIn(word, said)
            self.assertEqual(args.split()[2:], [f"-DSLUICE_CUDA_ARCHS={archs}"] if archs else [])
        _, args = self.plan(SLUICE_DRIVER="580.65.06", SLUICE_CUDA_ARCHS="80-virtual")
        self.assertEqual(args.split()[2:], ["-DSLUICE_CUDA_ARCHS=80-virtual"])

    def test_told(self):
        self.program("nvcc", NVCC.format("13.0"))
        self.assertEqual(self.plan(SLUICE_CUDA="off"), ["CPU part only (SLUICE_CUDA=off)", "-DSLUICE_CUDA=OFF"])
        (self.bin / "nvcc").unlink()
        self.assertEqual(self.plan(SLUICE_CUDA="on")[0], "CPU and GPU parts (nvcc from PyPI)")
        code, _, err = self.bash("plan_cuda", SLUICE_CUDA="maybe")
        self.assertEqual((code, err), (2, "sluice: SLUICE_CUDA=maybe: must be on, off or auto\n"))

    def test_the_compiler_is_installed_once(self):
        self.program("python3", PYTHON)
        said = self.folder / "pip"
        env = {"SLUICE_DRIVER": "580.65.06", "PIP_SAYS": str(said)}
        for _ in range(2):
            code, out, err = self.bash('setup_cuda; "${CUDA_ARGS[1]#*=}"; ls -l "$CUDA_KIT/lib64/"', **env)
            self.assertEqual(code, 0, err)
            self.assertIn("libcublasLt.so -> libcublasLt.so.13", out)
        lines = said.read_text().splitlines()
        self.assertEqual(len(lines), 1, lines)
        for package in ("nvidia-cuda-nvcc==", "nvidia-cublas=="):
            self.assertIn(package, lines[0])
        self.assertIn("GB to download", self.bash("rm -rf $BUILD; setup_cuda", **env)[2])

    def test_offline(self):
        self.program("python3", PYTHON)
        env = {"SLUICE_DRIVER": "580.65.06", "PIP_SAYS": str(self.folder / "pip"), "OFFLINE": "1"}
        code, out, _ = self.bash('setup_cuda; echo "$CUDA_PART|${CUDA_ARGS[*]}"', **env)
        self.assertEqual((code, out.strip()), (0, "CPU part only (could not get nvcc from PyPI)|-DSLUICE_CUDA=OFF"))
        code, _, err = self.bash("setup_cuda", SLUICE_CUDA="on", **env)
        self.assertEqual(code, 1)
        self.assertIn("SLUICE_CUDA=on: could not get nvcc from PyPI", err)


class Progress(Machine):
    def test_a_build_says_how_far_it_is(self):
        self.program("ninja", 'echo "[0/2] Re-checking globbed directories..."\n'
                              'for i in {1..100}; do echo "[$i/100] Building $i.o"; done')
        code, out, err = self.bash('mkdir -p "$LOGS"; watched_ninja "$LOGS/x.log" -C nowhere')
        self.assertEqual((code, out), (0, ""))
        said = err.splitlines()
        self.assertEqual(len(said), 20, said)
        self.assertEqual(said[-1], "sluice: built 100 of 100 (100 %)")
        self.assertEqual(len((self.folder / "build/log/x.log").read_text().splitlines()), 101)

    def test_a_build_that_fails(self):
        self.program("ninja", 'echo "[1/2] Building a.o"; echo "a.cc:1: error: no"; exit 3')
        code, _, err = self.bash('mkdir -p "$LOGS"; watched_ninja "$LOGS/x.log"')
        self.assertEqual(code, 3)
        self.assertIn("a.cc:1: error: no", err)


class SlowKernels(Machine):
    SAYS = "ptxas info    : ({}) Potential Performance Loss: wgmma.mma_async instructions are serialized due to"

    def found(self, text):
        log = self.folder / "log"
        log.write_text("[1/2] Building CUDA object wide.cu.o\n" + text + "\n[2/2] Linking\n")
        return self.bash(f"slow_kernels {log}")[:2]

    def test_what_ptxas_says_of_matrix_instructions_and_registers(self):
        for code in ("C7508", "C7514", "C7515"):
            with self.subTest(code=code):
                self.assertEqual((0, self.SAYS.format(code) + "\n"), self.found(self.SAYS.format(code)))

    def test_a_stage_writes_to_the_log_that_it_reads(self):
        log = self.folder / "log"
        log.write_text(self.SAYS.format("C7515") + "\n")
        self.assertEqual(0, self.bash(f"slow_kernels {log} >>{log}")[0])

    def test_other_remarks(self):
        for text in ("", "ptxas info    : 0 bytes gmem", self.SAYS.format("C7519")):
            self.assertEqual((1, ""), self.found(text))


class TraceReport(unittest.TestCase):
    @staticmethod
    def span(name, step, begin, end):
        return {"ph": "X", "name": name, "ts": begin, "dur": end - begin, "args": {"step": step}}

    def test_overlap_is_the_share_of_host_time_that_a_step_hides(self):
        events = [{"ph": "C", "name": "running", "ts": 0, "args": {"value": 1}}]
        for i in range(1, 6):  # a step of 80 us every 100; half of the next plan while it runs, completion after it
            at = 100 * i
            events += [self.span("step", i, at, at + 80), self.span("plan", i, at - 30, at - 10),
                       self.span("complete", i, at + 90, at + 100)]
        r = trace_report.report(events, skip=1, steps=3)
        self.assertEqual(r["steps"], 3)
        self.assertAlmostEqual(r["seconds"]["step"], 240e-6)
        # Of plan and complete (3 x 30 us), the 10 us of plans 3 and 4 that begin before the step before them ends.
        self.assertAlmostEqual(r["overlap"], 20 / 90)
        self.assertAlmostEqual(r["busy"], 240 / 280)
        self.assertEqual(trace_report.report(events, skip=9)["steps"], 0)

    def test_ops_and_text(self):
        events = [{"ph": "M", "tid": tid, "name": "thread_name", "args": {"name": name}} for tid, name in ((1, "ops"), (2, "io-0"))]
        for i in range(1, 5):
            at = 100 * i
            events += [self.span("step", i, at, at + 80),
                       {"ph": "X", "tid": 1, "name": "matmul", "ts": at + 10, "dur": 40, "args": {"rows": 3}},
                       {"ph": "X", "tid": 1, "name": "attention", "ts": at + 50, "dur": 20},
                       {"ph": "X", "tid": 2, "name": "send", "ts": at + 75, "dur": 10},  # half of it beside the step
                       {"ph": "X", "tid": 2, "name": "detokenise", "ts": at + 75, "dur": 2}]
        r = trace_report.report(events, skip=1)
        self.assertEqual(list(r["ops"]), ["matmul", "attention"])
        self.assertAlmostEqual(r["ops"]["matmul"], 3 * 40e-6)
        self.assertAlmostEqual(r["text_overlap"], 0.5)
        self.assertAlmostEqual(r["seconds"]["detokenise"], 6e-6)


class Report(unittest.TestCase):
    def report(self, *cases):
        return test_report.report(self.suite(*cases))

    def suite(self, *cases):
        root = ElementTree.Element("testsuite")
        for name, status, skip, text in cases:
            case = ElementTree.SubElement(root, "testcase", name=name, status=status)
            if skip:
                ElementTree.SubElement(case, "skipped", message=skip)
            ElementTree.SubElement(case, "system-out").text = text
        return root

    def test_googletest(self):
        self.assertEqual(self.report(
            ("a", "run", None,
             "a_test.cc:59: Skipped\nno GPU\n\nb_test.cc:7: Skipped\nno GPU\n[  PASSED  ] 3 tests.\n"),
            ("b", "fail", None, "[  PASSED  ] 1 test.\n[  FAILED  ] 2 tests, listed below:\n"),
            ("c", "fail", None, "crashed\n")), ["4 3 2", "a: 2 skipped: no GPU"])

    def test_unittest(self):
        self.assertEqual(self.report(
            ("a", "run", None, "test_x (m.C.test_x) ... skipped 'no browser'\nRan 3 tests in 0.1s\nOK (skipped=1)\n"),
            ("b", "fail", None, "Ran 4 tests in 0.1s\n\nFAILED (failures=1, errors=1)\n")),
            ["4 2 1", "a: 1 skipped: no browser"])

    def test_other_programs(self):
        self.assertEqual(self.report(
            ("a", "notrun", "SKIP_RETURN_CODE=77", "skipped: offline\n"), ("b", "run", None, "fine"),
            ("c", "notrun", "Unable to find executable", "")), ["1 1 1", "a: 1 skipped: offline"])

    def test_second_tries(self):
        first = self.suite(("a", "fail", None, "no"), ("b", "fail", None, "no"), ("c", "run", None, "fine"))
        again = self.suite(("a", "run", None, "fine"), ("b", "fail", None, "no"))
        self.assertEqual(test_report.report(first, again), ["2 1 0", "a: passed only at the second try"])


if __name__ == "__main__":
    unittest.main()
