"""Encode session records as named JSON fields, and decode them. Pure."""

import functools
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from session_store.session import Session

_DECODERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    field.name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Session)
}
_COMMON: Final = frozenset(_DECODERS) - {"id", "created_at", "used_at", "metadata", "counted", "epoch", "version"}
_MAX_SHARED_BYTES: Final = 512
_MAX_SHOWN_BYTES: Final = 8 << 10
_encoder = msgspec.json.Encoder()
to_field = _encoder.encode


def _decoded(name: str, value: bytes) -> Any:
    # Long values are seldom the same in two sessions, and the cache would keep them long after their sessions. But many
    # sessions are shown the same tools.
    most = _MAX_SHOWN_BYTES if name == "shown" else _MAX_SHARED_BYTES
    return _shared(name, value) if name in _COMMON and len(value) <= most else _DECODERS[name].decode(value)


@functools.lru_cache(maxsize=1_024)
def _shared(name: str, value: bytes) -> Any:
    """Return the decoded value of the field `name`. Use it for fields that often have the same value in many sessions:
    equal values become one immutable object, to save memory."""
    return _DECODERS[name].decode(value)


def to_fields(session: Session) -> dict[str, bytes]:
    """Return all fields of a session by name, each encoded as JSON."""
    return {name: to_field(getattr(session, name)) for name in _DECODERS}


def from_fields(record: Mapping[str, bytes | msgspec.Raw]) -> Session:
    """Return the session that a record contains. Fields that the record lacks get their default. Fields of a later
    version are ignored.

    Raises:
        ValueError: the record is not a session's.
    """
    try:
        return Session(**{n: _decoded(n, bytes(record[n])) for n in _DECODERS if n in record})
    except (TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"not a session record: {error}") from error
