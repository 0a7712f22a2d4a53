"""A session's record as named fields of JSON, for backends that keep it outside this process. Pure."""

import functools
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from session_store.session import Session

__all__ = ["from_fields", "to_field", "to_fields"]

_DECODERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    field.name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Session)
}
_ALIKE: Final = frozenset(_DECODERS) - {"id", "created_at", "used_at", "metadata", "owner", "epoch", "version"}
_SHORT: Final = 512
_encoder = msgspec.json.Encoder()
to_field = _encoder.encode


def _decoded(name: str, value: bytes) -> Any:
    # What a client has said at length few others have said, and it would stand here long after its session.
    return _shared(name, value) if name in _ALIKE and len(value) <= _SHORT else _DECODERS[name].decode(value)


@functools.lru_cache(maxsize=1_024)
def _shared(name: str, value: bytes) -> Any:
    """What many sessions have alike, and cannot be changed, stands in memory once."""
    return _DECODERS[name].decode(value)


def to_fields(session: Session) -> dict[str, bytes]:
    """Every attribute by its name."""
    return {name: to_field(getattr(session, name)) for name in _DECODERS}


def from_fields(record: Mapping[str, bytes]) -> Session:
    """The session in a record. Fields that are missing have their default; fields of a later version are passed over.

    Raises:
        ValueError: the record is not one of ours.
    """
    try:
        return Session(**{n: _decoded(n, record[n]) for n in _DECODERS if n in record})
    except (TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"not a session record: {error}") from error
