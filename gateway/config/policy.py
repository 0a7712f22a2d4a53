"""What an operator can set about who calls and what they may do: frozen, validated, units in the names."""

import ipaddress
import itertools
import re
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from gateway.config.patterns import expression, usable

__all__ = [
    "API_KEY_ISSUER",
    "AuthSettings",
    "ClaimNames",
    "ItemSettings",
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

API_KEY_ISSUER: Final = "api-key"
_OURS: Final = (API_KEY_ISSUER, "anonymous")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 §5.1
Trust = Literal["direct", "sandboxed"]
ContextField = Literal["session_id", "workspace", "trust", "principal", "agent"]
# Signatures with a public key only: with a shared secret whoever verifies can also sign.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


# As in shells: `*`, `?`, `[abc]`, `[!abc]`.
Pattern = Annotated[str, AfterValidator(usable)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClaimNames(_Frozen):
    """Which claims say something about a session. A dotted name goes down into objects."""

    trust: str = ""
    """The claim that says the trust."""
    workspace: str = ""
    """The claim that says the workspace."""
    permissions: str = "scope"
    """The claim that lists the permissions, as a list or separated by spaces."""


class JwtSettings(_Frozen):
    """One issuer of access tokens."""

    issuer: str
    """The `iss` of its tokens, exactly."""
    audience: str
    """The `aud` they have to have."""
    jwks_url: str
    """Where it publishes its keys: https, or http on this machine."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    """Which signatures are believed."""
    scopes: tuple[str, ...] = ()
    """Scopes that a token has to have."""
    clock_skew_s: Annotated[float, Field(ge=0, le=300)] = 30.0
    """How far its clock may be from ours."""
    claims: ClaimNames = ClaimNames()
    """Which claims say something about a session. A dotted name goes down into objects."""

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
    """Their addresses, as networks: nobody else is believed."""
    subject_header: str = ""
    """The header that names the principal. Empty: proxies name none."""
    issuer: str = "proxy"
    """What stands before the principal's name."""
    trust_header: str = ""
    """The header that says the trust."""
    workspace_header: str = ""
    """The header that says the workspace."""
    permissions_header: str = ""
    """The header that lists the permissions, separated by commas or spaces."""

    @property
    def headers(self) -> tuple[str, ...]:
        """The headers that say who calls and what they may, in lower case."""
        names = (self.subject_header, self.trust_header, self.workspace_header, self.permissions_header)
        return tuple(name.lower() for name in names if name)

    @field_validator("subject_header", "trust_header", "workspace_header", "permissions_header")
    @classmethod
    def _is_header(cls, name: str) -> str:
        if name and not _HEADER.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a header")
        return name

    @model_validator(mode="after")
    def _names_the_principal(self) -> Self:
        if self.headers and not self.subject_header:
            raise ValueError("give subject_header: what proxies say of a caller they do not name would not count")
        if len(set(self.headers)) != len(self.headers):
            raise ValueError("each fact needs a header of its own")
        return self

    @field_validator("networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks


class AuthSettings(_Frozen):
    """How callers prove who they are, beside API keys."""

    jwt: tuple[JwtSettings, ...] = ()
    """Issuers of access tokens that are trusted."""
    resource: str = ""
    """The URL clients know this gateway by (RFC 9728 `resource`): needed for them to find the authorization server."""
    proxies: ProxySettings | None = None
    """Proxies that say who calls."""

    @model_validator(mode="after")
    def _one_of_a_kind(self) -> Self:
        issuers = [entry.issuer for entry in self.jwt]
        if len(set(issuers)) != len(issuers):
            raise ValueError("jwt names an issuer twice")
        issuers = [*_OURS, *issuers, *([self.proxies.issuer] if self.proxies is not None else ())]
        for one, other in itertools.permutations(issuers, 2):
            if one == other or one.startswith(f"{other}:"):
                raise ValueError(
                    f"issuer {one!r} cannot be told from {other!r}: their principals could have the same name, as "
                    "ISSUER:SUBJECT; give proxies another issuer, or serve one of them by a gateway of its own"
                )
        return self

    @property
    def issuers(self) -> tuple[str, ...]:
        """Who vouches for principals, beside API keys."""
        proxied = self.proxies is not None and self.proxies.subject_header
        return (*(entry.issuer for entry in self.jwt), *([self.proxies.issuer] if self.proxies and proxied else ()))


class RuleSettings(_Frozen):
    """What sessions of some principals, in some workspaces, are given. Patterns as in shells; empty means all."""

    principals: tuple[Pattern, ...] = ()
    """Patterns of the principals it holds for, `api-key:NAME` or `ISSUER:SUBJECT`; empty means all."""
    workspaces: tuple[Pattern, ...] = ()
    """Patterns of the workspaces it holds for; empty means all. To a workspace that is only announced it gives nothing,
    and `sandboxed` holds for all of these (`policy.trust_announced_workspace`)."""
    trust: Trust | None = None
    """The trust they are given."""
    workspace: str | None = None
    """The workspace they are given."""
    permissions: tuple[str, ...] = ()
    """Permissions they are given; those of several rules add up."""


class WorkspaceSettings(_Frozen):
    """What one workspace sees; patterns as in shells."""

    servers: tuple[Pattern, ...] = ("*",)
    """Patterns of the servers it sees."""
    tools: tuple[Pattern, ...] = ("*",)
    """Patterns of the tools it sees, as `server__tool`."""
    prompts: tuple[Pattern, ...] = ("*",)
    """Patterns of the prompts it sees, as `server__prompt`."""
    resources: tuple[Pattern, ...] = ("*",)
    """Patterns of the resources and templates it sees, as `server__URI`."""


class ItemSettings(_Frozen):
    """What holds for the prompts or resources of a server that a pattern names; all patterns that match add up."""

    direct_only: bool = False
    """For sessions of direct trust only."""
    permissions: tuple[str, ...] = ()
    """For sessions that have all of these permissions only."""


class ToolSettings(_Frozen):
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
    bind: dict[str, ContextField] = {}
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


class ResourceSettings(_Frozen):
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


class SecretSettings(_Frozen):
    """Where a secret comes from, and whose it is. With `{subject}` in it everybody has their own."""

    file: str = ""
    """The file it is in. `{subject}` stands for the principal's name, so that everybody has their own; `{issuer}` for
    who vouches for that name, percent-encoded."""
    env: str = ""
    """The gateway's variable it is in; `{subject}` and `{issuer}` as in `file`. It has to begin with words of yours."""
    command: tuple[str, ...] = ()
    """The command that prints it, good for a minute; `{subject}` and `{issuer}` as in `file`."""
    pass_env: tuple[str, ...] = ()
    """Variables of the gateway that the command is given, beside those that servers inherit. None: servers without a
    sandbox can read what it was given while it runs."""
    issuer: str = ""
    """Whose principals have it: `api-key`, the `issuer` of proxies, or one of `auth.jwt`; nobody else has. It has to be
    given with `{subject}` where several can say who calls and `{issuer}` is not there: the same name is another
    principal with each of them."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(map(bool, (self.file, self.env, self.command))) != 1:
            raise ValueError("give one of file, env and command")
        if self.pass_env and not self.command:
            raise ValueError("pass_env is for a command")
        if self.env.startswith("{subject}"):
            raise ValueError("env begins with {subject}: principals could name other variables of the gateway")
        return self

    @property
    def is_personal(self) -> bool:
        return self.has("{subject}")

    def has(self, placeholder: str) -> bool:
        """Whether it stands somewhere in the source."""
        return any(placeholder in part for part in (self.file, self.env, *self.command))


class RateSettings(_Frozen):
    """So many requests per second in the long run, and so many at once."""

    per_s: Annotated[float, Field(gt=0)]
    """Requests per second in the long run."""
    burst: Annotated[int, Field(ge=1)] = 20
    """Requests at once."""


def _off(value: Any) -> Any:
    """0, "off" and null switch a limit off."""
    return None if value in (0, "0", "off", "") else value


Rate = Annotated[RateSettings | None, BeforeValidator(_off)]
Quota = Annotated[Annotated[int, Field(ge=1, le=10_000)] | None, BeforeValidator(_off)]


class PolicySettings(_Frozen):
    """What may be done, whoever calls."""

    eval_tools: bool = False
    """Tools that evaluate what they are given: not even listed unless switched on."""
    check_arguments: bool = True
    """Check a call's arguments against the tool's schema before the server sees them."""
    unusable_schemas: Literal["refuse", "allow"] = "refuse"
    """What becomes of a tool whose schema checks nothing, for it is wrong, too large, or refers to other places, which
    are never fetched. `refuse`: it is not listed and not called; `allow`: it is called unchecked."""
    unmatched_patterns: Literal["refuse", "allow"] = "refuse"
    """What becomes of patterns of `tools`, `prompts`, `resource_uris` and `workspaces` that name nothing which servers
    list, as misspelt ones do: they protect nothing. `refuse`: the gateway does not start, and the tools of a server
    that answers only later are not called; `allow`: a line in the log, for servers whose lists differ by session or
    grow."""
    slow_s: Annotated[float, Field(gt=0)] = 10.0
    """A call that takes longer is a warning in the log."""
    sandbox: tuple[str, ...] = ()
    """What starts the servers of sandboxed sessions. `{socket}` is that of the session's state, `{session_id}` its
    id."""
    session_rate: Rate = RateSettings(per_s=500, burst=5_000)
    """How often one session may ask; 0: as often as it likes. An agent makes a few calls a second, and a script that
    calls without a pause some hundreds; clients of today do not repeat a call that was refused. A process relays
    thousands."""
    principal_rate: Rate = RateSettings(per_s=1_000, burst=10_000)
    """How often one principal may send anything, over all its sessions; 0: as often as it likes. Enough for a hundred
    busy agents under one name. Anonymous clients are counted by the address they come from (IPv6: the /64 network),
    behind `auth.proxies` by the last address in `X-Forwarded-For` that is no trusted proxy."""
    opening_rate: Rate = RateSettings(per_s=10, burst=200)
    """How often one principal, or one anonymous address, may open a session; 0: as often as it likes. Hosts that open
    one for every call open a few a second at most; and unconfirmed sessions live for a minute, so that one address has
    800 of them, and never all that the memory store holds."""
    principal_sessions: Quota = 5_000
    """How many sessions one principal, or one anonymous address, may have at a time, on all replicas together; 0: any
    number. A host that opens a session for every call and ends none has 3,600 after an hour, one a second."""
    principal_processes: Quota = 256
    """How many server processes one principal, or one anonymous address, may have at a time, on all replicas together;
    0: any number. They take some 30 MB each: 8 GB at most, and more than thirty sessions of eight servers. A session
    that nobody ends has its processes until `session.idle_ttl_s` is over: give a service that brings many agents
    under one key what all of them need."""
    rules: tuple[RuleSettings, ...] = ()
    """What sessions of some principals, in some workspaces, are given, in order."""
    workspaces: dict[Pattern, WorkspaceSettings] = {}
    """Pattern of workspace names → what it sees; the first that matches counts. None: every workspace sees all. A
    session whose workspace is only announced sees what every one of them sees."""
    trust_announced_workspace: bool = False
    """Whether a workspace that a client announces counts in `rules` and `workspaces` like one that a credential or a
    rule says. Then whoever may connect may take any workspace, and what it grants: for where all clients are yours."""
