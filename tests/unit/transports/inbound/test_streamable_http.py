"""A request that is made again because the owner of its session is gone."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from gateway.errors import outcome_unknown
from tests.requirements import requirement
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


async def sent_for(owners: Any, body: bytes) -> list[Any]:
    """What a client gets for a POST to a process with this handler and forwarder."""
    refusals, sent = Counter[Any](), list[Any]()
    app = StreamableHttp(
        owners,
        "/mcp",
        guard=Guard(),
        body_budget=BodyBudget(1 << 30, refusals, lambda _: Refused(503, 0, "")),
        limits=Limits(),
        refusals=refusals,
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
    return sent


@requirement("rep.no-retry")
@pytest.mark.parametrize("body", [CALL, b"[" + CALL + b"]"])
async def test_what_may_have_run_is_not_said_to_be_undone(body: bytes) -> None:
    sent = await sent_for(Owners(), body)
    error = msgspec.json.decode(sent[1]["body"])["error"]
    assert error["code"] == outcome_unknown().code and "again" not in error["message"]


ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{}}'
NOTIFICATION = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'


class Leaving(Owners):
    """A handler that has the session when a batch comes, and another process by the time of its messages."""

    def __init__(self, *, is_reached: bool) -> None:
        super().__init__()
        self.is_reached = is_reached
        self.forwarded: list[bytes] = []

    async def negotiated(self, request: Request) -> Any:
        return "2025-03-26"

    async def respond(self, request: Request) -> None:
        raise OwnedByPeer(None)

    async def notify(self, request: Request) -> Any:
        raise OwnedByPeer(None)

    async def forward(self, route: Any, scope: Any, body: bytes, receive: Any, send: Any) -> Any:
        if not self.is_reached:
            raise Refused(503, -32013, "Try again.")
        self.forwarded.append(body)
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@requirement("spec.batch")
@pytest.mark.parametrize("is_reached", [True, False])
async def test_messages_of_a_batch_without_an_answer_follow_their_session_to_another_process(
    is_reached: bool, caplog: pytest.LogCaptureFixture
) -> None:
    owners = Leaving(is_reached=is_reached)
    sent = await sent_for(owners, b"[" + ANSWER + b"," + NOTIFICATION + b"," + CALL + b"]")
    assert owners.forwarded == ([ANSWER, NOTIFICATION] if is_reached else [])
    assert ("is lost" in caplog.text) is not is_reached
    (answer,) = msgspec.json.decode(sent[1]["body"])
    assert answer["id"] == 1 and "Nothing was done" in answer["error"]["message"] and len(sent) == 2
