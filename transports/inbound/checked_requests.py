"""Requests with one repeated head that were checked, for those that differ from them in nothing but id and arguments.

The rules of the wire look at the head, the method and the params, and never at `arguments`. So what they have said of
one request holds for every request that has the same of these. Pure: no I/O.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from transports.inbound_port import Memory, Request
from transports.jsonrpc import Message, Object

__all__ = ["MAX_BYTES", "CheckedRequests"]

MAX_BYTES: Final = 1 << 10
"""The params that are kept for one head, together. Larger ones are compared with nothing."""

_MAX_KEPT: Final = 4
"""Legacy clients do not name the tool in the head, and use some tools in turn."""

_FREE: Final = "arguments"
_NEVER_THE_SAME: Final = frozenset({"progressToken", "traceparent"})
"""Keys of `_meta` that clients give another value with each request."""


class _Checked(msgspec.Struct, frozen=True):
    """A request that was checked, its params but for the arguments, and their size in bytes."""

    fixed: Object
    request: Request
    size: int


class CheckedRequests:
    """The last ones of one head. A request that is like one of them shares its `standing`."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[_Checked] = []

    def like(self, message: Message, params: Object) -> Request | None:
        """A checked request that differs from this one in id, arguments and `traceparent` at most."""
        for place, kept in enumerate(self._kept):
            known = kept.request.message
            if known is not None and known.method == message.method and _has(params, kept.fixed):
                if place:
                    self._kept.insert(0, self._kept.pop(place))
                return kept.request if message.is_request else None
        return None

    def keep(self, request: Request, meta: Mapping[str, Any]) -> Request:
        """Keep a request that was checked, and return it with its `standing`. `meta` is its decoded `_meta`."""
        message = request.message
        if message is None or not message.is_request or not _NEVER_THE_SAME.isdisjoint(meta):
            return request
        fixed = {key: raw.copy() for key, raw in request.params.items() if key != _FREE}
        size = sum(len(key) + len(memoryview(raw)) for key, raw in fixed.items())
        if size > MAX_BYTES:
            return request
        request = replace(request, standing=Memory())
        # Nothing else of the request is kept: arguments may be large.
        like = replace(request, message=Message(id=0, method=message.method), params={}, check_mirrored=None)
        self._kept.insert(0, _Checked(fixed, like, size))
        while len(self._kept) > _MAX_KEPT or sum(kept.size for kept in self._kept) > MAX_BYTES:
            self._kept.pop()
        return request


def _has(params: Object, fixed: Object) -> bool:
    """Whether params are these, and arguments if any."""
    if len(params) - (_FREE in params) != len(fixed):
        return False
    for key, raw in fixed.items():
        if params.get(key) != raw:
            return False
    return True
