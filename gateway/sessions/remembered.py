"""What the calls with one repeated head have found out, for the next call with that head (`transports.inbound_port`).

Who calls and which session the call belongs to follow from the head, as long as nothing of it has ended or changed.
What may have changed is asked on each call, by those who use this. Nothing of a body is kept.
"""

from msgspec.structs import replace

from gateway.calls.live_session import LiveSession
from gateway.cluster.ownership import Route, RouteMemory
from gateway.identity.authenticate import Authenticated
from gateway.identity.request_context import RequestContext
from gateway.sessions.attach import Resolved
from session_store import Session
from transports.era import Era
from transports.inbound_port import Request

__all__ = ["Remembered", "remembered"]

Headers = list[tuple[bytes, bytes]]


class Remembered:
    """Of one head. `who` is None unless the head alone says who calls, for good."""

    __slots__ = ("_era", "_record", "_resolved", "_route", "_route_era", "headers", "who")

    def __init__(self) -> None:
        self.who: Authenticated | None = None
        self.headers: Headers | None = None
        """The headers that give the client its session. Those of `session`."""
        self._era: Era | None = None
        self._record: Session | None = None
        self._resolved: Resolved | None = None
        self._route: Route | None = None
        self._route_era: Era | None = None

    def is_from(self, who: RequestContext) -> bool:
        """Return True if the head comes from that caller, for good."""
        return self.who is not None and self.who.principal is who.principal and self.who.granted is who.claims

    def keep_caller(self, who: Authenticated) -> None:
        """Remember from which caller the head comes."""
        if who.is_lasting:
            self.who = who

    def keep_headers(self, headers: Headers) -> Headers:
        """These headers give the client its session."""
        self.headers = headers
        return headers

    def keep_session(self, resolved: Resolved, request: Request, who: RequestContext) -> None:
        """Remember the session that a token in the head has led to, and that its record was found to fit this
        caller."""
        if self.is_from(who):
            self._resolved, self._era, self._record = resolved, request.era, resolved.live.session
            self.headers = None

    def session(self, request: Request, who: RequestContext) -> Resolved | None:
        """Return the session of an earlier call of this caller. None if there is none, or its record has changed.
        Whether the session may still be served is not known here."""
        resolved = self._resolved
        if resolved is None or request.era is not self._era or not self.is_from(who):
            return None
        live = resolved.live
        return resolved if live.session is self._record or self._has_record_of(live) else None

    def _has_record_of(self, live: LiveSession) -> bool:
        """Return True if the session's record is that which was kept. Each time the store returns it, its use is
        later."""
        if live.session is not self._record:
            if self._record is None or not live.session.is_but_used(self._record):
                return False
            self._record = live.session
        return True

    def keep_route(self, route: Route, request: Request, who: RequestContext) -> Route:
        """Remember that a token in the head has led to a session of this caller that another replica owns. Returns the
        route with a memory for the next call."""
        if not self.is_from(who):
            return route
        route = replace(route, memory=RouteMemory())
        self._route, self._route_era = replace(route, is_read=False), request.era
        return route

    def route(self, request: Request, who: RequestContext) -> Route | None:
        """Return the way to the owner of the session of an earlier call of this caller. The owner decides whether the
        session is still this caller's, and its own."""
        route = self._route
        if route is None or request.era is not self._route_era or not self.is_from(who):
            return None
        return None if route.memory is None or route.memory.is_stale else route

    def is_of(self, live: LiveSession) -> bool:
        """Return True if the session of this head is that one, with the record that was kept."""
        return self._resolved is not None and self._resolved.live is live and self._has_record_of(live)


def remembered(request: Request) -> Remembered | None:
    """Return what is remembered of the head of a request. None if its head is not repeated."""
    memory = request.memory
    if memory is None:
        return None
    if memory.kept is None:
        memory.keep(Remembered())
    kept: Remembered = memory.kept
    return kept
