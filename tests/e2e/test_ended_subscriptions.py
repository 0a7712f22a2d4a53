"""Streams of notifications that a server ends by `notifications/cancelled` (MCP 2026-07-28, Cancellation)."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Modern, events, modern_body, modern_headers, tool_text
from tests.support.scripted_http_server import Reply, Seen, discovered, event, result_of, running_scripted_server
from tests.support.waiting import eventually

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
NOTIFIES = (*PROBE, "notifies", "modern-only")


class Stream:
    """A `subscriptions/listen` and what has come of it."""

    def __init__(self, response: httpx.Response) -> None:
        self.session = response.headers["mcp-gateway-session"]
        self._chunks = response.iter_text()
        self._text = ""

    @property
    def seen(self) -> list[Any]:
        return [json.loads(data) for _, data in events(self._text[: self._text.rfind("\n\n") + 2]) if data]

    def until(self, count: int) -> list[Any]:
        """The first messages, so many."""
        while len(self.seen) < count:
            self._text += next(self._chunks)
        return self.seen

    def rest(self) -> list[Any]:
        """All messages, once the gateway has ended the stream."""
        self._text += "".join(self._chunks)
        return self.seen


@contextmanager
def listening(gateway: RunningGateway, request_id: object) -> Iterator[Stream]:
    body = modern_body("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, request_id=request_id)
    with (
        httpx.Client(timeout=20) as own,
        own.stream("POST", gateway.url, json=body, headers=modern_headers(body)) as response,
    ):
        stream = Stream(response)
        assert stream.until(1)[0]["method"] == "notifications/subscriptions/acknowledged"
        yield stream


@requirement("spec.ended-listen")
def test_a_stream_that_the_only_server_ends_is_ended_gracefully(http: httpx.Client) -> None:
    with running_gateway({"p": server(NOTIFIES, shared=True)}) as gateway:
        with listening(gateway, "mine") as stream:
            assert Modern(gateway.url, http).tool("unlisten").status_code == 200
            last = stream.rest()[-1]
        assert last["id"] == "mine" and last["result"]["resultType"] == "complete"
        assert last["result"]["_meta"][SUBSCRIPTION] == "mine"


@requirement("spec.ended-listen")
def test_a_stream_of_several_servers_ends_with_the_last_of_them(http: httpx.Client) -> None:
    servers = {"one": server(NOTIFIES, shared=True), "two": server(NOTIFIES, shared=True)}
    with running_gateway(servers) as gateway:
        client = Modern(gateway.url, http)
        with listening(gateway, 7) as stream:
            client.tool("one__unlisten")
            client.tool("one__announce")
            client.tool("two__announce")
            assert stream.until(2)[1]["method"] == "notifications/tools/list_changed", "the other server's"
            client.tool("two__unlisten")
            seen = stream.rest()
        assert len(seen) == 3 and seen[-1]["id"] == 7 and seen[-1]["result"]["_meta"][SUBSCRIPTION] == 7

        with listening(gateway, 8) as stream:
            client.tool("one__unlisten")
            client.tool("two__crash")
            last = stream.rest()[-1]
        assert last["id"] == 8 and last["error"]["code"] == -32013, "a server that is gone has ended nothing gracefully"


@requirement("spec.lost-listen")
def test_a_server_that_was_killed_has_its_part_of_a_stream_again_once_it_is_used() -> None:
    servers = {"one": server(NOTIFIES), "two": server(NOTIFIES)}
    with running_gateway(servers) as gateway, listening(gateway, 9) as stream, httpx.Client(timeout=20) as own:
        client = Modern(gateway.url, own, headers={"MCP-Gateway-Session": stream.session})
        for round_ in range(1, 3):
            os.kill(int(tool_text(client.tool("one__pid"))), signal.SIGKILL)
            assert eventually(lambda: "restarted" in client.tool("one__pid").text)
            seen = stream.until(2 * round_)
            assert seen[-1]["method"] == "notifications/tools/list_changed", "what it changed meanwhile may be missed"
            client.tool("one__announce")
            stream.until(2 * round_ + 1)
        client.tool("two__announce")
        seen = stream.until(6)
    assert {message["method"] for message in seen[1:]} == {"notifications/tools/list_changed"}
    assert {message["params"]["_meta"][SUBSCRIPTION] for message in seen} == {9}


@requirement("spec.lost-listen")
def test_a_server_behind_a_url_has_its_part_of_a_stream_again_after_its_connection_was_cut() -> None:
    def script(seen: Seen) -> Reply:
        if seen.body["method"] != "subscriptions/listen":
            return Reply(body=result_of(seen, {**discovered(tools={"listChanged": True}), "tools": []}))
        meta = {SUBSCRIPTION: seen.body["id"]}
        params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
        frame = event({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})
        if len(remote.posted("subscriptions/listen")) == 1:
            return Reply(events=(frame,))
        later = {"method": "notifications/tools/list_changed", "params": {"_meta": meta | {"com.acme/later": True}}}
        return Reply(events=(frame, event({"jsonrpc": "2.0", **later})), holds=True)

    with running_scripted_server(script) as remote:
        servers = {"remote": {"url": remote.url}, "two": server(NOTIFIES)}
        with running_gateway(servers) as gateway, listening(gateway, 3) as stream:
            count = 2
            while "com.acme/later" not in stream.until(count)[-1]["params"]["_meta"]:
                count += 1
        assert len(remote.posted("subscriptions/listen")) == 2
        before = stream.seen[-2]
        assert before["method"] == "notifications/tools/list_changed", "what it changed meanwhile may be missed"


@requirement("spec.ended-listen")
def test_a_legacy_server_keeps_the_stream_open(http: httpx.Client) -> None:
    servers = {"new": server(NOTIFIES, shared=True), "old": server((*PROBE, "legacy-only"), shared=True)}
    with running_gateway(servers) as gateway:
        client = Modern(gateway.url, http)
        with listening(gateway, 1) as stream:
            client.tool("new__unlisten")
            client.tool("old__change")
            assert stream.until(2)[1]["method"] == "notifications/tools/list_changed"
