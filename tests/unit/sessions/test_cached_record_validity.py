"""When a cached record answers for the store: each condition on its own."""

from time import monotonic
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from gateway.calls.lifecycles import LiveState
from gateway.calls.live_session import LiveSessions
from gateway.cluster.ownership import Forwarded
from gateway.identity.context_rules import ContextRules
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from gateway.sessions.cached_record_validity import CACHED_FOR_S, CachedRecords
from session_store import Context, MemoryBackend, Provenance
from session_store.testing import ALICE, FakeClock, a_session
from tests.unit.sessions.parts import FOR_ALICE, FOR_BOB

CLOCK = FakeClock()
GRANTED_MORE = RequestContext(ALICE, CredentialClaims(permissions=("admin",)), "")
LONG_AGO = CLOCK() - 1_000.0
RUNS_OUT = SimpleNamespace(is_fresh=True, is_fresh_for_a_while=False)
RAN_OUT = SimpleNamespace(is_fresh=False, is_fresh_for_a_while=False)
CONTEXT = Context(workspace="w", provenance=Provenance(workspace="announced"))


CASES: dict[str, tuple[dict[str, Any], tuple[bool, bool, bool]]] = {
    "nothing changed": ({}, (True, True, True)),
    "another principal": ({"who": FOR_BOB}, (False, False, False)),
    "a credential that grants more": ({"who": GRANTED_MORE}, (False, False, False)),
    "the session has ended here": ({"live": {"ended": True}}, (False, False, False)),
    "no cluster": ({"cluster": None}, (True, False, False)),
    "the lease may have run out": ({"cluster": {"lease": RAN_OUT}}, (False, False, False)),
    "the lease runs out soon": ({"cluster": {"lease": RUNS_OUT}}, (True, True, False)),
    "released by a replica that leaves": ({"cluster": {"has_released": lambda _: True}}, (False, True, True)),
    "owned by another replica": ({"record": {"owner": "another"}}, (True, False, False)),
    "read long ago": ({"live": {"read_at": monotonic() - 60.0 - CACHED_FOR_S}}, (False, True, True)),
    "streams to recover": ({"live": {"state": LiveState.OPENING}}, (True, False, True)),
    "another epoch is vouched for": ({"forwarded": {"epoch": 4}}, (True, False, True)),
    "another version is vouched for": ({"forwarded": {"version": 8}}, (True, False, True)),
    "expired": ({"record": {"used_at": LONG_AGO, "created_at": LONG_AGO}}, (True, True, False)),
}
"""What has changed → recent, confirmed by another replica, good for an outage. A cluster that is None is none."""


@pytest.mark.parametrize("name", CASES)
def test_a_cached_record_serves_when_all_conditions_hold(name: str) -> None:
    change, expected = CASES[name]
    session, who = a_session(CLOCK, context=CONTEXT, owner="me", epoch=3, version=7), change.get("who", FOR_ALICE)
    held: Any = LiveSessions(MemoryBackend().events).of_new(session)
    held.replace_record(session, is_read=True)
    held.replace_record(replace(session, **change.get("record", {})))
    for attribute, value in change.get("live", {}).items():
        setattr(held, attribute, value)
    lease = SimpleNamespace(is_fresh=True, is_fresh_for_a_while=True)
    known = {"replica": "me", "lease": lease, "has_released": lambda _: False}
    cluster = change.get("cluster", {})
    replica: Any = None if cluster is None else SimpleNamespace(**known | cluster)
    never = AsyncMock(side_effect=AssertionError)
    sent = Forwarded(session_id=session.id, principal=ALICE, epoch=3, version=7, granted=None, before_sending=never)
    sent = replace(sent, **change.get("forwarded", {}))
    cached = CachedRecords(ContextRules((), "direct"), replica, CLOCK)
    held.read_at += 60.0  # the tests take no time
    recent = cached.is_recent(held, who)
    held.read_at -= 60.0
    assert (recent, cached.is_confirmed_by(sent, held, who), cached.serves_outage(held, who)) == expected
