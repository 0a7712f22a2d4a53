"""Encode the heads of responses, to the bytes that uvicorn writes for the same status and headers. Pure: no I/O."""

from typing import Final

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE

from transports.inbound_port import HeaderList

_OF_THE_SERVER: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})


class JsonHeads:
    """Encode the heads of JSON responses on one connection. Caches the last head, because most are the same."""

    __slots__ = ("_after", "_before", "_defaults", "_headers", "_status")

    def __init__(self) -> None:
        self._status = 0
        self._defaults: HeaderList = []
        self._headers: HeaderList = []
        self._before = self._after = b""

    def head(self, status: int, defaults: HeaderList, headers: HeaderList, body_bytes: int) -> bytes | None:
        """Return the encoded head of a response. `defaults` are the server's headers, `headers` those of the answer.

        Return None if uvicorn has to write the response: a header concerns the connection, or is not valid.
        """
        if status != self._status or defaults is not self._defaults or headers != self._headers:
            if not all(_is_plain(name, value) for name, value in (*defaults, *headers)):
                return None
            self._status, self._defaults, self._headers = status, defaults, list(headers)
            self._before = (
                STATUS_LINE[status] + _lines(defaults) + b"content-type: application/json\r\ncontent-length: "
            )
            self._after = b"\r\n" + _lines(headers) + b"\r\n"
        return b"%b%d%b" % (self._before, body_bytes, self._after)


class StreamHeads:
    """Encode the heads of responses that are event streams. Caches the last head."""

    __slots__ = ("_defaults", "_head", "_headers")

    def __init__(self) -> None:
        self._defaults: HeaderList = []
        self._headers: HeaderList = []
        self._head = b""

    def head(self, defaults: HeaderList, headers: HeaderList) -> bytes | None:
        """Return the encoded head of a response with a chunked body, from the headers of the server and of the answer.
        Return None if uvicorn has to write the response."""
        if not self._head or defaults is not self._defaults or headers != self._headers:
            if not all(_is_plain(name, value) for name, value in (*defaults, *headers)):
                return None
            self._defaults, self._headers = defaults, list(headers)
            lines = _lines([*defaults, *headers])
            self._head = STATUS_LINE[200] + lines + b"transfer-encoding: chunked\r\n\r\n"
        return self._head


def whole_body(data: bytes) -> bytes:
    """Return the data as a complete body in chunked coding, with one chunk."""
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


def _lines(headers: HeaderList) -> bytes:
    return b"".join(b"%b: %b\r\n" % (name.lower(), value) for name, value in headers)


def _is_plain(name: bytes, value: bytes) -> bool:
    if name.lower() in _OF_THE_SERVER:
        return False
    return HEADER_RE.search(name) is None and HEADER_VALUE_RE.search(value) is None
