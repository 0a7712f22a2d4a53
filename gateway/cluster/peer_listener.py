"""Serve the requests that other replicas forward to this one, the owner of their sessions.

A POST is started on arrival, without a task and without ASGI. A call that differs from an earlier one with the same
HTTP head only in id, progress token and arguments takes the fast path. An answer that is one small JSON message is sent
as one frame. The endpoint's ASGI app serves everything else, in a task. `requests_to_peers.py` is the sender's side.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from contextvars import Context
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from gateway.cluster.forwarded_request_envelope import (
    CLAIM,
    GREETING,
    HOLD,
    JSON_TYPE,
    CallFacts,
    Envelopes,
    Refusal,
    SharedFacts,
    decode_facts,
    decode_shared_facts,
    is_event_stream,
)
from gateway.cluster.ownership import Forwarded
from gateway.errors import unreachable
from gateway.observability.request_log import CORRELATION_HEADER
from session_store import Principal, StoreUnavailable
from transports.background_tasks import Tasks
from transports.inbound.asgi_bypass_post import PostServer, RepeatedHead, StartedPost
from transports.inbound.post_parsing import Head, is_batch
from transports.inbound_port import Answer, CallInFlight, HandlerCache, HeaderList, OwnedByPeer, Refused, Request
from transports.peer_frames import SMALL_BYTES
from transports.peer_server import CallLeft, PeerIncomingCall, PeerServer, Rules

logger = logging.getLogger(__name__)

_MOST_WITH_PATHS: Final = 2_048
"""Maximum number of HTTP heads that have fast paths, for all peers together. Each takes about 8 KB of memory."""

_encode = msgspec.msgpack.Encoder().encode


class PeerListener:
    """Serve the requests of peers.

    `refused` is called for each sender that is not a replica of this store, or that breaks a rule. `hold` gets a
    replica's name, and returns True if this replica agrees to claim no session of that replica for a while. `claim`
    gets a session's id. It returns True if this replica has claimed the session, False if the session's owner answers,
    and None if this replica may not claim it.
    """

    def __init__(
        self,
        replica: str,
        envelopes: Envelopes,
        endpoints: Mapping[str, PostServer],
        *,
        refused: Callable[[], None],
        hold: Callable[[str], bool],
        claim: Callable[[str], Coroutine[Any, Any, bool | None]],
    ) -> None:
        self._envelopes = envelopes
        self._endpoints = endpoints
        self._hold = hold
        self._claim = claim
        self._tasks = Tasks("calls of peers")
        self._with_paths = WeakKeyDictionary[RepeatedHead, None]()  # in the order in which they got the first one
        rules = Rules(define=self._define, begin=self._begin, cut=refused)
        self._server = PeerServer(rules, own=(envelopes.peer_keys, replica), tls=envelopes.tls)

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Accept connections of peers inside the block, and yield the port. Raises `OSError`: the address cannot be
        bound."""
        try:
            async with self._server.listening(host, port) as bound:
                yield bound
        finally:
            await self._tasks.close()

    def _define(self, packed: bytes) -> "DefinedHead":
        shared = decode_shared_facts(packed)
        endpoint = self._endpoints.get(shared.path)
        known = DefinedHead(shared, endpoint)
        if endpoint is not None and shared.method == "POST" and not shared.again:
            facts = CallFacts(-1, -1, "", "", 0.0)
            with contextlib.suppress(Refused):
                known.head = endpoint.posts.checked_head(known.scope(facts, known.forwarded(facts, _nothing)))
        return known

    def _begin(self, call: PeerIncomingCall) -> None:
        facts = decode_facts(call.facts)
        known: DefinedHead = call.definition
        if (refusal := self._envelopes.accept(call.nonce, facts)) is not None:
            call.end(b"r", refusal.value.encode())
        elif known.shared.path == GREETING:
            call.end(b"a")
        elif known.shared.path == HOLD:
            call.end(b"a" if self._hold(known.shared.session) else b"m")
        elif known.shared.path == CLAIM:
            self._tasks.spawn(self._claim_for(call, known.shared.session))
        elif known.endpoint is None:
            call.end(b"r", Refusal.INVALID.value.encode())
        else:
            try:
                ForwardedPost(call, facts, known, known.endpoint, self._tasks, self._learn).start()
            except Exception:
                logger.exception("a forwarded request failed")
                call.end(b"r", Refusal.SEEN.value.encode())

    async def _claim_for(self, call: PeerIncomingCall, session_id: str) -> None:
        """Claim a session for the peer that has called, and answer. Calls for one session share one claim."""
        claimed = None
        try:
            with contextlib.suppress(Refused, StoreUnavailable):
                claimed = await self._tasks.share(session_id, functools.partial(self._claim, session_id))
        finally:
            if claimed is None:
                call.end(b"m")
            else:
                call.end(*((b"a", b"") if claimed else (b"r", Refusal.OWNED.value.encode())))

    def _learn(self, repeated: RepeatedHead, post: StartedPost) -> None:
        """Let later calls like a POST that was answered in one piece take the fast path. If too many HTTP heads have
        fast paths, drop the paths of the head that has had some for the longest time."""
        if not repeated.learn(post) or repeated in self._with_paths:
            return
        if len(self._with_paths) >= _MOST_WITH_PATHS:
            oldest = next(iter(self._with_paths))
            del self._with_paths[oldest]
            oldest.forget()
        self._with_paths[repeated] = None


