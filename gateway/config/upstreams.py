"""Define the entries of `mcpServers`: how to start or reach a server, and restrictions of what it lists."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from gateway.config.configuration_errors import similar_name
from gateway.config.patterns import Pattern, expression
from gateway.config.sandbox import SandboxByTrust, SandboxTable
from gateway.config.secrets import PLACEHOLDER, secrets_in
from gateway.config.sessions import EnvironmentMap
from gateway.config.settings_base import Frozen
from gateway.protocol.methods import METHODS, SERVER_METHODS

_SETTING_OF: Final = {"tools": "tools", "prompts": "prompts", "resources": "resource_uris"}
"""The setting that restricts MCP's own methods, by the kind of item that they are about."""


_VISIBILITY: Final = ("direct_only", "permissions")
"""The settings that decide who sees a server."""


def _text(value: Any) -> Any:
    """Return a number or a boolean as text: people write both into files as values of arguments, variables and headers,
    which are text. Return other values unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


class ItemSettings(Frozen):
    """Restrictions of prompts or resources whose names match a pattern. If several patterns match, all of them
    apply."""

    direct_only: bool = False
    """Only for sessions with direct trust."""
    permissions: tuple[str, ...] = ()
    """Only for sessions that have all of these permissions."""


class MethodSettings(ItemSettings):
    """Methods and notifications beyond MCP's whose names match a pattern: the server gets them, and these sessions may
    send them. If several patterns match, all of them apply."""

    allowed: bool = True
    """Whether any session may send them."""
    operation: Literal["read", "write"] = "write"
    """What they do. Read-only sessions may send only those that `read`."""


class ToolSettings(ItemSettings):
    """Restrictions of tools whose names match a pattern. If several patterns match, all of them apply."""

    operation: Literal["read", "write", "eval"] | None = None
    """What the tool does. `eval` tools are disabled unless `policy.eval_tools` is on. If not set: `read` if the tool's
    annotations have `readOnlyHint`, else `write`."""
    blocked: tuple[str, ...] = ()
    """Regular expressions (RE2) that no string in a call's arguments may match, in keys or values, ignoring case.
    Numbers, `true` and `false` are matched as written in JSON."""
    bind: dict[str, str] = Field(default={})
    """Argument → the field of the context that sets it if the client does not: `workspace`, `principal`, `agent`,
    `trust`, `session_id` and others of every session, or a name in `gateway.context.fields`. Only tools that have the
    argument in their input schema are affected."""

    @field_validator("blocked")
    @classmethod
    def _expressions(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            expression(word)
        expression(*words)
        return words


class UpstreamSettings(BaseModel):
    """One entry of `mcpServers`. Fields that only other hosts have are read as those of this table first."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    command: str = ""
    """The program to start, found by PATH."""
    args: tuple[str, ...] = ()
    """Arguments of the command."""
    env: dict[str, str] = Field(default={}, repr=False)
    """Environment variables of the child. They override all others. `${secret:NAME}` is replaced by a secret of the
    principal, `${secret_file:NAME}` by the path of a [file](policy.md#secrets-in-files) that has its present value."""
    cwd: str | None = None
    """Working directory of the child; `~` is its HOME. By default the gateway's; in a [sandbox](sandbox.md) HOME,
    unless an argument names something in the gateway's."""
    url: str = ""
    """URL of a server over Streamable HTTP, of either era, instead of a command."""
    headers: dict[str, str] = Field(default={}, repr=False)
    """Headers of every request to `url`; `${secret:NAME}` as in `env`."""
    in_process: str = ""
    """A server object of the `mcp` SDK in the gateway's process, as `module:attribute`, instead of a command. Needs
    `mcp-session-gateway[mcp]`."""
    shared: bool = False
    """One process for all sessions. Only for a server that separates sessions by the context in `_meta`."""
    handles: bool = False
    """Give clients tools to open further sessions of this server, if they need several at once."""
    context_env: EnvironmentMap | None = None
    """Environment variable → field of the context that the child gets in it, as a name, or as an object with `field`
    and `default`. If not set: the variables of `gateway.context.env`."""
    direct_only: bool = False
    """Visible only to sessions with direct trust."""
    permissions: tuple[str, ...] = ()
    """Visible only to sessions that have all of these permissions."""
    only_tools: tuple[Pattern, ...] | None = None
    """Patterns of the tools that are served; all other tools are hidden. If not set: all tools."""
    hidden_tools: tuple[Pattern, ...] = ()
    """Patterns of tools that are hidden, even if `only_tools` lists them."""
    tools: dict[Pattern, ToolSettings] = {}
    """Pattern of tool names → restrictions of these tools."""
    prompts: dict[Pattern, ItemSettings] = {}
    """Pattern of prompt names → restrictions of these prompts and of completions of their arguments."""
    resource_uris: dict[Pattern, ItemSettings] = {}
    """Pattern of URIs → restrictions of the resources and templates with these URIs: listing, reading, subscribing and
    completing."""
    methods: dict[Pattern, MethodSettings] = {}
    """Pattern of names of methods and notifications that MCP does not define → restrictions of these. The server gets
    them also if it has not declared their extension. If policy hides any tool, prompt or resource of the server, it
    gets no others. A name matches with and without `notifications/` in front."""
    sandbox: SandboxByTrust = SandboxTable()
    """What the server's processes may touch: `off`, `standard`, `strict`, or a table. A list is the launcher of the
    processes of sandboxed sessions. What is not set comes from `gateway.sandbox`."""
    warm: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of processes to prestart for new sessions that resemble earlier ones. For servers that start slowly."""
    lists_fresh_s: Annotated[float, Field(ge=0, le=3_600)] = 0
    """How long the handshake and the lists of a server are reused if the server does not say it, as 2025-11-25 servers
    do not. A new session with the same principal, credential, context, metadata and client as an earlier one gets both
    without a process, which starts with its first other request. Only for servers that list the same to equal sessions,
    not for a `url`. 0: not at all."""
    idle_stop_s: Annotated[float, Field(ge=0, le=31_536_000)] | None = None
    """Stop a child that was idle for this long. The next call starts it again, and its result reports the restart. By
    default it stops after five minutes in a 2026-07-28 session to which no client has come back, and never in others,
    because a restart loses what a server holds in memory. 0 never stops it."""

    _faults: tuple[str, ...] = PrivateAttr(())
    _is_hidden: bool = PrivateAttr(False)
    _is_gateway: bool = PrivateAttr(False)

    @classmethod
    def of_gateway(cls, url: str, headers: Mapping[str, str]) -> Self:
        """Return the entry for another gateway at `url`, which `stdio --url` was given and which the user trusts. The
        entry has it open a session at the first modern request, which all later modern requests use."""
        entry = cls(url=url, headers={"MCP-Gateway-Session": "new", **headers})
        entry._is_gateway = True
        return entry

    @classmethod
    def unusable(cls, given: Any, faults: Iterable[str]) -> Self:
        """Return an entry in place of one with faults, so that its server is known but not served. It keeps only
        `direct_only` and `permissions` of the `given` entry. If these are invalid, no session sees the server."""
        names = given.keys() if isinstance(given, dict) else ()
        seen = {name: given[name] for name in _VISIBILITY if name in names}
        is_hidden = any(name not in cls.model_fields and similar_name(str(name), _VISIBILITY) for name in names)
        try:
            entry = cls.model_validate({"in_process": "left:out", **seen})
        except ValidationError:
            entry, is_hidden = cls(in_process="left:out"), True
        return entry._with_faults(faults, is_hidden=is_hidden)

    def without_server(self, fault: str) -> Self:
        """Return a copy of this entry that is left out because of `fault`: its command, URL or object cannot be
        used."""
        return self._with_faults([fault], is_hidden=False)

    def _with_faults(self, faults: Iterable[str], *, is_hidden: bool) -> Self:
        found = self.model_copy(update={"in_process": ""})
        found._faults, found._is_hidden = tuple(faults), is_hidden
        return found

    @property
    def faults(self) -> tuple[str, ...]:
        """Return why the server is left out, one line for each fault; empty if it is served."""
        return self._faults

    @property
    def is_gateway(self) -> bool:
        """Return True if the server is the gateway that `stdio --url` was given (`of_gateway`)."""
        return self._is_gateway

    @property
    def is_hidden(self) -> bool:
        """Return True if no session may see the server, because the settings that say who may are invalid."""
        return self._is_hidden

    @model_validator(mode="before")
    @classmethod
    def _something_to_serve(cls, value: Any) -> Any:
        if isinstance(value, dict) and not any(value.get(kind) for kind in ("command", "in_process", "url")):
            raise ValueError("give one of command, url, or in_process as module:attribute")
        if isinstance(value, dict) and "resources" in value:
            raise ValueError("resources is gone: set memory_mb and files in sandbox, which hold in every profile")
        return value

    @field_validator("args", mode="before")
    @classmethod
    def _texts(cls, values: Any) -> Any:
        return [*map(_text, values)] if isinstance(values, list | tuple) else values

    @field_validator("env", "headers", mode="before")
    @classmethod
    def _pairs_of_texts(cls, values: Any) -> Any:
        return {name: _text(value) for name, value in values.items()} if isinstance(values, dict) else values

    @field_validator("url")
    @classmethod
    def _absolute(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("must be an http:// or https:// URL")
        if parts.username or parts.password:
            raise ValueError("must not contain credentials: use headers")
        return url

    @field_validator("methods")
    @classmethod
    def _not_of_mcp(cls, methods: dict[str, MethodSettings]) -> dict[str, MethodSettings]:
        for name in methods:
            row = METHODS.get(name) or SERVER_METHODS.get(name)
            if row is not None and not row.extension:
                others = _SETTING_OF.get(row.kind) or "tools, prompts and resource_uris"
                raise ValueError(f"{name!r} is MCP's, and has no effect here: restrict MCP's methods by {others}")
        return methods

    @field_validator("in_process")
    @classmethod
    def _module_and_attribute(cls, name: str) -> str:
        if name and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name):
            raise ValueError("must be module:attribute")
        return name

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(map(bool, (self.command, self.in_process, self.url))) > 1:
            raise ValueError("give one of command, url and in_process, not several")
        if self.shared and any(map(PLACEHOLDER.search, (*self.env.values(), *self.headers.values()))):
            raise ValueError("a shared server gets no secrets, because one process serves all principals")
        if self.handles and self.shared:
            raise ValueError("handles need a server with a process for each session, so the server must not be shared")
        if self.warm and not self.has_own_process:
            raise ValueError("warm needs a command that is not shared: other servers start no process for a session")
        if self.lists_fresh_s and self.shared:
            raise ValueError("lists_fresh_s needs a server that is not shared: a shared one has its process already")
        if self.lists_fresh_s and self.url:
            raise ValueError(
                "lists_fresh_s needs a command or in_process: what a session does at a URL outlives its connection "
                "there, so its own lists may differ from those of a new session"
            )
        if not self.command and self.sandbox != SandboxTable():
            raise ValueError("sandbox needs a command: other servers have no process of the gateway's")
        if self.in_process and self.shared:
            raise ValueError("shared needs a command, because an in_process server has one connection for each session")
        return self

    @model_validator(mode="after")
    def _files_are_of_own_processes(self) -> Self:
        if secrets_in(*self.headers.values(), kind="secret_file"):
            raise ValueError("headers: ${secret_file:…} is the path of a file, which only processes read: use secret")
        if secrets_in(*self.env.values(), kind="secret_file") and (not self.has_own_process or self.warm):
            raise ValueError(
                "env: ${secret_file:…} is a file of one session's process: the server needs a command, and must be "
                "neither shared nor warm"
            )
        return self

    @property
    def kind(self) -> Literal["command", "url", "object"]:
        """Return the kind of the server: started by a command, behind a URL, or an object in this process."""
        return "command" if self.command else "url" if self.url else "object"

    @property
    def is_remote(self) -> bool:
        """Return True if the server is reached by a URL. The gateway starts nothing for it. What a process gets in its
        environment, such a server gets in headers."""
        return bool(self.url)

    @property
    def has_own_process(self) -> bool:
        """Return True if each session has its own process of the server."""
        return self.kind == "command" and not self.shared

    @property
    def argv(self) -> tuple[str, ...]:
        return (self.command, *self.args)


OBJECT: Final = UpstreamSettings(in_process="given:object")
"""The settings of a server object that the embedding program passes in."""
