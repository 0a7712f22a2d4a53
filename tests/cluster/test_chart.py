"""The Helm chart: Helm renders it, Kubernetes' schemas accept it, and values that would not work are refused."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.requirements import requirement
from tests.support.chart import USUAL, rendered
from tests.tools.obtain import python_with

EVERYTHING = (
    *USUAL[2:],
    "keys=k",
    "config.gateway.port=8080",
    "redis.enabled=true",
    "redis.password=pw",
    "serviceMonitor.enabled=true",
    "autoscaling.sessions=200",
    "sandboxNetwork=true",
)
VALIDATE = """
import sys, yaml, kubernetes_validate
for part in yaml.safe_load_all(open(sys.argv[1])):
    kubernetes_validate.validate(part, "1.36", strict=True)
    print(part["kind"])
"""


@requirement("ops.deploy")
@pytest.mark.parametrize("values", [USUAL, EVERYTHING], ids=["usual", "everything"])
def test_kubernetes_schemas_accept_the_chart(values: tuple[str, ...], tmp_path: Path) -> None:
    # The schema of ServiceMonitor is the Prometheus operator's, not Kubernetes'.
    parts = [part for part in rendered(*values) if part["kind"] != "ServiceMonitor"]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(parts), encoding="utf-8")
    python = python_with({"kubernetes-validate": "==1.37.0"})
    done = subprocess.run([python, "-c", VALIDATE, tmp_path / "all.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [part["kind"] for part in parts]


@requirement("ops.deploy")
def test_what_is_switched_on_is_in_the_chart() -> None:
    parts = {(part["kind"], part["metadata"]["name"]): part for part in rendered(*EVERYTHING)}
    name = "mcp-session-gateway"
    assert ("ServiceMonitor", name) in parts and ("StatefulSet", f"{name}-redis") in parts
    assert parts["Secret", name]["stringData"]["store"] == f"redis://:pw@{name}-redis:6379/0"
    metrics = parts["HorizontalPodAutoscaler", name]["spec"]["metrics"]
    assert [metric["type"] for metric in metrics] == ["Resource", "Pods"]
    container = parts["Deployment", name]["spec"]["template"]["spec"]["containers"][0]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE"]}


@requirement("ops.deploy")
@pytest.mark.parametrize(
    ("values", "word"),
    [
        (USUAL[:2], "allowedHosts"),
        ((*USUAL, "replica=3"), "replica"),
        (USUAL[1:], "existingSecret"),
        ((USUAL[0], *USUAL[2:]), "existingConfig"),
    ],
)
def test_values_that_would_not_work_are_refused(values: tuple[str, ...], word: str) -> None:
    with pytest.raises(RuntimeError, match=word):
        rendered(*values)
