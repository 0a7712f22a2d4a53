"""Derives a session's context (trust, workspace, permissions) from credential claims and the operator's rules.

Pure. A client may announce its workspace, which counts only if neither a claim nor a rule sets one. An announced
workspace grants nothing (docs/adr/0013-provenance.md): a rule for certain workspaces gives no announced workspace
anything, and a rule that takes trust away takes it from all announced workspaces. So no announced name gains anything.
"""

import functools
from collections.abc import Mapping, Sequence
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


_CACHED: Final = 1_024
"""How many contexts are cached. Clients choose workspaces, so the cache has to be small."""

_NOTHING: Final = CredentialClaims()


class ContextRules:
    """Applies the operator's rules, in their order. The first rule that sets trust or workspace decides it. The
    permissions of all matching rules add up.

    `trust_announced`: the operator has configured that an announced workspace counts like any other.
    """

    def __init__(self, rules: Sequence[RuleSettings], default_trust: str, *, trust_announced: bool = False) -> None:
        self._rules = rules
        self._default_trust = default_trust
        self._trust_announced = trust_announced
        # The result is the same for every request of a session. Refusals are not cached.
        self.context = functools.lru_cache(maxsize=_CACHED)(self._context)

    def _context(self, principal: Principal, granted: CredentialClaims | None, announced: str) -> Context:
        """The context of a session.

        Raises:
            Refused: the workspace cannot be used.
        """
        granted = granted or _NOTHING
        matching = [rule for rule in self._rules if _matches(str(principal), rule.principals)]
        workspace, source = _workspace(granted, matching, announced)
        counts = self._trust_announced or source != "announced"
        applied = [rule for rule in matching if is_for_all(rule) or (counts and _matches(workspace, rule.workspaces))]
        trust, trust_source = granted.trust, AUTHENTICATED
        if trust is None:
            decisive = self._decisive(matching, applied, counts=counts)
            trust = self._default_trust if decisive is None else str(decisive.trust)
            trust_source = _source(source, [rule for rule in applied if rule is decisive])
        adding = [rule for rule in applied if rule.permissions]
        permissions = {*granted.permissions, *(name for rule in adding for name in rule.permissions)}
        sources = Provenance(
            workspace=source,
            trust=trust_source,
            permissions=_source(source, adding) if adding or not granted.permissions else AUTHENTICATED,
        )
        try:
            return Context(workspace=workspace, trust=trust, permissions=tuple(sorted(permissions)), provenance=sources)
        except InvalidContext as error:
            raise bad_context(str(error)) from None

    def renewed(self, session: Session, granted: CredentialClaims | None) -> Context:
        """The context of a session for a request, from the request's credential and the present rules."""
        known = session.context
        announced = known.workspace if known.provenance.workspace == "announced" else ""
        return self.context(session.principal, granted, announced)

    @staticmethod
    def _decisive(
        matching: Sequence[RuleSettings], applied: Sequence[RuleSettings], *, counts: bool
    ) -> RuleSettings | None:
        """The rule that decides the trust. A rule that takes trust from certain workspaces takes it from all announced
        ones, so that no client escapes it with another name."""
        for rule in matching:
            if rule.trust is not None and (rule in applied or (rule.trust == SANDBOXED and not counts)):
                return rule
        return None


def _source(workspace: Source, rules: Sequence[RuleSettings]) -> Source:
    """The source of a value that these rules set for a workspace of that source."""
    return "announced" if workspace == "announced" and not all(map(is_for_all, rules)) else "configured"


def _workspace(granted: CredentialClaims, matching: Sequence[RuleSettings], announced: str) -> tuple[str, Source]:
    if granted.workspace is not None:
        return granted.workspace, "authenticated"
    for rule in matching:
        if rule.workspace is not None:
            return rule.workspace, "configured"
    return ("", "authenticated") if granted.names_workspace else (announced, "announced")


def is_for_all(rule: RuleSettings) -> bool:
    """True if a rule applies to every workspace."""
    return not rule.workspaces or any(is_catch_all(pattern) for pattern in rule.workspaces)


def is_catch_all(pattern: str) -> bool:
    """Whether a pattern matches every name."""
    return bool(pattern) and not pattern.strip("*")


def _matches(value: str, patterns: Sequence[str]) -> bool:
    return not patterns or any_matches(patterns, value)
