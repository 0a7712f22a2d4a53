"""How long sessions live, how clients carry them and what new ones are given."""

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from gateway.config.model import Frozen, Seconds, Trust
from session_store.metadata import checked_metadata

__all__ = [
    "SessionSettings",
]

METADATA_FIELDS: Final = ("principal", "agent", "workspace", "trust", "endpoint")


class SessionSettings(Frozen):
    """How long sessions live and how clients carry them."""

    idle_ttl_s: Seconds = 3_600.0
    """A session ends when it was not used for so long."""
    max_age_s: Seconds = 86_400.0
    """And at this age in any case."""
    unconfirmed_ttl_s: Seconds = 60.0
    """An anonymous session whose client never came back ends this long after its first exchange: it would leave a
    process behind, and a minute is enough to come back once."""
    max_sessions: Annotated[int, Field(ge=1)] = 1_000
    """How many the memory store holds; beyond, the least recently used idle one ends. The doctor reckons with it as
    well."""
    default_session: bool = True
    """A 2026-07-28 client with a credential that carries nothing of its own meets its session again, by principal and
    client name. Never for anonymous ones."""
    reattach: frozenset[Literal["cookie", "principal"]] = frozenset()
    """`cookie`, `principal`: by what, beside a session token, `initialize` resumes a session. Off: two windows of one
    user do not share one by accident."""
    cookie: bool = True
    """Whether cookies are set and read."""
    workspace_path: str = "orbit.workspace"
    """Where in `_meta` a client announces its workspace, nested or dotted."""
    trust: Trust = "direct"
    """The trust that sessions have where neither credential nor rule says one."""
    metadata: dict[str, str] = Field(default={})
    """Name → text that every new session carries; `{principal}`, `{agent}`, `{workspace}`, `{trust}` and `{endpoint}`
    are filled in. At most 10 KiB; what looks like a credential is redacted."""

    @field_validator("metadata")
    @classmethod
    def _can_be_filled(cls, metadata: dict[str, str]) -> dict[str, str]:
        for name, text in metadata.items():
            try:
                text.format(**dict.fromkeys(METADATA_FIELDS, ""))
            except (KeyError, IndexError, ValueError, AttributeError):
                fields = ", ".join(f"{{{field}}}" for field in METADATA_FIELDS)
                raise ValueError(f"{name}: only {fields} can be filled in; write {{{{ for a brace") from None
        checked_metadata(metadata)
        return metadata
