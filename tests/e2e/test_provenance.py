"""Where the facts of a session come from: what a client announces selects and fills in, and never grants."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.issuer import Issuer
from tests.support.mcp_clients import Legacy, Modern, error_of, messages, result_of, tool_text

pytestmark = requirement("wall.provenance")

BOSS = "team-boss"
RULES = [
    {"workspaces": ["team-*"], "trust": "direct", "permissions": ["notes.write"]},
    {"principals": ["api-key:bob"], "workspace": BOSS},
]
SERVERS = {
    "probe": server(PROBE, tools={"noise": {"permissions": ["notes.write"]}, "echo": {"bind": {"id": "workspace"}}}),
    "inner": server(DEMO, direct_only=True),
}


def told(client: Legacy) -> dict[str, str]:
    answer = messages(client.tool("probe__env", {"prefix": "MCP_SESSION_"}))[-1]
    found: dict[str, str] = json.loads(answer["result"]["content"][0]["text"])
    return {name.removeprefix("MCP_SESSION_").lower(): value for name, value in found.items()}


def listed(client: Legacy) -> set[str]:
    return {tool["name"] for tool in result_of(client.call("tools/list"))["tools"]}


def opened(
    gateway: InProcessGateway | RunningGateway, http: httpx.Client, headers: dict[str, str], workspace: str = BOSS
) -> Legacy:
    return Legacy(gateway.url, http, headers=headers).open(meta={"orbit": {"workspace": workspace}})


def keyed(**policy: Any) -> dict[str, Any]:
    keys = {"guest": sha256(KEYS["alice"]), "bob": sha256(KEYS["bob"])}
    return {"api_keys": keys, "session": {"trust": "sandboxed"}, "policy": {"rules": RULES, **policy}}


def test_a_guest_gains_nothing_by_the_workspace_it_announces(http: httpx.Client) -> None:
    with in_process_gateway(SERVERS, options=keyed()) as gateway:
        guest = opened(gateway, http, bearer(KEYS["alice"]))
        facts = told(guest)
        assert (facts["workspace"], facts["trust"], facts["permissions"]) == (BOSS, "sandboxed", "")
        assert not any(name == "probe__noise" or name.startswith("inner__") for name in listed(guest))
        assert "Unknown tool" in error_of(guest.tool("probe__noise"))["message"]
        assert json.loads(tool_text(guest.tool("probe__echo"))) == {"id": BOSS}, "it fills in what a client may choose"
        bob = opened(gateway, http, bearer(KEYS["bob"]), "elsewhere")
        facts = told(bob)
        assert (facts["workspace"], facts["trust"], facts["permissions"]) == (BOSS, "direct", "notes.write")
        assert "probe__noise" in listed(bob), "a rule has said its workspace"


def test_servers_and_tools_of_a_workspace_are_not_for_who_announces_it(http: httpx.Client) -> None:
    workspaces = {
        "team-*": {"servers": ["probe", "demo"]},
        "guests": {"servers": ["demo"], "tools": ["demo__count"]},
        "*": {"servers": ["demo"], "tools": ["demo__*"]},
    }
    servers = {"probe": server(PROBE), "demo": server(DEMO)}
    options = keyed(workspaces=workspaces)
    with in_process_gateway(servers, options=options) as gateway:
        for announced in (BOSS, "guests", "anything", ""):
            guest = opened(gateway, http, bearer(KEYS["alice"]), announced)
            assert listed(guest) == {"demo__count"}, f"what all of them have, whatever is announced: {announced!r}"
        assert {"probe__pid", "demo__ask"} <= listed(opened(gateway, http, bearer(KEYS["bob"])))


def test_a_workspace_that_a_credential_no_longer_says_is_gone(
    issued: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    direct = {"trust": "direct"}
    client = opened(issued, http, bearer(issuer.token(mcp=direct, team=BOSS)), "other")
    assert told(client) == told(client) | {"workspace": BOSS, "trust": "direct", "permissions": "notes.write"}
    client.headers = bearer(issuer.token(mcp=direct, jti="2"))
    assert told(client) == told(client) | {"workspace": "", "trust": "direct", "permissions": ""}
    client.headers = bearer(issuer.token(team=BOSS, jti="3"))
    assert told(client) == told(client) | {"workspace": BOSS, "trust": "sandboxed"}, "nothing said of its trust"
    guest = opened(issued, http, bearer(issuer.token("guest")))
    assert told(guest) == told(guest) | {"workspace": "", "trust": "sandboxed", "permissions": ""}


def test_what_a_proxy_does_not_say_grants_nothing(proxied: RunningGateway, http: httpx.Client) -> None:
    silent = opened(proxied, http, {"X-User": "ada"})
    assert told(silent) == told(silent) | {"workspace": "", "trust": "sandboxed", "permissions": ""}
    says = {"X-User": "bob", "X-Trust": "direct", "X-Team": "red", "X-May": "a, b"}
    speaking = opened(proxied, http, says)
    assert told(speaking) == told(speaking) | {"workspace": "red", "trust": "direct", "permissions": "a b"}
    empty = opened(proxied, http, {"X-User": "eve", "X-Trust": "", "X-Team": "", "X-May": ""})
    assert told(empty) == told(empty) | {"workspace": "", "trust": "sandboxed", "permissions": ""}


def test_a_check_warns_of_trust_in_announced_workspaces(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    policy = {"trust_announced_workspace": True}
    config.write_text(json.dumps({"mcpServers": {"demo": server(DEMO)}, "gateway": {"policy": policy}}), "utf-8")
    done = run_command("check", "--config", str(config))
    assert done.returncode == 0 and "any client may take any workspace" in done.stdout + done.stderr


@pytest.mark.parametrize("era", [Legacy, Modern])
def test_a_server_gets_no_announced_workspace_that_is_not_the_operators(http: httpx.Client, era: Any) -> None:
    rules = {"rules": [{"principals": ["*"], "workspace": "blue"}]}
    options = {"policy": rules, "context": {"workspace_ids": {"/srv/*": "{name}"}}}
    with in_process_gateway({"probe": server(PROBE)}, options=options) as gateway:
        client = era(gateway.url, http)
        if era is Legacy:
            client.open(meta={"orbit": {"workspace": "red"}, "acme": 1})
            shaken = json.loads(tool_text(client.tool("meta", {"initialize": True})))
            assert shaken == {"orbit": {}, "acme": 1}, "also the handshake that a server gets"

        def passed(meta: Any) -> Any:
            found = json.loads(tool_text(client.tool("meta", meta=meta)))
            return {name: value for name, value in found.items() if name.startswith("orbit")}

        for _ in range(3):  # the third of alike calls is no longer decided on
            assert passed({"orbit": {"workspace": "red", "view": 1}}) == {"orbit": {"view": 1}}
            assert passed({"orbit.workspace": "red"}) == {}
            both = {"orbit": {"workspace": "blue"}, "orbit.workspace": "red"}
            assert passed(both) == {"orbit": {"workspace": "blue"}}
            for right in ({"orbit": {"workspace": "blue"}}, {"orbit.workspace": "/srv/blue"}, {"orbit": 1}):
                assert passed(right) == right
