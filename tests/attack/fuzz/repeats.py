"""The same requests on two connections, of which one remembers heads: what is written, and what the handler is given.

Requests repeat few heads, with bodies of many kinds, in pieces of many sizes. Each conversation is made from a seed.
"""

import asyncio
import json
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, cast
from unittest.mock import patch

from uvicorn.config import Config
from uvicorn.server import ServerState

from tests.attack.fuzz.transport import RecordingTransport, loop
from transports.inbound import streamable_http
from transports.inbound.connections import Connections
from transports.inbound.head_cache import HeadCache
from transports.inbound.host_and_origin import Guard
from transports.inbound.http_connection import HttpConnection
from transports.inbound.streamable_http import StreamableHttp
from transports.inbound.unauthenticated_limits import BodyBudget, Limits
from transports.inbound_port import Handler, OwnedByPeer, Refused, Request
from transports.reply_queue import Frame, ReplyQueue

LIMITS: Final = Limits(body_bytes=70_000)
TURNS: Final = 24
"""After each piece, so that both connections have done what they do about it."""

_TOKENS: Final[Sequence[Any]] = (1, 2, -1, 1 << 70, 1.5, True, None, {}, "1", 'a"\u20ac', "p" * 128)
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_KINDS: Final = (
    *("now", "soon", "later") * 8,
    *("error", "stream", "quiet", "late refusal", "refused", "broken"),
    *("doubtful", "big", "closed", "odd header", "failed stream", "big stream", *("whole stream",) * 3),
)


# -- what is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a client sends, in pieces. None: it leaves."""

    pieces: tuple[bytes | None, ...]
    requests: int


