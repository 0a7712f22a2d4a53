"""Whether a principal that is not here may still do what was granted to it: for work that goes on without a request."""

from collections.abc import Collection

from gateway.config.auth import API_KEY_ISSUER, AuthSettings
from gateway.identity.context_rules import ANNOUNCED, ContextRules, announced_fields_of
from session_store import Context, Principal
from transports.inbound_port import Refused

__all__ = ["StandingRights"]

_GONE = "its principal is no longer configured"
_UNDECIDED = "its rights come from a credential, which is not at hand"
_FEWER = "its principal has fewer or other rights by now"


class StandingRights:
    """Decides from the present configuration alone: principals that it does not name have no rights, and what a
    credential has granted counts as not granted.

    `api_keys` are the names of the present keys.
    """

    def __init__(
        self, rules: ContextRules, *, api_keys: Collection[str], auth: AuthSettings, allow_anonymous: bool
    ) -> None:
        self._rules = rules
        self._api_keys = frozenset(api_keys)
        self._allow_anonymous = allow_anonymous
        proxies = auth.proxies
        # Whether the credentials of an issuer decide trust or workspace. Claimed permissions only add to those of the
        # rules: without the credential they are missing.
        self._is_claimed = {entry.issuer: bool(entry.claims.trust or entry.claims.workspace) for entry in auth.jwt}
        if proxies is not None and proxies.subject_header:
            self._is_claimed[proxies.issuer] = bool(proxies.trust_header or proxies.workspace_header)

    def why_lost(self, principal: Principal, granted: Context) -> str:
        """Return why that principal may not do today what that context has granted to it, or why nobody knows. Empty:
        it still may."""
        if not self._is_known(principal):
            return _GONE
        if self._is_claimed.get(principal.issuer, False):
            return _UNDECIDED
        announced = granted.workspace if granted.provenance.workspace == ANNOUNCED else ""
        try:
            today = self._rules.context(principal, None, announced, announced_fields_of(granted))
        except Refused:
            return _FEWER
        return "" if _covers(today, granted) else _FEWER

    def why_ended(self, principal: Principal, granted: Context) -> str:
        """Return why what that principal has begun with that context may not go on. As `why_lost`, but what a
        credential has granted counts as granted: it was at hand when the call was made, and nothing new is done with
        it."""
        if principal.issuer in self._is_claimed:
            return ""
        return self.why_lost(principal, granted)

    def _is_known(self, principal: Principal) -> bool:
        if principal.is_anonymous:
            return self._allow_anonymous
        if principal.issuer == API_KEY_ISSUER:
            return principal.subject in self._api_keys
        return principal.issuer in self._is_claimed


def _covers(today: Context, granted: Context) -> bool:
    """Return whether a context grants all that another one has granted. Trust levels and workspaces have no order."""
    return (
        (today.workspace, today.trust, today.fields) == (granted.workspace, granted.trust, granted.fields)
        and set(granted.permissions) <= set(today.permissions)
        and (granted.read_only or not today.read_only)
    )
