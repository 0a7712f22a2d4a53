"""Send requests of the gateway's own process, without a credential, for callers whom the gateway vouches for.

After that they are handled like all requests. Only the composition root makes an `InternalRequests`: whoever has one
can act as any principal.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from gateway.identity.authenticate import Authenticated
from gateway.identity.credential_claims import CredentialClaims
from session_store import Principal
from transports.inbound.in_process_client import InProcessClient, Reply
from transports.inbound_port import Answer, Carried, EventSource, Handler, Refused, Request

__all__ = ["InternalRequests"]


class InternalRequests:
    """Send requests in the name of any principal. `endpoint` makes the endpoint for a path, with the given handler.
    `host` is a host name that this gateway serves, like the others on its store."""

    def __init__(self, handler: Handler, endpoint: Callable[[Handler, str], Any], *, host: str) -> None:
        self._handler = handler
        self._endpoint = endpoint
        self._host = host

    def __call__(
        self,
        path: str,
        principal: Principal,
        claims: CredentialClaims | None,
        headers: Mapping[str, str],
        body: bytes,
        *,
        peer: str = "",
    ) -> Reply:
        """Begin a POST to the endpoint at `path`, and return its reply. `peer` is the address of who caused it."""
        who = Authenticated(principal, claims)
        app = self._endpoint(_HandlerAs(self._handler, who), path)
        return InProcessClient(app, path).ask("POST", {**headers, "host": self._host}, body, peer)


class _HandlerAs:
    """Pass requests on to another handler as requests of one caller (`transports.inbound_port.Handler`)."""

    def __init__(self, handler: Handler, who: Authenticated) -> None:
        self._handler = handler
        self._who = who

    def _of(self, request: Request) -> Request:
        return replace(request, vouched_for=self._who)

    def refused(self, headers: Mapping[str, str], refused: Refused, *, again: bool = False) -> Refused:
        return self._handler.refused(headers, refused, again=again)

    async def call(self, request: Request) -> Answer:
        return await self._handler.call(self._of(request))

    async def admit(self, request: Request) -> None:
        await self._handler.admit(self._of(request))

    async def join(self, request: Request) -> Carried:
        return await self._handler.join(self._of(request))

    async def carried(self, request: Request) -> Carried:
        return await self._handler.carried(self._of(request))

    async def leave(self, token: str) -> None:
        await self._handler.leave(token)

    async def negotiated(self, request: Request) -> str:
        return await self._handler.negotiated(self._of(request))

    async def notify(self, request: Request) -> list[tuple[bytes, bytes]]:
        return await self._handler.notify(self._of(request))

    async def respond(self, request: Request) -> None:
        await self._handler.respond(self._of(request))

    async def stream(self, request: Request, last_event_id: str | None) -> EventSource:
        return await self._handler.stream(self._of(request), last_event_id)

    async def end(self, request: Request) -> None:
        await self._handler.end(self._of(request))
