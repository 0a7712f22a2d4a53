"""What commands load before they do anything, counted: a limit of time would be one of the machine."""

import subprocess
import sys

import pytest

from tests.support.gateway_process import DEMO, ROOT


@pytest.mark.parametrize(
    ("arguments", "most", "unneeded"),
    [
        (["--version"], 300, {"asyncio", "msgspec", "pydantic", "rich", "session_store", "starlette", "transports"}),
        (
            ["run", "--port", "0", "--", *DEMO],
            1_200,
            {"cryptography.x509", "httpx2", "jinja2", "jwt", "mcp", "prometheus_client", "redis", "rich"}
            | {"gateway.admin.console", "gateway.admin.rest", "gateway.cli.output", "gateway.doctor"},
        ),
    ],
    ids=["version", "run"],
)
def test_a_command_loads_what_it_needs(arguments: list[str], most: int, unneeded: set[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gateway", *arguments]
    loaded = set()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("import time:"):
                loaded.add(line.rpartition("|")[2].strip())
            elif line.startswith("ready "):
                process.terminate()
                break
        else:
            assert process.wait() == 0
    assert "gateway.cli.main" in loaded
    assert unneeded & loaded == set()
    assert len(loaded) < most
