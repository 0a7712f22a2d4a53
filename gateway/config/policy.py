"""What sessions are given and what they may do, for all servers: rules, workspaces, rates and quotas."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.config.model import Frozen, Pattern, Trust

__all__ = [
    "PolicySettings",
    "RateSettings",
    "RuleSettings",
    "WorkspaceSettings",
]


class RuleSettings(Frozen):
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


class WorkspaceSettings(Frozen):
    """What one workspace sees; patterns as in shells."""

    servers: tuple[Pattern, ...] = ("*",)
    """Patterns of the servers it sees."""
    tools: tuple[Pattern, ...] = ("*",)
    """Patterns of the tools it sees, as `server__tool`."""
    prompts: tuple[Pattern, ...] = ("*",)
    """Patterns of the prompts it sees, as `server__prompt`."""
    resources: tuple[Pattern, ...] = ("*",)
    """Patterns of the resources and templates it sees, as `server__URI`."""


class RateSettings(Frozen):
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


class PolicySettings(Frozen):
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
    workspaces: dict[Pattern, WorkspaceSettings] = Field(default={})
    """Pattern of workspace names → what it sees; the first that matches counts. None: every workspace sees all. A
    session whose workspace is only announced sees what every one of them sees."""
    trust_announced_workspace: bool = False
    """Whether a workspace that a client announces counts in `rules` and `workspaces` like one that a credential or a
    rule says. Then whoever may connect may take any workspace, and what it grants: for where all clients are yours."""
