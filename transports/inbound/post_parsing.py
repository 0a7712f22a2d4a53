"""Make a `Request` from the head and the body of a POST, and check it by the rules of its era. Pure: no I/O, no
awaits."""

import functools
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

import msgspec

from transports.era import HANDSHAKE_VERSIONS, LEGACY, MODERN, MODERN_VERSIONS, VERSION_KEY, Era
from transports.inbound.host_and_origin import Guard, is_same_site
from transports.inbound.http_requests_and_responses import Scope, check_is_json, peer_of
from transports.inbound.modern_request_checks import (
    VERSION_HEADER,
    check_notification,
    check_param_headers,
    check_request,
    names_version,
)
from transports.inbound.unauthenticated_limits import (
    MAX_CURSOR_BYTES,
    MAX_FILTER_BYTES,
    MAX_ID_CHARS,
    MAX_LABEL_CHARS,
    Limited,
    Limits,
    Refusals,
)
from transports.inbound_port import FastPathOffer, HandlerCache, HeaderList, Refused, Request
from transports.json_part_counts import REQUEST_PARTS
from transports.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, InvalidMessage, Message, Object, decode_meta, parse

BATCHES: Final = "2025-03-26"
"""The only protocol version with batches. A legacy request without a version header has this version, too."""

VOUCHED_FOR: Final = "mcp.vouched_for"
"""The key in the ASGI scope that holds the caller of a request from within the process, who needs no authentication."""


def era_of(headers: Mapping[str, str]) -> Era:
    """Return the era of the version in the headers; legacy if it is missing or unknown."""
    return MODERN if headers.get(VERSION_HEADER) in MODERN_VERSIONS else LEGACY


def check_post(headers: Mapping[str, str]) -> None:
    """Check a POST's headers. Raises `Refused`: 415, the body is not JSON; 406, Accept lacks JSON or event streams."""
    check_is_json(headers)
    accept = headers.get("accept", "")
    # Clients send one of a few values. A longer one would only fill the cache.
    if not (_permits_both(accept) if len(accept) <= MAX_LABEL_CHARS else _permits_both.__wrapped__(accept)):
        raise Refused(
            406, INVALID_REQUEST, "Accept must name application/json and text/event-stream.", reason="not_acceptable"
        )


def check_version(headers: Mapping[str, str]) -> None:
    """Check the version in the headers. Raises `Refused` if it is not a legacy one."""
    version = headers.get(VERSION_HEADER, BATCHES)
    if version not in HANDSHAKE_VERSIONS:
        supported = ", ".join((*HANDSHAKE_VERSIONS, *MODERN_VERSIONS))
        raise Refused(
            400,
            INVALID_REQUEST,
            f"Unsupported protocol version in MCP-Protocol-Version. Supported: {supported}.",
            reason="unsupported_version",
        )


@functools.lru_cache(maxsize=64)
def _permits_both(accept: str) -> bool:
    """Return True if an Accept header permits both JSON and event streams as the answer (RFC 9110 §12.5.1). Quality
    values are ignored."""
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return bool(kinds & {"application/json", "application/*", "*/*"} and kinds & {"text/event-stream", "text/*", "*/*"})


