"""The wheel: built, installed into an empty environment, and served from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import sha256
from tests.support.gateway_process import ROOT, RunningGateway

CALL = """
import asyncio, sys
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

async def main():
    async with Client(streamable_http_client(sys.argv[1])) as client:
        print((await client.call_tool("whoami", {})).content[0].text)

asyncio.run(main())
"""


@requirement("ops.two-commands", "ops.deploy")
@pytest.mark.timeout(300)
def test_a_wheel_in_an_empty_environment_serves(tmp_path: Path) -> None:
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT))
    [wheel] = tmp_path.glob("*.whl")
    _run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty"))
    python = tmp_path / "empty/bin/python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", str(wheel))
    # Nothing but what the wheel declares, and every module of it loads.
    listed = json.loads(_run(*pip, "list", "--format", "json"))
    names = {part["name"].lower() for part in listed}
    assert names.isdisjoint({"pytest", "httpx", "psutil", "playwright", "opentelemetry-sdk", "hypothesis", "mcp"})
    _run(str(python), "-c", IMPORT_ALL)
    assert _run(str(python), "-c", FOR_OTHERS).split() == ["mcp_session_gateway.pytest_plugin", *["True"] * 4]
    command = tmp_path / "empty/bin/mcp-session-gateway"
    keys = json.dumps({"olga": sha256("key")})
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MCP_GATEWAY_ADMIN__KEYS": keys}
    process = subprocess.Popen(
        [command, "run", "--port", "0", "--", str(command), "demo-server"],
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=tmp_path,
    )
    gateway = RunningGateway(process)
    gateway.wait_ready()
    for path in ("/admin/sign-in", "/admin/static/console.css"):
        assert httpx.get(gateway.base + path).status_code == 200, "templates and styles are in it as well"
    assert '"principal": "anonymous"' in _run(sys.executable, "-c", CALL, gateway.url)
    assert gateway.stop() in (0, -15)
    assert json.loads(_run(str(command), "doctor", "--json"))[0]["state"] == "ok"
    demo = [str(command), "run", "--port", "0", "--", str(command), "demo-server"]
    with_tools = subprocess.run(demo, env={**env, "MCP_GATEWAY_TOOLS": "true"}, capture_output=True, text=True)
    assert with_tools.returncode and "gateway.tools needs more packages: pip install 'mcp-session-gateway[mcp]'" in (
        with_tools.stderr
    )


IMPORT_ALL = """
import importlib, pkgutil, gateway, session_store, transports
# For tests; programs of their own.
unwanted = ("testing", "pytest_plugin", "fork_server", "__main__")
of_the_sdk = (
    *("context.consent_flow", "integrations.sdk_event_store"),
    *("sessions.session_management_tools", "upstream.in_process"),
)
for package in (gateway, session_store, transports):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            found.name.endswith(unwanted) or importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            assert found.name.endswith(of_the_sdk) and error.name.startswith("mcp"), error
"""


# What type checkers and pytest look for in other people's environments.
FOR_OTHERS = """
from importlib.metadata import entry_points
from importlib.resources import files
print(entry_points(group="pytest11")["mcp_session_gateway"].value)
for package in ("gateway", "mcp_session_gateway", "session_store", "transports"):
    print((files(package) / "py.typed").is_file())
"""


def _run(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
