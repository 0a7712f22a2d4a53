"""Settings of sessions: how long they live, how clients name them, and what new ones are given."""

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from gateway.config.model import Frozen, Seconds, Trust
from session_store.metadata import checked_metadata

__all__ = [
    "SessionSettings",
]

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
    default_session: bool = True
    """A 2026-07-28 client that sends a credential but no session id gets the session of its principal and client name.
    Never applies to anonymous clients."""
    reattach: frozenset[Literal["cookie", "principal"]] = frozenset()
    """How `initialize` can resume a session, other than by a session token: by `cookie`, by `principal`, or by both.
    Empty by default, so that two windows of one user do not share a session by accident."""
    cookie: bool = True
    """Whether the gateway sets and reads session cookies."""
    workspace_path: str = "orbit.workspace"
    """Path in `_meta` at which a client announces its workspace: nested objects, or one key with dots."""
    trust: Trust = "direct"
    """Trust of sessions for which neither a credential nor a rule sets one."""
    metadata: dict[str, str] = Field(default={})
    """Name → text that every new session gets. `{principal}`, `{agent}`, `{workspace}`, `{trust}` and `{endpoint}` are
    replaced. At most 10 KiB. Values that look like credentials are redacted."""

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
