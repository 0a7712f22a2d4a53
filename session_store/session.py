"""Define sessions as frozen values, with limits, metadata and rules of expiry. Pure: no I/O, reads no clock."""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from session_store.redaction import scrubbed

MAX_WORKSPACE_CHARS: Final = 4_096
"""The most characters of a workspace, which can be a path (Linux, PATH_MAX)."""

MAX_METADATA_BYTES: Final = 10 << 10
"""The most bytes of the metadata of one session: names and values in UTF-8."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class InvalidContext(ValueError):
    """A context value is invalid. The message names the value and the reason, and may be sent to a client."""


class InvalidMetadata(ValueError):
    """The metadata cannot be stored. The message says which entry and why."""


def new_session_id() -> str:
    """Return a new session id with 144 random bits (0.02 bits less, because `_new_id` skips some values). Clients never
    choose ids."""
    return _new_id(18)


def new_task_id() -> str:
    """Return a new task id with 128 random bits (0.02 bits less, because `_new_id` skips some values)."""
    return _new_id(16)


def _new_id(size: int) -> str:
    """Return `size` random bytes as text that does not begin with `-`: a command line would read it as an option."""
    while (made := secrets.token_urlsafe(size)).startswith("-"):
        pass
    return made


def origin_of(network: str) -> str:
    """Return a hash of an anonymous client's network, by which such clients are told apart, so that records do not
    reveal the network. Empty if the network is."""
    return hashlib.blake2b(network.encode(), digest_size=8).hexdigest() if network else ""


def token_hash_of(authorization: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of the credential in an `Authorization` header; empty if
    there is none. The digits distinguish credentials in logs and tools, and are no credential."""
    credential = authorization.partition(" ")[2].strip()
    return hashlib.sha256(credential.encode("utf-8", "replace")).hexdigest()[:16] if credential else ""


def redact(session_id: str) -> str:
    """Return the session id as logs may show it: its first 8 characters."""
    return session_id[:8]


