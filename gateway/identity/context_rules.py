"""Derives a session's context (trust, workspace, permissions) from credential claims and the operator's rules.

Pure. A client may announce its workspace, which counts only if neither a claim nor a rule sets one. An announced
workspace grants nothing (docs/adr/0013-provenance.md): a rule for certain workspaces gives no announced workspace
anything, and a rule that takes trust away takes it from all announced workspaces. So no announced name gains anything.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.config.auth import ClaimNames, ProxySettings
from gateway.config.patterns import any_matches
from gateway.config.policy import RuleSettings
from gateway.errors import bad_context
from gateway.identity.subjects import named_in_header
from session_store import Context, InvalidContext, Principal, Provenance, Session, Source

__all__ = [
    "ContextRules",
    "CredentialClaims",
    "Derived",
    "Reason",
    "granted_by",
    "granted_in_headers",
    "is_catch_all",
    "is_for_all",
    "normal_trust",
]

SANDBOXED: Final = "sandboxed"
AUTHENTICATED: Final[Source] = "authenticated"
_TRUST: Final = frozenset({"direct", SANDBOXED})


class CredentialClaims(msgspec.Struct, frozen=True, cache_hash=True):
    """The trust, workspace and permissions in a credential.

    `trust` is None if the operator has named no claim or header for it, `workspace` if the credential has none.
    `names_workspace`: the operator has named a claim or header for the workspace, so that an announced one is ignored.
    """

    trust: str | None = None
    workspace: str | None = None
    permissions: tuple[str, ...] = ()
    names_workspace: bool = False


def normal_trust(value: object) -> str:
    """A trust level, in whatever case it is written. Unknown levels are `sandboxed`."""
    level = str(value).strip().lower()
    return level if level in _TRUST else SANDBOXED


def granted_by(claims: Mapping[str, Any], names: ClaimNames) -> CredentialClaims:
    """The values of the claims that the operator has named. A missing claim grants nothing."""
    trust, workspace, permissions = (_at(claims, path) for path in (names.trust, names.workspace, names.permissions))
    if isinstance(permissions, str):
        permissions = permissions.split()
    listed = permissions if isinstance(permissions, list | tuple) else ()
    return CredentialClaims(
        trust=normal_trust(trust) if names.trust else None,
        workspace=workspace if isinstance(workspace, str) and workspace else None,
        permissions=tuple(sorted({name for name in listed if isinstance(name, str)})),
        names_workspace=bool(names.workspace),
    )


def granted_in_headers(headers: Mapping[str, str], names: ProxySettings) -> CredentialClaims:
    """As `granted_by`, from the headers of a trusted proxy.

    Raises:
        ValueError: a header is not UTF-8.
    """
    permissions = headers.get(names.permissions_header.lower(), "") if names.permissions_header else ""
    workspace = headers.get(names.workspace_header.lower(), "") if names.workspace_header else ""
    return CredentialClaims(
        trust=normal_trust(headers.get(names.trust_header.lower())) if names.trust_header else None,
        workspace=named_in_header(workspace) or None,
        permissions=tuple(sorted(set(permissions.replace(",", " ").split()))),
        names_workspace=bool(names.workspace_header),
    )


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """The claim with that name, or at that dotted path in nested objects; None if it is missing."""
    if not path:
        return None
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


Rules = Sequence[tuple[str, RuleSettings]]
"""Rules, each with the name of its setting."""

_CACHED: Final = 1_024
"""How many contexts are cached. Clients choose workspaces, so the cache has to be small."""

_NOTHING: Final = CredentialClaims()


class Reason(msgspec.Struct, frozen=True):
    """Why a fact of a context is what it is: the setting or the credential that decides it."""

    fact: str
    text: str


class Derived(msgspec.Struct, frozen=True):
    """A context, and the reasons for its facts."""

    context: Context
    reasons: tuple[Reason, ...]


class ContextRules:
    """Applies the operator's rules, in their order. The first rule that sets trust or workspace decides it. The
    permissions of all matching rules add up, and one rule is enough to make a session read-only.

    `trust_announced`: the operator has configured that an announced workspace counts like any other. `read_only` are
    the trust levels whose sessions are read-only.
    """

    def __init__(
        self,
        rules: Sequence[RuleSettings],
        default_trust: str,
        *,
        trust_announced: bool = False,
        read_only: Collection[str] = (),
    ) -> None:
        self._rules = [(f"gateway.policy.rules[{number}]", rule) for number, rule in enumerate(rules)]
        self._default_trust = default_trust
        self._trust_announced = trust_announced
        self._read_only = read_only
        # The result is the same for every request of a session. Refusals are not cached.
        self.context = functools.lru_cache(maxsize=_CACHED)(self._context)

    def _context(self, principal: Principal, granted: CredentialClaims | None, announced: str) -> Context:
        """The context of a session.

        Raises:
            Refused: the workspace cannot be used.
        """
        return self.derive(principal, granted, announced).context

    def derive(self, principal: Principal, granted: CredentialClaims | None, announced: str) -> Derived:
        """As `context`, with reasons."""
        granted = granted or _NOTHING
        matching = [(name, rule) for name, rule in self._rules if _matches(str(principal), rule.principals)]
        workspace, source, why = _workspace(granted, matching, announced)
        counts = self._trust_announced or source != "announced"
        applied = [
            (name, rule)
            for name, rule in matching
            if is_for_all(rule) or (counts and _matches(workspace, rule.workspaces))
        ]
        reasons = [Reason("workspace", why)]
        trust, trust_source = self._trust(granted, matching, applied, source, reasons)
        permissions, permissions_source = _permissions(granted, applied, source, reasons)
        read_only = self._is_read_only(trust, matching, applied, counts=counts, reasons=reasons)
        for name, rule in matching:
            if not counts and not is_for_all(rule):
                reasons.append(Reason("rules", f"{name} grants nothing: the workspace is only announced"))
        sources = Provenance(workspace=source, trust=trust_source, permissions=permissions_source)
        try:
            context = Context(
                workspace=workspace, trust=trust, permissions=permissions, read_only=read_only, provenance=sources
            )
        except InvalidContext as error:
            raise bad_context(str(error)) from None
        return Derived(context, tuple(reasons))

    def renewed(self, session: Session, granted: CredentialClaims | None) -> Context:
        """The context of a session for a request, from the request's credential and the present rules."""
        known = session.context
        announced = known.workspace if known.provenance.workspace == "announced" else ""
        return self.context(session.principal, granted, announced)

    def _trust(
        self, granted: CredentialClaims, matching: Rules, applied: Rules, workspace: Source, reasons: list[Reason]
    ) -> tuple[str, Source]:
        """The trust, and its source."""
        if granted.trust is not None:
            reasons.append(Reason("trust", "the credential sets it, or lacks the claim or header that is named for it"))
            return granted.trust, AUTHENTICATED
        counts = self._trust_announced or workspace != "announced"
        for name, rule in matching:
            # A rule that takes trust from certain workspaces takes it from all announced ones, so that no client
            # escapes it with another name.
            if rule.trust is not None and ((name, rule) in applied or (rule.trust == SANDBOXED and not counts)):
                reasons.append(Reason("trust", f"{name}.trust"))
                return rule.trust, _source(workspace, [rule] if (name, rule) in applied else [])
        reasons.append(Reason("trust", "gateway.session.trust, because neither a credential nor a rule sets it"))
        return self._default_trust, "configured"

    def _is_read_only(
        self, trust: str, matching: Rules, applied: Rules, *, counts: bool, reasons: list[Reason]
    ) -> bool:
        """Whether the session is read-only. Like trust, a rule takes the right to write from all announced
        workspaces."""
        restricting = [name for name, rule in matching if rule.read_only and ((name, rule) in applied or not counts)]
        found = [f"{name}.read_only" for name in restricting]
        if trust in self._read_only:
            found.append(f"gateway.policy.read_only has the trust {trust}")
        reasons.extend(Reason("read_only", text) for text in found)
        return bool(found)


