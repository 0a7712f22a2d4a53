"""Define all settings of an operator, and load them: immutable, validated, with units in their names.

A configuration is one JSON or TOML file: the object `mcpServers`, as in the files of desktop clients, and an object
`gateway` beside it. Environment variables `MCP_GATEWAY_…` win over the file (`__` goes one level down).
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, field_validator, model_validator

from gateway.config.addresses import (
    HostNames,
    ListenAddress,
    bridged_url,
    host_and_port,
    is_loopback,
    is_own_endpoint,
    is_same_place,
)
from gateway.config.admin import AdminSettings, AuditSettings
from gateway.config.auth import API_KEY_ISSUER, AuthSettings, KeyDigestSettings
from gateway.config.cards import ALL_SERVERS, Cards
from gateway.config.configuration_errors import ConfigurationError, Note, ServerFault
from gateway.config.hosts.file_formats import FaultyEntry
from gateway.config.limits import LimitSettings, TaskSettings
from gateway.config.load import PREFIX, Gathered, Origins, fault_lines, gathered
from gateway.config.patterns import any_matches, sample_of
from gateway.config.policy import PolicySettings
from gateway.config.sandbox import AbsolutePath, PackageSettings, SandboxByTrust, SandboxTable
from gateway.config.secrets import (
    PeerTlsSettings,
    SecretSettings,
    browser_url,
    fault_of_name,
    fault_of_placeholders,
    fault_of_url,
    secrets_in,
)
from gateway.config.sessions import (
    BOUND,
    BUILT_IN,
    USABLE_WORKSPACE,
    ContextSettings,
    EnvironmentValue,
    SessionSettings,
    environment_of,
    is_usable_workspace,
)
from gateway.config.settings_base import Frozen
from gateway.config.upstreams import UpstreamSettings
from session_store.connect import check_store_url

logger = logging.getLogger(__name__)

__all__ = ["ConfigurationError", "GatewaySettings", "Loaded", "Settings", "is_server_name", "load"]

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class GatewaySettings(Frozen):
    """The `gateway` object."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8_080
    """Port to listen on; 0 takes a free one."""
    store: str = "memory://"
    """URL of the session store ([stores](configuration.md#stores))."""
    store_file: str = ""
    """A file that contains the store's URL, instead of `store`. Use it if the URL contains a password."""
    advertise: ListenAddress = ""
    """`HOST:PORT` at which other gateways on the same store reach this one. Empty: `host` with a free port; if that is
    loopback, and the store is on another machine, the address from which this machine reaches the store. Required if
    `host` is `0.0.0.0` or `::`."""
    internal: ListenAddress = ""
    """`HOST:PORT` to listen on for other gateways, if it differs from `advertise`, for example behind a port
    mapping."""
    peer_tls: PeerTlsSettings = PeerTlsSettings()
    """TLS between gateways, with certificates on both sides ([replicas](replicas.md#tls-between-gateways))."""
    api_keys: KeyDigestSettings = Field(default={})
    """Name → SHA-256 of the key as hex digits, or a list of them while a key is being replaced. Never the key itself.
    Clients send `Authorization: Bearer KEY`."""
    anonymous: bool | None = None
    """Whether clients without a credential are served. If not set: only on loopback, and only if no credentials are
    configured. `true` together with `api_keys`, `auth.jwt` or a `subject_header` of `auth.proxies` is an error,
    because the two contradict each other."""
    allowed_hosts: HostNames = ()
    """Host names that requests may use, without ports. `*.example.com` means all names below a domain, `*` any name.
    Empty: loopback names if `host` is loopback, else any name. Required for a gateway off loopback that serves
    anonymous clients: otherwise a web page could call it through its visitor's browser (DNS rebinding)."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the gateway, in addition to its own origin, and to loopback if `host` is
    loopback."""
    public_url: str = ""
    """The URL at which clients and people's browsers reach the gateway, for [cards](configuration.md#discovery) and
    pages where people consent (`secrets.NAME.consent`): https, or http on this machine. Empty: the host of
    `auth.resource`, or, for consent alone, `host` and `port` on loopback. If set, it is the issuer of
    [session assertions](eras.md#servers-behind-a-url)."""
    tools: bool = False
    """Add a server named `gateway` with the tools `list_sessions`, `show_session` and `end_session` for a client's own
    sessions. Needs `mcp-session-gateway[mcp]`."""
    sse: bool = False
    """Also serve HTTP+SSE at `/sse`, for clients of MCP 2024-11-05."""
    result_meta: bool = False
    """Put the session id (shortened) and the correlation id into the `_meta` of results."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of log lines that are written."""
    log_format: Literal["auto", "json", "logfmt", "pretty"] = "auto"
    """Format of the log on stderr. `auto` is `pretty` on a terminal, else `logfmt`."""
    admin: AdminSettings = AdminSettings()
    """The operators' console, REST interface and metrics."""
    secrets: dict[str, SecretSettings] = Field(default={})
    """Name → where the value of `${secret:NAME}` in a server's `env` or `headers` comes from."""
    auth: AuthSettings = AuthSettings()
    """How callers authenticate, in addition to API keys."""
    sandbox: SandboxByTrust = SandboxTable()
    """What the processes of all servers may touch, as in a server's own `sandbox`, which wins: `off`, `standard`,
    `strict`, or a table. A list is the launcher of the processes of sandboxed sessions. If no profile is set:
    `standard`."""
    cgroup: Literal["off"] | AbsolutePath | None = None
    """Where each sandboxed server gets a cgroup of its own ([cgroups](sandbox.md#cgroups)): the folder of a cgroup that
    is for this gateway alone, or `off`. If not set: the gateway's own, if systemd or a container delegates it."""
    policy: PolicySettings = PolicySettings()
    """What sessions may do, and what they are given."""
    context: ContextSettings = ContextSettings()
    """Fields of the context that you add, and how servers get them."""
    audit: AuditSettings = AuditSettings()
    """Where audit events are written, and whether tool calls are included."""
    session: SessionSettings = SessionSettings()
    """How long sessions live, and how clients name their session."""
    limits: LimitSettings = LimitSettings()
    """What one client or one server may cost."""
    cards: Cards = Field(default={})
    """Name of a server → its card, by which clients without a credential find it
    ([discovery](configuration.md#discovery)). `*` is the card of `/mcp`, which serves all of them. A server without a
    card is not listed. Cards need `public_url`."""
    tasks: TaskSettings = TaskSettings()
    """Tasks made of calls ([tasks](tasks.md))."""
    packages: PackageSettings = PackageSettings()
    """Packages that `npx` and `uvx` commands of sandboxed servers name ([packages](packages.md))."""

    _origins: Origins | None = PrivateAttr(None)

    @property
    def origins(self) -> Origins | None:
        """Return which places (file, environment, command line) gave these settings; None if a program made them."""
        return self._origins

    @model_validator(mode="after")
    def _remember_origins(self, info: ValidationInfo) -> Self:
        # Settings of a loaded gateway and other servers are validated once more, without the places.
        self._origins = (info.context or {}).get("origins", self._origins)
        return self

    @field_validator("store")
    @classmethod
    def _known_store(cls, url: str) -> str:
        return check_store_url(url)

    @property
    def allows_anonymous(self) -> bool:
        return not self.credentials if self.anonymous is None else self.anonymous

    @property
    def credentials(self) -> tuple[str, ...]:
        """Return the names of those settings that are given and demand a credential of callers, such as `api_keys`.
        Empty if callers need no credential."""
        proxied = self.auth.proxies is not None and bool(self.auth.proxies.subject_header)
        given = {"api_keys": self.api_keys, "auth.jwt": self.auth.jwt, "auth.proxies": proxied}
        return tuple(name for name, value in given.items() if value)

    @property
    def is_of_one_person(self) -> bool:
        """Return whether only this machine can reach the gateway, and clients need no credential. A proxy, a host name
        or another gateway in the configuration means that others reach it through those."""
        others = self.auth.proxies or self.allowed_hosts or self.advertise or self.internal
        return is_loopback(self.host) and not self.credentials and not others

    @property
    def rated_policy(self) -> PolicySettings:
        """Return the policy with the rate limits that apply.

        A gateway of one person, whose store is on this machine, has no default limits of rates, only limits that are
        set.
        """
        is_local = is_loopback(urlsplit(self.store).hostname or "localhost")
        if not (self.is_of_one_person and is_local):
            return self.policy
        unset = {"session_rate", "principal_rate"} - self.policy.model_fields_set
        return self.policy.model_copy(update=dict.fromkeys(unset))

    @model_validator(mode="after")
    def _nobody_beside_credentials(self) -> Self:
        if not self.anonymous or not self.credentials:
            return self
        origins, says, asks = self.origins, "anonymous", [*self.credentials]
        if origins is not None:
            says = f"anonymous (from {origins.places_of('anonymous')[-1]})"
            asks = [f"{name} (from {origins.of(name)})" for name in asks]
        raise ValueError(
            f"{says} serves every caller, but {', '.join(asks)} {'requires' if len(asks) == 1 else 'require'} a "
            "credential: remove anonymous, or run a separate gateway for callers without a credential"
        )

    @model_validator(mode="after")
    def _peers_reach_it(self) -> Self:
        if self.advertise and host_and_port(self.advertise)[0] in ("0.0.0.0", "::"):
            raise ValueError(
                f"advertise is {self.advertise}, where every gateway reaches itself: give the address at which "
                f"others reach this one, and set internal to {self.advertise} to listen on all addresses"
            )
        peers = self.internal or self.advertise
        if peers and is_same_place(peers, f"{self.host}:{self.port}"):
            name = "internal" if self.internal else "advertise"
            raise ValueError(
                f"{name} is {peers}, where clients are served (host and port): other gateways need a port of their own"
            )
        return self

    @model_validator(mode="after")
    def _nobody_by_accident(self) -> Self:
        if not self.allows_anonymous or is_loopback(self.host):
            return self
        if self.anonymous is None:
            raise ValueError(
                f"host is {self.host}, and callers need no credential: set api_keys or auth, or anonymous = true "
                "if everyone who can reach this address may use the gateway"
            )
        if not self.allowed_hosts:
            raise ValueError(
                f"host is {self.host}, and callers need no credential: any web page could call this gateway through a "
                "browser that reaches it (DNS rebinding). Set the host names that clients use, as in allowed_hosts "
                '= ["mcp.example.com"] (MCP_GATEWAY_ALLOWED_HOSTS=\'["mcp.example.com"]\', --allowed-host '
                'mcp.example.com), or ["*"] to allow any name'
            )
        return self

    @property
    def exchanges_tokens(self) -> bool:
        """Return True if servers get tokens in exchange for access tokens of callers."""
        return any(secret.exchange is not None for secret in self.secrets.values())

    @property
    def browser_url(self) -> str:
        """Return the URL at which browsers reach the gateway, without a slash at its end; empty if it is not known."""
        return browser_url(self.public_url, self.auth.resource, self.host, self.port)

    @model_validator(mode="after")
    def _cards_have_addresses(self) -> Self:
        if self.cards and not ((self.public_url or self.auth.resource) and self.browser_url):
            raise ValueError(
                f"public_url is {self.public_url!r}: cards need the address at which clients reach the gateway, with "
                "https, or http on this machine"
            )
        return self

    @property
    def issuers(self) -> tuple[str, ...]:
        """Return the issuers of principals. API keys have an issuer, too."""
        return (*([API_KEY_ISSUER] if self.api_keys else ()), *self.auth.issuers)

    @property
    def shortest_ttl_s(self) -> float:
        """Return the shortest time in seconds after which an unused session of any kind expires."""
        times = [rule.idle_ttl_s for rule in self.policy.rules if rule.idle_ttl_s is not None]
        return min([self.session.unconfirmed_ttl_s, self.session.idle_ttl_s, *times])

    @property
    def longest_age_s(self) -> float:
        """Return the highest maximum age that sessions of any kind have, in seconds."""
        times = [rule.max_age_s for rule in self.policy.rules if rule.max_age_s is not None]
        return max([self.session.max_age_s, *times])

    @model_validator(mode="after")
    def _proxies_send_headers(self) -> Self:
        for name, field in self.context.fields.items():
            if field.header and not field.client_header and self.auth.proxies is None:
                raise ValueError(
                    f"context.fields.{name}: header counts only in requests from auth.proxies.networks, which is not "
                    "set; if clients set the header themselves, set client_header"
                )
            if field.claim and not self.auth.jwt:
                raise ValueError(f"context.fields.{name}: claim needs access tokens (auth.jwt)")
        return self

    @model_validator(mode="after")
    def _secrets_have_one_owner(self) -> Self:
        issuers = self.issuers
        for name, secret in self.secrets.items():
            if fault := fault_of_name(name):
                raise ValueError(f"secrets: {name!r}: {fault}")
            if secret.issuer and secret.issuer not in issuers:
                known = ", ".join(issuers) or "none"
                raise ValueError(f"secrets.{name}: issuer is {secret.issuer!r}, but the configured issuers are {known}")
            of_tokens = {entry.issuer for entry in self.auth.jwt}
            if secret.exchange and (secret.issuer not in of_tokens if secret.issuer else len(of_tokens) != 1):
                known = ", ".join(sorted(of_tokens)) or "none"
                raise ValueError(
                    f"secrets.{name}: exchange sends the access tokens of one issuer to token_endpoint: set issuer to "
                    f"one of gateway.auth.jwt, which has {known}"
                )
            if secret.consent and not self.browser_url:
                raise ValueError(
                    f"secrets.{name}: people open pages of the gateway for consent: set public_url to the https:// URL "
                    "at which their browsers reach it"
                )
            if secret.is_personal and not secret.issuer and not secret.has("{issuer}") and len(issuers) > 1:
                raise ValueError(
                    f"secrets.{name}: the same {{subject}} is a different principal at each of {', '.join(issuers)}: "
                    "set issuer, or put {issuer} into the source"
                )
        return self


