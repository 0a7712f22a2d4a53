"""Who owns a session, as the store says it, and which replicas may become its owner. What interleaves: the model of
`tests/cluster/test_ownership.py`."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.cluster.ownership import Cluster
from session_store import MemoryBackend, Session
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import OwnedByPeer

pytestmark = [pytest.mark.anyio, requirement("rep.fence")]


async def replicas() -> tuple[Cluster, Cluster, Session]:
    """Two replicas of one store, and a session that nobody owns."""
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    one, other = (Cluster(backend.directory, backend.sessions, backend.bus, taken_over=lambda _: None) for _ in "12")
    return one, other, await backend.sessions.create(a_session(clock, principal=ALICE, owner="", epoch=0))


async def test_an_owner_from_which_a_session_was_claimed_owns_it_no_more() -> None:
    one, other, session = await replicas()
    owned = await one.own(session, ALICE, None)
    assert owned.owner == one.replica and await one.still_owns(owned) and not await other.still_owns(owned)
    claimed = await other.claim(owned)
    assert claimed is not None and claimed.owner == other.replica
    assert not await one.still_owns(owned) and await other.still_owns(claimed)
    assert not await other.still_owns(replace(claimed, epoch=owned.epoch)), "its own claim of before"
    assert not await one.still_owns(replace(owned, id="none"))
    with pytest.raises(OwnedByPeer) as elsewhere:
        await one.own(claimed, ALICE, None)
    assert elsewhere.value.route.session.owner == other.replica


@pytest.mark.parametrize("stop", [Cluster.start_leaving, lambda one: one.set_reachable(False)])
async def test_a_replica_that_leaves_or_is_not_reached_claims_nothing(stop: Callable[[Cluster], None]) -> None:
    one, other, session = await replicas()
    stop(one)
    with pytest.raises(OwnedByPeer):
        await one.own(session, ALICE, None)
    assert (await other.own(session, ALICE, None)).owner == other.replica


async def test_a_replica_that_has_released_a_session_does_not_serve_an_old_record_of_it() -> None:
    one, other, session = await replicas()
    owned = await one.own(session, ALICE, None)
    one.mark_released(owned)
    await one.release(owned)
    assert one.has_released(owned.id)
    with pytest.raises(OwnedByPeer):
        await one.own(owned, ALICE, None)
    released = await other._sessions.peek(owned.id)
    assert released is not None and (await other.own(released, ALICE, None)).owner == other.replica
