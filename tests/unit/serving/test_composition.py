"""`gateway.serving.composition`: which parts there are for which settings."""

from gateway.config.settings import Settings
from gateway.serving.composition import compose
from session_store import ANONYMOUS, KeyRing
from tests.requirements import requirement

SETTINGS = {"mcpServers": {"demo": {"command": "demo"}}, "gateway": {"sse": True}}


def test_each_server_has_a_path_of_its_own() -> None:
    parts = compose(Settings.model_validate(SETTINGS), ring=KeyRing.ephemeral())
    assert [*parts.http.endpoints] == ["/mcp", "/servers/demo/mcp"]
    assert [*parts.http.sse] == ["/sse", "/sse/messages", "/servers/demo/sse", "/servers/demo/sse/messages"]
    assert [upstream.name for upstream in parts.servers.upstreams] == ["demo"]
    assert parts.http.membership is None and parts.foundation.cluster is None


@requirement("ops.stalls")
def test_the_event_loop_is_watched_unless_that_is_switched_off() -> None:
    off = Settings.model_validate({"gateway": {"stall_log_s": 0}})
    assert compose(Settings(), ring=KeyRing.ephemeral()).foundation.loop_watch is not None
    assert compose(off, ring=KeyRing.ephemeral()).foundation.loop_watch is None


@requirement("pol.limits")
def test_calls_are_limited_unless_the_gateway_is_nobody_elses() -> None:
    rated = Settings.model_validate({"gateway": {"policy": {"session_rate": {"per_s": 1, "burst": 1}}}})
    for settings, is_free in ((Settings(), True), (rated, False)):
        rates = compose(settings, ring=KeyRing.ephemeral()).foundation.rates
        assert all(rates.spend_at_hand(ANONYMOUS, "127.0.0.1", "s") for _ in range(20_000)) is is_free
