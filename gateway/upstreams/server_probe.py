"""Probe one server: ask it which eras of MCP it speaks and which tools it lists. This happens when the gateway starts,
and after each failure."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from time import monotonic
from typing import Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.server_start_failures import Backoff, with_output_tail
from gateway.protocol.cache_hints import hints_of, with_ttl
from gateway.protocol.extensions import MOST_NAME_CHARS, MOST_NAMES
from gateway.protocol.handshake import HandshakeRefused, version_of
from gateway.protocol.merged_lists import Tools
from gateway.upstreams.era_discovery import Discovery, ask_discovery
from gateway.upstreams.list_pages import all_items
from gateway.upstreams.result_cache import ResultCache
from gateway.upstreams.server_facts import KnownFacts, ServerFacts, era_of
from gateway.upstreams.shared_conversations import SharedConversations
from transports.background_tasks import Tasks, TasksClosed
from transports.era import HANDSHAKE_VERSIONS, Era
from transports.jsonrpc import HEADER_MISMATCH, INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_VERSION, error_code
from transports.upstream_port import LinkClosed, UpstreamUnavailable

logger = logging.getLogger(__name__)

_NO_HANDSHAKE: Final = frozenset({METHOD_NOT_FOUND, INVALID_REQUEST, UNSUPPORTED_VERSION, HEADER_MISMATCH})
"""Error codes of servers that have no `initialize`: unknown method, invalid request, unsupported version, missing
header. A server may check the headers of 2026-07-28 before the method."""

_TOO_MANY: Final = (
    "server %s declares too many or too long extensions: %d names do not count when methods are sent to servers. "
    "The first %d names of at most %d characters do"
)

WAIT_S: Final = 9.0
"""Seconds from the start of a probe during which clients wait for its result. SDK clients wait 10 s for
`server/discover`."""

AGAIN_S: Final = 5.0
"""Minimum seconds from a failure to the next probe that a client's request starts. Without requests, a `Backoff` times
the next probe, so that a server that recovers is found even while a load balancer sends no clients."""

_PROBE, _TRIAL, _REFRESH = "probe", "trial", "refresh"


@dataclass(eq=False, repr=False)
class Probe:
    """Probe one server for its eras and tools. One probe runs at a time, and concurrent callers share its result.

    `took_s`: the duration of the last probe, and `started_s` the part of it until the server answered in its era.
    `began_at`: the start time of the running probe; None if none runs. `answered`: set once the server has answered.
    """

    name: str
    known: KnownFacts
    """Where the facts are stored that a probe finds."""
    shared: SharedConversations
    """The conversations in which the server is asked."""
    _: KW_ONLY
    start_s: float
    """The seconds that the server may take to answer."""
    is_remote: bool = False
    """True: the server is behind a URL."""
    results: ResultCache | None = None
    """Caches the list of tools, if it is the same for all callers."""
    clock: Callable[[], float] = monotonic

    def __post_init__(self) -> None:
        self._refreshed_at = float("-inf")
        self.failures = Backoff()
        self._guesses = Backoff()
        self.took_s = self.started_s = 0.0
        self.began_at: float | None = None
        self.answered = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None
        self._accepts_handshake: bool | None = None
        self._logs_first_answer = False
        self._tasks = Tasks(f"probe of {self.name}")

    def start(self) -> asyncio.Task[ServerFacts]:
        """Run the probe in the background, if it does not run. Return its task."""
        return self._tasks.start(_PROBE, self._probe)

    async def facts(self) -> ServerFacts:
        """Return the facts from the last probe. Wait up to `WAIT_S` for the first probe: a server that has not answered
        by then counts as legacy, so that its clients need not wait longer. If the last probe has failed, also start
        another in the background, because the server may have come up since."""
        facts = self.known.latest
        if facts is not None:
            if facts.failure and self.clock() >= self.failures.failed_at + AGAIN_S:
                self.start()
            return facts
        waited_s = 0.0 if self.began_at is None else self.clock() - self.began_at
        if waited_s >= WAIT_S:
            return ServerFacts()
        try:
            async with asyncio.timeout(WAIT_S - waited_s):
                return await self._tasks.share(_PROBE, self._probe)
        except TimeoutError:
            return ServerFacts()
        except TasksClosed:
            return ServerFacts(failure="the gateway stops")

    def discovery(self, facts: ServerFacts) -> bytes | None:
        """Return the answer to `server/discover` in `facts`, as modern clients get it: its `ttlMs` is reduced to the
        remaining time. Return None if the server has not answered. If the answer is no longer fresh, return it all the
        same, and ask the server again in the background."""
        ttl_ms = 0 if facts.discover is None else hints_of(facts.discover).ttl_ms
        if not ttl_ms or facts.discover is None:
            return facts.discovery
        now = self.clock()
        left_ms = int(ttl_ms - (now - facts.at) * 1_000)
        if left_ms <= 0 and now >= self._refreshed_at + AGAIN_S:
            self._refreshed_at = now
            self._tasks.start(_REFRESH, lambda: self._refresh(facts))
        return with_ttl(facts.discover, max(0, left_ms))

    async def _refresh(self, facts: ServerFacts) -> None:
        """Send `server/discover` to a modern server again. Keep the last answer if there is no new one."""
        with contextlib.suppress(UpstreamUnavailable, HandshakeRefused):
            found = await ask_discovery(self.shared.of(Era.MODERN), within_s=self.start_s, is_remote=self.is_remote)
            if found.result is not None and self.known.latest is facts:
                self.known.learn(replace(facts, discover=found.result, at=self.clock()))

    @property
    def waited_s(self) -> float:
        """Return the larger of two times: the seconds that the last probe took, and those that the running probe has
        taken so far."""
        return self.took_s if self.began_at is None else max(self.took_s, self.clock() - self.began_at)

    # -- eras

    def era_now(self, client: Era) -> Era | None:
        """Return the era in which to send requests of a client (of era `client`) to the server, by what is known now.
        Return None while that does not decide it."""
        return era_of(self.known.latest, client, accepts_handshake=self._accepts_handshake)

    async def era_for(self, client: Era) -> Era:
        """Return the era in which to send requests of a client (of era `client`) to the server. Wait for the first
        probe. If the era then depends on whether the server accepts a handshake, test that first."""
        facts = await self.facts()
        era = era_of(facts, client, accepts_handshake=self._accepts_handshake)
        if era is not None:
            return era
        if not facts.needs_credentials:
            with contextlib.suppress(TasksClosed):
                await self._tasks.share(_TRIAL, self._try_handshake)
        # A failed trial decides nothing. The handshake of the first client will.
        era = era_of(facts, client, accepts_handshake=self._accepts_handshake is not False)
        assert era is not None
        return era

    async def _try_handshake(self) -> None:
        """Test if a modern server accepts a handshake. The test has a process of its own, because a server that speaks
        both eras chooses one by the first message."""
        trial = self.shared.trial()
        try:
            await self._learn_from(trial)
        finally:
            await trial.close()

    async def try_with(self, conversation: Conversation, drop: Callable[[], object]) -> None:
        """Test if a modern server accepts a handshake, in `conversation`, which has a session's own process, so that
        the session's client waits for only one start. If the server refuses, call `drop`, which removes the
        conversation from the session, and close the conversation. The test goes on if its caller is cancelled."""
        with contextlib.suppress(TasksClosed):
            await self._tasks.share((_TRIAL, conversation), lambda: self._learn_from_own(conversation, drop))

    async def _learn_from_own(self, conversation: Conversation, drop: Callable[[], object]) -> None:
        await self._learn_from(conversation)
        if self._accepts_handshake is False:
            drop()
            await conversation.close("the server has no handshake")

    async def _learn_from(self, conversation: Conversation) -> None:
        try:
            await conversation.ready()
            # Some servers answer every method. Only an answer in a version of this era accepts the handshake.
            self._accepts_handshake = version_of(conversation.initialize_result or b"{}") in HANDSHAKE_VERSIONS
            self.known.changed()
        except UpstreamUnavailable as error:
            logger.warning("the handshake with server %s could not be tried: %s", self.name, error)
        except HandshakeRefused as error:
            # Any other error refuses this handshake only.
            self._accepts_handshake = error_code(error.error) not in _NO_HANDSHAKE
            self.known.changed()

    # -- asking

    async def _probe(self) -> ServerFacts:
        self._cancel_timer()
        began = self.began_at = self.clock()
        try:
            facts = self.known.kept(await self._asked())
            self._keep(facts)
        finally:
            self.began_at = None
            self.took_s = self.clock() - began
        if facts.has_answered:
            if self.failures.count and self.answered.is_set():
                logger.info("server %s answers again", self.name)
            self.failures = Backoff()
            self.answered.set()
            if not facts.is_certain:
                self._guesses.fail("", self.clock())
                self._ask_later(self._guesses.delay_s)
        else:
            self._failed(facts.failure or "it supports no MCP version of this gateway", facts.output_tail)
        return facts

    def log_first_answer(self) -> None:
        """From now on, log once when the server has answered: a line that says that it is ready."""
        self._logs_first_answer = True

    def give_up(self, reason: str) -> None:
        """Mark the server as failed for good, so that it is never asked. `reason` is shown to clients."""
        self.known.learn(ServerFacts(failure=reason))
        self.failures.fail(reason, math.inf)

    def learn(self, facts: ServerFacts) -> None:
        """Store the facts that a session has found about a server that refuses the probe."""
        self._cancel_timer()
        self._keep(facts)
        self.failures = Backoff()
        self.answered.set()

    def _keep(self, facts: ServerFacts) -> None:
        """Store the facts from a probe. Log the first answer if `log_first_answer` was called. Warn if the server
        declares too many extensions."""
        self.known.learn(facts)
        if facts.has_answered and self._logs_first_answer:
            self._logs_first_answer, tools = False, self.known.tools()
            count = "" if tools is None else f": {len(tools.listed)} tool{'' if len(tools.listed) == 1 else 's'}"
            logger.info("server %s is ready%s", self.name, count)
        if facts.has_answered and facts.declared.left_off:
            logger.warning(_TOO_MANY, self.name, facts.declared.left_off, MOST_NAMES, MOST_NAME_CHARS)

    def _failed(self, reason: str, output_tail: Sequence[str]) -> None:
        """Record a failed probe, log it, and schedule the next one."""
        level = logging.WARNING if reason != self.failures.reason else logging.DEBUG
        shown = with_output_tail(reason, output_tail)
        logger.log(level, "server %s cannot be used yet: %s", self.name, shown, extra={"server": self.name})
        self.failures.fail(reason, self.clock())
        self._ask_later(self.failures.delay_s)

    def _ask_later(self, delay_s: float) -> None:
        self._again = asyncio.get_running_loop().call_later(delay_s, self.start)

    def _cancel_timer(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    async def _asked(self) -> ServerFacts:
        """Ask the server, and return the facts. An unexpected error counts as a failed probe, so that another one
        follows and clients can use the server later."""
        try:
            return await self._ask()
        except Exception as error:
            reason = f"the gateway could not ask it ({type(error).__name__})"
            if reason != self.failures.reason:
                logger.exception("the probe of server %s failed", self.name, extra={"server": self.name})
            return self.known.guessed or ServerFacts(failure=reason)

    async def _ask(self) -> ServerFacts:
        began = self.clock()
        conversation = self.shared.of(Era.MODERN)
        try:
            found = await ask_discovery(conversation, within_s=self.start_s, is_remote=self.is_remote)
        except (UpstreamUnavailable, HandshakeRefused) as error:
            if (known := self.known.guessed) is not None:
                return known
            return ServerFacts(failure=str(error), output_tail=tuple(conversation.output_tail))
        if found.result is not None:
            self.started_s = self.clock() - began
            at = self.clock()
            return ServerFacts(discover=found.result, tools=await self._tools(conversation), at=at)
        await self.shared.discard(Era.MODERN)
        if found.era is Era.MODERN:
            return ServerFacts(failure=f"server {self.name!r} cannot be used: {found.reason}")
        if (known := self.known.guessed) is not None:
            return known if found.era is None else replace(known, is_certain=True)
        facts = await self._ask_legacy(found)
        return replace(facts, needs_credentials=found.is_refused and self.is_remote and not facts.has_answered)

    async def _ask_legacy(self, found: Discovery) -> ServerFacts:
        """Make a handshake with a server that `server/discover` has not proved to be modern (`found` is its outcome),
        and return the facts."""
        conversation, began = self.shared.of(Era.LEGACY), self.clock()
        is_certain = found.era is not None
        try:
            await conversation.ready()
        except UpstreamUnavailable as error:
            return ServerFacts(failure=str(error), output_tail=tuple(conversation.output_tail))
        except HandshakeRefused:
            return ServerFacts(failure="" if is_certain else found.reason)
        self.started_s = self.clock() - began
        if is_certain:
            logger.info("server %s speaks the legacy era only", self.name)
        else:
            logger.warning(
                "server %s accepts a handshake, and is asked again whether it speaks MCP 2026-07-28: %s",
                self.name,
                found.reason,
                extra={"server": self.name},
            )
        tools = await self._tools(conversation)
        return ServerFacts(initialize=conversation.initialize_result, tools=tools, is_certain=is_certain)

    async def _tools(self, conversation: Conversation) -> Tools:
        """Return the tools that the server lists; no tools if it cannot list them within `start_s`."""
        if not self.known.has_tools:
            return Tools()
        with contextlib.suppress(UpstreamUnavailable, LinkClosed, TimeoutError, msgspec.MsgspecError):
            async with asyncio.timeout(self.start_s):
                return Tools(await all_items("tools/list", conversation, self.results))
        return Tools()

    async def close(self) -> None:
        """Cancel a running probe, and start no more."""
        self._cancel_timer()
        await self._tasks.close()
