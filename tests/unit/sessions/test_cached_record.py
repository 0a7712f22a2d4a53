"""When a cached record answers for the store: each condition on its own."""

from collections.abc import Callable
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.calls.live_session import LiveSessions
from gateway.calls.live_state import LiveState
from gateway.cluster.ownership import Forwarded
from gateway.identity.context_rules import ContextRules
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from gateway.sessions.cached_record import CACHED_FOR_S, CachedRecords
from session_store import Context, MemoryBackend, Provenance
from session_store.testing import ALICE, BOB, FakeClock, a_session

CLOCK = FakeClock()
RUNS_OUT = SimpleNamespace(is_fresh_for_a_while=False)
CONTEXT = Context(workspace="w", provenance=Provenance(workspace="announced"))


class Case:
    """A live session that every rule serves, to be changed in one point."""

    def __init__(self) -> None:
        self.cluster: Any = SimpleNamespace(
            replica="me", is_fresh=True, lease=SimpleNamespace(is_fresh_for_a_while=True), has_released=lambda _: False
        )
        session = a_session(CLOCK, context=CONTEXT, owner="me", epoch=3, version=7)
        self.live = LiveSessions(MemoryBackend().events).of_new(session)
        self.live.replace_record(session, is_read=True)
        self.who = RequestContext(ALICE, None, "")
        self.forwarded = Forwarded(
            session_id=session.id, principal=ALICE, epoch=3, version=7, granted=None, started=_never
        )

    def answers(self) -> tuple[bool, bool, bool]:
        """Recent, confirmed by another replica, good for an outage."""
        cached = CachedRecords(ContextRules((), "direct"), self.cluster, CLOCK)
        self.live.read_at += 60.0  # the tests take no time
        recent = cached.is_recent(self.live, self.who)
        self.live.read_at -= 60.0
        return (
            recent,
            cached.is_confirmed_by(self.forwarded, self.live, self.who),
            cached.serves_outage(self.live, self.who),
        )


async def _never() -> None:
    raise AssertionError


def _set(name: str, value: Any) -> Callable[[Case], None]:
    return lambda case: setattr(case, name, value)


def _cluster(**fields: Any) -> Callable[[Case], None]:
    return lambda case: case.cluster.__dict__.update(fields)


def _live(**fields: Any) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        for name, value in fields.items():
            setattr(case.live, name, value)

    return change


def _record(**fields: Any) -> Callable[[Case], None]:
    return lambda case: case.live.replace_record(replace(case.live.session, **fields))


def _forwarded(**fields: Any) -> Callable[[Case], None]:
    return lambda case: setattr(case, "forwarded", replace(case.forwarded, **fields))


CASES: dict[str, tuple[Callable[[Case], None], tuple[bool, bool, bool]]] = {
    "nothing changed": (lambda _: None, (True, True, True)),
    "another principal": (_set("who", RequestContext(BOB, None, "")), (False, False, False)),
    "a credential that grants more": (
        _set("who", RequestContext(ALICE, CredentialClaims(permissions=("admin",)), "")),
        (False, False, False),
    ),
    "the session has ended here": (_live(ended=True), (False, False, False)),
    "no cluster": (_set("cluster", None), (True, False, False)),
    "the lease may have run out": (
        _cluster(is_fresh=False, lease=SimpleNamespace(is_fresh_for_a_while=False)),
        (False, False, False),
    ),
    "the lease runs out soon": (_cluster(lease=SimpleNamespace(is_fresh_for_a_while=False)), (True, True, False)),
    "released by a replica that leaves": (_cluster(has_released=lambda _: True), (False, True, True)),
    "owned by another replica": (_record(owner="another"), (True, False, False)),
    "read long ago": (
        lambda case: setattr(case.live, "read_at", monotonic() - 60.0 - CACHED_FOR_S),
        (False, True, True),
    ),
    "streams to recover": (_live(state=LiveState.OPENING), (True, False, True)),
    "another epoch is vouched for": (_forwarded(epoch=4), (True, False, True)),
    "another version is vouched for": (_forwarded(version=8), (True, False, True)),
    "expired": (_record(used_at=CLOCK() - 1_000.0, created_at=CLOCK() - 1_000.0), (True, True, False)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_cached_record_serves_when_all_conditions_hold(name: str) -> None:
    change, expected = CASES[name]
    case = Case()
    change(case)
    assert case.answers() == expected