class Settings(Frozen):
    """Everything an operator can set."""

    mcpServers: dict[str, UpstreamSettings] = Field(default={}, repr=False)  # the name people's files use
    """The servers by name, as in the files of desktop clients. A name consists of letters, digits, `.`, `-` and single
    `_`."""
    gateway: GatewaySettings = GatewaySettings()
    """All other settings."""

    @classmethod
    def load(cls, path: Path | None = None) -> "Settings":
        """Read settings from a file, if one is given, and from variables `MCP_GATEWAY_…`, which win. `Settings()` reads
        neither.

        Raises:
            ConfigurationError: one line for each fault: where, what, and what to do.
        """
        loaded = load(path, strict=True)
        for note in loaded.notes:
            logger.warning("%s", note.text)
        return loaded.settings

    @property
    def unread_variables(self) -> list[str]:
        """Return the environment variables that would give settings, but were not read because a program made these
        settings. Empty if the environment was read."""
        if self.gateway.origins is not None:
            return []
        names = {f"{PREFIX}{name.upper()}" for name in GatewaySettings.model_fields}
        return sorted(v for v, text in os.environ.items() if text and v.upper().partition("__")[0] in names)

    @model_validator(mode="after")
    def _secrets_are_declared(self) -> Self:
        for number, rule in enumerate(self.gateway.policy.rules):
            if fault := fault_of_placeholders(rule.env, self.gateway.secrets):
                raise ValueError(f"gateway.policy.rules[{number}].env: {fault}")
            for server, values in rule.server_env.items():
                where = f"gateway.policy.rules[{number}].server_env.{server}"
                if fault := fault_of_placeholders(values, self.gateway.secrets):
                    raise ValueError(f"{where}: {fault}")
                if (entry := self.mcpServers.get(server)) is None or not (entry.has_own_process or entry.faults):
                    raise ValueError(f"{where}: there is no server {server!r} with a process for each session")
        for name, entry in self.mcpServers.items():
            if fault := fault_of_placeholders(entry.env | entry.headers, self.gateway.secrets):
                raise ServerFault(name, f"mcpServers.{name}: {fault}")
            consents = {secret: self.gateway.secrets[secret].consent for secret in secrets_in(*entry.headers.values())}
            if fault := fault_of_url(entry.url, consents):
                raise ServerFault(name, f"mcpServers.{name}: {fault}")
            if entry.warm and any(self.gateway.secrets[secret].tokens for secret in secrets_in(*entry.env.values())):
                raise ServerFault(
                    name,
                    f"mcpServers.{name}: warm needs secrets that are known before a client comes, and `exchange` and "
                    "`consent` have none: remove warm",
                )
        return self

    @model_validator(mode="after")
    def _serves_others(self) -> Self:
        host, port, names = self.gateway.host, self.gateway.port, self.gateway.allowed_hosts
        for name, entry in self.mcpServers.items():
            if is_own_endpoint(entry.url or bridged_url(entry.argv), host, port, names):
                raise ServerFault(
                    name,
                    f"mcpServers.{name}.{'url' if entry.url else 'args'}: this is the address of the gateway itself, "
                    "which would serve itself: give the server's own URL, or remove the entry",
                )
        return self

    @model_validator(mode="after")
    def _cards_are_of_servers(self) -> Self:
        for name in self.gateway.cards:
            if name != ALL_SERVERS and name not in self.mcpServers:
                raise ValueError(f"gateway.cards: there is no server {name!r} in mcpServers")
        return self

    @model_validator(mode="after")
    def _fields_are_declared(self) -> Self:
        context = self.gateway.context
        if fault := self._unknown_field("gateway.context.env", BUILT_IN, _fields_in(context.env)):
            raise ValueError(fault)
        for name, entry in self.mcpServers.items():
            at = f"mcpServers.{name}"
            fault = self._unknown_field(f"{at}.context_env", BUILT_IN, _fields_in(entry.context_env))
            for pattern, tool in entry.tools.items():
                fault = fault or self._unknown_field(f"{at}.tools.{pattern}.bind", BOUND, tool.bind)
            if fault:
                raise ServerFault(name, fault)
        return self

    def _unknown_field(self, where: str, always: Iterable[str], given: Mapping[str, str]) -> str:
        """Return what is wrong with the first of the `given` fields that does not exist; empty if all do. `always`: the
        fields that exist without an entry in `gateway.context.fields`."""
        known = (*always, *self.gateway.context.fields)
        for name, field in given.items():
            if field not in known:
                fix = f"give one of {', '.join(known)}, or add it to gateway.context.fields"
                return f"{where}.{name}: there is no field {field!r}: {fix}"
        return ""

    @model_validator(mode="after")
    def _workspaces_are_usable(self) -> Self:
        if not self._some_server_gets_workspaces:
            return self
        for number, rule in enumerate(self.gateway.policy.rules):
            if rule.workspace and not is_usable_workspace(rule.workspace):
                raise ValueError(
                    f"gateway.policy.rules[{number}].workspace: {rule.workspace!r} would become an environment "
                    f"variable of servers, so it must be {USABLE_WORKSPACE}"
                )
        return self

    def environment_of(self, entry: UpstreamSettings) -> Mapping[str, EnvironmentValue]:
        """Return the variables with facts of the session that the server's processes get, each with its field of the
        context."""
        return environment_of(self.gateway.context.env, entry.context_env)

    @property
    def workspaces_become_variables(self) -> bool:
        """Return whether a server gets the workspace of a session in an environment variable. A server that is left out
        counts: its entry may be corrected while sessions still exist."""
        return bool(self.left_out) or self._some_server_gets_workspaces

    @property
    def _some_server_gets_workspaces(self) -> bool:
        started = (entry for entry in self.mcpServers.values() if entry.has_own_process)
        return any(value.field == "workspace" for entry in started for value in self.environment_of(entry).values())

    @property
    def left_out(self) -> dict[str, tuple[str, ...]]:
        """Return the servers that are not served because their entries have faults, each with the faults."""
        return {name: entry.faults for name, entry in self.mcpServers.items() if entry.faults}

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name in self.mcpServers:
            if not is_server_name(name):
                raise ValueError(
                    f"mcpServers.{name}: a server name holds letters, digits, '.', '-' and single '_', "
                    "because it is a part of URLs and of tool names"
                )
        return self


