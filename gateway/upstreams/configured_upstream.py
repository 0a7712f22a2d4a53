"""One configured server: decide in which era requests are sent to it, and find or create the conversations with it."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from gateway.calls.client_request import Call
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import Deadlines, Loss
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.server_messages import IsolatedRouter
from gateway.calls.server_start_failures import Backoff
from gateway.config.limits import LimitSettings
from gateway.config.upstreams import UpstreamSettings
from gateway.context.principal_secrets import is_template
from gateway.protocol.client_capabilities import ClientDeclaration
from gateway.protocol.extensions import Declared
from gateway.protocol.merged_lists import Tools
from gateway.upstreams.era_discovery import SessionDiscovery
from gateway.upstreams.first_answer_cache import FirstAnswers
from gateway.upstreams.link_env_and_headers import PrestartedProcess
from gateway.upstreams.link_opener import Key, SessionLinks, UpstreamLinks
from gateway.upstreams.server_facts import STARTING, KnownFacts, ServerFacts, ServerState
from gateway.upstreams.server_lists import ServerLists
from gateway.upstreams.server_probe import Probe
from gateway.upstreams.shared_conversations import SharedConversations
from session_store import Session, StoreUnavailable
from transports.era import LEGACY, MODERN, Era
from transports.upstream.stdio import StdioUpstream
from transports.upstream_port import Upstream, UpstreamUnavailable

MAX_CONVERSATIONS: Final = 16
"""Maximum number of conversations of one session with one server. A client can declare different capabilities with each
request, and each set of capabilities needs a connection of its own, often with a process."""

_NOTHING: Final = ServerFacts()


class ConfiguredUpstream:
    """One configured server: its state, the eras of MCP that it speaks, and the conversations with it. Built by
    `UpstreamFactory`."""

    def __init__(
        self,
        settings: UpstreamSettings,
        upstream: Upstream,
        links: UpstreamLinks,
        *,
        lists: ServerLists,
        known: KnownFacts,
        shared: SharedConversations,
        probe: Probe,
        deadlines: Deadlines,
    ) -> None:
        self.name = links.name
        self.settings = settings
        self.server_lists = lists
        self.first_answers = FirstAnswers(lists.results, settings.lists_fresh_s)
        rules = {"tools": settings.tools, "prompts": settings.prompts, "resources": settings.resource_uris}
        self.unreviewed = {kind for kind, patterns in rules.items() if patterns}
        """The kinds of items (tools, prompts, resources) for which it is not yet checked that each pattern in the
        configuration matches a listed item."""
        self._upstream = upstream
        self._links = links
        self.known = known
        self._shared = shared
        self._probe = probe
        self._deadlines = deadlines
        # One object for all sessions, of which there are many.
        self._plain_keys: Mapping[Era, Key] = {era: (links.name, era, b"") for era in Era}
        self._on_change = lists.results.changed
        self._by_sessions = SessionDiscovery(links.name, known, probe.learn)
        self._is_closed = False
        self._takes_secrets = any(map(is_template, settings.headers.values()))
        # Of `gateway.upstreams.link_opener.UpstreamLinks`:
        self.permits = links.permits
        self.start_times_s = links.start_times_s
        self.starts, self.restarts = links.starts, links.restarts
        # Methods of `gateway.upstreams.server_probe.Probe`:
        self.start_probe = probe.start
        self.facts = probe.facts
        self.discovery_for_clients = probe.discovery
        self.era_for = probe.era_for
        self.era_now = probe.era_now
        self.answered = probe.answered
        self.log_first_answer = probe.log_first_answer

    @property
    def start_failure(self) -> tuple[float, str]:
        """Return the Unix time at which a link last failed to open, and the reason; 0 and empty if none has failed."""
        return self._links.start_failure

    @property
    def _facts(self) -> ServerFacts:
        """Return the facts about the server from the gateway's last probe; empty facts if there was none."""
        return self.known.latest or _NOTHING

    @property
    def has_answered(self) -> bool:
        """Return True if the server has answered the gateway's last probe in an era that the gateway speaks."""
        return self._facts.has_answered

    @property
    def is_left_out(self) -> bool:
        """Return True if requests are never sent to the server, because its configuration entry has faults."""
        return bool(self.settings.faults)

    @property
    def is_failing(self) -> bool:
        """Return True if the gateway's last probe of the server has failed."""
        return self._probe.failures.count > 0

    @property
    def failures(self) -> Backoff:
        """Return the backoff, which counts the failed probes since the last successful one and delays the next."""
        return self._probe.failures

    @property
    def hangs_for_s(self) -> float:
        """Return how many seconds the probe has waited for the server; 0 once the server has answered."""
        return 0.0 if self.has_answered else self._probe.waited_s

    @property
    def speaks_modern(self) -> bool:
        """Return True if the server speaks MCP 2026-07-28 or later."""
        return self._facts.discover is not None

    @property
    def is_asked_in_sessions(self) -> bool:
        """Return True if the server answers only requests with the credentials of a session, and its configuration has
        such credentials."""
        return self._takes_secrets and self._facts.needs_credentials

    @property
    def probed_tools(self) -> Tools | None:
        """Return the tools that the server listed to the last probe; None if the probe could not read them."""
        return self.known.tools()

    @property
    def discovery(self) -> bytes | None:
        """Return the server's answer to `server/discover`, or one made from its handshake; None without an answer."""
        return self._facts.discovery if self.has_answered else None

    @property
    def handshake(self) -> bytes | None:
        """Return the server's answer to `initialize`; None if it speaks the modern era, or has not answered."""
        return self.known.handshake()

    @property
    def state(self) -> ServerState:
        """Return the state of the server for operators: ok, starting or failing, with the reason."""
        probe = self._probe
        if self.is_left_out:
            return ServerState("failing", "; ".join(self.settings.faults))
        if self.has_answered:
            return ServerState("ok", start_s=probe.started_s)
        if not probe.failures.count:
            return ServerState("starting", STARTING, waited_s=probe.waited_s, output_tail=self._shared.output_tail)
        words, failures = self._facts.output_tail, probe.failures
        return ServerState("failing", failures.reason, attempts=failures.count, output_tail=words)

    @property
    def known_capabilities(self) -> dict[str, Any]:
        """Return the capabilities that the server has declared to the gateway's last probe; empty if it has not
        answered."""
        return self._facts.capabilities

    @property
    def notifies(self) -> bool:
        """Return True if the server has declared to the gateway's last probe that it sends notifications of changes."""
        return self._facts.notifies

    @property
    def extensions(self) -> Declared:
        """Return the extensions that the server has declared to the gateway's last probe."""
        return self._facts.declared

    async def capabilities(self) -> dict[str, Any]:
        """Return the capabilities that the server declares. Wait for the gateway's first probe, if it has not ended."""
        return (await self.facts()).capabilities

    def mark_reviewed(self, kind: str = "") -> None:
        """Record that the patterns for `kind` (tools, prompts, resources; empty: all) match the server's lists."""
        self.unreviewed -= {kind} if kind else self.unreviewed

    # -- conversations

    @property
    def shared(self) -> Iterable[Conversation]:
        """Return the conversations that belong to no session."""
        return self._shared

    def sessionless(self, era: Era) -> Conversation:
        """Return the conversation, in this era, over which clients without a session get the server's lists."""
        return self._shared.of(era)

    def is_asked_by(self, live: LiveSession) -> bool:
        """Return True if the server must be asked for its era with this session's credentials before other requests
        (`era_in` does that)."""
        return not self.settings.shared and self._by_sessions.is_wanted(live)

    async def conversation_for(self, call: Call) -> Conversation:
        """Return the conversation in which to send a call to this server, with the right era."""
        if (live := call.live) is None:
            return self._shared.of(await self.era_for(call.era))
        era = await self.era_in(live, call.era, call.correlation)
        return self.conversation(live, era, call.correlation, call.exchange.declaration)

    async def era_in(self, live: LiveSession, client: Era, correlation: str) -> Era:
        """Return the era in which to send requests of a session's client to the server. `client`: the client's era. If
        the server refuses requests without a session's credentials, it is first asked for its era with those of this
        session. `correlation`: the correlation id of the request, for the log of the link that this may open."""
        era = await self.era_for(client)
        if not self._facts.needs_credentials or self.settings.shared:
            return era
        if self.is_asked_by(live):
            await self._by_sessions.ask(live, self.conversation(live, MODERN, correlation))
        if client is LEGACY:
            await self._try_own_handshake(live, correlation)
        return await self.era_for(client)

    def conversation_at_hand(self, exchange: Exchange, client: Era) -> Conversation | None:
        """Return the present conversation in which a client's request would be sent; never wait or create one. If it
        does not exist yet, or the era is unknown, return for a tool call any conversation of the session with the
        server (its list of tools is valid for the call), and None for any other request."""
        live, era = live_session_of(exchange), self.era_now(client)
        if live is None:
            return None
        held = None
        if era is not None:
            key = self._key(era, exchange.declaration)
            held = self._shared.of(era) if self.settings.shared else live.conversations.get(key)
        return self.any_conversation(live) if held is None and exchange.method == "tools/call" else held

    def _key(self, era: Era, declaration: ClientDeclaration | None) -> Key:
        """Return the key under which a session stores its conversation with this server in `era`. With a legacy server,
        each set of capabilities that modern clients declare has a key of its own."""
        if declaration is None or era is not LEGACY:
            return self._plain_keys[era]
        return self.name, era, declaration.key

    def any_conversation(self, live: LiveSession) -> Conversation | None:
        """Return a conversation of the session with this server, in either era; None if there is none."""
        if self.settings.shared:
            return next(iter(self._shared), None)
        return next((held for (name, *_), held in live.conversations.items() if name == self.name), None)

    def is_open_to(self, live: LiveSession) -> bool:
        """Return True if the session has an open link to the server now."""
        conversation = self.any_conversation(live)
        return conversation is not None and conversation.is_open

    def conversation(
        self, live: LiveSession, era: Era, correlation: str, declaration: ClientDeclaration | None = None
    ) -> Conversation:
        """Return the conversation of a session in `era`; create it if there is none. A shared server has one for all
        sessions. A legacy server learns the `declaration` of a modern client in the handshake, so each set of
        capabilities has its own conversation.

        Raises:
            UpstreamUnavailable: the session has ended, its client has declared too many sets of capabilities, or
                another configuration of the server has taken the place of this one.
        """
        if live.ended:
            raise UpstreamUnavailable("the session has ended")
        if self._is_closed:
            raise UpstreamUnavailable(f"server {self.name!r} is served by another configuration now")
        if self.settings.shared:
            return self._shared.of(era)
        key = self._key(era, declaration)
        conversation = live.conversations.get(key)
        if conversation is None:
            if sum(name == self.name for name, *_ in live.conversations) >= MAX_CONVERSATIONS:
                raise UpstreamUnavailable(
                    f"the client has declared more than {MAX_CONVERSATIONS} different sets of capabilities in one "
                    f"session, and server {self.name!r} learns only one for each connection"
                )
            source = SessionLinks(self._links, live, key, declaration, correlation)
            is_replaced = live.take_replaced(self.name)
            conversation = live.conversations[key] = Conversation(
                source,
                IsolatedRouter(live, self._on_change),
                self._deadlines,
                unreturned=live.is_unreturned,
                was_used=any(used.rpartition("/")[0] == self.name for used in live.session.links),
            )
            if is_replaced:
                source.restarted(Loss.CONFIGURED)
                conversation.users.notify(live, Loss.CONFIGURED)
        return conversation

    async def try_handshake(self, live: LiveSession, correlation: str) -> None:
        """Find out if a modern server also accepts a handshake, unless that is known. The test makes a handshake with
        the session's own process: another process would double the wait of the first legacy client. The result is
        stored for `era_now` and `era_for`."""
        await self.era_in(live, MODERN, correlation)
        if not self.settings.shared:
            await self._try_own_handshake(live, correlation)

    async def _try_own_handshake(self, live: LiveSession, correlation: str) -> None:
        if self.era_now(LEGACY) is not None:
            return
        conversation = self.conversation(live, LEGACY, correlation)
        await self._probe.try_with(conversation, lambda: live.conversations.pop((self.name, LEGACY, b""), None))

    def when_started(self, live: LiveSession, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once, when the next link that serves the session is open. Return a function that cancels
        this."""
        return self._links.when_started(None if self.settings.shared else live, callback)

    async def prestart(self, session: Session) -> PrestartedProcess:
        """Start a process for a future session, before the session is open. Raises `UpstreamUnavailable`."""
        # The settings allow prestarted processes only for servers with a command.
        return await self._links.resources.prestart(session, cast("StdioUpstream", self._upstream))

    def limit(self, limits: LimitSettings) -> None:
        """Apply the time limits for start, silence and calls in `limits` from now on, also to calls in flight."""
        self._deadlines.replace(limits.start_timeout_s, limits.noise_timeout_s, limits.call_timeout_s)

    # -- its end

    def owns(self, conversation: Conversation) -> bool:
        """Return True if a conversation is with this server. False if it is with a server of the same name in an
        earlier configuration."""
        return conversation.deadlines is self._deadlines  # one object for each server

    def succeed(self, former: "ConfiguredUpstream") -> None:
        """Take the place of `former`, which is the same server with its former configuration. The next result of each
        session that uses a shared process of `former` reports that the process was replaced."""
        for before in former.shared:
            conversation = self._shared.of(before.era)
            for live in before.users:
                if live is not None:
                    conversation.users.notify(live, Loss.CONFIGURED)
        if any(before.is_open for before in former.shared):
            self.restarts[Loss.CONFIGURED] += 1

    async def leave(self, live: LiveSession, conversation: Conversation, reason: str) -> None:
        """Close a session's conversation with this server, because the server's configuration has changed. Calls in
        flight fail with `reason`. MCP session ids at the server's URL are removed from the session's record."""
        await live.replace_server(conversation, reason)
        with contextlib.suppress(StoreUnavailable):
            # Another URL does not know the MCP session ids of the former one.
            for entry in live.session.remote:
                if msgspec.json.decode(entry, type=tuple[str, str, str])[0] == self._links.name:
                    await self._links.records.remote_session_changed(live, entry, "")

    def forget(self, live: LiveSession) -> None:
        """Remove all that belongs to a session that has ended: its place in shared conversations, its callbacks and
        cached results."""
        self._shared.forget(live)
        self._links.forget(live)
        self.server_lists.results.forget(live.session.id)

    async def close(self) -> None:
        """Close the conversations that belong to no session. Sessions close their own."""
        self._is_closed = True
        await self._by_sessions.close()
        await self._probe.close()
        await self.server_lists.close()
        await self._shared.close()
        await self._upstream.close()
