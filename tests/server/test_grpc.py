"""vLLM's gRPC service (serve --grpc-port) with Google's client. src/grpc/vllm.proto is compiled by Google's compiler,
so that both directions of our own reading and writing are held to another's."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from harness import PATIENCE, ROOT, SLUICE, Server, stories

try:
    import grpc
    import grpc_tools  # noqa: F401
except ImportError:
    raise unittest.SkipTest("no grpcio and grpcio-tools here")

WAIT = 30 * PATIENCE
PROMPT = "Once upon a time, there was a little girl named Lily. She liked to play with her ball in the park every day."


def compile_proto(folder):
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'src/grpc'}",
                    f"-I{pathlib.Path(grpc_tools.__file__).parent / '_proto'}", f"--python_out={folder}",
                    f"--grpc_python_out={folder}", "vllm.proto"], check=True)
    sys.path.insert(0, folder)
    import vllm_pb2
    import vllm_pb2_grpc
    return vllm_pb2, vllm_pb2_grpc


def has_plugin():
    return (pathlib.Path(SLUICE).resolve().parent / "libsluice_grpc.so").exists()


class Grpc(unittest.TestCase):
    args = ()

    @classmethod
    def setUpClass(cls):
        if not stories():
            raise unittest.SkipTest("no test data")
        if not has_plugin():
            raise unittest.SkipTest("this build has no gRPC")
        cls.folder = tempfile.TemporaryDirectory()
        cls.pb, cls.stubs = compile_proto(cls.folder.name)
        cls.server = Server("--grpc-port", "0", "--ctx", "512", *cls.args, path=stories())
        cls.port = cls.server.grpc_port()
        # Its log has to be read, or it stops for want of room in the pipe.
        cls.reader = threading.Thread(target=lambda: cls.server.lines.extend(iter(cls.server.process.stderr.readline, "")),
                                      daemon=True)
        cls.reader.start()
        cls.channel = cls.open()
        cls.inference = cls.stubs.InferenceStub(cls.channel)
        cls.control = cls.stubs.ControlStub(cls.channel)

    @classmethod
    def open(cls):
        return grpc.insecure_channel(f"127.0.0.1:{cls.port}", [("grpc.use_local_subchannel_pool", 1)])

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.process.terminate()
        cls.server.process.wait(20 * PATIENCE)
        cls.reader.join(10)
        cls.server.process.stderr.close()
        cls.folder.cleanup()
        if cls.server.process.returncode != 0:
            raise RuntimeError(f"the server ended with {cls.server.process.returncode}: {cls.server.lines[-40:]}")

    def request(self, tokens=8, **more):
        pb = self.pb
        r = pb.GenerateRequest(text=PROMPT, stopping=pb.StoppingCriteria(max_new_tokens=tokens, ignore_eos=True),
                               response=pb.ResponseOptions(output_token_ids=True))
        if "decoding" in more and more["decoding"].WhichOneof("structured_output"):
            r.stopping.ignore_eos = False  # such an answer ends by itself
        for name, value in more.items():
            if isinstance(value, (str, int, float)):
                setattr(r, name, value)
            else:
                getattr(r, name).MergeFrom(value)
        return r

    def stream(self, request, **more):
        return list(self.inference.GenerateStream(request, timeout=WAIT, **more))

    def refused(self, code, request, words="", **more):
        with self.assertRaises(grpc.RpcError) as caught:
            self.stream(request, **more)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        self.assertIn(words, caught.exception.details())
        self.assertNotIn("\n", caught.exception.details())
        return caught.exception

    def http(self, **fields):
        status, _, answer = self.server.request("/v1/completions", {
            "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": "structured_outputs" not in fields,
            "return_token_ids": True, **fields})
        self.assertEqual(status, 200, answer)
        return answer


class Answers(Grpc):
    args = ("--kv-events", "tcp://127.0.0.1:*", "--max-queue", "400")

    def test_what_the_server_says_of_itself(self):
        info = self.control.GetServerInfo(self.pb.GetServerInfoRequest(), timeout=WAIT)
        self.assertEqual((info.api_version, info.max_model_len), ("vllm", 512))
        self.assertEqual((info.parallelism.world_size, info.parallelism.data_parallel_rank), (1, 0))
        http = self.server.request("/server_info")[2]
        self.assertEqual(info.kv_block_size, http["page_size"])
        self.assertEqual(info.total_kv_blocks * info.kv_block_size, http["max_total_num_tokens"])
        self.assertEqual(info.max_running_requests, http["max_running_requests"])
        model = self.control.GetModelInfo(self.pb.GetModelInfoRequest(), timeout=WAIT)
        self.assertEqual((model.served_model_name, model.model_id), ("test", stories()))
        self.assertTrue(model.supports_text_input and model.supports_token_ids_input)
        sources = self.control.GetKvEventSources(self.pb.GetKvEventSourcesRequest(), timeout=WAIT).sources
        self.assertEqual([(s.transport, s.endpoint, s.encoding) for s in sources],
                         [("zmq", http["kv_events"]["publish"], "msgpack")])

    def test_the_same_answer_as_over_http(self):
        http = self.http(logprobs=2)["choices"][0]
        pb = self.pb
        want = self.request(response=pb.ResponseOptions(
            prompt_token_ids=True, output_logprobs=True, output_candidates=pb.CandidateTokens(top_n=2)))
        answers = self.stream(want)
        self.assertEqual(answers[0].prompt_info.num_prompt_tokens, len(http["prompt_token_ids"]))
        self.assertEqual(list(answers[0].prompt_info.token_ids), http["prompt_token_ids"])
        outputs = [a.outputs for a in answers[1:]]
        self.assertEqual(len(outputs), 8)
        self.assertFalse(any(a.HasField("prompt_info") for a in answers[1:]))
        self.assertEqual("".join(o.text for o in outputs), http["text"])
        self.assertEqual([t for o in outputs for t in o.token_ids], http["token_ids"])
        self.assertEqual([o.num_tokens for o in outputs], [1] * 8)
        for score, there in zip((s for o in outputs for s in o.logprobs), http["logprobs"]["token_logprobs"]):
            self.assertAlmostEqual(score, there, places=4)
        self.assertTrue(all(len(c.tokens) == 2 for o in outputs for c in o.candidate_tokens))
        self.assertEqual([o.HasField("finish_info") for o in outputs], [False] * 7 + [True])
        end = outputs[-1].finish_info
        self.assertEqual((end.finish_reason, end.num_output_tokens), (pb.FinishInfo.LENGTH, 8))
        # Ids in, and the whole answer at once.
        ids = self.request()
        ids.token_ids.ids.extend(http["prompt_token_ids"])
        whole = self.inference.Generate(ids, timeout=WAIT)
        self.assertEqual(list(whole.outputs.token_ids), http["token_ids"])
        self.assertEqual(whole.outputs.text, http["text"])
        self.assertEqual(whole.prompt_info.num_prompt_tokens, len(http["prompt_token_ids"]))
        self.assertGreater(whole.outputs.finish_info.num_cached_tokens, 0, "it was there already")
        ids.kv.bypass_prefix_cache = True
        self.assertEqual(self.inference.Generate(ids, timeout=WAIT).outputs.finish_info.num_cached_tokens, 0)

    def test_sampling_is_what_was_asked_for(self):
        pb = self.pb
        for request, fields in (
                ({"temperature": 1.0, "sampling": pb.RandomSampling(seed=7, top_k=20, top_p=0.9, min_p=0.01)},
                 {"temperature": 1.0, "seed": 7, "top_k": 20, "top_p": 0.9, "min_p": 0.01}),
                ({"decoding": pb.DecodingParameters(presence_penalty=2, frequency_penalty=1.5, repetition_penalty=5)},
                 {"presence_penalty": 2, "frequency_penalty": 1.5, "repetition_penalty": 5}),
                ({"decoding": pb.DecodingParameters(logit_bias={300: 50.0, 310: -3.0})},
                 {"logit_bias": {"300": 50.0, "310": -3.0}}),
                ({"decoding": pb.DecodingParameters(allowed_token_ids=[300, 301, 302])},
                 {"allowed_token_ids": [300, 301, 302]}),
                ({"truncate_prompt_tokens": 3}, {"truncate_prompt_tokens": 3}),
                ({"decoding": pb.DecodingParameters(regex="[ab]{8}")}, {"structured_outputs": {"regex": "[ab]{8}"}}),
                ({"decoding": pb.DecodingParameters(json='{"enum": [true, 17]}')},
                 {"structured_outputs": {"json": {"enum": [True, 17]}}}),
                ({"decoding": pb.DecodingParameters(choice=pb.DecodingParameters.StringChoices(choices=["yes", "no"]))},
                 {"structured_outputs": {"choice": ["yes", "no"]}})):
            with self.subTest(fields):
                there = self.http(**fields)["choices"][0]
                plain = self.http()["choices"][0]
                here = self.inference.Generate(self.request(**request), timeout=WAIT).outputs
                self.assertEqual((here.text, list(here.token_ids)), (there["text"], there["token_ids"]))
                self.assertNotEqual(there["token_ids"], plain["token_ids"], "the field changes the answer")

    def test_bad_words_by_ids(self):
        first = self.stream(self.request())[1].outputs.token_ids[0]
        answer = self.stream(self.request(decoding=self.pb.DecodingParameters(
            bad_words_token_ids=[self.pb.TokenIds(ids=[first])])))
        self.assertNotIn(first, [t for a in answer[1:] for t in a.outputs.token_ids])

    def test_how_it_stops(self):
        pb = self.pb
        text = self.http()["choices"][0]["text"]
        word = text.split()[2]
        end = self.stream(self.request(stopping=pb.StoppingCriteria(stop_strings=[word])))
        self.assertEqual("".join(a.outputs.text for a in end[1:]), text[:text.index(word)])
        self.assertEqual(end[-1].outputs.finish_info.stop_string, word)
        self.assertEqual(end[-1].outputs.finish_info.finish_reason, pb.FinishInfo.STOP)
        ids = self.http()["choices"][0]["token_ids"]
        end = self.stream(self.request(stopping=pb.StoppingCriteria(stop_token_ids=[ids[3]])))
        self.assertEqual(end[-1].outputs.finish_info.stop_token_id, ids[3])
        self.assertEqual([t for a in end[1:] for t in a.outputs.token_ids], ids[:4])

    def test_several_outputs_and_scores_of_the_prompt(self):
        pb = self.pb
        answers = self.stream(self.request(temperature=1.0, sampling=pb.RandomSampling(num_sequences=3, seed=1),
                                           response=pb.ResponseOptions(prompt_logprobs=True)))
        ends = {a.outputs.index for a in answers[1:] if a.outputs.HasField("finish_info")}
        self.assertEqual(ends, {0, 1, 2})
        info = answers[0].prompt_info
        self.assertEqual({len(info.logprobs), len(info.ranks), len(info.candidate_tokens)}, {info.num_prompt_tokens})
        self.assertTrue(info.logprobs[0] == 0 and all(x < 0 for x in info.logprobs[1:]))

    def test_what_is_refused(self):
        pb, code = self.pb, grpc.StatusCode
        wrong = code.INVALID_ARGUMENT
        self.refused(code.NOT_FOUND, self.request(model="other"), "other")
        self.refused(wrong, pb.GenerateRequest(), "prompt")
        self.refused(wrong, self.request(temperature=float("nan")), "temperature")
        self.refused(wrong, self.request(temperature=-1.0), "temperature")
        self.refused(wrong, self.request(sampling=pb.RandomSampling(top_p=0.0)), "top_p")
        self.refused(wrong, self.request(sampling=pb.RandomSampling(num_sequences=100000)), "n must")
        self.refused(wrong, self.request(decoding=pb.DecodingParameters(presence_penalty=9)), "presence_penalty")
        self.refused(wrong, self.request(decoding=pb.DecodingParameters(regex="(")), "pattern")
        self.refused(wrong, self.request(decoding=pb.DecodingParameters(json="{")), "JSON")
        self.refused(wrong, self.request(decoding=pb.DecodingParameters(allowed_token_ids=[1 << 20])), "allowed_token_ids")
        self.refused(wrong, self.request(decoding=pb.DecodingParameters(bad_words_token_ids=[pb.TokenIds()])), "bad_words")
        self.refused(wrong, self.request(decoding=pb.DecodingParameters(
            bad_words_token_ids=[pb.TokenIds(ids=[1 << 20])])), "bad_words")
        self.refused(wrong, self.request(stopping=pb.StoppingCriteria(thinking_token_budget=5)), "thinking_token_budget")
        self.refused(wrong, self.request(lora_name="x"), "lora_name")
        self.refused(wrong, self.request(media=[pb.MediaItem()]), "media")
        self.refused(wrong, self.request(response=pb.ResponseOptions(output_logprobs=True,
                                                                     output_candidates=pb.CandidateTokens(all=True))),
                     "output_candidates")
        self.refused(wrong, self.request(response=pb.ResponseOptions(output_candidates=pb.CandidateTokens(top_n=3))),
                     "output_logprobs")
        ids = self.request()
        ids.token_ids.ids.extend([1, 1 << 31])
        self.refused(wrong, ids, "too large")
        ids.token_ids.ids[:] = [1, 1 << 20]
        self.refused(wrong, ids, "prompt")
        ids.token_ids.ids[:] = [1] * 600
        self.refused(wrong, ids, "maximum context length")
        transfer = self.request()
        transfer.kv.kv_transfer_params["do_remote_decode"] = True
        self.refused(wrong, transfer, "--role")
        transfer = self.request()
        transfer.kv.ec_transfer_params["a"] = 1
        self.refused(wrong, transfer, "ec_transfer_params")
        self.refused(wrong, self.request(), "rank", metadata=[("x-data-parallel-rank", "3")])
        self.assertEqual(len(self.stream(self.request(), metadata=[("x-data-parallel-rank", "0")])), 9)

    def test_bytes_that_are_no_message(self):
        call = self.channel.unary_stream("/vllm.Inference/GenerateStream")
        good = self.request().SerializeToString()
        deep = b""
        for _ in range(200):  # a struct in a struct
            entry = b"\x0a\x01a\x12" + self.sized(b"\x2a" + self.sized(deep))
            deep = b"\x0a" + self.sized(entry)
        for bad in (b"\xff", b"\x1a\x7fabc", b"\x1a\x02\xff\xfe", b"\x2d\x00", b"\x28\x01", b"\x0b", good[:-1], b"\x22\x02\x0a\xff",
                    good + b"\x52" + self.sized(b"\x1a" + self.sized(deep))):
            with self.assertRaises(grpc.RpcError) as caught:
                list(call(bad, timeout=WAIT))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, (bad[:20], caught.exception.details()))
        # A field of a later version is passed over.
        self.assertEqual(len(list(call(good + b"\xf8\x3f\x01", timeout=WAIT))), 9)
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(b"\x1a" + self.sized(b"a" * (9 << 20)), timeout=WAIT))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        for method in ("/vllm.Control/Sleep", "/vllm.Inference/Other", "/x"):
            with self.assertRaises(grpc.RpcError) as caught:
                self.channel.unary_unary(method)(b"", timeout=WAIT)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    @staticmethod
    def sized(data):
        size, out = len(data), b""
        while size >= 0x80:
            out += bytes([size & 0x7f | 0x80])
            size >>= 7
        return out + bytes([size]) + data

    def test_mutations(self):
        """Bytes of a good request, changed: an answer or a status, never the end of the server."""
        import random
        draw = random.Random(3)
        call = self.channel.unary_stream("/vllm.Inference/GenerateStream")
        pb = self.pb
        good = self.request(tokens=1, temperature=0.5, sampling=pb.RandomSampling(top_k=5, seed=3),
                            decoding=pb.DecodingParameters(logit_bias={5: 1.0}, bad_words_token_ids=[pb.TokenIds(ids=[3, 4])]))
        good.kv.kv_transfer_params.update({"a": [1, {"b": None}], "c": "d"})
        good = good.SerializeToString()

        def ask(bad):
            try:
                list(call(bad, timeout=2))
                return "OK"
            except grpc.RpcError as error:
                return error.code().name
        cases = []
        for _ in range(300):
            bad = bytearray(good)
            for _ in range(draw.randint(1, 4)):
                bad[draw.randrange(len(bad))] = draw.randrange(256)
            cases.append(bytes(bad[:draw.randint(1, len(bad))] if draw.random() < 0.2 else bad))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            codes = set(pool.map(ask, cases))
        self.assertLessEqual(codes, {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})
        self.assertIn("INVALID_ARGUMENT", codes)
        self.assertEqual(len(self.stream(self.request())), 9)

    def idle(self):
        return self.server.until(lambda: self.server.metric("sluice_requests_running") == 0)

    def test_cancel_and_deadline_free_the_engine(self):
        for end in ("cancel", "deadline", "connection"):
            with self.subTest(end):
                before = self.server.metric("sluice_requests_finished_total")
                channel = self.open()
                call = self.stubs.InferenceStub(channel).GenerateStream(
                    self.request(tokens=400), timeout=0.2 if end == "deadline" else WAIT)
                if end == "deadline":
                    with self.assertRaises(grpc.RpcError) as caught:
                        list(self.stubs.InferenceStub(channel).GenerateStream(
                            self.request(tokens=400, sampling=self.pb.RandomSampling(num_sequences=16)), timeout=0.03))
                    self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
                    call.cancel()
                else:
                    next(call)
                    call.cancel() if end == "cancel" else channel.close()
                channel.close()
                self.assertTrue(self.server.until(
                    lambda: self.server.metric("sluice_requests_finished_total") > before), "it ended early")
                self.assertTrue(self.idle())

    def test_abort_by_id(self):
        call = self.inference.GenerateStream(self.request(tokens=450, request_id="mine"), timeout=WAIT)
        next(call)
        self.control.Abort(self.pb.AbortRequest(request_ids=["mine", "nobody's"]), timeout=WAIT)
        answers = list(call)
        end = answers[-1].outputs.finish_info
        if end.finish_reason != self.pb.FinishInfo.LENGTH:  # it may have been faster
            self.assertEqual(end.finish_reason, self.pb.FinishInfo.ABORTED)
        self.assertTrue(self.idle())

    def test_a_hundred_streams(self):
        alone = [list(a.outputs.token_ids) for a in self.stream(self.request(tokens=16))]
        with concurrent.futures.ThreadPoolExecutor(100) as pool:
            all_of = list(pool.map(lambda _: [list(a.outputs.token_ids) for a in self.stream(self.request(tokens=16))], range(100)))
        self.assertTrue(all(one == alone for one in all_of))

    def test_health(self):
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        for service in (b"", b"vllm.Inference", b"vllm.Control"):
            self.assertEqual(check(b"\x0a" + self.sized(service), timeout=WAIT), b"\x08\x01")
        with self.assertRaises(grpc.RpcError) as caught:
            check(b"\x0a\x01x", timeout=WAIT)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        watch = self.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=WAIT)
        self.assertEqual(next(watch), b"\x08\x01")
        watch.cancel()

    def test_a_connection_with_nothing_else_on_it(self):
        """Every message goes out by itself, not with the next one."""
        for _ in range(5):
            channel = grpc.insecure_channel(f"127.0.0.1:{self.port}", [
                ("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)])
            self.assertEqual(len(list(self.stubs.InferenceStub(channel).GenerateStream(self.request(), timeout=20))), 9)
            channel.close()

    def test_metadata(self):
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        call = self.inference.GenerateStream(self.request(), timeout=WAIT,
                                             metadata=[("traceparent", trace), ("x-request-id", "abc")])
        list(call)
        head = dict(call.initial_metadata())
        self.assertEqual(head["x-request-id"], "abc")
        self.assertEqual(head["traceparent"].split("-")[1], trace.split("-")[1])


class Unread(Grpc):
    args = ("--send-timeout", "1")

    def test_a_stream_that_nobody_reads_is_cut(self):
        """Scores make it long. HTTP/2's window is small, and the client never reads."""
        pb = self.pb
        before = self.server.metric("sluice_requests_finished_total")
        channel = grpc.insecure_channel(f"127.0.0.1:{self.port}", [
            ("grpc.use_local_subchannel_pool", 1), ("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0)])
        call = self.stubs.InferenceStub(channel).GenerateStream(self.request(
            tokens=400, response=pb.ResponseOptions(output_logprobs=True, output_candidates=pb.CandidateTokens(top_n=20)),
            sampling=pb.RandomSampling(num_sequences=8)), timeout=WAIT)
        self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_finished_total") > before))
        with self.assertRaises(grpc.RpcError) as caught:
            list(call)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.CANCELLED)
        self.assertTrue(self.server.until(lambda: self.server.metric("sluice_requests_running") == 0))
        channel.close()
        self.assertEqual(len(self.stream(self.request())), 9)


class WithKey(Grpc):
    @classmethod
    def setUpClass(cls):
        cls.keys = tempfile.NamedTemporaryFile("w", suffix=".keys")
        cls.keys.write("secret-key-one\nsecret-key-two\n")
        cls.keys.flush()
        cls.args = ("--api-key-file", cls.keys.name)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.keys.close()

    def test_a_key_is_needed(self):
        code = grpc.StatusCode.UNAUTHENTICATED
        self.refused(code, self.request(), "API key")
        self.refused(code, self.request(), "API key", metadata=[("authorization", "Bearer wrong")])
        self.assertEqual(len(self.stream(self.request(), metadata=[("authorization", "Bearer secret-key-one")])), 9)
        with self.assertRaises(grpc.RpcError) as caught:
            self.control.GetModelInfo(self.pb.GetModelInfoRequest(), timeout=WAIT)
        self.assertEqual(caught.exception.code(), code)
        # Probes have none.
        self.assertEqual(self.channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=WAIT), b"\x08\x01")

    def test_another_keys_request_is_not_aborted(self):
        one, two = ([("authorization", f"Bearer secret-key-{n}")] for n in ("one", "two"))
        call = self.inference.GenerateStream(self.request(tokens=200, request_id="mine"), timeout=WAIT, metadata=one)
        next(call)
        self.control.Abort(self.pb.AbortRequest(request_ids=["mine"]), timeout=WAIT, metadata=two)
        self.assertEqual(list(call)[-1].outputs.finish_info.finish_reason, self.pb.FinishInfo.LENGTH)


class Handover(unittest.TestCase):
    def test_a_prompt_is_computed_elsewhere(self):
        if not stories() or not has_plugin():
            self.skipTest("no test data, or no gRPC")
        with tempfile.TemporaryDirectory() as folder:
            pb, stubs = compile_proto(folder)
            args = ("--grpc-port", "0", "--prefix-host", "16M", "--no-log-requests")
            with Server("--role", "prefill", *args, path=stories()) as prefill, \
                    Server("--role", "decode", *args, path=stories()) as decode:
                first, second = (stubs.InferenceStub(grpc.insecure_channel(f"127.0.0.1:{s.grpc_port()}"))
                                 for s in (prefill, decode))
                request = pb.GenerateRequest(text=PROMPT * 2, stopping=pb.StoppingCriteria(max_new_tokens=1, ignore_eos=True))
                request.kv.kv_transfer_params["do_remote_decode"] = True
                answers = list(first.GenerateStream(request, timeout=WAIT))
                self.assertEqual(len(answers), 1)
                params = answers[0].outputs.finish_info.kv_transfer_params
                self.assertTrue(params["do_remote_prefill"])
                request.stopping.max_new_tokens = 12
                request.kv.kv_transfer_params.CopyFrom(params)
                text = "".join(a.outputs.text for a in second.GenerateStream(request, timeout=WAIT))
                self.assertGreater(decode.metric("sluice_kv_transfer_received_bytes_total"), 0)
                _, _, alone = prefill.request("/v1/completions", {"prompt": PROMPT * 2, "max_tokens": 12, "temperature": 0,
                                                                  "ignore_eos": True})
                self.assertEqual(text, alone["choices"][0]["text"])


class Ends(unittest.TestCase):
    def test_a_program_without_the_library(self):
        if not stories():
            self.skipTest("no test data")
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "bin"))
            alone = shutil.copy(SLUICE, os.path.join(folder, "bin"))
            done = subprocess.run([alone, "serve", stories(), "--port", "0", "--grpc-port", "0"], stderr=subprocess.PIPE,
                                  text=True, timeout=WAIT)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "^sluice: --grpc-port needs libsluice_grpc.so: install the package sluice-grpc.*\n$")

    def test_tls(self):
        if not stories() or not has_plugin() or not shutil.which("openssl"):
            self.skipTest("no test data, no gRPC, or no openssl")
        with tempfile.TemporaryDirectory() as folder:
            cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
                           check=True, stderr=subprocess.DEVNULL)
            with Server("--tls-cert", cert, "--tls-key", key, "--grpc-port", "0", path=stories(), ca=cert) as server:
                port = server.grpc_port()
                with open(cert, "rb") as trusted:
                    channel = grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(trusted.read()))
                check = "/grpc.health.v1.Health/Check"
                self.assertEqual(channel.unary_unary(check)(b"", timeout=WAIT), b"\x08\x01")
                channel.close()
                plain = grpc.insecure_channel(f"127.0.0.1:{port}")
                with self.assertRaises(grpc.RpcError) as caught:
                    plain.unary_unary(check)(b"", timeout=5)
                self.assertIn(caught.exception.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))
                plain.close()

    def test_drain_finishes_what_runs(self):
        if not stories() or not has_plugin():
            self.skipTest("no test data, or no gRPC")
        with tempfile.TemporaryDirectory() as folder:
            pb, stubs = compile_proto(folder)
            with Server("--grpc-port", "0", "--no-log-requests", path=stories()) as server:
                channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port()}")
                watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=WAIT)
                self.assertEqual(next(watch), b"\x08\x01")
                call = stubs.InferenceStub(channel).GenerateStream(
                    pb.GenerateRequest(text=PROMPT, stopping=pb.StoppingCriteria(max_new_tokens=200, ignore_eos=True)), timeout=WAIT)
                next(call)
                server.process.terminate()
                self.assertEqual(list(call)[-1].outputs.finish_info.num_output_tokens, 200)
                self.assertEqual(list(watch), [b"\x08\x02"])
                server.process.wait(20 * PATIENCE)
                channel.close()

    def test_a_busy_port(self):
        if not stories() or not has_plugin():
            self.skipTest("no test data, or no gRPC")
        import socket
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            done = subprocess.run([SLUICE, "serve", stories(), "--port", "0", "--grpc-port", str(taken.getsockname()[1])],
                                  stderr=subprocess.PIPE, text=True, timeout=WAIT)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--grpc-port: cannot listen on 127.0.0.1 port", done.stderr)


del Grpc  # a base, not a test: unittest would collect it
if __name__ == "__main__":
    unittest.main()
