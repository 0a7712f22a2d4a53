"""Define the policy for the sessions of all servers: rules, workspaces, rates and quotas."""

from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationInfo, field_validator

from gateway.config.patterns import Pattern
from gateway.config.settings_base import Frozen, Seconds, Trust, or_says
from gateway.config.tools_lock import ToolsLock, read_lock


class RuleSettings(Frozen):
    """What the sessions of some principals, in some workspaces, are given. Patterns are shell patterns; an empty list
    matches all."""

    principals: tuple[Pattern, ...] = ()
    """Patterns of principals, `api-key:NAME` or `ISSUER:SUBJECT`. Empty: all principals."""
    workspaces: tuple[Pattern, ...] = ()
    """Patterns of workspaces. Empty: all workspaces. For a workspace that a client only announced, the rule grants
    nothing, but a `sandboxed` trust applies (see `policy.trust_announced_workspace`)."""
    trust: Trust | None = None
    """The trust that the rule sets."""
    workspace: str | None = None
    """The workspace that the rule sets."""
    permissions: tuple[str, ...] = ()
    """Permissions that the rule adds."""
    read_only: bool = False
    """Whether the sessions are read-only: tools whose operation is `write` or `eval` do not exist for them. A rule for
    certain workspaces also makes sessions read-only whose workspace is only announced."""
    env: dict[str, str] = Field(default={}, repr=False)
    """Environment variables that the servers of the sessions get; `${secret:NAME}` as in a server's `env`. The first
    rule that has a variable sets it. A server's own `env` wins."""
    server_env: dict[str, dict[str, str]] = Field(default={}, repr=False)
    """Variables for the processes of certain servers, by server, that win over the server's own `env` and over the
    `env` of rules. For example, each workspace can have its own database at a server. The first rule that has a
    variable of a server sets it."""
    idle_ttl_s: Seconds | None = None
    """As `session.idle_ttl_s`, for these sessions. The first rule that sets it decides, when the session opens."""
    max_age_s: Seconds | None = None
    """As `session.max_age_s`, for these sessions."""

    @field_validator("env", "server_env")
    @classmethod
    def _names_no_file(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "${secret_file:" in str(values):
            raise ValueError("${secret_file:…} can only be in the env of a server: use ${secret:…}, or set it there")
        return values


class WorkspaceSettings(Frozen):
    """What sessions of a workspace see. Patterns are shell patterns."""

    servers: tuple[Pattern, ...] = ("*",)
    """Patterns of visible servers."""
    tools: tuple[Pattern, ...] = ("*",)
    """Patterns of visible tools, as `server__tool`."""
    prompts: tuple[Pattern, ...] = ("*",)
    """Patterns of visible prompts, as `server__prompt`."""
    resources: tuple[Pattern, ...] = ("*",)
    """Patterns of visible resources and templates, as `server__URI`."""
    methods: tuple[Pattern, ...] = ("*",)
    """Patterns of methods and notifications beyond MCP's that may be sent, as `server__method`, of notifications
    without `notifications/`."""


class RateSettings(Frozen):
    """A rate limit: a number of requests per second, and a number of requests at once."""

    per_s: Annotated[float, Field(gt=0)]
    """Average number of requests per second."""
    burst: Annotated[int, Field(ge=1)] | None = None
    """Number of requests that may come at once. If not set: those of a second, and at least 20."""

    @property
    def at_once(self) -> int:
        """Return the number of requests that may come at once: `burst`, or if that is not set, the requests of one
        second, and at least 20."""
        return max(20, ceil(self.per_s)) if self.burst is None else self.burst


def _off(value: Any) -> Any:
    """Return None for 0, "off" and an empty text, which switch a limit off. Return other values unchanged."""
    return None if value in (0, "0", "off", "") else value


Rate = Annotated[RateSettings | None, BeforeValidator(_off)]
Quota = Annotated[Annotated[int, Field(ge=1, le=10_000)] | None, BeforeValidator(_off)]


def _locked(value: Any, info: ValidationInfo) -> ToolsLock | None:
    """Return the lock in the file that `value` names, relative to the folder of the configuration. Return None or a
    lock that was read already unchanged. Raises `ValueError` for anything else."""
    if value is None or isinstance(value, ToolsLock):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("must be the path of a file")
    origins = (info.context or {}).get("origins")
    folder = Path(origins.file).absolute().parent if origins is not None and origins.file else Path()
    return read_lock(folder / Path(value).expanduser())


class PolicySettings(Frozen):
    """What sessions may do, and what they are given."""

    eval_tools: bool = False
    """Enable tools whose `operation` is `eval`. If off, they are not listed and cannot be called."""
    read_only: frozenset[Trust] = frozenset()
    """Trust levels whose sessions are read-only: tools whose operation is `write` or `eval` do not exist for them. Both
    levels make all sessions read-only."""
    check_arguments: Annotated[Literal["lenient"] | bool, or_says("must be lenient, true or false")] = "lenient"
    """Check the arguments of a call against the tool's input schema before the call is sent to the server. `lenient`
    leaves it to the server to read a number or truth value that is written as text, and `null` for an argument that is
    not required: many servers take them. `true` refuses these too, `false` checks nothing. A tool whose
    input schema is invalid, too large, or refers to other documents (which are never fetched) is neither listed nor
    called, unless `false`."""
    unmatched_patterns: Literal["refuse", "allow"] = "refuse"
    """What to do if a pattern in `tools`, `prompts`, `resource_uris` or `workspaces` matches nothing that the servers
    list. Such a pattern is probably misspelt, and protects nothing. `refuse`: the gateway does not start. It waits 10 s
    for servers with such patterns; if one answers only later, requests for its tools, prompts or resources are refused
    where a pattern for these matches nothing. `allow`: log a warning, for servers whose lists depend on the session
    or grow."""
    lock: Annotated[ToolsLock | None, PlainValidator(_locked)] = None
    """The file of the [lock](policy.md#lock-tools), relative to the folder of the configuration. With it, tools,
    prompts and resource templates exist for clients only as they were approved. `mcp-session-gateway lock` writes
    it."""
    changed_tools: Literal["allow", "tell", "refuse"] = "tell"
    """What to do with a call of a tool whose definition has changed since its session was shown it
    ([changed tools](policy.md#tools-that-change-while-a-session-lives)). `allow`: log and count it. `tell`: also
    say so to the client, in `_meta` of the next result of the tool. `refuse`: the session neither sees nor calls the
    tool any more."""
    slow_s: Annotated[float, Field(gt=0)] = 10.0
    """Log a warning for a call that takes longer."""
    session_rate: Rate = RateSettings(per_s=500, burst=5_000)
    """Rate limit of one session; 0 switches it off. Calls beyond it wait for their turn, and are refused only if dozens
    wait ([rates](policy.md#rates-and-quotas)). An agent makes a few calls per second, a script without pauses some
    hundreds. A gateway that only you can use has no such limit unless you set it."""
    principal_rate: Rate = RateSettings(per_s=1_000, burst=10_000)
    """Rate limit of all messages of one principal in all its sessions, as `session_rate`; 0 switches it off. The
    default is enough for a hundred busy agents of one principal. Anonymous clients are counted by address (IPv6: the
    /64 network). Behind `auth.proxies`, that is the last address in `X-Forwarded-For` that is not a trusted proxy."""
    principal_sessions: Quota = 5_000
    """Maximum number of sessions of one principal, or of one address of anonymous clients, on all replicas together.
    They open at most 10 per second, and 200 at once: those beyond wait as calls do. 0: neither limit. A client that
    opens a session every second and ends none has 3,600 after an hour."""
    principal_processes: Quota = 256
    """Maximum number of server processes of one principal, or of one address of anonymous clients, on all replicas
    together. 0: no limit. At about 30 MB for each process, the default allows 8 GB: more than thirty sessions with
    eight servers each. The processes of a session that nobody ends run until `session.idle_ttl_s` is over, so raise
    this limit for a service that uses one key for many agents."""
    rules: tuple[RuleSettings, ...] = ()
    """Rules that set the trust, workspace and permissions of sessions, in order."""
    workspaces: dict[Pattern, WorkspaceSettings] = Field(default={})
    """Pattern of workspace names → what sessions of these workspaces see. The first matching pattern applies. Empty:
    every workspace sees everything. A session whose workspace is only announced sees only what all entries allow."""
    trust_announced_workspace: bool = False
    """Whether a workspace that a client announces counts in `rules` and `workspaces` like one from a credential or a
    rule. Then every client can take any workspace, with all that it grants. Use it only if you trust all clients."""
