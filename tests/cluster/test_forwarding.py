"""The internal listener's door: what an envelope has to be."""

import hashlib
from collections.abc import MutableMapping
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cluster import Cluster, Route
from gateway.forwarding import ENVELOPE, Forwarding
from session_store import KeyRing, MemoryBackend, Session
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement

pytestmark = pytest.mark.anyio
RING = KeyRing.ephemeral()


class Door:
    """The listener of one replica, with an endpoint that notes what reaches it."""

    def __init__(self, ring: KeyRing = RING) -> None:
        self.clock = FakeClock()
        backend = MemoryBackend(clock=self.clock)
        self.cluster = Cluster(backend.directory, backend.sessions, lost=lambda _: None)
        self.reached: list[Any] = []
        endpoints: Any = {"/mcp": self._endpoint}
        self.forwarding = Forwarding(self.cluster, ring, endpoints, took_over=lambda _: None, clock=self.clock)

    async def _endpoint(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append((scope["mcp.forwarded"].principal, dict(scope["headers"]), await receive()))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    def session_here(self) -> Session:
        return replace(a_session(self.clock), owner=self.cluster.replica, epoch=1)

    async def knock(self, envelope: bytes, body: bytes = b"{}") -> int:
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: MutableMapping[str, Any]) -> None:
            sent.append(event)

        headers = [(ENVELOPE, envelope), (b"accept", b"application/json")]
        await self.forwarding({"type": "http", "headers": headers}, receive, send)
        return int(sent[0]["status"])


def sealed(door: Door, target: str, body: bytes = b"{}", path: str = "/mcp") -> bytes:
    scope = {"method": "POST", "path": path, "scheme": "http", "headers": [(b"authorization", b"Bearer secret")]}
    return door.forwarding._sealed(target, Route(door.session_here(), ALICE), scope, body)


@requirement("id.purpose", "rep.any")
async def test_a_good_envelope_is_good_once_and_for_its_body_only() -> None:
    door = Door()
    envelope = sealed(door, door.cluster.replica)
    assert await door.knock(envelope, b"{ }") == 403, "another body"
    envelope = sealed(door, door.cluster.replica)
    assert await door.knock(envelope) == 200
    assert await door.knock(envelope) == 403, "again"
    principal, headers, message = door.reached[0]
    assert principal == ALICE and headers == {b"accept": b"application/json"} and message["body"] == b"{}"
    assert len(door.reached) == 1


@requirement("id.purpose")
async def test_late_foreign_and_misdirected_envelopes_stay_outside() -> None:
    door = Door()
    late = sealed(door, door.cluster.replica)
    door.clock.pass_time(11)
    stranger = Door(KeyRing.ephemeral())
    for envelope, status in (
        (late, 403),
        (sealed(stranger, door.cluster.replica), 403),
        (sealed(door, "another"), 421),
        (sealed(door, door.cluster.replica, path="/nothing"), 403),
        (b"", 403),
        (hashlib.sha256(b"x").hexdigest().encode() + b".y", 403),
    ):
        assert await door.knock(envelope) == status
    assert door.reached == []
