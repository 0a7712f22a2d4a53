"""Processes that were started ahead: there at once, in the session's own environment, and gone with the rest."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config.settings import Settings
from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, tool_text
from tests.support.waiting import descendants, eventually

SLOW_S = 1.0
LATE = (sys.executable, "-c", f"import time,os,sys; time.sleep({SLOW_S}); os.execv(sys.argv[1], sys.argv[1:])", *PROBE)


def servers_of(gateway: RunningGateway) -> dict[int, dict[str, str]]:
    """The environments of the servers that run, by pid."""
    found = {}
    for process in descendants(gateway.pid):
        try:
            if PROBE[1] in process.cmdline():
                found[process.pid] = process.environ()
        except (OSError, RuntimeError):
            continue
    return found


def started(gateway: RunningGateway, before: set[int], **wanted: str) -> bool:
    found = {
        pid: env for pid, env in servers_of(gateway).items() if pid not in before and wanted.items() <= env.items()
    }
    return any("-c" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in found)


@requirement("proc.warm", "proc.isolated", "ctx.env")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_slow_server_opens_at_once(era: str, http: httpx.Client) -> None:
    """All processes of the gateway are looked at."""
    with running_gateway({"late": server(LATE, warm=1)}) as gateway:
        seen = []
        for number in range(3):
            http.cookies.clear()
            before = set(servers_of(gateway))
            began = time.monotonic()
            client: Any = Legacy(gateway.url, http).open() if era == "legacy" else Modern(gateway.url, http)
            answer = client.tool("env", {"prefix": "MCP_SESSION_"})
            took = time.monotonic() - began
            env = json.loads(tool_text(answer))
            token = client.session if era == "legacy" else answer.headers["mcp-gateway-session"]
            assert token.startswith(env["MCP_SESSION_ID"] + "."), "the id that the client holds"
            seen.append((env["MCP_SESSION_ID"], took))
            # The next one is ready once its slow start is over.
            assert eventually(lambda before=before: started(gateway, before), 10), number  # type: ignore[misc]
        assert len({session for session, _ in seen}) == 3
        assert seen[0][1] >= SLOW_S and max(took for _, took in seen[1:]) < SLOW_S / 2, seen


@requirement("proc.warm", "ctx.isolated", "ctx.credentials", "pol.trust")
def test_only_what_was_started_for_such_a_session_is_used(http: httpx.Client, tmp_path: Path) -> None:
    secret = tmp_path / "api-key"
    secret.mkdir()
    for name in ("alice", "bob"):
        (secret / name).write_text(f"secret of {name}")
    options = {
        "api_keys": {name: sha256(key) for name, key in KEYS.items()},
        "secrets": {"own": {"file": str(secret / "{subject}")}},
        "policy": {"rules": [{"principals": ["api-key:bob"], "trust": "sandboxed"}]},
    }
    entry = server(PROBE, warm=1, env={"OWN": "${secret:own}"})
    with running_gateway({"probe": entry}, options=options) as gateway:

        def told(name: str, **more: Any) -> Any:
            client = Legacy(gateway.url, http, headers=bearer(KEYS[name]))
            return json.loads(tool_text(client.open(**more).tool("env")))

        first = told("alice")
        assert eventually(lambda: len(servers_of(gateway)) == 3), "hers, one that lists, and one ahead"
        bob = told("bob")
        assert bob["OWN"] == "secret of bob" and bob["MCP_SESSION_TRUST"] == "sandboxed"
        red = told("alice", meta={"orbit": {"workspace": "red"}})
        assert red["MCP_SESSION_WORKSPACE"] == "red" and red["OWN"] == "secret of alice"
        (secret / "alice").write_text("another secret")
        waiting = {pid: env for pid, env in servers_of(gateway).items() if env.get("OWN") == "secret of alice"}
        again = told("alice")
        assert again["OWN"] == "another secret", "the one that waits has the old secret, and is not used"
        assert len({env["MCP_SESSION_ID"] for env in (first, bob, red, again)}) == 4
        assert len(waiting) >= 3
        assert eventually(lambda: sum(env.get("OWN") == "secret of alice" for env in servers_of(gateway).values()) == 3)
        spare = [pid for pid, env in servers_of(gateway).items() if env.get("OWN") == "another secret"]
        assert spare
        os.kill(spare[0], 9)
        assert told("alice")["OWN"] == "another secret", "one that died meanwhile is not missed"
    assert servers_of(gateway) == {}


@requirement("proc.warm", "proc.gone")
def test_what_was_started_ahead_ends_with_the_gateway(http: httpx.Client) -> None:
    with running_gateway({"probe": server(PROBE, warm=3)}) as gateway:
        client = Legacy(gateway.url, http).open()
        assert eventually(lambda: len(servers_of(gateway)) == 5)
        spare = list(servers_of(gateway))
        assert client.delete().status_code == 200
        gateway.kill()
        assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in spare))


@requirement("proc.warm")
def test_it_is_for_commands_only() -> None:
    for wrong in ({"url": "http://127.0.0.1:1/mcp"}, {"command": "x", "shared": True}):
        with pytest.raises(ValueError, match="warm needs a command"):
            Settings.model_validate({"mcpServers": {"x": {**wrong, "warm": 1}}})
