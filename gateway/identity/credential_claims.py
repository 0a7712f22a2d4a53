"""Read the rights that a credential grants: trust, workspace, permissions, and the context fields that the operator has
defined. Pure."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from gateway.config.auth import ClaimNames, ProxySettings


class InvalidToken(Exception):
    """The access token is invalid. The message says why, and may be sent to the client."""


class InsufficientScope(InvalidToken):
    """The access token is valid but lacks scopes. `needed` has all scopes that a token must have."""

    def __init__(self, needed: Sequence[str], missing: Collection[str]) -> None:
        super().__init__(f"it lacks the scope {' '.join(sorted(missing))}")
        self.needed = " ".join(needed)


CLOCK_SKEW_S: Final = 30.0
"""Largest difference in seconds between the clocks of an issuer and of this machine: what synchronized clocks may miss,
and short beside the minutes for which tokens are valid."""
MAX_SUBJECT_CHARS: Final = 256
"""Maximum number of characters of a subject. RFC 9068 sets no limit. OpenID Connect Core §2 allows 255."""


def subject_fault(subject: object) -> str:
    """Return what is wrong with the subject of a credential (the name of its principal), as text that may be sent to
    the client; empty if the subject is valid."""
    if not isinstance(subject, str) or not subject.strip():
        return "it is empty"
    if len(subject) > MAX_SUBJECT_CHARS:
        return f"it is longer than {MAX_SUBJECT_CHARS} characters"
    if not subject.isprintable() or subject != subject.strip():
        return "it holds line breaks, control characters, or other invisible characters"
    return ""


def decoded_header(value: str) -> str:
    """Decode a principal's name or a field in a header as UTF-8, because HTTP servers decode header values as Latin-1.

    Raises:
        ValueError: the value is not UTF-8.
    """
    return value if value.isascii() else value.encode("latin-1").decode("utf-8")


SANDBOXED: Final = "sandboxed"
_TRUST: Final = frozenset({"direct", SANDBOXED})


_NO_RIGHTS: Final = frozenset(
    "exp iat nbf jti auth_time nonce sid session_state origin_jti event_id aio rh uti xms_ftd".split()
)
"""Claims that differ between two tokens of the same client, and grant nothing: those of RFC 7519 and OpenID Connect,
and those that Keycloak, Cognito and Entra add."""


class CallerToken(msgspec.Struct, frozen=True, eq=False):
    """The access token of a caller, kept to exchange it for tokens that servers get. Two of them are equal if their
    rights are. The token is never printed."""

    token: str
    """The access token itself."""
    expires: float
    """The Unix time until which it may be exchanged."""
    rights: str
    """A digest of its claims without `_NO_RIGHTS`."""

    @classmethod
    def of(cls, token: str, claims: Mapping[str, Any]) -> "CallerToken":
        """Return the `CallerToken` of a verified token with these claims. It may be exchanged until `CLOCK_SKEW_S`
        after the token's expiry."""
        lasting = {name: value for name, value in claims.items() if name not in _NO_RIGHTS}
        digest = hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:32]
        return cls(token, float(claims["exp"]) + CLOCK_SKEW_S, digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallerToken) and other.rights == self.rights

    def __hash__(self) -> int:
        return hash(self.rights)

    def __repr__(self) -> str:
        return "CallerToken(...)"


class CredentialClaims(msgspec.Struct, frozen=True, cache_hash=True):
    """The rights that a credential grants (trust, workspace, permissions, context fields), as its claims or a proxy's
    headers say."""

    trust: str | None = None
    """None if the operator's settings name no claim for the trust."""
    workspace: str | None = None
    """None if the credential has none."""
    permissions: tuple[str, ...] = ()
    names_workspace: bool = False
    """True if the settings name a claim for the workspace. Then a workspace that the client itself names is ignored."""
    fields: tuple[tuple[str, str], ...] = ()
    """Names and values of the context fields that the operator has defined."""
    token: CallerToken | None = None
    """The credential itself, if servers get tokens in exchange for it."""


def normal_trust(value: object) -> str:
    """Return a trust level in lower case; `sandboxed` for an unknown level."""
    level = str(value).strip().lower()
    return level if level in _TRUST else SANDBOXED


def claims_in_token(
    claims: Mapping[str, Any], names: ClaimNames, fields: Mapping[str, str] = MappingProxyType({})
) -> CredentialClaims:
    """Return the rights in a token's claims. `names` has the claim to read for each right, `fields` the claim for each
    context field. A missing claim grants nothing."""
    trust, workspace, permissions = (_at(claims, path) for path in (names.trust, names.workspace, names.permissions))
    if isinstance(permissions, str):
        permissions = permissions.split()
    listed = permissions if isinstance(permissions, list | tuple) else ()
    return CredentialClaims(
        trust=normal_trust(trust) if names.trust else None,
        workspace=workspace if isinstance(workspace, str) and workspace else None,
        permissions=tuple(sorted({name for name in listed if isinstance(name, str)})),
        names_workspace=bool(names.workspace),
        fields=tuple((field, text) for field, path in fields.items() if (text := _text(_at(claims, path)))),
    )


def _text(claim: Any) -> str:
    """Return the value of a claim as text: numbers and truth values as in JSON, a list of strings joined by spaces, any
    other value as an empty string."""
    if isinstance(claim, str):
        return claim
    if isinstance(claim, bool | int | float):
        return json.dumps(claim)
    if isinstance(claim, list | tuple) and all(isinstance(part, str) for part in claim):
        return " ".join(claim)
    return ""


def fields_in_headers(headers: Mapping[str, str], fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the names and values of the context fields that a trusted proxy has sent in headers. `fields`: the name of
    the header of each field, in lower case.

    Raises:
        ValueError: a header is not UTF-8.
    """
    return tuple((field, text) for field, header in fields.items() if (text := decoded_header(headers.get(header, ""))))


def claims_in_headers(headers: Mapping[str, str], names: ProxySettings) -> CredentialClaims:
    """Return the rights that a trusted proxy sends in headers: the permissions in the header that the settings `names`
    name. A missing header grants nothing."""
    permissions = headers.get(names.permissions_header.lower(), "") if names.permissions_header else ""
    return CredentialClaims(permissions=tuple(sorted(set(permissions.replace(",", " ").split()))))


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """Return the claim whose name is `path`, or the value at this dotted path in nested objects; None if missing."""
    if not path:
        return None
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
