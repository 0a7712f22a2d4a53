"""Sends raw bytes to a listener and reads the responses: for requests that no client library would send."""

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import h11

__all__ = ["Answer", "Listener", "Received", "answers", "connected", "listener_of", "post", "read_answers"]

Listener = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One response, final or informational (1xx). `complete` is False if the connection ended within it."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    complete: bool = True

    def header(self, name: str) -> str:
        """The value of a header; empty if there is none."""
        return next((v.decode("latin-1") for n, v in self.headers if n.lower() == name.lower().encode()), "")


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


def connected(listener: Listener, *, timeout_s: float = 10.0) -> socket.socket:
    """A connection without Nagle's delay: each write is sent at once."""
    if isinstance(listener, str):
        unix = socket.socket(socket.AF_UNIX)
        unix.settimeout(timeout_s)
        unix.connect(listener)
        return unix
    tcp = socket.create_connection(listener, timeout=timeout_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tcp


def post(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    """A POST request with these headers and `Content-Length`, and no others."""
    head = [f"POST {path} HTTP/{version}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def answers(
    listener: Listener,
    chunks: bytes | Sequence[bytes | float],
    *,
    expected: int = 0,
    quiet_s: float = 0.3,
    deadline_s: float = 10.0,
    head_only: bool = False,
) -> Received:
    """Send the chunks, a number among them being a pause in seconds, and read until the other side closes, or until it
    has been quiet for `quiet_s` with nothing left unfinished and at least `expected` final responses, or until the
    deadline. `head_only`: the requests are HEAD."""
    ends_at = time.monotonic() + deadline_s
    received = bytearray()
    closed = False
    with connected(listener) as sock:
        for chunk in [chunks] if isinstance(chunks, bytes) else chunks:
            if isinstance(chunk, bytes):
                try:
                    sock.sendall(chunk)
                except OSError:
                    break  # it has closed already; what it said is still there
            else:
                time.sleep(chunk)
        while not closed and (left := ends_at - time.monotonic()) > 0:
            sock.settimeout(min(quiet_s, left))
            try:
                data = sock.recv(1 << 16)
            except TimeoutError:
                heard = read_answers(bytes(received), closed=False, head_only=head_only)
                if len(heard.statuses) >= max(expected, 1) and all(a.complete for a in heard.answers):
                    break
                continue
            except OSError:
                data = b""
            closed = not data
            received += data
    return read_answers(bytes(received), closed=closed, head_only=head_only)


def read_answers(data: bytes, *, closed: bool, head_only: bool = False) -> Received:
    """Parse consecutive responses with h11."""
    found = list(_responses(data, closed=closed, head_only=head_only))
    return Received(answers=tuple(answer for answer, _ in found), closed=closed, rest=found[-1][1] if found else data)


def _responses(data: bytes, *, closed: bool, head_only: bool) -> Iterator[tuple[Answer, bytes]]:
    while data:
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method="HEAD" if head_only else "POST", target="/", headers=[("Host", "x")]))
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
    return Answer(status=head.status_code, headers=tuple(head.headers), body=body, complete=complete)
