"""Make the message of a call from a template with placeholders for request id, arguments, correlation id and trace.
Pure."""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from gateway.calls.exchange import Exchange
from transports.jsonrpc import Object

_NUMBER: Final = 7_770_777
_ARGUMENTS: Final = b'{"the":"arguments"}'
_TRACE: Final = b"00-the-trace"


class Prepared(NamedTuple):
    """A request for a server, before it is encoded. The bridge of `exchange` translates the answer. `waits` returns
    True if a call like this must first wait for the server; None if such a call never must. `trace` is the
    `traceparent` in `meta`, or empty."""

    exchange: Exchange
    params: Object
    meta: Object
    waits: Callable[[], bool] | None
    trace: str = ""


class FrameTemplate:
    """An encoded request with placeholders. With the values filled in, it equals the message that `Exchange.frame`
    makes of them."""

    __slots__ = ("_template",)

    def __init__(self, template: bytes) -> None:
        self._template = template

    @classmethod
    def of(cls, prepared: Prepared, correlation: str) -> "FrameTemplate | None":
        """Return the template of a request that has this correlation id. None if it is not certain where the values
        stand in the encoded request. If there is a progress token for the server, it is the request id."""
        exchange, meta, trace = prepared.exchange, prepared.meta, prepared.trace
        params, holes = prepared.params, 0
        if "arguments" in params:
            params, holes = params | {"arguments": msgspec.Raw(_ARGUMENTS)}, 1
        encoded = exchange.encoded(_NUMBER, params, meta) or b""
        if b"\n" in encoded or b"\r" in encoded:
            return None  # `splice` would encode the whole frame anew each time, with its arguments
        if _TRACE in encoded:
            return None
        frame = exchange.frame(_NUMBER, params, meta)
        number, known = b"%d" % _NUMBER, correlation.encode()
        numbers = 2 if "progressToken" in meta else 1
        if trace:
            if frame.count(trace.encode()) != 1:
                return None
            frame = frame.replace(trace.encode(), _TRACE)
        if (frame.count(number), frame.count(_ARGUMENTS), frame.count(known)) != (numbers, holes, 1):
            return None
        template = frame.replace(b"%", b"%%").replace(number, b"%(n)d").replace(_TRACE, b"%(t)b")
        return cls(template.replace(_ARGUMENTS, b"%(a)b").replace(known, b"%(c)b"))

    def frame(self, number: int, arguments: bytes, correlation: str, trace: bytes = b"") -> bytes:
        """Return the message of one call: the template with these values filled in. `arguments` must not contain a line
        break, and are ignored if the template has no place for them."""
        return self._template % {b"n": number, b"a": arguments, b"c": correlation.encode(), b"t": trace}
