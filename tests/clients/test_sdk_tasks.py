"""Tasks between real parts: the example server of the TypeScript SDK 1.x, and a client of that SDK."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.test_other_sdks import TYPESCRIPT
from tests.requirements import requirement
from tests.support.compose_topology import listens
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, RunningGateway, running_gateway, server
from tests.support.waiting import eventually
from tests.tools.obtain import node, node_environment, npm_packages

HERE = Path(__file__).parent
EXAMPLE = "node_modules/@modelcontextprotocol/sdk/dist/esm/examples/server/simpleTaskInteractive.js"


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    folder, port = npm_packages(TYPESCRIPT), free_port()
    environment = {**os.environ, **node_environment(), "PORT": str(port)}
    example = subprocess.Popen([str(node()), str(folder / EXAMPLE)], env=environment, stdout=subprocess.DEVNULL)
    try:
        assert eventually(lambda: listens(port))
        servers = {"sdk": {"url": f"http://localhost:{port}/mcp"}, "demo": server(DEMO)}
        with running_gateway(servers) as running:
            yield running
    finally:
        example.kill()
        example.wait(10)


@requirement("task.relay", "spec.legacy")
@pytest.mark.timeout(300)
def test_a_client_of_the_typescript_sdk_runs_tasks_of_a_server_of_that_sdk(gateway: RunningGateway) -> None:
    folder = npm_packages(TYPESCRIPT)
    script = folder / "tasks_ts.mjs"  # beside node_modules, which is where imports are looked for
    shutil.copy(HERE / "tasks_ts.mjs", script)
    for url, prefix in ((gateway.url, "sdk__"), (f"{gateway.base}/servers/sdk/mcp", "")):
        command = [str(node()), str(script), url, prefix]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        told = json.loads(finished.stdout)
        assert told["deleted"]["text"] == "Deleted 'f.txt'" and "three lines" in told["haiku"]["text"], told
        assert told["related"] == [told["deleted"]["task"], told["haiku"]["task"]], "both name the gateway's ids"
        assert told["got"] == "completed"
