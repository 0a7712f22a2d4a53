"""What `deploy/` and docker-compose.yml set up is safe as it is: the files say so, and their command lines and load
balancers, started as plain processes, do so."""

import contextlib
import ipaddress
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.config.endpoint_paths import HEALTH, READY
from gateway.config.settings import load
from gateway.serving.drain import HAND_OVER_S
from gateway.serving.uvicorn_server import CLOSE_S
from tests.cluster.stand_in import StandIn, balanced
from tests.requirements import requirement
from tests.support.chart import usual
from tests.support.compose_topology import running_balancer, running_nginx
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.free_ports import free_port
from tests.support.gateway_process import ROOT, RunningGateway
from tests.support.mcp_clients import Modern, modern_body, modern_headers, tool_text
from tests.tools.programs import program

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
GATEWAYS = ("gateway1", "gateway2", "gateway3")


# -- what the files say


@requirement("wall.defaults", "ops.deploy")
@pytest.mark.parametrize("name", COMPOSE["services"])
def test_no_container_of_the_compose_file_has_more_than_it_needs(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    # For sandboxes: without privileges of their own, the gateway's processes never get it.
    assert service.get("cap_add", []) == (["SYS_PTRACE"] if name in GATEWAYS else [])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "published at loopback only"
    assert not service.get("privileged")
    assert service.get("network_mode") == ("none" if name == "secrets" else None)


@requirement("wall.defaults", "ops.deploy")
def test_redis_is_reached_by_gateways_only_and_by_its_password() -> None:
    redis = COMPOSE["services"]["redis"]
    assert "ports" not in redis and redis["networks"] == ["store"]
    assert COMPOSE["networks"]["store"] == {"internal": True}
    on_it = {name for name, service in COMPOSE["services"].items() if "store" in service.get("networks", ())}
    assert on_it == {"redis", *GATEWAYS}
    assert redis["command"][:2] == ["redis-server", "/secrets/redis.conf"], "without the file it does not start"
    mounted = {
        name: volume.rpartition(":")[2]
        for name, service in COMPOSE["services"].items()
        for volume in service.get("volumes", ())
        if volume.startswith("secrets:")
    }
    assert mounted == {"secrets": "/secrets", "redis": "ro"} | dict.fromkeys(GATEWAYS, "ro"), "one service writes"


@requirement("ops.compose")
def test_the_compose_file_needs_no_variable() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    asked = re.findall(r"(?<!\$)\$(?:\{([^}]*)\}|(\w+))", text)
    assert asked and all(":-" in braced for braced, _ in asked), "each variable has a default"
    for name in GATEWAYS:
        assert "./mcp.json:/etc/mcp/mcp.json:ro" in COMPOSE["services"][name]["volumes"]
        assert COMPOSE["services"][name]["command"][-2:] == ["--config", "/etc/mcp/mcp.json"]


@requirement("wall.defaults", "ops.deploy")
def test_the_gateways_of_the_compose_file_believe_the_balancer_only() -> None:
    balancer = COMPOSE["services"]["balancer"]["networks"]["front"]["ipv4_address"]
    for name in GATEWAYS:
        environment = COMPOSE["services"][name]["environment"]
        assert json.loads(environment["MCP_GATEWAY_AUTH__PROXIES"]) == {"networks": [f"{balancer}/32"]}
        assert "MCP_GATEWAY_ANONYMOUS" not in environment, "it would win over a configuration"
        arguments = COMPOSE["services"][name]["command"]
        assert "--anonymous" in arguments and arguments.count("--allowed-host") == 2


@requirement("wall.defaults", "ops.deploy")
def test_a_pod_has_no_more_than_it_needs() -> None:
    manifests = usual()
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]
    assert pod["automountServiceAccountToken"] is False, "servers would have it"
    given = {entry["name"]: entry for entry in container["env"]}
    assert {"MCP_GATEWAY_KEYS", "MCP_GATEWAY_STORE"} == {n for n, e in given.items() if "secretKeyRef" in str(e)}
    assert not any("ANONYMOUS" in name for name in given) and "--anonymous" not in container["args"]
    assert json.loads(given["MCP_GATEWAY_ALLOWED_HOSTS"]["value"])
    assert json.loads(given["MCP_GATEWAY_AUTH__PROXIES__NETWORKS"]["value"])
    policy = manifests["NetworkPolicy"]["spec"]
    reached = {port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}
    assert reached["http"] is None and policy["podSelector"]["matchLabels"] == {"app": "mcp-session-gateway"}
    assert reached["internal"] == [{"podSelector": policy["podSelector"]}] and reached["operators"]


