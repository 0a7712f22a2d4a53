"""Run all checks of the doctor in order, and check the store. Other new checks are modules of their own."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gateway.cluster.forwarded_request_envelope import Envelopes
from gateway.cluster.own_reachability import why_not_found
from gateway.config.configuration_errors import located
from gateway.config.secrets import key_ring, peer_tls
from gateway.config.settings import ConfigurationError, Loaded, Settings, load
from gateway.doctor.findings import Finding, failure, ok, warning
from gateway.doctor.machine import check_access, check_keys, check_limits, check_sandboxes, check_workspaces
from gateway.doctor.running_gateways import check_clients, check_clients_at, check_outside
from gateway.doctor.servers import check_servers
from session_store import Backend, StoreError, backend_for
from session_store.connect import BackendOptions, shown
from session_store.ports.errors import StoreMissing

_REACH: Final = "check that the store runs, and that this machine reaches it with that name, port and password"
_ALLOW: Final = "allow the gateway's Redis user +info and the commands that docs/deploying.md lists"
_DO = (
    "set its gateway.advertise to a HOST:PORT at which the other gateways, and this machine, reach it; if its log says "
    "that it has other keys, give all gateways on this store the same MCP_GATEWAY_KEYS"
)

OF_SETTINGS: Final[tuple[Callable[[Settings], Iterator[Finding]], ...]] = (
    check_keys,
    check_access,
    check_workspaces,
    check_limits,
)
"""Checks that need neither the store nor a server."""


async def check_everything(
    config: Path | None,
    overrides: dict[str, Any],
    *,
    url: str = "",
    token: str = "",
    key: str = "",
    admin_url: str = "",
) -> AsyncIterator[Finding]:
    """Check the configuration, and what a gateway needs for it. If `url` is given, also check the running gateway there
    over the network. If `key` and one of the URLs are given, also ask that gateway about its clients.

    `config`: the configuration file; None if there is none. `overrides`: settings of `gateway` that win over those of
    the configuration. `url`: the clients' URL. `token`: a client's credential. `key`: an operator's key. `admin_url`:
    the operators' URL, if it is not `url`.
    """
    try:
        loaded = load(config, overrides)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            yield failure("configuration", line, "correct this line; docs/settings.md lists all settings")
    else:
        for finding in _configuration(config, loaded):
            yield finding
        async for finding in check_settings(loaded.settings, config):
            yield finding if config is None else replace(finding, what=located(finding.what, config))
    if url:
        async for finding in check_outside(url, token):
            yield finding
    if key and (operators := admin_url or url):
        async for finding in check_clients_at(operators, key):
            yield finding


def _configuration(config: Path | None, loaded: Loaded) -> Iterator[Finding]:
    """Report how many servers the loaded configuration has, and which of its parts have no effect. `config`: its file;
    None if it comes from the environment."""
    servers = len(loaded.settings.mcpServers)
    yield ok("configuration", f"{config or 'the environment'}: {servers} server{'s' * (servers != 1)}")
    if config is not None and not servers:
        yield warning("configuration", f"{config}: nothing to serve", "add servers, or give `run` a command after --")
    for note in loaded.notes:
        do = "correct or remove it; docs/configuration.md says what is read from which host's file"
        yield (
            ok("configuration", note.text)
            if note.level == "ignored"
            else warning("configuration", note.text, note.do or do)
        )


async def check_settings(settings: Settings, config: Path | None = None) -> AsyncIterator[Finding]:
    """Check what a gateway with these settings needs: keys, access, limits, sandboxes, the store and the servers.
    `config`: the file with the settings; None if they come from the environment. Servers are not checked if the check
    of sandboxes finds an error."""
    for check in OF_SETTINGS:
        for finding in check(settings):
            yield finding
    unheld = False
    for finding in check_sandboxes(settings, config):
        unheld |= finding.state == "error"
        yield finding
    async for finding in _stored(settings):
        yield finding
    if not unheld:  # else the gateway does not start
        async for finding in check_servers(settings):
            yield finding


async def _stored(settings: Settings) -> AsyncIterator[Finding]:
    """Check the store: open it, and report what its backend observes about it. Then check the gateways that use it, and
    their clients."""
    url = settings.gateway.store
    try:
        backend = backend_for(url, BackendOptions(exclusive=False, create=False))
    except StoreError as error:
        yield failure("store", str(error), "correct gateway.store, the store's URL")
        return
    try:
        await backend.open()
        await backend.ping()
    except StoreMissing:
        yield ok("store", f"{shown(url)}: there is no such file yet: the gateway creates it when it starts")
        return
    except StoreError as error:
        yield failure("store", f"{shown(url)}: {error}", _REACH)
        return
    try:
        try:
            for one in await backend.inspect():
                yield Finding(check=one.subject, state=one.state, what=one.text, do=one.advice)
        except StoreError as error:
            yield failure("store", f"{shown(url)}: {error}", _ALLOW)
        async for finding in _replicas(settings, backend):
            yield finding
        async for finding in check_clients(backend):
            yield finding
    finally:
        await backend.close()


async def _replicas(settings: Settings, backend: Backend) -> AsyncIterator[Finding]:
    """Check that each live gateway on the store can be reached, by a request to it. Yield nothing if there is none, or
    if the store or the keys cannot be used: other checks report that."""
    if not backend.is_shared:
        return
    with suppress(StoreError, ConfigurationError):
        envelopes = Envelopes(key_ring(settings.gateway.store), tls=peer_tls(settings.gateway.peer_tls))
        for name, address in (await backend.directory.replicas()).items():
            why = "it reports that other gateways cannot reach it"
            if address:
                why = await why_not_found(address, name, envelopes)
            if why:
                what = f"{name} is running but cannot be reached at {address or 'any address'}: {why}"
                yield failure("replicas", what, _DO)
            else:
                yield ok("replicas", f"{name} answers at {address}")
