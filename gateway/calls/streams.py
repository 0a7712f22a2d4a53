"""Names of the event streams of a session, and of their events. Pure."""

import base64
import binascii
from collections.abc import Iterable
from typing import Final

import msgspec

from session_store import Session
from transports.jsonrpc import RequestId, decode_id, encode

__all__ = [
    "STANDALONE",
    "age_of_stream",
    "call_of_event",
    "call_of_stream",
    "event_name",
    "event_names",
    "id_in_log",
    "stream_of_call",
]

_MOST_NAMED_BYTES: Final = 256
"""A longer id of a call is not part of the names of its events."""

STANDALONE: Final = "standalone"
"""The name of the stream that belongs to no call. A legacy client reads it with GET."""


def stream_of_call(session: Session, number: int, upstream: str, client_id: RequestId) -> str:
    """The name of a call's stream. The epoch makes it unique if several processes have served the session."""
    return f"{session.epoch}/{number}/{upstream}/{encode(client_id).decode()}"


def age_of_stream(stream: str) -> tuple[int, int]:
    """What is greater for a later stream of a call: the epoch, and the number in it."""
    epoch, number, _ = stream.split("/", 2)
    return int(epoch), int(number)


def call_of_stream(stream: str) -> bytes | None:
    """The id, as JSON, of the call that the stream belongs to."""
    return None if stream == STANDALONE else stream.split("/", 3)[-1].encode()


def event_names(event_ids: Iterable[str | None], stream: str) -> list[str | None]:
    """The ids by which a client knows the events of a stream: those of the log, and the id of the call to which the
    stream belongs. So a call has an answer even if the process that has sent the event dies before the store has the
    event. None stays None."""
    call = call_of_stream(stream)
    if call is None or len(call) > _MOST_NAMED_BYTES:
        return list(event_ids)
    end = f".{base64.urlsafe_b64encode(call).rstrip(b'=').decode()}"
    return [None if event_id is None else event_id + end for event_id in event_ids]


def event_name(event_id: str, stream: str) -> str:
    """As `event_names`, for one event."""
    (name,) = event_names([event_id], stream)
    return name or event_id


def id_in_log(name: str) -> str:
    """The id that the log knows."""
    return name.partition(".")[0]


def call_of_event(name: str) -> RequestId | None:
    """The id of the call that an event belongs to. The name is a client's, who may have made it up."""
    encoded = name.partition(".")[2]
    try:
        call = decode_id(msgspec.Raw(base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    return call if isinstance(call, int | str) else None