@requirement("ops.compose")
def test_no_container_gets_the_address_of_the_balancer() -> None:
    """Docker gives the lowest free address to whoever starts first, and gateways start before the balancer."""
    [pool] = COMPOSE["networks"]["front"]["ipam"]["config"]
    given, whole = ipaddress.ip_network(pool["ip_range"]), ipaddress.ip_network(pool["subnet"])
    fixed = {ipaddress.ip_address(COMPOSE["services"]["balancer"]["networks"]["front"]["ipv4_address"])}
    fixed.add(ipaddress.ip_address(pool["gateway"]))
    assert given.subnet_of(whole) and len(fixed) == 2  # type: ignore[arg-type]  # both are of one IP version
    assert all(address in whole and address not in given for address in fixed)
    dynamic = [
        s for s in COMPOSE["services"].values() if "front" in s.get("networks", ()) and not s["networks"]["front"]
    ]
    assert len(dynamic) == 3 <= given.num_addresses - 2


@requirement("ops.compose")
def test_one_service_builds_the_image_before_others_use_it() -> None:
    services = COMPOSE["services"]
    assert [name for name, service in services.items() if "build" in service] == ["secrets"]
    assert {services[name]["image"] for name in GATEWAYS} == {services["secrets"]["image"]}
    assert all("redis" in services[name]["depends_on"] for name in GATEWAYS)
    assert "secrets" in services["redis"]["depends_on"]