def is_server_name(name: str) -> bool:
    """Return whether a server may have that name."""
    return bool(_NAME.fullmatch(name)) and "__" not in name


def _fields_in(variables: Mapping[str, EnvironmentValue] | None) -> dict[str, str]:
    return {name: value.field for name, value in (variables or {}).items() if value.field}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings that were loaded, and notes about parts of file and environment that have no effect or are dangerous."""

    settings: Settings
    notes: tuple[Note, ...]


def load(path: Path | None = None, overrides: dict[str, Any] | None = None, *, strict: bool = False) -> Loaded:
    """Load the settings from the file (JSON, or TOML by its ending), the environment and `overrides`; later ones win.
    `overrides` are settings of `gateway`.

    A server whose entry has a fault is left out (`Settings.left_out`). With `strict`, it is an error. An entry by which
    a host reaches this gateway is no server: it is dropped, unless nothing else is in the file.

    Raises:
        ConfigurationError: one line for each fault: where, what, and what to do. The settings of `gateway` have a
            fault, or no server is left.
    """
    found = _without_own(gathered(path, overrides or {}, GatewaySettings))
    settings = _validated(found)
    left_out = settings.left_out
    if left_out and (strict or len(left_out) == len(settings.mcpServers)):
        raise ConfigurationError("\n".join(line for faults in left_out.values() for line in faults))
    return Loaded(settings=settings, notes=(*found.notes, *_unblocked(settings)))


def _without_own(found: Gathered) -> Gathered:
    servers = found.document.get("mcpServers")
    try:
        context = {"origins": found.origins}
        options = GatewaySettings.model_validate(found.document.get("gateway", {}), context=context)
    except ValidationError:  # which `_validated` tells
        return found
    entries = servers.items() if isinstance(servers, dict) else ()
    own = {name for name, entry in entries if isinstance(entry, dict) and _is_own(entry, options, found.origins.file)}
    if len(own) == len(entries):
        return found
    places = (f"{found.origins.file}: {found.origins.in_words(('mcpServers', name))}" for name in sorted(own))
    return replace(
        found,
        document=found.document | {"mcpServers": {name: entry for name, entry in entries if name not in own}},
        faulty={name: entry for name, entry in found.faulty.items() if name not in own},
        notes=found.notes + tuple(Note(level="warning", text=f"{at}: left out, it is this gateway") for at in places),
    )


def _is_own(entry: Mapping[str, Any], options: GatewaySettings, file: str) -> bool:
    """Return True if an entry of the configuration `file` leads back to this gateway: its URL is that of the gateway
    with these settings, or its command starts a gateway that serves `file`."""
    args = entry.get("args")
    words = [word for word in args if isinstance(word, str)] if isinstance(args, list) else []
    named = [name for word in words for name in (word, word.partition("=")[2], word.removeprefix("-c")) if name]
    if "stdio" in words and any(_is_file(name, file) for name in named):
        return True  # a gateway that serves itself starts ever more of them
    url = entry.get("url") or bridged_url(words)
    return isinstance(url, str) and is_own_endpoint(url, options.host, options.port, options.allowed_hosts)


def _is_file(word: str, file: str) -> bool:
    try:
        return Path(word).expanduser().samefile(file)
    except (OSError, RuntimeError, ValueError):  # no path, or nothing is there
        return False


def _validated(found: Gathered) -> Settings:
    """Return the settings in the document. Servers with faults are left out, and the rest is validated again.

    Raises:
        ConfigurationError: there is a fault that is not of one server.
    """
    faulty = dict(found.faulty)
    while True:
        document = found.document
        given = document.get("mcpServers")
        if faulty and isinstance(given, dict):
            left_out = {name: UpstreamSettings.unusable(entry.given, entry.faults) for name, entry in faulty.items()}
            document = document | {"mcpServers": given | left_out}
        try:
            return Settings.model_validate(document, context={"origins": found.origins})
        except ValidationError as error:
            lines = [*fault_lines(error, found.origins, Settings)]
        if any(not server for server, _ in lines):
            # First what is to be corrected: faults of single servers alone would only leave these out.
            of_servers = [line for entry in faulty.values() for line in entry.faults]
            lines.sort(key=lambda each: bool(each[0]))
            raise ConfigurationError("\n".join([*(line for _, line in lines), *of_servers]))
        servers: dict[str, list[str]] = {}
        for server, line in lines:
            servers.setdefault(server, []).append(line)
        faulty |= {name: FaultyEntry(found.document["mcpServers"].get(name), tuple(of)) for name, of in servers.items()}


def _unblocked(settings: Settings) -> Iterator[Note]:
    """Yield warnings about eval tools, if they are enabled: one for each eval tool without blocked expressions, or one
    if there is no eval tool at all."""
    if not settings.gateway.policy.eval_tools:
        return
    is_any = False
    for server, entry in settings.mcpServers.items():
        blocking = [pattern for pattern, tool in entry.tools.items() if tool.blocked]
        for name, tool in entry.tools.items():
            is_any |= tool.operation == "eval"
            if tool.operation == "eval" and not any_matches(blocking, sample_of(name)):
                yield Note(
                    level="warning",
                    text=f"mcpServers.{server}.tools.{name}: eval tools are on, and blocked refuses nothing of what "
                    "clients send this one",
                    do="set blocked; docs/policy.md (Expressions to start with) has a list",
                )
    if not is_any and not settings.left_out:  # of a server that is left out, tools are not known
        yield Note(
            level="warning",
            text="eval tools are on (gateway.policy.eval_tools, --allow-eval), which enables nothing: no tool has the "
            "operation eval",
            do="give the tools that evaluate operation and blocked; docs/policy.md (Expressions to start with) has a "
            "list",
        )
