"""Import what `gateway` exports under the name of the distribution, and explain it if an app's folder hides `gateway`.

The packages of the distribution are `gateway`, `session_store` and `transports`. A folder of an app with such a name,
earlier on the module path, is imported in its place.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway import *  # noqa: F403  # for those who check types

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
    """Return a public name of `gateway`, or `__all__`. Raises `ImportError` if something else hides a package."""
    if name.startswith("_") and name not in ("__all__", "__version__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # such as what debuggers ask for
    if hidden := hidden_package():
        raise ImportError(hidden)
    gateway = import_module("gateway")
    if name not in (*gateway.__all__, "__all__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(gateway, name)
