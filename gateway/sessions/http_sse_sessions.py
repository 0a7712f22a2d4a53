"""Find the session of an HTTP+SSE client (MCP 2024-11-05). The client names it when it opens its event stream, or in a
later message.

The transport itself (`transports.inbound.http_sse`) knows only tokens.
"""

from dataclasses import dataclass

from gateway.identity.request_context import RequestContext
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.token_carriers import explicit_token
from session_store import ClientFacts, Session
from transports.era import Era
from transports.inbound_port import Carried, Request


@dataclass(eq=False, repr=False)
class HttpSseSessions:
    """Finds or opens the session of an HTTP+SSE client's event stream. The client's `initialize` loads it
    (`SessionResolver.initialize`)."""

    resolver: SessionResolver

    async def join(self, request: Request, who: RequestContext) -> Carried:
        """Return the session of a new event stream: the one that the request names, else a new one. The result has no
        token if the client's `initialize` will find the session, by its session key or by `session.reattach`.

        Raises:
            Refused: as `carried`, and as `SessionOpener.open`.
        """
        session, by_cookie = await self._carried(request, who)
        is_returned = session is not None
        if session is None:
            if self.resolver.carriers.has_key(request):
                return Carried()
            if "principal" in self.resolver.settings.reattach and not who.principal.is_anonymous:
                return Carried()
            session = (await self.resolver.opener.open(request, who, ClientFacts(), None)).live.session
        headers = self.resolver.carriers.headers(session, request, cookie_held=by_cookie)
        return Carried(token=self.resolver.carriers.token(session), headers=headers, is_returned=is_returned)

    async def carried(self, request: Request, who: RequestContext) -> Carried:
        """Return the session that a posted message names; a `Carried` without a token if it names none.

        Raises:
            Refused: 404, a header names no session of this principal.
        """
        session, by_cookie = await self._carried(request, who)
        if session is None:
            return Carried()
        return Carried(token=self.resolver.carriers.token(session), is_returned=True, by_cookie=by_cookie)

    async def _carried(self, request: Request, who: RequestContext) -> tuple[Session | None, bool]:
        """Return the session that the request names, and True if a cookie names it. Ignore a cookie from another
        endpoint: clients send a cookie to all paths of the host."""
        if (token := explicit_token(request)) is not None:
            return await self.resolver.by_token(token, request.era, who.principal), False
        session = await self.resolver.by_cookie(request, who)
        if session is None or (session.endpoint, session.era) != (request.endpoint, Era.LEGACY):
            return None, False
        return session, True

    async def leave(self, token: str) -> None:
        """Stop the server processes of a session whose event stream has ended, unless the session is in use. The
        session itself stays for a returning client."""
        session_id = self.resolver.carriers.tokens.verify(token)
        live = None if session_id is None else self.resolver.live.get(session_id)
        if live is not None and not live.is_busy:
            await live.stop_servers()
