"""Parts of the tests of the fast path: a client, and a path whose server answers when the test says so."""

import asyncio
from collections.abc import Callable
from contextvars import Context as Variables
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.observability.metrics import Metrics
from gateway.observability.outcome import EndedCall
from gateway.policy.rate_limits import RateLimits
from gateway.relay.fast_path import FastCall, FastPath
from gateway.relay.replies import CallReply
from session_store import Principal
from tests.unit.relay.test_standing import Calls
from transports.inbound_port import Answer, CallInFlight, Request
from transports.jsonrpc import encode, parse
from transports.soon import arrived
from transports.upstream.stdio import StdioLink
from transports.upstream_port import LinkClosed

__all__ = ["ARGUMENTS", "Client", "Fast", "answer_of", "path_of"]

ARGUMENTS = b'{"key":"k"}'


async def answer_of(reply: CallReply) -> list[Any]:
    """The messages of a reply. Its connection is done with it."""
    got = []
    async with asyncio.timeout(5.0):
        while (frame := await reply.replies.next()) is not None:
            got.append(msgspec.json.decode(frame.data))
            if frame.final:
                break
    await arrived(reply.done())
    assert reply.replies.first is None
    return got


class Client:
    """The connection of one client. `answers` are the responses of calls on the fast path, `left` the replies of those
    that have left it, with the correlation ids of their requests. `takes`: it takes an answer of the fast path.
    `late`: a call that was sent after its record was read."""

    takes = True
    fault: Exception | None = None

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._request: Request | None = None
        self.answers: list[tuple[Any, list[tuple[bytes, bytes]]]] = []
        self.left: list[tuple[CallReply, str]] = []
        self.late: CallInFlight | None = None

    def begin(
        self, path: FastPath, client_id: int | str = "x-1", arguments: bytes = ARGUMENTS, meta: bytes = b""
    ) -> CallInFlight | None:
        """Send a call by the path. `meta`: its `_meta`, if that has a progress token."""
        params = {"arguments": msgspec.Raw(arguments)} | ({"_meta": msgspec.Raw(meta)} if meta else {})
        self._request = self._calls.request(client_id, params)
        return path.begin(self, (encode(client_id), arguments))

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


async def path_of(calls: Calls) -> FastPath:
    """The path for calls like the last one."""
    await calls.decided()
    request = calls.request(1, {"arguments": msgspec.Raw(ARGUMENTS)})
    assert request.standing is not None and request.standing.path_for is not None
    path = request.standing.path_for(request, 60.0)
    assert isinstance(path, FastPath)
    return path
