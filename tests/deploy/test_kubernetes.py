"""Test that the manifests for Kubernetes and the Helm chart are valid and agree with the broker's configuration.

Every manifest is checked strictly against Kubernetes' own schemas. These do not include ServiceMonitor, which belongs
to the Prometheus operator, so the tests check only the references in it.
"""

import json
import re
from pathlib import Path
from typing import Any

import chart
import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from hookmq.cli.check import report, validate
from hookmq.config.model import Config, loads
from workspace import ROOT

VERSIONS = ("1.29", "1.37")
"""The oldest and the newest version that the manifests are checked against."""
Manifests = dict[tuple[str, str], dict[str, Any]]
MORE: dict[str, Any] = {
    "tls": {"existingSecret": "broker-tls"},
    "users": {"existingSecret": "broker-users"},
    "secrets": ["webhook"],
    "imagePullSecrets": [{"name": "registry"}],
    "config": {
        "authz": {"default": "allow"},
        "broker": {"max_connections": 5000},
        "session": {"max_inflight": 20},
        "plugins": [{"use": "sys_topics", "config": {"interval": "30s"}}],
    },
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    "persistence": {"storageClass": "fast"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "mqtt", "operator": "Exists"}],
}


def manifests(text: str) -> Manifests:
    found = [one for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def check(found: Manifests) -> None:
    """Check manifests against the schemas, and check all references to other objects."""
    for (kind, _), one in found.items():
        for version in VERSIONS if kind != "ServiceMonitor" else ():
            kubernetes_validate.validate(one, version, strict=True)
    pod_of = found["StatefulSet", "hookmq"]["spec"]["template"]
    pod = pod_of["spec"]
    [container] = pod["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    for (kind, _), one in found.items():
        if kind == "Service":
            assert one["spec"]["selector"].items() <= pod_of["metadata"]["labels"].items()
            for port in one["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]
    volumes = {one["name"] for one in pod["volumes"]} | {"data"}
    assert {one["name"] for one in container["volumeMounts"]} == volumes
    config = configuration(found)
    bound = {int(listener.bind.rpartition(":")[2]): listener for listener in config.listeners}
    assert set(bound) == set(ports.values())
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container[probe]["httpGet"]
        listener = bound[ports[get["port"]]]
        assert get["path"] in ("/healthz", "/readyz")
        assert listener.http.public_health
        assert listener.http.token
    assert "plugin storage in" in report(config, validate(config, "asyncio"))
    assert pod["terminationGracePeriodSeconds"] > config.broker.shutdown_timeout
    for policy in (one for (kind, _), one in found.items() if kind == "NetworkPolicy"):
        allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert allowed == set(ports)
        [metrics] = [r for r in policy["spec"]["ingress"] if r["ports"][0]["port"] == "metrics"]
        assert metrics["from"]


def configuration(found: Manifests) -> Config:
    """Return the broker's configuration and the files from the Secrets that the pod mounts."""
    pod = found["StatefulSet", "hookmq"]["spec"]["template"]["spec"]
    mounts = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    text = found["ConfigMap", "hookmq"]["data"]["hookmq.yaml"]
    for path in re.findall(r"/(?:etc|var/lib)/hookmq[\w./-]*", text):
        assert any(path.startswith(mount) for mount in mounts), path
    return loads(text.replace("/etc/hookmq", str(FOLDER)), "hookmq.yaml", folder=FOLDER)


FOLDER = Path()
"""The folder that contains the files from the Secrets."""


@pytest.fixture(autouse=True, scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> None:
    import trustme

    global FOLDER
    FOLDER = tmp_path_factory.mktemp("secrets")
    for name in ("metrics", "users", "tls"):
        (FOLDER / name).mkdir()
    (FOLDER / "metrics/token").write_text("secret-token-of-the-test\n")
    (FOLDER / "users/users.yaml").write_text("version: 1\nusers: {}\n")
    made = trustme.CA().issue_cert("localhost")
    made.cert_chain_pems[0].write_to_path(FOLDER / "tls/tls.crt")
    made.private_key_pem.write_to_path(FOLDER / "tls/tls.key")


def committed() -> Manifests:
    return manifests("\n---\n".join((chart.PLAIN / name).read_text() for name in chart.FILES))


def test_the_manifests_are_right() -> None:
    found = committed()
    kinds = {"ConfigMap", "NetworkPolicy", "Service", "StatefulSet", "ServiceMonitor"}
    assert {kind for kind, _ in found} == kinds
    check(found)


def test_prometheus_finds_the_metrics() -> None:
    found = committed()
    monitor = found["ServiceMonitor", "hookmq"]["spec"]
    wanted = monitor["selector"]["matchLabels"]
    [service] = [
        one
        for (kind, _), one in found.items()
        if kind == "Service" and wanted.items() <= one["metadata"]["labels"].items()
    ]
    [endpoint] = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    pod = found["StatefulSet", "hookmq"]["spec"]["template"]["spec"]
    [volume] = [one for one in pod["volumes"] if one["name"] == "metrics"]
    assert endpoint["authorization"]["credentials"]["name"] == volume["secret"]["secretName"]


def test_the_pod_has_no_rights_it_does_not_need() -> None:
    pod = committed()["StatefulSet", "hookmq"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    assert f"--uid {pod['securityContext']['runAsUser']} " in dockerfile


def test_the_manifests_are_those_of_the_chart() -> None:
    """If this fails, run `python tools/chart.py`."""
    for name in chart.FILES:
        assert chart.digest() in (chart.PLAIN / name).read_text().splitlines()[0]


def test_the_chart_is_complete() -> None:
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert {"apiVersion", "name", "version", "appVersion", "type", "description"} <= about.keys()
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema)
    jsonschema.validate(values | MORE | {"metrics": values["metrics"]}, schema)
    assert values.keys() == schema["properties"].keys() - {"global"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values | {"replicas": 2}, schema)


@pytest.mark.slow
@pytest.mark.skipif(not chart.available(), reason="Go and sprig are not installed")
@pytest.mark.parametrize("values", [{}, MORE, {"networkPolicy": {"enabled": False}}])
def test_the_chart_renders(tmp_path: Path, values: dict[str, Any]) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    text, notes = chart.render(tmp_path / "values.yaml")
    found = manifests(text)
    check(found)
    assert (("ServiceMonitor", "hookmq") in found) == ("metrics" in values)
    assert (("NetworkPolicy", "hookmq") in found) == (
        "enabled" not in values.get("networkPolicy", {})
    )
    assert ("No client can connect yet" in notes) == ("users" not in values)
    if values is MORE:
        config = configuration(found)
        assert config.broker.max_connections == 5000
        assert [entry.use for entry in config.plugins] == ["storage", "auth_password", "sys_topics"]


@pytest.mark.slow
@pytest.mark.skipif(not chart.available(), reason="Go and sprig are not installed")
def test_without_peers_nobody_reads_the_metrics(tmp_path: Path) -> None:
    """Without peers, the NetworkPolicy must not contain an empty list of peers, because that would let everyone in."""
    (tmp_path / "values.yaml").write_text("networkPolicy: {monitoring: []}")
    text, _ = chart.render(tmp_path / "values.yaml")
    policy = manifests(text)["NetworkPolicy", "hookmq"]
    kubernetes_validate.validate(policy, VERSIONS[0], strict=True)
    open_ports = {one["port"] for rule in policy["spec"]["ingress"] for one in rule["ports"]}
    assert open_ports == {"mqtt", "ws"}


@pytest.mark.slow
@pytest.mark.skipif(not chart.available(), reason="Go and sprig are not installed")
def test_the_files_are_what_the_chart_renders() -> None:
    assert chart.plain() == {name: (chart.PLAIN / name).read_text() for name in chart.FILES}
