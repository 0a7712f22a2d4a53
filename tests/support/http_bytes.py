"""Sends raw bytes to a listener and reads the responses: for requests that no client library would send."""

import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import h11

Listener = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""

ANSWERED: Final = None
"""Among chunks: what was sent until then is answered, by one final response for each `ANSWERED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One response, final or informational (1xx). `complete` is False if the connection ended within it."""

    status: int
    headers: Mapping[str, str]
    """By name in small letters."""
    body: bytes
    complete: bool = True

    def header(self, name: str) -> str:
        """The value of a header; empty if there is none."""
        return self.headers.get(name.lower(), "")

    def message(self) -> Any:
        """The last JSON-RPC message of it; an empty object where there is none."""
        texts = [self.body]
        if self.header("content-type").startswith("text/event-stream"):
            texts = [line.removeprefix(b"data:") for line in self.body.splitlines() if line.startswith(b"data:")]
        try:
            return json.loads(next(text for text in reversed(texts) if text.strip()))
        except (StopIteration, ValueError):
            return {}

    def text(self) -> str:
        """The text of a tool's answer, empty if it is none."""
        content = self.message().get("result", {}).get("content", [])
        return str(content[0].get("text", "")) if content else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Everything received on one connection."""

    answers: tuple[Answer, ...]
    closed: bool
    rest: bytes
    """Bytes after the last response that are no response."""

    @property
    def statuses(self) -> list[int]:
        """The statuses of the final responses."""
        return [answer.status for answer in self.answers if answer.status >= 200]

    @property
    def all_statuses(self) -> list[int]:
        """The statuses of all responses, informational ones included."""
        return [answer.status for answer in self.answers]


def listener_of(url: str) -> Listener:
    """The listener of a gateway with this URL."""
    host, _, port = url.partition("//")[2].partition("/")[0].rpartition(":")
    return host.strip("[]"), int(port)


def connected(listener: Listener, *, timeout_s: float = 10.0, source: str = "") -> socket.socket:
    """A connection without Nagle's delay: each write is sent at once."""
    if isinstance(listener, str):
        unix = socket.socket(socket.AF_UNIX)
        unix.settimeout(timeout_s)
        unix.connect(listener)
        return unix
    tcp = socket.create_connection(listener, timeout_s, source_address=(source, 0) if source else None)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tcp


def post(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    """A POST request with these headers and `Content-Length`, and no others."""
    head = [f"POST {path} HTTP/{version}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def answers(
    listener: Listener,
    chunks: bytes | Sequence[bytes | float | None],
    *,
    expected: int = 0,
    quiet_s: float = 0.3,
    deadline_s: float = 10.0,
) -> Received:
    """Send the chunks, a number among them being a pause in seconds, and read until the other side closes, or until it
    has been quiet for `quiet_s` with nothing left unfinished, at least `expected` final responses, and none that says
    that the connection ends, or until the deadline."""
    with connected(listener) as sock:
        heard = _Heard(sock, time.monotonic() + deadline_s)
        awaited = 0
        for chunk in [chunks] if isinstance(chunks, bytes) else chunks:
            if chunk is ANSWERED:
                awaited += 1
                heard.wait_for(awaited)
            elif isinstance(chunk, float):
                time.sleep(chunk)
            elif not _was_sent(sock, chunk):
                break
        while not heard.is_over:
            if not heard.more(quiet_s) and heard.has(max(expected, 1)) and not heard.ends:
                break
    return heard.all()


def _was_sent(sock: socket.socket, chunk: bytes) -> bool:
    try:
        sock.sendall(chunk)
    except OSError:
        return False  # it has closed already; what it said is still there
    return True


class _Heard:
    """What came on a connection until a deadline of the monotonic clock."""

    def __init__(self, sock: socket.socket, ends_at: float) -> None:
        self._sock = sock
        self._ends_at = ends_at
        self._bytes = bytearray()
        self._closed = False

    @property
    def is_over(self) -> bool:
        return self._closed or time.monotonic() >= self._ends_at

    def more(self, wait_s: float) -> bool:
        """Read on. False if nothing came in that time."""
        self._sock.settimeout(max(min(wait_s, self._ends_at - time.monotonic()), 0.001))
        try:
            data = self._sock.recv(1 << 16)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        self._closed = not data
        self._bytes += data
        return True

    def has(self, count: int) -> bool:
        """Whether there are so many final responses, and nothing is unfinished."""
        heard = read_answers(bytes(self._bytes), closed=False)
        return len(heard.statuses) >= count and all(answer.complete for answer in heard.answers)

    @property
    def ends(self) -> bool:
        """Whether the last response says that the connection ends."""
        heard = self.all().answers
        return bool(heard) and heard[-1].headers.get("connection") == "close"

    def wait_for(self, count: int) -> None:
        while not self.is_over and not self.has(count):
            self.more(self._ends_at - time.monotonic())

    def all(self) -> Received:
        return read_answers(bytes(self._bytes), closed=self._closed)


def first_answer(data: bytes, *, closed: bool) -> tuple[Answer, bytes] | None:
    """The first final response, and what follows it; None if it has not begun."""
    found = _responses(data, closed=closed)
    return next((each for each in found if each[0].status >= 200), None)


def read_answers(data: bytes, *, closed: bool) -> Received:
    """Parse consecutive responses with h11."""
    found = list(_responses(data, closed=closed))
    return Received(answers=tuple(answer for answer, _ in found), closed=closed, rest=found[-1][1] if found else data)


def _responses(data: bytes, *, closed: bool) -> Iterator[tuple[Answer, bytes]]:
    while data:
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method="POST", target="/", headers=[("Host", "x")]))
        reader.send(h11.EndOfMessage())
        reader.receive_data(data)
        if closed:
            reader.receive_data(b"")
        head: h11.Response | h11.InformationalResponse | None = None
        body = bytearray()
        complete = False
        try:
            while not complete:
                event = reader.next_event()
                if isinstance(event, h11.InformationalResponse):
                    yield _answer(event, b"", True), b""
                elif isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    complete = True
                else:
                    break
        except h11.RemoteProtocolError:
            pass
        if head is None:
            return
        data = reader.trailing_data[0] if complete else b""
        yield _answer(head, bytes(body), complete), data


def _answer(head: h11.Response | h11.InformationalResponse, body: bytes, complete: bool) -> Answer:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in head.headers}
    return Answer(status=head.status_code, headers=headers, body=body, complete=complete)
