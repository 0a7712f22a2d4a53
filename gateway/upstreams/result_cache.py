"""Cache the fresh results of one server: lists, and resources that were read (MCP 2026-07-28, Caching).

A result that the server declares public is cached for all callers, any other for one session or one principal. When the
server notifies of a change in any conversation, all results of its kind are dropped. The cache enforces no policy:
callers apply policy to cached results as to new ones.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Final

import msgspec
from cachetools import LRUCache

from gateway.protocol.cache_hints import Hints, hints_of, with_ttl
from gateway.protocol.methods import CACHEABLE, LISTS, METHODS, Method
from transports.jsonrpc import encode

_OVERHEAD: Final = 512
"""Bytes that are counted for a cached result in addition to its size, so that many small results are limited too."""


_LEAST_S: Final = 0.001
"""Minimum seconds for which a cached result must still be fresh to be used. With less, its `ttlMs`, a whole number,
would be 0."""


class CacheKey(msgspec.Struct, frozen=True):
    """The two keys under which the result of one request may be cached. If one of them is empty, no result is stored or
    found under it."""

    method: str
    public: bytes
    """The key of a result that is for all callers."""
    private: bytes
    """The key of a result that is for this caller only."""
    session: str = ""
    """The id of the only session that a private result is for; empty if it is for several."""
    fresh_ms: int = 0
    """How long results of a legacy server are fresh; 0 if each result says so itself."""

    @classmethod
    def of(
        cls,
        method: str,
        params: Mapping[str, bytes],
        *,
        public: bytes | None,
        private: bytes | None,
        session: str = "",
        fresh_ms: int = 0,
    ) -> "CacheKey":
        """Return the cache keys of a request of `method` with these params. `public`: what a public result depends on
        besides the params. `private`: the caller that a private result is for. If one of the two is None, the key with
        its name is empty. `session` and `fresh_ms` are those of the key."""
        # As JSON, so that no two requests have the same text: the result of one request must not answer another.
        named = [[name, msgspec.Raw(bytes(params[name]))] for name in sorted(params) if name != "_meta"]
        digest = hashlib.sha256(encode([method, named]))

        def key(kind: bytes, scope: bytes | None) -> bytes:
            if scope is None:
                return b""
            scoped = digest.copy()
            scoped.update(kind + scope)
            return scoped.digest()

        return cls(method, key(b"\1", public), key(b"\3" if fresh_ms else b"\2", private), session, fresh_ms)


class _Kept(msgspec.Struct, frozen=True):
    result: bytes
    until: float
    version: int
    session: str


class ResultCache:
    """Cache results of one server, up to `most_bytes` in total; 0 caches none. `clock` is monotonic.

    `hits` counts by method how often a client was answered from the cache.
    """

    def __init__(self, most_bytes: int, clock: Callable[[], float] = monotonic) -> None:
        self._most_bytes = most_bytes
        self._clock = clock
        self._kept: LRUCache[bytes, _Kept] = LRUCache(
            max(1, most_bytes), getsizeof=lambda kept: _OVERHEAD + len(kept.result)
        )
        self.hits: Counter[str] = Counter()
        self._versions: Counter[str] = Counter()
        self._sessions: set[str] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def takes(self, method: str) -> bool:
        return self._most_bytes > 0 and method in CACHEABLE

    def find(self, key: CacheKey) -> bytes | None:
        """Return the cached result, its `ttlMs` reduced to the remaining time; None if there is no fresh one."""
        kept = self._fresh(key)
        if kept is None or key.fresh_ms:
            return None if kept is None else kept.result
        return with_ttl(kept.result, int((kept.until - self._clock()) * 1_000))

    def has(self, key: CacheKey) -> bool:
        """Return True if `find` would return a result."""
        return self._fresh(key) is not None

    def _fresh(self, key: CacheKey) -> _Kept | None:
        for name in (key.private, key.public):
            kept = self._kept.get(name) if name else None
            if kept is None:
                continue
            if kept.until - self._clock() >= _LEAST_S and kept.version == self._versions[key.method]:
                return kept
            del self._kept[name]
        return None

    def version(self, method: str) -> int:
        """Return how often the server has notified of a change of results of `method`. The caller reads this number
        before it sends the request, and passes it to `keep`."""
        return self._versions[method]

    def keep(self, key: CacheKey, result: object, version: int, *, for_all: bool = True) -> None:
        """Cache the result of a request, if it may be cached. It is not cached if the server has notified of a change
        since `version` was read. With `for_all` False, even a public result is cached only for this caller."""
        if not isinstance(result, msgspec.Raw) or version != self._versions[key.method]:
            return
        hints = Hints(key.fresh_ms, False) if key.fresh_ms else hints_of(result)
        size = _OVERHEAD + len(bytes(result))
        name = key.public if for_all and hints.is_public and key.public else key.private
        if not name or not hints.ttl_ms or size > self._most_bytes // 4:
            return
        session = key.session if name == key.private else ""
        self._kept[name] = _Kept(bytes(result), self._clock() + hints.ttl_ms / 1_000, version, session)
        if session:
            self._sessions.add(session)

    def changed(self, change: Method) -> None:
        """Drop the results that a change notification of the server makes invalid: lists of a kind, or resources."""
        affected = (row for row in METHODS.values() if row.is_cacheable and row.kind == change.kind)
        self._versions.update(row.name for row in affected if change.flag or row.name not in LISTS)

    def forget(self, session: str) -> None:
        """Drop the results of a session that has ended."""
        if session in self._sessions:
            self._sessions.discard(session)
            for key in [key for key, kept in self._kept.items() if kept.session == session]:
                del self._kept[key]

    def pages(self, key_of: Callable[[Mapping[str, bytes]], CacheKey]) -> Iterable[bytes] | None:
        """Return the cached results of all pages of a list; None if a page is missing. `key_of` gets the params of the
        request for a page, and returns the cache key of that request."""
        pages: list[bytes] = []
        params: Mapping[str, bytes] = {}
        for _ in range(_MOST_PAGES):
            page = self.find(key_of(params))
            if page is None:
                return None
            pages.append(page)
            cursor = _pages.decode(page).nextCursor
            if not isinstance(cursor, str) or not cursor:
                return pages
            params = {"cursor": msgspec.json.encode(cursor)}
        return None


class _Page(msgspec.Struct):
    nextCursor: Any = None  # servers may send anything


_pages = msgspec.json.Decoder(_Page)
_MOST_PAGES: Final = 100
