"""How much of what a client says its session's record keeps: the parameters of `initialize`, and subscriptions."""

from collections.abc import Awaitable, Callable
from typing import Final

from gateway.calls.live_session import LiveSession
from gateway.errors import record_full
from session_store import Session
from transports.inbound.limits import Limited, Limits, Refusals
from transports.inbound_port import Refused

__all__ = ["RecordLimits"]

MAX_SUBSCRIPTIONS: Final = 1_000


class RecordLimits:
    """`most` bytes for each session."""

    def __init__(self, most: int = Limits().record_bytes, refusals: Refusals | None = None) -> None:
        self._most = most
        self._refusals = Refusals() if refusals is None else refusals

    def check_handshake(self, params: bytes) -> None:
        """Raises `Refused`: -32602, the parameters of `initialize` are too large."""
        if len(params) > self._most:
            raise self._refused("params of initialize")

    async def subscribe(self, live: LiveSession, uri: str, change: Callable[..., Awaitable[None]]) -> None:
        """Keep a subscription; `change` changes the record's set of them.

        Raises:
            Refused: -32602, there is no room for it.
        """
        if uri in live.session.subscriptions:
            return
        if self._has(live.session, uri):
            await change(live, "subscriptions", add=uri)
            if self._has(live.session):
                return
            await change(live, "subscriptions", remove=uri)  # others came at the same time
        raise self._refused("subscriptions")

    def _has(self, session: Session, uri: str = "") -> bool:
        """Whether the record may hold what its client has said, and that URI as well."""
        uris = (*session.subscriptions, uri) if uri else session.subscriptions
        size = len(session.client.initialize_params) + sum(len(each.encode("utf-8", "replace")) for each in uris)
        return len(uris) <= MAX_SUBSCRIPTIONS and size <= self._most

    def _refused(self, what: str) -> Refused:
        self._refusals[Limited.RECORD] += 1
        return record_full(what, self._most)
