"""Which configuration file a command reads: the one that is named, or else `mcp.json` of the present folder."""

from pathlib import Path
from typing import Final

from gateway.config.faults import ConfigurationError

__all__ = ["FILE", "NO_FILE", "configuration", "required_configuration"]

FILE: Final = Path("mcp.json")
"""What `init` writes and `add` extends."""

NO_FILE: Final = f"there is no {FILE} in this folder: give --config FILE; `mcp-session-gateway init` writes one"


def configuration(given: Path | None) -> Path | None:
    """The file to read; None if none is given and the present folder has none. Then the environment configures."""
    return FILE if given is None and FILE.is_file() else given


def required_configuration(given: Path | None) -> Path:
    """As `configuration`. Raises `ConfigurationError`: there is no file."""
    found = configuration(given)
    if found is None:
        raise ConfigurationError(NO_FILE)
    return found
