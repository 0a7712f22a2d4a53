"""What operators of the gateway use: console, REST interface, metrics and the audit trail."""

from typing import Literal

from pydantic import Field

from gateway.config.addresses import ListenAddress
from gateway.config.auth import KeyDigestSettings
from gateway.config.model import Frozen

__all__ = [
    "AdminSettings",
    "AuditSettings",
]


class AuditSettings(Frozen):
    """Where audit events go, beside the log: the store, which keeps the newest; stderr; a file, as lines of JSON."""

    to: tuple[Literal["store", "stderr"], ...] = ("store",)
    """`store` (which keeps the newest 10,000 of each part, in memory 2,000: what operators did, sessions of named
    principals, what those were refused, their calls, and what strangers caused) and `stderr`, beside the log."""
    file: str = ""
    """A file of lines of JSON as well, opened anew for each round, so that it can be rotated."""
    calls: bool = False
    """Each tool call as well, not only what happens to sessions: who, which tool, how it went, how long it took; never
    its arguments."""


class AdminSettings(Frozen):
    """The console, the REST interface and the metrics of those who operate the gateway."""

    keys: KeyDigestSettings = Field(default={})
    """Name → SHA-256 of an operator's key in hex, or several of them, as `api_keys`. None: there is no console and no
    REST interface."""
    listen: ListenAddress = ""
    """`HOST:PORT` of a listener of its own for console, REST and metrics, where metrics need no key. Empty: they are on
    the gateway's own. Worker n listens n ports higher."""
