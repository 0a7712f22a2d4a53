"""Streams of notifications that a server ends by `notifications/cancelled` (MCP 2026-07-28, Cancellation)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Modern, events, modern_body, modern_headers

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
NOTIFIES = (*PROBE, "notifies", "modern-only")


class Stream:
    """A `subscriptions/listen` and what has come of it."""

    def __init__(self, response: httpx.Response) -> None:
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


@requirement("spec.ended-listen")
def test_a_legacy_server_keeps_the_stream_open(http: httpx.Client) -> None:
    servers = {"new": server(NOTIFIES, shared=True), "old": server((*PROBE, "legacy-only"), shared=True)}
    with running_gateway(servers) as gateway:
        client = Modern(gateway.url, http)
        with listening(gateway, 1) as stream:
            client.tool("new__unlisten")
            client.tool("old__change")
            assert stream.until(2)[1]["method"] == "notifications/tools/list_changed"