class _Client:
    """Makes requests with the heads of one client."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._is_modern = random.random() < 0.5
        name = random.choice(("Content-Length", "content-length", "CONTENT-LENGTH"))
        extra = [
            *random.sample(("Accept-Encoding: gzip, br", "User-Agent: fuzz/1", "X-A: b", "Connection: keep-alive"), 2),
            *(["traceparent: TRACE"] if random.random() < 0.2 else []),
            *(["Origin: http://localhost:1"] if random.random() < 0.2 else []),
            *(
                [random.choice(("Connection: close", "Expect: 100-continue", "X-A:", "X-A: \xe9"))]
                * (random.random() < 0.1)
            ),
        ]
        self._heads = [self._head(extra, name, number) for number in range(random.choice((1, 1, 2, 2, 6, 20)))]
        self._number = 0

    def _head(self, extra: Sequence[str], length: str, number: int) -> str:
        names = [
            "Host: localhost",
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            *extra,
            *([f"X-N: {number}"] if number else []),
        ]
        if self._is_modern:
            names += ["MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: echo"]
        else:
            names += [f"MCP-Protocol-Version: {self._random.choice(('2025-06-18', '2025-11-25'))}"]
        self._random.shuffle(names)
        names.insert(self._random.randrange(len(names) + 1), f"{length}: @")
        return "\r\n".join(("POST /mcp HTTP/1.1", *names, "", ""))

    def request(self) -> bytes:
        random = self._random
        body, head = self._body(), random.choice(self._heads)
        length = str(len(body))
        if random.random() < 0.012:
            form = random.choice(
                ("0{n}", "+{n}", "{n} ", " {n}", "{m}", "{n}\r\nContent-Length: {n}", "-1", "", "{n},{n}")
            )
            length = form.format(n=len(body), m=len(body) + random.choice((-1, 1)))
        if random.random() < 0.01:
            head = head.replace("\r\n", random.choice(("\n", "\r\n ", "\r\nX: y\r\n")), 1)
        if random.random() < 0.01:
            head = head.replace("POST", random.choice(("GET", "OPTIONS", "DELETE", "post")))
        trace = f"00-{random.getrandbits(128):032x}-{random.getrandbits(64):016x}-0{random.choice('01')}"
        head = head.replace("TRACE", trace if random.random() < 0.95 else random.choice((trace.upper(), trace[1:], "")))
        return head.replace("@", length).encode("latin-1") + body

    def _body(self) -> bytes:
        random = self._random
        self._number += 1
        params: dict[str, Any] = {
            "name": "echo",
            "arguments": {
                "kind": "never"
                if random.random() < 0.01
                else "elsewhere"
                if random.random() < 0.01
                else random.choice(_KINDS)
            },
        }
        if self._is_modern:
            params["_meta"] = _META
        if random.random() < 0.3:
            params["_meta"] = {**params.get("_meta", {}), "progressToken": random.choice(_TOKENS)}
        message: Any = {"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params}
        if random.random() < 0.25 and (other := self._odd(message, params)) is not None:
            return other
        return json.dumps(message, separators=random.choice(((",", ":"), (", ", ": ")))).encode()

    def _odd(self, message: Any, params: dict[str, Any]) -> bytes | None:
        """Change a message; or other bytes in its place."""
        random = self._random
        match random.randrange(10):
            case 0:
                message.pop("id")
            case 1:
                message |= {"result": {}}
                message.pop("method")
            case 2:
                return json.dumps([message]).encode()
            case 3:
                params["name"] = "other" * random.choice((1, 200))
            case 4:
                params["_meta"] = random.choice(({}, 3, {"progressToken": "p" * 300}))
            case 5:
                message["id"] = random.choice((None, "i" * 300, 1 << 70, 1.5, True))
            case 6:
                params["arguments"]["pad"] = "p" * random.choice((3_000, 3_000, 66_000, 66_000, 80_000))
            case 7:
                return random.choice((b"", b"{", b"\xff", b"null", b'"x"', b"[]", b" {} "))
            case 8:
                message["method"] = random.choice(("ping", "initialize", "x" * 300, 3))
        return None


def conversation(random: Random) -> Conversation:
    """What one client sends on a connection."""
    client, pieces = _Client(random), list[bytes | None]()
    requests = random.choice((5, 10, 20, 40))
    for _ in range(requests):
        request = client.request()
        if pieces and pieces[-1] is not None and random.random() < 0.05:
            pieces[-1] += request  # pipelined
            continue
        place = request.find(b"\r\n\r\n") + 4
        match random.randrange(6):
            case 0:
                pieces.append(request)
            case 1 | 2:
                pieces += [request[:place], request[place:]]
            case 3:
                cut = random.randrange(len(request) + 1)
                pieces += [request[:cut], request[cut:]]
            case 4:
                first, second = sorted(
                    (random.randrange(place, len(request) + 1), random.randrange(place, len(request) + 1))
                )
                pieces += [request[:first], request[first:second], request[second:]]
            case _:
                pieces.append(request)
    pieces = [piece for piece in pieces if piece]
    if random.random() < 0.3:
        pieces.insert(random.randrange(len(pieces) // 2, len(pieces) + 1), None)
    return Conversation(pieces=tuple(pieces), requests=requests)


# -- who answers


class _Answer:
    """An answer that does what the request says."""

    def __init__(self, handler: "_Handler", request: Request, kind: str) -> None:
        self.headers: list[tuple[bytes, bytes]] = (
            [(b"Mcp-Gateway-Session", b"s")] if request.era.value == "modern" else []
        )
        if kind == "odd header":
            self.headers = [*self.headers, (b"connection", b"keep-alive")]
        self.replies = ReplyQueue()
        self.is_doubtful = kind == "doubtful"
        self._handler = handler
        assert request.message is not None
        self._id = json.dumps(request.message.id).encode()
        progress = Frame(b'{"jsonrpc":"2.0","method":"notifications/progress"}')
        self._steps: tuple[Any, ...] = {
            "now": (),
            "error": (None, self._final(b'"error":{"code":-32602,"message":"no"}', -32602)),
            "stream": (None, progress, None, self._final()),
            "whole stream": (None, (progress, Frame(b'{"lost":1}'), progress, self._final())),
            "failed stream": (None, (progress, self._final(b'"error":{"code":-32602,"message":"no"}', -32602))),
            "big stream": (None, (progress, self._final(b'"result":"' + b"b" * 66_000 + b'"'))),
            "quiet": (*(None,) * 8, math.inf, None, self._final()),
            "big": (None, self._final(b'"result":"' + b"b" * 100_000 + b'"')),
            "closed": (None, ...),
            "never": (),
        }.get(kind, (None, None, self._final()))
        if kind == "now":
            self.end()
        elif kind == "never":
            handler.waits.append(self)
        self._go_on()

    def _final(self, result: bytes = b'"result":{}', code: int | None = None) -> Frame:
        return Frame(b'{"jsonrpc":"2.0","id":' + self._id + b"," + result + b"}", final=True, error_code=code)

    def _go_on(self) -> None:
        if not self._steps:
            return
        step, *rest = self._steps
        self._steps = tuple(rest)
        if isinstance(step, Frame):
            self.replies.push(step)
        elif isinstance(step, tuple):
            for frame in step:
                self.replies.push(frame)
        elif step is ...:
            self.replies.close()
        elif step is not None:
            self.replies.tick(step)
        asyncio.get_running_loop().call_soon(self._go_on)

    def end(self) -> None:
        """Answer it."""
        self.replies.push(self._final())

    def cancel(self, reason: str) -> None:
        self._handler.note("cancel", self._id, reason)
        self.replies.push(self._final(b'"error":{"code":-1,"message":"cancelled"}', -1))

    async def confirmed(self, frame: Frame) -> Frame:
        await asyncio.sleep(0)
        return Frame(frame.data.replace(b"{}", b'{"confirmed":1}'), final=True, error_code=frame.error_code)

    async def record(self, frames: Sequence[Frame]) -> list[str | None]:
        await asyncio.sleep(0)
        return self._recorded(frames)

    def record_at_hand(self, frames: Sequence[Frame]) -> list[str | None] | None:
        return self._recorded(frames) if len(self._id) % 3 else None

    def _recorded(self, frames: Sequence[Frame]) -> list[str | None]:
        self._handler.note("record", self._id, str([len(frame.data) for frame in frames]))
        return [None if b"lost" in frame.data else f"event-{len(frame.data)}" for frame in frames]

    def done(self) -> None:
        self._handler.note("done", self._id)


class _Handler:
    """Notes what it is given."""

    def __init__(self) -> None:
        self.noted: list[Any] = []
        self.waits: list[_Answer] = []

    def answer_all(self) -> None:
        """Answer what has no answer yet: in the legacy era a call outlives its connection."""
        for answer in self.waits:
            answer.end()

    def note(self, what: str, *facts: Any) -> None:
        self.noted.append((what, *facts))

    def _noted(self, what: str, request: Request) -> str:
        headers = {name: value for name, value in request.headers.items() if name != "content-length"}
        facts = (
            request.era,
            request.endpoint,
            request.protocol_version,
            request.same_site,
            request.peer,
            request.client,
        )
        self.note(
            what, request.message, bytes(request.body_bytes), facts, headers, sorted(request.params), request.meta
        )
        self._check_memory(request)
        if request.check_mirrored is not None:
            request.check_mirrored({}, request.params)
        arguments = json.loads(bytes(request.params.get("arguments", b"null")))
        return str(arguments.get("kind", "")) if isinstance(arguments, dict) else ""

    @staticmethod
    def _check_memory(request: Request) -> None:
        """What is kept of a head is there for the next request with that head, and for no other one."""
        if request.handler_cache is not None:
            head = sorted((name, value) for name, value in request.headers.items() if name != "traceparent")
            assert request.handler_cache.kept in (None, head)
            request.handler_cache.kept = head

    def refused(self, headers: Any, refused: Refused, *, again: bool = False) -> Refused:
        self.note("refused", refused.status, refused.code, str(refused))
        return refused

    async def call(self, request: Request) -> Any:
        kind = self._noted("call", request)
        match kind:
            case "refused":
                raise Refused(429, -32000, "too often", headers={"Retry-After": "1"})
            case "broken":
                raise RuntimeError("broken")
            case "elsewhere":
                raise OwnedByPeer("there")
            case "later":
                await asyncio.sleep(0)
            case "late refusal":
                await asyncio.sleep(0)
                raise Refused(404, -32001, "no session")
        return _Answer(self, request, kind)

    async def check_sender(self, request: Request) -> None:
        """Any caller is admitted. Heads from memory are those of callers who were."""

    async def negotiated(self, request: Request) -> str:
        return "2025-03-26"

    async def notify(self, request: Request) -> list[tuple[bytes, bytes]]:
        self._noted("notify", request)
        return []

    async def respond(self, request: Request) -> None:
        self.note("respond")

    async def end(self, request: Request) -> None:
        self.note("end")


# -- the connections


class _Transport(RecordingTransport):
    def set_protocol(self, protocol: Any) -> None:
        raise AssertionError("h11 reads nothing of this")


@dataclass(slots=True, kw_only=True)
class Heard:
    """What a client got, what the handler was given, and what became of the requests at the connection's memory."""

    written: bytes
    noted: list[Any]
    closed: bool
    limited: Counter[Any]
    counts: Counter[str]


