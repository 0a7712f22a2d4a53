"""Decide when this replica may serve a session from its cached record, without asking the store.

A cached record is the last record of a live session that the store has returned. All rules here share two conditions:
the record belongs to the principal of the request, and its context is the one that the credential and the operator's
rules give now. No I/O.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

from gateway.calls.live_session import LiveSession
from gateway.cluster.ownership import Cluster, Forwarded
from gateway.identity.context_rules import ContextRules
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from session_store import Principal, Session

CACHED_FOR_S: Final = 0.05
"""Seconds for which a record that the store has returned serves further requests (docs/adr/0009-cached-records.md)."""

AGING_AFTER_S: Final = 0.6 * CACHED_FOR_S
"""Age in seconds from which a use of a cached record also starts a background read of the store, so that calls of a
busy session never wait for the store. Otherwise one call in ten would wait, and take twice as long."""


class CachedRecords:
    """Decides when a cached record may serve a request. `clock` returns Unix time in seconds."""

    def __init__(self, rules: ContextRules, cluster: Cluster | None, clock: Callable[[], float]) -> None:
        self._rules = rules
        self._cluster = cluster
        self._clock = clock

    def is_recent(self, live: LiveSession, who: RequestContext) -> bool:
        """Return True if the cached record of a session may serve this caller, and is younger than `CACHED_FOR_S`. A
        session that another replica has ended is served for up to this time, if the message about its end is lost."""
        return self.usable_age_s(live) is not None and self._fits(live, who.principal, who.claims)

    def usable_age_s(self, live: LiveSession) -> float | None:
        """Return the age in seconds of the session's cached record. Return None if the record must not be used: it is
        too old, the session has ended, or this replica may no longer own the session. The caller checks the sender of
        the request. From the age `AGING_AFTER_S` on, the record should be read again."""
        cluster, age_s = self._cluster, monotonic() - live.read_at
        if age_s >= CACHED_FOR_S or live.ended:
            return None
        if cluster is not None and (not cluster.lease.is_fresh or cluster.has_released(live.session.id)):
            return None
        return age_s

    def is_confirmed_by(self, forwarded: Forwarded, live: LiveSession, who: RequestContext) -> bool:
        """Return True if the cached record of a session may serve a forwarded request: it fits the caller, and the
        replica that forwarded the request has read the same version of the record from the store."""
        session, cluster = live.session, self._cluster
        return (
            cluster is not None
            and live.recovered
            and (session.owner, session.epoch, session.version) == (cluster.replica, forwarded.epoch, forwarded.version)
            and cluster.lease.is_fresh
            and self._fits(live, who.principal, who.claims)
        )

    def serves_outage(self, live: LiveSession, who: RequestContext) -> bool:
        """Return True if the session may be served while the store does not answer: this replica owns it, and no other
        replica can take it over for a while, because this replica's lease is long enough."""
        session, cluster = live.session, self._cluster
        return (
            cluster is not None
            and cluster.lease.is_fresh_for_a_while
            and session.owner == cluster.replica
            and self._fits(live, who.principal, who.claims)
            and not session.is_expired(self._clock())
        )

    def _fits(self, live: LiveSession, principal: Principal, granted: CredentialClaims | None) -> bool:
        session: Session = live.session
        return (
            not live.ended
            and session.principal == principal
            and self._rules.renewed(session, granted) == session.context
        )
