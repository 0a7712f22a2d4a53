"""Run a gateway process: open the store, join the other replicas, serve, and end every server process."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from time import monotonic, time
from typing import Final

from gateway.calls.server_start_failures import with_output_tail
from gateway.config.settings import ConfigurationError
from gateway.observability.tracing import flush
from gateway.sandbox.sandbox_checks import log_sandboxes, refuse_cgroup, refuse_open, refuse_unheld, server_sandboxes
from gateway.serving.composition import Parts
from gateway.serving.hidden_process import hide, why_in_sight
from gateway.sessions.lifecycle import ENDED
from gateway.sessions.ownership_reconciliation import Reconciliation
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.server_facts import ServerFacts
from gateway.upstreams.unmatched_patterns import compare, compare_late
from session_store import Backend, StoreError, StoreUnavailable
from session_store.connect import shown, store_place
from transports.background_tasks import Tasks

logger = logging.getLogger(__name__)

SWEEP_EVERY_S: Final = 1.0
"""Seconds between two sweeps, which remove ended sessions and renew those in use. Sweeps are more frequent if sessions
have a short time to live."""

_EVERY_S: Final = 1.0
_TASKS_STORED_WITHIN_S: Final = 5.0
_LOGGED_EVERY_S: Final = 60.0

_EARLY: Final = 0.1
"""While memory is short, an idle process is ended after this share of its idle timeout."""

_PROBED_WITHIN_S: Final = 10.0
"""The maximum seconds that the start waits for servers whose lists are compared with the policy."""


class StoreWatch:
    """Remember whether the store at `url` answers, and log when that changes.

    `fault`: why the store does not answer; empty if it does. `place`: a text that says where the store is, and of a
    file, whether the file was new before the store was opened.
    """

    def __init__(self, backend: Backend, url: str) -> None:
        self._backend = backend
        self._url = shown(url)
        self.place = store_place(url)
        self.fault = ""

    def opened(self) -> None:
        """Log the path of the store's file, if the store is SQLite. Called once the store is open. The path matters: if
        the gateway is started in another folder, the same relative URL means another file."""
        if self.place != self._url:
            logger.info("sessions are kept in %s", self.place)

    async def check(self) -> None:
        """Ping the store, and record in `fault` whether it answers."""
        try:
            await self._backend.ping()
            self.record_answer()
        except StoreUnavailable as error:
            self.record_failure(error)

    def record_answer(self) -> None:
        if self.fault:
            logger.info("the session store %s answers again", self._url)
        self.fault = ""

    def record_failure(self, error: StoreUnavailable) -> None:
        """Set `fault` to the text of `error`, because the store has not answered. Log the error unless `fault` was set
        already."""
        if not self.fault:
            logger.warning(
                "the session store %s does not answer: %s; clients get 503 with Retry-After until it does",
                self._url,
                error,
            )
        self.fault = str(error)


def _refuse_failing(upstreams: Iterable[ConfiguredUpstream]) -> None:
    """Raise `ConfigurationError` if a server is left out or has failed to start."""
    failing = [upstream for upstream in upstreams if upstream.is_failing]
    if failing:
        states = [(upstream.name, upstream.state) for upstream in failing]
        raise ConfigurationError(
            "\n".join(f"server {name}: {with_output_tail(one.reason, one.output_tail)}" for name, one in states)
        )


class Lifecycle:
    """Start and stop the parts of a gateway, and run their periodic work."""

    def __init__(self, parts: Parts, *, strict: bool = False) -> None:
        self._parts = parts
        self._strict = strict  # refuse to start without one of the servers
        self.store = StoreWatch(parts.foundation.backend, parts.foundation.settings.gateway.store)
        self._sweep_every_s = min(SWEEP_EVERY_S, parts.foundation.settings.gateway.shortest_ttl_s / 3)

    async def try_store(self) -> None:
        """Open the store and close it again. Raises `ConfigurationError` if it cannot be used."""
        await self._open_store()
        await self._parts.foundation.backend.close()

    async def _open_store(self) -> None:
        try:
            await self._parts.foundation.backend.open()
        except StoreError as error:
            raise ConfigurationError(f"gateway.store: {error}") from None

    @contextlib.asynccontextmanager
    async def running(self, *, asks_servers: bool = True) -> AsyncIterator[None]:
        """Serve inside the block. At its end, end all started servers. If the block ends without an exception, first
        wait for working tasks. `asks_servers`: probe the servers at the start for their era and lists.

        Raises:
            ConfigurationError: the store or the advertised address cannot be used, the policy does not fit the servers'
                lists, a required sandbox does not hold, or a sandbox grants files of the gateway. If the gateway is
                strict: a server cannot be used.
        """
        base, servers, http = self._parts.foundation, self._parts.servers, self._parts.http
        hide()  # an app that embeds the gateway has not closed its process to the servers yet
        if any(entry.settings.kind == "command" for entry in servers.upstreams) and (why := why_in_sight()):
            logger.warning("%s", why)
        delegation = servers.fork_server.delegation()
        found = server_sandboxes(servers.sandboxes, delegation=delegation)
        refuse_cgroup(servers.fork_server.cgroup, delegation)
        refuse_unheld(found)
        refuse_open(found, base.settings)
        log_sandboxes(found, delegation)
        for upstream in servers.upstreams:
            for fault in upstream.settings.faults:
                logger.error("server %s is left out: %s", upstream.name, fault, extra={"server": upstream.name})
        await self._open_store()
        self.store.opened()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(base.backend.close)
            stack.push_async_callback(servers.link_resources.folders.close)
            if any(entry.settings.kind == "command" for entry in servers.upstreams):
                await servers.link_resources.folders.clean()
            stack.enter_context(base.loop_watch.running())
            await stack.enter_async_context(servers.fork_server)
            stack.push_async_callback(servers.packages.close)
            if http.membership is not None:
                await stack.enter_async_context(http.membership.joined())
            asked = [upstream for upstream in servers.upstreams if asks_servers and not upstream.is_left_out]
            probes = {upstream.name: upstream.start_probe() for upstream in asked}
            upkeep = self._start_upkeep()
            try:
                if asks_servers:
                    await self._first_answers(probes)
                    if self._strict:
                        _refuse_failing(servers.upstreams)
                    options = base.settings.gateway
                    await compare(servers.upstreams, options, servers.tool_calls)
                    upkeep.spawn(compare_late(servers.upstreams, options, servers.tool_calls))
                await self.store.check()
                base.state.start()
                yield
                await self._parts.drain.tasks_end()
            finally:
                base.state.stop()
                await upkeep.close()
                await self._release()
                if base.request_log.tracing is not None:
                    await flush()

    async def _first_answers(self, probes: Mapping[str, asyncio.Task[ServerFacts]]) -> None:
        """Wait until the probes have ended, for at most `limits.list_timeout_s` seconds and never more than 10. If the
        settings refuse patterns of the policy that match nothing, wait up to 10 s in all for those servers whose lists
        are compared with patterns."""
        options, servers = self._parts.foundation.settings.gateway, self._parts.servers.upstreams
        soon_s = min(options.limits.list_timeout_s, _PROBED_WITHIN_S)
        if probes:
            await asyncio.wait(probes.values(), timeout=soon_s)
        refuses = options.policy.unmatched_patterns == "refuse"
        compared = [probes[each.name] for each in servers if refuses and each.unreviewed and each.name in probes]
        if compared:
            await asyncio.wait(compared, timeout=_PROBED_WITHIN_S - soon_s)

    def _start_upkeep(self) -> Tasks:
        """Start the periodic work as background tasks, and return the tasks. They run until they are closed."""
        tasks, membership = Tasks("gateway"), self._parts.http.membership
        base, made = self._parts.foundation, self._parts.http.tasks
        endless: dict[str, Callable[[], Awaitable[None]]] = {
            "timelines and figures cannot be written": base.activity.upkeep,
            "ended sessions cannot be removed": self._sweep,
            "the records of working tasks cannot be renewed": partial(_each_second, made.table.renew),
            "the tasks of replicas that are gone cannot be recovered": partial(_each_second, made.recovery.sweep),
            "former servers cannot be ended": partial(_each_second, self._parts.servers.former.sweep),
            "the memory of server processes cannot be read": partial(_each_second, self._watch_memory),
            "what other replicas end cannot be followed": self._follow_ends,
            "metrics cannot be summed up each second": self._end_seconds,
        }
        if membership is not None:
            endless["the lease of this replica cannot be renewed"] = membership.lease_renewal.keep_renewing
            endless["the way from other replicas to this one cannot be checked"] = membership.reachability.keep_checking
            endless["the queries of other replicas cannot be answered"] = self._parts.operating.queries.listen
        if base.cluster is not None:
            comparison = Reconciliation(base.cluster, base.backend.directory, base.live)
            endless["sessions cannot be compared with the store"] = comparison.keep_comparing
        tasks.spawn(self._end_unused_grants())
        for failed, work in endless.items():
            tasks.spawn(_kept_running(work, failed))
        return tasks

    async def _end_unused_grants(self) -> None:
        """Remove the stored consents of people that no session can use under the present configuration. Do nothing if
        another replica has a newer configuration, because people may have consented under the newer one."""
        base = self._parts.foundation
        if base.cluster is None or not base.cluster.configuration.is_outdated:
            secrets, rights = base.settings.gateway.secrets, self._parts.http.tasks.rights
            await self._parts.servers.consented.end_unused(secrets, rights.is_known)

    async def _watch_memory(self) -> None:
        """Measure the memory of server processes. If memory is short, end prestarted processes, and processes that were
        idle for a tenth of their idle timeout."""
        memory = self._parts.foundation.memory
        await memory.sample()
        if not memory.is_short:
            return
        self._parts.resolution.prestart.drop()
        for live in self._parts.foundation.live:
            for conversation in live.conversations.values():
                if conversation.is_process:
                    conversation.links.stop_early(_EARLY)

    async def _release(self) -> None:
        """End the servers and release this replica's sessions. A durable store keeps the sessions."""
        base, sessions = self._parts.foundation, self._parts.sessions.lifecycle
        self._parts.http.tasks.table.stop()
        with contextlib.suppress(StoreUnavailable):
            await sessions.keep_alive()
            await base.audit.flush()
        held = [live.session for live in base.live]
        sessions.close_all()
        await asyncio.gather(
            sessions.settled(),
            self._parts.servers.late.close(),
            *(upstream.close() for upstream in self._parts.servers.upstreams),
            self._parts.servers.former.close(),
            self._parts.sessions.records.settled(),
            return_exceptions=True,
        )
        await self._parts.servers.consented.settled()
        tasks = self._parts.http.tasks
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TASKS_STORED_WITHIN_S):
                await tasks.recovery.settled()
                await tasks.table.settled()
        with contextlib.suppress(StoreUnavailable):
            await base.audit.flush()  # the events of the tasks
        base.request_log.end_second(time())
        await base.activity.write()
        await self._parts.resolution.prestart.close()
        await base.quotas.settled()
        if base.cluster is not None:
            with contextlib.suppress(StoreUnavailable):
                await asyncio.gather(*(base.cluster.release(session) for session in held))
                await base.cluster.leave()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_every_s)
            try:
                await self._parts.sessions.lifecycle.sweep()
                self._parts.resolution.prestart.sweep()
                await self._parts.resolution.returns.tell()
                self.store.record_answer()
            except StoreUnavailable as error:
                self.store.record_failure(error)

    async def _end_seconds(self) -> None:
        """Run forever: once a second, have metrics, request log and activity sum up the second that has passed."""
        loop, base = asyncio.get_running_loop(), self._parts.foundation
        while True:
            began = loop.time()
            await asyncio.sleep(1.0)
            base.metrics.record_loop_lag(loop.time() - began - 1.0)
            base.request_log.end_second(time())
            base.activity.end_second()

    async def _follow_ends(self) -> None:
        while True:
            try:
                bus, lifecycle = self._parts.foundation.backend.bus, self._parts.sessions.lifecycle
                async with bus.subscribed(ENDED, lifecycle.ended_elsewhere):
                    await asyncio.Event().wait()
            except StoreUnavailable:
                await asyncio.sleep(self._sweep_every_s)


async def _each_second(step: Callable[[], Awaitable[None] | None]) -> None:
    while True:
        await asyncio.sleep(_EVERY_S)
        with contextlib.suppress(StoreUnavailable):  # `_sweep` logs it
            if (result := step()) is not None:
                await result


async def _kept_running(work: Callable[[], Awaitable[None]], failed: str) -> None:
    """Run endless work. If an exception ends the work, log the exception with the text `failed`, and run the work
    again, `_EVERY_S` seconds after its last start at the earliest. Otherwise, a replica that no longer renews its lease
    would serve nothing until a person restarts it.

    An exception that equals the last one is logged again only after `_LOGGED_EVERY_S` seconds.
    """
    last, logged = "", 0.0
    while True:
        began = monotonic()
        try:
            await work()
        except Exception as error:
            if last != (last := repr(error)) or monotonic() - logged >= _LOGGED_EVERY_S:
                logger.exception(failed)
                logged = monotonic()
        await asyncio.sleep(max(0.0, began + _EVERY_S - monotonic()))
