"""Claims for a request that the client of a session has not sent: they leave the session its context. Pure."""

from msgspec.structs import replace

from gateway.identity.context_rules import AUTHENTICATED, ContextRules
from gateway.identity.credential_claims import CredentialClaims
from session_store import Session

__all__ = ["kept_claims"]


def kept_claims(session: Session, rules: ContextRules) -> CredentialClaims | None:
    """The claims with which a request leaves the context of a session as its client's last request left it.

    None if there are none: the rules have changed since that request, and a request with any claims would change the
    rights of the session.
    """
    context, source = session.context, session.context.provenance
    is_claimed = source.workspace == AUTHENTICATED
    claims = CredentialClaims(
        trust=context.trust if source.trust == AUTHENTICATED else None,
        workspace=context.workspace or None if is_claimed else None,
        names_workspace=is_claimed,
        fields=tuple((field.name, field.value) for field in context.fields if field.source == AUTHENTICATED),
    )
    # What no rule gives was claimed.
    given = rules.renewed(session, claims).permissions
    claimed = tuple(name for name in context.permissions if name not in given)
    claims = replace(claims, permissions=claimed)
    return claims if rules.renewed(session, claims) == context else None
