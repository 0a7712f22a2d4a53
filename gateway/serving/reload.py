"""Give a running gateway another configuration, whole or not at all (docs/adr/0043-reload.md).

All that can fail is done first: the settings are validated, new servers are made, their sandboxes are checked, and they
are asked for their lists. Then the parts get their settings in one turn of the event loop, in which no request runs.
Last, the decisions that connections remember are made void, and clients are told that lists have changed.
"""

import asyncio
import contextlib
import logging
import signal
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from gateway.config.auth import API_KEY_ISSUER
from gateway.config.configuration_difference import KEPT, Difference, applied, difference, digest
from gateway.config.configuration_errors import ConfigurationError
from gateway.config.endpoint_paths import ALL, path_of
from gateway.config.settings import Settings
from gateway.config.tools_lock import ToolsLock
from gateway.config.upstreams import OBJECT, UpstreamSettings
from gateway.policy.access_policy import Policy
from gateway.policy.tool_policy import ToolPolicy
from gateway.protocol.input_schemas import Schemas
from gateway.protocol.subscription_filter import ENDED
from gateway.sandbox.private_files import own_files
from gateway.sandbox.sandbox_checks import log_sandboxes, refuse_open, refuse_unheld, server_sandboxes
from gateway.sandbox.sandboxes_by_trust import SandboxesByTrust
from gateway.serving.build_servers import any_is_required, sandboxes_by_name, with_objects
from gateway.serving.build_sessions import is_usable_for
from gateway.serving.composition import Parts
from gateway.serving.workers import has_terminal
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.unmatched_patterns import compare
from session_store import StoreUnavailable
from transports.background_tasks import Tasks
from transports.jsonrpc import Message

logger = logging.getLogger(__name__)

_ANSWER_S: Final = 10.0
"""The maximum seconds that a reload waits for the first answers of new servers."""

_READ_S: Final = 15.0
_WATCH_EVERY_S: Final = 1.0

_ENDED: Final = "the credential that opened this stream is not valid any more"


