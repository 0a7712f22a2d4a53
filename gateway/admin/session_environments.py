"""Finds out what the servers of a session were given, and why the session sees what it sees."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from gateway.admin.injected_variables import Sources, headers_of, variables_of
from gateway.admin.reports import HiddenTools, ServerEnvironment, SessionEnvironment
from gateway.admin.why_seen import about_era, about_isolation, about_session, about_tools
from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.config.settings import Settings
from gateway.context.assertion import HEADER
from gateway.identity.context_rules import ContextRules, Reason, announced_fields_of, kept_claims
from gateway.policy.decisions import Policy
from gateway.protocol.listing import Tools, operation_of
from gateway.sandbox.enclosures import Enclosures
from gateway.sandbox.explained import explained, lines_of
from gateway.sandbox.packages import package_folder
from gateway.sandbox.profiles import Enclosure
from gateway.sandbox.server_sandboxes import server_sandbox_of
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import Context, Session
from session_store.session import redact
from transports.era import Era
from transports.inbound_port import Refused
from transports.upstream.delegation import Delegation
from transports.upstream.stdio import HOME, INHERITED
from transports.upstream_port import ConnectOptions

__all__ = ["Given", "SessionEnvironments"]

_MOST_SERVERS: Final = 50
_MOST_VARIABLES: Final = 200
_MOST_REASONS: Final = 20
_MOST_NAMES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What decides what sessions are given: the configuration, and the parts that apply it. `served` are the names of
    the servers behind each endpoint, `enclosures` the sandboxes of servers by name. `delegation` says where their
    cgroups are, `unusable` returns the tools of a server whose schemas cannot be used, and why."""

    settings: Settings
    delegation: Callable[[], Delegation]
    unusable: Callable[[str, list[dict[str, Any]]], Mapping[str, str]]
    upstreams: Sequence[ConfiguredUpstream]
    served: Mapping[str, Sequence[str]]
    rules: ContextRules
    policy: Policy
    enclosures: Mapping[str, Enclosures]


