"""What is shipped is safe as it is: neither image nor environment opens a gateway that asks for credentials."""

import json
import os
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, ROOT, running_gateway, server
from tests.support.mcp_clients import Modern, modern_body, modern_headers, tool_text

API_KEYS = {"alice": sha256(KEYS["alice"])}


def image() -> tuple[dict[str, str], list[str]]:
    """Variables and command line of the image."""
    text = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    variables = dict(re.findall(r"^ENV (\w+)=(.*)$", text, re.MULTILINE))
    commands = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    return variables, json.loads(commands[-1])


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, env={**os.environ, **(env or {})}, timeout=30)


@requirement("wall.defaults", "ops.deploy")
def test_the_image_opens_no_gateway_that_asks_for_credentials(tmp_path: Path, http: httpx.Client) -> None:
    variables, demo = image()
    assert not any(name.startswith("MCP_GATEWAY_") for name in variables), "they win over the configuration"
    assert "--anonymous" in demo[: demo.index("--")], "the demo says it on its own command line"
    options = {"api_keys": API_KEYS, "anonymous": False}
    with running_gateway({"demo": server(DEMO)}, options=options, env=variables) as gateway:
        assert Modern(gateway.url, http).tool("whoami").status_code == 401
        answer = Modern(gateway.url, http, headers=bearer(KEYS["alice"])).tool("whoami")
        assert json.loads(tool_text(answer))["principal"] == "api-key:alice"


@requirement("wall.defaults", "ops.deploy")
def test_the_image_asks_for_a_configuration_where_the_demo_is_left_out() -> None:
    variables, demo = image()
    bare = [word for word in demo[: demo.index("--")] if word != "--anonymous"]
    started = command(*bare, "--port", "0", "--", *DEMO, env=variables)
    assert started.returncode == 2 and "callers need no credential" in started.stderr


@requirement("wall.defaults", "ops.deploy")
def test_the_demo_of_the_image_serves_names_of_this_machine_only() -> None:
    variables, demo = image()
    arguments = [*demo[1 : demo.index("--")]]
    with running_gateway(command=DEMO, env=variables, arguments=arguments) as gateway:
        port = gateway.base.rpartition(":")[2]
        body = modern_body("server/discover")
        for host, status in ((f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200), ("rebound.example", 421)):
            url = f"http://127.0.0.1:{port}/mcp"
            answer = httpx.post(url, json=body, headers={**modern_headers(body), "Host": host})
            assert answer.status_code == status, answer.text


@requirement("wall.defaults", "ops.config")
@pytest.mark.parametrize("asked", [("check",), ("doctor",), ("run", "--port", "0")])
def test_nothing_calls_it_good_and_nothing_starts(asked: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    entry = {"mcpServers": {"demo": server(DEMO)}, "gateway": {"anonymous": False, "api_keys": API_KEYS}}
    path.write_text(json.dumps(entry), encoding="utf-8")
    ran = command(*asked, "--config", str(path), env={"MCP_GATEWAY_ANONYMOUS": "true"})
    said = ran.stdout + ran.stderr
    assert ran.returncode != 0 and "MCP_GATEWAY_ANONYMOUS" in said and "api_keys" in said, said
    if asked[0] == "run":
        ran = command(*asked, "--anonymous", "--config", str(path))
        assert ran.returncode == 2 and "the command line" in ran.stderr, ran.stderr
