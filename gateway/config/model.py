"""What all settings have in common: they are frozen, and an unknown name is an error."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gateway.config.patterns import usable

__all__ = [
    "Frozen",
    "Pattern",
    "Seconds",
    "Trust",
]

Seconds = Annotated[float, Field(gt=0, le=31_536_000)]

Trust = Literal["direct", "sandboxed"]

Pattern = Annotated[str, AfterValidator(usable)]
"""As in shells: `*`, `?`, `[abc]`, `[!abc]`."""


class Frozen(BaseModel):
    """A part of the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")
