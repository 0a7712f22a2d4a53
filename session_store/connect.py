"""Select a store backend by the scheme of its URL. Only this module maps schemes to backends.

A backend from another package is added in one of two ways:

- The package declares an entry point in the group `mcp_session_gateway.stores`, named like the scheme. Its value names
  a `BackendFactory`. The gateway's command line finds it as soon as the package is installed.
- A program that embeds the gateway calls `register_backend(scheme, factory)` before it makes its settings.

A backend, and the package of an entry point, is imported only when a URL selects it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from session_store.memory import MAX_SESSIONS, MemoryBackend
from session_store.ports.backend import Backend

ENTRY_POINTS: Final = "mcp_session_gateway.stores"
"""The entry point group of backends from other packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """Options for opening a backend."""

    clock: Callable[[], float] | None = None
    """Returns seconds since the epoch. None: the backend chooses its clock."""
    max_sessions: int = MAX_SESSIONS
    """The most sessions of a store that holds them in memory."""
    exclusive: bool = True
    """False: the store may be one that a running gateway has open."""
    create: bool = True
    """False: opening raises `StoreMissing` if the store does not exist yet."""


BackendFactory = Callable[[str, BackendOptions], Backend]
"""A function that makes the backend for a URL, without opening it. Raises `ValueError` for a URL that it cannot use."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of store, which the scheme of a URL selects. `is_usable`: returns False (or empty) if a URL and its parts
    do not name such a store; then `advice` is the error message, which says what to give instead."""

    factory: BackendFactory
    is_usable: Callable[[str, SplitResult], object] = lambda url, parts: True
    advice: str = ""


def register_backend(scheme: str, factory: BackendFactory) -> None:
    """Have all URLs that begin with `scheme://` select the backend that `factory` makes, in this process.

    Raises:
        ValueError: the scheme has a backend already.
    """
    if scheme in _KINDS:
        raise ValueError(f"the scheme {scheme!r} has a backend already")
    _KINDS[scheme] = _Kind(factory)


def check_store_url(url: str) -> str:
    """Check that a URL selects a backend, and return the URL. Raises `ValueError` with the reason if it does not."""
    parts = urlsplit(url)
    kind = _kind(parts.scheme, url)
    if not kind.is_usable(url, parts):
        raise ValueError(kind.advice)
    return url


def backend_for(url: str, options: BackendOptions | None = None) -> Backend:
    """Return the backend that the URL selects, not open yet.

    Raises:
        ValueError: the URL selects none.
        StoreError: the backend cannot use the URL.
    """
    check_store_url(url)
    return _kind(urlsplit(url).scheme, url).factory(url, options or BackendOptions())


def sqlite_path(url: str) -> Path:
    """Return the file of a `sqlite:///path` URL. A fourth slash makes the path absolute, as in SQLAlchemy's URLs."""
    return Path(unquote(urlsplit(url).path)[1:])


def shown(url: str) -> str:
    """Return the URL as logs may show it, without its password."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return parts._replace(netloc="…@" + parts.netloc.rpartition("@")[2]).geturl()


def store_place(url: str) -> str:
    """Return for people where a URL keeps sessions. For SQLite, it is the absolute path of the file, with a note if the
    file is new. For another store, it is the URL without its password."""
    if urlsplit(url).scheme != "sqlite":
        return shown(url)
    file = sqlite_path(url).absolute()
    return f"{file}{'' if file.exists() else ', a new file'}"


def _kind(scheme: str, url: str) -> _Kind:
    if scheme in _KINDS:
        return _KINDS[scheme]
    from importlib.metadata import entry_points  # slow to load, and seldom needed

    declared = entry_points(group=ENTRY_POINTS)
    if scheme not in declared.names:
        schemes = ", ".join(f"{name}://" for name in (*_KINDS, *sorted(declared.names - _KINDS.keys())))
        raise ValueError(f"unknown kind of store {scheme or url[:32]!r}: supported are {schemes}")
    register_backend(scheme, declared[scheme].load())
    return _KINDS[scheme]


# -- the kinds that come with the gateway


def _memory(url: str, options: BackendOptions) -> Backend:
    return MemoryBackend(clock=options.clock or time, max_sessions=options.max_sessions)


def _sqlite(url: str, options: BackendOptions) -> Backend:
    from session_store.sqlite import SqliteBackend

    return SqliteBackend(
        sqlite_path(url), clock=options.clock or time, exclusive=options.exclusive, create=options.create
    )


def _redis(url: str, options: BackendOptions) -> Backend:
    from session_store.redis import RedisBackend

    return RedisBackend(url, clock=options.clock)


def _has_hosts(parts: SplitResult) -> bool:
    return bool(parts.netloc.rpartition("@")[2])


_ONE_SERVER: Final = _Kind(_redis, lambda url, parts: parts.hostname, "give a host: redis://host:6379/0")
_CLUSTER: Final = _Kind(
    _redis,
    lambda url, parts: _has_hosts(parts) and not parts.path.strip("/"),
    "give some of the nodes, and no database: redis+cluster://host:6379,host:6379",
)
_KINDS: Final[dict[str, _Kind]] = {
    "memory": _Kind(_memory, lambda url, parts: url == "memory://", "give nothing after memory://"),
    "sqlite": _Kind(
        _sqlite,
        lambda url, parts: not parts.netloc and len(parts.path) >= 2,
        "give a path: sqlite:///relative.db, or sqlite:////absolute/path.db",
    ),
    "redis": _ONE_SERVER,
    "rediss": _ONE_SERVER,
    "redis+sentinel": _Kind(
        _redis,
        lambda url, parts: _has_hosts(parts) and parts.path.strip("/"),
        "give the sentinels and the service: redis+sentinel://host:26379,host:26379/mymaster/0",
    ),
    "redis+cluster": _CLUSTER,
    "rediss+cluster": _CLUSTER,
}
