"""The subscriptions that the gateway makes at modern servers for legacy clients."""

from gateway.bridge.subscription_relay import subscription_relay_for
from gateway.calls.live_session import LiveSession
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement


@requirement("spec.complete")
def test_no_request_of_a_client_cancels_a_subscription_of_the_gateway() -> None:
    live = LiveSession(a_session(FakeClock()), MemoryBackend().events)
    one, other = (subscription_relay_for(live).client_id for _ in range(2))
    assert isinstance(one, str) and one != other, "no count, and no text that stays the same"
