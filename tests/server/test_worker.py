"""What routers, endpoint pickers and tracers ask of a server that is one of several."""

import re
import threading
import unittest

from harness import Server, stories

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@unittest.skipUnless(stories(), "no test data")
class Worker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", "512", path=stories())

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def get(self, path, expect=200):
        status, _, answer = self.server.request(path)
        self.assertEqual(status, expect, answer)
        return answer

    def complete(self, headers=None, **body):
        body = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, **body}
        status, head, answer = self.server.request("/v1/completions", body, headers)
        self.assertEqual(status, 200, answer)
        return head, answer

    def test_a_router_learns_what_it_asks_for(self):
        info = self.get("/server_info")
        self.assertEqual(info, self.get("/get_server_info"))
        self.assertEqual((info["model_path"], info["served_model_name"], info["dp_size"]), ("test", "test", 1))
        self.assertEqual(info["context_length"], 512)
        self.assertEqual(info["max_total_num_tokens"] % info["page_size"], 0)
        model = self.get("/model_info")
        self.assertEqual(model, self.get("/get_model_info"))
        self.assertEqual((model["model_path"], model["is_generation"], model["model_type"]), ("test", True, "llama"))
        # The fields that sglang-router 0.3.2 adds to every body, and those of vllm-router 0.1.16.
        added = {"stream": False, "no_stop_trim": False, "ignore_eos": False, "skip_special_tokens": True,
                 "return_hidden_states": False, "echo": False}
        self.complete(**added)
        with Server("--allow-request-template", path=stories()) as server:
            status, _, answer = server.request("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 2, "logprobs": False,
                "chat_template": "{{ messages[0].content }}", "no_stop_trim": False, "ignore_eos": False,
                "continue_final_message": False, "skip_special_tokens": True, "separate_reasoning": True,
                "stream_reasoning": True, "return_hidden_states": False, "include_reasoning": True})
            self.assertEqual(status, 200, answer)
        for wrong in ({"return_hidden_states": True}, {"data_parallel_rank": 1}, {"bootstrap_room": 7}):
            status, _, answer = self.server.request("/v1/completions", {"prompt": "a", **wrong})
            self.assertEqual((status, answer["error"]["code"]), (400, "unsupported_parameter"), answer)

    def test_load_is_that_of_the_moment(self):
        def idle():
            return self.get("/get_load") == [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]
        self.assertTrue(self.server.until(idle))
        done = threading.Thread(target=self.complete, kwargs={"max_tokens": 400, "n": 8, "ignore_eos": True})
        done.start()

        def busy():
            load = self.get("/get_load")[0]
            return load["num_reqs"] == 8 and load["num_tokens"] > 8
        self.assertTrue(self.server.until(busy) or not done.is_alive())
        done.join(240)
        self.assertFalse(done.is_alive())
        self.assertTrue(self.server.until(idle))

    def test_a_flush_empties_the_prefix_cache(self):
        def cached():
            usage = self.complete(prompt="One day a girl named Lily went to the park. " * 6)[1]["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]
        cached()
        self.assertGreater(cached(), 16)
        status, _, answer = self.server.request("/flush_cache", method="POST")
        self.assertEqual((status, answer["success"]), (200, True))
        self.assertGreater(answer["num_blocks"], 1)
        self.assertEqual(cached(), 0)
        self.assertGreater(cached(), 16)
        self.assertEqual(self.server.request("/flush_cache")[0], 405)

    def test_metrics_have_the_names_that_endpoint_pickers_read(self):
        self.complete()
        text = self.get("/metrics")
        info = self.get("/server_info")
        for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
            self.assertRegex(text, rf'(?m)^vllm:{name}\{{model_name="test"\}} [0-9.e-]+$')
        labels = re.search(r"(?m)^vllm:cache_config_info\{(.*)\} 1$", text)[1]
        self.assertIn(f'block_size="{info["page_size"]}"', labels)
        self.assertIn(f'num_gpu_blocks="{info["max_total_num_tokens"] // info["page_size"]}"', labels)
        self.assertEqual(self.server.metric("sluice_ready"), 1)
        self.assertEqual(self.server.metric("sluice_waiting_prompt_tokens"), 0)
        self.assertEqual(self.server.metric("sluice_expected_queue_seconds"), 0)
        self.assertEqual(self.server.metric("sluice_max_sequences"), info["max_running_requests"])

    def test_a_trace_is_passed_on(self):
        for body in ({}, {"stream": True}):
            head, answer = self.complete({"traceparent": TRACEPARENT}, **body)
            version, trace, span, flags = head["traceparent"].split("-")
            self.assertEqual((version, trace, flags), ("00", TRACE, "01"))
            self.assertNotIn(span, ("b7ad6b7169203331", "0" * 16))
        name = self.complete({"traceparent": TRACEPARENT})[1]["id"]
        self.assertEqual(self.get(f"/v1/requests/{name}/story")["trace_id"], TRACE)
        self.assertEqual(self.get("/v1/requests?limit=1")["data"][0]["trace_id"], TRACE)
        for bad in ("", "00-" + TRACE, TRACEPARENT.upper(), TRACEPARENT.replace(TRACE, "0" * 32), "ff" + TRACEPARENT[2:]):
            head, answer = self.complete({"traceparent": bad})
            self.assertNotIn("traceparent", head, bad)
            self.assertNotIn("trace_id", self.get(f"/v1/requests/{answer['id']}/story"))
        head = self.server.request("/nowhere", headers={"traceparent": TRACEPARENT})[1]
        self.assertIn(TRACE, head["traceparent"], "refusals too")

    def test_the_log_names_the_trace(self):
        with Server("--ctx", "64", path=stories()) as server:
            server.request("/version", headers={"traceparent": TRACEPARENT, "x-request-id": "mine"})
            lines = []
            for line in server.process.stderr:
                lines.append(line)
                if "id=mine" in line:
                    break
            self.assertRegex(lines[-1], rf"GET /version 200 .* id=mine trace={TRACE}$")


if __name__ == "__main__":
    unittest.main()
