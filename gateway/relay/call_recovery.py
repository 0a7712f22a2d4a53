"""Send calls again whose gateway process died before it answered, once their clients come back for the answers."""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.calls.event_log import EventWriter
from gateway.calls.exchange import Exchange
from gateway.calls.session_event_streams import UNKNOWN, KeptCall, LostStreams, call_of_stream, end_lost
from gateway.identity.request_context import RequestContext
from gateway.relay.call import Intake
from gateway.relay.reply_delivery import CallReply
from gateway.sessions.session_loading import Resolved
from session_store import StoreUnavailable
from session_store.session import redact
from transports.background_tasks import Tasks
from transports.inbound_port import Refused, Request
from transports.jsonrpc import Message, decode_id, decode_meta

logger = logging.getLogger(__name__)

_NOT_AGAIN: Final = f"{UNKNOWN}. It is not made again: {{why}}"

ExchangeOf = Callable[[Resolved, Request, RequestContext], Exchange]
"""A function that makes the exchange of a call in a session."""


class CallRecovery:
    """Continue streams that an earlier process has left unfinished (`LostStreams`). Send the call again, as if its
    client had sent it now, and write its messages into the same stream. If several replicas try, only one gets the
    stored request, so the call is repeated only once."""

    def __init__(self, intake: Intake, events: EventWriter, exchange_of: ExchangeOf) -> None:
        self._intake = intake
        self._events = events
        self._exchange_of = exchange_of
        self._tasks = Tasks("repeated calls")

    async def go_on(
        self, stream: str, lost: LostStreams, resolved: Resolved, request: Request, who: RequestContext
    ) -> None:
        """Send the call of an unfinished stream again, in the background. `request` is the client's GET for the rest of
        the stream, and the call gets the rights of its sender.

        Raises:
            Refused: 429, as `Intake.accept`.
            StoreUnavailable: the store does not answer.
        """
        session_id = resolved.live.session.id
        try:
            await self._intake.admit(resolved.live, request)
            # From now on, what the earlier process still writes is left out. If it has ended the stream before, it has
            # deleted the request.
            await self._events.append(session_id, stream, b"")
            kept = await self._events.take_request(session_id, stream)
        except BaseException:
            lost.wait(stream)
            raise
        self._tasks.spawn(self._answer(stream, lost, kept, resolved, request, who))

    async def _answer(
        self, stream: str, lost: LostStreams, kept: bytes, resolved: Resolved, request: Request, who: RequestContext
    ) -> None:
        session_id, call = resolved.live.session.id, call_of_stream(stream) or b"null"
        fields = {"session": redact(session_id), "correlation": who.correlation}
        try:
            if not kept:
                # The stream has ended, or an earlier attempt has taken the request, with an unknown outcome.
                if stream in await self._events.unfinished(session_id):
                    await end_lost(self._events, session_id, stream, call)
                return
            try:
                reply = await self._sent(stream, call, KeptCall.read(kept), resolved, request, who)
            except Exception as error:
                if not isinstance(error, Refused):
                    logger.exception("a call whose gateway is gone cannot be made again", extra=fields)
                why = str(error) if isinstance(error, Refused) else "the gateway failed"
                await end_lost(self._events, session_id, stream, call, _NOT_AGAIN.format(why=why))
                return
        except StoreUnavailable:
            lost.wait(stream)  # the next client that asks finds no request, so the stream is ended
            return
        logger.warning("a call is made again: its gateway is gone", extra=fields)
        await _record(reply)

    async def _sent(
        self, stream: str, call: bytes, kept: KeptCall, resolved: Resolved, request: Request, who: RequestContext
    ) -> CallReply:
        """Send the call again, with the same checks as for a new call. Return its reply. Raises as
        `Intake.accept_counted`."""
        meta = decode_meta(kept.params["_meta"]) if "_meta" in kept.params else None
        again = msgspec.structs.replace(
            request,
            endpoint=kept.endpoint,
            message=Message(jsonrpc="2.0", id=decode_id(msgspec.Raw(call)), method="tools/call"),
            params=kept.params,
            meta=meta if isinstance(meta, dict) else {},
            forwarded=None,
            again=True,
        )
        exchange = self._exchange_of(resolved, again, who)
        reply = await self._intake.accept_counted(exchange, again, who, kept.params, [])
        assert isinstance(reply, CallReply)
        reply.go_on(stream)
        return reply


async def _record(reply: CallReply) -> None:
    """Record the server's messages until its answer. Clients that follow the stream read them from the log."""
    try:
        while (frame := await reply.replies.next()) is not None:
            if reply.is_doubtful:
                frame = await reply.confirmed(frame)
            await reply.record([frame])
            if frame.final:
                return
    finally:
        reply.done()
