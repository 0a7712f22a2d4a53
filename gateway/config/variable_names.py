"""Finds variables `MCP_GATEWAY_…` that mean nothing to the gateway: misspelt settings, and names of others. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from pydantic import BaseModel

from gateway.config.faults import Note
from gateway.config.spelling import meant

__all__ = ["OTHER_NAMES", "unknown_variables"]

_PREFIX: Final = "MCP_GATEWAY_"
OTHER_NAMES: Final = frozenset(
    {"ADMIN_KEY", "API_KEY", "CREDENTIAL", "KEYS", "KEYS_FILE", "TOKEN", "URL"}
    | {"WORKER_COUNT", "WORKER_ENVIRONMENT", "WORKER_LIFELINE", "WORKER_LISTENER", "WORKER_NUMBER", "WORKER_READY"}
    | {"WORKER_SIBLINGS"}
)
"""Names after the prefix that are read, but are not settings of `gateway`."""


def unknown_variables(environ: Iterable[str], model: type[BaseModel]) -> tuple[list[str], tuple[Note, ...]]:
    """Faults for names that resemble a setting of `model`, and a note for each other unknown name.

    Others use the prefix as well: Kubernetes sets `MCP_GATEWAY_SERVICE_HOST` for a service named `mcp-gateway`. A name
    that resembles a setting is a fault, because its value would silently have no effect.
    """
    known = {name.upper(): name.upper() for name in (*model.model_fields, *OTHER_NAMES)}
    below = {path.upper() for path in _paths(model)}
    faults, notes = [], []
    for variable in sorted(environ):
        name = variable.upper().removeprefix(_PREFIX)
        first = name.partition("__")[0]
        if not variable.upper().startswith(_PREFIX) or first in known:
            continue
        candidates = below if "__" in name else known.keys() | below
        if found := meant(name, sorted(candidates)) or meant(first, sorted(known)):
            faults.append(f"the variable {variable}: no such setting; did you mean {_PREFIX}{found}?")
        else:
            notes.append(Note(level="warning", text=f"the variable {variable} is ignored: it is no setting"))
    return faults, tuple(notes)


def _paths(model: type[BaseModel]) -> Iterator[str]:
    """The settings inside the settings of `model`, as variables name them."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (f"{name}__{below}" for below in (*kind.model_fields, *_paths(kind)))
