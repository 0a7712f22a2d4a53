"""One call that an operator tries: it is sent, and what comes back is read within bounds."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from gateway.admin.call_messages import answer_to_question, call_body, call_headers, cancel_body
from gateway.admin.reports import Attempt, Outcome, TriedCall
from gateway.identity.credential_claims import CredentialClaims
from gateway.relay.internal_requests import InternalRequests
from session_store import Principal
from transports.era import LEGACY, Era
from transports.inbound.inside import Reply

__all__ = ["Sending", "Way"]

PATIENCE_S: Final = 60.0
"""How long a tried call may take. A page waits for it."""
_CANCELLED_S: Final = 1.0
"""How long a cancelled call may take to end."""
MOST_BYTES: Final = 4 << 20
"""Of an answer that is shown."""
_MOST_PARTS: Final = 200_000
"""Commas and brackets of an answer that is decoded. An answer of some megabytes can hold a million of empty lists."""
_MOST_MESSAGES: Final = 50
_MOST_CHARS: Final = 500


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a call reaches its session."""

    era: Era
    path: str
    principal: Principal
    claims: CredentialClaims | None
    token: str = ""
    version: str = ""
    key: str = ""


class Sending:
    """One call on its way."""

    def __init__(
        self, ask: InternalRequests, way: Way, name: str, attempt: Attempt, correlation: str, peer: str
    ) -> None:
        self._ask = ask
        self._way = way
        self._name = name
        self._attempt = attempt
        self._correlation = correlation
        self._peer = peer
        # Not the id of a call that the session's client has in flight.
        self._id = f"operator-{correlation}"
        self._messages: list[str] = []
        self._asked: list[str] = []

    async def answered(self, mirrored: dict[str, str], left: Callable[[], Awaitable[object]] | None) -> TriedCall:
        """Send the call, and wait for its outcome."""
        way = self._way
        headers = call_headers(
            way.era, token=way.token, name=self._name, version=way.version, correlation=self._correlation
        )
        body = call_body(way.era, self._id, self._name, self._attempt.arguments, key=way.key)
        reply = self._send(headers | mirrored, body)
        reading = asyncio.ensure_future(self._read(reply))
        leaving = asyncio.ensure_future(left()) if left is not None else None
        waited = [reading] if leaving is None else [reading, leaving]
        try:
            await asyncio.wait(waited, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
        finally:
            for task in waited:
                task.cancel()
            if not reading.done() or reading.cancelled():
                await self._cancel(reply)
            await asyncio.gather(*waited, return_exceptions=True)
            await reply.leave()
        return self._outcome("timeout", note=f"No answer within {PATIENCE_S:.0f} s: the call was cancelled.")

    def _send(self, headers: dict[str, str], body: bytes) -> Reply:
        way = self._way
        return self._ask(way.path, way.principal, way.claims, headers, body, peer=self._peer)

    async def _cancel(self, reply: Reply) -> None:
        """Have the server stop: a modern client closes the connection, a legacy client says so."""
        if self._way.era is LEGACY:
            await self._post(cancel_body(self._id, "the operator does not wait any more"))
        await reply.leave(_CANCELLED_S)

    async def _post(self, body: bytes) -> None:
        """Send a message that is no request."""
        headers = call_headers(self._way.era, token=self._way.token, name="", version=self._way.version)
        reply = self._send(headers, body)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCELLED_S):
                await reply.begun()
        await reply.leave()

    async def _read(self, reply: Reply) -> TriedCall:
        async for frame in reply.frames():
            if len(frame) > MOST_BYTES or sum(map(frame.count, (b",", b"[", b"{"))) > _MOST_PARTS:
                note = f"The answer has {len(frame):,} bytes, which is more than can be shown here."
                return self._outcome("too_large", size=len(frame), note=note)
            try:
                message = msgspec.json.decode(frame)
            except (msgspec.MsgspecError, RecursionError):
                message = None
            if not isinstance(message, dict):
                return self._outcome("unreadable", size=len(frame), note="The answer cannot be read as JSON.")
            if "method" not in message:
                return self._of_answer(message, len(frame))
            await self._heard(message, frame)
        return self._outcome("unreadable", note="The call was ended without an answer.")

    async def _heard(self, message: dict[str, Any], frame: bytes) -> None:
        """Take what a server sends before its answer."""
        heard = self._asked if "id" in message else self._messages
        if len(heard) < _MOST_MESSAGES:
            heard.append(frame.decode("utf-8", "replace")[:_MOST_CHARS])
        if "id" in message and self._way.era is LEGACY:
            await self._post(answer_to_question(message))

    def _of_answer(self, message: dict[str, Any], size: int) -> TriedCall:
        if "error" in message:
            return self._outcome("error", size=size, error=message["error"])
        result = message.get("result")
        kind = result if isinstance(result, dict) else {}
        if kind.get("resultType") == "input_required":
            return self._outcome("asks", size=size, result=result, note="The tool asks its user, who is not here.")
        return self._outcome("tool_error" if kind.get("isError") is True else "ok", size=size, result=result)

    def _outcome(self, outcome: Outcome, **facts: Any) -> TriedCall:
        attempt = self._attempt
        return TriedCall(
            server=attempt.server,
            tool=attempt.tool,
            outcome=outcome,
            correlation=self._correlation,
            messages=self._messages,
            asked=self._asked,
            **facts,
        )
