"""When a cached record answers for the store: each condition on its own."""

from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.calls.lifecycles import LiveState
from gateway.calls.live_session import LiveSessions
from gateway.cluster.ownership import Forwarded
from gateway.identity.context_rules import ContextRules
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from gateway.sessions.cached_record import CACHED_FOR_S, CachedRecords
from session_store import Context, MemoryBackend, Provenance
from session_store.testing import ALICE, FakeClock, a_session
from tests.unit.sessions.parts import FOR_ALICE, FOR_BOB

CLOCK = FakeClock()
GRANTED_MORE = RequestContext(ALICE, CredentialClaims(permissions=("admin",)), "")
LONG_AGO = CLOCK() - 1_000.0
RUNS_OUT = SimpleNamespace(is_fresh_for_a_while=False)
CONTEXT = Context(workspace="w", provenance=Provenance(workspace="announced"))


async def _never() -> None:
    raise AssertionError


def answers(
    *,
    who: RequestContext = FOR_ALICE,
    cluster: dict[str, Any] | None,
    live: dict[str, Any],
    record: dict[str, Any],
    forwarded: dict[str, Any],
) -> tuple[bool, bool, bool]:
    """Recent, confirmed by another replica, good for an outage: for a live session that every rule serves, but for
    these changes. Without a cluster if `cluster` is None."""
    session = a_session(CLOCK, context=CONTEXT, owner="me", epoch=3, version=7)
    held: Any = LiveSessions(MemoryBackend().events).of_new(session)
    held.replace_record(session, is_read=True)
    held.replace_record(replace(session, **record))
    for name, value in live.items():
        setattr(held, name, value)
    lease = SimpleNamespace(is_fresh_for_a_while=True)
    known = {"replica": "me", "is_fresh": True, "lease": lease, "has_released": lambda _: False}
    sent = Forwarded(session_id=session.id, principal=ALICE, epoch=3, version=7, granted=None, started=_never)
    replica: Any = None if cluster is None else SimpleNamespace(**known | cluster)
    cached = CachedRecords(ContextRules((), "direct"), replica, CLOCK)
    held.read_at += 60.0  # the tests take no time
    recent = cached.is_recent(held, who)
    held.read_at -= 60.0
    return recent, cached.is_confirmed_by(replace(sent, **forwarded), held, who), cached.serves_outage(held, who)


CASES: dict[str, tuple[dict[str, Any], tuple[bool, bool, bool]]] = {
    "nothing changed": ({}, (True, True, True)),
    "another principal": ({"who": FOR_BOB}, (False, False, False)),
    "a credential that grants more": ({"who": GRANTED_MORE}, (False, False, False)),
    "the session has ended here": ({"live": {"ended": True}}, (False, False, False)),
    "no cluster": ({"cluster": None}, (True, False, False)),
    "the lease may have run out": ({"cluster": {"is_fresh": False, "lease": RUNS_OUT}}, (False, False, False)),
    "the lease runs out soon": ({"cluster": {"lease": RUNS_OUT}}, (True, True, False)),
    "released by a replica that leaves": ({"cluster": {"has_released": lambda _: True}}, (False, True, True)),
    "owned by another replica": ({"record": {"owner": "another"}}, (True, False, False)),
    "read long ago": ({"live": {"read_at": monotonic() - 60.0 - CACHED_FOR_S}}, (False, True, True)),
    "streams to recover": ({"live": {"state": LiveState.OPENING}}, (True, False, True)),
    "another epoch is vouched for": ({"forwarded": {"epoch": 4}}, (True, False, True)),
    "another version is vouched for": ({"forwarded": {"version": 8}}, (True, False, True)),
    "expired": ({"record": {"used_at": LONG_AGO, "created_at": LONG_AGO}}, (True, True, False)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_cached_record_serves_when_all_conditions_hold(name: str) -> None:
    change, expected = CASES[name]
    unchanged: dict[str, Any] = {"cluster": {}, "live": {}, "record": {}, "forwarded": {}}
    assert answers(**unchanged | change) == expected
