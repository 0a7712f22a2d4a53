"""Import what `gateway` exports under the name of the distribution, and explain it if an app's folder hides `gateway`.

The packages of the distribution are `gateway`, `session_store` and `transports`. A folder of an app with such a name,
earlier on the module path, is imported in its place.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway import (
        AppSession,
        Gateway,
        GatewaySessionMiddleware,
        SdkEventStore,
        SdkSubscriptionBus,
        SessionMiddleware,
        SessionNotLoaded,
        Settings,
        __version__,
        create_app,
        serve_stdio,
    )

__all__ = [
    "AppSession",
    "Gateway",
    "GatewaySessionMiddleware",
    "SdkEventStore",
    "SdkSubscriptionBus",
    "SessionMiddleware",
    "SessionNotLoaded",
    "Settings",
    "__version__",
    "create_app",
    "serve_stdio",
]

_PACKAGES: Final = ("gateway", "session_store", "transports")


def hidden_package() -> str:
    """Return a sentence about a package of the distribution that something else of its name hides; empty if none is.
    Imports nothing."""
    here = Path(__file__).resolve().parents[1]
    for name in _PACKAGES:
        spec = find_spec(name)
        found = next(iter(spec.submodule_search_locations or ()), spec.origin or "") if spec is not None else ""
        if spec is None or Path(found).resolve() != here / name:
            return (
                f"the package {name!r} of mcp-session-gateway is hidden by {found or 'nothing'}, which Python finds "
                "first: rename that folder or file, or move it into a package (docs/embedding.md, Names)"
            )
    return ""


def __getattr__(name: str) -> Any:
    """Return a public name of `gateway`. Raises `ImportError` if something else hides a package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if hidden := hidden_package():
        raise ImportError(hidden)
    return getattr(import_module("gateway"), name)
