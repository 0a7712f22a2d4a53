"""Define the settings of sessions: how long they live, how clients name them, what new ones get, and the fields of
their context with the environment variables for servers.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from gateway.config.patterns import Pattern
from gateway.config.settings_base import Frozen, Seconds, Trust, fault_of_header, or_says
from session_store.session import checked_metadata, merged_metadata

_TAKEN_HEADERS: Final = frozenset(
    {
        *("accept", "authorization", "content-type", "cookie", "forwarded", "host", "mcp-method"),
        *("mcp-gateway-session", "mcp-name", "mcp-protocol-version", "mcp-session-id", "origin", "user-agent"),
    }
)
"""Headers whose values are the same for many clients, are credentials, or change with each request."""

KEY_HEADER: Final = "MCP-Gateway-Session-Key"
"""The header that carries a session key unless `key_headers` names others."""
KEY_VARIABLE: Final = "MCP_SESSION_KEY"
"""The variable in which `mcp-session-gateway stdio` finds the session key."""
METADATA_FIELDS: Final = ("principal", "agent", "workspace", "trust", "endpoint")


class SessionSettings(Frozen):
    """How long sessions live, how clients name their session, and what new sessions are given."""

    idle_ttl_s: Seconds = 3_600.0
    """A session ends after this long without use."""
    max_age_s: Seconds = 86_400.0
    """A session ends at this age, even if it is in use."""
    unconfirmed_ttl_s: Seconds = 60.0
    """An anonymous session that is used for one exchange only ends this long after it. Otherwise a client that never
    returns would leave a process behind until `idle_ttl_s`."""
    max_sessions: Annotated[int, Field(ge=1)] = 1_000
    """Maximum number of sessions in the memory store. Beyond it, the least recently used idle session ends. `doctor`
    calculates with this number for all stores."""
    key_headers: tuple[str, ...] = (KEY_HEADER,)
    """Headers in which a client can name its session by a key of its own choice; the first one that a request has
    counts. Add a header that clients send already, such as `Mcp-Client-Session-Id` or a host's conversation id."""
    default_session: Annotated[
        tuple[str, ...] | bool | Literal["refuse"],
        or_says('must be true, false, "refuse" or a list of names of clients'),
    ] = True
    """Whether a 2026-07-28 client that sends a credential and is known to bring no session back gets the session of its
    principal, client name and version ([which clients](clients.md#the-default-session)). `refuse`: such a client is
    refused until it sends a session key. A list names further such clients, by client name or by the product in their
    `User-Agent`. Never applies to anonymous clients."""
    reattach: frozenset[Literal["cookie", "principal"]] = frozenset()
    """How `initialize` can resume a session, other than by a session token: by `cookie`, by `principal`, or by both.
    Empty by default, so that two windows of one user do not share a session by accident."""
    cookie: bool = True
    """Whether the gateway sets and reads session cookies."""
    workspace_path: str = "orbit.workspace"
    """Path in `_meta` at which a client announces its workspace: nested objects, or one key with dots.
    Empty: no client announces one."""
    trust: Trust = "direct"
    """Trust of sessions for which neither a credential nor a rule sets one."""
    metadata: dict[str, str] = Field(default={})
    """Name → text that every new session gets. `{principal}`, `{agent}`, `{workspace}`, `{trust}` and `{endpoint}` are
    replaced. At most 10 KiB. Values that look like credentials are redacted."""

    @property
    def key_header(self) -> str:
        """Return the header that clients are told to send their session key in; empty if no header carries one."""
        return next(iter(self.key_headers), "")

    @field_validator("key_headers")
    @classmethod
    def _can_carry_keys(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if fault := fault_of_header(name):
                raise ValueError(fault)
            if name.lower() in _TAKEN_HEADERS:
                raise ValueError(f"{name} has a meaning of its own")
        return names

    @field_validator("metadata")
    @classmethod
    def _can_be_filled(cls, metadata: dict[str, str]) -> dict[str, str]:
        least = {}
        for name, text in metadata.items():
            try:
                least[name] = text.format(**dict.fromkeys(METADATA_FIELDS, ""))
            except (KeyError, IndexError, ValueError, AttributeError):
                fields = ", ".join(f"{{{field}}}" for field in METADATA_FIELDS)
                raise ValueError(f"{name}: only {fields} are replaced; write {{{{ for a literal brace") from None
        merged_metadata({}, checked_metadata(least))
        return metadata


FIELD_CHARS: Final = 1_024
"""The maximum length of the value of a field of the context: servers get it in headers, and each log line has it."""
CORRELATION_ID: Final = "correlation_id"
TEMP_DIR: Final = "temp_dir"
BOUND: Final = (
    *("session_id", "workspace", "workspace_provenance", "trust", "agent", "permissions", "endpoint"),
    *("principal", "principal.issuer", "principal.subject"),
)
"""The fields that every session has. Arguments can be bound to them."""
BUILT_IN: Final = (*BOUND, CORRELATION_ID, TEMP_DIR)
"""The fields that need no entry in `fields`."""

DEFAULT_CONTEXT_ENV: Final = {
    "MCP_SESSION_ID": "session_id",
    "MCP_SESSION_WORKSPACE": "workspace",
    "MCP_SESSION_WORKSPACE_PROVENANCE": "workspace_provenance",
    "MCP_SESSION_TRUST": "trust",
    "MCP_SESSION_PRINCIPAL": "principal",
    "MCP_SESSION_AGENT": "agent",
    "MCP_SESSION_PERMISSIONS": "permissions",
    "MCP_SESSION_CORRELATION": CORRELATION_ID,
}

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_CODE: Final = re.compile(
    r"PATH|(LD|DYLD)_.*|GCONV_PATH|BASH_ENV|SHELLOPTS|PYTHON.*|NODE_(OPTIONS|PATH)|PERL5(OPT|LIB|DB)|RUBY(OPT|LIB)"
    r"|CLASSPATH|(JAVA_TOOL|JDK_JAVA|_JAVA)_OPTIONS|DOTNET_STARTUP_HOOKS"
    r"|GIT_(SSH|SSH_COMMAND|ASKPASS|EDITOR|PAGER|EXEC_PATH|EXTERNAL_DIFF|PROXY_COMMAND|TEMPLATE_DIR|CONFIG.*)"
)
"""Variables that decide which code a program loads or runs."""
_SLUG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:+-]*")
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z]:[\\/]")


