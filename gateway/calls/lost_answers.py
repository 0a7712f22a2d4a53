"""The answers to calls whose process died: what became of them is unknown."""

import secrets
from typing import Final

from gateway.calls.streams import stream_of_call
from gateway.errors import OUTCOME_UNKNOWN
from session_store import EventStreams, Session
from transports.jsonrpc import RequestId, encode, encode_error

__all__ = ["answer_lost", "end_lost"]

_UNKNOWN: Final = (
    "The gateway that served this session ended without an answer; whether the call took effect is unknown"
)


async def end_lost(events: EventStreams, session_id: str, stream: str, request_id: bytes) -> None:
    """End a stream that an earlier process has left open. `request_id` is that of its call, as JSON."""
    error = {"code": OUTCOME_UNKNOWN, "message": _UNKNOWN}
    await events.append(session_id, stream, encode_error(request_id, error))
    await events.finish(session_id, stream)


async def answer_lost(events: EventStreams, session: Session, call: RequestId) -> str:
    """Answer a call of an earlier process, which has given its client an event and died before the store had it.
    Returns the name of the stream of the answer, which has nothing else: who asks again gets another stream."""
    stream = stream_of_call(session, 0, secrets.token_hex(4), call)
    await end_lost(events, session.id, stream, encode(call))
    return stream
