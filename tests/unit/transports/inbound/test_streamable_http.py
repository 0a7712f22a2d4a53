"""A request that is made again because the owner of its session is gone."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from gateway.errors import outcome_unknown
from tests.requirements import requirement
from transports.inbound.event_stream import StreamTimes
from transports.inbound.host_and_origin import Guard
from transports.inbound.streamable_http import StreamableHttp
from transports.inbound.unauthenticated_limits import BodyBudget, Limits
from transports.inbound_port import OwnedByPeer, Refused, Request

CALL = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pay"}}'


class Owners:
    """A handler and a forwarder: the session's owner dies after it has begun the request; then the store is away."""

    def __init__(self) -> None:
        self.is_lost = False

    async def check_sender(self, request: Request) -> None:
        """Let everybody in."""

    async def negotiated(self, request: Request) -> Any:
        return await self.call(request)

    async def call(self, request: Request) -> Any:
        if not self.is_lost:
            raise OwnedByPeer(None)
        raise Refused(503, -32013, "Try again.")

    async def forward(self, route: Any, scope: Any, body: bytes, receive: Any, send: Any) -> Any:
        self.is_lost = scope["mcp.again"] = True
        return send

    def refused(self, headers: Mapping[str, str], why: Refused, *, again: bool = False) -> Refused:
        return outcome_unknown() if again else why


@requirement("rep.no-retry")
@pytest.mark.parametrize("body", [CALL, b"[" + CALL + b"]"])
async def test_what_may_have_run_is_not_said_to_be_undone(body: bytes) -> None:
    owners, refusals, sent = cast("Any", Owners()), Counter[Any](), []
    app = StreamableHttp(
        owners,
        "/mcp",
        guard=Guard(),
        body_budget=BodyBudget(1 << 30, refusals, lambda _: Refused(503, 0, "")),
        limits=Limits(),
        refusals=refusals,
        times=StreamTimes(),
        forwarder=owners,
    )
    headers = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-session-id": "s",
    }
    received = iter([{"type": "http.request", "body": body}])

    async def receive() -> Any:
        return next(received, None) or await asyncio.Event().wait()

    async def send(event: Any) -> None:
        sent.append(event)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": raw, "client": ("127.0.0.1", 1)}
    await app(cast("Any", scope), receive, send)
    error = msgspec.json.decode(sent[1]["body"])["error"]
    assert error["code"] == outcome_unknown().code and "again" not in error["message"]
