"""Rules of the headers of Streamable HTTP: media types, version and era. Pure: no I/O."""

import functools
from collections.abc import Mapping

from transports.era import HANDSHAKE_VERSIONS, LEGACY, MODERN, MODERN_VERSIONS, Era
from transports.inbound.batch import BATCHES
from transports.inbound.limits import MAX_LABEL_CHARS
from transports.inbound.modern import VERSION_HEADER
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_REQUEST, Message

__all__ = ["check_legacy", "check_post", "check_version", "era_of", "preflight"]


def era_of(headers: Mapping[str, str]) -> Era:
    """The era that the version header names."""
    return MODERN if headers.get(VERSION_HEADER) in MODERN_VERSIONS else LEGACY


def check_post(headers: Mapping[str, str]) -> None:
    """Raises `Refused` for a media type that a POST cannot have, or cannot be answered with."""
    kind = headers.get("content-type", "")
    if kind != "application/json" and kind.partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, INVALID_REQUEST, "The Content-Type must be application/json.")
    if not _accepts_both(headers.get("accept", "")):
        raise Refused(406, INVALID_REQUEST, "Accept must name application/json and text/event-stream.")


def check_legacy(headers: Mapping[str, str], message: Message) -> None:
    """Raises `Refused` for a version that a legacy message cannot have."""
    # `initialize` negotiates the version in its body: the header of that request does not count.
    if message.method != "initialize":
        check_version(headers)


def check_version(headers: Mapping[str, str]) -> None:
    """Raises `Refused` for a version that no legacy client speaks."""
    version = headers.get(VERSION_HEADER, BATCHES)
    if version not in HANDSHAKE_VERSIONS:
        supported = ", ".join((*HANDSHAKE_VERSIONS, *MODERN_VERSIONS))
        raise Refused(400, INVALID_REQUEST, f"Unsupported MCP-Protocol-Version. Supported: {supported}.")


def _accepts_both(accept: str) -> bool:
    """True if an Accept header permits both kinds of answers (RFC 9110 §12.5.1). Quality values are ignored."""
    # Clients send one of a few values. A longer one would only fill the cache.
    return _permits_both(accept) if len(accept) <= MAX_LABEL_CHARS else _permits_both.__wrapped__(accept)


@functools.lru_cache(maxsize=64)
def _permits_both(accept: str) -> bool:
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return bool(kinds & {"application/json", "application/*", "*/*"} and kinds & {"text/event-stream", "text/*", "*/*"})


def preflight(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """The answer to a browser's preflight request. The guard has checked the origin already."""
    return [
        (b"access-control-allow-methods", b"POST, GET, DELETE"),
        (b"access-control-allow-headers", headers.get("access-control-request-headers", "*").encode("latin-1")),
    ]
