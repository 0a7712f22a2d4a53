"""Explain a session to operators: the variables, headers, folders and sandboxes of its servers, and the reasons for
what it sees."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from gateway.admin.report_types import HiddenTools, Origin, ServerEnvironment, SessionEnvironment, Variable
from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession
from gateway.config.auth import API_KEY_ISSUER, OPERATOR_ISSUER, AuthSettings
from gateway.config.endpoint_paths import ALL, path_of
from gateway.config.secrets import secrets_in
from gateway.config.sessions import BUILT_IN, EnvironmentValue
from gateway.config.settings import Settings
from gateway.context.session_assertions import HEADER
from gateway.identity.context_rules import ContextRules, Reason, announced_fields_of, kept_claims, own_setting
from gateway.policy.access_policy import Policy
from gateway.protocol.item_digests import digest_of
from gateway.protocol.merged_lists import Tools, operation_of
from gateway.sandbox.sandbox_checks import explained, lines_of, server_sandbox_of
from gateway.sandbox.sandboxes_by_trust import SandboxesByTrust
from gateway.sandbox.shared_package_fetches import package_folder
from gateway.sandbox.walls_from_profile import Enclosure
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from session_store import Context, Principal, Session
from session_store.redaction import scrubbed_text
from session_store.session import redact
from session_store.tool_session import ACCESS_VARIABLE, FACTS_VARIABLE, SOCKET_VARIABLE
from transports.era import LEGACY, Era
from transports.inbound_port import Refused
from transports.upstream.cgroup_delegation import Delegation
from transports.upstream.stdio import HOME, INHERITED
from transports.upstream_port import ConnectOptions

_MOST_CHARS: Final = 300
_OWN: Final[Mapping[str, str]] = {
    SOCKET_VARIABLE: "the socket to the state of the session",
    ACCESS_VARIABLE: "the credential for that socket",
    FACTS_VARIABLE: "the facts of the session as JSON",
}
_SHOWN: Final = frozenset({"inherited", "sandbox"})
_OF_SANDBOXES: Final = ("HOME", "TMPDIR", "RES_OPTIONS")
_MOST_SERVERS: Final = 50
_MOST_VARIABLES: Final = 200
_MOST_REASONS: Final = 20
_MOST_NAMES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSources:
    """The sources of the environment variables of one server's process, for one session, in this order: a later source
    overrides an earlier one. `of` says which source of a variable counts."""

    where: str
    """The name of the setting with the server's own `env`."""
    inherited: Mapping[str, str] = field(default_factory=dict)
    """What the process inherits from the gateway's environment, by variable."""
    sandbox: Mapping[str, str] | None = None
    """What the sandbox sets; None if there is no sandbox."""
    names: Mapping[str, EnvironmentValue] = field(default_factory=dict)
    """The field of the session whose value each variable gets. Empty for a process that all sessions share."""
    rules: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What the policy's rules set: the value and the name of the setting. Empty for a shared process."""
    own: Mapping[str, str] = field(default_factory=dict)
    """The server's own `env`."""
    is_of_session: bool = True
    """False for a process that all sessions share."""

    @property
    def known(self) -> Iterable[str]:
        """Return the names of all variables that these sources set."""
        sandbox = () if self.sandbox is None else (*_OF_SANDBOXES, *self.sandbox)
        ours = tuple(_OWN) if self.is_of_session else ()
        return {*self.inherited, *sandbox, *self.names, *self.rules, *ours, *self.own}

    def of(self, name: str) -> tuple[Origin, str]:
        """Return the origin of a variable, and the setting or field that gives it. If several sources set it, this is
        the one that overrides the others."""
        if name in self.own:
            return _configured(self.own[name], self.where)
        if name in _OWN and self.is_of_session:
            return "gateway", _OWN[name]
        if name in self.rules:
            value, where = self.rules[name]
            return _configured(value, where, "rule")
        if name in self.names:
            return "session", self.names[name].field
        if self.sandbox is not None and (name in _OF_SANDBOXES or name in self.sandbox):
            return "sandbox", "the profile of the sandbox"
        if name in self.inherited:
            return "inherited", "the gateway's own environment"
        return "package", "what npx or uvx would set"


def variables_of(sources: VariableSources, given: Mapping[str, str] | None) -> Iterator[Variable]:
    """Yield the variables of a process, in order of name. `given`: the variables that the gateway has set for a running
    process, without inherited ones and the server's `env`. It is None if no process runs; then the values of all
    variables but the inherited ones are unknown."""
    present = {**sources.inherited, **(given or {})}
    for name in sorted({*sources.known, *present}):
        origin, where = sources.of(name)
        is_known = given is not None or origin == "inherited"
        value = _shown(name, origin, where, present.get(name)) if is_known else None
        yield Variable(name=name, origin=origin, where=where, value=value)


