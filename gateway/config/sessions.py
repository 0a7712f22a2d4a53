"""Settings of sessions: how long they live, how clients name them, and what new ones are given."""

import re
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from gateway.config.model import Frozen, Seconds, Trust
from session_store.metadata import checked_metadata

__all__ = ["PersonalData", "SessionSettings"]

PersonalData = Literal["email", "phone", "card"]
"""Kinds of personal data that can be found by their form."""

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_TAKEN_HEADERS: Final = frozenset(
    {
        *("accept", "authorization", "content-length", "content-type", "cookie", "forwarded", "host", "mcp-method"),
        *("mcp-gateway-session", "mcp-name", "mcp-protocol-version", "mcp-session-id", "origin", "user-agent"),
    }
)
"""Headers whose values are the same for many clients, are credentials, or change with each request."""

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
    key_headers: tuple[str, ...] = ("MCP-Gateway-Session-Key",)
    """Headers in which a client can name its session by a key of its own choice; the first one that a request has
    counts. Add a header that clients send already, such as `Mcp-Client-Session-Id` or a host's conversation id."""
    default_session: bool = True
    """A 2026-07-28 client that sends a credential and is known to bring no session back gets the session of its
    principal and client name ([which clients](clients.md#the-default-session)). Never applies to anonymous clients."""
    default_session_for: tuple[str, ...] = ()
    """Further clients that bring no session back, by client name or by the product in their `User-Agent`."""
    reattach: frozenset[Literal["cookie", "principal"]] = frozenset()
    """How `initialize` can resume a session, other than by a session token: by `cookie`, by `principal`, or by both.
    Empty by default, so that two windows of one user do not share a session by accident."""
    cookie: bool = True
    """Whether the gateway sets and reads session cookies."""
    token_in_results: Literal["new", "always", "never"] = "new"
    """Which results of 2026-07-28 requests have the session's token in their `_meta`. `new`: the first result of a new
    session, unless the client uses cookies, a session key or the header `MCP-Gateway-Session`. `always`: every result,
    except those that may be cached."""
    workspace_path: str = "orbit.workspace"
    """Path in `_meta` at which a client announces its workspace: nested objects, or one key with dots."""
    trust: Trust = "direct"
    """Trust of sessions for which neither a credential nor a rule sets one."""
    unreturned_stop_s: Annotated[float, Field(ge=0, le=31_536_000)] = 300.0
    """Stop the idle child processes of a 2026-07-28 session to which its client has not come back, after this long. A
    client that does come back finds its session, and the first result reports the restart. 0 never stops them. A server
    with an `idle_stop_s` of its own keeps to that."""
    metadata: dict[str, str] = Field(default={})
    """Name → text that every new session gets. `{principal}`, `{agent}`, `{workspace}`, `{trust}` and `{endpoint}` are
    replaced. At most 10 KiB. Values that look like credentials are redacted."""
    scrub_metadata: frozenset[PersonalData] = frozenset()
    """Personal data that is redacted in the metadata of sessions, whether a rule or a tool writes it: e-mail addresses,
    telephone numbers (international ones, and those of North America), numbers of payment cards."""

    @field_validator("key_headers")
    @classmethod
    def _can_carry_keys(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a header")
            if name.lower() in _TAKEN_HEADERS:
                raise ValueError(f"{name} has a meaning of its own")
        return names

    @field_validator("metadata")
    @classmethod
    def _can_be_filled(cls, metadata: dict[str, str]) -> dict[str, str]:
        for name, text in metadata.items():
            try:
                text.format(**dict.fromkeys(METADATA_FIELDS, ""))
            except (KeyError, IndexError, ValueError, AttributeError):
                fields = ", ".join(f"{{{field}}}" for field in METADATA_FIELDS)
                raise ValueError(f"{name}: only {fields} are replaced; write {{{{ for a literal brace") from None
        checked_metadata(metadata)
        return metadata
