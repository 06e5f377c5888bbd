"""Prefill, decode, router and etcd each in a network namespace of its own: links are cut and slowed, and processes killed
and stopped, while clients ask without a pause. Every request ends once: with the bytes of one server, with an error, or with
its connection where the router died. Needs root, ip and tc.

    sudo SLUICE=build/release/sluice python3 tests/server/test_netns.py
"""

import ctypes
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import test_route_pd
from harness import PATIENCE, SANITIZED, Server, stories
from test_etcd import ETCD, Etcd
from test_pd import prompt
from test_route import Router, wait_for
from test_route_pd import HELD

FULL = os.environ.get("SLUICE_TEST_FULL") == "1"
CLONE_NEWNET = 0x40000000
PREFIX = "/netns/"
ROLES = ("prefill", "prefill", "decode", "decode")


def run(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=60 * PATIENCE)


def enter(path):
    """This thread, and those that it starts, use another network from now on."""
    with open(path) as f:
        if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


class Net:
    """Namespaces on one switch, 10.99.0.0/24."""

    def __init__(self, num):
        self.names = [f"sl{os.getpid()}n{k}" for k in range(num)]
        self.switch = f"sl{os.getpid()}sw"
        self.home = open(f"/proc/self/task/{threading.get_native_id()}/ns/net")  # where this thread came from
        try:
            self.build()
        except BaseException:
            self.close()
            raise

    def build(self):
        for name in (self.switch, *self.names):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", self.switch, "link", "add", "name", "sw0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "sw0", "up")
        for k, name in enumerate(self.names):
            run("ip", "link", "add", "eth", "netns", name, "type", "veth", "peer", "name", f"p{k}", "netns", self.switch)
            run("ip", "-n", name, "addr", "add", f"{self.address(k)}/24", "dev", "eth")
            run("ip", "-n", name, "link", "set", "eth", "up")
            run("ip", "-n", self.switch, "link", "set", f"p{k}", "master", "sw0", "up")

    @staticmethod
    def address(k):
        return f"10.99.0.{k + 1}"

    def cut(self, k, down=True):
        run("ip", "-n", self.switch, "link", "set", f"p{k}", "down" if down else "up")

    def slow(self, k, mbit):
        """None: as fast as it goes."""
        for where, device in ((self.switch, f"p{k}"), (self.names[k], "eth")):
            if mbit is None:
                run("tc", "-n", where, "qdisc", "del", "dev", device, "root")
            else:
                run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst", "32kb",
                    "latency", "200ms")

    def close(self):
        ctypes.CDLL(None).setns(self.home.fileno(), CLONE_NEWNET)
        self.home.close()
        for name in (self.switch, *self.names):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=60)


def unable():
    """Why there are no namespaces here, or None."""
    if os.geteuid() != 0:
        return "not root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "no ip or no tc here"
    try:
        net = Net(1)
    except (OSError, subprocess.CalledProcessError) as e:
        return f"no network namespaces here: {e}"
    try:
        net.slow(0, 1)
    except subprocess.CalledProcessError:
        return "links cannot be slowed here (tbf)"
    finally:
        net.close()
    return None


class NetEtcd(Etcd):
    def __init__(self, name, address):
        self.name = name
        self.address = address
        super().__init__()

    def start(self):
        self.command, self.url = ["ip", "netns", "exec", self.name], f"http://{self.address}:{self.port}"
        super().start()


