"""deploy/: what clusters, compose and systemd read is what they take, and names options and metrics that there are.
Rendered charts, which lie in deploy/helm/rendered, are held against the schemas; where Go is, rendered anew.

There is no cluster here, so what can be read is checked. Rejected: charts without rendered files (what a change does
would not be seen); an operator (a Deployment, a Service and a bucket need none); storage initializers (they download a
version once and no delta after it).
"""

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml

from freshet_serving.serving.serve_config import ServeConfig
from tests.e2e.composed import COMPOSE, IMAGES

kubernetes_validate = pytest.importorskip("kubernetes_validate")
ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "freshet"
RENDERED = DEPLOY / "helm" / "rendered"
SCHEMAS = ROOT / "build" / "schemas"
TOOLS = ROOT / ".venv" / "tools" / "bin"
UNIT = DEPLOY / "systemd" / "freshet.service"
# Oldest and newest: what Chart.yaml asks for, and what the schemas know.
KUBERNETES = ("1.27", "1.37")
# By whom they are read: commands that publish, not `freshet serve`.
OF_PUBLISHERS = {"FRESHET_KEY", "FRESHET_MIRROR"}


@cache
def rendered(name):
    return [d for d in yaml.safe_load_all((RENDERED / f"{name}.yaml").read_text()) if d]


def pod_specs(name):
    """The pods of a rendered chart, by kind and name of what makes them."""
    specs = {}
    for document in rendered(name):
        spec = document.get("spec", {})
        template = spec.get("template") or spec.get("jobTemplate", {}).get("spec", {}).get("template")
        if template:
            specs[document["kind"], document["metadata"]["name"]] = template["spec"]
    return specs


def containers(spec):
    return [*spec.get("initContainers", ()), *spec["containers"]]


@pytest.mark.parametrize("name", ["plain", "full"])
@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_the_rendered_chart(name, version):
    taken = [d for d in rendered(name) if "monitoring.coreos.com" not in d["apiVersion"]]
    assert len(taken) >= 5
    for document in taken:
        kubernetes_validate.validate(document, version, strict=True)


