"""Relay methods that MCP does not define to the servers that declare them, or whose configuration names them.

They are subject to policy like all other methods (`gateway.relay.policy_admission`). docs/adr/0023-extensions.md"""

import asyncio
import contextlib
import logging
from typing import Final

import msgspec

from gateway.bridge.legacy_server import legacy_meta, legacy_params
from gateway.bridge.modern_server_subscriptions import declaration_of
from gateway.calls.client_request import Call
from gateway.calls.link_manager import UNREACHED
from gateway.calls.live_session import LiveSession
from gateway.config.patterns import any_matches
from gateway.errors import UPSTREAM_UNAVAILABLE, StartRefused, unknown_method
from gateway.protocol.extensions import Declared, closest, method_forms
from gateway.protocol.methods import may_be_relayed
from gateway.relay.late_servers import Asker
from gateway.relay.policy_admission import Admission, VisibleServers
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from session_store import Context
from transports.era import LEGACY, MODERN
from transports.inbound_port import Refused
from transports.jsonrpc import Object, encode

logger = logging.getLogger(__name__)

_MOST_LOGGED: Final = 64
"""Maximum number of log lines about methods that several servers may have. Each set of such servers is logged once."""


class ExtensionRelay:
    """Relay the methods of MCP extensions at one URL: all methods that are not in the table of methods
    (`gateway.protocol.methods`). `wait_s` is how many seconds a message waits for servers that are still starting."""

    def __init__(self, servers: VisibleServers, admission: Admission, *, wait_s: float) -> None:
        self._servers = servers
        self._admission = admission
        self._logged: set[frozenset[str]] = set()
        self._wait_s = wait_s

    async def server_for(self, call: Call) -> ConfiguredUpstream:
        """Return the server that gets this request, whose method belongs to an extension. The rules of `servers_for`
        choose the server.

        Raises:
            Refused: -32601, there is no such server, or no request may have this name.
        """
        if not may_be_relayed(call.method, is_request=True):
            raise unknown_method(call.method, call.era)
        return (await self.servers_for(call.method, call.exchange.context, Asker.of(call)))[0]

    async def notify(self, asker: Asker, context: Context, method: str, params: Object, meta: Object) -> None:
        """Send a notification of the client `asker` to all servers that get messages with its method (`servers_for`).
        `context` has the rights of the client's session. `meta` replaces the `_meta` in `params`.

        Raises:
            Refused: no server gets the notification, or one of them cannot be reached.
        """
        live = asker.live
        assert live is not None
        for upstream in await self.servers_for(method, context, asker):
            self._admission.check_method(upstream.name, method, asker.era, live.session, context)
            try:
                await _notify(upstream, asker, live, method, params, meta)
            except StartRefused as error:
                raise error.refused from None
            except UNREACHED as error:
                raise Refused(
                    503, UPSTREAM_UNAVAILABLE, str(error), reason="upstream_unavailable", headers={"Retry-After": "5"}
                ) from None

    async def servers_for(self, method: str, context: Context, asker: Asker) -> list[ConfiguredUpstream]:
        """Return the servers that get messages with this method from the client `asker`. A request goes to the first of
        them only.

        The first of these rules that finds a server counts: (1) the configuration of the server names the method; (2)
        its declared extensions match the method most closely; (3) it is the only one whose declared extensions may have
        methods of any name; (4) it is the only server at the URL, and the client has declared the extension. Servers
        that have not answered the gateway yet are waited for only if rules 1 and 2 find no other server.

        Raises:
            Refused: -32601, no server takes the method, several might, or no method may have this name.
        """
        if not may_be_relayed(method, is_request=False):
            raise unknown_method(method, asker.era)
        servers = self._servers.to(context)
        configured = [upstream for upstream in servers.values() if is_configured(upstream, method)]
        if configured:
            return configured
        known = {name: _known_of(upstream, asker.live) for name, upstream in servers.items()}
        declared = {name: found for name, found in known.items() if found is not None}
        if not (names := closest(method, declared.items())) and len(declared) < len(servers):
            # A single server gets as much time as it needs: no other server has to wait for it.
            within_s = None if len(servers) == 1 else self._wait_s
            found = await asyncio.gather(*(_declared_by(servers[name], known[name], within_s) for name in servers))
            declared = dict(zip(servers, found, strict=True))
            names = closest(method, declared.items())
        if names:
            return [servers[name] for name in names]
        names = [name for name, found in declared.items() if found.is_open]
        if len(servers) == 1 and not names and asker.declared.takes(method):
            names = [*servers]
        if len(names) == 1:
            return [servers[names[0]]]
        if names and len(self._logged) < _MOST_LOGGED and (among := frozenset(names)) not in self._logged:
            self._logged.add(among)
            logger.warning(
                "%r reaches no server, because several may have it: %s. Name it under mcpServers.SERVER.methods of one",
                method[:128],
                ", ".join(names),
            )
        raise unknown_method(method, asker.era, among=names)


async def _notify(
    upstream: ConfiguredUpstream, asker: Asker, live: LiveSession, method: str, params: Object, meta: Object
) -> None:
    era, conversation = await upstream.era_for(asker.era), None
    if asker.era is MODERN and (asker.declaration is None or not asker.declaration.is_declared):
        # A modern notification may lack the description of its client, which the server knows from earlier calls.
        conversation = upstream.any_conversation(live)
    if conversation is None or conversation.era is not era:
        conversation = upstream.conversation(live, era, asker.correlation, asker.declaration)
    await conversation.join(live)
    await conversation.ready()
    if era is LEGACY and asker.era is MODERN:
        params, meta = legacy_params(params), legacy_meta(meta)
    elif era is MODERN:
        meta = {**(asker.declaration or declaration_of(live)).meta(""), **meta}
    body = {**params, "_meta": msgspec.Raw(encode(meta))} if meta else params
    conversation.notify(method, encode(body) if body else None)


def is_configured(upstream: ConfiguredUpstream, method: str) -> bool:
    """Return True if the server's configuration allows this method, by its name or by a pattern."""
    patterns = [pattern for pattern, item in upstream.settings.methods.items() if item.allowed]
    return bool(patterns) and any(any_matches(patterns, form) for form in method_forms(method))


def _known_of(upstream: ConfiguredUpstream, live: LiveSession | None) -> Declared | None:
    """Return the extensions that a server has declared, as far as this is known without asking it: in its handshake
    with the session `live`, or else in its answer to the gateway's own probe. Return None if neither is known."""
    conversation = None if live is None else upstream.any_conversation(live)
    if conversation is not None and conversation.initialize_result is not None:
        return conversation.declared
    return None if upstream.discovery is None else upstream.extensions


async def _declared_by(upstream: ConfiguredUpstream, known: Declared | None, within_s: float | None) -> Declared:
    """Return the extensions that a server declares: `known`, or if that is None, what the gateway's probe of the server
    tells. Wait for the probe at most `within_s` seconds (None: no limit), then return an empty declaration."""
    if known is not None:
        return known
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            return (await upstream.facts()).declared
    return Declared()
