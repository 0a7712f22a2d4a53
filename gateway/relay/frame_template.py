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
    """A request for a server, before it is encoded."""

    exchange: Exchange
    """The state of the call. Its bridge translates the answer."""
    params: Object
    meta: Object
    waits: Callable[[], bool] | None
    """Returns True if a call like this must now wait for the server. None if such a call never must."""
    trace: str = ""
    """The `traceparent` in `meta`. Empty if there is none."""


class FrameTemplate:
    """An encoded request to a server, with placeholders for what differs between calls. With the values filled in, it
    equals the message that `Exchange.frame` makes of them."""

    __slots__ = ("_template",)

    def __init__(self, template: bytes) -> None:
        self._template = template

    @classmethod
    def of(cls, prepared: Prepared, correlation: str) -> "FrameTemplate | None":
        """Make the template from one request. `correlation` is the correlation id in that request. Return None if it is
        not certain where the values to replace stand in the encoded request. A progress token for the server is
        replaced together with the request id, which it equals."""
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
        """Return the message of one call: the template with these values filled in. `number` is the request id at the
        server. `arguments` must not contain a line break, and are ignored if the template has no place for them.
        `trace` is the `traceparent`."""
        return self._template % {b"n": number, b"a": arguments, b"c": correlation.encode(), b"t": trace}