def _shown(name: str, origin: Origin, where: str, value: str | None) -> str | None:
    """Return the value of a variable as operators may see it: shortened and without credentials. Return None if `value`
    is None, or if they may not see it."""
    if value is None or not (origin in _SHOWN or name == SOCKET_VARIABLE or where in BUILT_IN):
        return None
    if where == "session_id":
        return redact(value)
    # A principal such as `api-key:alice` has the form of a credential after its name, and is none.
    return (value if where.startswith("principal") else scrubbed_text(value))[:_MOST_CHARS]


def headers_of(configured: Mapping[str, str], where: str) -> list[Variable]:
    """Return the headers of requests to a server behind a URL, without their values: the configured ones (from the
    setting `where`), and the gateway's signed assertion."""
    found = []
    for name, value in configured.items():
        origin, source = _configured(value, where)
        found.append(Variable(name=name, origin=origin, where=source))
    return [*found, Variable(name=HEADER, origin="gateway", where="a signed statement of the session's context")]


def _configured(value: str, where: str, origin: Origin = "configuration") -> tuple[Origin, str]:
    if not (names := secrets_in(value)):
        return origin, where
    return "secret", f"{where}, with {', '.join(f'gateway.secrets.{name}' for name in names)}"


@dataclass(eq=False, repr=False, kw_only=True)
class SessionEnvironments:
    """Explain to operators what the servers of a session are given, and why. A reload changes `upstreams` and
    `sandboxes` in place."""

    replica: str
    """The name of this replica."""
    settings: Settings
    delegation: Callable[[], Delegation]
    """Returns the subtree of cgroups that is delegated to the gateway, or why there is none."""
    unusable: Callable[[str, list[dict[str, Any]]], Mapping[str, str]]
    """Returns what is wrong with the input schemas of a server's tools, by tool."""
    upstreams: Sequence[ConfiguredUpstream]
    rules: ContextRules
    policy: Policy
    sandboxes: Mapping[str, SandboxesByTrust]
    """The sandboxes by server."""

    def __post_init__(self) -> None:
        self._faults: dict[str, tuple[Tools, Mapping[str, str]]] = {}  # of the tools that a server has listed last

    def replace(self, settings: Settings) -> None:
        """Explain sessions by the configuration `settings`, which was just loaded, from now on."""
        self.settings = settings

    def of(self, session: Session, live: LiveSession | None = None) -> SessionEnvironment:
        """Return the environment of a session. `live`: the session in memory, whose running processes are reported.
        Without it, derive the environment from the record and this replica's configuration."""
        served = [one for one in self.upstreams if session.endpoint in (ALL, path_of(one.name))]
        names, restricted = [one.name for one in served], self.policy.restricted_by(session.context)
        return SessionEnvironment(
            session=redact(session.id),
            replica=self.replica,
            held=live is not None,
            endpoint=session.endpoint,
            principal=str(session.principal),
            trust=session.context.trust,
            why=about_session(session, names, self.settings.gateway.auth, self._reasons(session), restricted),
            servers=[self._server(upstream, session, live) for upstream in served[:_MOST_SERVERS]],
            more_servers=max(len(served) - _MOST_SERVERS, 0),
        )

    def _reasons(self, session: Session) -> tuple[Reason, ...] | None:
        """Return the reasons for a session's context. Return None if the present rules of this replica would give the
        session another context."""
        rules, context = self.rules, session.context
        try:
            claims = kept_claims(session, rules)
            if claims is None:
                return None
            announced = context.workspace if context.provenance.workspace == "announced" else ""
            return rules.derive(session.principal, claims, announced, announced_fields_of(context)).reasons
        except Refused:  # of a workspace that may not be used any more
            return None

    def _server(self, upstream: ConfiguredUpstream, session: Session, live: LiveSession | None) -> ServerEnvironment:
        name, entry, policy = upstream.name, upstream.settings, self.policy
        kind = "left out" if upstream.is_left_out else entry.kind
        found = ServerEnvironment(server=name, kind=kind, shared=entry.shared)
        if hidden := policy.why_hidden(session.context, name):
            return replace(found, hidden=hidden, why=[f"For this session the server does not exist: {hidden}."])
        if upstream.is_left_out:
            return replace(found, why=[f"It is left out: {upstream.state.reason}."])
        conversation = _conversation(upstream, live)
        era = upstream.era_now(Era(session.era)) if conversation is None else conversation.era
        listed, hiding = self._tools(upstream, session.context)
        visible = (listed or 0) - sum(one.count for one in hiding)
        sentences = [
            about_isolation(kind, shared=entry.shared, where=f"mcpServers.{name}"),
            about_tools(listed, visible),
            about_era(session.era, era),
        ]
        link = None if conversation is None else conversation.link
        given = None if conversation is None or link is None else conversation.links.resources.given
        return replace(
            found,
            era="" if era is None else str(era),
            pid=None if link is None else link.pid,
            injected=given is not None,
            tools=listed,
            visible_tools=visible,
            hidden_tools=hiding[:_MOST_REASONS],
            why=sentences,
            **(self._process(upstream, session, given) if kind == "command" else {}),
            headers=headers_of(entry.headers, f"mcpServers.{name}.headers") if kind == "url" else [],
        )

    def _tools(self, upstream: ConfiguredUpstream, context: Context) -> tuple[int | None, list[HiddenTools]]:
        """Return how many tools the server lists (None: unknown), and which of them are hidden from a session with the
        context `context`: one `HiddenTools` for each reason, the largest first."""
        tools = upstream.probed_tools
        if tools is None:
            return None, []
        names: dict[str, list[str]] = {}
        faults = self._faults_of(upstream.name, tools) if self.settings.gateway.policy.check_arguments else {}
        for tool in tools.listed:
            name = tool["name"]
            reason = self.policy.decide(context, upstream.name, name, operation_of(tool), digest_of(tool)).reason
            if not reason and name in faults:
                reason = f"its input schema is invalid: {faults[name]} (gateway.policy.check_arguments)"
            if reason:
                names.setdefault(reason, []).append(name)
        hiding = [
            HiddenTools(reason=why, count=len(some), names=sorted(some)[:_MOST_NAMES]) for why, some in names.items()
        ]
        return len(tools.listed), sorted(hiding, key=lambda one: -one.count)

    def _faults_of(self, server: str, tools: Tools) -> Mapping[str, str]:
        """Return the faults in the schemas of a server's tools, by tool. They are cached until the server lists other
        tools."""
        known, faults = self._faults.get(server, (None, {}))
        if known is not tools:
            faults = self.unusable(server, tools.listed)
            self._faults[server] = tools, faults
        return faults

    def _process(self, upstream: ConfiguredUpstream, session: Session, given: ConnectOptions | None) -> dict[str, Any]:
        """Return the fields of `ServerEnvironment` about the process of a server with a command: sandbox, variables and
        folders. `given`: the options that the running process was started with; None if none runs."""
        name, entry = upstream.name, upstream.settings
        by_trust = self.sandboxes[name]
        sandbox = by_trust.shared if entry.shared else by_trust.sandbox(session.context.trust)
        enclosure = by_trust.enclosure(sandbox)
        trusts = () if entry.shared else (session.context.trust,)
        configured = {variable: (value, own_setting(name)) for variable, value in entry.env.items()}
        if not entry.shared:
            configured = self.rules.variables(session.principal, session.context, name, entry.env)
        holds = explained(
            server_sandbox_of(name, by_trust, sandbox, trusts, delegation=self.delegation()),
            by_trust,
            package_folder(entry),
            self.delegation(),
            None if given is None else given.walls,
        )
        sources = VariableSources(
            where=own_setting(name),
            inherited={name: value for name in INHERITED if (value := os.environ.get(name)) is not None},
            sandbox=None if enclosure is None else enclosure.env,
            names={} if entry.shared else self.settings.environment_of(entry),
            rules={each: found for each, found in configured.items() if found[1] != own_setting(name)},
            own={each: value for each, (value, where) in configured.items() if where == own_setting(name)},
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
    sources: VariableSources, cwd: str | None, given: ConnectOptions | None, enclosure: Enclosure | None
) -> dict[str, str]:
    """Return the folders of a process, as fields of `ServerEnvironment`: `cwd`, `home` and `temporary`. `given`: the
    options that the running process was started with; None if none runs. In that case, a folder that the sandbox will
    make is shown as the name of its variable."""
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


