"""Derive a session's context (trust, workspace, permissions) from credential claims and the operator's rules.

Pure. A client may name (*announce*) a workspace, which is used only if neither a claim nor a rule sets one. An
announced workspace grants nothing (docs/adr/0013-provenance.md): a rule for certain workspaces grants nothing to an
announced one, and a rule that lowers trust for certain workspaces lowers it for all announced ones. So a client gains
nothing by the name that it chooses."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from gateway.config.patterns import any_matches
from gateway.config.policy import RuleSettings
from gateway.config.sessions import FIELD_CHARS, USABLE_WORKSPACE, FieldSettings
from gateway.errors import bad_context
from gateway.identity.credential_claims import SANDBOXED, CallerToken, CredentialClaims
from session_store import Context, ContextField, InvalidContext, Principal, Provenance, Session, Source

AUTHENTICATED: Final[Source] = "authenticated"
CONFIGURED: Final[Source] = "configured"
ANNOUNCED: Final[Source] = "announced"


Rules = Sequence[tuple[str, RuleSettings]]
"""Rules, each with the name of its setting."""

_CACHED: Final = 1_024
"""Maximum number of cached contexts. Clients choose workspace names, so the cache must be bounded."""

_SHOWN_CHARS: Final = 64
"""Maximum number of characters of a workspace name that an error shows."""

_NOTHING: Final = CredentialClaims()


class Reason(msgspec.Struct, frozen=True):
    """The reason for one fact of a session's context, such as its trust. `text` names the setting or credential that
    decides the fact."""

    fact: str
    text: str


class Derived(msgspec.Struct, frozen=True):
    """A session's context, and the reasons for its facts."""

    context: Context
    reasons: tuple[Reason, ...]


