"""What the wire and servers give to this room."""

from typing import Any

import msgspec

from gateway.protocol.input_schemas import Checker, Schema, Schemas
from transports.jsonrpc import Object, encode


def raw(**members: Any) -> Object:
    """Params or a result, as they are before anybody decodes their members."""
    return {name: msgspec.Raw(encode(value)) for name, value in members.items()}


def checker_of(listed: Any) -> Checker:
    """The checker of a tool's input schema. Raises `UnusableSchema`."""
    schema = Schema.of(listed)
    assert schema is not None
    return Schemas().checker(schema)