@requirement("ops.deploy")
def test_the_compose_file_starts_the_topology_of_these_tests() -> None:
    services = {name for name, service in COMPOSE["services"].items() if "profiles" not in service}
    assert services == {"secrets", "redis", "gateway1", "gateway2", "gateway3", "balancer"}
    beside = {name for name, service in COMPOSE["services"].items() if service.get("profiles") == ["observe"]}
    assert beside == {"prometheus", "grafana", "jaeger"}
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            assert not volume.startswith("./") or (ROOT / volume.partition(":")[0]).exists(), volume
    assert (ROOT / COMPOSE["services"]["secrets"]["build"]["dockerfile"]).exists()
    balancer = COMPOSE["services"]["balancer"]
    config = (ROOT / "deploy/haproxy.cfg").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)\}", config)) == set(balancer["environment"])
    for name in GATEWAYS:
        service = COMPOSE["services"][name]
        assert service["environment"]["MCP_GATEWAY_ADVERTISE"] == f"{name}.internal:9000"
        assert service["networks"]["store"]["aliases"] == [f"{name}.internal"]
    for source in re.findall(r"^COPY (.+) /src", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / path).exists() for path in source.split())
    assert "USER gateway" in DOCKERFILE and "tini" in DOCKERFILE and "HEALTHCHECK" in DOCKERFILE


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
    assert pod["spec"]["terminationGracePeriodSeconds"] > 5 + HAND_OVER_S + CLOSE_S
    given = {entry["name"]: entry.get("value", "secret") for entry in container["env"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert given["MCP_GATEWAY_ADVERTISE"].endswith(f":{ports['internal']}") and "MCP_GATEWAY_KEYS" in given
    assert given["MCP_GATEWAY_STORE"] == "secret"
    options: dict[str, Any] = {"host": "0.0.0.0", "store": "redis://redis:6379/0", "advertise": "10.0.0.1:9000"}
    options |= {"anonymous": True, "allowed_hosts": ["*"]}
    checked = load(None, options).settings
    assert checked.gateway.port == ports["http"]


# -- what their command lines do


class Containers:
    """The services of the compose file as processes: their entrypoints, commands and variables as they stand there,
    with places of this machine in the places of containers, and without the isolation of containers."""

    def __init__(self, volume: Path) -> None:
        self._volume = volume
        self._redis = f"127.0.0.1:{free_port()}"

    def make_secrets(self) -> None:
        """Run the service `secrets` to its end."""
        service = COMPOSE["services"]["secrets"]
        command = [self._placed(word) for word in (*service["entrypoint"], *service["command"])]
        subprocess.run(command, check=True, timeout=240, env=self._environment("secrets"))

    @contextlib.contextmanager
    def redis(self) -> Iterator[None]:
        """Redis, once its health check passes."""
        service = COMPOSE["services"]["redis"]
        command = [self._placed(word) for word in service["command"]]
        command[0] = str(program("redis-server", "redis-server"))
        port = self._redis.rpartition(":")[2]
        with tempfile.TemporaryDirectory() as folder:
            here = ["--port", port, "--bind", "127.0.0.1", "--dir", folder, "--loglevel", "warning"]
            process = subprocess.Popen([*command, *here], stdout=subprocess.DEVNULL)
            try:
                kind, check = service["healthcheck"]["test"]
                assert kind == "CMD-SHELL"
                probe = self._placed(check).replace("redis-cli", f"{program('redis-cli', 'redis-tools')} -p {port}")
                deadline = time.monotonic() + 20
                while subprocess.run(["sh", "-c", probe], capture_output=True, check=False).returncode:
                    assert time.monotonic() < deadline and process.poll() is None, "Redis does not become healthy"
                    time.sleep(0.05)
                yield
            finally:
                process.kill()
                process.wait(10)

    @contextlib.contextmanager
    def gateway(self, name: str, without: Sequence[str] = (), **more: str) -> Iterator[RunningGateway]:
        """One gateway. `without`: words that its command does not have this time. `more`: variables."""
        entry = json.loads(re.findall(r"(?m)^ENTRYPOINT (.+)$", DOCKERFILE)[-1])
        assert entry[:2] == ["tini", "--"]
        command = [self._placed(word) for word in (*entry[2:], *COMPOSE["services"][name]["command"])]
        command = [word for word in command if word not in without]
        env = self._environment(name) | more
        running = RunningGateway(
            subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
        )
        try:
            running.wait_ready()
            yield running
        finally:
            if running.process.poll() is None:
                running.kill()

    def _environment(self, name: str) -> dict[str, str]:
        """A service's variables as docker compose fills them in when none is set."""
        given = {}
        for variable, value in COMPOSE["services"][name].get("environment", {}).items():
            given[variable] = re.sub(r"\$\{\w+:-([^}]*)\}", lambda m: m[1], self._placed(value))
        if name in GATEWAYS:
            given |= {"MCP_GATEWAY_ADMIN__LISTEN": "", "MCP_GATEWAY_ADVERTISE": f"127.0.0.1:{free_port()}"}
        path = f"{Path(sys.executable).absolute().parent}{os.pathsep}{os.environ['PATH']}"
        return {"HOME": str(self._volume), "PATH": path, "PYTHONPATH": str(ROOT), **given}

    def _placed(self, text: str) -> str:
        places = {
            "$$": "$",
            "redis:6379": self._redis,
            "/secrets": str(self._volume),
            "/packages": str(self._volume / "packages"),
            "/etc/mcp/mcp.json": str(ROOT / "mcp.json"),
            "172.31.84.2": "127.0.0.1",
        }
        for there, here in places.items():
            text = text.replace(there, here)
        return text


@contextlib.contextmanager
def composed(without: Sequence[str] = (), **more: str) -> Iterator[tuple[str, list[RunningGateway]]]:
    """The three gateways behind the balancer; its URL."""
    with contextlib.ExitStack() as stack:
        volume = stack.enter_context(tempfile.TemporaryDirectory())
        containers = Containers(Path(volume))
        containers.make_secrets()
        stack.enter_context(containers.redis())
        gateways = [stack.enter_context(containers.gateway(name, without, **more)) for name in GATEWAYS]
        ports = [gateway.base.rpartition(":")[2] for gateway in gateways]
        url = stack.enter_context(running_balancer([f"127.0.0.1:{port}" for port in ports]))
        yield f"{url}/mcp", gateways


@requirement("ops.compose")
def test_secrets_are_made_once_and_read_by_those_who_need_them(tmp_path: Path) -> None:
    containers = Containers(tmp_path)
    containers.make_secrets()
    first = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert first.keys() == {"keys", "store", "redis.conf"}
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"keys": 0o600, "store": 0o600, "redis.conf": 0o640}
    password = first["redis.conf"].split()[1]
    assert len(password) >= 32 and f":{password}@" in first["store"] and password not in first["keys"]
    containers.make_secrets()
    assert first == {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    (tmp_path / "store").unlink()  # as after a crash between two files
    containers.make_secrets()
    again = (tmp_path / "redis.conf").read_text(encoding="utf-8").split()[1]
    assert again != password and f":{again}@" in (tmp_path / "store").read_text(encoding="utf-8")


@requirement("wall.defaults", "ops.deploy")
def test_the_demo_serves_names_of_this_machine_and_no_others(http: httpx.Client) -> None:
    with composed() as (url, gateways):
        assert not any("readable" in gateway.stderr() or "can be read" in gateway.stderr() for gateway in gateways)
        who = json.loads(tool_text(Modern(url, http).tool("whoami")))
        assert who["principal"] == "anonymous"
        body = modern_body("server/discover")
        answer = http.post(url, json=body, headers={**modern_headers(body), "Host": "rebound.example"})
        assert answer.status_code == 421


@requirement("wall.defaults", "ops.deploy")
def test_with_keys_nobody_is_served_without_one(http: httpx.Client) -> None:
    keys = {"MCP_GATEWAY_API_KEYS": json.dumps({"alice": sha256(KEYS["alice"])})}
    flags = COMPOSE["services"]["gateway1"]["command"][1:-2]
    asked = [sys.executable, "-m", "gateway", "run", *flags, "--port", "0", "--config", "mcp.json"]
    ran = subprocess.run(
        asked, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT, env={**os.environ, **keys}
    )
    assert ran.returncode == 2 and "--anonymous" in ran.stderr and "MCP_GATEWAY_API_KEYS" in ran.stderr, ran.stderr
    with composed(["--anonymous"], **keys) as (url, gateways):
        for place in (url, *(gateway.url for gateway in gateways)):
            place = place.replace("0.0.0.0", "127.0.0.1")
            assert Modern(place, http).tool("whoami").status_code == 401
        answer = Modern(url, http, headers=bearer(KEYS["alice"])).tool("whoami")
        assert json.loads(tool_text(answer))["principal"] == "api-key:alice"


# -- what their load balancers pass on


def said(port: int, head: str, body: bytes = b"") -> bytes:
    """What comes back on one connection."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
        connection.settimeout(5)
        answer = b""
        with contextlib.suppress(TimeoutError):
            while b"\r\n\r\n" not in answer and (piece := connection.recv(65_536)):
                answer += piece
        return answer


@requirement("wall.defaults", "wall.framing", "ops.deploy")
@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_a_load_balancer_passes_on_no_upgrade_and_no_word_that_is_its_own(kind: str) -> None:
    inner = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    offered: list[tuple[str, Any]] = [
        ("Connection: Upgrade\nUpgrade: websocket", inner),
        ("Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABk", inner),
        ("X-Forwarded-For: 9.9.9.9\nX-Forwarded-Proto: https\nForwarded: for=9.9.9.9", b""),
    ]
    with balanced(kind) as (port, recorder):
        for headers, body in offered:
            answer = said(port, f"POST /mcp HTTP/1.1\nHost: a\nContent-Length: {len(body)}\n{headers}", body)
            assert answer.startswith(b"HTTP/1.1 200"), answer
        mangled = said(port, "GET /mcp HTTP/1.1\nHost: a\nX_Forwarded_For: 9.9.9.9\nConnection: close")
    assert [body for _, body in recorder.requests[:3]] == [inner, inner, b""], "a body is a body"
    for head, _ in recorder.requests:
        assert not re.search(r"(?im)^(upgrade|http2-settings|forwarded):", head), head
        assert "9.9.9.9" not in head and re.search(r"(?im)^x-forwarded-for: 127\.0\.0\.1\r?$", head), head
        assert re.search(r"(?im)^x-forwarded-proto: http\r?$", head), head
        assert not re.search(r"(?im)^connection:.*upgrade", head), head
    assert mangled.startswith(b"HTTP/1.1 200" if kind == "nginx" else b"HTTP/1.1 403"), mangled
    assert len(recorder.requests) == (4 if kind == "nginx" else 3)


@contextlib.contextmanager
def machine_that_is_gone() -> Iterator[str]:
    """An address where a connection neither opens nor fails."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):  # nobody accepts them: the kernel answers no further one
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        with pytest.raises(TimeoutError):
            socket.create_connection(listener.getsockname(), 0.5)
        yield "{}:{}".format(*listener.getsockname())


@requirement("ops.deploy")
def test_nginx_goes_on_without_a_machine_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, machine_that_is_gone() as gone:
        recorder = StandIn(listener)
        with running_nginx([gone, *[recorder.place] * 2]) as url:
            for _ in range(3):
                answer = said(int(url.rpartition(":")[2]), "POST /mcp HTTP/1.1\nHost: a\nContent-Length: 2", b"{}")
                assert answer.startswith(b"HTTP/1.1 200"), answer
    assert len(recorder.requests) == 3


@requirement("wall.defaults", "ops.deploy")
def test_nginx_passes_on_one_spelling_of_a_path() -> None:
    with balanced("nginx") as (port, recorder):
        for path in ("/x/../mcp", "//mcp", "/%6dcp", "/./mcp?a=%2F"):
            said(port, f"GET {path} HTTP/1.1\nHost: a\nConnection: close")
    paths = [head.split(" ")[1] for head, _ in recorder.requests]
    assert paths == ["/mcp", "/mcp", "/mcp", "/mcp?a=%2F"]