class Reload:
    """Replace the configuration of a running gateway, one reload at a time. `read` reads the configuration again from
    the places that the start has read; None if the embedding program has made the settings."""

    def __init__(self, parts: Parts, read: Callable[[], Settings] | None = None) -> None:
        self._parts = parts
        self._read = read
        self._settings = parts.foundation.settings
        # The console and its paths are made at the start, if there is a way to sign in.
        self._restart = KEPT if parts.operating.access.is_open else KEPT | {"admin.keys"}
        self._turn = asyncio.Lock()

    @property
    def settings(self) -> Settings:
        return self._settings

    async def again(self) -> Difference:
        """Load the configuration again from the places of the start, and apply it. Returns and raises as `to`."""
        if self._read is None:
            raise ConfigurationError("the program that embeds this gateway has made its configuration")
        return await self.to(self._read)

    async def to(self, read: Callable[[], Settings]) -> Difference:
        """Call `read` in a thread, and apply the configuration that it returns. Return what has changed, and what only
        a restart changes. Log and audit both.

        Raises:
            ConfigurationError: the configuration cannot be read or served. Nothing has changed.
        """
        async with self._turn:
            try:
                if not self._parts.foundation.state.is_running:
                    raise ConfigurationError("the gateway is not running")
                found = await self._to(await _read_by(read))
            except ConfigurationError as error:
                lines = str(error).splitlines()
                for line in lines:
                    logger.error("the configuration is not loaded, and nothing has changed: %s", line)
                self._parts.foundation.audit.record("operated", reason=f"a configuration was refused: {lines[0]}")
                raise
            logger.info("the configuration was loaded again: %s", found.text)
            if not found.is_empty:
                self._parts.foundation.audit.record("operated", reason=f"the configuration changed: {found.text}")
            return found

    async def _to(self, settings: Settings) -> Difference:
        old, new = self._settings, applied(self._settings, settings, self._restart)
        found = difference(old, settings, self._restart)
        if found.is_empty:
            await self._accept(settings, new)  # the text may differ all the same, and is what replicas compare
            return found
        servers = self._parts.servers
        if own_files(new.gateway) != own_files(old.gateway):
            exposed = await asyncio.to_thread(self._exposed, found, new)
            found = replace(found, changed=(*found.changed, *exposed))
        fresh = {name: new.mcpServers[name] for name in (*found.added, *found.changed)}
        if taken := fresh.keys() & set(self._objects):
            raise ConfigurationError(f"mcpServers.{min(taken)}: the program that embeds the gateway serves this name")
        sandboxes = await asyncio.to_thread(self._sandboxes, fresh, new)
        made = servers.make(fresh, sandboxes)
        try:
            await self._ask(made, new)
            # Before it decides: no replica with an older one claims what it has decided.
            await self._accept(settings, new)
            if not self._parts.foundation.state.is_running:
                raise ConfigurationError("the gateway stops")
        except BaseException:
            await asyncio.gather(*(each.close() for each in made.values()))
            raise
        self._apply(old, new, found, made, sandboxes)
        is_known = self._parts.http.tasks.rights.is_known
        await self._parts.servers.consented.end_unused(new.gateway.secrets, is_known)
        return found

    def _exposed(self, found: Difference, new: Settings) -> list[str]:
        """Return the names of the unchanged servers whose sandbox lets them read a file that is private by the new
        settings. Processes of these servers may be running already."""
        private, sandboxes = own_files(new.gateway), self._parts.servers.sandboxes
        kept = sandboxes.keys() & new.mcpServers.keys() - {*found.added, *found.changed}
        return sorted(name for name in kept if sandboxes[name].opens(private))

    async def _accept(self, settings: Settings, new: Settings) -> None:
        """Compute again which files each sandbox opens. Record in the store that this replica now has the configuration
        `settings`. `new`: the present settings with those changes from `settings` that a reload can apply."""
        for each in self._parts.servers.sandboxes.values():
            await asyncio.to_thread(each.find_again, own_files(new.gateway))
        cluster = self._parts.foundation.cluster
        if cluster is not None:
            cluster.configuration.use(await asyncio.to_thread(digest, settings))
            with contextlib.suppress(StoreUnavailable):  # the next renewal of the lease tells it
                await cluster.renew_configuration()

    def _sandboxes(self, fresh: Mapping[str, UpstreamSettings], new: Settings) -> dict[str, SandboxesByTrust]:
        """Return the sandboxes of the new and changed servers `fresh`, by name. Raises `ConfigurationError` if one that
        is required does not hold, or if one opens private files or lets a server write the packages from which other
        processes start. If the settings `new` have other private files, the sandboxes of the other servers are checked
        for that, too."""
        made = sandboxes_by_name(fresh, new.gateway)
        walled = {name: made[name] for name, entry in fresh.items() if entry.kind == "command"}
        delegation = self._parts.servers.fork_server.delegation()
        found = server_sandboxes(walled, delegation=delegation)
        refuse_unheld(found)
        refuse_open(found, new)
        if own_files(new.gateway) != own_files(self._settings.gateway):  # kept servers may grant the new files
            kept = {n: entry for n, entry in new.mcpServers.items() if n not in fresh and entry.kind == "command"}
            refuse_open(server_sandboxes(sandboxes_by_name(kept, new.gateway), delegation=delegation), new)
        log_sandboxes(found, delegation)
        return made

    async def _ask(self, made: Mapping[str, ConfiguredUpstream], new: Settings) -> None:
        """Probe the new servers `made`, and wait for their first answers for some seconds. Then compare the lists of
        all servers with the patterns in the settings `new`. Raises `ConfigurationError` if a pattern matches nothing
        and these settings refuse such patterns."""
        for upstream in made.values():
            upstream.log_first_answer()
        probes = [upstream.start_probe() for upstream in made.values() if not upstream.is_left_out]
        if probes:
            await asyncio.wait(probes, timeout=min(new.gateway.limits.list_timeout_s, _ANSWER_S))
        kept = [each for each in self._parts.servers.upstreams if each.name in new.mcpServers and each.name not in made]
        await compare([*kept, *made.values()], new.gateway, self._calls(new))

    def _calls(self, new: Settings) -> ToolPolicy:
        """Return the object that checks calls of tools by the settings `new`, which are not in effect yet. With it,
        `_ask` compares patterns with lists."""
        base, policy = self._parts.foundation, new.gateway.policy
        decisions = Policy(policy, with_objects(new.mcpServers, self._objects))
        unapproved = self._parts.servers.tool_calls.unapproved  # it tells of what is in effect
        return ToolPolicy(decisions, base.audit, Schemas(), policy, base.facts, unapproved)

    @property
    def _objects(self) -> list[str]:
        """Return the names of the servers that the embedding program has passed in: no reload changes them."""
        return [each.name for each in self._parts.servers.upstreams if each.settings is OBJECT]

    # -- without `await`: no request runs in between

    def _apply(
        self,
        old: Settings,
        new: Settings,
        found: Difference,
        made: Mapping[str, ConfiguredUpstream],
        sandboxes: Mapping[str, SandboxesByTrust],
    ) -> None:
        before = {upstream.name: upstream for upstream in self._parts.servers.upstreams}
        self._settings = new
        self._replace_decisions(old, new)
        if made or found.removed:
            self._replace_servers(new, {**before, **made}, sandboxes)
        for upstream in self._parts.servers.upstreams:
            upstream.limit(new.gateway.limits)
        self._parts.operating.operations.replace(new)
        self._parts.operating.environments.replace(new)
        # End all decisions that connections remember, here and on the way to other replicas.
        for live in self._parts.foundation.live:
            live.changed()
        if self._parts.http.forwarder is not None:
            self._parts.http.forwarder.end_paths()
        former = {name: before[name] for name in (*found.changed, *found.removed)}
        for name, upstream in former.items():
            self._parts.servers.late.forget_server(name)
            self._parts.servers.prestarted.forget_server(name)
            self._parts.servers.former.add(upstream, made.get(name))
        if former:
            self._parts.resolution.prestart.drop()
        keys = new.gateway.api_keys
        if lost := {name for name, digests in old.gateway.api_keys.items() if set(digests) - set(keys.get(name, ()))}:
            self._end_streams(lost)
        if made or found.removed or "policy" in {part.split(".")[1] for part in found.settings}:
            for live in self._parts.foundation.live:  # their lists may have changed
                self._parts.servers.late.changed(live)

    def _replace_decisions(self, old: Settings, new: Settings) -> None:
        parts, options, policy = self._parts, new.gateway, new.gateway.policy
        base, servers = parts.foundation, parts.servers
        servers.policy.replace(policy, with_objects(new.mcpServers, self._objects))
        servers.tool_calls.replace(policy)
        servers.admission.replace(policy)
        for upstream in servers.upstreams:
            if upstream.probed_tools is not None:
                servers.tool_calls.approved(upstream.name, "tools", upstream.probed_tools.listed)  # tells of the others
        servers.credentials.replace(options.secrets)
        parts.sessions.rules.replace(
            policy.rules,
            trust_announced=policy.trust_announced_workspace,
            read_only=policy.read_only,
            is_usable=is_usable_for(new),
        )
        if old.gateway.rated_policy != options.rated_policy:
            base.rates.replace(options.rated_policy)
        base.quotas.replace(policy, options.longest_age_s)
        parts.http.intake.replace(options.limits)
        servers.late.replace(wait_s=options.limits.list_timeout_s, read_s=options.limits.start_timeout_s)
        base.memory.replace(options.limits.total_memory_mb)
        parts.http.body_budget.replace(base.memory.bodies)
        parts.callers.identity.replace_keys(options.api_keys)
        parts.callers.identity.keep_tokens(wanted=options.exchanges_tokens)
        parts.http.tasks.rights.replace_keys(options.api_keys)
        parts.operating.access.replace_keys(options.admin.keys)

    def _replace_servers(
        self, new: Settings, known: Mapping[str, ConfiguredUpstream], sandboxes: Mapping[str, SandboxesByTrust]
    ) -> None:
        """Put the servers of the configuration `new`, in its order, behind their paths. `known`: the earlier and the
        new servers, by name. `sandboxes`: those of the new servers. The path of a removed server stays, with no
        server behind it, because requests to this path may be under way."""
        servers, http = self._parts.servers, self._parts.http
        objects = [each for each in servers.upstreams if each.settings is OBJECT]
        servers.upstreams[:] = [*(known[name] for name in new.mcpServers), *objects]
        for name in [name for name in servers.sandboxes if name not in new.mcpServers]:
            del servers.sandboxes[name]
        servers.sandboxes.update({n: s for n, s in sandboxes.items() if new.mcpServers[n].kind == "command"})
        servers.fetch_walls.require(required=any_is_required(sandboxes.values()))
        by_path = {ALL: servers.upstreams, **{path_of(each.name): [each] for each in servers.upstreams}}
        for path, endpoint in servers.endpoints.items():
            endpoint.visible.replace(by_path.get(path, []))
        for path in by_path.keys() - servers.endpoints.keys():
            servers.endpoints[path] = servers.serving(by_path[path])
            http.add(path)

    def _end_streams(self, names: Iterable[str]) -> None:
        """End the event streams and subscriptions of the principals `names`, which have lost an API key: a client with
        the lost key may have opened them."""
        for live in self._parts.foundation.live:
            principal = live.session.principal
            if principal.issuer != API_KEY_ISSUER or principal.subject not in names:
                continue
            live.end_streams()
            for exchange in [each for each in live.exchanges if each.is_subscription]:
                exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(ENDED)))
                exchange.cancel(_ENDED)
        if self._parts.http.forwarder is not None:
            self._parts.http.forwarder.end_streams()