def _conversation(upstream: ConfiguredUpstream, live: LiveSession | None) -> Conversation | None:
    """Return the conversation of a session with a server, or of all sessions if they share the server. If there are
    several, prefer one with an open link. Return None if there is none."""
    if upstream.settings.shared:
        found: Iterable[Conversation] = upstream.shared
    elif live is None:
        return None
    else:
        found = (one for (name, *_), one in live.conversations.items() if name == upstream.name)
    return min(found, key=lambda one: one.link is None, default=None)


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # somebody has removed it
        return ""


def about_session(
    session: Session,
    served: Sequence[str],
    auth: AuthSettings,
    reasons: Iterable[Reason] | None,
    entries: Sequence[str],
) -> list[str]:
    """Return sentences about a session, in the order in which a request is decided. `served` are the servers behind its
    endpoint. `reasons` explain its context; None if the rules have changed since its last request. `entries` are the
    entries of `gateway.policy.workspaces` that restrict it."""
    sentences = [_endpoint(session, served), _principal(session.principal, auth), *_context(session, reasons)]
    if entries:
        which = _list([f"gateway.policy.workspaces.{entry}" for entry in entries])
        sentences.append(f"Its workspace sees what {which} allow{'s' if len(entries) == 1 else ''}.")
    speaks = session.client.protocol_version or "no version that is recorded"
    name = f"{session.client.name} {session.client.version}".strip() or "a client without a name"
    sentences.append(f"Its client is {name}, which speaks {_era(session.era)} ({speaks}).")
    return sentences


