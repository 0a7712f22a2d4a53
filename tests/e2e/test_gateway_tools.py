"""The gateway's own tools: a client's sessions, and nobody else's."""

import json
from typing import Any

import httpx
import psutil
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import PROBE, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, messages, tool_text
from tests.support.waiting import gone


def listed(client: Legacy) -> list[Any]:
    result = messages(client.tool("gateway__list_sessions"))[-1]["result"]
    return [json.loads(part["text"]) for part in result["content"]]


@requirement("pol.tools", "life.default-only", "life.end", "id.bound")
def test_a_client_sees_and_ends_its_own_sessions_only(http: httpx.Client) -> None:
    """At a gateway where its principal has no others."""
    options = {"api_keys": {name: sha256(key) for name, key in KEYS.items()}, "tools": True}
    with in_process_gateway({"probe": server(PROBE)}, options=options) as gateway:

        def opened(who: str, name: str) -> Legacy:
            return Legacy(gateway.url, http, headers=bearer(KEYS[who])).open(name=name)

        one = opened("alice", "first")
        assert [s["client"] for s in listed(one)] == ["first"]
        assert json.loads(tool_text(one.tool("gateway__show_session")))["here"] is True, "there is but one"
        two, foreign = opened("alice", "second"), opened("bob", "his")
        assert {s["client"] for s in listed(one)} == {"first", "second"}
        several = messages(one.tool("gateway__show_session"))[-1]["result"]
        assert several["isError"] and "first characters" in several["content"][0]["text"]
        child = psutil.Process(int(tool_text(two.tool("probe__pid"))))
        ids = {s["client"]: s["session"] for s in (*listed(one), *listed(foreign))}
        for not_mine in (ids["his"], ids["first"], "nonsense"):
            refused = messages(one.tool("gateway__end_session", {"session": not_mine}))[-1]["result"]
            assert refused["isError"] and "no such session" in refused["content"][0]["text"]
        assert tool_text(one.tool("gateway__end_session", {"session": ids["second"]})) == f"ended {ids['second']}"
        assert gone([child]) and two.tool("probe__pid").status_code == 404
        assert tool_text(foreign.tool("probe__pid"))


@requirement("pol.tools")
@pytest.mark.parametrize("tools", [True, False])
def test_without_a_name_there_is_only_ones_own_session_and_off_means_off(http: httpx.Client, tools: bool) -> None:
    with in_process_gateway({"probe": server(PROBE)}, options={"tools": tools}) as gateway:
        one, _ = (Legacy(gateway.url, http).open() for _ in range(2))
        names = {tool["name"] for tool in messages(one.call("tools/list"))[-1]["result"]["tools"]}
        assert ("gateway__list_sessions" in names) is tools
        if tools:
            assert [s["here"] for s in listed(one)] == [True]
