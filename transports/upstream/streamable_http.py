"""Talk to an MCP server at a URL over Streamable HTTP, in the era (legacy or modern) of each message.

MCP 2025-03-26 … 2025-11-25 and 2026-07-28, Transports §Streamable HTTP. The SDK's client is not used: it hides statuses
and event ids, caps events at 1 MiB, and decodes every message.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from time import monotonic
from typing import Any, Final

import httpx2
import msgspec

from transports.background_tasks import Tasks
from transports.era import NAME_SOURCES, OF_ONE_RESOURCE, SESSIONLESS, VERSION_KEY
from transports.jsonrpc import UNREADABLE, Message, Object, decode_exact, decode_id, encode, encode_request, parse
from transports.mirrored_headers import argument_headers, encode_value, unknown_headers
from transports.sse import TooLarge
from transports.upstream.http_replies import (
    ReplyReader,
    StreamPlace,
    error_text,
    is_encoded,
    pause_s,
    redirect_target,
    skim,
)
from transports.upstream.http_send_queues import OrderedMessages, PacedRequests
from transports.upstream.invalid_output_lines import LineBudget
from transports.upstream_port import (
    ConnectOptions,
    LinkClosed,
    LinkEvents,
    UpstreamUnavailable,
    is_about_content,
    too_large,
)
from transports.via_header import via_of

logger = logging.getLogger(__name__)

CONNECT_S: Final = 5.0
_IDLE_S: Final = 4.0
"""Seconds after which an idle connection is closed. Servers (uvicorn, Node) close theirs after 5 s. A call that is sent
at the moment of closing is lost, and it is unknown if the server has executed it."""
_MOST_REDIRECTS: Final = 3
_UNANSWERED: Final = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)
"""The exceptions that are raised if the server closes a connection before it answers."""
_MOST_FAILURES: Final = 5
_MOST_QUIET_S: Final = 3600.0
"""Seconds without an event after which a stream that was cut is no longer resumed. Calls have deadlines of their
own."""
_LASTING_S: Final = 5.0
"""Seconds after which an open stream of the server's own messages counts as working, even if nothing has come on it."""
_CLOSE_S: Final = 2.0
_SESSION: Final = "mcp-session-id"
_GATEWAY_SESSION: Final = "mcp-gateway-session"
_NEW: Final = "new"
_ASKS_FOR_SESSION: Final = (_GATEWAY_SESSION, _NEW)
_KEY: Final = "mcp-gateway-session-key"
_UNKNOWN_SESSION: Final = -32010
"""The error code with which another gateway of this kind refuses a session that it does not know."""
_MOST_REFUSAL_BYTES: Final = 64 << 10
_ACCEPT: Final = "application/json, text/event-stream"
_CANCELLED: Final = "notifications/cancelled"
_LISTING: Final = "tools/list"
_SHOWN_CHARS: Final = 8
"""Characters of a session's id that logs show. A token begins with the id."""

Headers = dict[str, str]


