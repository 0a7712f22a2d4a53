"""Asks a server `server/discover` with the credentials of sessions, if it refuses what the gateway asks without any.

What one session learns of the era and the capabilities counts for all. Everything else that the server has answered may
be for the owner of the credentials alone, and is not kept.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession
from gateway.protocol.handshake import HandshakeRefused, discovery_for_all
from gateway.upstreams.discovery import Discovery, ask_discovery
from gateway.upstreams.facts import KnownFacts, ServerFacts
from transports.era import LEGACY, MODERN
from transports.tasks import Tasks, TasksClosed
from transports.upstream_port import UpstreamUnavailable

__all__ = ["SessionDiscovery"]

logger = logging.getLogger(__name__)

WAIT_S: Final = 9.0
"""How long a session waits for its turn, and then for the answer."""

AGAIN_S: Final = 5.0
"""How long after an answer that has proved nothing a session asks again at the earliest."""

LEGACY_S: Final = 60.0
"""How long the server counts as legacy for all, after it has answered one session as a legacy server does. Then another
session asks: the answer may have been about the credentials."""

_MOST: Final = 4
"""Of sessions that ask at the same time. The others wait, and most of them need not ask then."""


class Learner(Protocol):
    """Keeps what a session has learned."""

    def learn(self, facts: ServerFacts) -> None: ...


class SessionDiscovery:
    """The question of sessions which era one server speaks. `known` has what the gateway knows of it."""

    def __init__(
        self, name: str, known: KnownFacts, learner: Learner, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._name = name
        self._known = known
        self._learner = learner
        self._clock = clock
        self._turn = asyncio.Semaphore(_MOST)
        self._legacy_until = float("-inf")
        self._again_at: WeakKeyDictionary[LiveSession, float] = WeakKeyDictionary()
        self._reported = ""
        self._tasks = Tasks(f"discovery of {name} by sessions")

    def is_wanted(self, live: LiveSession) -> bool:
        """Whether the server has to be asked with the credentials of that session."""
        facts = self._known.latest
        if facts is None or not facts.needs_credentials or facts.discover is not None:
            return False
        now = self._clock()
        return now >= self._legacy_until and now >= self._again_at.get(live, now)

    async def ask(self, live: LiveSession, conversation: Conversation) -> None:
        """Ask the server in a conversation of the session, which is closed unless the server is modern. Concurrent
        callers share one question. One that is cancelled does not end it. Whatever fails proves nothing."""
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
            found = await ask_discovery(conversation, within_s=WAIT_S, is_url=True)
        except (UpstreamUnavailable, HandshakeRefused) as error:
            found = Discovery(None, reason=str(error))
        if found.result is not None:
            self._learn(found.result)
        elif found.era is LEGACY:
            self._legacy_until = self._clock() + LEGACY_S
        else:
            self._again_at[live] = self._clock() + AGAIN_S
            if found.era is MODERN and found.reason != self._reported:
                self._reported = found.reason
                logger.warning("server %s cannot be used: %s", self._name, found.reason, extra={"server": self._name})

    def _learn(self, result: bytes) -> None:
        facts = self._known.latest
        if facts is None or not facts.needs_credentials or facts.discover is not None:
            return  # the probe, or another session, was faster
        logger.info("server %s answers sessions with credentials, and speaks MCP 2026-07-28", self._name)
        shared = discovery_for_all(result, self._name)
        self._learner.learn(ServerFacts(discover=shared, needs_credentials=True, at=self._clock()))

    async def _drop(self, live: LiveSession, conversation: Conversation) -> None:
        """Close the conversation if the session will not use it: calls would be taken for those of the other era."""
        facts = self._known.latest
        if facts is not None and facts.discover is not None:
            return
        for key in [key for key, each in live.conversations.items() if each is conversation]:
            del live.conversations[key]
        await conversation.close("the server does not speak MCP 2026-07-28")

    async def close(self) -> None:
        """Cancel pending questions."""
        await self._tasks.close()
