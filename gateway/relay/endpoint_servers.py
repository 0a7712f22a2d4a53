"""Present the servers behind one URL as one server. `gateway.relay.call` decides which of them gets a call."""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from gateway.calls.client_request import Call
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.errors import UPSTREAM_UNAVAILABLE, ConsentNeeded, left_out
from gateway.protocol.handshake import handshake_of, merge_discoveries, merge_handshakes
from gateway.protocol.merged_lists import Called, Tools
from gateway.protocol.methods import REPEATABLE
from gateway.protocol.params import text_of
from gateway.relay.extension_methods import ExtensionRelay
from gateway.relay.late_servers import Asker, Gathered, LateServers
from gateway.relay.merged_servers import MergedServers
from gateway.relay.policy_admission import Admission, CallTarget, VisibleServers
from gateway.relay.subscriptions import relay_changes
from gateway.sessions.sessions_by_handle import ChildSessions
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.list_pages import asked_by_gateway, lists_repeatable
from gateway.version import __version__
from session_store import Context
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import Object
from transports.upstream_port import LinkClosed, UpstreamUnavailable

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class EndpointServers:
    """Present the servers of one URL as one server. The messages of a single server are relayed unchanged; the lists of
    several are merged (`merged_servers`). An answer that combines several servers does not wait for slow ones
    (`late_servers`)."""

    visible: VisibleServers
    _: KW_ONLY
    admission: Admission
    handles: ChildSessions
    merged: MergedServers
    late: LateServers
    extensions: ExtensionRelay
    """Relays the methods that MCP does not define."""

    def prestartable(self, context: Context) -> list[ConfiguredUpstream]:
        """Return those servers with the setting `warm` that a session with this context sees. Their processes start
        before the session's first call."""
        return [u for u in self.visible.to(context).values() if u.settings.warm]

    # -- the handshake and discovery

    async def initialize(self, live: LiveSession, correlation: str) -> bytes:
        """Open every server of a legacy session. Return one `initialize` result, merged from the results of the servers
        that answer in time.

        Raises:
            HandshakeRefused: the only server refused the handshake.
            UpstreamUnavailable: no server is available.
        """
        servers = self.visible.to(live.session.context)
        if (only := self.visible.only) is not None and only.name in servers:
            try:
                return await self._greet(only, live, correlation)
            except ConsentNeeded:  # a session has to open, so that its client can be asked
                self.late.connect(only, Asker(live, Era.LEGACY, None, correlation), _Greeted(live, correlation))
                return merge_handshakes((), __version__, incomplete=True)

        greeted = await self.late.gather(
            servers.values(),
            Asker(live, Era.LEGACY, None, correlation),
            lambda upstream: self._greet(upstream, live, correlation),
            waiting=_Greeted(live, correlation),
        )
        version = live.session.client.protocol_version
        late = {name: server.discovery for name, server in servers.items() if name not in greeted.answers}
        known = {name: handshake_of(found, version) for name, found in late.items() if found is not None}
        results = [result for name in servers if (result := greeted.answers.get(name) or known.get(name)) is not None]
        if not results and len(greeted.failures) == len(servers):
            if servers and all(server.is_left_out for server in servers.values()):
                raise left_out(*servers)
            failures = [error for name, error in greeted.failures.items() if not servers[name].is_left_out]
            if not any(isinstance(error, ConsentNeeded) for error in failures):
                raise next(iter(failures), UpstreamUnavailable("no server here is available to this session"))
        may_answer = sum(not server.is_left_out for server in servers.values())
        return merge_handshakes(results, __version__, incomplete=len(results) < may_answer)

    async def _greet(self, upstream: ConfiguredUpstream, live: LiveSession, correlation: str) -> bytes:
        """Return the `initialize` result of one server for a legacy session. Open the server for that, unless a cached
        result fits the session. For a modern server, which has no such result, make one from its `server/discover`
        result instead."""
        await upstream.try_handshake(live, correlation)
        if await upstream.era_for(Era.LEGACY) is Era.MODERN:
            discovery = (await upstream.facts()).discover
            assert discovery is not None
            return handshake_of(discovery, live.session.client.protocol_version)
        if not upstream.is_open_to(live) and (kept := upstream.first_answers.handshake(live)) is not None:
            return kept  # the process starts with the first request that needs it
        version = upstream.first_answers.handshake_version()
        conversation = upstream.conversation(live, Era.LEGACY, correlation)
        await conversation.ready()
        assert conversation.initialize_result is not None
        upstream.first_answers.keep_handshake(live, conversation, version)
        return conversation.initialize_result

    async def discover(self, context: Context) -> bytes | None:
        """Return one `server/discover` result, merged from the results of the servers that answer in time. Return None
        if a session with this context sees no server that can serve modern clients.

        Raises:
            Refused: 503, the servers cannot be asked.
        """
        servers = self.visible.to(context)
        if self.visible.only is not None:
            gathered = Gathered({name: await upstream.facts() for name, upstream in servers.items()})
        else:
            gathered = await self.late.gather(
                servers.values(), Asker(None, Era.MODERN, None, ""), lambda upstream: upstream.facts()
            )
        facts = gathered.answers.values()
        found = [servers[name].discovery_for_clients(each) for name, each in gathered.answers.items()]
        results = [discovery for discovery in found if discovery is not None]
        failures = {name: each.failure for name, each in gathered.answers.items() if each.failure}
        failures |= {name: str(error) for name, error in gathered.failures.items()}
        is_any_starting = len(gathered.missing) > len(gathered.failures)
        is_any_starting |= any(servers[n].is_asked_in_sessions for n, f in gathered.answers.items() if f.failure)
        if results or is_any_starting:
            is_incomplete = is_any_starting or any(f.failure for f in facts)
            is_incomplete |= any(not servers[name].is_left_out for name in gathered.failures)
            return merge_discoveries(results, __version__, incomplete=is_incomplete, is_filtered=self.visible.differ)
        if servers and all(server.is_left_out for server in servers.values()):
            raise left_out(*servers)
        if failure := next((why for name, why in failures.items() if not servers[name].is_left_out), ""):
            raise Refused(
                503, UPSTREAM_UNAVAILABLE, failure, reason="upstream_unavailable", headers={"Retry-After": "5"}
            )
        return None

    # -- what calls need to know of the servers here

    def has_fixed_server(self, target: CallTarget) -> bool:
        """Return True if later calls of this tool always go to the same server. Return False if the server depends on
        the MCP Apps that the session has opened, or if the tool itself opens an app."""
        if target.named is None:
            return self.visible.only is not None
        return not self.merged.opens_app(target.upstream, target.named)

    def servers(self, context: Context) -> Mapping[str, ConfiguredUpstream]:
        """Return the servers of this URL that a session with this context sees, by name."""
        return self.visible.to(context)

    def server(self, name: str, context: Context) -> ConfiguredUpstream | None:
        """Return the server with this name; None if a session with this context sees no such server at this URL."""
        return self.visible.to(context).get(name)

    def called(self, exchange: Exchange, client: Era, params: Object) -> Called:
        """Return what is known of the tool that a call names (`Called`), without a request to the tool's server.
        `client` is the era of the client. Most fields keep their defaults if the tool is unknown."""
        upstream = self.visible.only
        try:
            if upstream is None:
                upstream, named = self.merged.server_by_name(Call(exchange, client, params, {}, ""))
                params = params if named is None else {"name": named}
            name = text_of(params, "name")
        except Refused:
            return Called()  # the call is about to be refused
        tools = upstream.server_lists.known("tools/list", upstream.conversation_at_hand(exchange, client))
        return (
            tools.called(upstream.name, name) if isinstance(tools, Tools) else Called(server=upstream.name, name=name)
        )

    async def is_repeatable(self, call: Call) -> bool:
        """Return True if a call may be sent again, although its server may have executed it already.

        Raises:
            UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be asked.
        """
        if call.method != "tools/call":
            return call.method in REPEATABLE
        upstream = self.visible.only
        if upstream is None:
            upstream, named = self.merged.server_by_name(call)
            call = self.merged.with_own_name(upstream, call, named)
        return await lists_repeatable(text_of(call.params, "name"), await upstream.conversation_for(call))

    async def notify(self, live: LiveSession, method: str, params: bytes | None, correlation: str) -> None:
        """Forward a legacy client's notification to the legacy servers that sessions do not share. A shared server
        would take it for a notification of its other sessions, too. `notifications/initialized` also subscribes the
        client to changes at the modern servers. A server that starts later gets the notification after its handshake
        (`LinkSource.replay`)."""
        for upstream in self.visible.to(live.session.context).values():
            if live.ended:
                return
            is_only = upstream is self.visible.only
            era = await upstream.era_for(Era.LEGACY) if is_only else upstream.era_now(Era.LEGACY)
            if era is Era.LEGACY:
                if not upstream.settings.shared:
                    upstream.conversation(live, Era.LEGACY, correlation).notify(method, params)
            elif era is Era.MODERN and method == "notifications/initialized" and not _lists_from_cache(upstream, live):
                with contextlib.suppress(UpstreamUnavailable, LinkClosed):
                    await relay_changes(upstream, live, correlation)


def _lists_from_cache(upstream: ConfiguredUpstream, live: LiveSession) -> bool:
    """Return True if the session has no process of the server yet, and the cache that sessions share has the server's
    list of tools. Requests for the list are then answered from the cache."""
    if not upstream.settings.has_own_process or upstream.is_open_to(live):
        return False
    return upstream.server_lists.results.has(asked_by_gateway("tools/list", {}))


class _Greeted:
    """Subscribe a legacy session at modern servers that start only after its `initialize` was answered. Such servers
    have missed the client's `notifications/initialized`."""

    def __init__(self, live: LiveSession, correlation: str) -> None:
        self._live = live
        self._correlation = correlation

    @property
    def has_ended(self) -> bool:
        return self._live.ended

    async def arrived(self, upstream: ConfiguredUpstream, conversation: Conversation) -> None:
        if conversation.era is Era.MODERN and self._live.session.initialized:
            await relay_changes(upstream, self._live, self._correlation)
