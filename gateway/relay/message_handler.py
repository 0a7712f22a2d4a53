"""Handle the messages that transports have read from clients: authenticate the sender, and call the handler for the
kind of message. `gateway.relay.call` handles calls."""

import contextlib
import hashlib
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from gateway.context.session_facts import correlation_id
from gateway.errors import outcome_unknown, store_refused
from gateway.observability.logs import CORRELATION
from gateway.relay.call import Calls
from gateway.relay.legacy_clients import LegacyClients
from gateway.relay.modern_clients import ModernClients
from session_store import Principal, StoreError
from transports.era import MODERN
from transports.inbound_port import Answer, Carried, EventSource, Refused, Request
from transports.jsonrpc import encode


@dataclass(eq=False, repr=False, kw_only=True)
class MessageHandler:
    """Handle the messages that transports have read from clients (`transports.inbound_port.Handler`)."""

    calls: Calls
    legacy: LegacyClients
    modern: ModernClients

    def call(self, request: Request) -> Coroutine[Any, Any, Answer]:
        return self.calls.call(request)

    def refused(self, headers: Mapping[str, str], refused: Refused, *, again: bool = False) -> Refused:
        if refused.correlation:
            return refused  # a call was refused, which is recorded already
        if again:
            refused = outcome_unknown()
        # A request without an id was refused by its wire, before it came here.
        refused.of_request(CORRELATION.get() or correlation_id(headers, {}))
        self.calls.log.refused_by_wire(refused)
        return refused

    def check_sender(self, request: Request) -> Coroutine[Any, Any, None]:
        return self.calls.senders.check(request)

    async def join(self, request: Request) -> Carried:
        who = await self.calls.senders.who(request)
        with store_errors_refused():
            return replace(await self.legacy.join(request, who), caller=_name_of(who.principal))

    async def carried(self, request: Request) -> Carried:
        who = await self.calls.senders.who(request)
        with store_errors_refused():
            return replace(await self.legacy.carried(request, who), caller=_name_of(who.principal))

    async def leave(self, token: str) -> None:
        await self.legacy.leave(token)

    async def negotiated(self, request: Request) -> str:
        with store_errors_refused():
            return await self.legacy.negotiated(request, await self.calls.senders.who(request))

    async def notify(self, request: Request) -> list[tuple[bytes, bytes]]:
        who = await self.calls.senders.who(request)
        with store_errors_refused():
            if request.era is MODERN:
                return await self.modern.notify(request, who)
            await self.legacy.notify(request, who)
        return []

    async def respond(self, request: Request) -> None:
        with store_errors_refused():
            await self.legacy.respond(request, await self.calls.senders.who(request))

    async def stream(self, request: Request, last_event_id: str | None) -> EventSource:
        with store_errors_refused():
            return await self.legacy.stream(request, await self.calls.senders.who(request), last_event_id)

    async def end(self, request: Request) -> None:
        with store_errors_refused():
            await self.legacy.end(request, await self.calls.senders.who(request))


def _name_of(principal: Principal) -> str:
    """Return a digest of the principal. Transports can compare callers by it without knowing who they are."""
    return hashlib.sha256(encode([principal.issuer, principal.subject])).hexdigest()


@contextlib.contextmanager
def store_errors_refused() -> Iterator[None]:
    """Turn errors of the session store that the `with` block raises into `Refused`."""
    try:
        yield
    except StoreError as error:
        raise store_refused(error) from None
