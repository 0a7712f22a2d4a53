"""Asks a server `server/discover`, and says what its answer proves about the era that it speaks.

MCP 2026-07-28, Versioning §Backward Compatibility; stdio and Streamable HTTP §Backward Compatibility. Keeps nothing.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.upstreams.list_pages import GATEWAY_META
from transports.era import HANDSHAKE_VERSIONS, LEGACY, MODERN, MODERN_VERSIONS, Era
from transports.jsonrpc import HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION, encode, splice
from transports.upstream_port import LinkClosed, UpstreamUnavailable, is_about_content

__all__ = ["Discovery", "ask_discovery", "meaning_of"]

_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
_MOST_VERSIONS: Final = 8
_VERSION_CHARS: Final = 32
_REASON_CHARS: Final = 200
_REFUSED: Final = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class Discovery:
    """What an answer proves: the era of the server, or nothing (None). `result` is that of a modern server which can be
    used. `reason` says why it cannot, or why nothing is proved. `retry` is a version to ask again with. `is_refused`: a
    status says that the request lacks credentials."""

    era: Era | None
    result: bytes | None = None
    reason: str = ""
    retry: str = ""
    is_refused: bool = False


async def ask_discovery(conversation: Conversation, *, within_s: float, is_url: bool) -> Discovery:
    """Ask a server, again with a version that it names if it refuses the first one.

    A process that stays silent, or exits, is legacy. A server behind a URL may have been busy, or a proxy has answered.

    Raises:
        UpstreamUnavailable, HandshakeRefused: the server cannot be reached.
    """
    found = await _asked(conversation, MODERN_VERSIONS[-1], within_s, is_url=is_url)
    if found.retry:
        found = await _asked(conversation, found.retry, within_s, is_url=is_url)
    return found


async def _asked(conversation: Conversation, version: str, within_s: float, *, is_url: bool) -> Discovery:
    await conversation.ready()
    params = encode({"_meta": GATEWAY_META | {_VERSION_KEY: version}})
    try:
        async with conversation.links.first_answer.within(within_s):
            answer = await conversation.ask("server/discover", params)
    except UpstreamUnavailable as error:
        if not error.status:
            raise
        era = LEGACY if is_about_content(error.status) else None
        return Discovery(era, reason=str(error), is_refused=error.status in _REFUSED)
    except TimeoutError:
        return Discovery(None if is_url else LEGACY, reason=f"it did not answer server/discover within {within_s:g} s")
    except (LinkClosed, msgspec.MsgspecError) as error:
        return Discovery(None if is_url else LEGACY, reason=str(error))
    if isinstance(answer.result, msgspec.Raw):
        return Discovery(MODERN, result=splice(answer.result))
    assert isinstance(answer.error, msgspec.Raw)
    return meaning_of(answer.error)


def meaning_of(error: msgspec.Raw) -> Discovery:
    """What an error of the server proves. Only errors that MCP 2026-07-28 defines prove a modern server: the codes of
    legacy servers are their own."""
    try:
        decoded = msgspec.json.decode(error)
    except msgspec.MsgspecError:
        decoded = None
    decoded = decoded if isinstance(decoded, dict) else {}
    code, data = decoded.get("code"), decoded.get("data")
    data = data if isinstance(data, dict) else {}
    if code == UNSUPPORTED_VERSION and isinstance(data.get("supported"), list):
        return _of_versions(data)
    if code == HEADER_MISMATCH or (code == MISSING_CAPABILITY and "requiredCapabilities" in data):
        text = str(decoded.get("message", ""))[:_REASON_CHARS]
        return Discovery(MODERN, reason=f"it refuses server/discover with error {code}: {text}")
    return Discovery(LEGACY)


def _of_versions(data: dict[str, Any]) -> Discovery:
    """The consequence of an `UnsupportedProtocolVersionError`."""
    supported = [version for version in data["supported"] if isinstance(version, str)]
    common = [version for version in MODERN_VERSIONS if version in supported]
    if common:
        reason = f"it refuses protocol version {common[-1]}, which it says it supports"
        return Discovery(MODERN, reason=reason, retry=common[-1])
    if any(version in HANDSHAKE_VERSIONS for version in supported):
        return Discovery(LEGACY)
    shown = ", ".join(version[:_VERSION_CHARS] for version in supported[:_MOST_VERSIONS]) or "none"
    ours = ", ".join([*HANDSHAKE_VERSIONS, *MODERN_VERSIONS])
    return Discovery(MODERN, reason=f"it supports MCP {shown} only, and this gateway supports {ours}")