@dataclass(eq=False, repr=False, kw_only=True)
class HttpUpstream:
    """Open links to one URL.

    If `headers` has `MCP-Gateway-Session: new`, the server is a gateway like this one. It gives a session to the first
    modern request of a link, and all later ones use that session. Otherwise each would get a session of its own,
    because MCP 2026-07-28 has no sessions. If `headers` has a session key of that gateway, the session outlives the
    link."""

    name: str
    url: str
    headers: Mapping[str, str]
    """The operator's headers, for every request."""
    max_event_bytes: int
    gateway: str = ""
    """The name of this gateway in `Via` headers; empty: it sends none."""
    repeatable: frozenset[str] = frozenset()
    """The MCP methods that may be sent again if the server closes the connection without an answer."""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    advice: str = ""
    """The end of the error text about a server that cannot be reached."""

    def __post_init__(self) -> None:
        given = self.headers
        self.headers = {name: value for name, value in given.items() if (name.lower(), value) != _ASKS_FOR_SESSION}
        self.keeps_session = len(self.headers) < len(given)
        self.ends_session = _KEY not in map(str.lower, given)
        self.budget = LineBudget()
        self._client: httpx2.AsyncClient | None = None
        self._is_redirect_logged = False

    @property
    def client(self) -> httpx2.AsyncClient:
        """Return the HTTP client with the connections of all links. It stores no cookies: sessions would share them."""
        if self._client is None:
            self._client = httpx2.AsyncClient(
                timeout=httpx2.Timeout(None, connect=CONNECT_S),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=_IDLE_S),
                cookies=CookieJar(DefaultCookiePolicy(netscape=False, rfc2965=False)),  # parses none: some take long
                follow_redirects=False,
            )
        return self._client

    async def connect(self, given: ConnectOptions, events: LinkEvents) -> "HttpLink":
        """Return a link that resumes the server's session in `given.resume`, or that has no session yet. Sends
        nothing."""
        return HttpLink(self, given, events)

    @contextlib.asynccontextmanager
    async def open(
        self, method: str, headers: Headers | httpx2.Headers, frame: bytes = b"", *, is_repeatable: bool = False
    ) -> AsyncIterator[httpx2.Response]:
        """Send an HTTP request with the body `frame`, and yield the response, whose body is not read yet. Follow
        `redirect_target`, at most `_MOST_REDIRECTS` times. With `is_repeatable`, try once more if the server closes the
        connection unanswered."""
        url = httpx2.URL(self.url)
        for redirects_left in range(_MOST_REDIRECTS, -1, -1):
            response = await self._send(method, url, headers, frame, is_repeatable=is_repeatable)
            try:
                target = redirect_target(response) if redirects_left else None
                if target is None:
                    yield response
                    return
                await skim(response)
            finally:
                await response.aclose()
            if not self._is_redirect_logged:
                self._is_redirect_logged = True
                text = "server %s redirects: correct the path in its `url`, which saves a round trip for each message"
                logger.warning(text, self.name)
            url = target

    async def _send(
        self, method: str, url: httpx2.URL, headers: Headers | httpx2.Headers, frame: bytes, *, is_repeatable: bool
    ) -> httpx2.Response:
        while True:
            request = self.client.build_request(method, url, content=frame, headers=headers)
            try:
                return await self.client.send(request, stream=True)
            except _UNANSWERED:
                if not is_repeatable:
                    raise
                is_repeatable = False
            except UnicodeError as error:  # of the host in a `Location`
                raise httpx2.RemoteProtocolError("its Location cannot be read") from error

    async def tell(self, method: str, headers: Headers, frame: bytes = b"") -> httpx2.Response:
        """Send a message that needs no answer. Return the response without its body."""
        async with self.open(method, headers, frame) as response:
            await skim(response)
        return response

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