class EnvironmentValue(Frozen):
    """The value of an environment variable: a field of the context. The field's name alone is enough."""

    field: str
    """The field."""
    default: str | None = None
    """The value if the field is empty, or if it is the `principal` of an anonymous client. If not set, that is
    `anonymous`."""
    announced: bool = False
    """For the field `workspace`, and fields whose metadata contains it: whether the variable also has a workspace that
    the client only announced. Otherwise it has `default`, because a server that knows no provenance takes the variable
    for yours. `policy.trust_announced_workspace` also allows it."""

    @model_validator(mode="after")
    def _only_workspaces(self) -> Self:
        if self.announced and self.field != "workspace" and self.field in BUILT_IN:
            raise ValueError(f"announced is for the field workspace, and has no effect on {self.field}")
        return self


def _as_value(value: Any) -> Any:
    return {"field": value} if isinstance(value, str) else value


def _variables(names: dict[str, Any]) -> dict[str, Any]:
    for name in names:
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{name!r} is not a name for an environment variable")
        if _CODE.fullmatch(name):
            raise ValueError(f"{name} decides which code a server runs, so it cannot be a fact of the session: set env")
    return names


EnvironmentMap = Annotated[
    dict[str, Annotated[EnvironmentValue, BeforeValidator(_as_value)]], AfterValidator(_variables)
]
"""Environment variables, each with the field of the context that it gets: the field's name, or an object."""


