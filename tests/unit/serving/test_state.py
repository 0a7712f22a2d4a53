"""`gateway.serving.state`: when requests are welcome."""

from gateway.cluster.ownership import Cluster
from gateway.serving.state import ServingState
from session_store import MemoryBackend


def test_requests_are_welcome_between_start_and_stop() -> None:
    state = ServingState(None)
    assert not state.may_serve()
    state.start()
    assert state.may_serve() and state.is_running and not state.is_draining
    state.stop()
    assert not state.may_serve() and not state.is_running


def test_a_gateway_that_drains_or_that_its_peers_do_not_find_takes_no_requests() -> None:
    backend = MemoryBackend()
    cluster = Cluster(backend.directory, backend.sessions, backend.bus, taken_over=lambda _: None)
    state = ServingState(cluster)
    state.start()
    state.start_draining()
    assert state.is_draining and cluster.is_leaving and not state.may_serve()
    state.stop_draining()
    assert not state.is_draining and not cluster.is_leaving and state.may_serve()
    cluster.set_reachable(False)
    assert not state.may_serve()
