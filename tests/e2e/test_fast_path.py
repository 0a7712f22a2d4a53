"""The fast path: real clients take it, and after whatever changes the next call is decided on anew, and is right."""

import asyncio
import hashlib
import json
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.test_connection_memory import ON, Counted, Raw, became
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, SCRIPTED, RunningGateway, running_gateway, server
from tests.support.http_bytes import Answer, post
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import ACCEPT, VERSION, Legacy, Modern, events, messages, modern_body

pytestmark = requirement("fast.same")

OPERATOR = "the key of olga"
KEYS = {"olga": hashlib.sha256(OPERATOR.encode()).hexdigest()}
OPTIONS: dict[str, Any] = {**ON, "admin": {**ON["admin"], "keys": KEYS, "frames": "any"}}
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    with in_process_gateway({"p": server(PROBE)}, options=OPTIONS) as running:
        yield running


def raw_of(gateway: InProcessGateway | RunningGateway, era: str) -> tuple[Raw, str]:
    """A client of that era whose calls take the fast path, and its session."""
    with httpx.Client() as http:
        if era == "modern":
            token = Modern(gateway.url, http).tool("pid").headers["mcp-gateway-session"]
            return Raw(gateway, modern=token).warm("echo"), token
        legacy = Legacy(gateway.url, http).open()
        return Raw(gateway, legacy).warm("echo"), legacy.session


def result_of(answer: Answer) -> Any:
    assert answer.status == 200, answer
    return json.loads(answer.body)["result"]


def echoed(answer: Answer) -> Any:
    """What `echo` was called with."""
    return json.loads(result_of(answer)["content"][0]["text"])


def is_general_once(gateway: InProcessGateway, raw: Raw) -> None:
    """The next call goes the general way and is right, and soon calls are fast again."""
    fast = Counted(gateway)
    assert echoed(raw.call("echo", {"n": 1})) == {"n": 1} and fast("fast") == 0
    assert {echoed(raw.call("echo", {"n": 2}))["n"] for _ in range(10)} == {2} and fast("fast") >= 5


# -- who takes it


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("arguments", [{"n": 1}, None], ids=["arguments", "none"])
async def test_calls_of_the_sdk_take_it(gateway: InProcessGateway, mode: Any, arguments: Any) -> None:
    fast = Counted(gateway)
    async with (
        httpx2.AsyncClient() as http,
        Client(streamable_http_client(gateway.url, http_client=http), mode=mode) as client,
    ):
        for _ in range(20):
            content: Any = (await client.call_tool("echo", arguments)).content[0]
            assert json.loads(content.text) == (arguments or {})
        assert await asyncio.to_thread(fast, "fast") >= 8, became(gateway)


@ERAS
def test_progress_that_comes_with_its_answer_takes_it_and_can_be_replayed(era: str) -> None:
    progress = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":@TOKEN,"progress":1}}'
    together = [progress + '\n{"jsonrpc":"2.0","id":@ID,"result":{"content":[]}}']
    with in_process_gateway({"s": server((*SCRIPTED, "legacy"))}, options=ON) as gateway, httpx.Client() as http:
        client: Legacy | Modern
        if era == "legacy":
            client = Legacy(gateway.url, http).open()
        else:
            token = Modern(gateway.url, http).tool("got").headers["mcp-gateway-session"]
            client = Modern(gateway.url, http, headers={"MCP-Gateway-Session": token})
        fast = Counted(gateway)
        for n in range(12):
            answer = client.tool("say", {"lines": together}, meta={"progressToken": f"t{n}"})
            told, result = messages(answer)
            assert told["params"] == {"progressToken": f"t{n}", "progress": 1} and result["result"]["content"] == []
        assert fast("fast") >= 6, became(gateway)
        ids = [event_id for event_id, _ in events(answer.text)]
        assert (set(ids) != {""}) is (era == "legacy")
        if isinstance(client, Legacy):
            with client.get(ids[0]) as replay:
                replay.read()
                assert messages(replay) == [told, result]


