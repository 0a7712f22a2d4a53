"""The operators' model on a store whose gateways are not asked: for a command line that reaches the store alone."""

import sys
import time

from gateway.admin.operations import Operations
from gateway.admin.replicas import Replicas
from gateway.sessions.lifecycle import ENDED
from session_store import AuditEvent, Backend
from session_store.session import redact

__all__ = ["operations_on"]


def operations_on(backend: Backend) -> Operations:
    """The model on an open backend. What happens inside gateways is unknown to it."""
    return Operations(
        backend=backend,
        replicas=Replicas(backend),
        ending=_StoreEnding(backend),
        record=lambda _, session="": (
            None
        ),  # ending a session is all that can be done here, and `_StoreEnding` records it
        clock=time.time,
        search_limit=sys.maxsize,
    )


class _StoreEnding:
    """Ends sessions in the store, and notifies the gateways that hold them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def end(self, session_id: str, reason: str, calls: int | None = None) -> bool:
        session = await self._backend.sessions.peek(session_id)
        if session is None or not await self._backend.sessions.end(session_id):
            return False
        await self._backend.bus.publish(ENDED, session_id.encode())
        event = AuditEvent(
            at=time.time(),
            event="ended",
            session=redact(session_id),
            principal=str(session.principal),
            endpoint=session.endpoint,
            era=session.era,
            reason=reason,
            workspace=session.context.workspace,
            trust=session.context.trust,
            lasted_s=round(max(0.0, time.time() - session.created_at), 3),
            calls=calls,
        )
        await self._backend.audit.record([event])
        return True
