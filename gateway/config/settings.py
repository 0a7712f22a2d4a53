"""Everything an operator can set: frozen, validated, units in the names, the reason beside each default.

A configuration is one JSON or TOML file: the `mcpServers` object people already have for their desktop clients, and a
`gateway` object beside it. `MCP_GATEWAY_…` environment variables win over the file (`__` goes one level down).
"""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from gateway.config.addresses import HostNames, ListenAddress, is_loopback
from gateway.config.auth import API_KEY_ISSUER, AuthSettings, KeyDigestSettings
from gateway.config.limits import LimitSettings
from gateway.config.load import ConfigurationError, Origins, explained, gathered
from gateway.config.model import Frozen
from gateway.config.operators import AdminSettings, AuditSettings
from gateway.config.policy import PolicySettings
from gateway.config.secrets import SecretSettings
from gateway.config.sessions import SessionSettings
from gateway.config.upstreams import UpstreamSettings
from session_store.connect import check_store_url

__all__ = ["ConfigurationError", "GatewaySettings", "Settings", "load_settings"]

DEFAULT_ISSUER: Final = "mcp-session-gateway"
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class GatewaySettings(Frozen):
    """The `gateway` object."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8_080
    """Port to listen on; 0 takes a free one."""
    store: str = "memory://"
    """Where sessions are kept, as a URL ([stores](configuration.md#stores))."""
    store_file: str = ""
    """Instead of `store`: a file that holds the URL, for one with a password in it."""
    advertise: ListenAddress = ""
    """`HOST:PORT` where other gateways on the same store reach this one. Empty: `host`, at a free port; it has to be
    given with `0.0.0.0`."""
    internal: ListenAddress = ""
    """`HOST:PORT` where it listens for them, if that is another address: behind a port mapping."""
    api_keys: KeyDigestSettings = Field(default={})
    """Name → SHA-256 of the key in hex, or several of them while a key is replaced; never the keys themselves. Clients
    send `Authorization: Bearer KEY`."""
    anonymous: bool | None = None
    """Whether clients without a credential are served. Not given: only while nothing else is configured, and on
    loopback. `true` beside `api_keys`, `auth.jwt` or a `subject_header` of `auth.proxies` is refused: one of them would
    undo the other."""
    allowed_hosts: HostNames = ()
    """Host names requests may ask for, without ports; `*.example.com` for all below a domain, `*` for any. Empty:
    loopback names when bound to loopback, else any; but a gateway elsewhere that serves everybody has to say them,
    because a web page can call what its visitor's browser reaches under a name of the page's own (DNS rebinding)."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call, beside the gateway's own, and loopback when bound to loopback."""
    issuer: str = DEFAULT_ISSUER
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
    secrets: dict[str, SecretSettings] = Field(default={})
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


class Settings(Frozen):
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
                        raise ValueError(f"mcpServers.{name}: gateway.secrets has no entry {secret!r}")
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
    document, origins = gathered(path, overrides or {}, GatewaySettings)
    try:
        return Settings.model_validate(document, context={"origins": origins})
    except ValidationError as error:
        raise ConfigurationError(explained(error, origins)) from None
