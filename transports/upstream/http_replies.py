"""Read the HTTP responses of an MCP server: turn JSON bodies and event streams into messages.

MCP 2025-03-26 … 2025-11-25 and 2026-07-28, Transports §Streamable HTTP. This module does not know requests in flight or
sessions."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from time import monotonic
from typing import Final

import httpx2
import msgspec

from transports.jsonrpc import InvalidMessage, Message, parse
from transports.sse import EventDecoder, TooLarge
from transports.upstream.invalid_output_lines import LineBudget, log_line, probable_meaning
from transports.upstream_port import STANDALONE, LinkEvents, is_about_content
from transports.work_steps import PIECES_AT_ONCE, Turns

LEAST_S: Final = 0.1
"""The shortest delay before a stream is opened again, so that a server's `retry: 0` does not make the gateway reconnect
in a tight loop."""

MOST_S: Final = 600.0
"""The longest delay before a stream is opened again, so that a server cannot make the gateway wait for hours."""

_MOST_ID_CHARS: Final = 1024
"""The longest event id that is sent back in a header. Few servers accept a longer header."""

_FIRST_S: Final = 1.0
_MOST_BACKOFF_S: Final = 60.0


class StreamPlace:
    """Record how far an event stream was read, over all its connections, so that it can be resumed. The stream is that
    of one request, or that of the server's own messages."""

    __slots__ = ("events", "last_id", "retry_s")

    def __init__(self) -> None:
        self.last_id = ""
        """The id of the last event that had one; empty if none had, or if a header cannot contain it."""
        self.retry_s: float | None = None
        """The last reconnection time that the server has named; None if it has named none."""
        self.events = 0
        """The number of events, those without data included."""

    def read(self, event_id: str) -> None:
        """Count an event, and store its id (empty if it has none). If a header cannot contain the id, store an empty
        one: the stream is then resumed without an id, because with an older one events would come twice."""
        self.events += 1
        if event_id:  # a header holds UTF-8 (HTML, Server-sent events; RFC 9110 §5.5)
            is_sendable = len(event_id) <= _MOST_ID_CHARS and event_id.isprintable() and event_id == event_id.strip()
            self.last_id = event_id if is_sendable else ""


def pause_s(place: StreamPlace, failures: int, *, at_once: bool = False) -> float:
    """Return the seconds to wait before a stream is opened again: the server's `retry`, within `LEAST_S` and `MOST_S`,
    or one second by default.

    Each of `failures` attempts in a row without an event doubles the time, up to a minute. With `at_once`, the default
    is `LEAST_S`: a request waits for the stream, which has just been cut.
    """
    named_s = None if place.retry_s is None else min(max(place.retry_s, LEAST_S), MOST_S)
    backoff_s = min(_MOST_BACKOFF_S, _FIRST_S * 2.0 ** min(failures - 1, 16)) if failures else 0.0
    if named_s is None:
        named_s = LEAST_S if at_once else _FIRST_S
    return max(named_s, backoff_s)


logger = logging.getLogger(__name__)

_PART_BYTES: Final = 1 << 10
"""The size of the parts in which a chunk of many lines is decoded."""
_MOST_ERROR_CHARS: Final = 200
_DISCOVER: Final = "server/discover"
_LOOP: Final = ": its url leads back to a gateway that has sent the request already"
_RETRY_AFTER = re.compile(r"[0-9]{1,9}|[A-Za-z]{3}, [0-9]{2} [A-Za-z]{3} [0-9]{4} [0-9:]{8} GMT")  # RFC 9110 §10.2.3
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}(?= |$)")
_CHALLENGE = re.compile(r'\b(?:error="[a-z_]{1,64}"|scope="[A-Za-z0-9_.:* -]{1,128}")')  # RFC 6750 §3
_MOST_SKIMMED_BYTES, _MOST_SKIMMED_S = 64 << 10, 2.0


