"""What operators of the gateway use: console, REST interface, metrics and the audit trail."""

from typing import Literal

from pydantic import Field

from gateway.config.addresses import HostNames, ListenAddress
from gateway.config.auth import KeyDigestSettings
from gateway.config.model import Frozen

__all__ = [
    "AdminSettings",
    "AuditSettings",
]


class AuditSettings(Frozen):
    """Where audit events are written, in addition to the log."""

    to: tuple[Literal["store", "stderr"], ...] = ("store",)
    """`store`, `stderr` or both. The store keeps the newest 10,000 events (in memory 2,000) of each of five
    categories: operators' actions, sessions of named principals, refusals of named principals, their tool calls, and
    events of unauthenticated clients."""
    file: str = ""
    """A file that also gets the events, as lines of JSON. It is reopened for every write, so it can be rotated."""
    calls: bool = False
    """Also record each tool call: principal, workspace, trust, tool, outcome and duration, never the arguments."""


class AdminSettings(Frozen):
    """The operators' console, REST interface and metrics."""

    keys: KeyDigestSettings = Field(default={})
    """Operator name → SHA-256 of the operator's key as hex digits, or a list of them, as in `api_keys`. Empty: no
    REST interface, and no console but for the one-time link that `run` shows on the terminal of a machine that alone
    reaches it."""
    listen: ListenAddress = ""
    """`HOST:PORT` of a separate listener for console, REST and metrics; there, metrics need no key. Empty: they are
    served by the gateway's own listener. Worker n listens on a port that is higher by n."""
    allowed_hosts: HostNames = ()
    """Host names by which operators reach the console and the REST interface, without ports, beside those of
    `gateway.allowed_hosts`. `*.example.com` means all names below a domain, `*` any name. Addresses and `localhost`
    need no entry: a web page could only point a name at the gateway (DNS rebinding)."""
    try_tools: Literal["any", "own", "off"] | None = None
    """Where operators may call tools, from the console and by the REST interface: in `any` session, with the rights of
    that session; in their `own` ones only, as the principal `operator:NAME`; or `off`. The audit trail has each such
    call, with the operator's name. Default: `any` if the gateway listens on loopback and needs no credential of
    clients, else `own`."""
    frames: Literal["any", "own", "off"] | None = None
    """Of which sessions operators may see the JSON-RPC messages and the stderr as they pass, with arguments and results
    of calls, but without credentials: of `any` session, of their `own` ones (as for `try_tools`), or `off`. The audit
    trail has who has switched them on. Default: as for `try_tools`."""
