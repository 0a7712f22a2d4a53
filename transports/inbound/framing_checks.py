"""Refuse request heads that two HTTP parsers could read differently (RFC 9112). The checks come after the parser, which
has split the head into its parts. Pure: no I/O."""

import functools
import re
from typing import Final
from urllib.parse import urlsplit

from transports.inbound.unauthenticated_limits import Limited
from transports.inbound_port import HeaderList

_REASONS: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_WATCHED: Final = frozenset({b"host", b"transfer-encoding", b"content-length", b"expect"})
_HOST_BYTES: Final = 261
"""The most bytes of a Host: a name of 255 bytes and a port."""

_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%-]*(?::[0-9]*)?|\[[0-9A-Fa-f:.]+\](?::[0-9]*)?")
"""The form of a Host (RFC 9110 §7.2, RFC 3986 §3.2.2), without `IPvFuture` addresses."""


class BadRequest(Exception):
    """A request is refused because its head is ambiguous. Its connection is closed, because the end of the request is
    uncertain."""

    def __init__(self, status: int, message: str, kind: Limited = Limited.FRAMING) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind

    @property
    def headers(self) -> HeaderList:
        again = [(b"retry-after", b"1")] if self.status == 503 else []
        return [(b"content-type", b"text/plain; charset=utf-8"), *again, (b"connection", b"close")]

    @property
    def body(self) -> bytes:
        return f"{self}\n".encode()

    def response(self) -> bytes:
        """Return the encoded HTTP response, for a connection on which no other response has begun."""
        head = [f"HTTP/1.1 {self.status} {_REASONS[self.status]}".encode()]
        head += [b": ".join(header) for header in self.headers]
        head += [b"content-length: %d" % len(self.body), b"", self.body]
        return b"\r\n".join(head)


def plain_target(method: str, target: bytes, version: str, headers: HeaderList) -> bytes:
    """Check a request's head, and return its target in origin-form (or `*`). A host in the target replaces the Host in
    `headers`, whose names are in lower case (RFC 9112 §3.2.2).

    Raises:
        BadRequest: two readers of this head could disagree on its target, its host or its end.
    """
    if version not in ("1.1", "1.0"):
        raise BadRequest(505, "This server speaks HTTP/1.1.")
    if method == "CONNECT":
        raise BadRequest(501, "This server is not a proxy and does not support CONNECT.")
    watched = [header for header in headers if header[0] in _WATCHED]
    values = dict(watched)
    host = values.get(b"host", b"")
    # Nearly all requests have one Host, and at most one length.
    is_usual = len(watched) == len(values) == 1 + (b"content-length" in values)
    if not (is_usual and host and len(host) <= _HOST_BYTES and _is_host(host)):
        _check(watched, version)
    if target.startswith(b"/") and b"#" not in target:
        return target
    if target == b"*" and method == "OPTIONS":
        return target
    return _absolute(target, headers)


@functools.lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def _check(watched: HeaderList, version: str) -> None:
    values: dict[bytes, list[bytes]] = {name: [] for name in _WATCHED}
    for name, value in watched:
        values[name].append(value.strip(b" \t").lower())
    hosts = values[b"host"]
    # RFC 9112 §3.2: 400 for a request of HTTP/1.1 without Host, and for any with two.
    if len(hosts) > 1 or not (hosts or version == "1.0"):
        raise BadRequest(400, "A request must have exactly one Host header.")
    if hosts and (len(hosts[0]) > _HOST_BYTES or not _is_host(hosts[0])):
        raise BadRequest(400, "The Host header is not a host name.")
    codings = values[b"transfer-encoding"]
    if codings:
        # RFC 9112 §6.1: both lengths, or a coding in HTTP/1.0, are signs of request smuggling.
        if values[b"content-length"] or version == "1.0" or len(codings) > 1:
            raise BadRequest(400, "The length of the body is given in more than one way.")
        if codings != [b"chunked"]:
            raise BadRequest(501, "Only Transfer-Encoding: chunked is supported.")
    if len(values[b"content-length"]) > 1:
        raise BadRequest(400, "The length of the body is given more than once.")
    # RFC 9110 §10.1.1: in HTTP/1.0 an expectation is ignored.
    if version != "1.0" and any(value != b"100-continue" for value in values[b"expect"]):
        raise BadRequest(417, "Only Expect: 100-continue is supported.")


def _absolute(target: bytes, headers: HeaderList) -> bytes:
    try:
        parts = urlsplit(target)
    except ValueError:
        raise BadRequest(400, "The request's target is not a URL.") from None
    if parts.scheme not in (b"http", b"https") or parts.fragment or b"#" in target or not parts.netloc:
        raise BadRequest(400, "The request's target is neither a path nor a URL.")
    if not parts.hostname or not _HOST.fullmatch(parts.netloc):  # `user@` is refused as well (RFC 9110 §4.2.4)
        raise BadRequest(400, "The request's target names no host.")
    headers[:] = [(b"host", parts.netloc), *(header for header in headers if header[0] != b"host")]
    path = parts.path or b"/"
    return path + b"?" + parts.query if parts.query else path