class HttpLink:
    """A link to one server, with at most one session there: its requests in flight, and the stream of the server's own
    messages."""

    pid, may_forget = None, True
    output_tail: tuple[str, ...] = ()

    def __init__(self, upstream: HttpUpstream, given: ConnectOptions, events: LinkEvents) -> None:
        self._upstream = upstream
        self._given = given
        self._events = events
        self._version, self._session = _resumed(given.resume)
        self._token = ""  # of the session at a gateway, which modern requests bring back
        self._opening = asyncio.Lock()
        self._work = Tasks(f"link to server {upstream.name}")
        self._running: dict[object, asyncio.Task[None]] = {}
        self._initialize_id: object = None
        self._replies = ReplyReader(
            upstream.name, upstream.max_event_bytes, deliver=self._deliver, events=events, budget=upstream.budget
        )
        self._paced: PacedRequests | None = None
        self._messages = OrderedMessages(upstream.name, self._run)
        self._takes_messages = True
        self._is_closed = False
        if self._session:
            self._run("stream", self._follow())

    def stderr_tail(self) -> list[str]:
        return []

    @property
    def resume(self) -> str:
        """Return a text with which a later link can resume the server's session; empty if the server keeps none."""
        return msgspec.json.encode([self._version, self._session]).decode() if self._session else ""

    def send(self, frame: bytes, forwarded: Mapping[str, str] | None = None) -> None:
        """Send one message, without waiting. `forwarded` are further headers of a modern request. Raises
        `LinkClosed`."""
        if not self._takes_messages:
            raise LinkClosed("it is closed")
        message = parse(frame)
        params = message.params_object()
        version = modern_version(params)
        if message.is_request:
            ask = functools.partial(self._ask, frame, message, params, version, forwarded or {})
            if message.method == "initialize":
                self._initialize_id = message.id
            if message.method in OF_ONE_RESOURCE:
                self._paced = self._paced or PacedRequests(self._upstream.name, self._run, self._events)
                self._paced.add(message.id, ask)  # type: ignore[arg-type]  # a request has an id
                return
            self._run(message.id, ask())
            return
        if message.method == _CANCELLED:
            cancelled = decode_id(params.get("requestId", msgspec.Raw(b"null")))
            if self._paced is not None and self._paced.drop(cancelled):
                return  # the server does not have it
            # Nobody waits for the answer. Closing its stream is what cancels a request of the modern era.
            if (running := self._running.get(cancelled)) is not None:
                running.cancel()
        if message.method != _CANCELLED or self._version:
            # Notifications and responses keep their order, and precede later requests.
            headers = {"mcp-protocol-version": version, "mcp-method": str(message.method)} if version else None
            self._messages.add(len(frame), functools.partial(self._tell, frame, headers))
            if message.method == "notifications/initialized":
                self._run("stream", self._follow())

    def _run(self, key: object, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._work.spawn(work)
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None) if self._running.get(key) is task else None)
        return task

    # -- requests

    async def _renewed_headers(self, more: Headers) -> Headers:
        """Return all headers of a request: `more`, and those of each request, with renewed credentials. Raises
        `UpstreamUnavailable` if a credential is not available any more."""
        await self._given.renew()
        return self._headers(more)

    def _headers(self, more: Headers) -> Headers:
        return {
            "accept": _ACCEPT,
            "content-type": "application/json",
            **more,
            **self._given.headers(),
            **self._upstream.headers,
            "accept-encoding": "identity",
            **({"via": via_of(self._upstream.gateway)} if self._upstream.gateway else {}),
        }

    def _session_headers(self) -> Headers:
        headers: Headers = {}
        if self._session:
            headers[_SESSION] = self._session
        if self._version:
            headers["mcp-protocol-version"] = self._version
        return headers

    async def _ask(
        self, frame: bytes, message: Message, params: Object, version: str, forwarded: Mapping[str, str]
    ) -> None:
        """Send a request, after the notifications before it, and read its answer. `version` is the MCP version of a
        modern request; empty for a legacy one. `forwarded` is that of `send`."""
        assert isinstance(message.id, int | str)
        modern: Headers = {}
        try:
            if version:
                modern = _modern_headers(message, params, version, self._given.schemas, forwarded)
        except Exception:  # whatever the client or the schema contains, the call must end
            logger.exception("the headers of a request to server %s could not be made", self._upstream.name)
            reason = f"the headers of the request to server {self._upstream.name!r} could not be made; it was not sent"
            self._events.refused(message.id, reason)
            return
        await self._messages.sent()
        await self._post(frame, message, modern or self._session_headers(), is_resumable=not version)

    async def _post(self, frame: bytes, message: Message, headers: Headers, *, is_resumable: bool) -> None:
        """Send a request, and read its answer. Report every failure to `LinkEvents`, and raise none. `is_resumable`: a
        stream that is cut before the answer may be resumed."""
        assert isinstance(message.id, int | str)
        name = self._upstream.name
        try:
            if not await self._is_answered(frame, message, headers, is_resumable=is_resumable):
                self._events.unreadable(message.id, f"server {name!r} ended the stream without an answer")
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            reason = f"server {name!r} cannot be reached: {error_text(error)}{self._upstream.advice}"
            self._events.refused(message.id, reason)
        except (httpx2.HTTPError, OSError) as error:
            self._events.unreadable(message.id, f"server {name!r} broke off: {error_text(error)}")
        except TooLarge:
            self._events.unreadable(message.id, f"server {name!r} {too_large(self._upstream.max_event_bytes)}")
        except UpstreamUnavailable as error:
            self._events.refused(message.id, f"server {name!r}: {error}", cause=error)
        except Exception:  # whatever the server has sent, the call must end
            logger.exception("an answer of server %s could not be read", name)
            self._events.unreadable(message.id, f"server {name!r} sent an answer that cannot be read")

    async def _is_answered(self, frame: bytes, message: Message, headers: Headers, *, is_resumable: bool) -> bool:
        """Send a request, and deliver its answer. Return True also if a failure was reported instead. Return False if
        the stream ended before the answer, and was not resumed (`is_resumable`)."""
        assert isinstance(message.id, int | str)
        place = StreamPlace()
        try:
            async with self._posted(frame, message, headers) as response:
                if message.method == "initialize" and response.status_code == 200:
                    self._session = _sendable(response.headers.get(_SESSION))
                    self._log_session(self._session)
                if (_has_no_session(response) and message.method != "initialize") or (
                    self._upstream.keeps_session and await _has_ended(response)
                ):
                    self._forgotten(message.id)
                    return True
                if await self._replies.read(response, message, place):
                    return True
        except (httpx2.HTTPError, OSError):
            if not (is_resumable and place.last_id):
                raise
        return is_resumable and await self._resume(place, message.id)

    @contextlib.asynccontextmanager
    async def _posted(self, frame: bytes, message: Message, headers: Headers) -> AsyncIterator[httpx2.Response]:
        """Send a request, and yield the response. At a gateway that keeps a session, the first modern call opens the
        session; calls that come meanwhile wait for the head of its response, because each would open another
        session."""
        keeps_session = self._upstream.keeps_session and "mcp-method" in headers
        async with contextlib.AsyncExitStack() as opening:
            if keeps_session and not self._token and message.method not in SESSIONLESS:
                await opening.enter_async_context(self._opening)
            is_repeatable = message.method in self._upstream.repeatable
            for is_first in (True, False):
                renewed = await self._renewed_headers(self._with_token(headers))
                async with self._upstream.open("POST", renewed, frame, is_repeatable=is_repeatable) as response:
                    # This status says that the request was not executed.
                    if is_first and response.status_code == 401 and await self._given.rejected(renewed.values()):
                        continue
                    if keeps_session:
                        self._keep_token(response, renewed["mcp-protocol-version"])
                    await opening.aclose()
                    yield response
                    return

    def _with_token(self, headers: Headers) -> Headers:
        """Return the headers of a message. For a modern message to another gateway, add the session's token, or ask for
        a new session."""
        if not (self._upstream.keeps_session and "mcp-method" in headers):
            return headers
        return headers | {_GATEWAY_SESSION: self._token or _NEW}

    def _keep_token(self, response: httpx2.Response, version: str) -> None:
        """If a gateway has sent a session token in its response, keep the token for later requests. If the link had no
        token before, log the beginning of the session's id, and use the session again at once (`_confirm`)."""
        token = _sendable(response.headers.get(_GATEWAY_SESSION))
        if not token or token == self._token:
            return
        is_first, self._token = not self._token, token
        if is_first:
            self._log_session(token)
            self._run(object(), self._confirm(version))

    def _log_session(self, token: str) -> None:
        if self._upstream.keeps_session and token:
            logger.info("the session at server %s is %s", self._upstream.name, token[:_SHOWN_CHARS])

    async def _confirm(self, version: str) -> None:
        """Use the new session again at once. A gateway ends the session of an anonymous client soon after its first
        call if the client does not come back."""
        meta = {VERSION_KEY: version, "io.modelcontextprotocol/clientCapabilities": {}}
        frame = encode_request(0, _LISTING, encode({"_meta": meta}))
        headers = self._with_token({"mcp-protocol-version": version, "mcp-method": _LISTING})
        with contextlib.suppress(httpx2.HTTPError, OSError, UpstreamUnavailable):
            await self._upstream.tell("POST", await self._renewed_headers(headers), frame)

    def _deliver(self, message: Message, stream: int | str) -> None:
        """Pass a message on, with the id of the request on whose stream it came. Read the protocol version for all
        later requests from the result of `initialize`."""
        if message.is_response and message.id == self._initialize_id and isinstance(message.result, msgspec.Raw):
            result = msgspec.json.decode(message.result)
            self._version = _sendable(result.get("protocolVersion")) if isinstance(result, dict) else ""
        self._events.message(message, stream)
        if message.is_response and message.id != stream and isinstance(message.id, int):
            if (answered := self._running.get(message.id)) is not None:
                answered.cancel()  # nobody else would end its own response, which may have no end

    async def _resume(self, place: StreamPlace, request_id: int | str) -> bool:
        """Resume the stream of the request `request_id`, which was cut before the answer, after its last event
        (`place`). Do so as often as the server cuts it (MCP 2025-11-25, Resumability). Return False if no answer
        comes."""
        failures, heard_at, is_first = 0, monotonic(), True
        while place.last_id and failures < _MOST_FAILURES and monotonic() - heard_at < _MOST_QUIET_S:
            await self._upstream.pause(pause_s(place, failures, at_once=is_first))
            events, status, is_first = place.events, 0, False
            with contextlib.suppress(httpx2.HTTPError, OSError, UpstreamUnavailable):
                async with await self._get({"last-event-id": place.last_id}) as response:
                    status = response.status_code
                    if status == 200 and await self._replies.stream(response, request_id, place):
                        return True
            if status != 200 and is_about_content(status):
                break  # the server keeps no events
            if place.events > events:
                failures, heard_at = 0, monotonic()
            elif status != 200 or place.retry_s is None:
                failures += 1
        return False

    async def _tell(self, frame: bytes, modern: Headers | None) -> None:
        """Send a notification or a response. `modern` has the headers of a modern message; None for a legacy one, which
        names the server's session."""
        try:
            headers = self._session_headers() if modern is None else self._with_token(modern)
            response = await self._upstream.tell("POST", await self._renewed_headers(headers), frame)
            if _has_no_session(response):
                self._forgotten(None)
        except (httpx2.HTTPError, OSError, UpstreamUnavailable) as error:
            logger.warning("a message could not be sent to server %s: %s", self._upstream.name, error_text(error))

    # -- the server's own stream

    async def _get(self, more: Headers) -> contextlib.AbstractAsyncContextManager[httpx2.Response]:
        headers = await self._renewed_headers(self._session_headers() | more) | {"accept": "text/event-stream"}
        encoded = httpx2.Headers(headers, encoding="utf-8")  # the server's event ids may be more than ASCII
        return self._upstream.open("GET", encoded)

    async def _follow(self) -> None:
        """Read the stream of the server's own messages for as long as the link lasts, unless the server offers none."""
        await self._messages.sent()
        place, failures = StreamPlace(), 0
        while self._takes_messages:
            events, status, began = place.events, 0, monotonic()
            try:
                async with await self._get({"last-event-id": place.last_id} if place.last_id else {}) as response:
                    status = response.status_code
                    if _has_no_session(response):
                        self._forgotten(None)
                        return
                    if status == 405:
                        return  # the server has no such stream
                    if status == 200:
                        await self._replies.stream(response, None, place)
            except (httpx2.HTTPError, OSError, TooLarge, UpstreamUnavailable) as error:
                logger.debug("the stream of server %s was cut: %s", self._upstream.name, error_text(error))
            except Exception:  # whatever the server has sent, its later messages are for the client
                status = 0
                logger.exception("the stream of server %s could not be read", self._upstream.name)
            is_useful = place.events > events or place.retry_s is not None or monotonic() - began >= _LASTING_S
            failures = 0 if status == 200 and is_useful else failures + 1
            await self._upstream.pause(pause_s(place, failures))

    # -- the end

    def _forgotten(self, request_id: int | str | None) -> None:
        """Report that the server does not know the session any more, and so has not executed this request (None: a
        message that is no request). Take no more messages."""
        self._takes_messages = False
        stream = self._running.get("stream")
        if stream is not None and stream is not asyncio.current_task():
            stream.cancel()
        self._events.unsent(self, request_id, f"server {self._upstream.name!r} has forgotten the session")

    async def close(self) -> None:
        """Cancel the requests in flight. End the server's session too, unless it is meant to outlive the link."""
        is_first, self._is_closed = not self._is_closed, True
        session = self._session_headers() if self._session else {_GATEWAY_SESSION: self._token} if self._token else {}
        has_session, self._takes_messages = self._takes_messages and bool(session), False
        await self._work.close()
        if not is_first:
            return
        if has_session and self._upstream.ends_session and not self._given.keep():
            with contextlib.suppress(httpx2.HTTPError, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._upstream.tell("DELETE", self._headers(session))
        self._events.closed("it was closed")


def _modern_headers(
    message: Message,
    params: Object,
    version: str,
    schemas: Callable[[], Mapping[str, Any]],
    forwarded: Mapping[str, str],
) -> Headers:
    """Return the headers that repeat parts of a modern request's body (MCP 2026-07-28, Transports §Streamable HTTP).
    Add those of the client's headers in `forwarded` that the tool's input schema does not know. `schemas` returns the
    input schemas by tool."""
    method, schema = str(message.method), None
    headers = {"mcp-protocol-version": version, "mcp-method": method}
    source = NAME_SOURCES.get(method)
    if source in params:
        headers["mcp-name"] = encode_value(str(msgspec.json.decode(params[source])))
    if method == "tools/call":
        schema = schemas().get(str(msgspec.json.decode(params.get("name", b'""'))))
        arguments = {} if schema is None else decode_exact(params.get("arguments", b"{}"))
        if isinstance(arguments, dict):
            headers |= argument_headers(schema, arguments)
    return headers | unknown_headers(schema, forwarded) if forwarded else headers


def _has_no_session(response: httpx2.Response) -> bool:
    """Return True if the server does not know the session that the request named (status 404). Return False if the
    request named none."""
    return response.status_code == 404 and _SESSION in response.request.headers


async def _has_ended(response: httpx2.Response) -> bool:
    """Return True if a gateway answers that it does not know the session that a modern request named. The error's code
    decides, because the status is the same for an unknown method."""
    named = response.request.headers.get(_GATEWAY_SESSION, _NEW) != _NEW
    length = "" if "transfer-encoding" in response.headers else response.headers.get("content-length", "")
    if (
        not named
        or response.status_code != 404
        or is_encoded(response)
        or not (length.isascii() and length.isdigit() and len(length) < 10)
    ):
        return False
    if not 0 < int(length) <= _MOST_REFUSAL_BYTES:
        return False
    try:
        code: object = msgspec.json.decode(await response.aread(), type=dict[str, Any])["error"]["code"]
    except (*UNREADABLE, KeyError, TypeError):
        return False
    return code == _UNKNOWN_SESSION


def _sendable(value: object) -> str:
    """Return a value from the server, to be repeated in later headers; empty if a header cannot contain it
    unchanged."""
    return value if isinstance(value, str) and value.isascii() and value.isprintable() else ""


def _resumed(state: str) -> tuple[str, str]:
    try:
        version, session = msgspec.json.decode(state or '["",""]', type=tuple[str, str])
    except msgspec.MsgspecError:
        return "", ""
    return _sendable(version), _sendable(session)


def modern_version(params: Object) -> str:
    """Return the protocol version that a modern request names in `_meta` (MCP 2026-07-28, Versioning); empty for a
    legacy one.

    Only the key counts: a legacy client may write the same text as a value.
    """
    meta = bytes(params.get("_meta", b""))
    if VERSION_KEY.encode() not in meta:
        return ""
    try:
        version = msgspec.json.decode(meta, type=dict[str, msgspec.Raw]).get(VERSION_KEY)
        return "" if version is None else msgspec.json.decode(version, type=str)
    except msgspec.MsgspecError:
        return ""