def test_prometheus_operator_accepts_its_objects():
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    if not (SCHEMAS / "node_modules").exists():
        pytest.skip("the operator's schemas are not here: make build/schemas/kserve")
    objects = [d for d in rendered("full") if "monitoring.coreos.com" in d["apiVersion"]]
    assert {d["kind"] for d in objects} == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    script = """
        import { readFileSync } from "fs";
        for (const d of JSON.parse(readFileSync(0))) {
          const at = `${process.cwd()}/node_modules/@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/`;
          const { [d.kind]: Model } = await import(`${at}${d.kind}.js`);
          new Model(d).validate();
        }"""
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        input=json.dumps(objects),
        cwd=SCHEMAS,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def kserve_fields(model):
    """Of a model of KServe's Python package: its fields by their names in YAML, and their types."""
    name = "_".join(re.findall(r"V\d+(?:alpha|beta)?\d*|[A-Z][a-z]+", model)).lower()
    tree = ast.parse((SCHEMAS / "kserve" / "kserve" / "models" / f"{name}.py").read_text())
    found = {
        target.id: ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {found["attribute_map"][key]: kind for key, kind in found["openapi_types"].items()}


def hold(value, kind, where):
    if kind.startswith("list["):
        for n, each in enumerate(value):
            hold(each, kind[5:-1], f"{where}[{n}]")
    elif re.match(r"V1(alpha|beta)", kind):
        fields = kserve_fields(kind)
        for key, below in value.items():
            assert key in fields, f"{where}.{key}"
            hold(below, fields[key], f"{where}.{key}")
    elif kind in ("str", "int", "bool"):
        assert type(value).__name__ == kind, where


def test_kserve_accepts_the_runtime_and_the_service():
    if not (SCHEMAS / "kserve").exists():
        pytest.skip("KServe's models are not here: make build/schemas/kserve")
    for file, model in (
        ("runtime", "V1alpha1ClusterServingRuntime"),
        ("inference-service", "V1beta1InferenceService"),
    ):
        hold(yaml.safe_load((DEPLOY / "kserve" / f"{file}.yaml").read_text()), model, file)


def test_kserve_pods_are_valid_and_the_service_names_the_runtime():
    runtime = yaml.safe_load((DEPLOY / "kserve" / "runtime.yaml").read_text())
    spec = {key: runtime["spec"][key] for key in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    kubernetes_validate.validate(pod, KUBERNETES[1], strict=True)
    model = yaml.safe_load((DEPLOY / "kserve" / "inference-service.yaml").read_text())["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert model["modelFormat"]["name"] == runtime["spec"]["supportedModelFormats"][0]["name"]


def test_pods_run_unprivileged_and_write_only_to_volumes():
    assert {kind for kind, _ in pod_specs("full")} == {"Deployment", "StatefulSet", "CronJob"}
    for spec in [*pod_specs("plain").values(), *pod_specs("full").values()]:
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["automountServiceAccountToken"] is False
        for container in containers(spec):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert "latest" not in container["image"]


def test_pod_has_time_to_drain():
    (spec,) = [d["spec"]["template"]["spec"] for d in rendered("plain") if d["kind"] == "Deployment"]
    environment = {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}
    (_, stop_s) = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    drain_s = int(environment["FRESHET_DRAIN_S"]) + int(environment["FRESHET_SHUTDOWN_TIMEOUT_S"])
    assert spec["terminationGracePeriodSeconds"] >= int(stop_s) + drain_s + 15
    runtime = yaml.safe_load((DEPLOY / "kserve" / "runtime.yaml").read_text())
    kserve = {e["name"]: e["value"] for e in runtime["spec"]["containers"][0]["env"]}
    service = yaml.safe_load((DEPLOY / "kserve" / "inference-service.yaml").read_text())
    drain_s = int(kserve["FRESHET_DRAIN_S"]) + int(kserve["FRESHET_SHUTDOWN_TIMEOUT_S"])
    assert service["spec"]["predictor"]["terminationGracePeriodSeconds"] > drain_s
    unit = UNIT.read_text()
    asked = [int(value) for value in re.findall(r"FRESHET_(?:DRAIN|SHUTDOWN_TIMEOUT)_S=(\d+)", unit)]
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > sum(asked) > 0


def test_every_written_path_is_on_a_volume():
    for spec in [*pod_specs("plain").values(), *pod_specs("full").values()]:
        for container in spec["containers"]:
            mounts = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
            environment = {e["name"]: e.get("value") or "" for e in container["env"]}
            written = ("HOME", "FRESHET_MIRROR", "FRESHET_TRUST_MEMORY")
            paths = [environment[name] for name in written if name in environment]
            assert len(paths) >= 1
            for path in paths:
                assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts), path
            if "FRESHET_TRUST" in environment:
                assert "FRESHET_TRUST_MEMORY" in environment


def test_startup_probe_waits_for_the_models_as_the_page_says():
    page = " ".join((ROOT / "docs" / "how-to" / "models.md").read_text().split())
    assert "a startup probe on `/v2/health/ready`" in page
    for name in ("plain", "full"):
        (server,) = pod_specs(name)["Deployment", "prod-freshet"]["containers"]
        assert server["startupProbe"]["httpGet"]["path"] == "/v2/health/ready"
        assert server["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
        environment = {e["name"]: e.get("value") for e in server["env"]}
        assert environment["FRESHET_MODELS"]


def test_trainers_have_an_account_and_credentials_of_their_own():
    accounts = {d["metadata"]["name"]: d["metadata"] for d in rendered("full") if d["kind"] == "ServiceAccount"}
    pods = pod_specs("full")
    serving = pods.pop(("Deployment", "prod-freshet"))
    assert serving["serviceAccountName"] == "prod-freshet"
    secrets = {source["secretRef"]["name"] for source in serving["containers"][0]["envFrom"]}
    assert secrets == {"models-bucket", "features"}
    for spec in pods.values():
        assert spec["serviceAccountName"] == "prod-freshet-trainer"
        assert "models-bucket" not in {source["secretRef"]["name"] for source in spec["containers"][0]["envFrom"]}
    assert accounts["prod-freshet"]["annotations"] != accounts["prod-freshet-trainer"]["annotations"]


def test_headless_service_has_the_grpc_port_and_is_not_scraped():
    for name in ("plain", "full"):
        services = {d["metadata"]["name"]: d for d in rendered(name) if d["kind"] == "Service"}
        headless = services["prod-freshet-headless"]
        assert headless["spec"]["clusterIP"] == "None"
        assert not headless["spec"].get("publishNotReadyAddresses")
        assert {port["name"]: port["port"] for port in headless["spec"]["ports"]} == {"http": 8501, "grpc": 8500}
        assert headless["spec"]["selector"] == services["prod-freshet"]["spec"]["selector"]
        assert "app.kubernetes.io/component" not in headless["metadata"]["labels"]


def test_extra_volumes_are_mounted_where_training_and_serving_run():
    for spec in pod_specs("full").values():
        assert {"name": "ca", "configMap": {"name": "company-ca"}} in spec["volumes"]
        (container,) = spec["containers"]
        assert {"name": "ca", "mountPath": "/etc/ssl/company", "readOnly": True} in container["volumeMounts"]


def test_nightly_run_is_alone_bounded_and_not_repeated_after_a_refusal():
    (job,) = [d["spec"] for d in rendered("full") if d["kind"] == "CronJob"]
    assert job["concurrencyPolicy"] == "Forbid"
    run = job["jobTemplate"]["spec"]
    assert run["activeDeadlineSeconds"] > 0
    refused = run["podFailurePolicy"]["rules"][0]
    assert (refused["action"], refused["onExitCodes"]["values"]) == ("FailJob", [3])
    pod = run["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["containers"][0]["name"] == refused["onExitCodes"]["containerName"]
    assert pod["containers"][0]["args"][-2:] == ["--new-version", "--from-scratch"]


def test_mirror_on_node_disk_is_limited_below_its_volume():
    (spec,) = [d["spec"]["template"]["spec"] for d in rendered("plain") if d["kind"] == "Deployment"]
    environment = {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}
    (volume,) = [v for v in spec["volumes"] if v["name"] == "mirror"]
    size = int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi")) << 30
    assert 0 < int(environment["FRESHET_MIRROR_BYTES"]) <= 0.7 * size


def test_integers_are_rendered_without_exponents():
    (spec,) = [d["spec"]["template"]["spec"] for d in rendered("full") if d["kind"] == "Deployment"]
    environment = {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}
    assert environment["FRESHET_MAX_BODY_BYTES"] == "134217728"
    assert environment["FRESHET_MAX_STALENESS_S"] == "30"


def test_probes_and_scrapes_use_the_configured_keys_and_certificates():
    (spec,) = [d["spec"]["template"]["spec"] for d in rendered("full") if d["kind"] == "Deployment"]
    (server,) = spec["containers"]
    assert {server[probe]["httpGet"]["scheme"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "HTTPS"
    }
    mounted = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    files = {e["name"]: e["value"] for e in server["env"] if e["name"].startswith(("FRESHET_TLS", "FRESHET_API"))}
    assert {path.rpartition("/")[0] for path in files.values()} == {mounted["tls"], mounted["access"]}
    # The group of the pod's user reads them, and nobody else.
    assert {v["secret"]["defaultMode"] for v in spec["volumes"] if v["name"] in ("tls", "access")} == {0o440}
    (monitor,) = [d for d in rendered("full") if d["kind"] == "ServiceMonitor"]
    (scraped,) = monitor["spec"]["endpoints"]
    assert (scraped["scheme"], scraped["authorization"]["credentials"]["name"]) == ("https", "freshet-scrape")
    assert "scheme" not in (RENDERED / "plain.yaml").read_text()


def test_scrapers_may_reach_the_data_port():
    (policy,) = [d for d in rendered("full") if d["kind"] == "NetworkPolicy"]
    names = [peer for rule in policy["spec"]["ingress"] if {"port": "http"} in rule["ports"] for peer in rule["from"]]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}} in names


def test_admin_port_is_closed_to_other_pods_without_a_token():
    text = (RENDERED / "plain.yaml").read_text()
    assert "FRESHET_ADMIN_HOST" not in text
    assert "name: admin" not in text


def test_chart_uses_the_repository_alerts_and_dashboard():
    by_kind = {(d["kind"], d["metadata"]["name"]): d for d in rendered("full")}
    alerts = yaml.safe_load((ROOT / "docs" / "reference" / "alerts.yml").read_text())
    assert by_kind["PrometheusRule", "prod-freshet"]["spec"] == alerts
    board = json.loads((DEPLOY / "grafana" / "freshet.json").read_text())
    assert json.loads(by_kind["ConfigMap", "prod-freshet-dashboard"]["data"]["freshet.json"]) == board


def test_autoscaler_uses_the_metric_of_the_adapter():
    (rule,) = yaml.safe_load((CHART / "files" / "adapter-rule.yaml").read_text())
    (scaler,) = [d for d in rendered("full") if d["kind"] == "HorizontalPodAutoscaler"]
    assert scaler["spec"]["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"]
    known = known_metrics()
    assert set(re.findall(r"freshet_\w+_(?:total|seconds)", rule["metricsQuery"])) - known == set()


def test_every_option_set_by_the_chart_exists():
    known = {f"FRESHET_{field.name.upper()}" for field in dataclasses.fields(ServeConfig)} | OF_PUBLISHERS
    known |= {"FRESHET_CONFIG"}
    files = [*CHART.glob("templates/*"), *DEPLOY.glob("*/*.y*ml"), *DEPLOY.glob("helm/rendered/*.yaml"), UNIT]
    named = {name for file in files for name in re.findall(r"FRESHET_[A-Z_]*[A-Z]\b(?!%)", file.read_text())}
    assert "FRESHET_REPOSITORY" in named
    # Of `trust` and the keys: docs/how-to/kubernetes.md.
    assert named - known - {"FRESHET_KAFKA_PROPERTIES"} <= {"FRESHET_TRUST", "FRESHET_MIRROR_BYTES"}


def known_metrics():
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    known = set()
    for pattern in re.findall(r"`(freshet_[a-z_{},]+)`", page):
        before, _, rest = pattern.partition("{")
        middles, _, after = rest.partition("}")
        known |= {before + middle + after for middle in middles.split(",")} if rest else {pattern}
    known |= {f"{name}_{part}" for name in list(known) for part in ("bucket", "sum", "count")}
    return known | {"process_resident_memory_bytes", "process_cpu_seconds_total"}


def test_every_dashboard_metric_is_documented():
    board = json.loads((DEPLOY / "grafana" / "freshet.json").read_text())
    queries = [t["expr"] for panel in board["panels"] for t in panel.get("targets", ())]
    named = {name for query in queries for name in re.findall(r"\b(?:freshet|process)_[a-z_]+", query)}
    assert len(named) > 20
    assert named - known_metrics() == set()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("values", [CHART / "values.yaml", RENDERED / "full-values.yaml"], ids=["plain", "full"])
def test_chart_values_match_their_schema(values):
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(values.read_text()), schema, jsonschema.Draft7Validator)


def test_unknown_chart_value_is_refused():
    schema = json.loads((CHART / "values.schema.json").read_text())
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate({"replica": 3}, schema, jsonschema.Draft7Validator)


def test_compose_file_matches_its_specification():
    if not TOOLS.exists():
        pytest.skip("what checks it is not here: make .venv/.tools")
    command = [TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_file_mounts_existing_files_and_opens_only_loopback():
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for service in services.values():
        assert service["image"].partition(":")[0] in IMAGES
        for volume in service.get("volumes", ()):
            if volume.startswith("."):
                assert (COMPOSE.parent / volume.split(":")[0]).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_systemd_accepts_the_unit():
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here")
    done = subprocess.run(["systemd-analyze", "verify", UNIT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


@pytest.mark.long
def test_go_renders_the_committed_chart_output(tmp_path):
    sources = Path("/usr/share/gocode/src")
    needed = (sources / "github.com/Masterminds/sprig", sources / "sigs.k8s.io/yaml")
    if shutil.which("go") is None or not all(path.exists() for path in needed):
        pytest.skip("Debian's golang-go, golang-github-masterminds-sprig-dev, golang-k8s-sigs-yaml-dev are not here")
    go = os.environ | {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": str(tmp_path / "cache")}
    source = DEPLOY / "helm" / "render" / "render_chart.go"
    subprocess.run(["go", "build", "-o", tmp_path / "render", source], env=go, check=True, timeout=300)
    for name in ("plain", "full"):
        command = [tmp_path / "render", CHART, "prod", RENDERED / f"{name}-values.yaml"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout == (RENDERED / f"{name}.yaml").read_text()
    empty = tmp_path / "empty.yaml"
    empty.write_text("readyWhenEmpty: true")
    done = subprocess.run([tmp_path / "render", CHART, "prod", empty], capture_output=True, text=True, timeout=60)
    assert '{name: FRESHET_READY_WHEN_EMPTY, value: "true"}' in done.stdout, done.stderr
    for values, line in (
        ("models: []", "models: name what is served"),
        ("models: [ctr]\nreadyWhenEmpty: true", "or set readyWhenEmpty in their place"),
        ("trust: {secret: keys}", "trust: secret and files"),
        ("trust: {files: [prod.pub]}", "trust: secret and files"),
        ("mirror: {bytes: 0}", "mirror.bytes"),
        ("access: {keysSecret: keys}\nmetrics: {serviceMonitor: true}", "access.scrapeKeySecret"),
        ("repository: {claim: models}\ntrainer: {enabled: true, config: x}", "trainer: wants a bucket"),
        ("repository: {claim: models}\nretrain: {enabled: true, config: x}", "retrain: wants a bucket"),
        ("retrain: {enabled: true}", "retrain.config"),
        ("metrics: {serviceMonitor: true}\nnetworkPolicy: {clients: [{}]}", "networkPolicy.scrapers"),
    ):
        (tmp_path / "values.yaml").write_text(values if "models:" in values else f"models: [ctr]\n{values}")
        command = [tmp_path / "render", CHART, "prod", tmp_path / "values.yaml"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode != 0, line in done.stderr) == (True, True), done.stderr
