"""The same bytes, in the same pieces, to the gateway's HTTP connection and to h11: what each takes them for.

Where h11 reads so many requests, the gateway must answer the same ones, or fewer and then end the connection with a
4xx or 5xx. Where h11 refuses, the gateway must not answer what comes after. A request that h11 does not see is the
smuggler's, whatever else happens.
"""

import asyncio
import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

import h11
from uvicorn.config import Config
from uvicorn.server import ServerState

from tests.attack.fuzz.transport import RecordingTransport, loop
from transports.inbound.connections import Connections
from transports.inbound.head_cache import REPEATS, HeadCache
from transports.inbound.http_connection import HttpConnection, http_connections
from transports.inbound.unauthenticated_limits import Limits
from transports.reply_queue import Frame, ReplyQueue

BEHAVIOURS: Final = ("reads", "slow", "early")
"""How the app answers: at once, after a while, or before it has read the body."""

_TURNS: Final = 400
_SPACES: Final = re.compile(rb"^([A-Z-]+) +([^ \r\n]+) +(HTTP/1\.[01]\r?\n)")
_ZEROS: Final = re.compile(rb"(?<=[\n:, \t])0{15,}(?=[0-9A-Fa-f])")
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")

TOLERATED: Final = {
    "spaces": "Empty lines before a request and several spaces in its first line: h11 refuses them, RFC 9112 (§2.2, "
    "§3) lets a server read them, and no part of a request can be among them.",
    "zeros": "More than 20 digits of a length, of which the first are zeros. RFC 9112 sets no limit.",
    "stricter": "The gateway refuses what h11 reads, with a status, and ends the connection: bare line feeds, obsolete "
    "folding, methods and versions it does not know, two lengths that agree, CONNECT, a target that is no path.",
    "waits": "h11 refuses at once what the gateway waits for the rest of. Nothing is answered; the deadline of the "
    "head or the body ends it.",
    "preface": "`PRI` begins the preface of HTTP/2 (RFC 9113 §3.4): nothing is answered, and the deadline of the head "
    "ends it.",
    "closes": "The gateway ends the connection without a word: the request had its answer before its body was bad.",
}
"""The differences that are no findings, and why."""


@dataclass(slots=True, kw_only=True)
class Request:
    """What somebody took the bytes for. `body` is None where its end was not seen."""

    method: str
    target: str
    body: bytes | None = None


@dataclass(slots=True, kw_only=True)
class Read:
    """All of a connection: the requests, whether the rest was refused, and which statuses went out."""

    requests: list[Request] = field(default_factory=list)
    refused: bool = False
    statuses: list[int] = field(default_factory=list)
    closed: bool = False
    failed: str = ""


def _origin(target: str) -> str:
    """The path of a target that may be absolute, with its query. ASGI does not tell an empty query from none."""
    target = target.removesuffix("?") if target.count("?") == 1 else target
    if not re.match("https?://", target, re.IGNORECASE):
        return target
    try:
        parts = urlsplit(target)
    except ValueError:
        return target
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


# -- h11


def referee_reads(segments: Sequence[bytes]) -> Read:
    """As h11 does, which answers each request with nothing. How it arrives in pieces makes no difference to it."""
    found, rest = Read(), b"".join(segments)
    while rest := _as_rfc_9112_lets(rest):
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=64 << 10)
        connection.receive_data(rest)
        connection.receive_data(b"")
        try:
            if not _one_message(connection, found):
                break
        except h11.RemoteProtocolError:
            found.refused = True
            break
        rest = connection.trailing_data[0]
    return found


def _as_rfc_9112_lets(data: bytes) -> bytes:
    """What h11 refuses and the RFC says that a server may read."""
    # Empty lines before a request (§2.2), and more than one space in its first line (§3).
    return _SPACES.sub(rb"\1 \2 \3", data.lstrip(b"\r\n"), count=1)


def _one_message(connection: h11.Connection, found: Read) -> bool:
    """Read one request; false when the connection is over."""
    parts: list[bytes] = []
    while True:
        event = connection.next_event()
        if isinstance(event, h11.ConnectionClosed) or event in (h11.NEED_DATA, h11.PAUSED):
            return False
        if isinstance(event, h11.Request):
            target = _origin(event.target.decode("latin-1"))
            found.requests.append(Request(method=event.method.decode("latin-1"), target=target))
        elif isinstance(event, h11.Data):
            parts.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            found.requests[-1].body = b"".join(parts)
            status = 501 if found.requests[-1].method == "CONNECT" else 200
            connection.send(h11.Response(status_code=status, headers=[("Content-Length", "0")]))
            connection.send(h11.EndOfMessage())
            return connection.our_state is h11.DONE and connection.their_state is h11.DONE


