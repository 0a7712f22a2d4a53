"""Generates docs/settings.md and docs/tuning.md from the settings: names, kinds, defaults, and the docstring of each.

`python -m tests.tools.settings_reference` writes the files; a test compares them with the code.
"""

import ast
import inspect
import json
import textwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from gateway.config import admin, auth, cards, limits, policy, sandbox, secrets, sessions, settings, upstreams
from gateway.config.tools_lock import ToolsLock

_DOCS = Path(__file__).parents[2] / "docs"
_FIRST: list[tuple[str, type[BaseModel], tuple[str, ...]]] = [
    ("mcpServers.NAME.", upstreams.UpstreamSettings, ("command", "args", "env", "url")),
    ("gateway.", settings.GatewaySettings, ("host", "port", "store", "api_keys", "allowed_hosts", "sandbox")),
    ("gateway.session.", sessions.SessionSettings, ("idle_ttl_s",)),
    ("gateway.admin.", admin.AdminSettings, ("keys",)),
]
"""What most people set, and nothing else."""
_SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("gateway", settings.GatewaySettings),
    ("gateway.peer_tls", secrets.PeerTlsSettings),
    ("gateway.session", sessions.SessionSettings),
    ("gateway.context", sessions.ContextSettings),
    ("gateway.context.fields.NAME", sessions.FieldSettings),
    ("gateway.context.env.NAME, mcpServers.NAME.context_env.NAME", sessions.EnvironmentValue),
    ("gateway.cards.NAME", cards.CardSettings),
    ("gateway.admin", admin.AdminSettings),
    ("gateway.audit", admin.AuditSettings),
    ("gateway.auth", auth.AuthSettings),
    ("gateway.auth.jwt[]", auth.JwtSettings),
    ("gateway.auth.jwt[].claims", auth.ClaimNames),
    ("gateway.auth.proxies", auth.ProxySettings),
    ("gateway.policy", policy.PolicySettings),
    ("gateway.policy.rules[]", policy.RuleSettings),
    ("gateway.policy.workspaces.PATTERN", policy.WorkspaceSettings),
    ("gateway.secrets.NAME", secrets.SecretSettings),
    ("gateway.secrets.NAME.exchange", secrets.ExchangeSettings),
    ("gateway.secrets.NAME.exchange.id_jag", secrets.TokenEndpoint),
    ("gateway.secrets.NAME.consent", secrets.ConsentSettings),
    ("mcpServers.NAME", upstreams.UpstreamSettings),
    ("mcpServers.NAME.tools.PATTERN", upstreams.ToolSettings),
    ("mcpServers.NAME.prompts.PATTERN, resource_uris.PATTERN", upstreams.ItemSettings),
    ("mcpServers.NAME.methods.PATTERN", upstreams.MethodSettings),
    ("mcpServers.NAME.sandbox, gateway.sandbox", sandbox.SandboxTable),
]
_TUNING: list[tuple[str, type[BaseModel]]] = [
    ("gateway.limits", limits.LimitSettings),
    ("gateway.tasks", limits.TaskSettings),
    ("gateway.packages", sandbox.PackageSettings),
    ("gateway.policy.session_rate, principal_rate", policy.RateSettings),
]
_HEAD = """# Settings

Most people set some of these twelve. All others are below, and numbers to tune on a [page of their own](tuning.md).

| setting | kind | default | meaning |
|---|---|---|---|
{first}

Both pages are generated from the code. [configuration.md](configuration.md) describes how to set them. Each setting of
`gateway` is also an environment variable: `gateway.session.idle_ttl_s` is `MCP_GATEWAY_SESSION__IDLE_TTL_S`. Lists and
objects in variables are JSON. Settings whose names end with `_s` are in seconds.
"""
_TUNING_HEAD = """# Tuning

What one client, one server, one task or one package may cost. The defaults suit most machines; the
[first page](settings.md) has the settings that say what is served, and to whom.
"""
_NAMES = {ToolsLock: "path", str: "text", int: "number", float: "number", bool: "yes or no", Path: "path"}


def pages() -> dict[Path, str]:
    """Return the text of each document."""
    rows = [_row(f"{path}{name}", model, name) for path, model, names in _FIRST for name in names]
    heads = {"settings.md": (_HEAD.format(first="\n".join(rows)), _SECTIONS), "tuning.md": (_TUNING_HEAD, _TUNING)}
    return {
        _DOCS / name: "\n".join([head, *(part for path, model in sections for part in _section(path, model))])
        for name, (head, sections) in heads.items()
    }


def models() -> set[type[BaseModel]]:
    """Return the parts of the settings that the pages have."""
    return {model for _, model in (*_SECTIONS, *_TUNING)}


def _section(path: str, model: type[BaseModel]) -> list[str]:
    rows = [_row(name, model, name) for name in model.model_fields]
    intro = (inspect.getdoc(model) or "").partition("\n\n")[0].replace("\n", " ")
    intro = textwrap.fill(intro, 200, break_long_words=False, break_on_hyphens=False)
    return [f"## `{path}`\n", f"{intro}\n", "| setting | kind | default | meaning |", "|---|---|---|---|", *rows, ""]


def _row(shown: str, model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    kind = f"{_kind(field)}{_or_zero(model, name)}{_or_null(field)}"
    return f"| `{shown}` | {kind} | {_default(field)} | {_words(model)[name]} |"


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
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")
