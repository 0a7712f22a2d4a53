"""One URL picks one backend. Backends are imported only when they are picked."""

from collections.abc import Callable
from pathlib import Path
from time import time
from urllib.parse import unquote, urlsplit

from session_store.memory import MAX_SESSIONS, MemoryBackend
from session_store.ports.backend import Backend

__all__ = ["backend_for", "check_store_url", "shown", "sqlite_path"]

SUPPORTED = "memory://, sqlite:///path, redis://, rediss://, redis+sentinel:// and redis+cluster:// are"


def check_store_url(url: str) -> str:
    """The same URL. Raises `ValueError`, saying what is wrong, for one that picks no backend."""
    parts = urlsplit(url)
    if parts.scheme == "memory" and url == "memory://":
        return url
    if parts.scheme == "sqlite":
        if parts.netloc or len(parts.path) < 2:
            raise ValueError("give a path: sqlite:///relative.db, or sqlite:////absolute/path.db")
        return url
    if parts.scheme in ("redis", "rediss"):
        if not parts.hostname:
            raise ValueError("give a host: redis://host:6379/0")
        return url
    if parts.scheme == "redis+sentinel":
        if not parts.netloc.rpartition("@")[2] or not parts.path.strip("/"):
            raise ValueError("give the sentinels and the service: redis+sentinel://host:26379,host:26379/mymaster/0")
        return url
    if parts.scheme in ("redis+cluster", "rediss+cluster"):
        if not parts.netloc.rpartition("@")[2] or parts.path.strip("/"):
            raise ValueError("give some of the nodes, and no database: redis+cluster://host:6379,host:6379")
        return url
    raise ValueError(f"unknown kind of store {parts.scheme or url[:32]!r}: {SUPPORTED} supported")


def sqlite_path(url: str) -> Path:
    """The file of a `sqlite:///path` URL; a fourth slash makes it absolute, as in SQLAlchemy's URLs."""
    return Path(unquote(urlsplit(url).path)[1:])


def backend_for(
    url: str, *, clock: Callable[[], float] | None = None, max_sessions: int = MAX_SESSIONS, exclusive: bool = True
) -> Backend:
    """The backend that URL picks, not open yet. `exclusive` False is for a look from outside, beside a gateway.

    Raises:
        ValueError: the URL picks none.
        StoreError: the backend cannot use it.
    """
    scheme = urlsplit(check_store_url(url)).scheme
    if scheme == "memory":
        return MemoryBackend(clock=clock or time, max_sessions=max_sessions)
    if scheme == "sqlite":
        from session_store.sqlite import SqliteBackend

        return SqliteBackend(sqlite_path(url), clock=clock or time, exclusive=exclusive)
    from session_store.redis import RedisBackend

    return RedisBackend(url, clock=clock)


def shown(url: str) -> str:
    """The URL as logs may show it: without a password."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return parts._replace(netloc="…@" + parts.netloc.rpartition("@")[2]).geturl()
