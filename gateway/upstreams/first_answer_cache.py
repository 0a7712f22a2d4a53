"""Cache the first answers of a legacy server's new processes: to the handshake, and to requests for lists.

A legacy server does not say how long its answers are fresh, or for whom. The operator says it (`lists_fresh_s`). A
process gets facts about its session, so a cached answer is used only for sessions with equal facts, including metadata
and credential; ids and times may differ.

Calls may change the lists of a server, and so may a client's answers to the server's questions, such as its roots. So
an answer is cached only if the process that gave it was asked for nothing but lists, and was told nothing. A cached
answer is used only for sessions that have called no server. Such a session then needs no process."""

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession
from gateway.protocol.methods import LISTS, METHODS
from gateway.upstreams.result_cache import CacheKey, ResultCache
from session_store import Context
from transports.jsonrpc import encode

_HANDSHAKE: Final = "initialize"


class FirstAnswers:
    """Cache the first answers of one legacy server's processes, each for `fresh_s` seconds; 0 caches none."""

    def __init__(self, results: ResultCache, fresh_s: float) -> None:
        self._results = results
        self._fresh_ms = int(fresh_s * 1_000) if results.takes("tools/list") else 0

    def cache_key(
        self, method: str, params: Mapping[str, bytes], live: LiveSession, context: Context
    ) -> CacheKey | None:
        """Return the cache key for a request of a legacy client. It is the same for sessions to which the server would
        give the same answer. Return None if the result must not be cached."""
        if not self._fresh_ms or method not in (*LISTS, _HANDSHAKE):
            return None
        session = live.session
        facts = (sorted(session.metadata.items()), session.token_hash)  # processes get these facts too
        equal = encode([session.endpoint, session.principal.key, session.client, context, *facts])
        return CacheKey.of(method, params, public=None, private=equal, fresh_ms=self._fresh_ms)

    def handshake(self, live: LiveSession) -> bytes | None:
        """Return the cached `initialize` result that a new process would give this session; None if there is none."""
        key = self.cache_key(_HANDSHAKE, {}, live, live.session.context)
        found = None if key is None or live.session.links else self._results.find(key)
        if found is not None:
            self._results.hits[_HANDSHAKE] += 1
        return found

    def handshake_version(self) -> int:
        """Return a number to pass to `keep_handshake`. It changes when cached handshakes become invalid, so it must be
        read before the process is asked."""
        return self._results.version(_HANDSHAKE)

    def keep_handshake(self, live: LiveSession, conversation: Conversation, version: int) -> None:
        """Cache the `initialize` result of the session's process, if the process was asked for nothing else yet.
        `version` is from `handshake_version`."""
        key = self.cache_key(_HANDSHAKE, {}, live, live.session.context)
        if key is not None and is_unused(live, conversation, _HANDSHAKE):
            assert conversation.initialize_result is not None
            self._results.keep(key, msgspec.Raw(conversation.initialize_result), version)


def is_unused(live: LiveSession, conversation: Conversation | None, method: str) -> bool:
    """Return True if answers to `method` may come from the cache, or be cached: the session has called no server, its
    process (if it has one) has got no answer of the client to a question, and the process has not notified of a change
    of the list `method`."""
    if live.session.links or live.ended:
        return False
    if conversation is None:
        return True
    lists = conversation.known_lists
    if conversation.was_used or live in conversation.users:
        return False
    return lists is None or METHODS[method].kind not in lists.announced
