"""Clients of the TypeScript SDKs, 1.x and 2.x, in processes of their own."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, RunningGateway, running_gateway, server
from tests.tools.obtain import node, npm_packages

HERE = Path(__file__).parent
TYPESCRIPT = {"@modelcontextprotocol/sdk": "1.32.2", "@modelcontextprotocol/client": "2.4.0"}
ONE_ERA = HERE.parent / "support/single_era_server.py"
ERAS = {"old": "legacy", "new": "modern"}
TOOLS = ["whoami", "count", "ask", "slow", "remember", "recall"]


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    """The demo server, as it is and in each era only."""
    servers = {name: server((sys.executable, str(ONE_ERA), era, *DEMO)) for name, era in ERAS.items()}
    with running_gateway({"main": server(DEMO), **servers}) as running:
        yield running


@requirement("spec.legacy", "spec.modern")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("generation", "era"), [("1", "legacy"), ("2", "legacy"), ("2", "modern")])
def test_the_typescript_sdks(gateway: RunningGateway, generation: str, era: str) -> None:
    folder = npm_packages(TYPESCRIPT)
    script = folder / "sdk_ts.mjs"  # beside node_modules, which is where imports are looked for
    shutil.copy(HERE / "sdk_ts.mjs", script)
    for url in (gateway.at(name) for name in ("main", *ERAS)):
        command = [str(node()), str(script), generation, url, era]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        told = json.loads(finished.stdout)
        # A modern one keeps neither header nor cookie: without a credential it is a new client at every call.
        assert told["counts"] == ["1", "1" if era == "modern" else "2"], url
        assert (told["tools"], told["slow"], told["ask"]) == (TOOLS, "done", "Hello, Ada!"), url
        assert told["whoami"].keys() == {"session_id", "workspace", "trust", "principal"}, url
