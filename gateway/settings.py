"""What an operator can set: frozen, validated, units in the names, the reason beside each default.

A configuration is one JSON or TOML file: the `mcpServers` object people already have for their desktop clients, and a
`gateway` object beside it. `MCP_GATEWAY_…` environment variables win over the file (`__` goes one level down).
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.assertion import ISSUER
from gateway.policy_settings import AuthSettings, PolicySettings, ResourceSettings, SecretSettings, ToolSettings
from session_store.connect import check_store_url
from session_store.metadata import checked_metadata

__all__ = [
    "DEFAULT_CONTEXT_ENV",
    "ConfigurationError",
    "GatewaySettings",
    "LimitSettings",
    "SessionSettings",
    "Settings",
    "UpstreamSettings",
    "is_loopback",
    "load_settings",
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

METADATA_FIELDS = ("principal", "agent", "workspace", "trust", "endpoint")

ContextField = Literal["session_id", "workspace", "trust", "principal", "agent", "permissions", "correlation_id"]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def one_or_several(keys: Any) -> Any:
    """Digests by name, where one may stand without a list."""
    if not isinstance(keys, dict):
        return keys
    return {name: (given,) if isinstance(given, str) else given for name, given in keys.items()}


def digests(keys: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Digests by name, none of which is a key."""
    for name, given in keys.items():
        if not given or not all(_SHA256.fullmatch(digest) for digest in given):
            raise ValueError(f"{name}: must be the SHA-256 of the key as 64 lower-case hex digits, not the key itself")
    return keys


def host_and_port(address: str) -> str:
    """An address to listen on or to be reached at; empty: none."""
    host, _, port = address.rpartition(":")
    if address and not (host and port.isdigit() and int(port) < 65_536):
        raise ValueError("must be HOST:PORT")
    return address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    return host in ("localhost", "::1") or host.startswith("127.")


class ConfigurationError(ValueError):
    """The configuration cannot be used. The message names the place and what to do."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class UpstreamSettings(BaseModel):
    """One entry of `mcpServers`. Fields other hosts keep there (`disabled`, `autoApprove`, …) are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    # A server behind a URL (Streamable HTTP, either era), and what every request to it carries.
    url: str = ""
    headers: dict[str, str] = Field(default={}, repr=False)
    # An `mcp` SDK server object in this process, as module:attribute, instead of a command.
    in_process: str = ""
    # One process for all sessions: only when the operator says that the server keeps sessions apart by itself.
    shared: bool = False
    # Tools that open further sessions of this server, for a client that needs several at once.
    handles: bool = False
    # Which variables tell a child about its session.
    context_env: dict[str, ContextField] = DEFAULT_CONTEXT_ENV  # type: ignore[assignment]  # literal strings
    # Who may see it at all, and what holds for its tools, by patterns of their names.
    direct_only: bool = False
    permissions: tuple[str, ...] = ()
    tools: dict[str, ToolSettings] = {}
    # What a child may use, and what starts it for a sandboxed session, if not what policy.sandbox says.
    resources: ResourceSettings = ResourceSettings()
    sandbox: tuple[str, ...] = ()
    # So many processes are started ahead for the next sessions like those that were: for servers that start slowly.
    warm: Annotated[int, Field(ge=0, le=64)] = 0
    # Idle children are kept by default: a restart loses what a server holds in memory.
    idle_stop_s: Seconds | None = None

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


class SessionSettings(_Frozen):
    """How long sessions live and how clients carry them."""

    idle_ttl_s: Seconds = 3_600.0
    max_age_s: Seconds = 86_400.0
    # An anonymous client that never comes back leaves a process behind; a minute is enough to come back once.
    unconfirmed_ttl_s: Seconds = 60.0
    max_sessions: Annotated[int, Field(ge=1)] = 1_000
    # On for authenticated modern clients, which carry nothing of their own; never for anonymous ones.
    default_session: bool = True
    # Off: two windows of one user do not share a session by accident.
    reattach: frozenset[Literal["cookie", "principal"]] = frozenset()
    cookie: bool = True
    # Where a client announces its workspace in `_meta`; both the nested and the dotted spelling are read.
    workspace_path: str = "orbit.workspace"
    trust: Literal["direct", "sandboxed"] = "direct"
    # Free metadata of every new session; {principal}, {agent}, {workspace}, {trust} and {endpoint} are filled in.
    metadata: dict[str, str] = {}

    @field_validator("metadata")
    @classmethod
    def _can_be_filled(cls, metadata: dict[str, str]) -> dict[str, str]:
        for name, text in metadata.items():
            try:
                text.format(**dict.fromkeys(METADATA_FIELDS, ""))
            except (KeyError, IndexError, ValueError, AttributeError):
                fields = ", ".join(f"{{{field}}}" for field in METADATA_FIELDS)
                raise ValueError(f"{name}: only {fields} can be filled in; write {{{{ for a brace") from None
        checked_metadata(metadata)
        return metadata


