"""Gateways that several test files share, started once for each process of a run."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.commands import run_command
from tests.support.credentials import KEYS, sha256
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, running_gateway, server


@pytest.fixture(scope="session")
def demo() -> Iterator[RunningGateway]:
    """The demo server, anonymous clients."""
    with running_gateway(command=DEMO) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def probe() -> Iterator[RunningGateway]:
    """The probe server, with a name map, a variable of the operator's and trace facts in results."""
    servers = {
        "probe": server(PROBE),
        "mapped": server(
            PROBE,
            env={"MINE": "kept", "PARACHUTE_TRUST_LEVEL": "operator"},
            context_env={
                "PARACHUTE_SESSION_ID": "session_id",
                "PARACHUTE_WORKSPACE_ID": "workspace",
                "PARACHUTE_TRUST_LEVEL": "trust",
                "STAC_MCP_SESSION_ID": "session_id",
                "STAC_MCP_USER_ID": "principal",
                "STAC_MCP_AGENT_ID": "agent",
                "MINE": "workspace",
            },
        ),
        "refusing": server((*PROBE, "refuse")),
        "stubborn": server((*PROBE, "ignore-term")),
        "missing": server(("/does/not/exist",)),
        "lazy": server(PROBE, idle_stop_s=0.3),
        "shared": server(PROBE, shared=True),
    }
    options = {"result_meta": True, "limits": {"line_bytes": 200_000, "shutdown_grace_s": 0.3}}
    with running_gateway(servers, options=options) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def keyed() -> Iterator[RunningGateway]:
    """The demo server with API keys; alice has two of them."""
    keys = {"alice": [sha256(KEYS["alice"]), sha256(KEYS["alice-new"])], "bob": sha256(KEYS["bob"])}
    with running_gateway({"main": server(DEMO)}, options={"api_keys": keys}) as gateway:
        yield gateway


@pytest.fixture
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`mcp-session-gateway sessions ARGUMENTS --store URL`, as typed."""

    def run(*arguments: str, store: str) -> subprocess.CompletedProcess[str]:
        return run_command("sessions", *arguments, "--store", store, timeout=30)

    return run
