"""Dynamo in front of two servers: its frontend, and its sidecar for vLLM's gRPC service beside each server. Discovery by
files, requests over TCP, KV events over ZeroMQ. Needs a build with gRPC; scripts/test_routers.sh starts it."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import hf_model
from harness import PATIENCE, SLUICE, Server
from test_routers import CacheAware, Router, free_port


class Dynamo(CacheAware, unittest.TestCase):
    package = "dynamo"
    test_a_flush_reaches_both = None  # it has no such request

    @classmethod
    def setUpClass(cls):
        if importlib.util.find_spec(cls.package) is None:
            raise unittest.SkipTest("Dynamo is not installed: no wheel for this machine, or no network")
        if not (pathlib.Path(SLUICE).resolve().parent / "libsluice_grpc.so").exists():
            raise unittest.SkipTest("this build has no gRPC")
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        os.environ.update(DYN_DISCOVERY_BACKEND="file", DYN_FILE_KV=str(folder / "discovery"), DYN_REQUEST_PLANE="tcp",
                          DYN_EVENT_PLANE="zmq", DYN_SELF_HOST_METADATA="0")
        model = hf_model.make(folder / "model")
        cls.servers, cls.sidecars = [], []
        try:
            for i in range(2):
                server = Server("--ctx", "512", "--no-log-requests", "--grpc-port", "0", "--kv-events", "tcp://127.0.0.1:*",
                                path=str(model))
                cls.servers.append(server)
                with open(folder / f"sidecar-{i}.log", "w", encoding="utf-8") as log:
                    cls.sidecars.append(subprocess.Popen(
                        [sys.executable, "-m", "dynamo.vllm.sidecar", "--grpc-endpoint", f"127.0.0.1:{server.grpc_port()}"],
                        stdout=log, stderr=subprocess.STDOUT, cwd=folder))
            cls.router = cls.start()
        except BaseException:
            cls.end()
            raise

    @classmethod
    def start(cls, policy="kv"):
        port = free_port()
        router = Router([sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port),
                         "--router-mode", policy.replace("_", "-")], port, cls.folder.name)
        before = [s.metric("sluice_requests_finished_total") for s in cls.servers]
        for i in range(200 * PATIENCE):  # until it has found both
            if all(s.metric("sluice_requests_finished_total") > was for s, was in zip(cls.servers, before)):
                return router
            router.post("/v1/completions", {"model": "test", "prompt": f"{i} a" * 40, "max_tokens": 1})
        router.stop()
        raise RuntimeError("Dynamo sends everything to one server: " + router.log())

    @classmethod
    def end(cls):
        for sidecar in cls.sidecars:
            sidecar.terminate()
            try:
                sidecar.wait(10 * PATIENCE)
            except subprocess.TimeoutExpired:
                sidecar.kill()
                sidecar.wait()
        for server in cls.servers:
            server.__exit__()
        cls.folder.cleanup()

    @classmethod
    def tearDownClass(cls):
        cls.router.stop()
        cls.end()


del CacheAware  # a base, not a test
if __name__ == "__main__":
    unittest.main()
