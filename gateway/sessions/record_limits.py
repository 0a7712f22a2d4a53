"""Limits the client data in the record of a session: the parameters of `initialize`, and subscriptions."""

from typing import Final

from gateway.errors import record_full
from session_store import Session
from transports.inbound.limits import Limited, Limits, Refusals
from transports.inbound_port import Refused

__all__ = ["RecordLimits"]

MAX_SUBSCRIPTIONS: Final = 1_000


class RecordLimits:
    """Checks that a record has at most `most` bytes of client data. Refusals are counted in `refusals`."""

    def __init__(self, most: int = Limits().record_bytes, refusals: Refusals | None = None) -> None:
        self._most = most
        self._refusals = Refusals() if refusals is None else refusals

    def check_handshake(self, params: bytes) -> None:
        """Raises `Refused`: -32602, the parameters of `initialize` are too large."""
        if len(params) > self._most:
            raise self._refused("params of initialize")

    def check_subscription(self, session: Session, uri: str = "") -> None:
        """Raises `Refused`: -32602, the record is too large, or would be with a subscription to that URI."""
        uris = (*session.subscriptions, uri) if uri else session.subscriptions
        size = len(session.client.initialize_params) + sum(len(each.encode("utf-8", "replace")) for each in uris)
        if len(uris) > MAX_SUBSCRIPTIONS or size > self._most:
            raise self._refused("subscriptions")

    def _refused(self, what: str) -> Refused:
        self._refusals[Limited.RECORD] += 1
        return record_full(what, self._most)