async def _nothing() -> None:
    """Do nothing. Passed as `before_sending` when an HTTP head is only checked, and no request is served."""


class DefinedHead:
    """Hold what the owner of sessions knows of an HTTP head that a peer has sent: all calls on the peer's connection
    that refer to the head share its facts and its fast paths."""

    __slots__ = ("_principal", "endpoint", "has_come", "head", "repeated", "shared")

    def __init__(self, shared: SharedFacts, endpoint: PostServer | None) -> None:
        self.shared = shared
        self.endpoint = endpoint
        self.head: Head | None = None
        """None if the endpoint's app has to answer these calls: they cannot be started on arrival, or the head is
        refused."""
        self.has_come = False
        self.repeated: RepeatedHead | None = None
        """The fast paths of the head; None until the second call."""
        self._principal = Principal(issuer=shared.issuer, subject=shared.subject)

    def forwarded(self, facts: CallFacts, before_sending: Callable[[], Awaitable[None]]) -> Forwarded:
        """Return those facts about one call that its sender has verified. `facts` has what is not shared with other
        calls. `before_sending` is awaited before the call is sent to a server."""
        return Forwarded(
            session_id=self.shared.session,
            principal=self._principal,
            epoch=facts.epoch,
            version=facts.version,
            granted=self.shared.granted,
            before_sending=before_sending,
        )

    def call_begins(self) -> None:
        """Record that a call with this HTTP head is about to begin. From the second call on, `repeated` is set."""
        if self.has_come and self.repeated is None and self.head is not None and self.endpoint is not None:
            self.head = msgspec.structs.replace(self.head, handler_cache=HandlerCache())
            self.repeated = RepeatedHead(self.endpoint, self.head, [])
        self.has_come = True

    def head_of(self, facts: CallFacts, forwarded: Forwarded) -> Head | None:
        """Return the HTTP head of one call, with the call's own correlation id and `traceparent`. Return None if the
        endpoint's app has to answer the call (`head` is None)."""
        if self.head is None:
            return None
        headers = {**self.head.headers, CORRELATION_HEADER: facts.correlation}
        if facts.traceparent:
            headers["traceparent"] = facts.traceparent
        return msgspec.structs.replace(self.head, headers=headers, forwarded=forwarded)

    def scope(self, facts: CallFacts, forwarded: Forwarded) -> dict[str, Any]:
        """Return the ASGI scope of one call. Its key `mcp.forwarded` has the facts that the sender has verified."""
        shared = self.shared
        headers: HeaderList = [*shared.headers, (CORRELATION_HEADER.encode(), facts.correlation.encode())]
        if facts.traceparent:
            headers.append((b"traceparent", facts.traceparent.encode()))
        return {
            "type": "http",
            "method": shared.method,
            "path": shared.path,
            "root_path": "",
            "scheme": "https" if shared.secure else "http",
            "headers": headers,
            "client": None,
            "mcp.forwarded": forwarded,
            "mcp.again": shared.again,
        }


