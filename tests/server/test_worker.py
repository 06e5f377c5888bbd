"""What routers, endpoint pickers and tracers ask of a server that is one of several."""

import collections
import http.client
import json
import re
import signal
import threading
import unittest

from harness import PATIENCE, SANITIZED, Server, stories

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
        for wrong in ({"return_hidden_states": True}, {"data_parallel_rank": 1},
                      {"bootstrap_room": 7, "bootstrap_host": "127.0.0.1", "bootstrap_port": 7}):
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


class Clients:
    """Threads that ask the servers of a list in turn, each by a connection of its own."""

    def __init__(self, servers, num):
        self.servers, self.lock, self.done = list(servers), threading.Lock(), threading.Event()
        self.unanswered, self.answers = collections.Counter(), collections.Counter()
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(num)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        turn = number
        while not self.done.is_set():
            turn += 1
            outcome = self.ask(turn)
            with self.lock:
                self.answers[outcome] += 1

    def ask(self, turn):
        body = {"prompt": f"Turn {turn}", "max_tokens": 60 if SANITIZED else 450, "ignore_eos": True, "stream": turn % 2 == 0}
        with self.lock:  # whoever changes the list knows that what was sent before is on its way
            server = self.servers[turn % len(self.servers)]
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30 * PATIENCE)
            self.unanswered[server.port] += 1
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            except OSError as error:
                return repr(error), False
        try:
            answer = connection.getresponse()
            text = answer.read().decode()
            return answer.status, text.rstrip().endswith("data: [DONE]") if turn % 2 == 0 else '"usage"' in text
        except (OSError, http.client.HTTPException) as error:
            return repr(error), False
        finally:
            connection.close()
            with self.lock:
                self.unanswered[server.port] -= 1

    def replace(self, old, new):
        with self.lock:
            self.servers[self.servers.index(old)] = new

    def waiting_for(self, server):
        with self.lock:
            return self.unanswered[server.port]

    def stop(self):
        self.done.set()
        for thread in self.threads:
            thread.join(30 * PATIENCE)


@unittest.skipUnless(stories(), "no test data")
class Rollout(unittest.TestCase):
    """A Deployment is upgraded under load: a new server is ready, the old one leaves the list, then it drains."""

    def serve(self):
        server = Server("--ctx", "512", "--no-log-requests", "--grace", "100", path=stories())
        self.addCleanup(server.__exit__)
        return server

    def test_nothing_is_lost(self):
        servers = [self.serve() for _ in range(2)]
        clients = Clients(servers, 8)
        self.addCleanup(clients.stop)
        running = 0
        for old in servers:
            self.assertTrue(old.until(lambda old=old: clients.waiting_for(old) > 0))
            clients.replace(old, self.serve())

            # What preStop's sleep is for: the old one has all that was sent to it.
            def arrived(old=old):
                before = clients.waiting_for(old)
                load = old.request("/load")[2]["server_load"]
                return before == load == clients.waiting_for(old)
            self.assertTrue(old.until(arrived))
            running += clients.waiting_for(old)
            old.process.send_signal(signal.SIGTERM)
            self.assertEqual(old.process.wait(100 + PATIENCE), 0)
        clients.stop()
        self.assertEqual(set(clients.answers), {(200, True)}, clients.answers)
        self.assertGreater(running, 0, "no server was asked to end while it worked")


if __name__ == "__main__":
    unittest.main()
