"""Ask several servers at once for a limited time, and keep trying those that are late. If a client got an answer
without a late server, notify the client when the server is up (MCP 2025-11-25 and 2026-07-28:
`notifications/tools/list_changed`, and those for prompts and resources)."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from gateway.bridge.modern_server_subscriptions import declaration_of
from gateway.calls.client_request import Call
from gateway.calls.conversation import Conversation
from gateway.calls.in_flight import WaitingCalls
from gateway.calls.link_manager import UNREACHED
from gateway.calls.live_session import LiveSession
from gateway.calls.server_start_failures import MOST_S, Backoff, without_output_tail
from gateway.errors import OutOfMemory
from gateway.protocol.client_capabilities import ClientDeclaration
from gateway.protocol.extensions import Declared
from gateway.protocol.methods import CHANGES, METHODS
from gateway.protocol.result_translation import Missing
from gateway.protocol.subscription_filter import SubscriptionFilter, with_subscription_id
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.list_pages import all_items
from gateway.upstreams.server_facts import STARTING
from session_store import StoreError
from transports.background_tasks import Tasks
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import UNREADABLE, InvalidMessage, encode, encode_notification, splice
from transports.upstream_port import UpstreamUnavailable

logger = logging.getLogger(__name__)

UNAVAILABLE: Final = (*UNREACHED, TimeoutError, OutOfMemory)
"""Errors of a server that cannot be asked: it cannot be reached, does not answer in time, or the machine lacks memory
for it."""

_MOST_REASONS: Final = 16
LIST_KINDS: Final = frozenset(row.kind for row in CHANGES.values() if row.flag)

Items = list[dict[str, Any]]
T = TypeVar("T")


class Waiting(Protocol):
    """Someone who waits for a late server: `arrived` is called when the server is up."""

    @property
    def has_ended(self) -> bool:
        """Return True if `arrived` need not be called any more, because the session or stream that waits has ended."""

    async def arrived(self, upstream: ConfiguredUpstream, conversation: Conversation) -> None:
        """Do what was waiting for this server. The server is up now, and `conversation` is the open conversation with
        it."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The client on whose behalf servers are asked."""

    live: LiveSession | None
    """The client's session. None if the request has no session."""
    era: Era
    declaration: ClientDeclaration | None
    """What a modern client has declared in its request. None for a legacy client, and for `server/discover`."""
    correlation: str

    @classmethod
    def of(cls, call: Call) -> "Asker":
        """Return the client of a call, as the one on whose behalf servers are asked."""
        return cls(call.live, call.era, call.exchange.declaration, call.correlation)

    @property
    def declared(self) -> Declared:
        """Return the extensions that the client has declared."""
        declaration = self.declaration or (None if self.live is None else declaration_of(self.live))
        return Declared() if declaration is None else declaration.declared


@dataclass(frozen=True, slots=True)
class Gathered(Generic[T]):
    """The results of sending the same request to several servers (`LateServers.gather`)."""

    answers: Mapping[str, T]
    """The answers that came in time, by server."""
    known: Mapping[str, Items] = field(default_factory=dict)
    """By server, for servers that did not answer in time: the items of the requested list that were known before."""
    missing: tuple[Missing, ...] = ()
    """The servers of which there is neither an answer nor known items, each with the reason."""
    failures: Mapping[str, Exception] = field(default_factory=dict)
    """The errors of those servers in `missing` that have failed, by server. The others are only slow."""


class _Follow:
    """The background attempts to reach one late server, for one session or for all clients without a session."""

    def __init__(self) -> None:
        self.since = time()
        self.given: dict[str, Items | None] = {}
        """For each list that a client requested meanwhile (by method): the items that the client got in place of the
        server's answer. None if it got none."""
        self.waiting: list[Waiting] = []
        """Whom to call when the server is up."""
        self.failures = Backoff()
        self.is_paused = False
        """True while the next attempt is waited for."""
        self.is_given_up = False
        """True once a client was answered without the server's part."""

    @property
    def is_late(self) -> bool:
        """Return True if a client was answered without the server's part, or an attempt to reach the server has
        failed."""
        return self.is_given_up or self.failures.count > 0

    def wait(self, waiting: Waiting) -> None:
        """Have `waiting.arrived` called once the server is up."""
        self.waiting = [each for each in self.waiting if not each.has_ended]
        self.waiting.append(waiting)

    def missing(self, server: str) -> Missing:
        """Return the entry for an answer that tells the client why this server's part is missing, and when the gateway
        tries the server again."""
        failed = self.failures
        retry_s = failed.left_s(monotonic()) if failed.count else None
        return Missing(server, failed.reason or STARTING, self.since, retry_s)


