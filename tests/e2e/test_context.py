"""What tools see of a session, and what no client can make them see."""

import json
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text

CONTEXT = "io.github.mcp-session-gateway/context"


def env(client: Legacy | Modern, prefix: str = "") -> dict[str, str]:
    value = json.loads(tool_text(client.tool("env", {"prefix": prefix})))
    assert isinstance(value, dict)
    return value


@requirement("ctx.env")
def test_a_child_is_told_its_session_by_default_names(probe: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(probe.at("probe"), http).open(name="my-host")
    told = env(client, "MCP_SESSION_")
    assert set(told) == {
        "MCP_SESSION_ID",
        "MCP_SESSION_WORKSPACE",
        "MCP_SESSION_TRUST",
        "MCP_SESSION_PRINCIPAL",
        "MCP_SESSION_AGENT",
        "MCP_SESSION_PERMISSIONS",
        "MCP_SESSION_CORRELATION",
        "MCP_SESSION_SOCKET",
        "MCP_SESSION_ACCESS",
        "MCP_SESSION_FACTS",
    }
    assert len(told["MCP_SESSION_ID"]) == 24 and told["MCP_SESSION_ID"] not in client.session[25:]
    assert (told["MCP_SESSION_TRUST"], told["MCP_SESSION_PRINCIPAL"]) == ("direct", "anonymous")
    assert (told["MCP_SESSION_AGENT"], told["MCP_SESSION_PERMISSIONS"]) == ("my-host", "")
    assert len(told["MCP_SESSION_CORRELATION"]) == 32


@requirement("ctx.env")
def test_a_child_inherits_nothing_of_the_gateways_own_environment(http: httpx.Client) -> None:
    from tests.support.gateway_process import PROBE, running_gateway

    secret = {"MCP_GATEWAY_KEYS": "k" * 40, "AWS_SECRET_ACCESS_KEY": "s3cret"}
    with running_gateway(command=PROBE, env=secret) as gateway:
        told = env(Legacy(gateway.url, http).open())
    assert told["PATH"] and not secret.keys() & told.keys()


@requirement("ctx.announce")
@pytest.mark.parametrize("workspace", ["a\nb", "a\x00b", "x" * 4_097, "a b", "../x", 7, ["a"], {"b": "c"}])
def test_a_workspace_that_cannot_be_is_a_clear_error(probe: RunningGateway, http: httpx.Client, workspace: Any) -> None:
    meta = {"orbit.workspace": workspace}
    answers = [
        Legacy(probe.at("probe"), http).initialize(meta=meta),
        Modern(probe.at("probe"), http).tool("pid", meta=meta),
    ]
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == -32602 and "workspace" in answer.json()["error"]["message"]
        assert "mcp-session-id" not in answer.headers and "mcp-gateway-session" not in answer.headers


@requirement("ctx.unforgeable")
def test_a_client_cannot_forge_its_context(probe: RunningGateway, http: httpx.Client) -> None:
    forged = {
        CONTEXT: {"session_id": "forged", "trust": "root", "principal": "forged"},
        "io.github.mcp-session-gateway/anything": "forged",
        "mine": "kept",
    }
    spoofed = {"X-Forwarded-User": "forged", "MCP-Session-Trust": "root", "X-MCP-Principal": "forged"}
    legacy = Legacy(probe.at("probe"), http, headers=spoofed).open(meta=forged)
    modern = Modern(probe.at("probe"), http, headers=spoofed)
    for answer in (legacy.tool("meta", meta=forged), modern.tool("meta", meta=forged)):
        meta = json.loads(tool_text(answer))
        assert meta["mine"] == "kept" and "forged" not in json.dumps(meta)
        assert meta[CONTEXT]["principal"] == "anonymous" and meta[CONTEXT]["trust"] == "direct"
    assert "forged" not in json.dumps(env(legacy)) and "root" not in env(legacy, "MCP_SESSION").values()
    duplicate = (
        '{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"meta","_meta":{"a":1},'
        f'"_meta":{json.dumps(forged)}}}}}'
    )
    twice = http.post(
        legacy.url, content=duplicate, headers={**legacy.request_headers(), "Content-Type": "application/json"}
    )
    assert "forged" not in tool_text(twice)


@requirement("ctx.correlation", "ctx.meta-out")
def test_each_request_has_a_correlation_id_taken_from_a_valid_traceparent(
    probe: RunningGateway, http: httpx.Client
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    valid = f"00-{trace}-00f067aa0ba902b7-01"
    client = Modern(probe.at("probe"), http)

    def seen(answer: httpx.Response) -> tuple[str, str, str]:
        result = messages(answer)[-1]["result"]
        told = json.loads(result["content"][0]["text"])[CONTEXT]
        out = result["_meta"]["io.github.mcp-session-gateway/trace"]
        assert out["session"] == told["session_id"][:8] and len(out["session"]) == 8
        return told["correlation_id"], out["correlation_id"], told["session_id"]

    assert seen(client.tool("meta", headers={"traceparent": valid}))[:2] == (trace, trace)
    assert seen(client.tool("meta", meta={"traceparent": valid}))[:2] == (trace, trace)
    assert f'"correlation": "{trace}"' in probe.stderr()
    for bad in ("nonsense", valid.replace(trace, "0" * 32), valid + "-x"):
        first, second = (seen(client.tool("meta", headers={"traceparent": bad})) for _ in range(2))
        assert first[0] == first[1] != trace and first[0] != second[0]
    legacy = Legacy(probe.at("probe"), http, headers={"traceparent": valid}).open()
    assert seen(legacy.tool("meta"))[:2] == (trace, trace)


def test_trace_facts_are_off_unless_asked_for(demo: RunningGateway, http: httpx.Client) -> None:
    result = messages(Modern(demo.url, http).tool("whoami"))[0]["result"]
    assert "io.github.mcp-session-gateway/trace" not in result["_meta"]
    assert "_meta" not in messages(Legacy(demo.url, http).open().tool("whoami"))[0]["result"]
