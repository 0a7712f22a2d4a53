"""Define the base class of all settings, and the types and checks that several settings share."""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

Seconds = Annotated[float, Field(gt=0, le=31_536_000)]

Trust = Literal["direct", "sandboxed"]


def or_says(words: str) -> WrapValidator:
    """Return a validator for a setting that takes values of several types. Its error message is `words`, in place of
    one error for each type."""

    def validated(value: Any, known: ValidatorFunctionWrapHandler) -> Any:
        try:
            return known(value)
        except ValidationError:
            raise ValueError(words) from None

    return WrapValidator(validated)


class Frozen(BaseModel):
    """The base class of all settings: immutable, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 §5.1
_OF_EACH_REQUEST: Final = frozenset({"content-length", "traceparent"})
"""Headers that a cache of requests ignores when it compares requests (`transports.inbound.head_cache`)."""


def fault_of_header(name: str) -> str:
    """Return why the header `name` cannot be a source of facts about a client; empty if it can."""
    if not _HEADER.fullmatch(name):
        return f"{name!r} is not a header name"
    return f"{name} is different in each request" if name.lower() in _OF_EACH_REQUEST else ""