def preflight(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers that answer a browser's preflight request, whose origin the guard has checked."""
    return [
        (b"access-control-allow-methods", b"POST, GET, DELETE"),
        (b"access-control-allow-headers", headers.get("access-control-request-headers", "*").encode("latin-1")),
    ]


class _Meta(msgspec.Struct):
    progressToken: Any = None


class LengthChecks:
    """Check that parts of clients' messages are not too long, and count the refusals."""

    def __init__(self, limits: Limits, refusals: Refusals) -> None:
        self._name_chars = limits.name_chars
        self._refusals = refusals
        # By parameter: what it counts as, and its longest form in characters (after decoding) or bytes (of JSON).
        names, ids = (Limited.NAME, limits.name_chars), (Limited.NAME, MAX_ID_CHARS)
        self._texts: Final = {
            "name": names,
            "level": names,
            "requestId": ids,
            "progressToken": ids,
            "uri": (Limited.URI, limits.uri_chars),
        }
        self._values: Final = {
            "cursor": (Limited.NAME, MAX_CURSOR_BYTES),
            "ref": (Limited.URI, limits.uri_chars + limits.name_chars),  # of `completion/complete`: a name or a URI
            "notifications": (Limited.URI, MAX_FILTER_BYTES),  # of `subscriptions/listen`: its filter
        }

    def parse(self, data: bytes) -> Message:
        """Parse a message of a client, and check the length of its id and of its method.

        Raises:
            InvalidMessage: the bytes are not a message.
            Refused: 400, the id or the method is too long. The refusal does not repeat the id.
        """
        message = parse(data, REQUEST_PARTS)
        if isinstance(message.id, int):
            if message.id.bit_length() > 64:
                raise self._refused("The request id does not fit 64 bits.")
        elif isinstance(message.id, str) and len(message.id) > MAX_ID_CHARS:
            raise self._refused(f"The request id is longer than {MAX_ID_CHARS} characters.")
        if isinstance(message.method, str) and len(message.method) > self._name_chars:
            raise self._refused(f"The method is longer than {self._name_chars} characters.")
        return message

    def check(self, params: Object, meta: Mapping[str, Any] | None) -> None:
        """Check the params of a message. `meta` is their decoded `_meta`; None if it was not decoded.

        Raises:
            Refused: -32602, naming the parameter that is too long.
        """
        for key, raw in params.items():
            if key in self._texts:
                kind, most = self._texts[key]
                if not _is_short(raw, most):
                    raise self._too_long(kind, f"params.{key}", f"{most} characters")
            elif key in self._values:
                kind, most = self._values[key]
                if len(memoryview(raw)) > most:
                    raise self._too_long(kind, f"params.{key}", f"{most} bytes")
        if "_meta" in params:
            token = _progress_token(params["_meta"]) if meta is None else meta.get("progressToken")
            if isinstance(token, str) and len(token) > MAX_ID_CHARS:
                raise self._too_long(Limited.NAME, "params._meta.progressToken", f"{MAX_ID_CHARS} characters")

    def _refused(self, reason: str) -> Refused:
        self._refusals[Limited.NAME] += 1
        return Refused(400, INVALID_REQUEST, reason)

    def _too_long(self, kind: Limited, what: str, most: str) -> Refused:
        self._refusals[kind] += 1
        return Refused(200, INVALID_PARAMS, f"{what} is longer than {most}.")


def _progress_token(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw, type=_Meta).progressToken
    except msgspec.MsgspecError:
        return None  # the decoding of the whole `_meta` will report the fault


def _is_short(raw: msgspec.Raw, most: int) -> bool:
    """Return True if a JSON value has at most `most` characters, as JSON or as the text that it encodes. Short JSON is
    not decoded."""
    if len(memoryview(raw)) <= most + 2:
        return True
    text = msgspec.json.decode(raw)
    return isinstance(text, str) and len(text) <= most


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head of an HTTP request whose Host and Origin were checked. The fields are those of `Request`."""

    headers: Mapping[str, str]
    raw_headers: HeaderList
    era: Era
    same_site: bool
    peer: str
    client: str
    secure: bool
    forwarded: Any = None
    again: bool = False
    vouched_for: Any = None
    handler_cache: HandlerCache | None = None


class Posts:
    """Turn the HTTP requests to one endpoint into `Request` objects."""

    def __init__(self, endpoint: str, guard: Guard, lengths: LengthChecks) -> None:
        self._endpoint = endpoint
        self._guard = guard
        self._lengths = lengths

    def checked_head(self, scope: Scope) -> Head:
        """Check the head of a POST, and return it. Raises `Refused`: the head alone breaks a rule."""
        headers = self._guard.headers(scope)
        self._guard.check(headers)
        check_post(headers)
        return self.head(scope, headers)

    def head(self, scope: Scope, headers: Mapping[str, str]) -> Head:
        """Return the head of the request in `scope`. `headers` are its headers, which the guard has checked."""
        return Head(
            headers=headers,
            raw_headers=scope["headers"],
            era=era_of(headers),
            same_site=is_same_site(headers),
            peer=peer_of(scope),
            client=self._guard.client_network(scope, headers),
            secure=self._guard.is_secure(scope, headers),
            forwarded=scope.get("mcp.forwarded"),
            again=scope.get("mcp.again", False),
            vouched_for=scope.get(VOUCHED_FOR),
        )

    def read(self, body: bytes) -> Message:
        """Read the message in a body that is no batch. Raises `Refused` (400): the body is no message."""
        try:
            return self._lengths.parse(body)
        except InvalidMessage as error:
            raise Refused(400, error.code, str(error)) from None

    def request(self, head: Head, message: Message, body_bytes: int) -> Request:
        """Make a request from a message, and check it by the rules of the era that `head` or the message's `_meta`
        names.

        Raises:
            Refused, InvalidMessage, msgspec.MsgspecError: the message breaks a rule of its era, or cannot be read.
        """
        params = {} if message.method is msgspec.UNSET else message.params_object()
        meta = decode_meta(params["_meta"]) if "_meta" in params else None
        known = meta if isinstance(meta, dict) else {}
        if head.era is not MODERN and not names_version(meta):
            if message.method != "initialize":  # this negotiates the version in its body: its header does not count
                check_version(head.headers)
            self._lengths.check(params, known)
            return self.of_head(head, LEGACY, message, params, known, body_bytes=body_bytes)
        self._lengths.check(params, known)
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
        """Make a request of this era from a head and the parts of a message, which were checked before. `meta` is the
        decoded `_meta` in `params`. Without a message, as for GET and DELETE, the request has only the head."""
        version = str(meta.get(VERSION_KEY, "")) if meta and era is MODERN else ""
        is_modern_call = era is MODERN and message is not None and message.method == "tools/call" and message.is_request
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
            check_mirrored=functools.partial(check_param_headers, head.raw_headers) if is_modern_call else None,
            vouched_for=head.vouched_for,
            handler_cache=head.handler_cache,
            offer=None if head.handler_cache is None else FastPathOffer(),
        )


def is_batch(body: bytes) -> bool:
    return body.lstrip()[:1] == b"["
