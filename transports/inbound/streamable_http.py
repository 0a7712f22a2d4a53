"""Serve Streamable HTTP of both eras on one endpoint: its methods, statuses and responses. Only the handler knows
sessions. MCP 2025-03-26 … 2025-11-25 and 2026-07-28, Transports §Streamable HTTP."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from time import monotonic
from typing import Any, Final

import msgspec

from transports.era import LEGACY, MODERN
from transports.inbound.asgi_bypass_post import RepeatedHead, StartedPost
from transports.inbound.batch import Batches, BatchResponse
from transports.inbound.event_stream import KEEPALIVE_S, follow, next_or_quiet, stream_answer
from transports.inbound.head_cache import REPEATS
from transports.inbound.host_and_origin import Guard, check_same_site, readable_by
from transports.inbound.http_requests_and_responses import (
    ClientWatch,
    Receive,
    Scope,
    Send,
    read_body,
    send_json,
    send_refusal,
    send_status,
)
from transports.inbound.modern_request_checks import VERSION_HEADER, status_of
from transports.inbound.post_parsing import (
    BATCHES,
    Head,
    LengthChecks,
    Posts,
    check_post,
    check_version,
    is_batch,
    preflight,
)
from transports.inbound.unauthenticated_limits import MAX_LABEL_CHARS, BodyBudget, CountedBody, Limits, Refusals
from transports.inbound_port import Answer, Forwarder, Handler, OwnedByPeer, PeerAnswer, Refused, Request
from transports.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, InvalidMessage, Message, encode
from transports.reply_queue import Frame
from transports.work_steps import LARGE_BYTES, let_others_run

logger = logging.getLogger(__name__)

PRIMING_AFTER_S: Final = 1.0
"""Seconds after which a call without a message begins its event stream, so that a client that can resume it fetches the
result after its connection is cut. Nearly all calls are faster, and are answered with JSON: without a write to the
store, and without the limit that clients have for an event."""

_PRIMING: Final = "2025-11-25"
_MOST_TRIES: Final = 6
"""Maximum number of attempts at a request if the owner of its session keeps changing."""


class StreamableHttp:
    """Serve one endpoint as an ASGI app. `endpoint` is the name by which the handler knows the endpoint."""

    def __init__(
        self,
        handler: Handler,
        endpoint: str,
        *,
        guard: Guard,
        body_budget: BodyBudget,
        limits: Limits,
        refusals: Refusals,
        poll_after_s: float = 0.0,
        forwarder: Forwarder | None = None,
    ) -> None:
        self._handler = handler
        self._guard = guard
        self._body_limit = limits.body_bytes
        self._body_budget = body_budget
        lengths = LengthChecks(limits, refusals)
        self.posts = Posts(endpoint, guard, lengths)
        self._batches = Batches(handler, lengths, limits, refusals)
        self._poll_after_s = poll_after_s
        self._forwarder = forwarder

    async def __call__(self, scope: Scope, receive: Receive, send: Send, started: StartedPost | None = None) -> None:
        """Serve a request. `started`: a POST that is read and parsed already, and perhaps given to the handler; None if
        nothing of the request is done yet."""
        counted: CountedBody | None = None
        headers: dict[str, str] = {}
        try:
            headers = self._guard.headers(scope)
            self._guard.check(headers)
            if "origin" in headers and "mcp.forwarded" not in scope:  # else the forwarding replica adds these headers
                send = readable_by(send, headers["origin"])
            head = self.posts.head(scope, headers)
            body = b""
            if started is not None:
                await receive()  # the body, which was read already, or the end of the connection
                body = started.body
            elif scope["method"] == "POST":
                check_post(headers)
                counted = CountedBody(self._body_budget, head.client)
                check = functools.partial(self._check_sender, head)
                read = await read_body(receive, headers, self._body_limit, check, counted)
                if read is None:
                    return
                body = read
            await self._serve_somewhere(scope, head, body, receive, send, started)
        except Refused as refused:
            await self._refuse(send, headers, refused, _unread_id(scope))
        except OwnedByPeer:
            raise
        except Exception:
            logger.exception("a request failed")
            await self._refuse(send, headers, _failed(), _unread_id(scope))
        finally:
            if counted is not None:
                counted.release()
            if started is not None:
                await started.drop()

    async def _refuse(
        self, send: Send, headers: Mapping[str, str], why: Refused, request_id: bytes, again: bool = False
    ) -> None:
        await send_refusal(send, self._handler.refused(headers, why, again=again), request_id)

    async def _check_sender(self, head: Head, body_bytes: int) -> None:
        """Authenticate the sender of a body of `body_bytes`. Do nothing for a forwarded request, whose sender the other
        replica has authenticated. Raises `Refused`."""
        if head.forwarded is None:
            await self._handler.check_sender(self.posts.of_head(head, head.era, body_bytes=body_bytes))

    async def _serve_somewhere(
        self, scope: Scope, head: Head, body: bytes, receive: Receive, send: Send, started: StartedPost | None
    ) -> None:
        """Serve the request here, or at the replica that owns its session. A forwarded request is not forwarded again:
        then raise `OwnedByPeer`. `started` is that of `__call__`."""
        for _ in range(_MOST_TRIES):
            try:
                if scope["method"] == "POST":
                    self._store_head(
                        scope, head, has_succeeded=await self._post(scope, head, body, receive, send, started)
                    )
                else:
                    await self._serve(scope["method"], head, receive, send)
                return
            except OwnedByPeer as elsewhere:
                if self._forwarder is None or head.forwarded is not None:
                    raise
                there = await self._forwarder.forward(elsewhere.route, scope, body, receive, send)
                if there is None:
                    self._store_head(scope, head, has_succeeded=scope.get("mcp.relayed", False))
                    return
                send, started = there, None
                head = msgspec.structs.replace(head, again=scope.get("mcp.again", False))
            except Refused as refused:
                if not head.again:
                    raise
                await self._refuse(send, head.headers, refused, _unread_id(scope), again=True)
                return
        if not head.again:
            raise _moved()
        request_id = _id_of(self.posts.read(body)) if scope["method"] == "POST" else b""
        await self._refuse(send, head.headers, _moved(), request_id, again=True)

    def _store_head(self, scope: Scope, head: Head, *, has_succeeded: bool) -> None:
        """Let the connection store the request's head if `has_succeeded`: the answer did not end with an error."""
        if has_succeeded and (offer := scope.get(REPEATS)) is not None:
            offer.store(functools.partial(RepeatedHead.of, self, head))

    async def _serve(self, method: str, head: Head, receive: Receive, send: Send) -> None:
        headers = head.headers
        match method:
            case "GET" if head.era is LEGACY:
                await self._get(head, receive, send)
            case "DELETE" if head.era is LEGACY:
                check_version(headers)
                await self._handler.end(self.posts.of_head(head, LEGACY))
                await send_status(send, 200)
            case "OPTIONS":
                await send_status(send, 204, [(b"allow", b"POST, GET, DELETE, OPTIONS"), *preflight(headers)])
            case _:
                modern = head.era is MODERN
                await send_status(send, 405, [(b"allow", b"POST" if modern else b"GET, POST, DELETE")])

    # -- POST

    async def _post(
        self, scope: Scope, head: Head, body: bytes, receive: Receive, send: Send, started: StartedPost | None
    ) -> bool:
        """Answer a POST. Return True if it was a request, and the answer did not end with an error. `started` is that
        of `__call__`."""
        if len(body) > LARGE_BYTES:
            await let_others_run()
        if started is None and is_batch(body):
            await self._batch(scope, head, body, send)
            return False
        message = self.posts.read(body) if started is None else started.message()
        if len(body) > LARGE_BYTES:
            await let_others_run()
        try:
            request = self.posts.request(head, message, len(body)) if started is None else started.request()
            if not message.is_request:
                await self._take(request, message, send)
                return False
            calling = self._handler.call(request) if started is None else started.called()
            return await self._answer(request, calling, receive, send, None if started is None else started.quiet_at)
        except Refused as refused:
            await self._refuse(send, head.headers, refused, _id_of(message), again=head.again)
        except InvalidMessage as error:
            invalid = Refused(400, error.code, str(error))
            await self._refuse(send, head.headers, invalid, _id_of(message), again=head.again)
        except msgspec.MsgspecError as error:
            unreadable = Refused(400, INVALID_REQUEST, f"Cannot be read: {error}")
            await self._refuse(send, head.headers, unreadable, _id_of(message), again=head.again)
        except OwnedByPeer:
            raise
        except Exception:
            logger.exception("a call failed")
            await self._refuse(send, head.headers, _failed(), _id_of(message))
        return False

    async def _take(self, request: Request, message: Message, send: Send) -> None:
        """Pass a notification or a response of the client to the handler."""
        if message.is_response:
            await self._handler.respond(request)
            await send_status(send, 202)
        else:
            await send_status(send, 202, await self._handler.notify(request))

    async def _answer(
        self, request: Request, calling: Awaitable[Answer], receive: Receive, send: Send, quiet_at: float | None
    ) -> bool:
        """Send the answer to a request. Return True if the answer did not end with an error. `calling` returns the
        answer. `quiet_at` is that of a `StartedPost`; None: the time to wait for a frame begins with the answer."""
        answer = await calling
        watch = None
        if request.era is MODERN:
            # In the modern era, a disconnect cancels the call (MCP 2026-07-28, Cancellation).
            watch = ClientWatch(receive, lambda: answer.cancel("the client disconnected"))
        try:
            if quiet_at is None:
                quiet_after_s = self.quiet_after_s(request)
                quiet_at = quiet_after_s and monotonic() + quiet_after_s
            first = await next_or_quiet(answer, quiet_at) if quiet_at else TimeoutError()
            if first is None:
                raise Refused(
                    500, INTERNAL_ERROR, "The call was cancelled, because the client did not read its messages."
                )
            if isinstance(first, TimeoutError) or not first.final:
                return await stream_answer(
                    send,
                    answer,
                    first,
                    can_resume=self.can_resume(request),
                    poll_after_s=self._poll_after_s,
                )
            if answer.is_doubtful:
                first = await answer.confirmed(first)
            await send_json(send, self.status_of(request, first), first.data, answer.headers)
            return first.error_code is None
        finally:
            if watch is not None:
                watch.stop()
            answer.done()

    def can_resume(self, request: Request) -> bool:
        """Return True if the client can resume the event stream of an answer (MCP 2025-11-25)."""
        return request.era is LEGACY and request.protocol_version >= _PRIMING

    # -- for POSTs that are started where their bytes arrive (`StartedPost`)

    def call(self, request: Request) -> Coroutine[Any, Any, Answer]:
        """Pass a request to the handler, and return its answer."""
        return self._handler.call(request)

    def begin_elsewhere(self, elsewhere: OwnedByPeer, request: Request, body: bytes) -> PeerAnswer | None:
        """Send a POST to the process that owns its session, as `elsewhere` says, and return the answer, which comes
        later. Return None, and send nothing, if that would need waiting."""
        if self._forwarder is None or request.forwarded is not None:
            return None
        return self._forwarder.begin(elsewhere.route, request, body)

    def quiet_after_s(self, request: Request) -> float:
        """Return the seconds without an answer after which a request gets an event stream; 0 for at once."""
        return PRIMING_AFTER_S if self.can_resume(request) else KEEPALIVE_S

    def status_of(self, request: Request, frame: Frame) -> int:
        """Return the HTTP status of the JSON answer `frame` to a request."""
        return status_of(frame.error_code) if request.era is MODERN else 200

    async def _batch(self, scope: Scope, head: Head, body: bytes, send: Send) -> None:
        if head.headers.get(VERSION_HEADER, BATCHES) != BATCHES:
            raise Refused(400, INVALID_REQUEST, "The body must be a single JSON-RPC message.")
        request = self.posts.of_head(head, LEGACY, body_bytes=len(body))
        response = BatchResponse(send)
        parts = await self._batches.accepted(body, request)

        async def pass_on(message: bytes) -> None:
            """Serve a message as a POST of its own, and discard the response."""
            await self._serve_somewhere({**scope}, head, message, _nothing_more, _to_nobody, None)

        await response.during(self._batches.handle(parts, request, response, pass_on))

    # -- GET

    async def _get(self, head: Head, receive: Receive, send: Send) -> None:
        headers = head.headers
        if "text/event-stream" not in headers.get("accept", ""):
            raise Refused(406, INVALID_REQUEST, "Accept must name text/event-stream.", reason="not_acceptable")
        request = self.posts.of_head(head, LEGACY)
        check_same_site(headers)
        check_version(headers)
        if len(headers.get("last-event-id", "")) > MAX_LABEL_CHARS:
            raise Refused(400, INVALID_PARAMS, f"Last-Event-ID is longer than {MAX_LABEL_CHARS} characters.")
        source = await self._handler.stream(request, headers.get("last-event-id"))
        try:
            await follow(send, receive, source)
        finally:
            await source.done()


async def _nothing_more() -> Any:
    await asyncio.Event().wait()


async def _to_nobody(event: Any) -> None:
    """Discard a part of a response."""


def _moved() -> Refused:
    why = "The session moved between gateways too often during this request. Try again."
    return Refused(503, INTERNAL_ERROR, why, headers={"Retry-After": "1"})


def _failed() -> Refused:
    """Return the refusal for an unexpected error in the gateway. The log has the details, under the call's correlation
    id."""
    return Refused(
        500, INTERNAL_ERROR, "The gateway failed to handle this request. Whether a call took effect is unknown."
    )


def _unread_id(scope: Scope) -> bytes:
    """Return the encoded request id for a refusal that is sent before a message was read: `null` for a POST. GET and
    DELETE carry no message, so the error has no id (MCP 2025-11-25, Transports)."""
    return b"null" if scope["method"] == "POST" else b""


def _id_of(message: Message) -> bytes:
    return encode(message.id) if message.is_request else b"null"
