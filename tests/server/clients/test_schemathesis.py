"""schemathesis makes requests from the server's own description: no 5xx, and answers as described."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from harness import PATIENCE, Server, model

CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
          "response_headers_conformance,unsupported_method")


@unittest.skipUnless(model(), "the default model is not in the cache")
class Schemathesis(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.server = Server("--ctx", "64", "--batch-dir", folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def run_on(self, location, *options):
        with tempfile.TemporaryDirectory() as folder:
            command = ["schemathesis", "run", location, "--url", self.server.url, "--checks", CHECKS, "--max-examples",
                       os.environ.get("SLUICE_TEST_EXAMPLES", "20"), "--phases", "examples,coverage,fuzzing", "--seed", "1",
                       "--request-timeout", str(30 * PATIENCE), "--continue-on-failure", "--generation-database", "none", "--no-color",
                       "--suppress-health-check", "all", "--exclude-path", "/dashboard/events", *options]
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200 * PATIENCE)
            except subprocess.TimeoutExpired as late:
                self.fail(f"not done after {late.timeout} s: {(late.stdout or b'').decode(errors='replace')[-4000:]}")
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-8000:])
        self.assertRegex(done.stdout, r"\d+ generated, \d+ passed")
        self.assertEqual(self.server.request("/health")[0], 200)
        return done.stdout

    def test_as_served(self):
        self.run_on(self.server.url + "/openapi.json")

    def test_with_the_name_of_the_model(self):
        # Any text is a name to the description, and most are answered with 404: here the requests go further.
        spec = self.server.request("/openapi.json")[2]
        spec["components"]["parameters"]["model"]["schema"] = {"const": "test"}

        def name(node):
            if isinstance(node, dict):
                if "properties" in node and "model" in node["properties"] and "max_model_len" not in node["properties"]:
                    node["properties"]["model"] = {"const": "test"}
                for child in node.values():
                    name(child)

        name(spec["paths"])
        for schema in ("Generate", "ChatRequest", "CompletionRequest", "EmbeddingRequest", "GenerateRequest"):
            name(spec["components"]["schemas"][schema])
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "openapi.json"
            path.write_text(json.dumps(spec))
            before = self.server.metric("sluice_generation_tokens_total")
            self.run_on(str(path))
        self.assertGreater(self.server.metric("sluice_generation_tokens_total"), before)


if __name__ == "__main__":
    unittest.main()
