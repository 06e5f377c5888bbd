"""sluice route --balance-roles: workers that can do both compute prompts or decode, as the mix of requests asks for.

    SLUICE=build/release/sluice python3 tests/server/test_route_roles.py
"""

import concurrent.futures
import json
import pathlib
import subprocess
import tempfile
import time
import unittest

from harness import PATIENCE, SLUICE, Server, stories
from test_pd import CASES, plain, prompt, start
from test_route import Fake, Router, cut, echo, wait_for
from test_route_pd import hand_over

LONG = " word" * 4000
NO_REJECTION = {"x-stainless-retry-count": "9"}


def tight(folder, step):
    """Arguments: roles follow the mix, prompts beside decodes break the objective, and by turns every prompt is split.

    Up to 64 sequences are assumed to decode in `step` seconds; prompts cost 50 us a token."""
    path = pathlib.Path(folder) / "cost.json"
    subprocess.run([SLUICE, "plan", "calibrate", "random:smollm2-135m", "-t", "1", "--device", "cpu", "--limit", "1", "-q",
                    "--out", path], check=True, timeout=120 * PATIENCE)
    costs = json.loads(path.read_text())
    costs.update(rows=[[1, step], [64, step], [8192, 0.41]], sampled=0, context=0, attended=0, prompts=0)
    path.write_text(json.dumps(costs))
    return ["--balance-roles", "--policy", "round-robin", "--cost", str(path), "--slo", f"ttft=60s,tpot={step * 1.2e6:.0f}us"]


def both(handler, body):
    """A worker of role both that takes 50 ms for a prompt."""
    time.sleep(0.05)
    (hand_over if b'"do_remote_decode":true' in body else echo)(handler, body)


def prompts_of(fake):
    return sum(b'"do_remote_decode":true' in body for _, _, body in list(fake.seen))


class FakeWorkers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.args = tight(cls.folder.name, 0.001)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def send(self, router, num):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            sent = [pool.submit(router.call, "/v1/completions", {"prompt": f"{k}{LONG}"}, NO_REJECTION)
                    for k in range(num)]
            return [s.result()[0] for s in sent]

    def test_roles_follow_the_mix_and_routers_agree(self):
        with Fake(both, "both") as a, Fake(both, "both") as b, Fake(both, "both") as c:
            fakes = [a, b, c]
            urls = [f.url for f in fakes]
            with Router(*urls, args=self.args) as router, Router(*reversed(urls), args=self.args) as beside:
                computed = []
                for r in (router, beside):
                    r.wait_up(3)
                    self.assertTrue(wait_for(lambda: r.metric("sluice_route_workers", '{role="both"}') == 3))
                    self.assertEqual(set(self.send(r, 160)), {200})
                    self.assertGreaterEqual(r.metric("sluice_route_role_changes_total"), 3)
                    self.assertEqual(r.metric("sluice_route_workers", '{role="both"}'), 0)
                    self.assertGreater(r.metric("sluice_route_prefills_total"), 0)
                    self.assertIn("role prefill", "".join(r.lines))
                    computed.append([prompts_of(f) > 0 for f in fakes])
                    for f in fakes:
                        f.seen.clear()
                self.assertEqual(computed[0], computed[1])  # the same workers
                self.assertIn(sum(computed[0]), (1, 2))

    def test_a_worker_that_stops_leaves_its_role_to_another(self):
        with Fake(both, "both") as a, Fake(both, "both") as b, Fake(both, "both") as c:
            with Router(a.url, b.url, c.url, args=self.args) as router:
                router.wait_up(3)
                self.send(router, 160)
                first = next(f for f in (a, b, c) if prompts_of(f) > 0)
                first.ready, first.act = 503, cut
                router.wait_up(2)
                before = router.metric("sluice_route_prefills_total")
                self.assertEqual(set(self.send(router, 160)), {200})
                self.assertGreater(router.metric("sluice_route_prefills_total"), before)

    def test_without_an_objective_it_is_refused(self):
        done = subprocess.run([SLUICE, "route", "--worker", "http://127.0.0.1:1", "--balance-roles"], capture_output=True,
                              text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--balance-roles needs --slo", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


@unittest.skipUnless(stories(), "no test data")
class RealWorkers(unittest.TestCase):
    def test_answers_are_those_of_one_server_whatever_the_roles(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        one = Server("--allow-request-template", path=stories())
        workers = [start("both", "-t", "1") for _ in range(2)]
        try:
            with Router(*(w.url for w in workers), args=tight(folder, 0.0005)) as router:
                router.wait_up(2)
                self.assertTrue(wait_for(lambda: router.metric("sluice_route_workers", '{role="both"}') == 2))
                for k in range(100):
                    body = {"prompt": prompt(k, 150), **CASES[k % len(CASES)], "max_tokens": 4, "min_tokens": 0}
                    status, _, text = router.call("/v1/completions", body, NO_REJECTION)
                    self.assertEqual(status, 200, text)
                    got = text.decode() if body.get("stream") else json.loads(text)
                    self.assertEqual(plain(got), plain(one.request("/v1/completions", body)[2]))
                self.assertGreater(router.metric("sluice_route_role_changes_total"), 0)
                self.assertGreater(router.metric("sluice_route_prefills_total"), 0)
                self.assertEqual(router.metric("sluice_route_fallbacks_total"), 0)
        finally:
            for server in (one, *workers):
                server.__exit__()


if __name__ == "__main__":
    unittest.main()
