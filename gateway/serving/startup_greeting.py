"""Collect the text for the person who starts a gateway: its URL, servers, callers, console and store."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gateway.admin.auth import SignInLink
from gateway.admin.local_gateways import LocalGateway, network_namespace
from gateway.admin.routes import ADMIN
from gateway.config.addresses import host_and_port, is_loopback
from gateway.config.settings import GatewaySettings
from gateway.sandbox.sandbox_checks import ServerSandbox, server_sandboxes
from gateway.serving.gateway import Gateway
from gateway.serving.workers import announce
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from session_store import backend_for
from session_store.connect import shown

_EVERY_ADDRESS = ("0.0.0.0", "::")  # only compared with
_CREDENTIALS = {"api_keys": "API keys", "auth.jwt": "access tokens", "auth.proxies": "a trusted proxy"}


class Welcome:
    """Show the start and the end of a gateway to whoever has started it.

    This class prints lines for programs: `ready URL`, and before that `serving URL` if the gateway serves before it is
    ready. A subclass can show more. `link`: a one-time sign-in to the console; None: there is none.
    """

    link: SignInLink | None = None

    @contextlib.contextmanager
    def starting(self, gateway: Gateway) -> Iterator[None]:
        """Show that the gateway starts, until the block ends. Called in the running event loop."""
        yield

    def serves(self, gateway: Gateway, url: str, *, is_ready: bool) -> None:
        """Show that the gateway serves at `url`, which ends with `/mcp`, and whether `/readyz` calls it ready."""
        announce(url, is_ready=is_ready)

    def ready(self, url: str) -> None:
        """Show that a gateway that already serves at `url` is ready now."""
        announce(url)

    def ended(self) -> None:
        """Show that the gateway has stopped, or could not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLine:
    """The line of one server in the greeting."""

    name: str
    state: Literal["ok", "starting", "failing"]
    tools: int | None
    """How many tools it lists; None: unknown."""
    about: str
    """The revision of MCP that it speaks; if its state is not `ok`, what it waits for, or why it cannot be used."""
    sandbox: str
    """The profiles of its sandboxes; empty if it has no process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The facts that the greeting shows."""

    url: str
    """The URL of the endpoint for all servers."""
    is_ready: bool
    """True: `/readyz` answers 200."""
    scope: str
    """Says that the gateway listens on every address of the machine; empty: it does not."""
    console: str
    """The URL of the console; empty: there is no console, or its port is unknown."""
    has_link: bool
    """True: the URL in `console` signs in, once."""
    is_announced: bool
    """True: other commands of this user find the gateway."""
    servers: tuple[ServerLine, ...]
    store: str
    """Says where sessions are kept."""
    store_fault: str
    """Why the store does not answer; empty: it does."""
    callers: str
    """Says who may call, and with which kinds of credentials."""
    needs_token: bool
    """True: clients need a credential."""
    gaps: int
    """The number of servers whose sandbox does not hold completely on this machine."""


def link_for(options: GatewaySettings) -> SignInLink | None:
    """Return a one-time sign-in to the console. Return None if other machines can reach the console, directly or by a
    proxy."""
    host = host_and_port(options.admin.listen)[0] if options.admin.listen else options.host
    return SignInLink() if is_loopback(host) and options.auth.proxies is None else None


def local_gateway(
    gateway: Gateway, url: str, link: SignInLink | None, folder: Path, config: Path | None
) -> LocalGateway | None:
    """Return the entry by which other commands of this user find the gateway and its configuration file `config`.

    Return None if there is no `link`, if the port for operators is unknown, or if a server could read `folder`, where
    the caller stores the entry.
    """
    options = gateway.parts.foundation.settings.gateway
    operators = "" if link is None else _operators(options, url)
    if link is None or not operators or not all(_is_closed(one, folder) for one in sandboxes_at(gateway)):
        return None
    file, pid = "" if config is None else os.path.realpath(config), os.getpid()
    return LocalGateway(url=operators, endpoint=url, key=link.key, pid=pid, network=network_namespace(), config=file)


def _is_closed(one: ServerSandbox, folder: Path) -> bool:
    """Return True if a sandbox has walls, holds completely on this machine, and does not open the folder."""
    return one.sandbox.has_walls and not one.missing and not one.opens([folder])


def sandboxes_at(gateway: Gateway) -> list[ServerSandbox]:
    servers = gateway.parts.servers
    return server_sandboxes(servers.sandboxes, delegation=servers.fork_server.delegation())