def _permissions(
    granted: CredentialClaims, applied: Rules, workspace: Source, reasons: list[Reason]
) -> tuple[tuple[str, ...], Source]:
    """The permissions, and their source."""
    adding = [(name, rule) for name, rule in applied if rule.permissions]
    if granted.permissions:
        reasons.append(Reason("permissions", f"the credential: {', '.join(granted.permissions)}"))
    reasons.extend(Reason("permissions", f"{name}.permissions: {', '.join(rule.permissions)}") for name, rule in adding)
    permissions = {*granted.permissions, *(permission for _, rule in adding for permission in rule.permissions)}
    is_from_rules = bool(adding) or not granted.permissions
    source = _source(workspace, [rule for _, rule in adding]) if is_from_rules else AUTHENTICATED
    return tuple(sorted(permissions)), source


def _source(workspace: Source, rules: Sequence[RuleSettings]) -> Source:
    """The source of a value that these rules set for a workspace of that source."""
    return "announced" if workspace == "announced" and not all(map(is_for_all, rules)) else "configured"


def _workspace(granted: CredentialClaims, matching: Rules, announced: str) -> tuple[str, Source, str]:
    """The workspace, its source, and the reason."""
    if granted.workspace is not None:
        return granted.workspace, AUTHENTICATED, "the credential sets it"
    for name, rule in matching:
        if rule.workspace is not None:
            return rule.workspace, "configured", f"{name}.workspace"
    if granted.names_workspace:
        return "", AUTHENTICATED, "the credential lacks the claim or header that is named for it"
    return announced, "announced", "the client announces it" if announced else "nothing sets it"


def is_for_all(rule: RuleSettings) -> bool:
    """True if a rule applies to every workspace."""
    return not rule.workspaces or any(is_catch_all(pattern) for pattern in rule.workspaces)


def is_catch_all(pattern: str) -> bool:
    """Whether a pattern matches every name."""
    return bool(pattern) and not pattern.strip("*")


def _matches(value: str, patterns: Sequence[str]) -> bool:
    return not patterns or any_matches(patterns, value)
