"""`explain` says what a running gateway does, and which setting decides it."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.cli.explain import explanation, lines_of, manifest
from gateway.cli.options import Caller
from gateway.config.settings import ConfigurationError, Settings, load
from gateway.upstreams import server_probe
from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import API_KEYS, KEYS, bearer
from tests.support.gateway_process import DEMO, PROBE, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, result_of

pytestmark = requirement("pol.explain")

SERVERS = {
    "probe": server(
        PROBE, env={"TOKEN": "hunter2"}, tools={"spawn": {"operation": "eval"}, "pid": {"permissions": ["p"]}}
    ),
    "inner": server(
        DEMO,
        direct_only=True,
        context_env={"WHO": "principal", "TEAM": "team"},
        tools={"*": {"bind": {"key": "team"}}, "recall": {"blocked": ["drop\\s"]}},
    ),
}
OPTIONS: dict[str, Any] = {
    "api_keys": API_KEYS,
    "context": {"fields": {"team": {"value": "red", "to": ["log"]}, "project": {"announced": "acme.project"}}},
    "policy": {
        "rules": [
            {"principals": ["api-key:bob"], "trust": "sandboxed", "env": {"TIER": "secret-tier"}},
            {"principals": ["api-key:alice-new"], "read_only": True, "workspace": "team-a", "max_age_s": 60},
            {"workspaces": ["team-*"], "permissions": ["p"]},
        ],
        "workspaces": {"team-*": {"tools": ["inner__*", "probe__*"]}, "*": {"tools": ["*__[!f]*"]}},
    },
}
SETTINGS = Settings.model_validate({"mcpServers": SERVERS, "gateway": OPTIONS})


def explained(caller: Caller, **more: Any) -> dict[str, Any]:
    return asyncio.run(explanation(SETTINGS, caller, **more))


def test_it_says_what_the_gateway_does(http: httpx.Client) -> None:
    with in_process_gateway(SERVERS, options=OPTIONS) as gateway:
        for who, workspace in (("alice", "team-a"), ("bob", ""), ("alice-new", "else")):
            client = Legacy(gateway.url, http, headers=bearer(KEYS[who])).open(meta={"orbit": {"workspace": workspace}})
            listed = result_of(client.call("tools/list"))["tools"]
            found = explained(Caller(credential=KEYS[who], workspace=workspace))
            tools = {(name, tool["name"]): tool for name, one in found["servers"].items() for tool in one["tools"]}
            visible = {f"{name}__{tool}" for (name, tool), one in tools.items() if one["visible"]}
            assert visible == {tool["name"] for tool in listed}, who
            assert all(one["why"] for one in tools.values() if not one["visible"])
        assert found == explained(Caller(principal=f"api-key:{who}", workspace=workspace)), "also without its key"


def test_each_fact_and_each_hidden_thing_names_its_setting() -> None:
    found = explained(Caller(principal="api-key:bob", workspace="team-a"), offline=True)
    assert found["context"]["trust"] == {
        "value": "sandboxed",
        "provenance": "configured",
        "why": ["gateway.policy.rules[0].trust"],
    }
    assert found["context"]["workspace"]["provenance"] == "announced" and "only announced" in found["notes"][0]
    assert found["fields"]["team"]["why"] == ["gateway.context.fields.team.value"]
    assert found["fields"]["project"] == {
        "value": "",
        "provenance": "announced",
        "why": ["the client says it (announced)"],
        "to": [],
    }
    probe, inner = found["servers"]["probe"], found["servers"]["inner"]
    assert probe["visible"] and "mcpServers.inner.direct_only" in inner["why"]
    assert probe["environment"]["TIER"] == {"from": "gateway.policy.rules[0].env"}
    assert probe["environment"]["TOKEN"] == {"from": "mcpServers.probe.env"}
    assert inner["environment"] == {
        "WHO": {"field": "principal", "value": "api-key:bob"},
        "TEAM": {"field": "team", "value": "red"},
        "TIER": {"from": "gateway.policy.rules[0].env"},
    }
    text = "\n".join(lines_of(found))
    assert "hunter2" not in text and "secret-tier" not in text and "hidden: it is for direct trust only" in text
    direct = explained(Caller(principal="api-key:bob", trust="direct"), offline=True, tool="inner__recall")
    (tool,) = direct["servers"]["inner"]["tools"]
    assert tool["visible"] and tool["bind"] == {"key": "team"} and [*direct["servers"]] == ["inner"]
    assert tool["blocked"] == [r"(?:drop\s)"]
    assert any(line.endswith(r" · key = team · blocked: (?:drop\s)") for line in lines_of(direct))
    lasting = explained(Caller(principal="api-key:alice-new"), offline=True)
    assert lasting["lifetimes"]["max_age_s"] == {"value": 60.0, "why": "gateway.policy.rules[1].max_age_s"}
    assert lasting["context"]["permissions"]["why"] == ["gateway.policy.rules[2].permissions: p"]


def test_it_explains_the_methods_that_mcp_does_not_define() -> None:
    methods = {"acme/*": {"permissions": ["orders"]}, "acme/old[12]": {"allowed": False}, "acme/open": {}}
    servers = {"shop": server(DEMO, methods=methods)}
    rules = [{"workspaces": ["team"], "permissions": ["orders"]}]
    settings = Settings.model_validate({"mcpServers": servers, "gateway": {"policy": {"rules": rules}}})
    found = asyncio.run(explanation(settings, Caller(), offline=True))
    shown = {one["name"]: one["why"] for one in found["servers"]["shop"]["methods"]}
    where = "mcpServers.shop.methods.acme/"
    assert shown == {
        "acme/*": f"it needs orders ({where}*.permissions)",
        "acme/old[12]": f"it is allowed to nobody ({where}old[12].allowed)",
        "acme/open": f"it needs orders ({where}*.permissions)",
    }, "of all patterns that match, each has to permit it"
    granted = asyncio.run(explanation(settings, Caller(workspace="team"), offline=True))["servers"]["shop"]["methods"]
    assert [one["visible"] for one in granted] == [False, False, False], "an announced workspace grants nothing"
    assert "  method acme/*: hidden: " in "\n".join(lines_of(found))


def test_a_server_that_is_left_out_and_a_field_of_stdio_are_explained(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    fields = {"user": {"variable": "WHO_CALLS"}}
    servers = {"good": server(DEMO), "bad": {"command": "x", "ur": 1}}
    file.write_text(json.dumps({"mcpServers": servers, "gateway": {"context": {"fields": fields}}}))
    settings = load(file).settings
    for offline in (True, False):
        text = "\n".join(lines_of(asyncio.run(explanation(settings, Caller(), offline=offline))))
        assert "server bad: visible · left out: " in text and "mcpServers.bad.ur: no such field" in text
        assert "server good: visible\n" in f"{text}\n" and "failed" not in text
        assert "field user: none · stdio takes it from the variable WHO_CALLS" in text


def test_a_server_that_does_not_answer_is_told() -> None:
    """Without it, the server looked like one that lists nothing."""
    limits = {"start_timeout_s": 0.2}
    servers = {"slow": {"command": "sleep", "args": ["60"]}}
    settings = Settings.model_validate({"mcpServers": servers, "gateway": {"limits": limits}})
    lines = [*lines_of(asyncio.run(explanation(settings, Caller())))]
    assert any(line.startswith("server slow: visible · failed: ") for line in lines), lines
    with pytest.raises(ConfigurationError, match="--tool x: no server lists it; server slow did not answer: "):
        asyncio.run(explanation(settings, Caller(), tool="x"))


@requirement("pol.manifest")
def test_a_server_that_starts_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait for less than a start may take, and its tools were missing without a word."""
    monkeypatch.setattr(server_probe, "WAIT_S", 0.0)
    options = {"limits": {"list_timeout_s": 0.01}}
    settings = Settings.model_validate({"mcpServers": {"slow": server(DEMO)}, "gateway": options})
    assert asyncio.run(explanation(settings, Caller()))["servers"]["slow"]["tools"]
    found = asyncio.run(manifest(settings, Caller()))
    assert found["tools"] and "failed" not in found