async def _read_by(read: Callable[[], Settings]) -> Settings:
    """Call `read` in a thread, and return the configuration that it returns. Raises `ConfigurationError` if the
    configuration cannot be read, or not in time, as in a network folder that does not answer."""
    try:
        async with asyncio.timeout(_READ_S):
            return await asyncio.to_thread(read)
    except TimeoutError:
        raise ConfigurationError(f"the configuration cannot be read within {_READ_S:.0f} s") from None


# -- when to reload


def state_of(files: Iterable[Path]) -> tuple[int, ...]:
    """Return numbers that change with the content of a file, or when a symlink gets another target. Return an empty
    tuple if one of the files is missing or no regular file, as for a moment while the file is replaced."""
    state: list[int] = []
    for file in files:
        try:
            found = file.stat()
        except OSError:
            return ()
        if not stat.S_ISREG(found.st_mode):
            return ()
        state += (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return tuple(state)


class ReloadTriggers:
    """Load the configuration again for each SIGHUP, and when its file or the lock file has changed. Signals during a
    reload cause one more reload.

    `reload` loads the configuration once, or raises `ConfigurationError`. `file` is the configuration's file; None: no
    file is watched. `lock` returns the lock in effect. `read_from` is the state of `file` (`state_of`) before the start
    read it, so that a change since then is loaded, too.

    Both files are looked at each second. A changed file is loaded once it has not changed for a second: some editors
    write it in pieces.
    """

    def __init__(
        self,
        reload: Callable[[], Awaitable[object]],
        file: Path | None,
        lock: Callable[[], ToolsLock | None],
        read_from: tuple[int, ...] = (),
    ) -> None:
        self._reload_once = reload
        self._file = file
        self._lock = lock
        self._loaded = (*read_from, *state_of(self._locks())) if read_from else state_of(self._files())
        self._had_terminal = has_terminal()
        self._is_wanted = False
        self._tasks = Tasks("reload")
        signal.signal(signal.SIGHUP, self._too_early)  # the signal must not end the process until the loop runs

    def _files(self) -> list[Path]:
        return [*([] if self._file is None else [self._file]), *self._locks()]

    def _locks(self) -> list[Path]:
        lock = self._lock()
        return [] if lock is None else [Path(lock.file)]

    def _too_early(self, *_: object) -> None:
        self._is_wanted = True

    def start(self) -> None:
        """Begin to watch the files and to handle SIGHUP, in the running event loop. If SIGHUP has come since this
        object was made, start a reload at once."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hung_up)
        if self._file is not None:
            self._tasks.spawn(self._watch())
        if self._is_wanted:
            self._start()

    def _hung_up(self) -> None:
        if self._had_terminal and not has_terminal():
            logger.info("the terminal is closed")
            signal.raise_signal(signal.SIGTERM)
            return
        self._start()

    def _start(self) -> None:
        self._is_wanted = True
        self._tasks.start("reload", self._reload)

    async def _watch(self) -> None:
        before = self._loaded
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            now = await asyncio.to_thread(state_of, self._files())  # a folder in a network may not answer
            if now and now == before and now != self._loaded:
                self._start()
            before = now

    async def _reload(self) -> None:
        while self._is_wanted:
            self._is_wanted = False
            self._loaded = await asyncio.to_thread(state_of, self._files())  # before it is read: a later change counts
            try:
                await self._reload_once()
            except ConfigurationError:
                pass  # it is logged
            except Exception:
                logger.exception("the configuration could not be loaded again")