# -- the gateway


class _Transport(RecordingTransport):
    """A connection's other side: takes what is written, and hands on pieces while it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ended = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        assert not self.is_ended, "it writes after it said that it is done"
        super().write(data)

    def write_eof(self) -> None:
        self.is_ended = True

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class _Repeated:
    """A head that a connection remembers, as `RepeatedHead`: its requests are noted and answered as the app does."""

    def __init__(self, app: "_App", target: str) -> None:
        self._app = app
        self._target = target

    def begin(self, body: bytes, trace: bytes) -> "_Begun":
        return _Begun(self._app, Request(method="POST", target=self._target, body=body))

    def begin_fast(self, connection: object, body: bytes, trace: bytes) -> None:
        """No request is like another one."""

    def learn(self, begun: object) -> None:
        """Nothing."""

    def count_memory_with(self, count: object) -> None:
        """Nothing."""


class _Begun:
    """One request with such a head, as `StartedPost`."""

    has_failed = is_no_request = is_doubtful = False
    quiet_at = math.inf
    headers: tuple[()] = ()

    def __init__(self, app: "_App", request: Request) -> None:
        app.requests.append(request)
        self.answer = self
        self.replies = ReplyQueue()
        self._turns = 12 if app.behaviour == "slow" else 0
        self._turn()

    def _turn(self) -> None:
        self._turns -= 1
        if self._turns < 0:
            self.replies.push(Frame(b"ok", final=True))
        else:
            asyncio.get_running_loop().call_soon(self._turn)

    def wait(self, task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> asyncio.Task[None]:
        return task(asyncio.sleep(0))

    def status(self, frame: Frame) -> int:
        return 200

    def json_headers(self, answer: object) -> list[tuple[bytes, bytes]]:
        return []

    def answered(self) -> None:
        """Nothing is left to be done."""

    async def finish(self, scope: Any, receive: Any, send: Any) -> None:
        await self.replies.next()
        with contextlib.suppress(OSError):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})


class _App:
    """Answers everything with 200, and notes what it was asked. It lets connections remember heads of POSTs."""

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour
        self.requests: list[Request] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        request = Request(method=scope["method"], target=target.decode("latin-1"))
        self.requests.append(request)
        if self.behaviour != "early":
            body, more = b"", True
            while more:
                event = await receive()
                if event["type"] == "http.disconnect":
                    return
                body, more = body + event.get("body", b""), event.get("more_body", False)
            request.body = body
        if self.behaviour == "slow":
            for _ in range(12):
                await asyncio.sleep(0)
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
        with contextlib.suppress(OSError):
            await send(start)
            await send({"type": "http.response.body", "body": b"ok"})
        if (offer := scope.get(REPEATS)) is not None:
            offer.store(lambda: cast("Any", _Repeated(self, request.target)))


class _Gateway:
    """The gateway's connections, without a network."""

    def __init__(self, behaviour: str, made: Any) -> None:
        self.app = _App(behaviour)
        self.config = Config(
            self.app, log_config=None, access_log=False, ws="none", lifespan="off", server_header=False
        )
        self.config.load()
        # uvicorn's own wrappers have no part in this.
        self.config.loaded_app = self.app
        self.connections = Connections(Limits(), Counter[Any]())
        self.made = made or http_connections(self.connections)

    async def read(self, segments: Sequence[bytes]) -> Read:
        found, transport, state = Read(), _Transport(), ServerState()
        self.app.requests = []
        transport.protocol = self.made(self.config, state, {}, asyncio.get_running_loop())
        transport.protocol.connection_made(transport)
        try:
            for segment in segments:
                if not await self._let(transport):
                    break
                transport.protocol.data_received(segment)
                for _ in range(7 if len(segment) % 4 else 1):  # after the answer to what it completes, or before
                    await asyncio.sleep(0)
            await self._settle(transport, state)
            if not transport.is_over:
                transport.protocol.eof_received()
        except Exception as error:  # whatever it is: a stranger's bytes did it
            found.failed = f"{type(error).__name__}: {error}"
        found.closed = (
            transport.is_over or transport.is_ended or b"connection: close" in bytes(transport.written).lower()
        )
        transport.is_over = True
        transport.protocol.connection_lost(None)
        for _ in range(_TURNS):
            if not state.tasks:
                break
            await asyncio.sleep(0)
        if state.tasks:
            found.failed = found.failed or "a task does not end with its connection"
            for task in state.tasks:
                task.cancel()
        self.connections.close()
        found.requests = self.app.requests
        found.statuses = [int(status) for status in _STATUS.findall(transport.written)]
        found.refused = any(status >= 400 for status in found.statuses)
        return found

    async def _let(self, transport: _Transport) -> bool:
        """Wait until it reads on; false where it does no more."""
        for _ in range(_TURNS):
            if transport.is_over:
                return False
            if not transport.is_paused:
                return True
            await asyncio.sleep(0)
        return False

    async def _settle(self, transport: _Transport, state: ServerState) -> None:
        """Until nothing happens any more."""
        for _ in range(_TURNS):
            before = len(transport.written)
            for _ in range(16):
                await asyncio.sleep(0)
            if len(transport.written) == before:
                return


