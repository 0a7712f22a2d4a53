"""SDK clients in processes of their own: Python 1.x, TypeScript 1.x and 2.x, the inspector's command line."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, RunningGateway, running_gateway, server
from tests.tools.obtain import node, node_environment, npm_packages, python_with

HERE = Path(__file__).parent
TYPESCRIPT = {"@modelcontextprotocol/sdk": "1.32.2", "@modelcontextprotocol/client": "2.4.0"}
INSPECTOR = {"@modelcontextprotocol/inspector": "2.12.0"}
ONE_ERA = HERE.parent / "support/single_era_server.py"
ERAS = {"old": "legacy", "new": "modern"}
TOOLS = ["whoami", "count", "ask", "slow", "remember", "recall"]


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    """The demo server, as it is and in each era only."""
    servers = {name: server((sys.executable, str(ONE_ERA), era, *DEMO)) for name, era in ERAS.items()}
    with running_gateway({"main": server(DEMO), **servers}) as running:
        yield running


def answer(command: list[str], **more: Any) -> Any:
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(finished.stdout)


def good(told: Any) -> bool:
    return (
        told["tools"] == TOOLS
        and told["counts"] == ["1", "2"]
        and told["slow"] == "done"
        and set(told["whoami"]) == {"session_id", "workspace", "trust", "principal"}
    )


@requirement("spec.legacy")
@pytest.mark.timeout(300)
def test_the_python_sdk_1(gateway: RunningGateway) -> None:
    python = python_with({"mcp": "==1.30.0"})
    assert good(answer([str(python), str(HERE / "sdk_v1.py"), f"{gateway.base}/servers/main/mcp"]))


@requirement("spec.legacy", "spec.modern")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("generation", "era"), [("1", "legacy"), ("2", "legacy"), ("2", "modern")])
def test_the_typescript_sdks(gateway: RunningGateway, generation: str, era: str) -> None:
    folder = npm_packages(TYPESCRIPT)
    script = folder / "sdk_ts.mjs"  # beside node_modules, which is where imports are looked for
    shutil.copy(HERE / "sdk_ts.mjs", script)
    for url in (f"{gateway.base}/servers/{name}/mcp" for name in ("main", *ERAS)):
        told = answer([str(node()), str(script), generation, url, era])
        if era == "modern":  # it keeps neither header nor cookie: without a credential it is a new client at every call
            assert told.pop("counts") == ["1", "1"]
            told["counts"] = ["1", "2"]
        assert good(told) and told["ask"] == "Hello, Ada!", url


@requirement("spec.legacy")
@pytest.mark.timeout(300)
def test_the_inspectors_command_line(gateway: RunningGateway) -> None:
    inspector = npm_packages(INSPECTOR) / "node_modules/.bin"
    cli = next(path for path in inspector.iterdir() if "inspector" in path.name)
    command = [str(node()), str(cli), "--cli", f"{gateway.base}/servers/main/mcp", "--transport", "http"]
    listed = answer([*command, "--method", "tools/list"], env=node_environment())
    assert [tool["name"] for tool in listed["tools"]] == TOOLS
    called = answer([*command, "--method", "tools/call", "--tool-name", "whoami"], env=node_environment())
    assert json.loads(called["content"][0]["text"])["principal"] == "anonymous"