class AuditSettings(_Frozen):
    """Where audit events go, beside the log: the store, which keeps the newest; stderr; a file, as lines of JSON."""

    to: tuple[Literal["store", "stderr"], ...] = ("store",)
    file: str = ""
    # Tool calls as well, not only what happens to sessions.
    calls: bool = False


class AdminSettings(_Frozen):
    """The console, the REST interface and the metrics of those who operate the gateway."""

    # name → SHA-256 of the key in hex, as `api_keys`. None: there is no console and no REST.
    keys: dict[str, tuple[str, ...]] = {}
    # HOST:PORT of a listener of its own for all of this, and for metrics without a key. Empty: the gateway's own.
    listen: str = ""

    _one_or_several = field_validator("keys", mode="before")(one_or_several)
    _digests = field_validator("keys")(digests)
    _host_and_port = field_validator("listen")(host_and_port)


class LimitSettings(_Frozen):
    """What one client or one server may cost us."""

    body_bytes: Annotated[int, Field(ge=1_024)] = 4 << 20
    # A message of a server; larger ones are thrown away and their call fails.
    line_bytes: Annotated[int, Field(ge=1_024)] = 16 << 20
    # Exchanges of one session in flight.
    exchanges: Annotated[int, Field(ge=1)] = 256
    start_timeout_s: Seconds = 30.0
    # Since the last sign of life of the call. SDK clients give up after 300 s.
    call_timeout_s: Seconds = 600.0
    # A call's event stream is closed after this long and the client polls for the rest; 0 keeps it open. For load
    # balancers that cut long responses. Clients older than 2025-11-25 are not made to poll.
    poll_after_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    # Twice in a child's shutdown: after closing its stdin and after SIGTERM.
    shutdown_grace_s: Seconds = 2.0
    # How long a call waits for a modern client that was asked something. Servers give up on their own after 60 s or so.
    parked_s: Seconds = 55.0


