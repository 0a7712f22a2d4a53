"""Operations of the REST interface as values, and their description in OpenAPI. Pure."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request

from gateway.version import __version__

__all__ = ["Operation", "described"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path: what it does, its parameters, and the types of its body (None: it has none) and its
    answer."""

    method: str
    path: str
    summary: str
    work: Callable[[Any, Request, str], Awaitable[Any]]
    gives: Any
    takes: tuple[tuple[str, str, Any], ...] = ()
    sends: Any = None


def described(base: str, operations: Sequence[Operation]) -> dict[str, Any]:
    """The interface of these operations, below the path `base`, in OpenAPI 3.1."""
    kinds = [kind for operation in operations for kind in (operation.gives, operation.sends)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    problem = {
        "description": "It gets no further",
        "content": {
            "application/problem+json": {
                "schema": {
                    "type": "object",
                    "properties": {"status": {"type": "integer"}, "detail": {"type": "string"}},
                    "required": ["status", "detail"],
                }
            }
        },
    }
    paths: dict[str, Any] = {}
    for operation, schema, body in zip(operations, schemas[::2], schemas[1::2], strict=True):
        sent = {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}
        paths.setdefault(base + operation.path, {})[operation.method.lower()] = {
            "operationId": operation.work.__name__,
            "summary": operation.summary,
            "parameters": [
                {
                    "name": name,
                    "in": place,
                    "description": words,
                    "required": place == "path",
                    "schema": {"type": "integer" if name == "limit" else "string"},
                }
                for name, place, words in operation.takes
            ],
            **(sent if operation.sends is not None else {}),
            "responses": {
                "200": {"description": "Done", "content": {"application/json": {"schema": schema}}},
                "default": problem,
            },
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "MCP Session Gateway: operations", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }
