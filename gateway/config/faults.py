"""What a configuration is told: errors that stop the start, and notes about what is ignored or not served."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ConfigurationError", "Note", "located"]


class ConfigurationError(ValueError):
    """The configuration cannot be used. The message names the place and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A part of the configuration that has no effect. `warning`: the gateway does less than the file asks for."""

    level: Literal["ignored", "warning"]
    text: str


def located(message: str, file: Path | None) -> str:
    """The message with the file at the front of each line that names a server's setting, and no place yet."""
    lines = message.splitlines()
    return "\n".join(f"{file}: {line}" if file and line.startswith("mcpServers.") else line for line in lines)