class FieldSettings(Frozen):
    """Where a field of the context comes from: one of `claim`, `header`, `announced`, `metadata`, `session_key` and
    `variable`, and `value` alone, or for sessions that have no other value."""

    claim: str = ""
    """The claim of the access token. A dotted name is a path into nested objects."""
    header: str = ""
    """The header. It counts only in requests from `auth.proxies.networks`; your proxy has to remove it from requests of
    clients."""
    client_header: bool = False
    """Whether `header` is a header that clients set themselves. Then the field is only announced."""
    announced: str = ""
    """The path in `_meta` of the request that opens the session, as in `session.workspace_path`."""
    metadata: str = ""
    """The name in the session's metadata. A value that is longer than 1,024 characters is cut."""
    session_key: bool = False
    """The session key that the client has chosen. Empty for anonymous clients, whose key is a credential."""
    variable: str = ""
    """The variable in the environment of `mcp-session-gateway stdio`, which its host sets, such as `MCP_USER_ID`.
    The field is only announced. Clients of `run` have none."""
    value: str = ""
    """A fixed value."""
    to: frozenset[Literal["meta", "log", "audit"]] = frozenset()
    """Where the field is shown, besides the variables and arguments that name it. `meta`: in the context that servers
    get in `_meta`, in assertions and from `current_session()`. `log`: in the log line of each request. `audit`: in
    audit events."""

    @property
    def is_announced(self) -> bool:
        """Return True if clients choose the value, so that it is only announced."""
        return bool(self.announced or self.session_key or self.client_header or self.variable)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = {
            "claim": self.claim,
            "header": self.header,
            "announced": self.announced,
            "metadata": self.metadata,
            "session_key": self.session_key,
            "variable": self.variable,
        }
        given = [name for name, source in sources.items() if source]
        if len(given) > 1:
            raise ValueError(f"give one source: {' and '.join(given)} are {len(given)}")
        if not given and not self.value:
            raise ValueError(f"give a source: {', '.join(sources)} or value")
        if self.header and (fault := fault_of_header(self.header)):
            raise ValueError(fault)
        if self.client_header and not self.header:
            raise ValueError("client_header needs header")
        if len(self.value) > FIELD_CHARS:
            raise ValueError(f"value is longer than {FIELD_CHARS} characters")
        return self


def _field_names(fields: dict[str, FieldSettings]) -> dict[str, FieldSettings]:
    for name in fields:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a field name: it has letters, digits, '_' and '-', and begins with a letter"
            )
        if name in BUILT_IN:
            raise ValueError(f"{name!r} is a field that every session has: choose another name")
    return fields


class ContextSettings(Frozen):
    """The context of sessions: fields beside those that every session has, and how servers get them. Fields inform and
    never grant."""

    fields: Annotated[dict[str, FieldSettings], AfterValidator(_field_names)] = Field(default={})
    """Name → where the field comes from."""
    env: EnvironmentMap | None = None
    """Environment variable → field, for all servers that are started. If not set: the variables `MCP_SESSION_…`. If
    set, the `context_env` of a server changes single variables; an empty text there removes one."""
    workspace_ids: dict[Pattern, str] = Field(default={})
    """Pattern of what clients announce as workspace, for example a path → the workspace that is meant. The first match
    applies. `{name}` is replaced by the last part of the announced path. The workspace is still only announced."""


USABLE_WORKSPACE: Final = "a slug (letters, digits and _ . @ : + -) or an absolute path without .."
"""What `is_usable_workspace` asks for, for messages."""


def is_usable_workspace(workspace: str) -> bool:
    """Return whether a workspace may be put into servers' environment variables: a slug, or an absolute path without
    `..`."""
    if _SLUG.fullmatch(workspace):
        return ".." != workspace
    return _ABSOLUTE.match(workspace) is not None and ".." not in re.split(r"[\\/]", workspace)


def environment_of(everywhere: EnvironmentMap | None, own: EnvironmentMap | None) -> Mapping[str, EnvironmentValue]:
    """Return the variables with fields of the context that a server gets, each with its field. `everywhere` are those
    for all servers (`gateway.context.env`), `own` those in the server's `context_env`. `own` changes single ones of
    `everywhere`; without `everywhere`, it replaces the default variables."""
    defaults = {
        name: EnvironmentValue(field=field, announced=field == "workspace")
        for name, field in DEFAULT_CONTEXT_ENV.items()
    }
    if everywhere is None:
        chosen = defaults if own is None else own
    else:
        chosen = everywhere | (own or {})
    return {name: value for name, value in chosen.items() if value.field}
