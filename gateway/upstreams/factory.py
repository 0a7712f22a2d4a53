"""Build a `ConfiguredUpstream` for each configured server: its transport, and the objects that use it."""

import importlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.calls.lifecycles import Deadlines
from gateway.config.configuration_errors import missing_extra
from gateway.config.limits import SUSPENDED_S, LimitSettings
from gateway.config.settings import ConfigurationError
from gateway.config.upstreams import OBJECT, UpstreamSettings
from gateway.context.principal_secrets import is_template, without_templates
from gateway.errors import StartRefused, left_out
from gateway.protocol.methods import REPEATABLE
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.link_env_and_headers import SessionResources, secrets_in_command
from gateway.upstreams.link_opener import SessionRecorder, UpstreamLinks
from gateway.upstreams.result_cache import ResultCache
from gateway.upstreams.server_facts import KnownFacts
from gateway.upstreams.server_lists import ServerLists
from gateway.upstreams.server_probe import Probe
from gateway.upstreams.shared_conversations import SharedConversations
from session_store import Context
from session_store.redaction import output_scrubber
from transports.upstream.child_process import Command
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.stdio import StdioUpstream
from transports.upstream_port import ConnectOptions, Link, LinkEvents, Upstream

UNRETURNED_STOP_S: Final = 300.0
"""Seconds without calls after which a process is stopped if its session's client has sent only one request."""

CACHED_BYTES: Final = 8 << 20
"""Maximum number of bytes of cached results for each server: lists, and resources that were read."""


class _LeftOut:
    """The upstream of a server whose configuration has faults: opening a link to it always fails."""

    def __init__(self, name: str) -> None:
        self.refused = left_out(name)

    async def connect(self, given: ConnectOptions, events: LinkEvents) -> Link:
        raise StartRefused(self.refused)

    async def close(self) -> None:
        pass


_GATEWAY_AWAY: Final = ". Start the gateway at {url} (`mcp-session-gateway run`), or give its URL with --url"


