"""The session that has made a task: the task's handle names it."""

from gateway.errors import SESSION_UNKNOWN
from gateway.identity.request_context import RequestContext
from gateway.sessions.attach import Resolved
from gateway.sessions.resolve import SessionResolver
from gateway.tasks.handles import TaskHandle
from gateway.tasks.refusals import UnknownTask
from transports.era import Era
from transports.inbound_port import Refused
from transports.soon import arrived

__all__ = ["found_session", "session_of"]


async def session_of(handle: TaskHandle, who: RequestContext, resolver: SessionResolver, era: Era) -> Resolved:
    """The session of a task, for a request of a client of that era.

    Raises:
        Refused: the task is unknown, because its session is, or the session cannot be used now.
        OwnedByPeer: another replica owns the session.
        StoreUnavailable: the store does not answer.
    """
    found = await found_session(handle.session_id, who, resolver, era)
    if found is None:
        raise UnknownTask()
    return found


async def found_session(session_id: str, who: RequestContext, resolver: SessionResolver, era: Era) -> Resolved | None:
    """The session of that id. Raises as `session_of`; None if there is no such session, or it is of another
    principal."""
    try:
        return await arrived(resolver.resume_by_id(session_id, who, era))
    except Refused as refused:
        if refused.code != SESSION_UNKNOWN:
            raise
        return None
