"""The topology of docker-compose.yml behind a real load balancer, with SDK clients of both eras."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from mcp import Client

from gateway.config.settings import load
from gateway.serving.drain import HAND_OVER_S
from gateway.serving.paths import HEALTH, READY
from gateway.serving.uvicorn_server import DRAIN_TIMEOUT_S
from tests.requirements import requirement
from tests.support.chart import usual
from tests.support.compose_topology import Topology, running_topology
from tests.support.gateway_process import DEMO, ROOT, server

SESSIONS, CALLS = 60, 12
AT_ONCE = 30


@pytest.fixture(scope="module")
def topology() -> Iterator[Topology]:
    with running_topology({"demo": server(DEMO)}) as running:
        yield running


@requirement("rep.any", "ops.deploy")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_sdk_clients_behind_round_robin_each_keep_their_session(topology: Topology, mode: Any) -> None:
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one() -> tuple[str, list[str]]:
        async with at_once, Client(topology.url, mode=mode) as client:
            counts = [text(await client.call_tool("count", {})) for _ in range(CALLS)]
            return json.loads(text(await client.call_tool("whoami", {})))["session_id"], counts

    async def all_of_them() -> list[tuple[str, list[str]]]:
        return await asyncio.gather(*(one() for _ in range(SESSIONS)))

    outcomes = asyncio.run(all_of_them())
    assert len({session for session, _ in outcomes}) == SESSIONS
    assert {tuple(counts) for _, counts in outcomes} == {tuple(str(n) for n in range(1, CALLS + 1))}


def text(result: Any) -> str:
    assert not result.is_error, result
    return str(result.content[0].text)


@requirement("ops.deploy")
def test_the_compose_file_starts_this_topology() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services = {name for name, service in compose["services"].items() if "profiles" not in service}
    assert services == {"secrets", "redis", "gateway1", "gateway2", "gateway3", "balancer"}
    beside = {name for name, service in compose["services"].items() if service.get("profiles") == ["observe"]}
    assert beside == {"prometheus", "grafana", "jaeger"}
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            assert not volume.startswith("./") or (ROOT / volume.partition(":")[0]).exists(), volume
    assert (ROOT / compose["services"]["secrets"]["build"]["dockerfile"]).exists()
    balancer = compose["services"]["balancer"]
    config = (ROOT / "deploy/haproxy.cfg").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)\}", config)) == set(balancer["environment"])
    for name in ("gateway1", "gateway2", "gateway3"):
        service = compose["services"][name]
        assert service["environment"]["MCP_GATEWAY_ADVERTISE"] == f"{name}.internal:9000"
        assert service["networks"]["store"]["aliases"] == [f"{name}.internal"]
        assert service["image"] == compose["services"]["secrets"]["image"], "which one service builds"
    dockerfile = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    for source in re.findall(r"^COPY (.+) /src", dockerfile, re.MULTILINE):
        assert all((ROOT / path).exists() for path in source.split())
    assert "USER gateway" in dockerfile and "tini" in dockerfile and "HEALTHCHECK" in dockerfile


@requirement("ops.deploy")
def test_the_manifests_agree_with_the_gateway_and_with_each_other() -> None:
    parts = usual()
    assert parts.keys() == {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy"}
    pod = parts["Deployment"]["spec"]["template"]
    for selector in ("Service", "PodDisruptionBudget"):
        found = parts[selector]["spec"]["selector"]
        assert found.get("matchLabels", found) == pod["metadata"]["labels"]
    container = pod["spec"]["containers"][0]
    assert container["readinessProbe"]["httpGet"]["path"] == READY
    assert container["livenessProbe"]["httpGet"]["path"] == HEALTH
    assert pod["spec"]["terminationGracePeriodSeconds"] > 5 + HAND_OVER_S + DRAIN_TIMEOUT_S
    given = {entry["name"]: entry.get("value", "secret") for entry in container["env"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert given["MCP_GATEWAY_ADVERTISE"].endswith(f":{ports['internal']}") and "MCP_GATEWAY_KEYS" in given
    assert given["MCP_GATEWAY_STORE"] == "secret"
    options: dict[str, Any] = {"host": "0.0.0.0", "store": "redis://redis:6379/0", "advertise": "10.0.0.1:9000"}
    options |= {"anonymous": True, "allowed_hosts": ["*"]}
    checked = load(None, options).settings
    assert checked.gateway.port == ports["http"]