@unittest.skipUnless(stories(), "no test data")
@unittest.skipUnless(ETCD, "no etcd here (package etcd-server)")
class Links(test_route_pd.Faults):
    """Nodes 0 to 3 are workers, 4 is etcd, 5 the router and this test."""

    test_killed = test_stopped = None  # test_route_pd's own

    def setUp(self):
        if (why := unable()) is not None:
            self.skipTest(why)
        self.draw = random.Random(int(os.environ.get("SLUICE_TEST_SEED", "20")))
        with Server("-t", "1", path=stories()) as one:
            self.bodies = [{"prompt": prompt(1000 + k, 20 + 5 * k), "max_tokens": 40, "ignore_eos": True,
                            **({"temperature": 0} if k % 2 else {"seed": k})} for k in range(16)]
            self.texts = [one.request("/v1/completions", b)[2]["choices"][0]["text"] for b in self.bodies]
        self.net = Net(6)
        self.addCleanup(self.net.close)
        enter(f"/var/run/netns/{self.net.names[5]}")
        self.key = tempfile.NamedTemporaryFile(suffix=".key")
        self.key.write(b"a key that all of them have\n")
        self.key.flush()
        self.etcd = NetEtcd(self.net.names[4], self.net.address(4))
        self.addCleanup(self.etcd.__exit__)
        self.workers = [self.worker(k) for k in range(4)]
        self.router = self.route()
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.ends, self.silent = [], 0.0

    def tearDown(self):
        super().tearDown()
        self.key.close()

    def worker(self, k, port=0):
        address = self.net.address(k)
        return Server("--role", ROLES[k], "--prefix-host", "16M", "--kv-lease", "5", "-t", "1", "--host", address, "--allow-no-key",
                      "--kv-host", address, "--kv-key", self.key.name, "--register", self.etcd.url, "--register-prefix", PREFIX,
                      "--register-lease", "5", path=stories(), port=port, inside=self.net.names[k])

    def route(self, port=0):
        router = Router(args=["--policy", "round-robin", "--etcd", self.etcd.url, "--etcd-prefix", PREFIX], port=port)
        router.wait_up(4)
        return router

    def kill(self, k):
        if k == 4:
            self.etcd.kill()
            time.sleep(self.draw.random() * 8)  # longer than leases, or not
            return self.etcd.start()
        if k == 5:
            port = self.router.port
            self.router.process.kill()
            self.router.process.wait()
            self.router.reader.join(10)
            self.router.process.stderr.close()
            self.router = self.route(port)
            return None
        worker = self.workers[k]
        worker.process.kill()
        worker.process.wait()
        worker.__exit__()
        self.workers[k] = self.worker(k, worker.port)
        return None

    def hold(self, k):
        process = (*self.workers, self.etcd, self.router)[k].process
        process.send_signal(signal.SIGSTOP)
        # Clients of a router that hangs wait for it.
        time.sleep(1 if k == 5 else 5 * self.draw.random())
        process.send_signal(signal.SIGCONT)

    def cut(self, k):
        self.net.cut(k)
        time.sleep(1 + 4 * self.draw.random())
        self.net.cut(k, down=False)

    def slow(self, k):
        self.net.slow(k, self.draw.choice((1, 5, 20)))
        time.sleep(1 + 2 * self.draw.random())
        self.net.slow(k, None)

    def run_links(self, faults, num_clients):
        clients = [threading.Thread(target=self.client, args=(k,)) for k in range(num_clients)]
        for t in clients:
            t.start()
        killed = 0
        for what, k in faults:
            killed += (what, k) == ("kill", 5)
            getattr(self, what)(k)
            self.router.wait_up(4)
        self.stop.set()
        for t in clients:
            t.join(60 * PATIENCE)
            self.assertFalse(t.is_alive())
        counts = {how: self.ends.count(how) for how in set(self.ends)}
        print(f"\n{faults}, {num_clients} clients: {counts}, silent for {self.silent:.1f} s at most")
        # Connections end where the router does, and none is made while there is none.
        closed = {how: n for how, n in counts.items() if how not in ("whole", "error")}
        for how in closed:
            self.assertRegex(how, "Connection|RemoteDisconnected|IncompleteRead|ended 0 times")
        self.assertTrue(killed > 0 or not closed, closed)
        self.assertGreater(counts["whole"], num_clients)
        # Two workers may hang one after the other, for 2.5 and 1.5 s; what was begun ends after 3.5 s. The rest is for a
        # busy machine to compute an answer.
        self.assertLess(self.silent, 12 * PATIENCE if SANITIZED else 5 if FULL else 12)
        self.freed()
        for k in range(len(self.bodies)):
            self.assertEqual(self.ask(k, False)[0], "whole")

    def freed(self):
        self.assertTrue(wait_for(lambda: self.router.metric("sluice_route_requests") == 0))
        for w in self.workers:
            for name in HELD:
                self.assertTrue(w.until(lambda: w.metric(name) == 0), f"{name} {w.metric(name)} {w.url}")

    def test_links_and_processes(self):
        """One fault of each kind, or all of them twice."""
        faults = [(what, k) for what in ("kill", "hold", "cut", "slow") for k in range(6) if k < 5 or what in ("kill", "hold")]
        self.draw.shuffle(faults)
        self.run_links(faults * 2 if FULL else list({what: (what, k) for what, k in faults}.values()), 32 if FULL else 12)


if __name__ == "__main__":
    unittest.main()