async def hear(said: Conversation, *, remembers: bool) -> Heard:
    """Send it on a connection of its own, which remembers heads or not."""
    handler, limited, counts = _Handler(), Counter[Any](), Counter[str]()
    endpoint = StreamableHttp(
        cast("Handler", handler),
        "/mcp",
        guard=Guard(),
        body_budget=BodyBudget(1 << 20, limited, lambda who: Refused(429, -32000, who)),
        limits=LIMITS,
        refusals=limited,
    )
    config = Config(endpoint, log_config=None, access_log=False, ws="none", lifespan="off", server_header=False)
    config.load()
    config.loaded_app = endpoint
    connections, state, transport = Connections(LIMITS, limited), ServerState(), _Transport()
    state.default_headers = [(b"date", b"Sun, 22 Nov 2026 00:00:00 GMT")]
    cache = HeadCache(counts, lambda: True, LIMITS) if remembers else None
    connection = HttpConnection(config, state, {}, connections=connections, cache=cache)
    connection.connection_made(transport)
    for piece in said.pieces:
        if piece is None or transport.is_over:
            break
        connection.data_received(piece)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if transport.is_paused and not handler.waits:
            for _ in range(TURNS * 20):
                await asyncio.sleep(0)
    closed = transport.is_over
    transport.is_over = True
    connection.connection_lost(None)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    if handler.waits:
        await asyncio.sleep(0.06)  # a modern call is cancelled when its client has been watched for 0.05 s
        handler.answer_all()
    for _ in range(TURNS * 20):
        if not state.tasks:
            break
        await asyncio.sleep(0)
    connections.close()
    assert not state.tasks, "a task does not end with its connection"
    return Heard(written=bytes(transport.written), noted=handler.noted, closed=closed, limited=limited, counts=counts)


def differences(said: Conversation) -> tuple[list[str], Counter[str]]:
    """How the connection that remembers differs from the other one; what its memory was good for."""

    async def both() -> tuple[Heard, Heard]:
        return await asyncio.gather(hear(said, remembers=True), hear(said, remembers=False))

    logging.disable(logging.CRITICAL)  # handlers that fail are logged, by the thousand
    try:
        with patch.object(streamable_http, "PRIMING_AFTER_S", 5.0):  # however slow this machine is
            on, off = loop().run_until_complete(both())
    finally:
        logging.disable(logging.NOTSET)
    found = []
    for name in ("written", "noted", "closed", "limited"):
        with_memory, without = getattr(on, name), getattr(off, name)
        if with_memory != without:
            found.append(f"{name} differs: {with_memory!r} with memory, {without!r} without")
    return found, on.counts