class Principal(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """An authenticated user or client. Compared by issuer and subject: a refreshed credential is the same principal."""

    issuer: str
    subject: str

    def __str__(self) -> str:
        return f"{self.issuer}:{self.subject}" if self.subject else self.issuer

    @property
    def key(self) -> str:
        """Return the principal as text, for use as a key. Unlike `str()`, it is unique: with `str()`, issuer `a:b` with
        subject `c` is equal to issuer `a` with subject `b:c`."""
        return json.dumps([self.issuer, self.subject])

    def counted_as(self, origin: str) -> str:
        """Return the key under which rates and quotas count the principal. For an anonymous client, it contains the
        client's `origin` (`origin_of`), so that such clients are counted separately."""
        return f"{self.key}@{origin}" if self.is_anonymous and origin else self.key

    @property
    def is_anonymous(self) -> bool:
        return self == ANONYMOUS


ANONYMOUS: Final = Principal(issuer="anonymous", subject="")


Source = Literal["authenticated", "configured", "announced"]
"""The source of a fact: a credential, the operator's configuration, or the client."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """The source of each fact of a context. A record without this field is read as if the client had announced the
    workspace, which grants nothing."""

    workspace: Source = "announced"
    trust: Source = "configured"
    permissions: Source = "configured"


class ContextField(msgspec.Struct, frozen=True, cache_hash=True, array_like=True):
    """A field that the operator has added to the context, its value, and the source of the value.

    Raises:
        InvalidContext: the value contains control characters.
    """

    name: str
    value: str
    source: Source = "announced"

    def __post_init__(self) -> None:
        if _CONTROL.search(self.value):
            raise InvalidContext(f"context field {self.name} holds control characters")


class Context(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """The facts that tools get about a session, and the source of each fact.

    Everything comes from the operator or the authenticated principal, except what the client may announce: `workspace`
    and some `fields`. Announced facts grant nothing, unless the operator's rules let an announced workspace grant
    permissions.

    Raises:
        InvalidContext: the workspace is too long or contains control characters.
    """

    workspace: str = ""
    trust: str = "direct"
    permissions: tuple[str, ...] = ()
    read_only: bool = False
    """True: there are no tools for this session that write or evaluate."""
    rights: str = ""
    """A digest of the rights in the client's access token, if servers get tokens in exchange for that token. Each
    digest has server processes of its own."""
    fields: tuple[ContextField, ...] = ()
    """The fields that the operator has added. They inform and never grant."""
    provenance: Provenance = Provenance()

    def __post_init__(self) -> None:
        if len(self.workspace) > MAX_WORKSPACE_CHARS:
            raise InvalidContext(f"workspace is longer than {MAX_WORKSPACE_CHARS} characters")
        if _CONTROL.search(self.workspace):
            raise InvalidContext("workspace holds control characters")

    def field(self, name: str) -> ContextField | None:
        """Return the field with this name; None if the session has no value for it."""
        return next((field for field in self.fields if field.name == name), None)


class ClientFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a client declares about itself, stored so that a new link can be opened without asking the client again.

    `initialize_params` are the bytes of a legacy client's `initialize` params; empty for a modern client.
    """

    name: str = ""
    version: str = ""
    protocol_version: str = ""
    initialize_params: bytes = b""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The durable record of one session of a client. All times are seconds since the epoch."""

    id: str
    principal: Principal
    endpoint: str
    era: str
    created_at: float
    used_at: float
    idle_ttl_s: float
    max_age_s: float
    unconfirmed_ttl_s: float = 60.0
    confirmed: bool = True
    """False until the client has sent the session's id. Until then, `unconfirmed_ttl_s` limits how long it may be
    idle."""
    client: ClientFacts = msgspec.field(default_factory=ClientFacts)
    context: Context = msgspec.field(default_factory=Context)
    initialized: bool = False
    log_level: str = ""
    subscriptions: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    """The upstreams that the session has used, so that a later process can report what was lost."""
    remote: tuple[str, ...] = ()
    """Its sessions at upstreams that have sessions of their own, which a later process can resume."""
    origin: str = ""
    """Distinguishes anonymous clients (`origin_of`)."""
    parent: str = ""
    """The session within which this one was opened, or empty. The parent lists it in `children`."""
    children: tuple[str, ...] = ()
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    token_hash: str = ""
    """`token_hash_of` of the credential that opened the session."""
    counted: str = ""
    """The counts of earlier owners up to the last hand-over, in a format of their own."""
    shown: str = ""
    """The tools that servers have listed to the session, in a format of their own."""
    owner: str = ""
    """The replica that owns the session. The directory sets it, and `epoch`."""
    epoch: int = 0
    version: int = 0
    """Tells whether a copy of the record is current. The store sets it."""

    @property
    def counted_as(self) -> str:
        """Return the key under which rates and quotas count the session (`Principal.counted_as`)."""
        return self.principal.counted_as(self.origin)

    @property
    def expires_at(self) -> float:
        """Return the time at which the session expires: when it has been idle for too long, or is too old, whichever is
        first."""
        ttl = self.idle_ttl_s if self.confirmed else min(self.idle_ttl_s, self.unconfirmed_ttl_s)
        return min(self.used_at + ttl, self.created_at + self.max_age_s)

    def is_expired(self, now: float) -> bool:
        """Return True if the session has expired at `now`. At the deadline itself, it has expired."""
        return now >= self.expires_at

    def with_set(self, field: str, *, add: str = "", remove: str = "") -> "Session":
        """Return a copy of the session with the name `add` added to a field that is a set of names, and the name
        `remove` removed from it. Empty: none."""
        names = {*getattr(self, field), add} - {remove, ""}
        return msgspec.structs.replace(self, **{field: tuple(sorted(names))})

    def used(self, now: float, *, confirm: bool = False) -> "Session":
        """Return a copy of the session after a use at the time `now`. `confirm`: the client has sent the session's id,
        so the copy is confirmed."""
        return msgspec.structs.replace(self, used_at=max(now, self.used_at), confirmed=self.confirmed or confirm)

    def is_but_used(self, earlier: "Session") -> bool:
        """Return True if this record equals `earlier` in everything but the time of the last use."""
        return self.version == earlier.version and msgspec.structs.replace(self, used_at=earlier.used_at) == earlier


def checked_metadata(changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return changes of metadata for `SessionStore.annotate`, with credentials in them redacted. The value None removes
    an entry.

    Raises:
        InvalidMetadata: a name or a value is not text.
    """
    for name, value in changes.items():
        if not isinstance(name, str) or not name or not isinstance(value, str | None):
            raise InvalidMetadata(f"metadata {str(name)[:64]!r}: names and values must be text (None removes)")
        if any("\ud800" <= char <= "\udfff" for char in name + (value or "")):
            raise InvalidMetadata(f"metadata {name[:64]!r}: contains a lone surrogate, which is not valid text")
    return scrubbed(changes)


def merged_metadata(present: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return a session's metadata `present` with the changes applied. The value None removes an entry.

    Raises:
        InvalidMetadata: the result would be larger than `MAX_METADATA_BYTES`.
    """
    merged = {**present, **changes}
    kept = {name: value for name, value in merged.items() if value is not None}
    size = sum(len(name.encode()) + len(value.encode()) for name, value in kept.items())
    if size > MAX_METADATA_BYTES:
        raise too_large(size)
    return kept


def too_large(size: int) -> InvalidMetadata:
    """Return the error for metadata that would have `size` bytes."""
    return InvalidMetadata(f"the session's metadata would be {size} bytes, more than {MAX_METADATA_BYTES}")
