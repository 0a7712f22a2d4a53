"""Requests with one repeated head that were checked, for those that differ from them in id, arguments and progress
token at most.

The rules of the wire look at the head, the method and the params, and never at `arguments`. So what they have said of
one request holds for every request that has the same of these. Pure: no I/O.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from transports.inbound.limits import MAX_ID_CHARS
from transports.inbound_port import Memory, Request
from transports.jsonrpc import InvalidMessage, Message, Object, decode_id, decode_object

__all__ = ["MAX_BYTES", "CheckedRequests"]

MAX_BYTES: Final = 1 << 10
"""The params that are kept for one head, together. Larger ones are compared with nothing."""

_MAX_KEPT: Final = 4
"""Legacy clients do not name the tool in the head, and use some tools in turn."""

_FREE: Final = "arguments"
_TOKEN: Final = "progressToken"
"""Another one with each request, and not looked at by any rule but for its length."""
_NEVER_THE_SAME: Final = "traceparent"
"""A key of `_meta` that decides whether a call is traced."""


class _Checked(msgspec.Struct, frozen=True):
    """A request that was checked, and its params but for the arguments. `meta` is None if its `_meta` has no progress
    token, and else has what the `_meta` is apart from that. `size` is that of all these in bytes."""

    fixed: Object
    meta: Object | None
    request: Request
    size: int


class CheckedRequests:
    """The last ones of one head. A request that is like one of them shares its `standing`."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[_Checked] = []

    def like(self, message: Message, params: Object) -> tuple[Request, Mapping[str, Any]] | None:
        """A checked request that differs from this one in id, arguments, progress token and the head's `traceparent` at
        most, and the `_meta` of this one, decoded."""
        for place, kept in enumerate(self._kept):
            request = kept.request
            known = request.message
            if known is None or known.method != message.method or not _has(params, kept.fixed, kept.meta):
                continue
            meta = request.meta
            if kept.meta is not None:
                token = _token_beside(params["_meta"], kept.meta)
                if token is None:
                    continue
                meta = {**meta, _TOKEN: token}
            if place:
                self._kept.insert(0, self._kept.pop(place))
            return (request, meta) if message.is_request else None
        return None

    def keep(self, request: Request, meta: Mapping[str, Any]) -> Request:
        """Keep a request that was checked, and return it with its `standing`. `meta` is its decoded `_meta`."""
        message = request.message
        if message is None or not message.is_request or _NEVER_THE_SAME in meta:
            return request
        fixed = {key: raw.copy() for key, raw in request.params.items() if key != _FREE}
        size = sum(len(key) + len(memoryview(raw)) for key, raw in fixed.items())
        if size > MAX_BYTES:
            return request
        beside = decode_object(fixed.pop("_meta"), "_meta") if _TOKEN in meta else None
        request = replace(request, standing=Memory())
        # Nothing else of the request is kept: arguments may be large.
        like = replace(request, message=Message(id=0, method=message.method), params={})
        self._kept.insert(0, _Checked(fixed, beside, like, size))
        while len(self._kept) > _MAX_KEPT or sum(kept.size for kept in self._kept) > MAX_BYTES:
            self._kept.pop()
        return request


def _has(params: Object, fixed: Object, meta: Object | None) -> bool:
    """Whether params are these, and arguments if any, and a `_meta` if there is `meta`."""
    if len(params) - (_FREE in params) - (meta is not None) != len(fixed):
        return False
    if meta is not None and "_meta" not in params:
        return False
    for key, raw in fixed.items():
        if params.get(key) != raw:
            return False
    return True


def _token_beside(raw: msgspec.Raw, known: Object) -> int | str | None:
    """The progress token of a `_meta` that is the known one but for that. None if it differs more, or is unusual."""
    if len(memoryview(raw)) > MAX_BYTES:
        return None
    try:
        meta = decode_object(raw, "_meta")
        if list(meta) != list(known):
            return None
        for key, value in known.items():
            if key != _TOKEN and meta[key] != value:
                return None
        token: int | str | None = decode_id(meta[_TOKEN])
    except (InvalidMessage, ValueError):
        return None
    return token if isinstance(token, int) or (token is not None and len(token) <= MAX_ID_CHARS) else None