class ForwardedPost:
    """Serve one forwarded request through its endpoint, from `start` on. After an answer in one piece, `learn` is
    called with the fast paths of the request's HTTP head and with the answered POST."""

    __slots__ = """_agreeing _post _call _context _endpoint _facts _fast _gone _has_started _is_given _is_waiting
        _known _learn _response _tasks""".split()

    def __init__(
        self,
        call: PeerIncomingCall,
        facts: CallFacts,
        known: DefinedHead,
        endpoint: PostServer,
        tasks: Tasks,
        learn: Callable[[RepeatedHead, StartedPost], None],
    ) -> None:
        self._call = call
        self._known = known
        self._endpoint = endpoint
        self._facts = facts
        self._tasks = tasks
        self._learn = learn
        self._context = Context()
        self._fast: CallInFlight | None = None  # in place of `_post`, while the request is on the fast path
        self._post: StartedPost | None = None
        self._agreeing: asyncio.Future[None] | None = None
        self._has_started = self._is_waiting = self._is_given = False
        self._gone: asyncio.Future[None] | None = None
        self._response: bytes | None = None  # the head of the answer, and empty once it was sent

    def start(self) -> None:
        """Begin to serve the request: on the fast path if possible, else at once without a task, else in a task."""
        known, call = self._known, self._call
        call.attend(self.leave)
        if self._begin_fast():
            return
        known.call_begins()
        head = known.head_of(self._facts, known.forwarded(self._facts, self.before_sending))
        if head is None or call.goes_on or is_batch(call.body):
            self._finish()
            return
        self._post = post = self._context.run(StartedPost, self._endpoint, head, call.body, [])
        if post.has_failed or post.is_no_request:
            self._finish()
        else:
            post.wait(lambda work: self._context.run(self._tasks.spawn, work)).add_done_callback(self._waited)
            asyncio.get_running_loop().call_soon(self._wait)  # after all steps that need no waiting

    def _begin_fast(self) -> bool:
        """Send the call on the fast path, and return True. Return False, and do nothing, if that is impossible, or the
        sender has read the session's record (`epoch` is not -1). The call counts as sent to a server from the start."""
        repeated, facts, call = self._known.repeated, self._facts, self._call
        if repeated is None or facts.epoch != -1 or call.goes_on:
            return False
        try:
            trace = facts.traceparent.encode()
            self._fast = repeated.begin_fast(self, call.body, trace, facts.correlation)
        except Exception:  # before the call was sent: nothing that can fail comes afterwards
            logger.exception("a call cannot be sent on the fast path")
        self._has_started = self._fast is not None
        return self._has_started

    async def before_sending(self) -> None:
        """Record that the request is about to be sent to a server.

        The sender assumes that a forwarded request may have run, unless this process has told it that the request
        waits. In that case, first wait until the sender agrees that the request is sent. Raises `Refused`: 503, the
        sender has left, and may have forwarded the request to another replica."""
        self._has_started = True
        if self._is_waiting:
            self._is_waiting = False
            self._agreeing = asyncio.ensure_future(self._call.agreed())
        if self._agreeing is not None:
            try:
                await asyncio.shield(self._agreeing)
            except CallLeft:
                raise unreachable() from None

    def _wait(self) -> None:
        """Notify the sender that the request waits and was not sent to a server. If this process dies now, the sender
        knows that the request had no effect."""
        post = self._post
        if post is None or post.answer is not None or post.has_failed:
            return  # the request is over, or about to be
        if not self._has_started and not self._is_waiting:
            self._is_waiting = True
            self._call.send(b"n")

    # -- on the fast path (`transports.inbound_port.AnsweringConnection`)

    def answer_fast(self, frame: bytes, headers: HeaderList) -> bool:
        if len(frame) > SMALL_BYTES:
            return False
        self._fast = None
        self._call.end(b"a", _answer_of(200, frame, headers))
        return True

    def stream_fast(self, *_: object) -> bool:
        """Return False: an event stream cannot be sent on the fast path, so the endpoint's app has to send it."""
        return False

    def fall_back(self, began: float, become: Callable[[Request], Answer]) -> None:
        self._fast = None
        known, call = self._known, self._call
        try:
            head = known.head_of(self._facts, known.forwarded(self._facts, self.before_sending))
            assert known.repeated is not None and head is not None
            self._post = post = self._context.run(known.repeated.resumed, call.body, head, began, become)
        except Exception:  # the call was sent, so it must not begin again
            logger.exception("a call cannot go on in the usual way")
            call.end(b"r", Refusal.SEEN.value.encode())
            return
        assert post.answer is not None
        self._context.run(post.answer.replies.when_ready, self._ready, post.quiet_at or 0.0)

    # -- the answer, where it is one small message

    def _waited(self, _: asyncio.Task[None]) -> None:
        post = self._post
        if post is None:
            return
        if post.answer is None or not post.quiet_at or post.answer.replies.first is not None:
            self._answer()
        else:
            post.answer.replies.when_ready(self._ready, post.quiet_at)

    def _ready(self, is_quiet: bool) -> None:
        """Answer the call. Called when the first frame of the answer has come, when no frame has come for too long
        (`is_quiet`), or when none will come."""
        if self._post is None:
            return  # a task serves the request by now
        if is_quiet:
            self._post.went_quiet()
        self._answer()

    def _answer(self) -> None:
        post = self._post
        assert post is not None
        try:
            whole = _whole(post)
        except Exception:
            logger.exception("an answer cannot be sent at once")
            whole = None
        if whole is None:
            self._finish()
            return
        self._post = None
        self._call.end(b"a", whole)
        try:
            post.answered()
            if (repeated := self._known.repeated) is not None:
                self._learn(repeated, post)
        except Exception:
            logger.exception("an answer was sent, and could not be recorded")

    # -- the app of the endpoint, for all else

    def leave(self) -> None:
        """Notify the endpoint, by an ASGI disconnect, that the sender has cancelled the call or is gone."""
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
        if not self._gone.done():
            self._gone.set_result(None)
        if self._fast is not None:
            self._fast.fall_back()
        if self._post is not None:
            self._finish()

    def _finish(self) -> None:
        post, self._post = self._post, None
        self._context.run(self._tasks.spawn, self._serve(post))

    async def _serve(self, post: StartedPost | None) -> None:
        known, call = self._known, self._call
        try:
            scope = known.scope(self._facts, known.forwarded(self._facts, self.before_sending))
            if post is None:
                await self._endpoint(scope, self._receive, self._send)
            else:
                await post.finish(scope, self._receive, self._send)
        except OwnedByPeer:
            call.end(b"m")
        except Exception:
            logger.exception("a forwarded request failed")
            if self._response is None:
                call.end(b"r", Refusal.SEEN.value.encode())
        finally:
            call.end(b"x")  # does nothing if the last frame was sent

    async def _receive(self) -> Any:
        if not self._is_given:
            try:
                piece, follows = await self._call.read()
            except CallLeft:
                return {"type": "http.disconnect"}
            self._is_given = not follows
            return {"type": "http.request", "body": piece, "more_body": follows}
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def _send(self, event: MutableMapping[str, Any]) -> None:
        """Handle an ASGI event of the endpoint. Keep the head of a response that is no event stream until the body
        comes, because both may fit in one frame. If cancelled while a slow reader blocks, send `x`: the answer is
        incomplete."""
        call = self._call
        if event["type"] == "http.response.start":
            headers = [(bytes(name), bytes(value)) for name, value in event["headers"]]
            self._response = _encode((event["status"], headers))
            if is_event_stream(headers):
                self._begin_answer()
            return
        body, is_last = event.get("body", b""), not event.get("more_body")
        if self._response and is_last and len(body) <= SMALL_BYTES:
            call.end(b"a", _in_one(self._response, body))
            return
        self._begin_answer()
        try:
            await call.write(body)
        except asyncio.CancelledError:
            call.end(b"x")
            raise
        if is_last:
            call.end(b"e")

    def _begin_answer(self) -> None:
        """Send the head of an answer whose body follows in pieces, unless the head was already sent."""
        if self._response:
            self._call.send(b"h", self._response)
            self._response = b""


def _whole(post: StartedPost) -> bytes | None:
    """Return the frame for an answer that is complete as one small JSON message; None for any other answer."""
    answer = post.answer
    frame = None if answer is None else answer.replies.first
    if answer is None or frame is None or not frame.final or not post.quiet_at or answer.is_doubtful:
        return None
    return None if len(frame.data) > SMALL_BYTES else _answer_of(post.status(frame), frame.data, answer.headers)


def _answer_of(status: int, message: bytes, headers: HeaderList) -> bytes:
    """Return the frame for an answer that consists of the one JSON message `message`."""
    return _in_one(_encode((status, [JSON_TYPE, (b"content-length", b"%d" % len(message)), *headers])), message)


def _in_one(head: bytes, body: bytes) -> bytes:
    return b"".join((len(head).to_bytes(2, "big"), head, body))
