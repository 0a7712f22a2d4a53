"""Reads the calls that operators ask for, from the bodies of their requests."""

import functools
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request

from gateway.admin.operators import OperatorError
from gateway.admin.reports import Attempt
from transports.inbound.http import read_body
from transports.inbound_port import Refused

__all__ = ["MAX_BYTES", "attempt_in", "body_of", "left"]

MAX_BYTES: Final = 1 << 20
"""Of a body with the arguments of a call."""

_attempts: Final = msgspec.json.Decoder(Attempt)


async def attempt_in(request: Request) -> Attempt:
    """The call in a body of JSON. Raises `OperatorError`: it cannot be read."""
    try:
        return _attempts.decode(await body_of(request))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise OperatorError(f"the body is no call: {error}") from None


async def body_of(request: Request) -> bytes:
    """The body. Raises `OperatorError`: it is too large, or has no end."""
    try:
        body = await read_body(request.receive, request.headers, MAX_BYTES)
    except Refused as refused:
        raise OperatorError(str(refused)) from None
    if body is None:
        raise OperatorError("the request ended before its body did")
    return body


def left(request: Request) -> Callable[[], Awaitable[object]]:
    """Returns a function that waits until whoever sent the request is gone. The body must have been read."""
    return functools.partial(_left, request)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
