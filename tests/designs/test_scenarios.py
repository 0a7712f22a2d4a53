"""What the five designs ask for, and no test of a single feature shows. The tables beside this file name the others."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway import SessionMiddleware
from gateway.config.settings import ConfigurationError, load
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import PROBE, ROOT, running_gateway, server
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.stdio_client import Typed

NAMES = {"PARACHUTE_WORKSPACE_ID": "workspace", "PARACHUTE_TRUST_LEVEL": "trust"}
SHOWN = ("PARACHUTE_", "LAUNCHED_", "OWN_")


@requirement("ctx.env-preserved", "pol.sandbox", "pol.trust")
def test_a_variable_that_the_operator_has_set_is_kept_and_a_launcher_is_for_sandboxed_sessions(
    http: httpx.Client,
) -> None:
    own = server(
        PROBE,
        context_env=NAMES,
        env={"PARACHUTE_TRUST_LEVEL": "operator's", "OWN_TOKEN": "x"},
        sandbox=["env", "LAUNCHED_BY=launcher"],
    )
    options = {
        "api_keys": {name: sha256(name) for name in ("operator", "guest")},
        "policy": {"rules": [{"principals": ["api-key:guest"], "trust": "sandboxed"}]},
    }
    with running_gateway({"own": own, "plain": server(PROBE, context_env=NAMES)}, options=options) as gateway:

        def variables(key: str, name: str) -> dict[str, str]:
            client = Legacy(gateway.at(name), http, headers=bearer(key)).open()
            found: dict[str, str] = json.loads(tool_text(client.tool("env")))
            return {name: value for name, value in found.items() if name.startswith(SHOWN)}

        kept = {"PARACHUTE_WORKSPACE_ID": "", "PARACHUTE_TRUST_LEVEL": "operator's", "OWN_TOKEN": "x"}
        assert variables("operator", "own") == kept, "a fact that is missing is an empty variable"
        assert variables("guest", "own") == kept | {"LAUNCHED_BY": "launcher"}
        assert variables("guest", "plain") == {"PARACHUTE_WORKSPACE_ID": "", "PARACHUTE_TRUST_LEVEL": "sandboxed"}


@requirement("pol.trust")
def test_a_trust_that_is_unknown_stops_the_start(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"gateway": {"policy": {"rules": [{"trust": "trusted"}]}}}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="trust"):
        load(config)


@pytest.fixture
def stage() -> Callable[..., Typed]:
    """Starts the example `stagewright` on its stdin and stdout, with these options."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    config = str(ROOT / "examples/stagewright/mcp.json")

    def start(*options: str) -> Typed:
        client = Typed("--config", config, *options, env={"PATH": path, "MCP_GATEWAY_STORE": "memory://"}, child=())
        client.initialize()
        return client

    return start


def called(client: Typed, tool: str, **arguments: Any) -> Any:
    return client.ask("tools/call", {"name": f"stage__{tool}", "arguments": arguments})


@requirement("pol.operation", "pol.arguments", "proc.noise")
def test_tools_read_and_write_and_none_evaluates(stage: Callable[..., Typed]) -> None:
    client = stage()
    listed = {tool["name"]: tool for tool in client.ask("tools/list")["result"]["tools"]}
    named = set(re.findall(r"`(stage__\w+)`", (ROOT / "examples/README.md").read_text(encoding="utf-8")))
    assert {"stage__describe", "stage__move"} <= listed.keys() and named - listed.keys() == {"stage__evaluate"}
    assert "operation" not in json.dumps([tool["inputSchema"] for tool in listed.values()])
    assert "Unknown tool" in called(client, "evaluate", expression="1+1")["error"]["message"]
    assert called(client, "move", actor="Ada", x=2)["result"]["content"][0]["text"] == "Ada at 2"
    wrong = called(client, "move", actor="Ada", x="left")["result"]
    assert wrong["isError"] and "x: " in wrong["content"][0]["text"] and "Traceback" not in json.dumps(wrong)
    assert client.end() == 0


@requirement("pol.operation")
def test_tools_that_evaluate_are_switched_on_and_their_words_stay_blocked(stage: Callable[..., Typed]) -> None:
    client = stage("--allow-eval")
    assert "eval tools are on" not in client.log(), "something is blocked"
    assert called(client, "evaluate", expression="1+1")["result"]["content"][0]["text"] == "2"
    for expression in ("import os", "IMPORT os", "open ('x')"):
        blocked = called(client, "evaluate", expression=expression)["result"]
        assert blocked["isError"] and "blocked" in blocked["content"][0]["text"].lower(), expression
    assert client.end() == 0


class DictSessions:
    """A store that an app brings: the four methods of the design, over a dictionary."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}

    async def get(self, session_id: str) -> bytes | None:
        return self.documents.get(session_id)

    async def create(self, session_id: str, document: bytes, ttl_s: float) -> None:
        self.documents[session_id] = document

    async def save(self, session_id: str, document: bytes, ttl_s: float, replaces: bytes) -> bool:
        if self.documents.get(session_id) != replaces:
            return False
        self.documents[session_id] = document
        return True

    async def delete(self, session_id: str) -> None:
        self.documents.pop(session_id, None)


async def visits(request: Request) -> JSONResponse:
    session = request.scope["mcp.session"]
    if request.method == "DELETE":
        await session.end()
        return JSONResponse({})
    return JSONResponse({"visits": await session.state.increment("visits")})


@requirement("app.middleware", "app.small-store")
async def test_any_app_has_sessions_in_a_store_of_its_own() -> None:
    store = DictSessions()
    routes = [Route("/visits", visits, methods=["GET", "DELETE"])]
    # Two processes of the app: they have the store and the keys in common.
    apps = [SessionMiddleware(Starlette(routes=routes), store=store, keys="k" * 40) for _ in range(2)]
    clients = [
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://app.example")
        for app in (*apps, apps[0])
    ]
    async with clients[0] as one, clients[1] as same, clients[2] as other:
        assert [(await one.get("/visits")).json()["visits"] for _ in range(2)] == [1, 2]
        same.cookies.update(one.cookies)
        assert (await same.get("/visits")).json()["visits"] == 3
        assert (await other.get("/visits")).json()["visits"] == 1
        assert len(store.documents) == 2
        await one.delete("/visits")
        assert len(store.documents) == 1 and (await same.get("/visits")).json()["visits"] == 1
