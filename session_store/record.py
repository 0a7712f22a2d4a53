"""A session's record as named fields of JSON, for backends that keep it outside this process. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from session_store.session import Session

__all__ = ["from_fields", "to_field", "to_fields"]

_DECODERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    field.name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(Session)
}
_encoder = msgspec.json.Encoder()
to_field = _encoder.encode


def to_fields(session: Session) -> dict[str, bytes]:
    """Every attribute by its name."""
    return {name: to_field(getattr(session, name)) for name in _DECODERS}


def from_fields(record: Mapping[str, bytes]) -> Session:
    """The session in a record. Fields that are missing have their default; fields of a later version are passed over.

    Raises:
        ValueError: the record is not one of ours.
    """
    try:
        return Session(**{n: decode.decode(record[n]) for n, decode in _DECODERS.items() if n in record})
    except (TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"not a session record: {error}") from error