class LateServers:
    """Retry the late servers of an endpoint, and notify clients when a server is up.

    A server is late if it has not answered within `wait_s` seconds: the client is answered without it. In the
    background, the server then has `read_s` seconds to send a list. Each late server has one background task for each
    session that waits for it, and one for all clients without a session."""

    def __init__(self, *, wait_s: float, read_s: float) -> None:
        self.replace(wait_s=wait_s, read_s=read_s)
        self._follows: dict[tuple[LiveSession | None, str], _Follow] = {}
        self._left_out: WeakKeyDictionary[ConfiguredUpstream, float] = WeakKeyDictionary()  # since when (Unix time)
        self._subscriptions: set[SubscriptionFilter] = set()
        self.streams = WaitingCalls()
        """The clients' streams of notifications that no single server answers."""
        self._reported: dict[str, set[str]] = {}
        self._tasks = Tasks("late servers")

    # -- asking

    async def gather(
        self,
        upstreams: Iterable[ConfiguredUpstream],
        asker: Asker,
        ask: Callable[[ConfiguredUpstream], Coroutine[Any, Any, T]],
        *,
        method: str = "",
        waiting: Waiting | None = None,
    ) -> Gathered[T]:
        """Run `ask` for all servers at the same time, except those that are known to be late. Wait `wait_s` seconds,
        and return the answers that came until then, with what is known of the other servers.

        If a list is requested, `method` is its method: the client is notified later if it missed items of the list.
        `waiting.arrived` is called when a late server is up.

        Raises:
            Refused, StoreError: the request cannot be served, whatever the servers answer.
        """
        asked = {upstream.name: upstream for upstream in upstreams}
        answers, errors = await self._ask(
            {name: ask(upstream) for name, upstream in asked.items() if not self._is_late(upstream, asker.live)}
        )
        known: dict[str, Items] = {}
        missing: list[Missing] = []
        failures: dict[str, Exception] = {}
        for name, upstream in asked.items():
            if name in answers:
                continue
            error = errors.get(name)
            follow = self._follow(upstream, asker, error)
            follow.is_given_up = True
            if waiting is not None:
                follow.wait(waiting)
            if method:
                items = follow.given[method] = _known_items(upstream, asker, method)
                if items is not None:
                    known[name] = items
                    continue
            entry = follow.missing(name)
            missing.append(entry)
            if entry.retry_s is not None:
                failures[name] = error or UpstreamUnavailable(entry.reason)
        self._report(entry for entry in missing if not asked[entry.server].is_left_out)  # which the start has told
        return Gathered(answers, known, tuple(missing), failures)

    def replace(self, *, wait_s: float, read_s: float) -> None:
        """Apply other time limits, in seconds, from now on."""
        self.wait_s = wait_s
        self.read_s = read_s

    def connect(self, upstream: ConfiguredUpstream, asker: Asker, waiting: Waiting) -> None:
        """Open a server for a session in the background, and call `waiting.arrived` once the server is up. Until the
        server fails, answers to the session still wait for it."""
        self._follow(upstream, asker, None).wait(waiting)

    async def _ask(self, works: Mapping[str, Coroutine[Any, Any, T]]) -> tuple[dict[str, T], dict[str, Exception]]:
        """Run one request for each server: `works` has them by server. Return the answers that come in time, and the
        errors of the servers that cannot be asked, each by server. A server that is only slow is in neither."""
        if not works:
            return {}, {}
        tasks = {name: asyncio.create_task(work) for name, work in works.items()}
        try:
            await asyncio.wait(tasks.values(), timeout=self.wait_s)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.wait(tasks.values())
        raised = {name: error for name, task in tasks.items() if not task.cancelled() and (error := task.exception())}
        errors: dict[str, Exception] = {}
        for name, error in raised.items():
            if isinstance(error, (InvalidMessage, *UNREADABLE)):
                error = UpstreamUnavailable(
                    f"an answer of server {name!r}, or the request to it, cannot be read: {error}"
                )
            if not isinstance(error, UNAVAILABLE):
                raise error
            errors[name] = error
        return {n: task.result() for n, task in tasks.items() if not task.cancelled() and n not in raised}, errors

    def _is_late(self, upstream: ConfiguredUpstream, live: LiveSession | None) -> bool:
        """Return True if the server will probably not answer soon, so that no answer to a client should wait for it.
        `live` is the client's session; None for clients without one."""
        follow = self._follows.get((live, upstream.name))
        if follow is not None and not follow.is_late:
            follow = None
        if live is None or upstream.is_left_out:
            return follow is not None or upstream.is_failing
        if upstream.is_open_to(live):
            return follow is not None and not follow.is_paused
        return follow is not None or upstream.hangs_for_s >= self.wait_s

    def _report(self, missing: Iterable[Missing]) -> None:
        """Log the servers that are missing in answers. Each server and reason is logged once until the server is up. A
        server that is only starting is not logged as a warning. The reason is logged without the output of the server's
        process."""
        new: dict[str, list[str]] = {}
        for entry in missing:
            reason, reported = without_output_tail(entry.reason), self._reported.setdefault(entry.server, set())
            if reason not in reported and len(reported) < _MOST_REASONS:
                reported.add(reason)
                new.setdefault(reason, []).append(entry.server)
        for reason, servers in new.items():
            level = logging.INFO if reason == STARTING else logging.WARNING
            what = "server" if len(servers) == 1 else "servers"
            logger.log(level, "answers for all servers come without %s %s: %s", what, ", ".join(servers), reason)

    # -- following

    def _follow(self, upstream: ConfiguredUpstream, asker: Asker, error: Exception | None) -> _Follow:
        key = (asker.live, upstream.name)
        follow = self._follows.get(key)
        if follow is None:
            follow = _Follow()
            if upstream.is_left_out:
                follow.failures = upstream.failures
                follow.since = self._left_out.setdefault(upstream, follow.since)
                return follow
            if asker.live is None or not asker.live.ended:
                self._follows[key] = follow
                self._tasks.start(key, lambda: self._until_up(upstream, asker, follow))
        if asker.live is None and upstream.is_failing:
            follow.failures = upstream.failures
        elif error is not None:
            follow.failures.fail(str(error), monotonic())
        return follow

    async def _until_up(self, upstream: ConfiguredUpstream, asker: Asker, follow: _Follow) -> None:
        try:
            while True:
                try:
                    conversation = await _opened(upstream, asker)
                    changed = await self._catch_up(upstream, conversation, follow)
                    break
                except (*UNAVAILABLE, StoreError, Refused) as error:
                    follow.failures.fail(str(error), monotonic())
                follow.is_paused = True
                await _pause(upstream, asker.live, follow.failures.delay_s)
                follow.is_paused = False
        finally:
            if self._follows.get((asker.live, upstream.name)) is follow:
                del self._follows[asker.live, upstream.name]
        if self._reported.pop(upstream.name, None) is not None:
            logger.info("server %s is up", upstream.name)
        self._notify(asker.live, changed)

    async def _catch_up(self, upstream: ConfiguredUpstream, conversation: Conversation, follow: _Follow) -> set[str]:
        """Call those who wait for this server, which is up now, and request the lists that clients lack. Return the
        kinds of lists (such as tools) that differ from what the clients got. Store the received lists, because the
        server may be slow again."""
        kinds: set[str] = set()
        read: set[str] = set()
        while follow.waiting or follow.given.keys() - read:  # more may come meanwhile
            while follow.waiting:
                if not (waiting := follow.waiting[-1]).has_ended:
                    await waiting.arrived(upstream, conversation)  # if that fails, it waits for the next attempt
                follow.waiting = [each for each in follow.waiting if each is not waiting]
            for method in follow.given.keys() - read:
                async with asyncio.timeout(self.read_s):
                    offered = METHODS[method].is_offered(await upstream.capabilities())
                    items = await all_items(method, conversation) if offered else []
                conversation.lists.keep_late(method, items)
                read.add(method)
                if items != (follow.given[method] or []):
                    kinds.add(METHODS[method].kind)
        return kinds

    # -- notifying

    def _notify(self, live: LiveSession | None, kinds: Container[str]) -> None:
        changes = [row.name for row in CHANGES.values() if row.flag and row.kind in kinds]
        if live is not None and live.session.era != Era.MODERN:
            for change in changes:
                live.send_to_client(encode_notification(change, None))
            return
        for subscription in tuple(self._subscriptions if live is None else live.subscriptions):
            for change in changes:
                subscription.notify(change, {}, None)

    def changed(self, live: LiveSession, kinds: Container[str] = LIST_KINDS) -> None:
        """Notify the client of a session that its lists of these kinds (tools, prompts, resources) may have changed.
        The gateway calls this for changes of which no server notifies. A legacy client gets the notification on its
        standalone stream, a modern client on each open subscription that asked for it."""
        self._notify(live, kinds)
        for exchange in [each for each in live.exchanges if each.is_subscription]:
            for change in CHANGES.values():
                if change.flag and change.kind in kinds and exchange.listens_for(change.name):
                    frame = splice(encode(with_subscription_id({}, exchange.client_id)))
                    exchange.emit(encode_notification(change.name, frame))

    def forget_server(self, name: str) -> None:
        """Stop the background tasks for a server whose configuration has changed. Requests start new ones."""
        for key in [key for key in self._follows if key[1] == name]:
            if (task := self._tasks.running(key)) is not None:
                task.cancel()

    def add(self, subscription: SubscriptionFilter) -> None:
        """Add the subscription of a client's stream, so that the client is notified of changed lists once a late server
        is up."""
        self._subscriptions.add(subscription)

    def discard(self, subscription: SubscriptionFilter) -> None:
        """Remove the subscription of a client that has closed its stream."""
        self._subscriptions.discard(subscription)

    # -- ending

    def forget(self, live: LiveSession) -> None:
        """Stop the background tasks for a session that this replica has closed."""
        for key in [key for key in self._follows if key[0] is live]:
            if (task := self._tasks.running(key)) is not None:
                task.cancel()

    async def close(self) -> None:
        """Cancel all background tasks."""
        await self._tasks.close()


