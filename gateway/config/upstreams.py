"""The entries of `mcpServers`: what to start or reach, and what holds for the items that a server lists."""

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gateway.config.model import Frozen, Pattern, Seconds
from gateway.config.patterns import expression

__all__ = [
    "DEFAULT_CONTEXT_ENV",
    "ItemSettings",
    "ResourceSettings",
    "ToolSettings",
    "UpstreamSettings",
]

DEFAULT_CONTEXT_ENV = {
    "MCP_SESSION_ID": "session_id",
    "MCP_SESSION_WORKSPACE": "workspace",
    "MCP_SESSION_TRUST": "trust",
    "MCP_SESSION_PRINCIPAL": "principal",
    "MCP_SESSION_AGENT": "agent",
    "MCP_SESSION_PERMISSIONS": "permissions",
    "MCP_SESSION_CORRELATION": "correlation_id",
}

ContextField = Literal[
    "session_id", "workspace", "workspace_provenance", "trust", "principal", "agent", "permissions", "correlation_id"
]
BoundField = Literal["session_id", "workspace", "trust", "principal", "agent"]


class ItemSettings(Frozen):
    """What holds for the prompts or resources of a server that a pattern names; all patterns that match add up."""

    direct_only: bool = False
    """For sessions of direct trust only."""
    permissions: tuple[str, ...] = ()
    """For sessions that have all of these permissions only."""


class ToolSettings(Frozen):
    """What holds for the tools of a server that a pattern names; all patterns that match add up."""

    direct_only: bool = False
    """For sessions of direct trust only."""
    permissions: tuple[str, ...] = ()
    """For sessions that have all of these permissions only."""
    operation: Literal["read", "write", "eval"] | None = None
    """What the tool does; one that evaluates is not there unless `policy.eval_tools` is on."""
    blocked: tuple[str, ...] = ()
    """Regular expressions (RE2) that no string of a call's arguments may contain, key or value, whatever its case;
    numbers, `true` and `false` count as JSON writes them."""
    bind: dict[str, BoundField] = Field(default={})
    """Argument → the session's fact that fills it when the client gives none."""
    slow_s: Annotated[float, Field(gt=0)] | None = None
    """A call that takes longer is a warning in the log; if not what `policy.slow_s` says."""

    @field_validator("blocked")
    @classmethod
    def _expressions(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            expression(word)
        expression(*words)
        return words


class ResourceSettings(Frozen):
    """What a child may use (setrlimit(2)); 0 is no limit."""

    memory_mb: Annotated[int, Field(ge=0)] = 0
    """Address space, in MiB."""
    cpu_s: Annotated[int, Field(ge=0)] = 0
    """Processor time, in seconds."""
    processes: Annotated[int, Field(ge=0)] = 0
    """Processes of its user."""
    files: Annotated[int, Field(ge=0)] = 0
    """Open files."""

    @property
    def argv(self) -> tuple[str, ...]:
        """A command that sets the limits and then becomes what follows (util-linux, prlimit(1))."""
        limits = {"as": self.memory_mb << 20, "cpu": self.cpu_s, "nproc": self.processes, "nofile": self.files}
        given = tuple(f"--{name}={value}" for name, value in limits.items() if value)
        return ("prlimit", *given, "--") if given else ()


class UpstreamSettings(BaseModel):
    """One entry of `mcpServers`. Fields other hosts keep there (`disabled`, `autoApprove`, …) are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    command: str = ""
    """What to start: a program, found by PATH."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[str, str] = {}
    """Variables of the child; they win over all others. `${secret:NAME}` stands for a secret of the principal's."""
    cwd: str | None = None
    """The directory it starts in; the gateway's own if none is given."""
    url: str = ""
    """Instead of a command: a server over Streamable HTTP, of either era."""
    headers: dict[str, str] = Field(default={}, repr=False)
    """What every request to `url` carries; `${secret:NAME}` as in `env`."""
    in_process: str = ""
    """Instead of a command: a server object of the `mcp` SDK, or an `Upstream` of another package, in the gateway's
    process, as `module:attribute`."""
    shared: bool = False
    """One process for all sessions. Only for a server that keeps sessions apart by the context in `_meta`."""
    handles: bool = False
    """Tools by which a client opens further sessions of this server, when it needs several at once."""
    context_env: dict[str, ContextField] = DEFAULT_CONTEXT_ENV  # type: ignore[assignment]  # literal strings
    """Variable name → fact about the session: which variables tell a child about its session."""
    direct_only: bool = False
    """Seen by sessions of direct trust only."""
    permissions: tuple[str, ...] = ()
    """Seen by sessions that have all of these permissions only."""
    tools: dict[Pattern, ToolSettings] = {}
    """Pattern of tool names → what holds for them."""
    prompts: dict[Pattern, ItemSettings] = {}
    """Pattern of prompt names → what holds for them, and for completions of their arguments."""
    resource_uris: dict[Pattern, ItemSettings] = {}
    """Pattern of URIs → what holds for the resources and templates that have them: listing, reading, subscribing and
    completing."""
    resources: ResourceSettings = ResourceSettings()
    """What a child may use."""
    sandbox: tuple[str, ...] = ()
    """What starts the server for a sandboxed session, if not what `policy.sandbox` says."""
    warm: Annotated[int, Field(ge=0, le=64)] = 0
    """So many processes are started ahead for the next sessions like those that were: for servers that start slowly."""
    idle_stop_s: Seconds | None = None
    """Stop an idle child after so long; the next call starts it again and says so. Off: a restart loses what a server
    holds in memory."""

    @model_validator(mode="before")
    @classmethod
    def _something_to_serve(cls, value: Any) -> Any:
        if isinstance(value, dict) and not any(value.get(kind) for kind in ("command", "in_process", "url")):
            raise ValueError("give a command, a url, or in_process as module:attribute")
        return value

    @field_validator("url")
    @classmethod
    def _absolute(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("must be an http:// or https:// URL")
        if parts.username or parts.password:
            raise ValueError("credentials do not belong into a URL: use headers")
        return url

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
        if self.shared and any("${secret:" in value for value in (*self.env.values(), *self.headers.values())):
            raise ValueError("a shared server gets no secrets: it would have one principal's for all")
        if self.handles and self.shared:
            raise ValueError("handles are for servers with a process for each session, not for a shared one")
        if self.warm and (self.shared or not self.command):
            raise ValueError("warm is for commands that are not shared: others start no process for a session")
        if self.in_process and self.shared:
            raise ValueError("shared is for commands: an in_process server has one connection for each session")
        return self

    @property
    def argv(self) -> tuple[str, ...]:
        return (self.command, *self.args)
