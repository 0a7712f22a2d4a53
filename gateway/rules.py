"""Who a session belongs to and what it may: trust, workspace and permissions, from claims and the operator's rules.

Pure. Clients have a say in their workspace only, where neither a claim nor a rule has one.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.errors import bad_context
from gateway.patterns import any_matches
from gateway.policy_settings import ClaimNames, RuleSettings
from session_store import Context, InvalidContext, Principal

__all__ = ["Granted", "Rules", "granted_by", "normal_trust"]

SANDBOXED: Final = "sandboxed"
_TRUST: Final = frozenset({"direct", SANDBOXED})


class Granted(msgspec.Struct, frozen=True, cache_hash=True):
    """What a credential says of who presents it. None where it says nothing."""

    trust: str | None = None
    workspace: str | None = None
    permissions: tuple[str, ...] = ()


def normal_trust(value: object) -> str:
    """A trust level however it is spelt; what is not known is not trusted."""
    level = str(value).strip().lower()
    return level if level in _TRUST else SANDBOXED


def granted_by(claims: Mapping[str, Any], names: ClaimNames) -> Granted:
    """What claims say, by the names the operator gave."""
    trust, workspace, permissions = (_at(claims, path) for path in (names.trust, names.workspace, names.permissions))
    if isinstance(permissions, str):
        permissions = permissions.split()
    return Granted(
        trust=None if trust is None else normal_trust(trust),
        workspace=None if workspace is None else str(workspace),
        permissions=tuple(sorted(map(str, permissions))) if isinstance(permissions, list | tuple) else (),
    )


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """The claim at a dotted path, whole or nested."""
    if not path:
        return None
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


_HELD: Final = 65_536

_NOTHING: Final = Granted()


class Rules:
    """The operator's, in order: for trust and workspace the first that has a word counts, permissions add up."""

    def __init__(self, rules: Sequence[RuleSettings], default_trust: str) -> None:
        self._rules = rules
        self._default_trust = default_trust
        self.matter = bool(rules)
        # The same for every request of a session; what is refused is not held.
        self.context = functools.lru_cache(maxsize=_HELD)(self._context)

    def _context(self, principal: Principal, granted: Granted | None, announced: str) -> Context:
        """The context of a session.

        Raises:
            Refused: the workspace cannot be used.
        """
        granted = granted or _NOTHING
        trust, permissions = granted.trust, set(granted.permissions)
        matching = [rule for rule in self._rules if _matches(str(principal), rule.principals)]
        workspace = granted.workspace
        for rule in matching:
            workspace = workspace if workspace is not None else rule.workspace
        workspace = announced if workspace is None else workspace
        for rule in matching:
            if _matches(workspace, rule.workspaces):
                trust = trust if trust is not None else rule.trust
                permissions.update(rule.permissions)
        try:
            return Context(
                workspace=workspace,
                trust=self._default_trust if trust is None else trust,
                permissions=tuple(sorted(permissions)),
            )
        except InvalidContext as error:
            raise bad_context(str(error)) from None


def _matches(value: str, patterns: Sequence[str]) -> bool:
    return not patterns or any_matches(patterns, value)
