"""POSTs as values: from a head and a body to a request that its era's rules allow. Pure: no I/O, nothing is awaited."""

import functools
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import msgspec

from transports.era import LEGACY, MODERN, Era
from transports.inbound.batch import BATCHES
from transports.inbound.headers import check_legacy, check_post, era_of
from transports.inbound.http import Guard, HeaderList, Scope, peer_of
from transports.inbound.modern import (
    VERSION_HEADER,
    VERSION_KEY,
    check_notification,
    check_param_headers,
    check_request,
    names_version,
)
from transports.inbound.sizes import Sizes
from transports.inbound_port import Memory, Offer, Refused, Request
from transports.jsonrpc import INVALID_REQUEST, InvalidMessage, Message, Object, decode_meta

__all__ = ["Head", "Posts", "is_batch"]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of a request says, after the guard has checked it. The fields are those of `Request`."""

    headers: Mapping[str, str]
    raw_headers: HeaderList
    era: Era
    same_site: bool
    peer: str
    client: str
    secure: bool
    forwarded: Any = None
    again: bool = False
    memory: Memory | None = None


class Posts:
    """Reads the requests of one endpoint."""

    def __init__(self, endpoint: str, guard: Guard, sizes: Sizes) -> None:
        self._endpoint = endpoint
        self._guard = guard
        self._sizes = sizes

    def checked_head(self, scope: Scope) -> Head:
        """The head of POSTs. Raises `Refused`, as it is for each of them."""
        headers = self._guard.headers(scope)
        self._guard.check(headers)
        check_post(headers)
        return self.head(scope, headers)

    def head(self, scope: Scope, headers: Mapping[str, str]) -> Head:
        """The head of a request with these headers, which the guard has checked."""
        return Head(
            headers=headers,
            raw_headers=scope["headers"],
            era=era_of(headers),
            same_site=self._guard.same_site(headers),
            peer=peer_of(scope),
            client=self._guard.client(scope, headers),
            secure=self._guard.is_secure(scope, headers),
            forwarded=scope.get("mcp.forwarded"),
            again=scope.get("mcp.again", False),
        )

    def read(self, body: bytes) -> Message:
        """The message in a body that is no batch. Raises `Refused`: 400, there is none."""
        try:
            return self._sizes.parse(body)
        except InvalidMessage as error:
            raise Refused(400, error.code, str(error)) from None

    def request(self, head: Head, message: Message, body_bytes: int) -> Request:
        """The request that a message is. `head` decides its era, unless its `_meta` does.

        Raises:
            Refused, InvalidMessage, msgspec.MsgspecError: it breaks a rule of its era, or cannot be read.
        """
        params = {} if message.method is msgspec.UNSET else message.params_object()
        meta = decode_meta(params["_meta"]) if "_meta" in params else None
        known = meta if isinstance(meta, dict) else {}
        if head.era is not MODERN and not names_version(meta):
            check_legacy(head.headers, message)
            self._sizes.check(params, known)
            return self.of_head(head, LEGACY, message, params, known, body_bytes=body_bytes)
        self._sizes.check(params, known)
        if message.is_response:
            raise Refused(400, INVALID_REQUEST, "Responses are not accepted: this revision has no server requests.")
        if message.is_notification:
            check_notification(head.headers)
        else:
            check_request(message, params, meta, head.headers, head.raw_headers)
        return self.of_head(head, MODERN, message, params, known, body_bytes=body_bytes)

    def of_head(
        self,
        head: Head,
        era: Era,
        message: Message | None = None,
        params: Object | None = None,
        meta: Mapping[str, Any] | None = None,
        *,
        body_bytes: int = 0,
    ) -> Request:
        """The request with that head, whose message has been checked."""
        version = str(meta.get(VERSION_KEY, "")) if meta and era is MODERN else ""
        return Request(
            era=era,
            endpoint=self._endpoint,
            headers=head.headers,
            message=message,
            params=params or {},
            protocol_version=version or head.headers.get(VERSION_HEADER, BATCHES),
            meta=meta or {},
            forwarded=head.forwarded,
            again=head.again,
            same_site=head.same_site,
            peer=head.peer,
            client=head.client,
            secure=head.secure,
            arrived_at=monotonic(),
            body_bytes=body_bytes,
            check_mirrored=None if message is None else _check_of(era, head, message),
            memory=head.memory,
            offer=None if head.memory is None else Offer(),
        )


def _check_of(era: Era, head: Head, message: Message) -> Callable[[Any, Object], None] | None:
    """What compares the arguments of a call with the headers that mirror them."""
    if era is not MODERN or message.method != "tools/call" or not message.is_request:
        return None
    return functools.partial(check_param_headers, head.raw_headers)


def is_batch(body: bytes) -> bool:
    """Whether a body is an array of messages."""
    return body.lstrip()[:1] == b"["