_gateways: dict[tuple[str, Any], _Gateway] = {}


def gateway_reads(segments: Sequence[bytes], behaviour: str, made: Any = None) -> Read:
    """As the gateway does, with an app that behaves so; `made` makes connections in place of the gateway's."""

    async def reading() -> Read:
        if (behaviour, made) not in _gateways:
            _gateways[behaviour, made] = _Gateway(behaviour, made)
        return await _gateways[behaviour, made].read(segments)

    return loop().run_until_complete(reading())


MEMORY: Final[Counter[str]] = Counter()
"""What became of requests on `remembering` connections."""


def remembering(*arguments: Any) -> HttpConnection:
    """A connection that remembers heads, for `made`."""
    connections = Connections(Limits(), Counter[Any]())
    cache = HeadCache(MEMORY, lambda: True, Limits())
    return http_connections(connections, cache)(*arguments)


# -- the comparison


def differences(segments: Sequence[bytes], behaviour: str, made: Any = None) -> tuple[list[str], str]:
    """Findings, and which tolerated difference there was, if any."""
    ours = gateway_reads(segments, behaviour, made)
    found, tolerated = _compared(ours, referee_reads(segments))
    shorter = _ZEROS.sub(b"", b"".join(segments))
    if found and len(shorter) < sum(map(len, segments)):
        # Only where it makes a difference: the same digits may stand in a body, which would become shorter.
        found_in_shorter, _ = _compared(ours, referee_reads([shorter]))
        if not found_in_shorter:
            return [], "zeros"
    return found, tolerated


def _compared(ours: Read, theirs: Read) -> tuple[list[str], str]:
    found = [f"it fails: {ours.failed}"] if ours.failed else []
    for number, request in enumerate(ours.requests):
        if number >= len(theirs.requests):
            found.append(f"request {number + 1} is none for h11: {request}")
            break
        found += _other(number, request, theirs.requests[number])
    answered = [status for status in ours.statuses if status >= 200]
    refusals = [status for status in answered if status >= 400]
    if len(refusals) > 1 or (refusals and answered[-1] != refusals[0]):
        found.append(f"something is answered after a refusal: {answered}")
    if answered.count(200) > len(ours.requests):
        found.append(f"{answered} for {len(ours.requests)} requests")
    complete = sum(request.body is not None for request in theirs.requests)
    tolerated = ""
    if len(ours.requests) < complete:
        if ours.refused:
            tolerated = "stricter"
        elif ours.closed:
            tolerated = "closes"
        elif theirs.requests[len(ours.requests)].method == "PRI":
            tolerated = "preface"
        else:
            found.append(
                f"h11 reads {complete} requests, the gateway {len(ours.requests)} and says nothing: {answered}"
            )
    elif theirs.refused and not ours.refused and not ours.closed:
        tolerated = "waits"
    return found, tolerated


def _other(number: int, ours: Request, theirs: Request) -> list[str]:
    if (ours.method, ours.target) != (theirs.method, theirs.target):
        return [f"request {number + 1} is {ours.method} {ours.target}, for h11 {theirs.method} {theirs.target}"]
    if ours.body is not None and ours.body != theirs.body:
        return [f"request {number + 1} has the body {ours.body!r}, for h11 {theirs.body!r}"]
    return []
