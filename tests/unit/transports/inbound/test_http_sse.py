"""Which messages reach an event stream of HTTP+SSE, and what one that cannot be read does to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from session_store.embedded.backend import MemoryBus
from tests.requirements import requirement
from tests.support.mcp_clients import modern_body
from transports.inbound import http_sse
from transports.inbound.host_and_origin import Guard
from transports.inbound.http_sse import Addresses, HttpSse
from transports.inbound_port import Carried

CALL = modern_body("tools/call", {"name": "x"})

pytestmark = requirement("spec.sse-session")


async def endpoint(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request with its id."""
    asked = json.loads((await receive())["body"] or b"{}")
    answer = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "result": {}}).encode()
    headers = [(b"content-type", b"application/json"), (b"mcp-gateway-session", b"s")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


class Handler:
    async def join(self, request: Any) -> Carried:
        return Carried(caller="alice")

    async def carried(self, request: Any) -> Carried:
        return Carried(caller="alice")

    def refused(self, headers: Any, refused: Any, *, again: bool = False) -> Any:
        return refused


class Bus(MemoryBus):
    """Keep the topics that are subscribed to."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: list[str] = []

    @asynccontextmanager
    async def subscribed(self, topic: str, receive: Any) -> AsyncIterator[None]:
        self.topics.append(topic)
        async with super().subscribed(topic, receive):
            yield


class Client:
    """Open a stream at a gateway in this process, and post to it."""

    def __init__(self, bus: MemoryBus, app: Any = endpoint) -> None:
        handler: Any = Handler()
        self._served = HttpSse(
            app,
            handler,
            "/mcp",
            bus,
            guard=Guard(),
            addresses=Addresses([b"k" * 32]),
            body_limit=1 << 20,
            session_key="session",
        )
        self._left = asyncio.Event()
        self._events: asyncio.Queue[str] = asyncio.Queue()
        self._address = ""
        self.answer: list[Any] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        stream = asyncio.create_task(self._served(self._scope("GET", "/sse"), self._leave, self._receive))
        try:
            async with asyncio.timeout(5):
                self._address = (await self.event()).partition("data: ")[2].strip()
            yield
        finally:
            self._left.set()
            async with asyncio.timeout(5):
                await stream

    async def event(self) -> str:
        async with asyncio.timeout(5):
            return await self._events.get()

    async def post(self, message: Any) -> int:
        """Post a message, and return the status. `answer` has all that was sent."""
        body, sent = json.dumps(message).encode(), []

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(event: Any) -> None:
            sent.append(event)

        path, _, query = self._address.partition("?")
        await self._served(self._scope("POST", path, query.encode()), receive, send)
        self.answer = sent
        return int(sent[0]["status"])

    @staticmethod
    def _scope(method: str, path: str, query: bytes = b"") -> Any:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        return {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}

    async def _leave(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _receive(self, event: Any) -> None:
        if event.get("body"):
            self._events.put_nowait(event["body"].decode())


@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"\x80"])
async def test_a_message_that_cannot_be_read_leaves_the_stream_open(
    damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    client = Client(bus)
    async with client.open():
        await bus.publish(bus.topics[0], damaged)
        assert await client.post(CALL) == 202
        assert '"id": 1' in await client.event()
    assert "could not be read" in caplog.text


async def test_a_message_of_a_replica_that_asks_for_no_acknowledgement_is_handled() -> None:
    """While replicas have two versions, one of the former has answered 202 already."""
    bus = Bus()
    client = Client(bus)
    async with client.open():
        posted = {"headers": {}, "peer": "", "body": json.dumps(CALL).encode()}
        await bus.publish(bus.topics[0], msgspec.msgpack.encode(posted))
        assert '"id": 1' in await client.event()


class DeafBus(MemoryBus):
    """Lose what is published to the streams that are open, as a store does whose subscriber's connection is dead."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Accept it."""


@pytest.mark.parametrize("is_over", [False, True], ids=["deaf", "over"])
async def test_a_message_that_its_stream_does_not_acknowledge_is_not_accepted(
    is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 202, a client would wait for the answer forever."""
    monkeypatch.setattr(http_sse, "ACKNOWLEDGED_S", 0.0)
    client = Client(MemoryBus() if is_over else DeafBus())
    async with client.open():
        if not is_over:
            assert await client.post(CALL) == 504
    if is_over:
        assert await client.post(CALL) == 504
    head, body = client.answer
    assert b"retry-after" not in dict(head["headers"]) and b"new event stream" in body["body"]


async def test_a_message_is_accepted_while_those_before_it_are_handled() -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    client = Client(MemoryBus(), silent)
    async with client.open():
        opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        assert [await client.post(opening), await client.post(CALL)] == [202, 202]
