"""Decide if a principal still has the rights that it was granted, for work that continues after its request has
ended."""

from collections.abc import Collection

from gateway.config.auth import API_KEY_ISSUER, AuthSettings
from gateway.identity.context_rules import ANNOUNCED, ContextRules, announced_fields_of
from session_store import Context, Principal
from transports.inbound_port import Refused

_GONE = "its principal is no longer configured"
_UNDECIDED = "its rights come from a credential, which is not at hand"
_FEWER = "its principal has fewer or other rights by now"


class OfflineRights:
    """Decide which rights principals still have, for work that goes on after its request: from the current
    configuration alone, without a credential. Principals that the configuration does not have any more have no rights.
    `api_keys`: the names of the configured keys."""

    def __init__(
        self, rules: ContextRules, *, api_keys: Collection[str], auth: AuthSettings, allow_anonymous: bool
    ) -> None:
        self._rules = rules
        self.replace_keys(api_keys)
        self._allow_anonymous = allow_anonymous
        proxies = auth.proxies
        # True for issuers whose credentials decide trust or workspace. Claimed permissions only add to those of the
        # rules. Without the credential, they are missing.
        self._is_claimed = {entry.issuer: bool(entry.claims.trust or entry.claims.workspace) for entry in auth.jwt}
        if proxies is not None and proxies.subject_header:
            self._is_claimed[proxies.issuer] = False

    def replace_keys(self, api_keys: Collection[str]) -> None:
        """Accept only the API keys with these names from now on."""
        self._api_keys = frozenset(api_keys)

    def why_lost(self, principal: Principal, granted: Context) -> str:
        """Return why a principal no longer has the rights in the context `granted`, or why that cannot be known. Return
        an empty text if it still has all of them. Rights that only a credential can grant count as lost."""
        if not self.is_known(principal):
            return _GONE
        if self._is_claimed.get(principal.issuer, False):
            return _UNDECIDED
        announced = granted.workspace if granted.provenance.workspace == ANNOUNCED else ""
        try:
            today = self._rules.context(principal, None, announced, announced_fields_of(granted))
        except Refused:
            return _FEWER
        # Trust, workspace and fields must be equal: they have no order.
        if (today.workspace, today.trust, today.fields) != (granted.workspace, granted.trust, granted.fields):
            return _FEWER
        if not set(granted.permissions) <= set(today.permissions):
            return _FEWER
        return _FEWER if today.read_only and not granted.read_only else ""

    def why_ended(self, principal: Principal, granted: Context) -> str:
        """Return why work that a principal has begun with the context `granted` must stop; empty if it may go on.
        Unlike in `why_lost`, rights from a credential of a configured issuer or proxy are not lost: the credential was
        checked when the work began, and the work gains nothing new by them."""
        if principal.issuer in self._is_claimed:
            return ""
        return self.why_lost(principal, granted)

    def is_known(self, principal: Principal) -> bool:
        """Return True if the configuration still admits the principal: it names the principal's API key, proxy or token
        issuer, or the principal is anonymous and anonymous callers are allowed."""
        if principal.is_anonymous:
            return self._allow_anonymous
        if principal.issuer == API_KEY_ISSUER:
            return principal.subject in self._api_keys
        return principal.issuer in self._is_claimed
