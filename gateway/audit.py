"""What happens to sessions, told twice: a line in the log, and an event in the store's audit trail."""

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from gateway.observe import CORRELATION
from session_store import AuditEvent, AuditTrail, Session, StoreUnavailable
from session_store.session import redact

__all__ = ["Audit"]

logger = logging.getLogger(__name__)

_MOST_WAITING: Final = 2_000


class Audit:
    """Events wait here for the next flush, so that a forged token costs the store nothing."""

    def __init__(self, trail: AuditTrail, clock: Callable[[], float]) -> None:
        self._trail = trail
        self._clock = clock
        self._waiting: deque[AuditEvent] = deque(maxlen=_MOST_WAITING)

    def tell(
        self,
        event: Literal["created", "resumed", "expired", "evicted", "ended", "refused"],
        *,
        session: Session | None = None,
        session_id: str = "",
        era: str = "",
        principal: str = "",
        reason: str = "",
    ) -> None:
        """One event of one session; `session_id` where its record is not at hand."""
        told = AuditEvent(
            at=self._clock(),
            event=event,
            session=redact(session_id if session is None else session.id),
            principal=principal if session is None else str(session.principal),
            endpoint="" if session is None else session.endpoint,
            era=era if session is None else session.era,
            reason=reason,
            correlation=CORRELATION.get(),
        )
        self._waiting.append(told)
        shown = {"session": told.session, "era": told.era, "principal": told.principal, "reason": told.reason}
        logger.info("session %s", event, extra={name: value for name, value in shown.items() if value})

    async def flush(self) -> None:
        """Put what waits into the trail; it goes on waiting when the store does not answer."""
        events, self._waiting = self._waiting, deque(maxlen=_MOST_WAITING)
        if not events:
            return
        try:
            await self._trail.record(events)
        except StoreUnavailable:
            self._waiting.extendleft(reversed(events))
            raise