@dataclass(eq=False, repr=False)
class ReplyReader:
    """Read the responses of one server. Its methods raise `TooLarge`, and the errors of the HTTP client."""

    name: str
    """The server's name."""
    max_bytes: int
    """The most bytes of an event or a body. A larger one raises `TooLarge`."""
    _: KW_ONLY
    deliver: Callable[[Message, int | str], None]
    """Called with each message, and the id of the request on whose stream it came, or `STANDALONE`."""
    events: LinkEvents
    """Gets the reports of answers that cannot be used."""
    budget: LineBudget
    """Limits the log lines about the server."""

    async def read(self, response: httpx2.Response, message: Message, place: StreamPlace) -> bool:
        """Read the response to the request `message`, and deliver its messages. `place` records how far a stream was
        read. Return False if the response is a stream that ended before the answer; otherwise True."""
        assert isinstance(message.id, int | str)
        if response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream"):
            return await self.stream(response, message.id, place)
        body = await self._body(response)
        try:
            answer = parse(body, is_lenient=True)
        except InvalidMessage:
            answer = None
        if message.method == _DISCOVER and not response.is_success and not is_about_content(response.status_code):
            answer = None  # the status counts: whoever sent the body, it says nothing of the server's era
        if answer is not None and answer.is_response and (answer.id == message.id or answer.id is None):
            if answer.id is None:  # the server could not read the id of the request
                answer = msgspec.structs.replace(answer, id=message.id)
            self.deliver(answer, message.id)
        elif response.status_code in (200, 202):
            self.events.unreadable(message.id, f"server {self.name!r} sent a response that is not an answer")
        else:
            loop = _LOOP if response.status_code == 508 else ""
            reason = f"server {self.name!r} answered {refusal_text(response)}{loop}"
            self.events.refused(message.id, reason, response.status_code)
        return True

    async def stream(self, response: httpx2.Response, request_id: int | str | None, place: StreamPlace) -> bool:
        """Deliver the messages of an event stream, and record in `place` how far it was read. Return True as soon as
        the answer to the request has come; False if the stream ends before."""
        refuse_encoded(response)
        decoder, turns = EventDecoder(self.max_bytes), Turns()
        async for chunk in response.aiter_bytes():
            for part in _parts(chunk):
                for event in decoder.feed(part):
                    place.read(event.id)
                    if event.data and self._event(event.data, request_id):
                        return True
                await turns.done(1 + _line_ends(part))
            if decoder.retry_ms is not None:
                place.retry_s = decoder.retry_ms / 1000
        return False

    async def _body(self, response: httpx2.Response) -> bytes:
        if not response.is_success and is_encoded(response):
            return b""  # the status counts
        refuse_encoded(response)
        parts, size, turns = [], 0, Turns()
        async for chunk in response.aiter_bytes():
            await turns.done()
            size += len(chunk)
            if size > self.max_bytes:
                raise TooLarge(f"an answer of more than {self.max_bytes} bytes")
            parts.append(chunk)
        return b"".join(parts)

    def _event(self, data: bytes, request_id: int | str | None) -> bool:
        """Handle the data of one event. Return True if it was the answer to the request `request_id`, readable or not.
        None: the stream belongs to no request."""
        try:
            message = parse(data, is_lenient=True)
        except InvalidMessage as error:
            before = self.budget.add("event", str(error), now=monotonic())
            what = f"server {self.name} sent something that is not a JSON-RPC message"
            log_line(logger, before, what, f": {error}", self.events.log_fields)
            meaning = probable_meaning(data)
            if request_id is None or not meaning.is_answer or meaning.request_id not in (None, request_id):
                return False
            reason = f"server {self.name!r} sent an answer that cannot be read: {error}"
            self.events.unreadable(request_id, reason)
            return True
        self.deliver(message, STANDALONE if request_id is None else request_id)
        return message.is_response and message.id == request_id


def _parts(chunk: bytes) -> list[bytes]:
    if _line_ends(chunk) < PIECES_AT_ONCE:
        return [chunk]
    return [chunk[at : at + _PART_BYTES] for at in range(0, len(chunk), _PART_BYTES)]


def _line_ends(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r")


def is_encoded(response: httpx2.Response) -> bool:
    """Return True if the response is compressed, although requests accept no coding (RFC 9110 §12.5.3)."""
    return response.headers.get("content-encoding", "identity").lower() not in ("", "identity")


def refuse_encoded(response: httpx2.Response) -> None:
    """Raise `httpx2.DecodingError` if the response is compressed. The HTTP client decodes what it has read in one turn
    of the event loop, one coding inside another. A few kilobytes can have so many empty blocks or lines that this takes
    hours, and no limit counts these."""
    if is_encoded(response):
        raise httpx2.DecodingError("the response has a Content-Encoding that was not asked for")


def redirect_target(response: httpx2.Response) -> httpx2.URL | None:
    """Return the URL to which the same request may be sent again: the target of a 307 or 308 within the same origin.
    None for any other response. Credentials in the `Location` are ignored: the operator's are used (RFC 9110
    §15.4.8)."""
    if response.status_code not in (307, 308) or response.next_request is None:
        return None
    target, own = response.next_request.url, response.request.url
    if (target.scheme, target.host, target.port) != (own.scheme, own.host, own.port):
        return None
    return target.copy_with(userinfo=own.userinfo, fragment=None)


def refusal_text(response: httpx2.Response) -> str:
    """Return a text about a response without a usable answer: its status, and the safe parts of its headers. Of URLs
    and challenges, only parts without credentials and without the server's address are quoted. Paths are left out,
    because some servers have secrets there. The server's own reason phrase is left out too, because it may be any
    text."""
    text = f"{response.status_code} {httpx2.codes.get_reason_phrase(response.status_code)}".rstrip()
    if response.next_request is not None:
        target, own = response.next_request.url, response.request.url
        host = target.netloc.decode("ascii", "replace")
        if target.host == own.host:
            host = "(the same host)" + (f":{target.port}" if target.port else "")
        text += f", a redirection to {f'{target.scheme}://{host}'[:_MOST_ERROR_CHARS]!r}, not followed"
    if (wait := response.headers.get("retry-after", "")) and _RETRY_AFTER.fullmatch(wait):
        text += f"; Retry-After: {wait}"
    if (challenge := response.headers.get("www-authenticate", "")) and (scheme := _SCHEME.match(challenge)):
        named = [found[0] for found in _CHALLENGE.finditer(challenge)]
        text += f"; WWW-Authenticate: {scheme[0]} {', '.join(named)}".rstrip()[:_MOST_ERROR_CHARS]
    return text


async def skim(response: httpx2.Response) -> None:
    """Read and discard a body, so that its connection can be used again. A long, slow or compressed body is not read,
    and its connection is closed."""
    if is_encoded(response):
        return
    size, turns = 0, Turns()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MOST_SKIMMED_S):
            async for chunk in response.aiter_bytes():
                await turns.done()
                size += len(chunk)
                if size > _MOST_SKIMMED_BYTES:
                    return


def error_text(error: Exception) -> str:
    """Return an error as text for a log line or a reason: its class and the beginning of its message."""
    return f"{type(error).__name__}: {str(error)[:_MOST_ERROR_CHARS]}" if str(error) else type(error).__name__
