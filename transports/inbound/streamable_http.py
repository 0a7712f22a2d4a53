"""Streamable HTTP, both eras on one endpoint: methods, statuses and replies. The handler knows sessions.

MCP 2025-03-26 … 2025-11-25 and 2026-07-28, Transports §Streamable HTTP.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

import msgspec

from transports.era import LEGACY, MODERN, Era
from transports.inbound.batch import BATCHES, Batches
from transports.inbound.batch_response import BatchResponse
from transports.inbound.bodies import Bodies, HeldBody
from transports.inbound.event_stream import StreamTimes, follow, next_or_quiet, stream_answer
from transports.inbound.headers import check_legacy, check_post, check_version, era_of, preflight
from transports.inbound.http import (
    ClientWatch,
    Guard,
    Receive,
    Scope,
    Send,
    peer_of,
    read_body,
    readable_by,
    send_json,
    send_refusal,
    send_status,
)
from transports.inbound.limits import MAX_LABEL_CHARS, Limits, Refusals
from transports.inbound.modern import (
    VERSION_HEADER,
    VERSION_KEY,
    check_notification,
    check_param_headers,
    check_request,
    names_version,
    status_of,
)
from transports.inbound.sizes import Sizes
from transports.inbound_port import Answer, Forwarder, Handler, OwnedByPeer, Refused, Request
from transports.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    InvalidMessage,
    Message,
    Object,
    encode,
)
from transports.soon import arrived
from transports.turns import LARGE_BYTES, others_first

__all__ = ["StreamableHttp"]

logger = logging.getLogger(__name__)

_PRIMING: Final = "2025-11-25"
_MOST_TRIES: Final = 6
"""How often a request is forwarded anew while its session changes owners."""


class StreamableHttp:
    """One endpoint as an ASGI app. `endpoint` is its name for the handler."""

    def __init__(
        self,
        handler: Handler,
        endpoint: str,
        *,
        guard: Guard,
        bodies: Bodies,
        limits: Limits,
        refusals: Refusals,
        times: StreamTimes,
        forwarder: Forwarder | None = None,
    ) -> None:
        self._handler = handler
        self._endpoint = endpoint
        self._guard = guard
        self._body_limit = limits.body_bytes
        self._bodies = bodies
        self._sizes = Sizes(limits, refusals)
        self._batches = Batches(handler, self._sizes, limits, refusals)
        self._times = times
        self._forwarder = forwarder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held: HeldBody | None = None
        headers: dict[str, str] = {}
        try:
            headers = self._guard.headers(scope)
            self._guard.check(headers)
            if "origin" in headers:
                send = readable_by(send, headers["origin"])
            body = b""
            if scope["method"] == "POST":
                check_post(headers)
                admit = functools.partial(self._admit, scope, headers)
                held = HeldBody(self._bodies, functools.partial(self._guard.client, scope, headers))
                read = await read_body(receive, headers, self._body_limit, admit, held)
                if read is None:
                    return
                body = read
                scope["mcp.body_bytes"] = len(body)
                if len(body) > LARGE_BYTES:
                    await others_first()
            await self._serve_somewhere(scope, headers, body, receive, send)
        except Refused as refused:
            await self._refuse(send, headers, refused)
        except OwnedByPeer:
            raise
        except Exception:
            logger.exception("a request failed")
            await self._refuse(send, headers, _failed())
        finally:
            if held is not None:
                held.give_back()

    async def _refuse(
        self, send: Send, headers: Mapping[str, str], refused: Refused, request_id: bytes = b"null"
    ) -> None:
        self._handler.refused(headers, refused)
        await send_refusal(send, refused, request_id)

    async def _admit(self, scope: Scope, headers: Mapping[str, str]) -> None:
        """Raises `Refused` if the caller may not call. Callers of forwarded requests have been checked already."""
        if "mcp.forwarded" not in scope:
            await self._handler.admit(self._request(scope, headers, era_of(headers)))

    async def _serve_somewhere(
        self, scope: Scope, headers: Mapping[str, str], body: bytes, receive: Receive, send: Send
    ) -> None:
        """Serve the request here or at the replica that has its session. Forwarded requests are not forwarded again."""
        for _ in range(_MOST_TRIES):
            try:
                if scope["method"] == "POST":
                    await self._post(scope, headers, body, receive, send)
                else:
                    await self._serve(scope, headers, receive, send)
                return
            except OwnedByPeer as elsewhere:
                if self._forwarder is None or "mcp.forwarded" in scope:
                    raise
                there = await self._forwarder.forward(elsewhere.route, scope, body, receive, send)
                if there is None:
                    return
                send = there
        again = {"Retry-After": "1"}
        raise Refused(
            503,
            INTERNAL_ERROR,
            "The session moved between gateways too often during this request. Try again.",
            headers=again,
        )

    async def _serve(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        """Serve a request that is no POST."""
        match scope["method"]:
            case "GET" if era_of(headers) is LEGACY:
                await self._get(scope, headers, receive, send)
            case "DELETE" if era_of(headers) is LEGACY:
                check_version(headers)
                await self._handler.end(self._request(scope, headers, LEGACY))
                await send_status(send, 200)
            case "OPTIONS":
                await send_status(send, 204, [(b"allow", b"POST, GET, DELETE, OPTIONS"), *preflight(headers)])
            case _:
                modern = era_of(headers) is MODERN
                await send_status(send, 405, [(b"allow", b"POST" if modern else b"POST, GET, DELETE")])

    def _request(
        self,
        scope: Scope,
        headers: Mapping[str, str],
        era: Era,
        message: Message | None = None,
        params: Object | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Request:
        if params:
            self._sizes.check(params, meta)
        version = str(meta.get(VERSION_KEY, "")) if meta and era is MODERN else ""
        return Request(
            era=era,
            endpoint=self._endpoint,
            headers=headers,
            message=message,
            params=params or {},
            protocol_version=version or headers.get(VERSION_HEADER, BATCHES),
            meta=meta or {},
            forwarded=scope.get("mcp.forwarded"),
            again=scope.get("mcp.again", False),
            same_site=self._guard.same_site(headers),
            peer=peer_of(scope),
            client=self._guard.client(scope, headers),
            secure=self._guard.is_secure(scope, headers),
            arrived_at=monotonic(),
            body_bytes=scope.get("mcp.body_bytes", 0),
        )

    # -- POST

    async def _post(self, scope: Scope, headers: Mapping[str, str], body: bytes, receive: Receive, send: Send) -> None:
        try:
            if body.lstrip()[:1] == b"[":
                await self._batch(scope, headers, body, send)
                return
            message = self._sizes.parse(body)
            if len(body) > LARGE_BYTES:
                await others_first()
        except InvalidMessage as error:
            raise Refused(400, error.code, str(error)) from None
        try:
            await self._message(scope, headers, message, receive, send)
        except Refused as refused:
            await self._refuse(send, headers, refused, _id_of(message))
        except InvalidMessage as error:
            await self._refuse(send, headers, Refused(400, error.code, str(error)), _id_of(message))
        except msgspec.MsgspecError as error:
            unreadable = Refused(400, INVALID_REQUEST, f"Cannot be read: {error}")
            await self._refuse(send, headers, unreadable, _id_of(message))
        except OwnedByPeer:
            raise
        except Exception:
            logger.exception("a call failed")
            await self._refuse(send, headers, _failed(), _id_of(message))

    async def _message(
        self, scope: Scope, headers: Mapping[str, str], message: Message, receive: Receive, send: Send
    ) -> None:
        params = {} if message.method is msgspec.UNSET else message.params_object()
        meta = msgspec.json.decode(params["_meta"]) if "_meta" in params else None
        known = meta if isinstance(meta, dict) else {}
        if names_version(meta) or era_of(headers) is MODERN:
            request = self._request(scope, headers, MODERN, message, params, known)
            await self._modern(request, scope["headers"], meta, receive, send)
        else:
            check_legacy(headers, message)
            await self._legacy(self._request(scope, headers, LEGACY, message, params, known), send)

    async def _modern(
        self, request: Request, raw_headers: list[tuple[bytes, bytes]], meta: Any, receive: Receive, send: Send
    ) -> None:
        message = request.message
        assert message is not None
        if message.is_response:
            raise Refused(400, INVALID_REQUEST, "Responses are not accepted: this revision has no server requests.")
        if message.is_notification:
            check_notification(request.headers)
            await send_status(send, 202, await self._handler.notify(request))
            return
        params = request.params
        check_request(message, params, meta, request.headers, raw_headers)
        if message.method == "tools/call":
            check = functools.partial(check_param_headers, params, raw_headers)
            request = msgspec.structs.replace(request, check_mirrored=check)
        answer = await arrived(self._handler.call(request))
        # In the modern era, a disconnect cancels the call (MCP 2026-07-28, Cancellation).
        watch = ClientWatch(receive, lambda: answer.cancel("the client disconnected"))
        try:
            await _send_answer(send, answer, status_of=status_of)
        finally:
            watch.stop()
            await arrived(answer.done())

    async def _legacy(self, request: Request, send: Send) -> None:
        message = request.message
        assert message is not None
        if message.is_request:
            answer = await arrived(self._handler.call(request))
            try:
                times = self._times if request.protocol_version >= _PRIMING else None
                await _send_answer(send, answer, times=times)
            finally:
                await arrived(answer.done())
            return
        if message.is_notification:
            await self._handler.notify(request)
        else:
            await self._handler.respond(request)
        await send_status(send, 202)

    async def _batch(self, scope: Scope, headers: Mapping[str, str], body: bytes, send: Send) -> None:
        if headers.get(VERSION_HEADER, BATCHES) != BATCHES:
            raise Refused(400, INVALID_REQUEST, "The body must be a single JSON-RPC message.")
        request, response = self._request(scope, headers, LEGACY), BatchResponse(send)
        parts = await self._batches.accepted(body, request)
        await response.during(self._batches.handle(parts, request, response))

    # -- GET

    async def _get(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        if "text/event-stream" not in headers.get("accept", ""):
            raise Refused(406, INVALID_REQUEST, "Accept must name text/event-stream.")
        request = self._request(scope, headers, LEGACY)
        if not request.same_site:
            raise Refused(403, INVALID_REQUEST, "Event streams are not served to pages of other sites.")
        check_version(headers)
        if len(headers.get("last-event-id", "")) > MAX_LABEL_CHARS:
            raise Refused(400, INVALID_PARAMS, f"Last-Event-ID is longer than {MAX_LABEL_CHARS} characters.")
        source = await self._handler.stream(request, headers.get("last-event-id"))
        try:
            await follow(send, receive, source)
        finally:
            await source.done()


def _failed() -> Refused:
    """The answer to a fault of the gateway. The log has the details, under the call's correlation id."""
    return Refused(
        500, INTERNAL_ERROR, "The gateway failed to handle this request. Whether a call took effect is unknown."
    )


async def _send_answer(
    send: Send,
    answer: Answer,
    *,
    status_of: Callable[[int | None], int] | None = None,
    times: StreamTimes | None = None,
) -> None:
    """Reply with JSON if the final frame comes first. Else, or if no frame comes for a while, with an event stream."""
    priming_after_s = None if times is None else times.priming_after_s
    if priming_after_s is None:
        first = await next_or_quiet(answer)
    elif priming_after_s > 0:
        first = await next_or_quiet(answer, monotonic() + priming_after_s)
    else:
        first = TimeoutError()
    if first is None:
        raise Refused(500, INTERNAL_ERROR, "The call was cancelled, because the client did not read its messages.")
    if isinstance(first, TimeoutError) or not first.final:
        await stream_answer(send, answer, first, headers=answer.headers, times=times)
    else:
        if answer.is_doubtful:
            first = await answer.confirmed(first)
        status = 200 if status_of is None else status_of(first.error_code)
        await send_json(send, status, first.data, answer.headers)


def _id_of(message: Message) -> bytes:
    return encode(message.id) if message.is_request else b"null"