def _known_items(upstream: ConfiguredUpstream, asker: Asker, method: str) -> Items | None:
    """Return the items of a server's list that are known without asking the server; None if none are known. They come
    from an answer that was too late, or, for tools, from the gateway's own probe. `method` names the list."""
    conversation = upstream.any_conversation(asker.live) if asker.live is not None else None
    if asker.live is None and (era := upstream.era_now(asker.era)) is not None:
        conversation = upstream.sessionless(era)
    lists = None if conversation is None else conversation.known_lists
    if lists is not None and method in lists.late:
        return lists.late[method]
    tools = upstream.probed_tools if method == "tools/list" and upstream.has_answered else None
    return None if tools is None else tools.listed


async def _opened(upstream: ConfiguredUpstream, asker: Asker) -> Conversation:
    """Wait until the server is up and a conversation with it is open. Return the conversation: that of the client's
    session, or if it has no session, the one that is for no session."""
    if asker.live is None:
        await upstream.answered.wait()
        conversation = upstream.sessionless(await upstream.era_for(asker.era))
    else:
        era = await upstream.era_in(asker.live, asker.era, asker.correlation)
        conversation = upstream.conversation(asker.live, era, asker.correlation, asker.declaration)
    await conversation.ready()
    return conversation


async def _pause(upstream: ConfiguredUpstream, live: LiveSession | None, delay_s: float) -> None:
    """Wait until the next attempt to reach the server is due: `delay_s` seconds. If the server fails for all sessions,
    wait instead until the gateway's own probe has reached it, or until the session has a link to it."""
    while True:
        if upstream.is_failing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await upstream.answered.wait()
        else:
            await asyncio.sleep(delay_s)
        if not upstream.is_failing or (live is not None and upstream.is_open_to(live)):
            return
        delay_s = min(MOST_S, 2 * delay_s)
