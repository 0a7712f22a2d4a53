"""Answers of servers that cannot be read: their calls end at once, and honestly, and no other call is harmed."""

import contextlib
import functools
import threading
import time
from typing import Any

import httpx
import pytest

from tests.e2e.test_questions_to_legacy_clients import Call
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, server
from tests.support.http_probe_server import running_http_probe
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text
from tests.support.waiting import eventually

NAMED = [
    '{"jsonrpc":"2.0","id":ID,"result":DEEP}',
    '{"result":DEEP,"jsonrpc":"2.0","id":ID}',
    '{"jsonrpc":"2.0","id":ID,"result":{"x":NaN}}',
    '{"jsonrpc":"2.0","id":ID,"result":{"text":"\xff"}}',
    '{"jsonrpc":"2.0","id":ID,"result":{"cut',
    '{"jsonrpc":"2.0","id":ID}',
    '{"jsonrpc":"2.0","id":ID,"result":[1]}',
]
NAMELESS = ['{"jsonrpc":"2.0","result":{"x":DEEP}}', '{"jsonrpc":"2.0","id":"ID","result":DEEP}']
NO_ANSWERS = ["{'jsonrpc': '2.0', 'id': ID}", '{"level":"error","id":ID,"error":"no route"}', "ID", "[ID"]


def failed(answer: Any, code: int = -32014) -> bool:
    error = answer["error"]
    return error["code"] == code and "cannot be read" in error["message"]


@requirement("rep.honest", "proc.noise")
@pytest.mark.parametrize("line", [*NAMED, *NAMELESS])
def test_a_process_that_answers_unreadably_fails_its_call_at_once(
    probe: RunningGateway, http: httpx.Client, line: str
) -> None:
    for client in (
        Legacy(probe.at("probe"), http).open(),
        Modern(probe.at("probe"), http),
    ):
        began = time.monotonic()
        assert failed(messages(client.tool("broken", {"line": line}))[-1])
        assert time.monotonic() - began < 5
        assert tool_text(client.tool("echo", {"a": 1})) == '{"a": 1}'


@requirement("rep.honest")
def test_an_error_about_nothing_in_particular_is_that_of_the_only_call(
    probe: RunningGateway, http: httpx.Client
) -> None:
    client = Legacy(probe.at("probe"), http).open()
    line = '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"cannot parse this"}}'
    assert messages(client.tool("broken", {"line": line}))[-1]["error"]["message"] == "cannot parse this"


@requirement("rep.honest", "proc.noise")
def test_only_calls_that_may_be_meant_fail(http: httpx.Client) -> None:
    """The log of all levels says when a line was read."""
    with in_process_gateway({"probe": server(PROBE)}, options={"log_level": "debug"}) as probe:
        client = Legacy(probe.url, http).open()
        hanging = Call(client, "hang", {"say": True})
        assert hanging.next()["method"] == "notifications/message"
        for line in NO_ANSWERS:
            # It answers nobody: the call waits, and so does the other one.
            told = probe.stderr().count("that is not a JSON-RPC message") + 1
            noisy = threading.Thread(target=quietly, args=(client, line), daemon=True)
            noisy.start()
            assert eventually(functools.partial(is_told, probe, told), 10)
            assert tool_text(client.tool("echo", {"a": 1})) == '{"a": 1}'
            assert noisy.is_alive() and hanging.is_quiet
        assert failed(messages(client.tool("broken", {"line": NAMED[0]}))[-1]), "the one that is named, and no other"
        assert tool_text(client.tool("echo", {"a": 1})) == '{"a": 1}'
        assert failed(messages(client.tool("broken", {"line": NAMELESS[0]}))[-1])
        assert failed(hanging.next()), "which of them it was is not known: both are told so"


def is_told(gateway: InProcessGateway, times: int) -> bool:
    return gateway.stderr().count("that is not a JSON-RPC message") >= times


def quietly(client: Legacy, line: str) -> None:
    with httpx.Client(timeout=30) as http, contextlib.suppress(httpx.HTTPError):
        body = {"jsonrpc": "2.0", "id": f"noisy {line}", "method": "tools/call"}
        params = {"name": "broken", "arguments": {"line": line}}
        http.post(client.url, json={**body, "params": params}, headers=client.request_headers())


@requirement("rep.honest")
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_a_server_behind_a_url_that_answers_unreadably_fails_its_call_at_once(http: httpx.Client, kind: str) -> None:
    with running_http_probe() as remote, in_process_gateway({"remote": {"url": remote.url}}) as gateway:
        client = Legacy(gateway.url, http).open()
        for line in (*NAMED[:3], *NAMED[4:6], *NAMELESS):
            began = time.monotonic()
            answer = messages(client.tool("broken", {"line": line, "kind": kind}))[-1]
            assert answer["error"]["code"] == -32014, answer
            assert time.monotonic() - began < 5
        assert tool_text(client.tool("echo", {"text": "hi"})) == "hi"