class GatewaySettings(_Frozen):
    """The `gateway` object."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8_080
    store: str = "memory://"
    # Where other gateways on the same store reach this one. Empty: `host`, at a free port.
    advertise: str = ""
    # Where it listens for them, if that is another address than the one they use: behind a port mapping.
    internal: str = ""
    # name → SHA-256 of the key in hex, or several of them while a key is being replaced. Never the keys themselves.
    api_keys: dict[str, tuple[str, ...]] = {}
    # None: on while no API key is configured.
    anonymous: bool | None = None
    # Host names requests may ask for. Empty: loopback names when bound to loopback, else any.
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    # Who signs what HTTP servers are told of sessions (`iss`): the URL at which they find the keys, if they look.
    issuer: str = ISSUER
    # Tools by which clients see, list and end their own sessions, as a server called `gateway`.
    tools: bool = False
    # HTTP+SSE at /sse as well, for clients that know nothing newer (MCP 2024-11-05).
    sse: bool = False
    # Session id (cut) and correlation id in the `_meta` of results.
    result_meta: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    # auto: pretty for a person at a terminal, else logfmt.
    log_format: Literal["auto", "json", "logfmt", "pretty"] = "auto"
    # A line for each request, but for no more than so many in a second: one costs as much as relaying a call.
    log_calls_per_s: Annotated[int, Field(ge=0)] = 100
    # OpenTelemetry spans, sent where OTEL_EXPORTER_OTLP_ENDPOINT says.
    tracing: bool = False
    admin: AdminSettings = AdminSettings()
    # What `${secret:NAME}` in a server's env or headers stands for.
    secrets: dict[str, SecretSettings] = {}
    auth: AuthSettings = AuthSettings()
    policy: PolicySettings = PolicySettings()
    audit: AuditSettings = AuditSettings()
    session: SessionSettings = SessionSettings()
    limits: LimitSettings = LimitSettings()

    _one_or_several = field_validator("api_keys", mode="before")(one_or_several)
    _digests = field_validator("api_keys")(digests)
    _host_and_port = field_validator("advertise", "internal")(host_and_port)

    @field_validator("store")
    @classmethod
    def _known_store(cls, url: str) -> str:
        return check_store_url(url)

    @property
    def allows_anonymous(self) -> bool:
        if self.anonymous is not None:
            return self.anonymous
        proxied = self.auth.proxies is not None and bool(self.auth.proxies.subject_header)
        return not (self.api_keys or self.auth.jwt or proxied)

    @model_validator(mode="after")
    def _nobody_by_accident(self) -> Self:
        if self.anonymous is None and self.allows_anonymous and not is_loopback(self.host):
            raise ValueError(
                f"host is {self.host}, and nobody has to say who they are: give api_keys or auth, or anonymous = true "
                "if everybody who reaches it may use it"
            )
        return self


class Settings(_Frozen):
    """Everything an operator can set."""

    mcpServers: dict[str, UpstreamSettings] = Field(default={}, repr=False)  # the name people's files use
    gateway: GatewaySettings = GatewaySettings()

    @model_validator(mode="after")
    def _secrets_are_declared(self) -> Self:
        for name, entry in self.mcpServers.items():
            for value in (*entry.env.values(), *entry.headers.values()):
                for secret in re.findall(r"\$\{secret:([^}]*)\}", value):
                    if secret not in self.gateway.secrets:
                        raise ValueError(f"mcpServers.{name}: gateway.secrets says nothing of {secret!r}")
        return self

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name in self.mcpServers:
            if not _NAME.fullmatch(name) or "__" in name:
                raise ValueError(
                    f"mcpServers.{name}: a server name holds letters, digits, '.', '-' and single '_', "
                    "because it stands in URLs and in tool names"
                )
        return self


class _Environment(BaseSettings):
    """`MCP_GATEWAY_PORT`, `MCP_GATEWAY_SESSION__IDLE_TTL_S`, … as a mapping; validated with the rest."""

    model_config = SettingsConfigDict(
        env_prefix="MCP_GATEWAY_", env_nested_delimiter="__", extra="forbid", env_ignore_empty=True
    )
    host: Any = None
    port: Any = None
    store: Any = None
    advertise: Any = None
    internal: Any = None
    api_keys: Any = None
    anonymous: Any = None
    allowed_hosts: Any = None
    allowed_origins: Any = None
    issuer: Any = None
    sse: Any = None
    tools: Any = None
    result_meta: Any = None
    log_level: Any = None
    log_format: Any = None
    log_calls_per_s: Any = None
    tracing: Any = None
    admin: dict[str, Any] | None = None
    secrets: Any = None
    auth: dict[str, Any] | None = None
    policy: dict[str, Any] | None = None
    audit: dict[str, Any] | None = None
    session: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **__: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (EnvSettingsSource(settings_cls),)


def load_settings(path: Path | None = None, overrides: dict[str, Any] | None = None) -> Settings:
    """Read the file (JSON, or TOML by its ending), the environment over it, and `overrides` (of `gateway`) over both.

    Raises:
        ConfigurationError: one line per fault: where, what, and what to do.
    """
    document: dict[str, Any] = {} if path is None else _read(path)
    environment = {k: _maybe_json(v) for k, v in _Environment().model_dump(exclude_none=True).items()}
    gateway = document.get("gateway", {})
    if isinstance(gateway, dict):
        document = document | {"gateway": _merge(_merge(gateway, environment), overrides or {})}
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, path)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path}: not valid {'TOML' if path.suffix == '.toml' else 'JSON'}: {error}") from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: must hold an object with mcpServers, and gateway if you like")
    # A desktop host's file holds settings of its own beside mcpServers.
    return {key: value for key, value in document.items() if key in ("mcpServers", "gateway")}


def _maybe_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _maybe_json(part) for name, part in value.items()}
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _explain(error: ValidationError, path: Path | None) -> str:
    lines = []
    for fault in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in fault["loc"])
        what = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            what = "no such setting"
        lines.append(": ".join(part for part in (str(path or ""), where, what) if part))
    return "\n".join(lines)