class ContextRules:
    """Apply the operator's rules, which give a session its context (trust, workspace, permissions), in their order. The
    first matching rule that sets trust or workspace decides it. The permissions of all matching rules add up, and one
    rule is enough to make a session read-only.

    - `default_trust`: the trust of a session if neither a credential nor a rule sets it.
    - `trust_announced`: True if a workspace that the client itself names counts like any other.
    - `read_only`: the trust levels whose sessions are read-only.
    - `fields`: the context fields that the operator has defined, by name.
    - `is_usable`: returns True if servers may get a workspace of this name.
    """

    def __init__(
        self,
        rules: Sequence[RuleSettings],
        default_trust: str,
        *,
        trust_announced: bool = False,
        read_only: Collection[str] = (),
        fields: Mapping[str, FieldSettings] = MappingProxyType({}),
        is_usable: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._default_trust = default_trust
        self._fields = fields
        self.replace(rules, trust_announced=trust_announced, read_only=read_only, is_usable=is_usable)

    def replace(
        self,
        rules: Sequence[RuleSettings],
        *,
        trust_announced: bool,
        read_only: Collection[str],
        is_usable: Callable[[str], bool],
    ) -> None:
        """Apply these rules from now on. The arguments are those of the class. A session gets its new context with its
        next request."""
        self._rules = [(f"gateway.policy.rules[{number}]", rule) for number, rule in enumerate(rules)]
        self._trust_announced = trust_announced
        self._read_only = read_only
        self._is_usable = is_usable
        # The result is the same for every request of a session. Refusals are not cached.
        self.context = functools.lru_cache(maxsize=_CACHED)(self._context)

    def _context(
        self,
        principal: Principal,
        granted: CredentialClaims | None,
        announced: str,
        announced_fields: tuple[tuple[str, str], ...] = (),
    ) -> Context:
        """Return the context of a session with this principal and the claims `granted` of its credential (None: no
        claims). `announced`: the workspace that the client itself names; empty if none. `announced_fields`: the names
        and values of the context fields that the client sets. Cached as `context`.

        Raises:
            Refused: the workspace or a field's value is not allowed.
        """
        return self.derive(principal, granted, announced, announced_fields).context

    def derive(
        self,
        principal: Principal,
        granted: CredentialClaims | None,
        announced: str,
        announced_fields: tuple[tuple[str, str], ...] = (),
    ) -> Derived:
        """Return the context of a session, and the reasons for its facts. Arguments and errors are those of
        `_context`."""
        granted = granted or _NOTHING
        matching = self._matching(principal)
        workspace, source, why = _workspace(granted, matching, announced)
        if workspace and not self._is_usable(workspace):
            raise bad_context(f"servers get the workspace, and {_cut(workspace)!r} is not {USABLE_WORKSPACE}")
        counts, applied = self._counts(source), self._applied(matching, workspace, source)
        reasons = [Reason("workspace", why)]
        trust, trust_source = self._trust(granted, matching, applied, source, reasons)
        permissions, permissions_source = _permissions(granted, applied, source, reasons)
        read_only = self._is_read_only(trust, matching, applied, counts=counts, reasons=reasons)
        for name, rule in matching:
            if not counts and not is_for_all(rule):
                reasons.append(Reason("rules", f"{name} grants nothing: the workspace is only announced"))
        try:
            context = Context(
                workspace=workspace,
                trust=trust,
                permissions=permissions,
                read_only=read_only,
                rights="" if granted.token is None else granted.token.rights,
                fields=tuple(self._values(dict(granted.fields), dict(announced_fields), reasons)),
                provenance=Provenance(workspace=source, trust=trust_source, permissions=permissions_source),
            )
        except InvalidContext as error:
            raise bad_context(str(error)) from None
        return Derived(context, tuple(reasons))

    def renewed(self, session: Session, granted: CredentialClaims | None) -> Context:
        """Return the context of an existing session for a new request, by the current rules and the claims `granted` of
        the request's credential. What the client has announced is taken from the session's record."""
        known = session.context
        announced = known.workspace if known.provenance.workspace == ANNOUNCED else ""
        if not known.fields:
            return self.context(session.principal, granted, announced)
        return self.context(session.principal, granted, announced, announced_fields_of(known))

    def variables(
        self, principal: Principal, context: Context, server: str, own: Mapping[str, str]
    ) -> dict[str, tuple[str, str]]:
        """Return the environment variables that the operator has configured for a session's process of a server: by
        name, the value and the setting that gives it. If several settings give a variable, the rules' `server_env` for
        this server comes first, then the server's `env` (`own`), then the rules' `env`. Of several rules, the first
        decides."""
        of_all: dict[str, tuple[str, str]] = {}
        of_server: dict[str, tuple[str, str]] = {}
        for name, rule in self._applied_to(principal, context):
            of_all = _with_setting(rule.env, f"{name}.env") | of_all
            of_server = _with_setting(rule.server_env.get(server, {}), f"{name}.server_env.{server}") | of_server
        return of_all | _with_setting(own, own_setting(server)) | of_server

    def lifetimes(self, principal: Principal, context: Context) -> dict[str, tuple[float, str]]:
        """Return the `idle_ttl_s` and `max_age_s` that rules set for a session: by name, the seconds and the name of
        the rule's setting. A name that no rule sets is missing. Of several rules, the first decides."""
        found: dict[str, tuple[float, str]] = {}
        for name, rule in self._applied_to(principal, context):
            times = {"idle_ttl_s": rule.idle_ttl_s, "max_age_s": rule.max_age_s}
            found = {kind: (time, f"{name}.{kind}") for kind, time in times.items() if time is not None} | found
        return found

    def _matching(self, principal: Principal) -> Rules:
        return [(name, rule) for name, rule in self._rules if _matches(str(principal), rule.principals)]

    def _counts(self, workspace: Source) -> bool:
        """Return True if rules for certain workspaces can grant rights to a session whose workspace has this source."""
        return self._trust_announced or workspace != ANNOUNCED

    def _applied(self, matching: Rules, workspace: str, source: Source) -> Rules:
        """Return those of the rules `matching` that apply to a session with this workspace from `source`. The principal
        is already checked: all of `matching` are for it."""
        counts = self._counts(source)
        return [
            (name, rule)
            for name, rule in matching
            if is_for_all(rule) or (counts and _matches(workspace, rule.workspaces))
        ]

    def _applied_to(self, principal: Principal, context: Context) -> Rules:
        if not self._rules:
            return []
        return self._applied(self._matching(principal), context.workspace, context.provenance.workspace)

    def _values(
        self, claimed: Mapping[str, str], announced: Mapping[str, str], reasons: list[Reason]
    ) -> Iterator[ContextField]:
        """Yield the context fields that have a value, and add the reasons to `reasons`. `claimed`: the values from
        claims and proxy headers, by field. `announced`: those that the client sets. Fields that have their value from
        the session's metadata are left out, because metadata can change while the session lives."""
        for name, field in self._fields.items():
            value, source, why = field.value, CONFIGURED, f"gateway.context.fields.{name}.value"
            if field.is_announced:
                if announced.get(name):
                    value, source, why = announced[name], ANNOUNCED, "the client announces it"
            elif claimed.get(name):
                value, source = claimed[name], AUTHENTICATED
                why = f"the claim {field.claim}" if field.claim else f"the header {field.header} of the proxy"
            if len(value) > FIELD_CHARS:
                raise bad_context(f"context field {name} is longer than {FIELD_CHARS} characters")
            if value and not field.metadata:
                reasons.append(Reason(f"fields.{name}", why))
                yield ContextField(name, value, source)

    def _trust(
        self, granted: CredentialClaims, matching: Rules, applied: Rules, workspace: Source, reasons: list[Reason]
    ) -> tuple[str, Source]:
        """Return the trust level of a session and its source, and add the reason to `reasons`. `matching`: the rules
        for the principal; `applied`: those of them that also apply to the workspace. `workspace`: the source of the
        workspace."""
        if granted.trust is not None:
            reasons.append(Reason("trust", "the credential sets it, or lacks the claim that is named for it"))
            return granted.trust, AUTHENTICATED
        counts = self._counts(workspace)
        for name, rule in matching:
            # A rule that takes trust from certain workspaces takes it from all announced ones, so that no client
            # escapes it with another name.
            if rule.trust is not None and ((name, rule) in applied or (rule.trust == SANDBOXED and not counts)):
                reasons.append(Reason("trust", f"{name}.trust"))
                return rule.trust, _source(workspace, [rule] if (name, rule) in applied else [])
        reasons.append(Reason("trust", "gateway.session.trust, because neither a credential nor a rule sets it"))
        return self._default_trust, CONFIGURED

    def _is_read_only(
        self, trust: str, matching: Rules, applied: Rules, *, counts: bool, reasons: list[Reason]
    ) -> bool:
        """Return True if the session is read-only, and add the reasons to `reasons`. `matching`: the rules for the
        principal; `applied`: those of them that also apply to the workspace. `counts`: the result of `_counts`; if it
        is False, each read-only rule in `matching` counts, whichever workspaces it is for."""
        restricting = [name for name, rule in matching if rule.read_only and ((name, rule) in applied or not counts)]
        found = [f"{name}.read_only" for name in restricting]
        if trust in self._read_only:
            found.append(f"gateway.policy.read_only has the trust {trust}")
        reasons.extend(Reason("read_only", text) for text in found)
        return bool(found)


def _permissions(
    granted: CredentialClaims, applied: Rules, workspace: Source, reasons: list[Reason]
) -> tuple[tuple[str, ...], Source]:
    """Return a session's permissions and their source, and add the reasons to `reasons`. Those of the credential and of
    all rules in `applied` add up. `workspace`: the source of the session's workspace."""
    adding = [(name, rule) for name, rule in applied if rule.permissions]
    if granted.permissions:
        reasons.append(Reason("permissions", f"the credential: {', '.join(granted.permissions)}"))
    reasons.extend(Reason("permissions", f"{name}.permissions: {', '.join(rule.permissions)}") for name, rule in adding)
    permissions = {*granted.permissions, *(permission for _, rule in adding for permission in rule.permissions)}
    is_from_rules = bool(adding) or not granted.permissions
    source = _source(workspace, [rule for _, rule in adding]) if is_from_rules else AUTHENTICATED
    return tuple(sorted(permissions)), source


def _source(workspace: Source, rules: Sequence[RuleSettings]) -> Source:
    """Return the source of a value that the rules `rules` set: `announced` if one of them is for certain workspaces and
    the client itself has named the session's workspace; otherwise `configured`. `workspace`: the source of that
    workspace."""
    return ANNOUNCED if workspace == ANNOUNCED and not all(map(is_for_all, rules)) else CONFIGURED


def _workspace(granted: CredentialClaims, matching: Rules, announced: str) -> tuple[str, Source, str]:
    """Return a session's workspace, its source, and the reason as text. The credential decides first, then the first of
    the rules `matching` that sets a workspace. Otherwise, it is `announced`: what the client itself names. This is
    ignored if the settings name a claim for the workspace."""
    if granted.workspace is not None:
        return granted.workspace, AUTHENTICATED, "the credential sets it"
    for name, rule in matching:
        if rule.workspace is not None:
            return rule.workspace, CONFIGURED, f"{name}.workspace"
    if granted.names_workspace:
        return "", AUTHENTICATED, "the credential lacks the claim that is named for it"
    return announced, ANNOUNCED, "the client announces it" if announced else "nothing sets it"


def announced_fields_of(context: Context) -> tuple[tuple[str, str], ...]:
    """Return the names and values of the context fields that the client itself has set."""
    return tuple((field.name, field.value) for field in context.fields if field.source == ANNOUNCED)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def own_setting(server: str) -> str:
    """Return the full name of the setting with a server's own environment variables."""
    return f"mcpServers.{server}.env"


def _with_setting(variables: Mapping[str, str], setting: str) -> dict[str, tuple[str, str]]:
    return {name: (value, setting) for name, value in variables.items()}


def is_for_all(rule: RuleSettings) -> bool:
    """Return True if a rule applies to every workspace."""
    return not rule.workspaces or any(is_catch_all(pattern) for pattern in rule.workspaces)


def is_catch_all(pattern: str) -> bool:
    """Return True if a pattern matches every name."""
    return bool(pattern) and not pattern.strip("*")


def _matches(value: str, patterns: Sequence[str]) -> bool:
    return not patterns or any_matches(patterns, value)


def kept_claims(session: Session, rules: ContextRules) -> CredentialClaims | None:
    """Return claims that give a session the context in its record. They stand in for the session's credential where the
    credential is not at hand. Return None if the rules have changed since the session's last request, so that no claims
    give it this context."""
    context, source = session.context, session.context.provenance
    is_claimed = source.workspace == AUTHENTICATED
    claims = CredentialClaims(
        trust=context.trust if source.trust == AUTHENTICATED else None,
        workspace=context.workspace or None if is_claimed else None,
        names_workspace=is_claimed,
        fields=tuple((field.name, field.value) for field in context.fields if field.source == AUTHENTICATED),
        token=CallerToken("", 0.0, context.rights) if context.rights else None,
    )
    # Permissions that no rule gives come from claims.
    given = rules.renewed(session, claims).permissions
    claimed = tuple(name for name in context.permissions if name not in given)
    claims = replace(claims, permissions=claimed)
    return claims if rules.renewed(session, claims) == context else None