def test_claims_and_headers_count_as_in_requests(tmp_path: Path) -> None:
    entry = {
        "issuer": "https://id",
        "audience": "a",
        "jwks_url": "https://id/jwks",
        "claims": {"trust": "t", "workspace": "w"},
    }
    auth = {
        "jwt": [entry],
        "proxies": {"networks": ["10.0.0.0/8"], "subject_header": "X-User", "permissions_header": "X-May"},
    }
    fields = {"org": {"claim": "org.name"}, "room": {"header": "X-Room"}}
    settings = Settings.model_validate({"gateway": {"auth": auth, "context": {"fields": fields}}})

    def of(**caller: Any) -> dict[str, Any]:
        return asyncio.run(explanation(settings, Caller(**caller), offline=True))

    claims = tmp_path / "claims.json"
    claims.write_text(json.dumps({"t": "direct", "w": "team-a", "org": {"name": "acme"}}))
    held = of(principal="https://id:ann", claims=claims, header=["X-Room: 7"])
    assert (
        held["context"]["trust"]["value"] == "direct" and held["context"]["workspace"]["provenance"] == "authenticated"
    )
    assert [held["fields"][name]["value"] for name in ("org", "room")] == ["acme", "7"]
    without = of(principal="https://id:ann", workspace="mine")
    assert (without["context"]["trust"]["value"], without["context"]["workspace"]["value"]) == ("sandboxed", "")
    assert "does not send the claim org.name" in without["fields"]["org"]["why"][0]
    proxied = of(principal="proxy:bob", header=["X-May: a b"])
    assert proxied["principal"] == "proxy:bob" and proxied["context"]["permissions"]["value"] == ["a", "b"]


@pytest.mark.parametrize(
    ("caller", "what"),
    [
        (Caller(), "anonymous clients are refused: give --credential or --principal$"),
        (Caller(claims=Path("claims.json")), "give --credential or --principal ISSUER:SUBJECT, whose claims these are"),
        (Caller(principal="nobody:x"), "begins with no configured issuer: api-key:"),
        (Caller(principal="api-key:x"), "has no key 'x'"),
        (Caller(credential="wrong"), "refused: The API key is not valid"),
        (Caller(principal="api-key:bob", workspace="../x"), "is not a slug"),
        (Caller(principal="api-key:bob", header=["x"]), "NAME:VALUE"),
    ],
    ids=str,
)
def test_who_cannot_call_is_told_why(caller: Caller, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        explained(caller, offline=True)


@requirement("pol.manifest")
def test_the_commands_take_a_credential_from_the_environment(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"inner": SERVERS["inner"]}, "gateway": OPTIONS}))

    def ran(*arguments: str, who: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "MCP_GATEWAY_CREDENTIAL": KEYS.get(who, "")}
        return run_command(*arguments, "--config", str(config), env=environment)

    printed = ran("explain", "--tool", "recall", who="alice-new")
    assert printed.returncode == 0, printed.stderr
    assert "principal: api-key:alice-new" in printed.stdout and "tool recall: visible · read" in printed.stdout
    missing = ran("explain", "--tool", "nothing", who="alice-new")
    assert missing.returncode == 2 and "no server lists it" in missing.stderr
    seen = json.loads(ran("manifest", who="alice-new").stdout)["tools"]
    assert {tool["operation"] for tool in seen} == {"read"}
