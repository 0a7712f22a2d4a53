"""What an operator can set about who calls and what they may do: frozen, validated, units in the names."""

import ipaddress
import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = [
    "AuthSettings",
    "ClaimNames",
    "JwtSettings",
    "PolicySettings",
    "ProxySettings",
    "RateSettings",
    "ResourceSettings",
    "RuleSettings",
    "SecretSettings",
    "ToolSettings",
    "WorkspaceSettings",
]

Trust = Literal["direct", "sandboxed"]
ContextField = Literal["session_id", "workspace", "trust", "principal", "agent"]
# Signatures with a public key only: with a shared secret whoever verifies can also sign.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClaimNames(_Frozen):
    """Which claims say something about a session. A dotted name goes down into objects."""

    trust: str = ""
    workspace: str = ""
    permissions: str = "scope"


class JwtSettings(_Frozen):
    """One issuer of access tokens."""

    issuer: str
    audience: str
    jwks_url: str
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    scopes: tuple[str, ...] = ()
    clock_skew_s: Annotated[float, Field(ge=0, le=300)] = 30.0
    claims: ClaimNames = ClaimNames()

    @field_validator("jwks_url")
    @classmethod
    def _fetchable(cls, url: str) -> str:
        parts = urlsplit(url)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and local):
            raise ValueError("must be an https:// URL: whoever can change these keys can be anybody")
        return url


class ProxySettings(_Frozen):
    """Proxies that say who calls: only these addresses are believed."""

    networks: tuple[str, ...]
    # Headers that name the principal and, if any, what it may. Empty: not taken from headers.
    subject_header: str = ""
    issuer: str = "proxy"
    trust_header: str = ""
    workspace_header: str = ""
    permissions_header: str = ""

    @field_validator("networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks


class AuthSettings(_Frozen):
    """How callers prove who they are, beside API keys."""

    jwt: tuple[JwtSettings, ...] = ()
    # The URL clients know this gateway by (RFC 9728 `resource`): needed for them to find the authorization server.
    resource: str = ""
    proxies: ProxySettings | None = None

    @model_validator(mode="after")
    def _one_of_a_kind(self) -> Self:
        issuers = [entry.issuer for entry in self.jwt]
        if len(set(issuers)) != len(issuers):
            raise ValueError("jwt names an issuer twice")
        return self


class RuleSettings(_Frozen):
    """What sessions of some principals, in some workspaces, are given. Patterns as in shells; empty means all."""

    principals: tuple[str, ...] = ()
    workspaces: tuple[str, ...] = ()
    trust: Trust | None = None
    workspace: str | None = None
    permissions: tuple[str, ...] = ()


class WorkspaceSettings(_Frozen):
    """What one workspace sees: names of servers, and of tools as `server__tool`; patterns as in shells."""

    servers: tuple[str, ...] = ("*",)
    tools: tuple[str, ...] = ("*",)


class ToolSettings(_Frozen):
    """What holds for the tools of a server that a pattern names; all patterns that match add up."""

    direct_only: bool = False
    permissions: tuple[str, ...] = ()
    operation: Literal["read", "write", "eval"] | None = None
    blocked: tuple[str, ...] = ()
    # argument → where it comes from when the client gives none
    bind: dict[str, ContextField] = {}
    slow_s: Annotated[float, Field(gt=0)] | None = None

    @field_validator("blocked")
    @classmethod
    def _expressions(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            try:
                re.compile(word)
            except re.error as error:
                raise ValueError(f"{word!r} is no regular expression: {error}") from None
        return words


class ResourceSettings(_Frozen):
    """What a child may use (setrlimit(2)); 0 is no limit."""

    memory_mb: Annotated[int, Field(ge=0)] = 0
    cpu_s: Annotated[int, Field(ge=0)] = 0
    processes: Annotated[int, Field(ge=0)] = 0
    files: Annotated[int, Field(ge=0)] = 0

    @property
    def argv(self) -> tuple[str, ...]:
        """A command that sets the limits and then becomes what follows (util-linux, prlimit(1))."""
        limits = {"as": self.memory_mb << 20, "cpu": self.cpu_s, "nproc": self.processes, "nofile": self.files}
        given = tuple(f"--{name}={value}" for name, value in limits.items() if value)
        return ("prlimit", *given, "--") if given else ()


class SecretSettings(_Frozen):
    """Where a secret comes from. `{subject}` stands for the principal's: then everybody has their own."""

    file: str = ""
    env: str = ""
    command: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(map(bool, (self.file, self.env, self.command))) != 1:
            raise ValueError("give one of file, env and command")
        return self

    @property
    def is_personal(self) -> bool:
        return any("{subject}" in part for part in (self.file, self.env, *self.command))


class RateSettings(_Frozen):
    """So many requests per second in the long run, and so many at once."""

    per_s: Annotated[float, Field(gt=0)]
    burst: Annotated[int, Field(ge=1)] = 20


class PolicySettings(_Frozen):
    """What may be done, whoever calls."""

    # Tools that evaluate what they are given: not even listed unless switched on.
    eval_tools: bool = False
    check_arguments: bool = True
    slow_s: Annotated[float, Field(gt=0)] = 10.0
    # What starts the servers of sandboxed sessions; {socket} is that of the session's state, {session_id} its id.
    sandbox: tuple[str, ...] = ()
    session_rate: RateSettings | None = None
    principal_rate: RateSettings | None = None
    # How many sessions, and server processes, one principal may have at a time.
    principal_sessions: Annotated[int, Field(ge=1, le=10_000)] | None = None
    principal_processes: Annotated[int, Field(ge=1, le=10_000)] | None = None
    rules: tuple[RuleSettings, ...] = ()
    # pattern of workspace names → what it sees; the first that matches counts. None: every workspace sees all.
    workspaces: dict[str, WorkspaceSettings] = {}
