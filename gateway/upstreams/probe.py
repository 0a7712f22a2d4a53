"""Asks one server which eras it speaks and which tools it lists: at the start, and again after a failure."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.protocol.handshake import HandshakeRefused
from gateway.protocol.listing import Tools
from gateway.upstreams.facts import KnownFacts, ServerFacts, era_of
from gateway.upstreams.list_pages import GATEWAY_META, ListReader
from gateway.upstreams.shared import SharedConversations
from transports.era import Era
from transports.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_VERSION, encode, error_code, splice
from transports.tasks import Tasks, TasksClosed
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["Probe"]

logger = logging.getLogger(__name__)

_NO_HANDSHAKE: Final = frozenset({METHOD_NOT_FOUND, INVALID_REQUEST, UNSUPPORTED_VERSION})
"""Error codes of servers that have no `initialize`: unknown method, invalid request, unsupported version."""

WAIT_S: Final = 9.0
"""How long a client's `server/discover` waits for the probe. SDK clients wait 10 s for the answer."""

AGAIN_S: Final = 5.0
"""How long after a failure the probe is made again at the earliest."""

_PROBE, _TRIAL = "probe", "trial"


class Probe:
    """The probe of one server. One runs at a time, and concurrent callers share its result.

    `start_s` is how long the server may take to answer. `clock` is monotonic.
    """

    def __init__(
        self,
        name: str,
        known: KnownFacts,
        shared: SharedConversations,
        reader: ListReader,
        *,
        start_s: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name = name
        self._known = known
        self._shared = shared
        self._reader = reader
        self._start_s = start_s
        self._clock = clock
        self._again_at = 0.0
        self._accepts_handshake: bool | None = None
        self._tasks = Tasks(f"probe of {name}")

    def start(self) -> asyncio.Task[ServerFacts]:
        """Run the probe in the background, if it does not run already."""
        return self._tasks.start(_PROBE, self._probe)

    async def facts(self) -> ServerFacts:
        """The findings of the last probe. After a failure the probe runs again in the background, so that a server that
        is started later is found.

        A server that has not answered yet counts as legacy, so that its clients need not wait.
        """
        facts = self._known.latest
        if facts is not None:
            if facts.failure and self._clock() >= self._again_at:
                self.start()
            return facts
        try:
            async with asyncio.timeout(WAIT_S):
                return await self._tasks.share(_PROBE, self._probe)
        except TimeoutError:
            return ServerFacts()
        except TasksClosed:
            return ServerFacts(failure="the gateway stops")

    # -- eras

    def era_now(self, client: Era) -> Era | None:
        """As `era_for`, without waiting; None while the era is not known."""
        return era_of(self._known.latest, client, accepts_handshake=self._accepts_handshake)

    async def era_for(self, client: Era) -> Era:
        """The era in which the server is addressed for such a client."""
        facts = await self.facts()
        era = era_of(facts, client, accepts_handshake=self._accepts_handshake)
        if era is None:
            with contextlib.suppress(TasksClosed):
                await self._tasks.share(_TRIAL, self._try_handshake)
            # A failed trial decides nothing. The first client with its own handshake does.
            era = era_of(facts, client, accepts_handshake=self._accepts_handshake is not False)
        assert era is not None
        return era

    async def _try_handshake(self) -> None:
        """Find out whether a modern server accepts a handshake. In a process of its own, because a server that speaks
        both eras chooses one by the first message."""
        trial = self._shared.trial()
        try:
            await trial.ready()
            self._accepts_handshake = True
        except UpstreamUnavailable as error:
            logger.warning("the handshake with server %s could not be tried: %s", self._name, error)
        except HandshakeRefused as error:
            # With any other error the server refuses this handshake only.
            self._accepts_handshake = error_code(error.error) not in _NO_HANDSHAKE
        finally:
            await trial.close()

    # -- asking

    async def _probe(self) -> ServerFacts:
        try:
            facts = await self._ask()
            self._known.learn(facts)
        finally:
            self._again_at = self._clock() + AGAIN_S
        return facts

    async def _ask(self) -> ServerFacts:
        conversation = self._shared.of(Era.MODERN)
        try:
            await conversation.ready()
            if (facts := await self._discover(conversation)) is not None:
                return facts
        except (UpstreamUnavailable, HandshakeRefused) as error:
            logger.warning("probe: %s", error)
            return ServerFacts(failure=str(error))
        except (TimeoutError, LinkClosed, msgspec.MsgspecError):
            pass  # legacy servers do not answer, or exit, if the first message is not a handshake
        logger.info("server %s speaks the legacy era only", self._name)
        await self._shared.discard(Era.MODERN)
        return await self._ask_legacy()

    async def _discover(self, conversation: Conversation) -> ServerFacts | None:
        async with asyncio.timeout(self._start_s):
            answer = await conversation.ask("server/discover", encode({"_meta": GATEWAY_META}))
        if not isinstance(answer.result, msgspec.Raw):
            return None
        tools = Tools(await self._reader.all_items("tools/list", conversation))
        return ServerFacts(discover=splice(answer.result), tools=tools)

    async def _ask_legacy(self) -> ServerFacts:
        conversation = self._shared.of(Era.LEGACY)
        try:
            await conversation.ready()
        except UpstreamUnavailable as error:
            logger.warning("probe: %s", error)
            return ServerFacts(failure=str(error))
        except HandshakeRefused:
            return ServerFacts()
        tools = Tools()
        with contextlib.suppress(LinkClosed, TimeoutError, msgspec.MsgspecError):
            async with asyncio.timeout(self._start_s):
                tools = Tools(await self._reader.all_items("tools/list", conversation))
        return ServerFacts(initialize=conversation.initialize_result, tools=tools)

    async def close(self) -> None:
        """Cancel a running probe."""
        await self._tasks.close()
