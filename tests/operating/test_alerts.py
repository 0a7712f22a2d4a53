"""The alert rules and the dashboard we ship, in a real Prometheus, while things go wrong."""

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.operating.conftest import ADMIN, SERVERS
from tests.requirements import requirement
from tests.support.free_ports import free_port
from tests.support.gateway_process import ROOT, operators_of, replicas
from tests.support.mcp_clients import Legacy
from tests.support.redis_server import running_redis
from tests.support.waiting import eventually
from tests.tools.programs import program

SHIPPED = ROOT / "deploy/prometheus"
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text(encoding="utf-8"))


def test_the_rules_are_good() -> None:
    program("prometheus", "prometheus")
    tool = program("promtool", "prometheus")
    for command in (("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml")):
        ran = subprocess.run([tool, *command], cwd=SHIPPED, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    rules = yaml.safe_load((SHIPPED / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert all(rule["annotations"]["summary"] and rule["annotations"]["description"] for rule in rules)


STARTS = 'mcp_gateway_server_starts_total{server="s",outcome="%s"}'
SESSIONS, WITHOUT = "mcp_gateway_sessions", "mcp_gateway_sessions_without_workspace"


@requirement("ops.health")
@pytest.mark.parametrize(
    ("alert", "series", "fires"),
    [
        ("GatewayServerNeverStarts", {STARTS % "failed": "0+1x20"}, True),
        ("GatewayServerNeverStarts", {STARTS % "failed": "0+1x20", STARTS % "started": "0+1x20"}, False),
        ("GatewayServerNeverStarts", {STARTS % "failed": "0+0x20"}, False),
        ("GatewaySessionsWithoutContext", {SESSIONS: "10x30", WITHOUT: "2x30"}, True),
        ("GatewaySessionsWithoutContext", {SESSIONS: "10x30", WITHOUT: "10x30"}, False),
        ("GatewayMemoryShort", {"mcp_gateway_memory_short": "0x9 1x11"}, True),
        ("GatewayMemoryShort", {"mcp_gateway_memory_short": "1x9 0x11"}, False),
        ("GatewaySessionsWithoutContext", {SESSIONS: "0x30", WITHOUT: "0x30"}, False),
        ("GatewayConfigurationOutdated", {"mcp_gateway_configuration_outdated": "0x2 1x18"}, True),
        ("GatewayConfigurationOutdated", {"mcp_gateway_configuration_outdated": "1x15 0x5"}, False),
    ],
)
def test_an_alert_fires_while_its_metrics_say_so_and_not_otherwise(
    alert: str, series: dict[str, str], fires: bool, tmp_path: Path
) -> None:
    program("prometheus", "prometheus")
    given = [{"series": name, "values": values} for name, values in series.items()]
    ran = []
    for expected in (True, False):  # promtool compares all labels and annotations of an alert, which are not the matter
        query = {"expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)', "eval_time": "20m"}
        check = query | {"exp_samples": [{"labels": "{}", "value": int(expected)}]}
        tests = {
            "rule_files": [str(SHIPPED / "alerts.yml")],
            "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": [check]}],
        }
        (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests), encoding="utf-8")
        tool = program("promtool", "prometheus")
        command: list[str | Path] = [tool, "test", "rules", str(tmp_path / "tests.yml")]
        ran.append(subprocess.run(command, capture_output=True, check=False).returncode == 0)
    assert ran == [fires, not fires]


@contextlib.contextmanager
def prometheus(targets: list[str]) -> Iterator[str]:
    """Prometheus with the configuration we ship, but for where the gateways are and how often it looks; its URL."""
    config = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = targets
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        (folder / "alerts.yml").write_bytes((SHIPPED / "alerts.yml").read_bytes())
        listen = [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder}/data"]
        process = subprocess.Popen(
            [
                program("prometheus", "prometheus"),
                f"--config.file={folder}/prometheus.yml",
                *listen,
                "--log.level=error",
            ]
        )
        try:
            url = f"http://127.0.0.1:{port}"
            assert eventually(lambda: _answers(f"{url}/-/ready"))
            yield url
        finally:
            process.terminate()
            process.wait(10)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.HTTPError:
        return False


def firing(url: str) -> set[str]:
    alerts = httpx.get(f"{url}/api/v1/alerts").json()["data"]["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def found(url: str, query: str) -> list[Any]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    return list(answer["data"]["result"])


@requirement("ops.health")
@pytest.mark.timeout(180)
def test_alerts_fire_while_gateways_store_and_servers_fail_and_the_dashboard_shows_it(http: httpx.Client) -> None:
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        gateways = stack.enter_context(replicas(redis.url, SERVERS, 3, admin=ADMIN | {"listen": "127.0.0.1:0"}))
        url = stack.enter_context(prometheus([operators_of(gateway).removeprefix("http://") for gateway in gateways]))
        client = Legacy(f"{gateways[0].base}/servers/probe/mcp", http).open()
        assert eventually(lambda: len(found(url, "up == 1")) == 3)
        until = time.monotonic() + 4
        while time.monotonic() < until:
            client.tool("pid")
            client.url = f"{gateways[int(time.monotonic()) % 2].base}/servers/probe/mcp"
        assert firing(url) == set(), "all is well"
        _every_panel_has_data(url)
        for _ in range(8):
            client.tool("crash")
        assert eventually(lambda: firing(url) == {"GatewayServerCrashes"}), firing(url)
        gateways[2].kill()
        redis.freeze()
        assert eventually(lambda: firing(url) >= {"GatewayDown", "GatewayStoreDown"}), firing(url)
        redis.thaw()
        assert eventually(lambda: "GatewayStoreDown" not in firing(url)), firing(url)


def _every_panel_has_data(url: str) -> None:
    """Each query of the dashboard finds something, but for those of what has not happened."""
    quiet = {"Restarts", "Failures by server"}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "15s")
            assert found(url, query) or panel["title"] in quiet, (panel["title"], query)
