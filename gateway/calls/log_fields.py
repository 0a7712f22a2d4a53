"""The fields of a log line about a server: its session, and the calls that the line can belong to. Pure."""

from collections.abc import Iterable
from typing import Any, Final

from gateway.calls.exchange import Exchange
from session_store.session import redact

__all__ = ["link_fields"]

MOST_NAMED: Final = 3
"""Calls in flight that a line names. With more than that, the list would say nothing."""


def link_fields(
    server: str, session: str, principal: str, calls: Iterable[Exchange], opened_for: str
) -> dict[str, Any]:
    """What a line says that a server has caused: stderr, an exit, a line that is no message.

    A server does not say which call its line belongs to. So `correlation` is that of the only call in flight, and never
    a guess: if two or three are in flight, `correlations` has all of them, and beyond that only their number is given.
    `session` is the link's, cut; a shared server has none, and the line gets the session that all calls in flight
    share. `principal` is whose session the link's is; empty for a shared server. `opened_for` is the correlation id of
    the request for which the link is being opened; empty once it is open.
    """
    flying = [call for call in calls if not call.is_subscription]
    fields: dict[str, Any] = {"server": server}
    if principal:
        fields["principal"] = principal
    if not session:
        sessions = {"" if call.session is None else redact(call.session.id) for call in flying}
        session = sessions.pop() if len(sessions) == 1 else ""
    if session:
        fields["session"] = session
    correlations = sorted({call.correlation for call in flying if call.correlation})
    if not flying:
        fields["correlation"] = opened_for
    elif len(flying) == 1:
        fields["correlation"] = flying[0].correlation
    else:
        # Empty, because a line without one would get that of the task that writes it.
        fields["correlation"] = ""
        fields["in_flight"] = len(flying)
        if len(correlations) <= MOST_NAMED:
            fields["correlations"] = " ".join(correlations)
    return fields
