#!/usr/bin/env python3
"""What packaging/ says, held against the program: manifests and their schemas, probes, metrics, options, the
containers' health check, the unit. Run by scripts/test_packaging.sh; the binary is $SLUICE."""

import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/server"))
import harness  # noqa: E402

PACKAGING = ROOT / "packaging"
KUBERNETES = PACKAGING / "kubernetes"
MODEL = ROOT / "tests/golden/models/llama.gguf"
KEY = "a-key-of-the-test"
VERSION = re.search(r"^project\(sluice VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]


def documents(path):
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def merged(base, patch):
    """A strategic merge, as far as our patches need it: lists of named things by their names."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {k: merged(base[k], patch[k]) if k in base and k in patch else copy.deepcopy(patch.get(k, base.get(k)))
                for k in {**base, **patch}}
    if isinstance(base, list) and isinstance(patch, list) and all(isinstance(x, dict) and "name" in x for x in base + patch):
        found = {x["name"]: x for x in patch}
        rest = [x for x in patch if x["name"] not in {b["name"] for b in base}]
        return [merged(b, found[b["name"]]) if b["name"] in found else b for b in base] + rest
    return copy.deepcopy(patch)


def variants():
    """name -> the documents that `kubectl apply -k` would send."""
    base = {}
    for file in documents(KUBERNETES / "base/kustomization.yaml")[0]["resources"]:
        for d in documents(KUBERNETES / "base" / file):
            base[d["kind"], d["metadata"]["name"]] = d
    overlay = documents(KUBERNETES / "gpu/kustomization.yaml")[0]
    gpu = copy.deepcopy(base)
    for patch in overlay["patches"]:
        for d in documents(KUBERNETES / "gpu" / patch["path"]):
            key = d["kind"], d["metadata"]["name"]
            gpu[key] = merged(gpu[key], d)
    for image in overlay["images"]:
        for c in gpu["Deployment", "sluice"]["spec"]["template"]["spec"]["containers"]:
            name = c["image"].rsplit(":", 1)[0]
            if name == image["name"]:
                c["image"] = f"{name}:{image['newTag']}"
    return {"base": base, "gpu": gpu}


def container(variant):
    return variant["Deployment", "sluice"]["spec"]["template"]["spec"]["containers"][0]


def options(config):
    return yaml.safe_load(config)


def show(*args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    return subprocess.run([harness.SLUICE, "config", "show", "serve", *args], capture_output=True, text=True,
                          env={**clean, **env})


def metric_names(text):
    return set(re.findall(r"\b(?:sluice|vllm:)[a-z_:]*_[a-z_]+(?=[{\[ )\"']|$)", text, re.M))


class Manifests(unittest.TestCase):
    def test_follow_the_schemas_of_kubernetes(self):
        version = kubernetes_validate.latest_version()
        everything = [d for v in variants().values() for d in v.values()] + documents(KUBERNETES / "load_model.yaml")
        self.assertGreater(len(everything), 12)
        for d in everything:
            with self.subTest(kind=d["kind"], name=d["metadata"].get("name")):
                d = json.loads(json.dumps(d))
                d["metadata"].setdefault("namespace", "default")
                kubernetes_validate.validate(d, version, strict=True)

    def test_the_schemas_refuse_a_wrong_field(self):
        d = copy.deepcopy(variants()["base"]["Deployment", "sluice"])
        d["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpget"] = {}
        with self.assertRaises(Exception):
            kubernetes_validate.validate(d, kubernetes_validate.latest_version(), strict=True)

    def test_every_file_is_used(self):
        for folder in ("base", "gpu"):
            k = documents(KUBERNETES / folder / "kustomization.yaml")[0]
            named = {f for f in k["resources"] if f.endswith(".yaml")} | {p["path"] for p in k.get("patches", [])}
            there = {p.name for p in (KUBERNETES / folder).glob("*.yaml")} - {"kustomization.yaml"}
            self.assertEqual(named, there, folder)

    def test_the_pool_is_of_the_replicas(self):
        pool, route = documents(KUBERNETES / "gateway/inference_pool.yaml")
        self.assertEqual((pool["apiVersion"], pool["kind"]), ("inference.networking.k8s.io/v1", "InferencePool"))
        self.assertEqual(set(pool["spec"]), {"selector", "targetPorts", "endpointPickerRef"})
        for variant in variants().values():
            labels = variant["Deployment", "sluice"]["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(pool["spec"]["selector"]["matchLabels"], labels)
            self.assertEqual([p["number"] for p in pool["spec"]["targetPorts"]],
                             [p["containerPort"] for p in container(variant)["ports"]])
        self.assertIn(pool["spec"]["endpointPickerRef"]["failureMode"], ("FailOpen", "FailClose"))
        (rule,) = route["spec"]["rules"]
        self.assertEqual([(b["group"], b["kind"], b["name"]) for b in rule["backendRefs"]],
                         [("inference.networking.k8s.io", pool["kind"], pool["metadata"]["name"])])

    def test_a_pod_has_time_to_drain(self):
        for variant in variants().values():
            grace = options(variant["ConfigMap", "sluice"]["data"]["serve.yaml"])["grace"]
            stop = container(variant)["lifecycle"]["preStop"]["sleep"]["seconds"]
            pod = variant["Deployment", "sluice"]["spec"]["template"]["spec"]
            self.assertLessEqual(stop + grace + 2, pod["terminationGracePeriodSeconds"])
            self.assertGreater(stop, 0, "until no node sends new connections")

    def test_images_have_the_version(self):
        tags = {name: container(v)["image"] for name, v in variants().items()}
        self.assertEqual(tags, {"base": f"sluice:{VERSION}", "gpu": f"sluice:{VERSION}-cuda"})
        said = set(re.findall(r"\bsluice:[\d.]+(?:-cuda)?", (ROOT / "docs/deployment.md").read_text()))
        self.assertEqual(said, set(tags.values()))

    def test_names_agree(self):
        for variant in variants().values():
            pod = variant["Deployment", "sluice"]["spec"]["template"]
            labels = pod["metadata"]["labels"]
            for selector in (variant["Service", "sluice"]["spec"]["selector"],
                             variant["Deployment", "sluice"]["spec"]["selector"]["matchLabels"],
                             variant["PodDisruptionBudget", "sluice"]["spec"]["selector"]["matchLabels"],
                             documents(KUBERNETES / "metrics/pod_monitor.yaml")[0]["spec"]["selector"]["matchLabels"]):
                self.assertEqual(selector, labels)
            volumes = {v["name"] for v in pod["spec"]["volumes"]}
            self.assertEqual({m["name"] for m in container(variant)["volumeMounts"]}, volumes)
            target = variant["HorizontalPodAutoscaler", "sluice"]["spec"]["scaleTargetRef"]
            self.assertIn((target["kind"], target["name"]), variant)
            self.assertNotIn("replicas", variant["Deployment", "sluice"]["spec"])
            ports = {p["name"] for p in container(variant)["ports"]}
            self.assertIn(variant["Service", "sluice"]["spec"]["ports"][0]["targetPort"], ports)

    def test_pods_are_confined(self):
        for variant in variants().values():
            spec = variant["Deployment", "sluice"]["spec"]["template"]["spec"]
            self.assertTrue(spec["securityContext"]["runAsNonRoot"])
            self.assertTrue(container(variant)["securityContext"]["readOnlyRootFilesystem"])
            # SLUICE_PORT=tcp://... would come from a Service of this name.
            self.assertIs(spec["enableServiceLinks"], False)

    def test_the_gpu_variant_asks_for_one(self):
        v = variants()
        self.assertEqual(container(v["gpu"])["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertNotIn("nvidia.com/gpu", container(v["base"])["resources"]["limits"])

    def test_options_are_the_programs(self):
        for name, variant in variants().items():
            config = variant["ConfigMap", "sluice"]["data"]["serve.yaml"]
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "serve.yaml"
                path.write_text(config)
                args = [a.replace("/etc/sluice/serve.yaml", str(path)) for a in container(variant)["args"][1:]]
                env = {e["name"]: e.get("value", "4") for e in container(variant)["env"]}
                shown = show(*args, **env)
                self.assertEqual(shown.returncode, 0, shown.stderr)
                for option in options(config):
                    self.assertRegex(shown.stdout, rf"(?m)^-*{option}\b.*serve\.yaml")
                self.assertRegex(shown.stdout, r"(?m)^-*threads\b.*SLUICE_THREADS")
                path.write_text(config + "no-such-option: 1\n")
                self.assertEqual(show(*args).returncode, 2)

    def test_termination_leaves_time_to_drain(self):
        for variant in variants().values():
            spec = variant["Deployment", "sluice"]["spec"]["template"]["spec"]
            grace = options(variant["ConfigMap", "sluice"]["data"]["serve.yaml"])["grace"]
            wait = container(variant)["lifecycle"]["preStop"]["sleep"]["seconds"]
            self.assertGreaterEqual(spec["terminationGracePeriodSeconds"], wait + grace + 2)


class Running(unittest.TestCase):
    """A server with a key, as the manifests start it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        keys = pathlib.Path(cls.folder.name) / "keys"
        keys.write_text(KEY + "\n")
        keys.chmod(0o600)
        cls.server = harness.Server("--api-key-file", str(keys), "--kv-memory", "64M", path=str(MODEL), key=KEY)
        status, _, _ = cls.server.request("/v1/completions", {"model": "test", "prompt": "a", "max_tokens": 2})
        assert status == 200, status
        cls.metrics = cls.server.request("/metrics")[2]
        cls.exposed = set(re.findall(r"^([a-z_:]+)(?:\{| )", cls.metrics, re.M))

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.folder.cleanup()

    def answers(self, path, key=None):
        self.server.key, old = key, self.server.key
        try:
            return self.server.request(path)[0]
        finally:
            self.server.key = old

    def test_probes_answer_without_a_key(self):
        for name, variant in variants().items():
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                with self.subTest(variant=name, probe=probe):
                    get = container(variant)[probe]["httpGet"]
                    self.assertEqual(self.answers(get["path"]), 200)
                    self.assertIn(get["port"], {p["name"] for p in container(variant)["ports"]})

    def test_metrics_answer_with_the_key_alone(self):
        path = documents(KUBERNETES / "metrics/pod_monitor.yaml")[0]["spec"]["podMetricsEndpoints"][0]["path"]
        self.assertEqual(self.answers(path), 401)
        self.assertEqual(self.answers(path, KEY), 200)

    def test_the_autoscalers_metrics_exist(self):
        asked = set()
        for variant in variants().values():
            for metric in variant["HorizontalPodAutoscaler", "sluice"]["spec"]["metrics"]:
                asked.add(metric["pods"]["metric"]["name"])
        self.assertGreaterEqual(len(asked), 2)
        self.assertLessEqual(asked, self.exposed)
        rules = documents(KUBERNETES / "metrics/adapter.yaml")[0]["rules"]["custom"]
        offered = {re.match(r"\w+", r["seriesQuery"])[0] for r in rules}
        self.assertEqual(offered, asked)

    def test_the_endpoint_pickers_metrics_exist(self):
        asked = {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"}
        said = metric_names((ROOT / "docs/deployment.md").read_text().replace("`", " "))
        self.assertLessEqual(asked, said)
        self.assertLessEqual(asked, self.exposed)

    def test_the_dashboards_metrics_exist(self):
        def expressions(node):
            if isinstance(node, dict):
                yield from ([node["expr"]] if "expr" in node else [])
                for value in node.values():
                    yield from expressions(value)
            elif isinstance(node, list):
                for value in node:
                    yield from expressions(value)

        names = set()
        for text in expressions(json.loads((PACKAGING / "grafana.json").read_text())):
            names |= metric_names(text)
        self.assertGreater(len(names), 5)
        self.assertLessEqual(names, self.exposed)

    def test_the_documents_metrics_exist(self):
        families = set(re.findall(r"^# TYPE (\S+)", self.metrics, re.M))
        for file in ("deployment.md", "faq.md"):
            names = set(re.findall(r"`((?:sluice_|vllm:)[a-z_]+)`", (ROOT / "docs" / file).read_text()))
            self.assertLessEqual(names, families, file)

    def test_health_checks_of_the_images(self):
        for file in ("Dockerfile", "Dockerfile.cuda"):
            with self.subTest(file):
                text = (PACKAGING / file).read_text()
                command = json.loads(re.search(r"^HEALTHCHECK .*?CMD (\[.*\])$", text, re.M)[1])

                def check(port):
                    return subprocess.run(command, env={**os.environ, "SLUICE_PORT": str(port)}, timeout=20,
                                          capture_output=True).returncode

                self.assertEqual(check(self.server.port), 0)
                self.assertNotEqual(check(1), 0)  # nobody listens there


class Images(unittest.TestCase):
    def test_run_as_a_user_with_known_options(self):
        for file in ("Dockerfile", "Dockerfile.cuda"):
            with self.subTest(file):
                final = re.split(r"^FROM ", (PACKAGING / file).read_text(), flags=re.M)[-1]
                self.assertRegex(final, r"(?m)^USER 1000:1000$")
                self.assertNotRegex(final, "apt-get")
                env = dict(re.findall(r"\b(SLUICE_[A-Z_]+)=(\S+)", re.search(r"(?ms)^ENV .*?[^\\]$", final)[0]))
                self.assertGreaterEqual(set(env), {"SLUICE_CACHE", "SLUICE_HOST", "SLUICE_PORT"})
                shown = show(str(MODEL), **env)
                self.assertEqual(shown.returncode, 0, shown.stderr)
                self.assertRegex(shown.stdout, r"(?m)^-*port\b.*SLUICE_PORT")


class Unit(unittest.TestCase):
    TEXT = (PACKAGING / "sluice.service").read_text()

    def test_starts_the_server(self):
        command = re.search(r"^ExecStart=(.*)$", self.TEXT, re.M)[1].split()
        self.assertEqual(command[:2], ["sluice", "serve"])  # found in /usr/local/bin and /usr/bin
        shown = show(*[a.replace("/etc/sluice/serve.yaml", str(PACKAGING / "serve.yaml")) for a in command[2:]])
        self.assertEqual(shown.returncode, 0, shown.stderr)
        grace = options((PACKAGING / "serve.yaml").read_text())["grace"]
        self.assertGreater(int(re.search(r"^TimeoutStopSec=(\d+)s$", self.TEXT, re.M)[1]), grace + 2)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze")
    def test_systemd_reads_it(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / "sluice.service"
            unit.write_text(self.TEXT.replace("ExecStart=sluice", f"ExecStart={harness.SLUICE}"))
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
            ours = [line for line in done.stderr.splitlines() if "sluice.service" in line]
            self.assertEqual(ours, [], done.stderr)


if __name__ == "__main__":
    unittest.main()
