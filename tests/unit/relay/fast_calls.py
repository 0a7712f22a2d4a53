"""Parts of the tests of the fast path: a client, and a path whose server answers when the test says so."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context as Variables
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.config.settings import Settings
from gateway.observability.metrics import Metrics
from gateway.observability.request_outcomes import EndedCall
from gateway.policy.rate_limits import RateLimits
from gateway.relay.fast_path import FastCall, FastPath
from gateway.relay.message_handler import MessageHandler
from gateway.relay.reply_delivery import CallReply
from gateway.serving.app import create_app
from session_store import Principal
from tests.support.mcp_clients import ACCEPT, modern_body, modern_headers
from transports.inbound_port import Answer, CallInFlight, CallPath, FastPathOffer, HandlerCache, Request
from transports.jsonrpc import Message, Object, decode_object, encode, parse
from transports.reply_queue import Frame
from transports.upstream.stdio import StdioLink
from transports.upstream_port import LinkClosed

ARGUMENTS = b'{"key":"k"}'
DEMO = {"command": sys.executable, "args": ["-m", "gateway.demo_server"], "tools": {"recall": {"bind": {}}}}
TOOL = "recall"


class Calls:
    """Calls of a tool with one head of one connection. `path_for` makes a path for calls that are like the last one,
    if that was decided on for them."""

    path_for: Callable[[Request, float], CallPath | None] | None = None

    def __init__(self, handler: MessageHandler, like: Request, lives: LiveSessions) -> None:
        self.lives = lives
        self._handler_of_messages = handler
        self._like = replace(like, handler_cache=HandlerCache())
        self._ids = itertools.count(100)
        self.live: LiveSession | None = None

    def like(self, **params: msgspec.Raw) -> "Calls":
        """Calls with these params as well."""
        meta = msgspec.json.decode(params.get("_meta", b"{}"))
        more = replace(self._like, params=self._like.params | params, meta=meta)
        return Calls(self._handler_of_messages, more, self.lives)

    def request(self, client_id: int | str, params: Object) -> Request:
        """One more call under that id, with these params as well."""
        message = Message(jsonrpc="2.0", id=client_id, method="tools/call")
        return replace(self._like, message=message, params=self._like.params | params, offer=FastPathOffer())

    async def begun(self, request: Request) -> CallReply:
        """The reply to a call, which is sent."""
        reply = await self._handler_of_messages.call(request)
        assert isinstance(reply, CallReply) and request.offer is not None
        self.live, self.path_for = reply.live, request.offer.path_for
        return reply

    async def call(self) -> None:
        """One more call, which is answered."""
        client_id = next(self._ids)
        reply = await self.begun(self.request(client_id, {"arguments": msgspec.Raw(ARGUMENTS)}))
        assert (await answer_of(reply))[-1]["id"] == client_id

    async def decided(self) -> FastPath:
        """Call until a path can be made. The first calls may come before the server is known."""
        for _ in range(100):
            await self.call()
            if (path := self.path()) is not None:
                assert isinstance(path, FastPath)
                return path
        raise AssertionError("no path is made")

    def path(self, request: Request | None = None) -> CallPath | None:
        """The path for calls that are like that request, or like the last one."""
        like = request or self.request(1, {"arguments": msgspec.Raw(ARGUMENTS)})
        return None if self.path_for is None else self.path_for(like, 60.0)


@asynccontextmanager
async def warm(era: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Calls]:
    """Calls in a session of that era, for which a path can be made."""
    seen, lives = list[tuple[MessageHandler, Request]](), list[LiveSessions]()
    pipeline_call, live_of = MessageHandler.call, LiveSessions.of

    def calling(handler: MessageHandler, request: Request) -> Any:
        seen.append((handler, request))
        return pipeline_call(handler, request)

    def attaching(all_live: LiveSessions, *args: Any, **more: Any) -> LiveSession:
        lives.append(all_live)
        return live_of(all_live, *args, **more)

    monkeypatch.setattr(LiveSessions, "of", attaching)
    monkeypatch.setattr("gateway.sessions.cached_record_validity.CACHED_FOR_S", 60.0)  # however slow this machine is
    monkeypatch.setattr(MessageHandler, "call", calling)
    # Each call has its line, however many of them the tests before have made in this second.
    monkeypatch.setattr("gateway.observability.request_log.LINES_PER_S", 100_000)
    gateway = {"store": "memory://", **options}
    settings = Settings.model_validate({"mcpServers": {"demo": DEMO}, "gateway": gateway})
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", headers=ACCEPT) as http,
    ):
        body = modern_body("tools/call", {"name": TOOL, "arguments": {"key": "k"}})
        if era == "modern":
            opened = await http.post("/mcp", json=body, headers=modern_headers(body))
            head = modern_headers(body) | {"MCP-Gateway-Session": opened.headers["mcp-gateway-session"]}
        else:
            del body["params"]["_meta"]
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            opened = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
            head = {"MCP-Session-Id": opened.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        http.cookies.clear()
        assert (await http.post("/mcp", json=body, headers=head)).status_code == 200
        handler, like = seen[-1]
        calls = Calls(handler, like, lives[-1])
        await calls.decided()
        yield calls


async def answer_of(reply: CallReply) -> list[Any]:
    """The messages of a reply. Its connection is done with it."""
    got = []
    async with asyncio.timeout(60):
        while (frame := await reply.replies.next()) is not None:
            got.append(msgspec.json.decode(frame.data))
            if frame.final:
                break
    reply.done()
    assert reply.replies.first is None
    return got


class Client:
    """The connection of one client. `answers` are the responses of calls on the fast path, `streams` those with several
    frames and their event ids, `left` the replies of those that have left it, with the correlation ids of their
    requests. `takes`: it takes an answer of the fast path. `late`: a call that was sent after its record was read."""

    takes = True
    fault: Exception | None = None

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._request: Request | None = None
        self.answers: list[tuple[Any, list[tuple[bytes, bytes]]]] = []
        self.streams: list[tuple[list[Any], Sequence[str | None]]] = []
        self.left: list[tuple[CallReply, str]] = []
        self.late: CallInFlight | None = None

    def begin(
        self, path: FastPath, client_id: int | str = "x-1", arguments: bytes = ARGUMENTS, meta: bytes = b""
    ) -> CallInFlight | None:
        """Send a call by the path. `meta`: its `_meta`, if that has a progress token."""
        params = {"arguments": msgspec.Raw(arguments)} | ({"_meta": msgspec.Raw(meta)} if meta else {})
        self._request = self._calls.request(client_id, params)
        token = bytes(decode_object(msgspec.Raw(meta or b"{}"), "_meta").get("progressToken", b""))
        return path.begin(self, b"", (encode(client_id), token, arguments))

    def goes_on(self, call: CallInFlight) -> None:
        self.late = call

    def begin_general(self) -> None:
        self.late = None

    def answer_fast(self, frame: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
        if self.fault is not None:
            raise self.fault
        if self.takes:
            self.answers.append((msgspec.json.decode(frame), headers))
        return self.takes

    def stream_fast(
        self,
        frames: Sequence[Frame],
        record: Callable[[Sequence[Frame]], Sequence[str | None] | None],
        headers: list[tuple[bytes, bytes]],
    ) -> bool:
        ids = record(frames) if self.takes else None
        if ids is None:
            return False
        self.streams.append(([msgspec.json.decode(frame.data) for frame in frames], ids))
        return True

    def fall_back(self, began: float, become: Callable[[Request], Answer]) -> None:
        assert self._request is not None
        variables = Variables()
        reply = variables.run(become, replace(self._request, arrived_at=began))
        assert isinstance(reply, CallReply)
        told = {variable.name: value for variable, value in variables.items()}
        self.left.append((reply, told["correlation"]))


class Fast:
    """The fast path of calls. `frames` are those that its server should get, which does not get them; `refusal` is
    raised in place of sending. `counted` and `ended` is what metrics and timelines get, `spent` what rates count."""

    refusal: LinkClosed | None = None
    spent = 0

    @classmethod
    async def of(cls, calls: Calls, patch: pytest.MonkeyPatch) -> "Fast":
        return cls(calls, await calls.decided(), patch)

    def __init__(self, calls: Calls, path: FastPath, patch: pytest.MonkeyPatch) -> None:
        self.calls, self.path, self.live = calls, path, path.live
        (self.conversation,) = path.live.conversations.values()
        self.client = Client(calls)
        self.frames: list[Any] = []
        self.counted: list[tuple[str, str, str]] = []
        self.ended: list[EndedCall] = []
        send, count, spend, give_back = StdioLink.send, Metrics.answered, RateLimits.spend_at_hand, RateLimits.give_back
        link = self.conversation.link

        def sending(to: StdioLink, frame: bytes) -> None:
            if to is not link:
                return send(to, frame)
            if self.refusal is not None:
                raise self.refusal
            self.frames.append(msgspec.json.decode(frame))

        def counting(metrics: Metrics, server: str, method: str, era: str, kind: Any, took_s: float) -> None:
            self.counted.append((server, str(era), str(kind)))
            count(metrics, server, method, era, kind, took_s)

        def ending(*args: Any) -> EndedCall:
            self.ended.append(EndedCall(*args))
            return self.ended[-1]

        def spending(rates: RateLimits, principal: Principal, client: str, session_id: str) -> bool:
            has = spend(rates, principal, client, session_id)
            self.spent += has
            return has

        def giving_back(rates: RateLimits, principal: Principal, client: str, session_id: str) -> None:
            self.spent -= 1
            give_back(rates, principal, client, session_id)

        patch.setattr(StdioLink, "send", sending)
        patch.setattr(Metrics, "answered", counting)
        patch.setattr("gateway.relay.fast_path.EndedCall", ending)
        patch.setattr("gateway.observability.request_log.EndedCall", ending)
        patch.setattr(RateLimits, "spend_at_hand", spending)
        patch.setattr(RateLimits, "give_back", giving_back)

    def begin(self, client_id: int | str = "x-1", arguments: bytes = ARGUMENTS) -> FastCall:
        """Send a call, which takes the path."""
        call = self.client.begin(self.path, client_id, arguments)
        assert isinstance(call, FastCall)
        return call

    def state(self) -> tuple[object, ...]:
        """What a call changes."""
        live, calls = self.live, self.conversation.calls
        return len(self.frames), len(calls), live.busy, live.calls, len(self.counted), len(self.ended), self.spent

    def result(self, result: object) -> None:
        """The server answers the last call."""
        self.message({"id": self.number, "result": result})

    @property
    def number(self) -> int:
        """The number of the last call."""
        return next(int(frame["id"]) for frame in reversed(self.frames) if frame.get("method") == "tools/call")

    def message(self, message: dict[str, Any]) -> None:
        """The server sends that."""
        self.conversation.message(parse(encode({"jsonrpc": "2.0", **message})))
