"""What an operator can set: frozen, validated, units in the names, the reason beside each default.

A configuration is one JSON or TOML file: the `mcpServers` object people already have for their desktop clients, and a
`gateway` object beside it. `MCP_GATEWAY_…` environment variables win over the file (`__` goes one level down).
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gateway.config.host_names import host_names
from gateway.config.limits import LimitSettings, Seconds
from gateway.config.load import ConfigurationError, Origins, explained, gathered
from gateway.config.policy import (
    API_KEY_ISSUER,
    AuthSettings,
    ItemSettings,
    Pattern,
    PolicySettings,
    ResourceSettings,
    SecretSettings,
    ToolSettings,
)
from gateway.context.assertion import ISSUER
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

ContextField = Literal[
    "session_id", "workspace", "workspace_provenance", "trust", "principal", "agent", "permissions", "correlation_id"
]
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


def host_and_port_of(address: str) -> tuple[str, int]:
    """The parts of such an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    return host in ("localhost", "::1") or host.startswith("127.")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
    """Instead of a command: a server object of the `mcp` SDK in the gateway's process, as `module:attribute`."""
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


class SessionSettings(_Frozen):
    """How long sessions live and how clients carry them."""

    idle_ttl_s: Seconds = 3_600.0
    """A session ends when it was not used for so long."""
    max_age_s: Seconds = 86_400.0
    """And at this age in any case."""
    unconfirmed_ttl_s: Seconds = 60.0
    """An anonymous session whose client never came back ends this long after its first exchange: it would leave a
    process behind, and a minute is enough to come back once."""
    max_sessions: Annotated[int, Field(ge=1)] = 1_000
    """How many the memory store holds; beyond, the least recently used idle one ends. The doctor reckons with it as
    well."""
    default_session: bool = True
    """A 2026-07-28 client with a credential that carries nothing of its own meets its session again, by principal and
    client name. Never for anonymous ones."""
    reattach: frozenset[Literal["cookie", "principal"]] = frozenset()
    """`cookie`, `principal`: by what, beside a session token, `initialize` resumes a session. Off: two windows of one
    user do not share one by accident."""
    cookie: bool = True
    """Whether cookies are set and read."""
    workspace_path: str = "orbit.workspace"
    """Where in `_meta` a client announces its workspace, nested or dotted."""
    trust: Literal["direct", "sandboxed"] = "direct"
    """The trust that sessions have where neither credential nor rule says one."""
    metadata: dict[str, str] = {}
    """Name → text that every new session carries; `{principal}`, `{agent}`, `{workspace}`, `{trust}` and `{endpoint}`
    are filled in. At most 10 KiB; what looks like a credential is redacted."""

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
    """`store` (which keeps the newest 10,000 of each part, in memory 2,000: what operators did, sessions of named
    principals, what those were refused, their calls, and what strangers caused) and `stderr`, beside the log."""
    file: str = ""
    """A file of lines of JSON as well, opened anew for each round, so that it can be rotated."""
    calls: bool = False
    """Each tool call as well, not only what happens to sessions: who, which tool, how it went, how long it took; never
    its arguments."""


class AdminSettings(_Frozen):
    """The console, the REST interface and the metrics of those who operate the gateway."""

    keys: dict[str, tuple[str, ...]] = {}
    """Name → SHA-256 of an operator's key in hex, or several of them, as `api_keys`. None: there is no console and no
    REST interface."""
    listen: str = ""
    """`HOST:PORT` of a listener of its own for console, REST and metrics, where metrics need no key. Empty: they are on
    the gateway's own. Worker n listens n ports higher."""

    _one_or_several = field_validator("keys", mode="before")(one_or_several)
    _digests = field_validator("keys")(digests)
    _host_and_port = field_validator("listen")(host_and_port)