@dataclass(eq=False, repr=False)
class UpstreamFactory:
    """Build the `ConfiguredUpstream` of each server."""

    limits: LimitSettings
    fork_server: ForkServer
    _: KW_ONLY
    gateway: str = ""
    """The name of this gateway in the `Via` header of requests to URLs."""
    resources: Callable[[str, UpstreamSettings], SessionResources]
    """Builds the `SessionResources` of the server with this name and these settings."""
    records: SessionRecorder
    permits: Callable[[Context, str, frozenset[str]], frozenset[str]]
    """Gets a context, a server's name and resource URIs, and returns those to which such sessions may subscribe."""
    has_lock: bool = False
    """True: the operator has a lock file of approved items."""

    def of_entry(self, name: str, settings: UpstreamSettings) -> ConfiguredUpstream:
        """Return the upstream of an entry of the configuration.

        Raises:
            ConfigurationError: the entry's `in_process` object cannot be loaded or is not a server.
        """
        return self._make(name, settings, self._transport(name, settings))

    def of_object(self, name: str, server: Any) -> ConfiguredUpstream:
        """Return the upstream of a server object in this process. Raises `ConfigurationError`: `server` is no server
        object."""
        return self._make(name, OBJECT, _in_process(f"servers[{name!r}]", name, server))

    def of_left_out(self, name: str, settings: UpstreamSettings) -> ConfiguredUpstream:
        """Return the upstream of a server whose configuration entry has faults. Opening a link to it fails with an
        error that tells clients that the server is missing, and refers operators to the log."""
        return self._make(name, settings, _LeftOut(name))

    def _make(self, name: str, settings: UpstreamSettings, upstream: Upstream) -> ConfiguredUpstream:
        # A gateway lists the tools of a session. It would start processes for the probe, in the probe's era.
        known = KnownFacts(has_tools=not settings.is_gateway)
        limits, idle_stop_s = self.limits, settings.idle_stop_s
        # Only processes stop if their client has not come back: other links cost too little for a restart.
        unreturned_stop_s = UNRETURNED_STOP_S if settings.kind == "command" and idle_stop_s is None else idle_stop_s
        deadlines = Deadlines(
            start_s=limits.start_timeout_s,
            noise_s=limits.noise_timeout_s,
            call_s=limits.call_timeout_s,
            suspended_s=SUSPENDED_S,
            idle_stop_s=idle_stop_s or None,
            unreturned_stop_s=unreturned_stop_s or None,
        )
        links = UpstreamLinks(
            name,
            upstream,
            self.resources(name, settings),
            settings=settings,
            records=self.records,
            permits=lambda context, uris: self.permits(context, name, uris),
            known=known,
        )
        results = ResultCache(CACHED_BYTES)
        shared = SharedConversations(links, deadlines, results.changed)
        probe = Probe(
            name,
            known,
            shared,
            start_s=limits.start_timeout_s,
            is_remote=settings.is_remote,
            results=results,
        )
        if isinstance(upstream, _LeftOut):
            probe.give_up(str(upstream.refused))
        return ConfiguredUpstream(
            settings,
            upstream,
            links,
            lists=ServerLists(
                name,
                timeout_s=limits.start_timeout_s,
                probed=known.tools,
                on_listed=known.listed,
                on_outdated=known.changed,
                results=results,
                has_lock=self.has_lock,
            ),
            known=known,
            shared=shared,
            probe=probe,
            deadlines=deadlines,
        )

    def _transport(self, name: str, settings: UpstreamSettings) -> Upstream:
        limits = self.limits
        if settings.in_process:
            return _in_process(f"mcpServers.{name}.in_process", name, load_object(name, settings.in_process))
        if settings.is_remote:
            from transports.upstream.streamable_http import HttpUpstream  # loads an HTTP client

            return HttpUpstream(
                name=name,
                url=settings.url,
                headers=without_templates(settings.headers),
                max_event_bytes=limits.line_bytes,
                gateway=self.gateway,
                repeatable=REPEATABLE,
                advice=_GATEWAY_AWAY.format(url=settings.url) if settings.is_gateway else "",
            )
        return StdioUpstream(
            name=name,
            command=Command(
                argv=settings.argv,
                env=without_templates(settings.env),
                cwd=settings.cwd,
            ),
            fork_server=self.fork_server,
            max_line_bytes=limits.line_bytes,
            grace_s=limits.shutdown_grace_s,
            scrubber=partial(
                output_scrubber,
                [name for name, value in settings.env.items() if is_template(value)],
                secrets=secrets_in_command(settings),
            ),
        )


def _in_process(where: str, name: str, server: Any) -> Upstream:
    """Return the upstream for `server`, a Python object that acts as a server in this process: a server object of the
    SDK, or an `Upstream`. `where`: the setting or argument that the object comes from, for the error.

    Other packages can add kinds of upstreams: pass an `Upstream` with the setting `in_process`, or in `servers` of
    `create_app`. `transports.testing` has the tests that an `Upstream` must pass.

    Raises:
        ConfigurationError: the object is neither, or the SDK is not installed.
    """
    if isinstance(server, Upstream):
        return server
    try:
        from transports.upstream.in_process import InProcessUpstream  # imports the SDK, which takes 0.6 s
    except ModuleNotFoundError:
        raise missing_extra(where, "mcp") from None
    try:
        return InProcessUpstream(name, server)
    except TypeError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def load_object(name: str, path: str) -> Any:
    """Import and return the object that `path` (`module:attribute`) names. Modules may be in the working directory.

    Raises:
        ConfigurationError: the object cannot be imported.
    """
    module, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in ("mcp", "mcp_types"):
            raise missing_extra(f"mcpServers.{name}.in_process", "mcp") from None
        what = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"mcpServers.{name}.in_process: {path}: {what}{_failed_in(error)}") from error
    return found


def _failed_in(error: Exception) -> str:
    """Return the end of the error message about a failed import: the line of the operator's module that has failed, or
    the folders that were searched if no module was found."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename != __file__ and "importlib" not in frame.filename:
            return f" ({frame.filename}, line {frame.lineno})"
    return f" (modules are looked for in {Path.cwd()} and in the gateway's Python environment)"
