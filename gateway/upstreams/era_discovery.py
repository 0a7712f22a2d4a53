"""Find which era of MCP a server speaks, from its answer to `server/discover`.

MCP 2026-07-28, Versioning §Backward Compatibility; stdio and Streamable HTTP §Backward Compatibility. If a server
refuses this request of the gateway because the request has no credentials, it is sent with the credentials of a session
(`SessionDiscovery`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession
from gateway.protocol.handshake import HandshakeRefused, discovery_for_all
from gateway.upstreams.list_pages import GATEWAY_META
from gateway.upstreams.server_facts import KnownFacts, ServerFacts
from transports.background_tasks import Tasks, TasksClosed
from transports.era import HANDSHAKE_VERSIONS, LEGACY, MODERN, MODERN_VERSIONS, VERSION_KEY, Era
from transports.jsonrpc import HEADER_MISMATCH, MISSING_CAPABILITY, UNREADABLE, UNSUPPORTED_VERSION, encode, splice
from transports.upstream_port import LinkClosed, UpstreamUnavailable, is_about_content

logger = logging.getLogger(__name__)

WAIT_S: Final = 9.0
"""Seconds that a session waits for its turn to ask the server, and then again for the answer."""

AGAIN_S: Final = 5.0
"""Minimum seconds between two requests for the era by one session, if the answer has proved no era."""

LEGACY_S: Final = 60.0
"""Seconds for which a legacy answer to one session counts for all sessions. After that, another session asks: the
answer may have been caused by the credentials."""

_MOST: Final = 4
"""Maximum number of sessions that ask a server for its era at the same time. Others wait, and often need not ask any
more."""

_MOST_VERSIONS: Final = 8
_VERSION_CHARS: Final = 32
_REASON_CHARS: Final = 200
_REFUSED: Final = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class Discovery:
    """What the answer of a server to `server/discover` proves."""

    era: Era | None
    """The era of the server; None if the answer proves none."""
    result: bytes | None = None
    """The result in the answer; only of a modern server that can be used."""
    reason: str = ""
    """Why the server cannot be used, or why no era is proved."""
    retry: str = ""
    """The protocol version with which to ask again; empty: none."""
    is_refused: bool = False
    """True: the HTTP status asks for credentials."""


async def ask_discovery(conversation: Conversation, *, within_s: float, is_remote: bool) -> Discovery:
    """Send `server/discover` to a server, and return the era that its answer proves, if any.

    If the server refuses the protocol version and names another, ask again with that version. The refusal proves a
    modern server, whatever the second answer is. A process that exits, or does not answer within `within_s` seconds,
    counts as legacy. A URL that does not answer proves nothing: the server may be busy, or a proxy may have answered.

    Raises:
        UpstreamUnavailable, HandshakeRefused: the server cannot be reached.
    """
    found = await _asked(conversation, MODERN_VERSIONS[-1], within_s, is_remote=is_remote)
    if not found.retry:
        return found
    again = await _asked(conversation, found.retry, within_s, is_remote=is_remote)
    return again if again.result is not None else Discovery(MODERN, reason=again.reason or found.reason)


async def _asked(conversation: Conversation, version: str, within_s: float, *, is_remote: bool) -> Discovery:
    await conversation.ready()
    params = encode({"_meta": GATEWAY_META | {VERSION_KEY: version}})
    silent = None if is_remote else LEGACY  # what the silence of a server proves
    try:
        async with conversation.links.first_answer.within(within_s):
            answer = await conversation.ask("server/discover", params)
    except UpstreamUnavailable as error:
        if not error.status:
            raise
        era = LEGACY if is_about_content(error.status) else None
        return Discovery(era, reason=str(error), is_refused=error.status in _REFUSED)
    except TimeoutError:
        return Discovery(silent, reason=f"it did not answer server/discover within {within_s:g} s")
    except (LinkClosed, *UNREADABLE) as error:
        return Discovery(silent, reason=str(error))
    if isinstance(answer.result, msgspec.Raw):
        return Discovery(MODERN, result=splice(answer.result))
    assert isinstance(answer.error, msgspec.Raw)
    return meaning_of(answer.error)


def meaning_of(error: msgspec.Raw) -> Discovery:
    """Return the era that an error answer to `server/discover` proves. Only errors that MCP 2026-07-28 defines prove a
    modern server: a legacy server chooses its error codes itself."""
    try:
        decoded = msgspec.json.decode(error)
    except UNREADABLE:
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
    """Return the era that the supported versions in the `data` of an `UnsupportedProtocolVersionError` prove. If one of
    them is a modern version that the gateway speaks, the caller is to ask again with it (`retry`)."""
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


@dataclass(eq=False, repr=False)
class SessionDiscovery:
    """Find out the era of a server that answers only requests with a session's credentials, which the probe does not
    have. `known` has the facts about the server so far. `learn` is called with facts that a session has found.

    The era and the capabilities that one session finds count for all sessions. The rest of the answer is not stored,
    because it may be meant only for the owner of the credentials.
    """

    name: str
    known: KnownFacts
    learn: Callable[[ServerFacts], None]
    _: KW_ONLY
    clock: Callable[[], float] = monotonic

    def __post_init__(self) -> None:
        self._turn = asyncio.Semaphore(_MOST)
        self._legacy_until = float("-inf")
        self._again_at: WeakKeyDictionary[LiveSession, float] = WeakKeyDictionary()
        self._reported = ""
        self._tasks = Tasks(f"discovery of {self.name} by sessions")

    def is_wanted(self, live: LiveSession) -> bool:
        """Return True if the server must be asked for its era now, with the credentials of this session."""
        facts = self.known.latest
        if facts is None or not facts.needs_credentials or facts.discover is not None:
            return False
        now = self.clock()
        return now >= self._legacy_until and now >= self._again_at.get(live, now)

    async def ask(self, live: LiveSession, conversation: Conversation) -> None:
        """Ask the server for its era in a conversation of the session. If the server is modern and can be used, pass
        its facts to `learn`; otherwise, close the conversation. Concurrent callers share one request, which goes on if
        a caller is cancelled. If asking fails, nothing is raised, and the era stays unknown."""
        with contextlib.suppress(TasksClosed):
            await self._tasks.share(conversation, lambda: self._ask(live, conversation))

    async def _ask(self, live: LiveSession, conversation: Conversation) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._turn.acquire()
        except TimeoutError:
            await self._drop(live, conversation)
            return
        try:
            if self.is_wanted(live):
                await self._discover(live, conversation)
        finally:
            self._turn.release()
            await self._drop(live, conversation)

    async def _discover(self, live: LiveSession, conversation: Conversation) -> None:
        self._again_at[live] = float("inf")
        try:
            found = await ask_discovery(conversation, within_s=WAIT_S, is_remote=True)
        except (UpstreamUnavailable, HandshakeRefused) as error:
            found = Discovery(None, reason=str(error))
        if found.result is not None:
            self._learn_from(found.result)
        elif found.era is LEGACY:
            self._legacy_until = self.clock() + LEGACY_S
        else:
            self._again_at[live] = self.clock() + AGAIN_S
            if found.era is MODERN and found.reason != self._reported:
                self._reported = found.reason
                logger.warning("server %s cannot be used: %s", self.name, found.reason, extra={"server": self.name})

    def _learn_from(self, result: bytes) -> None:
        facts = self.known.latest
        if facts is None or not facts.needs_credentials or facts.discover is not None:
            return  # the probe or another session has learned it meanwhile
        logger.info("server %s answers sessions with credentials, and speaks MCP 2026-07-28", self.name)
        shared = discovery_for_all(result, self.name)
        self.learn(ServerFacts(discover=shared, needs_credentials=True, at=self.clock()))

    async def _drop(self, live: LiveSession, conversation: Conversation) -> None:
        """Close the conversation, which was opened in the modern era, unless the server is known to be modern. Else
        later calls would be sent in an era that the server may not know."""
        facts = self.known.latest
        if facts is not None and facts.discover is not None:
            return
        for key in [key for key, each in live.conversations.items() if each is conversation]:
            del live.conversations[key]
        await conversation.close("the server does not speak MCP 2026-07-28")

    async def close(self) -> None:
        """Cancel pending requests."""
        await self._tasks.close()
