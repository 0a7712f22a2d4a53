"""The request that a server gets of a call, with holes for number, arguments, correlation id and trace. Pure."""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from gateway.calls.exchange import Exchange
from transports.jsonrpc import Object

__all__ = ["FrameForm", "Prepared"]

_NUMBER: Final = 7_770_777
_ARGUMENTS: Final = b'{"the":"arguments"}'
_TRACE: Final = b"00-the-trace"


class Prepared(NamedTuple):
    """Holds what a server gets of a call, with the exchange that has what translates the answer. `waits` says whether a
    call like it has to wait for something else; None: it never has to. `trace` is the `traceparent` in its `_meta`,
    empty if there is none."""

    exchange: Exchange
    params: Object
    meta: Object
    waits: Callable[[], bool] | None
    trace: str = ""


class FrameForm:
    """Made by `of`. A frame is that of `Exchange.frame`, for the same request with other values in the holes."""

    __slots__ = ("_form",)

    def __init__(self, form: bytes) -> None:
        self._form = form

    @classmethod
    def of(cls, prepared: Prepared, correlation: str) -> "FrameForm | None":
        """Make the form of a request that has that correlation id. None if it is not clear where the values of the
        holes stand in it. The number is the server's progress token too, if there is one."""
        exchange, meta, trace = prepared.exchange, prepared.meta, prepared.trace
        params, holes = prepared.params, 0
        if "arguments" in params:
            params, holes = params | {"arguments": msgspec.Raw(_ARGUMENTS)}, 1
        encoded = exchange.encoded(_NUMBER, params, meta) or b""
        if b"\n" in encoded or b"\r" in encoded:
            return None  # the frame would be written anew as a whole, with its arguments
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
        form = frame.replace(b"%", b"%%").replace(number, b"%(n)d").replace(_TRACE, b"%(t)b")
        return cls(form.replace(_ARGUMENTS, b"%(a)b").replace(known, b"%(c)b"))

    def frame(self, number: int, arguments: bytes, correlation: str, trace: bytes = b"") -> bytes:
        """The request with that number, correlation id and `traceparent`, and these arguments, which have no line
        break. They are left out of a form without arguments."""
        return self._form % {b"n": number, b"a": arguments, b"c": correlation.encode(), b"t": trace}