def _endpoint(session: Session, served: Sequence[str]) -> str:
    if not served:
        return f"It was opened at {session.endpoint}, which this replica does not serve."
    if len(served) == 1:
        return f"It was opened at {session.endpoint}, which serves {served[0]} alone."
    return f"It was opened at {session.endpoint}, which serves {len(served)} servers: {_list(served)}."


def _principal(principal: Principal, auth: AuthSettings) -> str:
    if principal.is_anonymous:
        return "Its principal is anonymous: its client has sent no credential."
    if principal.issuer == API_KEY_ISSUER:
        by = f"its client has sent the key gateway.api_keys.{principal.subject}"
    elif principal.issuer == OPERATOR_ISSUER:
        by = f"the operator {principal.subject} has opened it by trying a tool"
    elif auth.proxies is not None and principal.issuer == auth.proxies.issuer:
        by = f"a trusted proxy names it in the header {auth.proxies.subject_header} (gateway.auth.proxies)"
    elif principal.issuer in (entry.issuer for entry in auth.jwt):
        by = f"its client has sent an access token of {principal.issuer} (gateway.auth.jwt)"
    else:
        by = "by a credential that this configuration does not have any more"
    return f"Its principal is {principal}: {by}."


def _context(session: Session, reasons: Iterable[Reason] | None) -> Iterable[str]:
    context = session.context
    why: dict[str, list[str]] = {}
    for reason in reasons or ():
        why.setdefault(reason.fact, []).append(reason.text)

    def because(fact: str) -> str:
        return f": {'; '.join(why[fact])}" if why.get(fact) else ""

    named = f"Its workspace is {context.workspace}" if context.workspace else "It has no workspace"
    yield f"{named}{because('workspace')}."
    yield f"Its trust is {context.trust}{because('trust')}."
    if context.permissions:
        yield f"Its permissions are {_list(context.permissions)}{because('permissions')}."
    if context.read_only:
        yield f"It is read-only{because('read_only')}."
    yield from (f"Note: {text}." for text in why.get("rules", ()))
    if reasons is None:
        yield "The rules have changed since its last request. The next one applies them."


def about_tools(listed: int | None, visible: int) -> str:
    """Return a sentence on how many of a server's tools the session sees. `listed`: how many the server lists; None if
    unknown."""
    if listed is None:
        return "Its tools are not known: it has not answered yet, or answers with the credentials of a session only."
    if visible == listed:
        return f"The session sees all of its {listed} tools: no rule hides one." if listed else "It lists no tools."
    return f"The session sees {visible} of its {listed} tools."


def about_isolation(kind: str, *, shared: bool, where: str) -> str:
    """Return a sentence on what a session shares with others at a server: process, connection or object. `kind`: as in
    `ServerEnvironment`. `where`: the name of the server's settings."""
    if kind == "object":
        return "It is an object in the gateway's own process, which all sessions use."
    if kind == "url":
        one = f"one connection for all sessions ({where}.shared)" if shared else "a connection of its own"
        return f"It is behind a URL, and the session has {one}."
    if shared:
        return f"One process is for all sessions ({where}.shared). It learns of the session of a call from _meta alone."
    return "The session has a process of its own, which ends with the session."


def about_era(client: str, server: Era | None) -> str:
    """Return a sentence on the eras (legacy or modern MCP) of server and client, and whether the gateway translates
    between them."""
    if server is None:
        return "It is not known yet in which era it speaks."
    if client == server:
        return f"It speaks {_era(server)} as the client does, so messages pass as they are."
    return f"It speaks {_era(server)} and the client {_era(client)}: the gateway translates."


def _era(era: str) -> str:
    return "MCP with a handshake" if era == LEGACY else "MCP 2026-07-28"


def _list(names: Iterable[str]) -> str:
    known = list(names)
    more = [f"{len(known) - _MOST_NAMES} more"] if len(known) > _MOST_NAMES else []
    return ", ".join([*known[:_MOST_NAMES], *more])
