"""Generates docs/settings.md from the settings: names, kinds, defaults, and the docstring below each field.

`python -m tests.tools.settings_reference` writes the file; a test compares it with the code.
"""

import ast
import inspect
import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from gateway.config.auth import AdminSettings, AuditSettings, AuthSettings, ClaimNames, JwtSettings, ProxySettings
from gateway.config.discovery import CardSettings, DiscoverySettings
from gateway.config.limits import LimitSettings
from gateway.config.policy import PolicySettings, RateSettings, RuleSettings, WorkspaceSettings
from gateway.config.sandbox import PackageSettings, SandboxTable
from gateway.config.secrets import SecretSettings
from gateway.config.sessions import SessionSettings
from gateway.config.settings import GatewaySettings
from gateway.config.tasks import TaskSettings
from gateway.config.upstreams import ItemSettings, ResourceSettings, ToolSettings, UpstreamSettings

__all__ = ["FILE", "reference"]

FILE = Path(__file__).parents[2] / "docs/settings.md"
_SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("gateway", GatewaySettings),
    ("gateway.session", SessionSettings),
    ("gateway.limits", LimitSettings),
    ("gateway.tasks", TaskSettings),
    ("gateway.packages", PackageSettings),
    ("gateway.discovery", DiscoverySettings),
    ("gateway.discovery.cards.NAME", CardSettings),
    ("gateway.admin", AdminSettings),
    ("gateway.audit", AuditSettings),
    ("gateway.auth", AuthSettings),
    ("gateway.auth.jwt[]", JwtSettings),
    ("gateway.auth.jwt[].claims", ClaimNames),
    ("gateway.auth.proxies", ProxySettings),
    ("gateway.policy", PolicySettings),
    ("gateway.policy.rules[]", RuleSettings),
    ("gateway.policy.workspaces.PATTERN", WorkspaceSettings),
    ("gateway.policy.session_rate, principal_rate, opening_rate", RateSettings),
    ("gateway.secrets.NAME", SecretSettings),
    ("mcpServers.NAME", UpstreamSettings),
    ("mcpServers.NAME.tools.PATTERN", ToolSettings),
    ("mcpServers.NAME.prompts.PATTERN, resource_uris.PATTERN", ItemSettings),
    ("mcpServers.NAME.resources", ResourceSettings),
    ("mcpServers.NAME.sandbox, gateway.policy.sandbox", SandboxTable),
]
_HEAD = """# Settings

All settings, generated from the code. [configuration.md](configuration.md) describes how to set them. Each setting of
`gateway` is also an environment variable: `gateway.session.idle_ttl_s` is `MCP_GATEWAY_SESSION__IDLE_TTL_S`. Lists and
objects in variables are JSON. Settings whose names end with `_s` are in seconds.
"""
_NAMES = {str: "text", int: "number", float: "number", bool: "yes or no"}


def reference() -> str:
    """The text of the document."""
    return "\n".join([_HEAD, *(part for path, model in _SECTIONS for part in _section(path, model))])


def _section(path: str, model: type[BaseModel]) -> list[str]:
    words = _words(model)
    rows = [
        f"| `{name}` | {_kind(field)}{_or_zero(model, name)}{_or_null(field)} | {_default(field)} | {words[name]} |"
        for name, field in model.model_fields.items()
    ]
    intro = (inspect.getdoc(model) or "").partition("\n\n")[0].replace("\n", " ")
    return [f"## `{path}`\n", f"{intro}\n", "| setting | kind | default | meaning |", "|---|---|---|---|", *rows, ""]


def _words(model: type[BaseModel]) -> dict[str, str]:
    """The docstring below each field, by the name of the field. Fields of settings that it extends are among them."""
    base = model.__base__
    found = _words(base) if base is not None and issubclass(base, BaseModel) and base.model_fields else {}
    [node] = [n for n in ast.parse(inspect.getsource(model)).body if isinstance(n, ast.ClassDef)]
    for field, after in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if not field.target.id.startswith("_"):  # else no setting
            assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant), f"{model}: {field.target.id}"
            found[field.target.id] = " ".join(str(after.value.value).split()).replace("|", "\\|")
    return found


def _kind(field: FieldInfo) -> str:
    limits = [word for meta in field.metadata for word in _limits(meta)]
    return " ".join([_name(field.annotation), *limits])


def _or_zero(model: type[BaseModel], name: str) -> str:
    """A note for a setting that 0 switches off although its kind does not allow 0."""
    try:
        return " or 0" if getattr(model.model_validate({name: 0}), name) is None else ""
    except ValidationError:
        return ""


def _or_null(field: FieldInfo) -> str:
    """A note for a setting whose null is not its default, and so means something of its own. 0 has a note already."""
    is_off = any(isinstance(meta, BeforeValidator) and meta.func.__name__ == "_off" for meta in field.metadata)
    return " or null" if NoneType in get_args(field.annotation) and field.default is not None and not is_off else ""


def _limits(meta: Any) -> list[str]:
    match meta:
        case annotated_types.Ge(ge=bound):
            return [f"≥ {bound}"]
        case annotated_types.Gt(gt=bound):
            return [f"> {bound}"]
        case annotated_types.Le(le=bound):
            return [f"≤ {bound}"]
        case FieldInfo():
            return [word for inner in meta.metadata for word in _limits(inner)]
    return []


def _name(kind: Any) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return " ".join([_name(inside[0]), *(word for meta in inside[1:] for word in _limits(meta))])
    if origin in (Union, UnionType):
        parts = [part for part in inside if part is not NoneType]
        return f"{_name(parts[0])} `true` `false`" if bool in parts[1:] else _name(parts[0])
    if origin is Literal:
        return " ".join(f"`{value}`" for value in inside)
    if origin in (tuple, frozenset, list):
        return f"list of {_name(inside[0])}"
    if origin is dict:
        return f"name → {_name(inside[1])}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "object"
    return _NAMES[kind]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        given = [name for name in type(value).model_fields if name in value.model_fields_set]
        return "<br>".join(f"`{name}`: `{getattr(value, name):g}`" for name in given)
    if value in (None, "", (), {}, frozenset()):
        return ""
    if isinstance(value, frozenset | tuple):
        value = sorted(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 20:
        return f"{value >> 20} MiB"
    if isinstance(value, dict):
        return "<br>".join(f"`{name}`: `{fact}`" for name, fact in value.items())
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
