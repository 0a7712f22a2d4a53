"""The Helm chart: Helm renders it, Kubernetes' schemas accept it, and values that would not work are refused."""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import redis
import yaml

from tests.requirements import requirement
from tests.support.chart import USUAL, rendered
from tests.support.free_ports import free_port
from tests.support.gateway_process import ROOT
from tests.support.waiting import eventually
from tests.tools.obtain import python_with
from tests.tools.programs import program

pytestmark = requirement("ops.deploy")

NAME = "mcp-session-gateway"
SERVICE_MONITOR = ROOT / "tests/support/service_monitor.schema.json"

EVERYTHING = (
    *USUAL[2:],
    "keys=k",
    "config.gateway.port=8080",
    "redis.enabled=true",
    "redis.password=pw",
    "serviceMonitor.enabled=true",
    "serviceMonitor.labels.release=prometheus",
    "imagePullSecrets={registry}",
    "nodeSelector.pool=servers",
    "tolerations[0].key=servers",
    "autoscaling.sessions=200",
    "sandboxNetwork=true",
)
VALIDATE = """
import sys, yaml, kubernetes_validate
for part in yaml.safe_load_all(open(sys.argv[1])):
    kubernetes_validate.validate(part, "1.36", strict=True)
    print(part["kind"])
"""


@pytest.mark.parametrize("values", [USUAL, EVERYTHING], ids=["usual", "everything"])
def test_kubernetes_schemas_accept_the_chart(values: tuple[str, ...], tmp_path: Path) -> None:
    # The schema of ServiceMonitor is the Prometheus operator's, not Kubernetes'.
    parts = [part for part in rendered(*values) if part["kind"] != "ServiceMonitor"]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(parts), encoding="utf-8")
    python = python_with({"kubernetes-validate": "==1.37.0"})
    done = subprocess.run([python, "-c", VALIDATE, tmp_path / "all.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [part["kind"] for part in parts]


def test_what_is_switched_on_is_in_the_chart() -> None:
    parts = everything()
    assert ("ServiceMonitor", NAME) in parts and ("StatefulSet", f"{NAME}-redis") in parts
    assert parts["Secret", NAME]["stringData"]["store"] == f"redis://:pw@{NAME}-redis:6379/0"
    metrics = parts["HorizontalPodAutoscaler", NAME]["spec"]["metrics"]
    assert [metric["type"] for metric in metrics] == ["Resource", "Pods"]
    pod = parts["Deployment", NAME]["spec"]["template"]["spec"]
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE"]}
    assert pod["nodeSelector"] == {"pool": "servers"} and pod["tolerations"] == [{"key": "servers"}]
    for each in (pod, parts["StatefulSet", f"{NAME}-redis"]["spec"]["template"]["spec"]):
        assert each["imagePullSecrets"] == [{"name": "registry"}]


@cache
def everything() -> dict[tuple[str, str], dict[str, Any]]:
    """Kind and name → manifest, with everything switched on."""
    return {(part["kind"], part["metadata"]["name"]): part for part in rendered(*EVERYTHING)}


def test_the_prometheus_operator_accepts_the_service_monitor() -> None:
    schema = jsonschema_rs.validator_for(json.loads(SERVICE_MONITOR.read_text(encoding="utf-8")))
    monitor = everything()["ServiceMonitor", NAME]
    schema.validate(monitor)
    assert monitor["metadata"]["labels"] == {"release": "prometheus"}
    for wrong in ({"interval": "often"}, {"ports": "operators"}):
        assert not schema.is_valid(monitor | {"spec": monitor["spec"] | {"endpoints": [wrong]}})


def test_the_alert_rules_find_the_job_of_the_service_monitor() -> None:
    parts = everything()
    monitor, service = parts["ServiceMonitor", NAME]["spec"], parts["Service", f"{NAME}-operators"]
    labels = service["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert {end["port"] for end in monitor["endpoints"]} <= {port["name"] for port in service["spec"]["ports"]}
    files = ("prometheus/alerts.yml", "grafana/dashboard.json")
    jobs = {
        job for file in files for job in re.findall(r'job=\\?"([^"\\]+)', (ROOT / "deploy" / file).read_text("utf-8"))
    }
    assert jobs == {labels[monitor["jobLabel"]]}, "else the job is the name of the service"
    scraped = parts["Deployment", NAME]["spec"]["template"]["metadata"]["annotations"]
    assert not any(name.startswith("prometheus.io/") for name in scraped), "it would be scraped twice"


def test_nodes_can_be_emptied_even_of_the_only_pod() -> None:
    parts = {part["kind"]: part for part in rendered(*USUAL, "replicas=1")}
    budget = parts["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] >= 1 and "minAvailable" not in budget
    [spread] = parts["Deployment"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == budget["selector"] == parts["Deployment"]["spec"]["selector"]


@contextlib.contextmanager
def redis_of_the_chart(folder: Path, password: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command of the chart's Redis as a process, with a folder of this machine in the place of its volume."""
    container = everything()["StatefulSet", f"{NAME}-redis"]["spec"]["template"]["spec"]["containers"][0]
    port = free_port()
    script = container["command"][2].replace("--dir /data", f"--dir {folder} --port {port} --loglevel warning")
    path = f"{program('redis-server', 'redis-server').parent}{os.pathsep}{os.environ['PATH']}"
    command = [*container["command"][:2], script]
    process = subprocess.Popen(command, env={"PATH": path, "REDISCLI_AUTH": password}, stdout=subprocess.DEVNULL)
    try:
        yield process, port
    finally:
        process.kill()
        process.wait(10)


def test_redis_of_the_chart_asks_for_its_password_and_ends_in_order(tmp_path: Path) -> None:
    password = "a$(touch${IFS}x)`y`$HOME"
    with redis_of_the_chart(tmp_path, password) as (process, port):

        def answers() -> bool:
            with contextlib.suppress(redis.ConnectionError):
                return bool(redis.Redis(port=port, password=password).set("kept", "1"))
            return False

        assert eventually(answers) and not (tmp_path / "x").exists()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port).ping()
        process.terminate()
        assert process.wait(20) == 0, "the first process of the container gets the signal, and it is Redis"
    with redis_of_the_chart(tmp_path, password) as (process, port):
        assert eventually(answers)


def test_redis_of_the_chart_is_that_of_the_compose_file() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    container = everything()["StatefulSet", f"{NAME}-redis"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == compose["services"]["redis"]["image"]


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