class GatewaySettings(_Frozen):
    """The `gateway` object."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8_080
    """Port to listen on; 0 takes a free one."""
    store: str = "memory://"
    """Where sessions are kept, as a URL ([stores](configuration.md#stores))."""
    store_file: str = ""
    """Instead of `store`: a file that holds the URL, for one with a password in it."""
    advertise: str = ""
    """`HOST:PORT` where other gateways on the same store reach this one. Empty: `host`, at a free port; it has to be
    given with `0.0.0.0`."""
    internal: str = ""
    """`HOST:PORT` where it listens for them, if that is another address: behind a port mapping."""
    api_keys: dict[str, tuple[str, ...]] = {}
    """Name → SHA-256 of the key in hex, or several of them while a key is replaced; never the keys themselves. Clients
    send `Authorization: Bearer KEY`."""
    anonymous: bool | None = None
    """Whether clients without a credential are served. Not given: only while nothing else is configured, and on
    loopback. `true` beside `api_keys`, `auth.jwt` or a `subject_header` of `auth.proxies` is refused: one of them would
    undo the other."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names requests may ask for, without ports; `*.example.com` for all below a domain, `*` for any. Empty:
    loopback names when bound to loopback, else any; but a gateway elsewhere that serves everybody has to say them,
    because a web page can call what its visitor's browser reaches under a name of the page's own (DNS rebinding)."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call, beside the gateway's own, and loopback when bound to loopback."""
    issuer: str = ISSUER
    """`iss` of what servers behind URLs are told of sessions: the URL at which they find the keys, if they look."""
    tools: bool = False
    """One more server, `gateway`: `list_sessions`, `show_session` and `end_session` for a client's own sessions."""
    sse: bool = False
    """HTTP+SSE at `/sse` as well, for clients that know nothing newer (MCP 2024-11-05)."""
    result_meta: bool = False
    """Put the session id (cut) and the correlation id into the `_meta` of results."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines that are written."""
    log_format: Literal["auto", "json", "logfmt", "pretty"] = "auto"
    """The form of the log on stderr; `auto` is `pretty` at a terminal, else `logfmt`."""
    log_calls_per_s: Annotated[int, Field(ge=0)] = 100
    """A line for each request, but for no more than so many in a second: writing one costs half as much as relaying a
    call. What is left out is counted in a line of its own; 0 writes none."""
    tracing: bool = False
    """OpenTelemetry spans, sent where `OTEL_EXPORTER_OTLP_ENDPOINT` says. Needs `mcp-session-gateway[tracing]`."""
    admin: AdminSettings = AdminSettings()
    """Console, REST interface and metrics of operators."""
    secrets: dict[str, SecretSettings] = {}
    """What `${secret:NAME}` in a server's `env` or `headers` stands for, by name."""
    auth: AuthSettings = AuthSettings()
    """How callers prove who they are, beside API keys."""
    policy: PolicySettings = PolicySettings()
    """What sessions are given, and what they may do."""
    audit: AuditSettings = AuditSettings()
    """Where audit events go, and whether tool calls are among them."""
    session: SessionSettings = SessionSettings()
    """How long sessions live, and how clients carry them."""
    limits: LimitSettings = LimitSettings()
    """What one client or one server may cost."""

    _one_or_several = field_validator("api_keys", mode="before")(one_or_several)
    _digests = field_validator("api_keys")(digests)
    _host_and_port = field_validator("advertise", "internal")(host_and_port)
    _host_names = field_validator("allowed_hosts")(host_names)

    @field_validator("store")
    @classmethod
    def _known_store(cls, url: str) -> str:
        return check_store_url(url)

    @property
    def allows_anonymous(self) -> bool:
        return not self.credentials if self.anonymous is None else self.anonymous

    @property
    def credentials(self) -> tuple[str, ...]:
        """The settings by which callers have to say who they are, by name."""
        proxied = self.auth.proxies is not None and bool(self.auth.proxies.subject_header)
        given = {"api_keys": self.api_keys, "auth.jwt": self.auth.jwt, "auth.proxies": proxied}
        return tuple(name for name, value in given.items() if value)

    @model_validator(mode="after")
    def _nobody_beside_credentials(self, info: ValidationInfo) -> Self:
        if not self.anonymous or not self.credentials:
            return self
        origins: Origins | None = (info.context or {}).get("origins")
        says, asks = "anonymous", [*self.credentials]
        if origins is not None:
            says = f"anonymous (from {origins.last_of('anonymous')})"
            asks = [f"{name} (from {origins.of(name)})" for name in asks]
        raise ValueError(
            f"{says} serves everybody, and {', '.join(asks)} {'says' if len(asks) == 1 else 'say'} who may call: "
            "take anonymous out, or run a gateway of its own for those who have no credential"
        )

    @model_validator(mode="after")
    def _nobody_by_accident(self) -> Self:
        if self.anonymous is None and self.allows_anonymous and not is_loopback(self.host):
            raise ValueError(
                f"host is {self.host}, and nobody has to say who they are: give api_keys or auth, or anonymous = true "
                "if everybody who reaches it may use it"
            )
        return self

    @model_validator(mode="after")
    def _everybody_by_a_name(self) -> Self:
        if self.allows_anonymous and not self.allowed_hosts and not is_loopback(self.host):
            raise ValueError(
                f"host is {self.host}, and nobody has to say who they are: any web page could call this gateway by way "
                "of a browser that reaches it (DNS rebinding). Say by which names it is asked for, as in allowed_hosts "
                '= ["mcp.example.com"] (MCP_GATEWAY_ALLOWED_HOSTS=\'["mcp.example.com"]\', --allowed-host '
                'mcp.example.com), or ["*"] if any name will do'
            )
        return self

    @property
    def issuers(self) -> tuple[str, ...]:
        """Who vouches for principals: API keys are one of them."""
        return (*([API_KEY_ISSUER] if self.api_keys else ()), *self.auth.issuers)

    @model_validator(mode="after")
    def _secrets_have_one_owner(self) -> Self:
        issuers = self.issuers
        for name, secret in self.secrets.items():
            if secret.issuer and secret.issuer not in issuers:
                known = ", ".join(issuers) or "nobody"
                raise ValueError(f"secrets.{name}: issuer is {secret.issuer!r}, and callers are vouched for by {known}")
            if secret.is_personal and not secret.issuer and not secret.has("{issuer}") and len(issuers) > 1:
                raise ValueError(
                    f"secrets.{name}: {{subject}} is another principal with each of {', '.join(issuers)}: say with "
                    "issuer whose it is, or put {issuer} into its source"
                )
        return self


class Settings(_Frozen):
    """Everything an operator can set."""

    mcpServers: dict[str, UpstreamSettings] = Field(default={}, repr=False)  # the name people's files use
    """The servers by name, as in files of desktop clients. A name holds letters, digits, `.`, `-` and single `_`."""
    gateway: GatewaySettings = GatewaySettings()
    """Everything else."""

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


def load_settings(path: Path | None = None, overrides: dict[str, Any] | None = None) -> Settings:
    """Read the file (JSON, or TOML by its ending), the environment over it, and `overrides` (of `gateway`) over both.

    Raises:
        ConfigurationError: one line per fault: where, what, and what to do.
    """
    document, origins = gathered(path, overrides or {})
    try:
        return Settings.model_validate(document, context={"origins": origins})
    except ValidationError as error:
        raise ConfigurationError(explained(error, path)) from None