class SessionEnvironments:
    """Explains sessions on the replica of that name. `live` are those that it serves."""

    def __init__(self, replica: str, given: Given, live: LiveSessions) -> None:
        self._replica = replica
        self._given = given
        self._live = live
        self._upstreams = {upstream.name: upstream for upstream in given.upstreams}
        self._faults: dict[str, tuple[Tools, Mapping[str, str]]] = {}  # of the tools that a server has listed last

    def held(self, session_id: str) -> SessionEnvironment | None:
        """The environment of a session that this replica serves; None if it does not."""
        live = self._live.get(session_id)
        return None if live is None else self.of(live.session, live)

    def of(self, session: Session, live: LiveSession | None = None) -> SessionEnvironment:
        """The environment of a session. Without `live`, what its record and the configuration here say."""
        served = [name for name in self._given.served.get(session.endpoint, ()) if name in self._upstreams]
        options = self._given.settings.gateway
        told = about_session(
            session, served, options.auth, self._reasons(session), self._given.policy.restricted_by(session.context)
        )
        return SessionEnvironment(
            session=redact(session.id),
            replica=self._replica,
            held=live is not None,
            endpoint=session.endpoint,
            principal=str(session.principal),
            trust=session.context.trust,
            why=told,
            servers=[self._server(self._upstreams[name], session, live) for name in served[:_MOST_SERVERS]],
            more_servers=max(len(served) - _MOST_SERVERS, 0),
        )

    def _reasons(self, session: Session) -> tuple[Reason, ...] | None:
        """Why the context of a session is what it is; None if the rules of this replica would give it another."""
        rules, context = self._given.rules, session.context
        try:
            claims = kept_claims(session, rules)
            if claims is None:
                return None
            announced = context.workspace if context.provenance.workspace == "announced" else ""
            return rules.derive(session.principal, claims, announced, announced_fields_of(context)).reasons
        except Refused:  # of a workspace that may not be used any more
            return None

    def _server(self, upstream: ConfiguredUpstream, session: Session, live: LiveSession | None) -> ServerEnvironment:
        name, entry, policy = upstream.name, upstream.settings, self._given.policy
        kind = "command" if entry.command else "url" if entry.url else "object"
        found = ServerEnvironment(server=name, kind=kind, shared=entry.shared)
        if hidden := policy.hides(session.context, name):
            return _replaced(found, hidden=hidden, why=[f"For this session the server does not exist: {hidden}."])
        conversation = _conversation(upstream, live)
        era = upstream.era_now(Era(session.era)) if conversation is None else conversation.era
        listed, hiding = self._tools(upstream, session.context)
        visible = (listed or 0) - sum(one.count for one in hiding)
        told = [
            about_isolation(kind, shared=entry.shared, where=f"mcpServers.{name}"),
            about_tools(listed, visible),
            about_era(session.era, era),
        ]
        link = None if conversation is None else conversation.link
        given = None if conversation is None or link is None else conversation.links.resources.given
        return _replaced(
            found,
            era="" if era is None else str(era),
            pid=None if link is None else link.pid,
            injected=given is not None,
            tools=listed,
            visible_tools=visible,
            hidden_tools=hiding[:_MOST_REASONS],
            why=told,
            **(self._process(upstream, session, given) if kind == "command" else {}),
            headers=headers_of(entry.headers, f"mcpServers.{name}.headers", HEADER) if kind == "url" else [],
        )

    def _tools(self, upstream: ConfiguredUpstream, context: Context) -> tuple[int | None, list[HiddenTools]]:
        """How many tools the server lists, and those that the session does not see, by reason."""
        tools = upstream.probed_tools
        if tools is None:
            return None, []
        names: dict[str, list[str]] = {}
        faults = self._faults_of(upstream.name, tools) if self._given.settings.gateway.policy.hides_unusable else {}
        for tool in tools.listed:
            name = tool["name"]
            reason = self._given.policy.decide(context, upstream.name, name, operation_of(tool)).reason
            if not reason and name in faults:
                reason = f"its input schema is invalid: {faults[name]} (gateway.policy.unusable_schemas)"
            if reason:
                names.setdefault(reason, []).append(name)
        hiding = [
            HiddenTools(reason=why, count=len(some), names=sorted(some)[:_MOST_NAMES]) for why, some in names.items()
        ]
        return len(tools.listed), sorted(hiding, key=lambda one: -one.count)

    def _faults_of(self, server: str, tools: Tools) -> Mapping[str, str]:
        """The tools whose schemas cannot be used, and why. They are checked when the server has listed others."""
        known, faults = self._faults.get(server, (None, {}))
        if known is not tools:
            faults = self._given.unusable(server, tools.listed)
            self._faults[server] = tools, faults
        return faults

    def _process(self, upstream: ConfiguredUpstream, session: Session, given: ConnectOptions | None) -> dict[str, Any]:
        """The sandbox, the variables and the folders of a server that is a process."""
        name, entry = upstream.name, upstream.settings
        enclosures = self._given.enclosures[name]
        sandbox = enclosures.shared if entry.shared else enclosures.sandbox(session.context.trust)
        enclosure = enclosures.enclosure(sandbox)
        trusts = () if entry.shared else (session.context.trust,)
        holds = explained(
            server_sandbox_of(name, enclosures, sandbox, trusts, delegation=self._given.delegation()),
            enclosures,
            package_folder(self._given.settings.gateway.packages, entry),
            self._given.delegation(),
            None if given is None else given.walls,
        )
        sources = Sources(
            where=f"mcpServers.{name}.env",
            inherited={name: value for name in INHERITED if (value := os.environ.get(name)) is not None},
            sandbox=None if enclosure is None else enclosure.env,
            names={} if entry.shared else self._given.settings.environment_of(entry),
            rules={} if entry.shared else self._given.rules.environment_sources(session.principal, session.context),
            own=entry.env,
            is_of_session=not entry.shared,
        )
        variables = list(variables_of(sources, None if given is None else given.env))
        return {
            **_folders(sources, entry.cwd, given, enclosure),
            "profile": sandbox.profile,
            "sandbox": list(lines_of(name, holds)),
            "holds": holds,
            "variables": variables[:_MOST_VARIABLES],
            "more_variables": max(len(variables) - _MOST_VARIABLES, 0),
        }


def _folders(
    sources: Sources, cwd: str | None, given: ConnectOptions | None, enclosure: Enclosure | None
) -> dict[str, str]:
    """The working folder of a process, its HOME, and its folder for temporary files. What is made when it starts is
    named by a variable before."""
    is_made = given is not None or enclosure is None
    values = {**sources.inherited, **({} if given is None else given.env), **sources.own}

    def folder(variable: str, default: str) -> str:
        origin = sources.of(variable)[0]
        if origin == "secret":
            return f"{variable}, which has a secret of the principal"
        return (values.get(variable) or default) if is_made or origin != "sandbox" else variable

    if given is not None and given.cwd is not None:
        cwd = given.cwd
    elif given is None and enclosure is not None and enclosure.moves:
        cwd = HOME
    home = folder("HOME", "")
    return {"cwd": home if cwd == HOME else cwd or _here(), "home": home, "temporary": folder("TMPDIR", "/tmp")}


def _replaced(found: ServerEnvironment, **more: Any) -> ServerEnvironment:
    return ServerEnvironment(**{name: getattr(found, name) for name in found.__struct_fields__} | more)


def _conversation(upstream: ConfiguredUpstream, live: LiveSession | None) -> Conversation | None:
    """The conversation of a session with a server, one with an open link before others."""
    if upstream.settings.shared:
        found: Iterable[Conversation] = upstream.shared
    elif live is None:
        return None
    else:
        found = (one for (name, *_), one in live.conversations.items() if name == upstream.name)
    return next(islice(sorted(found, key=lambda one: one.link is None), 1), None)


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # somebody has removed it
        return ""