@requirement("spec.modern")
def test_each_argument_is_compared_with_the_header_that_mirrors_it() -> None:
    with in_process_gateway({"p": server((*PROBE, "mirror"))}, options=ON) as gateway, httpx.Client() as http:
        modern, fast = Modern(gateway.url, http), Counted(gateway)
        token = {"MCP-Gateway-Session": modern.tool("pid").headers["mcp-gateway-session"], "Mcp-Param-Region": "eu"}
        regions = ["eu"] * 12 + ["us", "eu", "eu"]
        answers = [modern.tool("echo", {"region": region, "n": 1}, headers=token) for region in regions]
        assert [answer.status_code for answer in answers] == [200 if region == "eu" else 400 for region in regions]
        assert answers[12].json()["error"]["code"] == -32_020 and fast("fast") >= 8


# -- what changes


@ERAS
def test_a_list_that_has_changed_is_asked_for_before_the_next_call(gateway: InProcessGateway, era: str) -> None:
    raw, _ = raw_of(gateway, era)
    with raw:
        raw.warm("change" if era == "legacy" else "announce")
        raw.warm("echo")
        assert raw.call("change").status == 200
        is_general_once(gateway, raw)


@requirement("fast.rest")
@ERAS
def test_calls_that_take_longer_than_a_record_is_good_for_take_it(gateway: InProcessGateway, era: str) -> None:
    raw, _ = raw_of(gateway, era)
    fast = Counted(gateway)
    assert {raw.call("sleep", {"seconds": 0.08 + n / 1_000}).status for n in range(12)} == {200}
    assert fast("fast") >= 6, "each of them reads the record of its session first"
    raw.close()


def test_a_gateway_that_stops_answers_what_is_on_the_fast_path() -> None:
    with running_gateway({"p": server(PROBE)}, options=ON) as gateway, Raw(gateway) as raw, Raw(gateway):
        raw.warm("sleep", {"seconds": 0})
        raw.send(raw.request("sleep", {"seconds": 0.8}))
        gateway.process.send_signal(signal.SIGTERM)
        answer = raw.answer()
        assert answer.status == 200 and b"slept" in answer.body and answer.header("connection") == "close"


def test_a_call_that_a_gateway_cannot_wait_for_is_told_before_it_is_cut() -> None:
    with running_gateway({"p": server(PROBE)}, options=ON) as gateway:
        clients = [raw_of(gateway, era)[0] for era in ("legacy", "modern")]
        for raw in clients:
            raw.send(raw.request("sleep", {"seconds": 60}))
        gateway.process.send_signal(signal.SIGTERM)
        for raw in clients:
            answer = raw.answer()
            assert b"-32014" in answer.body and b"whether the call took effect is unknown" in answer.body, answer
        gateway.process.wait(20)
        assert "Traceback" not in gateway.stderr()
        for raw in clients:
            raw.close()


@requirement("cli.default-shared")
def test_a_default_session_takes_it_except_for_an_id_that_was_used_there() -> None:
    options = {**ON, "api_keys": {"alice": hashlib.sha256(b"alice").hexdigest()}}
    headers = {"Authorization": "Bearer alice", "User-Agent": "curl/8", "MCP-Protocol-Version": VERSION}
    headers |= {"Mcp-Method": "tools/call", "Mcp-Name": "echo", "Content-Type": "application/json", **ACCEPT}
    with in_process_gateway({"p": server(PROBE)}, options=options) as gateway, httpx.Client() as http:
        raw = Raw(gateway, Legacy(gateway.url, http), modern="none")

        def shared(request_id: int) -> bool:
            body = modern_body("tools/call", {"name": "echo", "arguments": {"n": 1}}, request_id=request_id)
            lines = (f"{name}: {value}" for name, value in {"Host": "127.0.0.1", **headers}.items())
            raw.send(post("/mcp", json.dumps(body).encode(), *lines))
            return "io.github.mcp-session-gateway/shared" in result_of(raw.answer()).get("_meta", {})

        fast = Counted(gateway)
        assert not any(shared(n) for n in range(20)) and fast("fast") >= 8, became(gateway)
        fast = Counted(gateway)
        assert shared(19) and fast("fast") == 0, "the fast path has noted it, and leaves it to the general way"
        raw.close()
