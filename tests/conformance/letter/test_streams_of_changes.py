"""Streams of changes of 2026-07-28, on HTTP and on the gateway's own stdin and stdout."""

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conformance.letter.conftest import Letter
from tests.conformance.letter.test_http_endpoint import DONE, line, lines, log
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, running_gateway, server
from tests.support.listening import SUBSCRIPTION, WANTED, listening
from tests.support.mcp_clients import Modern, modern_body
from tests.support.stdio_client import Typed

pytestmark = requirement("spec.letter")

LEVEL = "io.modelcontextprotocol/logLevel"


def test_a_stream_begins_with_what_is_honoured_and_has_only_that(letter: Letter, http: httpx.Client) -> None:
    url = letter.url("common")
    unasked = line(method="notifications/prompts/list_changed", params={"_meta": {SUBSCRIPTION: "ID"}})
    progress = line(method="notifications/progress", params={"progressToken": "ID", "progress": 1})
    said = lines(log("error", "of a call"), progress, unasked, DONE)
    with listening(url, "a") as first, listening(url, 7) as second:
        call = Modern(url, http).tool("broken", said, meta={LEVEL: "debug", "progressToken": "p"})
        assert call.text.count('"method"') == 2, "they are on the stream of their call"
        announcing = threading.Thread(target=lambda: Modern(url, http).tool("announce"))
        announcing.start()
        for stream in (first, second):
            stream.until(2)
        announcing.join(10)
    for stream, own in ((first, "a"), (second, 7)):
        assert stream.seen[0]["method"] == "notifications/subscriptions/acknowledged"
        assert stream.seen[0]["params"]["notifications"] == {"toolsListChanged": True}
        assert {message["method"] for message in stream.seen[1:]} == {"notifications/tools/list_changed"}
        assert {message["params"]["_meta"][SUBSCRIPTION] for message in stream.seen} == {own}


@pytest.mark.parametrize("shape", ["legacy-only", "modern-only"])
def test_a_gateway_that_stops_ends_its_streams_with_a_result(shape: str) -> None:
    with running_gateway({"p": server((*PROBE, shape, "notifies"))}) as gateway:
        with listening(gateway.url, "mine") as stream:
            gateway.process.send_signal(signal.SIGTERM)
            stream.rest()
    last = stream.seen[-1]
    assert last["id"] == "mine" and last["result"]["resultType"] == "complete"
    assert last["result"]["_meta"][SUBSCRIPTION] == "mine"


def modern(method: str, params: Any, request_id: Any, **meta: Any) -> bytes:
    return json.dumps(modern_body(method, params, request_id=request_id, meta=meta)).encode()


@pytest.fixture
def typed() -> Iterator[Typed]:
    """A modern client of the gateway's stdin and stdout."""
    client = Typed(child=(*PROBE, "modern-only", "notifies"))
    client.write(
        modern("tools/call", {"name": "echo", "arguments": {}}, "up")
    )  # it has started: see `spec.cold-listen`
    assert client.read()["id"] == "up"
    yield client
    assert client.end() == 0


def test_on_stdout_each_line_is_an_answer_or_a_notification(typed: Typed) -> None:
    asks = line(id="q", method="roots/list")
    said = lines(log("error", "one\ntwo"), asks, DONE)
    typed.write(modern("tools/call", {"name": "broken", "arguments": said}, "c", **{LEVEL: "info"}))
    first, last = typed.read(), typed.read()
    assert first["method"] == "notifications/message" and first["params"]["data"] == "one\ntwo"
    assert last["id"] == "c" and last["result"]["content"][0]["text"] == "done"


def test_a_call_that_is_cancelled_on_stdin_has_no_further_messages(typed: Typed) -> None:
    typed.write(modern("tools/call", {"name": "hang", "arguments": {"say": True}}, "gone", **{LEVEL: "info"}))
    assert typed.read()["params"]["data"] == "hanging", "the server has it"
    typed.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"gone"}}')
    typed.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"never"}}')
    typed.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}')
    typed.write(modern("tools/call", {"name": "sleep", "arguments": {"seconds": 0.3}}, "kept"))
    assert typed.read()["id"] == "kept", "nothing came of the others"
    typed.write(modern("tools/call", {"name": "cancelled"}, "told"))
    told = json.loads(typed.read()["result"]["content"][0]["text"])
    assert len(told) == 1, "the server was told of the call"


def test_streams_on_stdout_are_told_apart_and_end_when_they_are_cancelled(typed: Typed) -> None:
    typed.write(modern("subscriptions/listen", WANTED, "s1"))
    typed.write(modern("subscriptions/listen", WANTED, "s2"))
    acknowledged = [typed.read(), typed.read()]
    assert {m["method"] for m in acknowledged} == {"notifications/subscriptions/acknowledged"}
    assert sorted(m["params"]["_meta"][SUBSCRIPTION] for m in acknowledged) == ["s1", "s2"]
    typed.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"s1"}}')
    typed.write(modern("tools/call", {"name": "echo", "arguments": {}}, "between"))
    assert typed.read()["id"] == "between"
    typed.write(modern("tools/call", {"name": "announce"}, "a"))
    seen = [typed.read(), typed.read()]
    changed = [m["params"]["_meta"][SUBSCRIPTION] for m in seen if "method" in m]
    assert changed == ["s2"] and [m["id"] for m in seen if "id" in m] == ["a"]


def test_a_stream_that_its_server_ends_is_cancelled_on_stdout(typed: Typed) -> None:
    typed.write(modern("subscriptions/listen", WANTED, "s3"))
    assert typed.read()["method"] == "notifications/subscriptions/acknowledged"
    typed.write(modern("tools/call", {"name": "unlisten"}, "u"))
    seen = [typed.read()]
    while not any(m.get("params", {}).get("requestId") == "s3" for m in seen):
        seen.append(typed.read())
    ended = [m["params"]["requestId"] for m in seen if m.get("method") == "notifications/cancelled"]
    assert ended == ["s3"]
    assert next(m for m in seen if m.get("id") == "s3")["result"]["_meta"][SUBSCRIPTION] == "s3"