def greeting_of(
    gateway: Gateway, url: str, link: SignInLink | None, *, is_ready: bool = True, is_announced: bool = False
) -> Greeting:
    """Return the greeting of a gateway that serves at `url`, which ends with `/mcp`. `link`: the one-time sign-in to
    its console; None: there is none. `is_ready` and `is_announced` are passed on to the greeting."""
    options = gateway.parts.foundation.settings.gateway
    everywhere = options.host in _EVERY_ADDRESS
    if everywhere:
        url = url.replace(f"[{options.host}]" if ":" in options.host else options.host, "localhost", 1)
    found = sandboxes_at(gateway)
    return Greeting(
        url=url,
        is_ready=is_ready,
        scope="on every address of this machine" if everywhere else "",
        console=_console(options, url, link),
        has_link=link is not None,
        is_announced=is_announced,
        servers=server_lines(gateway, found),
        store=_store(gateway, options.store),
        store_fault=gateway.store_fault,
        callers=_callers(options),
        needs_token=not options.allows_anonymous,
        gaps=len({one.server for one in found if one.missing}),
    )


def server_lines(gateway: Gateway, found: list[ServerSandbox] | None = None) -> tuple[ServerLine, ...]:
    """Return a line for each server, in the order of the configuration. `found`: the sandboxes whose profiles the lines
    show; None: the lines show no profiles."""
    profiles: dict[str, list[str]] = {}
    for one in found or ():
        profile = f"{one.sandbox.profile}{f' ({one.trusts[0]})' if one.trusts else ''}"
        profiles.setdefault(one.server, []).append(profile)
    return tuple(_line(gateway, upstream, ", ".join(profiles.get(upstream.name, ()))) for upstream in gateway.upstreams)


def _line(gateway: Gateway, upstream: ConfiguredUpstream, sandbox: str) -> ServerLine:
    state, tools = upstream.state, upstream.probed_tools
    about = state.reason
    if state.state == "ok":
        about = "2026-07-28" if upstream.speaks_modern else "2025-11-25 or older"
    elif state.state == "starting":
        package = gateway.parts.servers.packages.fetching(upstream.name)
        doing = f"fetching its package {package}" if package else "still starting"
        about = f"{doing}: a line below says when it is ready"
    count = len(tools.listed) if state.state == "ok" and tools is not None else None
    return ServerLine(name=upstream.name, state=state.state, tools=count, about=about, sandbox=sandbox)


def _console(options: GatewaySettings, url: str, link: SignInLink | None) -> str:
    if link is None and not options.admin.keys:
        return ""
    base = _operators(options, url)
    if not base:
        return ""
    return f"{base}{ADMIN}" if link is None else f"{base}{ADMIN}/sign-in/{link.token}"


def _operators(options: GatewaySettings, url: str) -> str:
    """Return the base URL at which operators are served: that of `admin.listen`, or else that of `url`, the endpoint.
    Return an empty text if the kernel chooses the port of `admin.listen`: only the log shows that port."""
    listen = options.admin.listen
    if listen:
        return "" if listen.endswith(":0") else f"http://{listen}"
    return url.removesuffix("/mcp")


def _store(gateway: Gateway, url: str) -> str:
    backend = backend_for(url)
    if not backend.is_durable:
        return "in memory: they end with this process"
    return f"{gateway.store_place}{', shared with other gateways' if backend.is_shared else ''}"


def farewell(count: int, url: str, store_fault: str) -> str:
    """Return the log line for a stopped gateway: what happens to its `count` live sessions. `url`: the URL of the
    store. `store_fault`: why the store does not answer; empty: it does."""
    if not count:
        return "stopped: no session was live here"
    sessions, were, stay, them = ("1 session", "was", "stays", "it")
    if count > 1:
        sessions, were, stay, them = (f"{count} sessions", "were", "stay", "them")
    if not backend_for(url).is_durable:
        return f"stopped: {sessions} ended, which {were} in memory"
    if store_fault:
        return f"stopped: {shown(url)} has {sessions}, without changes since it stopped answering"
    return f"stopped: {sessions} {stay} in {shown(url)}; the next gateway with this store continues {them}"


def _callers(options: GatewaySettings) -> str:
    if options.allows_anonymous:
        where = "on this machine" if is_loopback(options.host) else "who reaches this address"
        return f"everyone {where}, without a credential"
    return "with a credential: " + ", ".join(_CREDENTIALS[name] for name in options.credentials)
