"""Settings of packages that npx and uvx start in a sandbox: where they are kept, and when they are fetched again."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gateway.config.model import Frozen, Seconds

__all__ = ["PackageSettings"]


class PackageSettings(Frozen):
    """The packages that `npx` and `uvx` commands of sandboxed servers name. The gateway fetches each of them once for
    all sessions, which can read and execute it but not change it ([packages](packages.md))."""

    folder: str = ""
    """The folder that keeps them. Gateways of one user on one machine may share it. Empty:
    `mcp-session-gateway/packages` in `$XDG_CACHE_HOME`, by default `~/.cache`."""
    fresh_s: Annotated[float, Field(ge=0, le=31_536_000)] = 86_400.0
    """How long a package whose command names no exact version is used before the gateway asks the registry for a newer
    one. Sessions start with the earlier one meanwhile. 0: never again."""
    timeout_s: Seconds = 600.0
    """Maximum time for fetching one package."""
    reach: tuple[str, ...] = ()
    """Hosts beyond public ones that a fetch may connect to, such as a private registry: `10.1.0.5:4873`,
    `registry.example.com:443`."""

    @property
    def path(self) -> Path:
        """The folder."""
        if self.folder:
            return Path(self.folder).expanduser().absolute()
        own = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(own) if own.startswith("/") else Path(os.environ.get("HOME") or "/nonexistent") / ".cache"
        if not _is_usable(base):
            base = Path(tempfile.gettempdir(), f"mcp-session-gateway-{os.geteuid()}-cache")
        return base / "mcp-session-gateway" / "packages"


def _is_usable(folder: Path) -> bool:
    """Whether this process can make files below it, once the folder is made. A service's user often has no home."""
    for one in (folder, *folder.parents):
        if one.exists():
            return one.is_dir() and os.access(one, os.W_OK | os.X_OK)
    return False
