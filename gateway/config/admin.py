"""Define the settings of operators: the console, the REST interface, metrics, and the audit trail."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from gateway.config.addresses import HostNames, ListenAddress
from gateway.config.auth import KeyDigestSettings
from gateway.config.settings_base import Frozen, or_says


class AuditSettings(Frozen):
    """Where audit events are written, in addition to the log."""

    to: tuple[str, ...] = ("store",)
    """`store`, `stderr`, the absolute path of a file, or several of these. The store keeps the newest 10,000 events (in
    memory 2,000) of each of five categories: operators' actions, sessions of named principals, refusals of named
    principals, their tool calls, and events of unauthenticated clients. A file gets them as lines of JSON. It is
    reopened for every write, so it can be rotated."""
    calls: Annotated[Literal["names", "values"] | bool, or_says("must be names, values, true or false")] = False
    """Also record each tool call: principal, workspace, trust, tool, outcome and duration. `true`: without the
    arguments. `names`: with the names of arguments, which is safe. `values`: also with their values, cut at 2,000
    characters, for those who must show what was done. It may keep what users write: credentials of known names and
    forms are redacted, which is best effort. Calls with arguments do not take the fast path."""

    @field_validator("to")
    @classmethod
    def _are_places(cls, places: tuple[str, ...]) -> tuple[str, ...]:
        for place in places:
            if place not in ("store", "stderr") and not place.startswith("/"):
                raise ValueError(f"{place!r} is neither store, stderr nor the absolute path of a file")
        if sum(place.startswith("/") for place in places) > 1:
            raise ValueError("give one file")
        return places

    @property
    def file(self) -> Path | None:
        """Return the file to which audit events are written; None if there is none."""
        return next((Path(place) for place in self.to if place.startswith("/")), None)


class AdminSettings(Frozen):
    """The operators' console, REST interface and metrics."""

    keys: KeyDigestSettings = Field(default={})
    """Operator name → SHA-256 of the operator's key as hex digits, or a list of them, as in `api_keys`. Empty: no
    REST interface, and no console, except through the one-time link that `run` shows on a terminal if no other machine
    reaches the console."""
    listen: ListenAddress = ""
    """`HOST:PORT` of a separate listener for console, REST and metrics; there, metrics need no key. Empty: they are
    served by the gateway's own listener. Worker n listens on a port that is higher by n."""
    allowed_hosts: HostNames = ()
    """Host names by which operators reach the console and the REST interface, without ports, beside those of
    `gateway.allowed_hosts`. `*.example.com` means all names below a domain, `*` any name. Addresses and `localhost`
    need no entry: a web page could only point a name at the gateway (DNS rebinding)."""
    try_tools: Literal["any", "own", "off"] | None = None
    """Where operators may call tools, from the console and by the REST interface: in `any` session, with the rights of
    that session; in their `own` ones only, as the principal `operator:NAME`; or `off`. The audit trail records each
    such call, with the operator's name. Default: `any` if the gateway listens on loopback, needs no credential of
    clients, and names no proxy, host name or other gateway (`auth.proxies`, `allowed_hosts`, `advertise`, `internal`),
    else `own`."""
    frames: Literal["any", "with_reason", "own", "off"] | None = None
    """The sessions whose JSON-RPC messages and stderr operators may watch, with arguments and results of calls, but
    without credentials: `any` session; their `own` ones (as for `try_tools`), and `with_reason` those of others too,
    each for 10 minutes and for the operator alone who has given the reason; or `off`. The audit trail records who has
    switched them on, and why. Default: `any` where that of `try_tools` is `any`, else `with_reason`."""
