"""How often a session and its principal may ask: 429 beyond, the same on every replica."""

import math

from gateway.errors import too_often
from gateway.policy_settings import PolicySettings
from session_store import Rates, Session, StoreUnavailable

__all__ = ["RateLimits"]


class RateLimits:
    """Applies the operator's rates. `matter`: there are any."""

    def __init__(self, settings: PolicySettings, rates: Rates) -> None:
        self._session = settings.session_rate
        self._principal = settings.principal_rate
        self._rates = rates
        self.matter = bool(self._session or self._principal)

    async def check(self, session: Session) -> None:
        """Count a request.

        Raises:
            Refused: 429, with the time to wait.
        """
        principal = session.principal
        kinds = [("session", session.id, self._session)]
        if not principal.is_anonymous:  # nobody in particular must not use up what others have
            kinds.append(("principal", str(principal), self._principal))
        for kind, name, rate in kinds:
            if rate is None:
                continue
            try:
                wait = await self._rates.take(f"{kind}/{name}", rate.per_s, rate.burst)
            except StoreUnavailable:
                continue  # its owner goes on while the store is away; so does the session
            if wait > 0:
                raise too_often(kind, math.ceil(wait))
