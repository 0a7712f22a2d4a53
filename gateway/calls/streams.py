"""Names of the event streams of a session. Pure."""

from typing import Final

from session_store import Session
from transports.jsonrpc import RequestId, encode

__all__ = ["STANDALONE", "call_of_stream", "stream_of_call"]

STANDALONE: Final = "standalone"
"""The name of the stream that belongs to no call. A legacy client reads it with GET."""


def stream_of_call(session: Session, number: int, upstream: str, client_id: RequestId) -> str:
    """The name of a call's stream. The epoch makes it unique if several processes have served the session."""
    return f"{session.epoch}/{number}/{upstream}/{encode(client_id).decode()}"


def call_of_stream(stream: str) -> bytes | None:
    """The id, as JSON, of the call that the stream belongs to."""
    return None if stream == STANDALONE else stream.split("/", 3)[-1].encode()
