"""A configured server: which conversation a session has with it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.calls.deadlines import Deadlines
from gateway.calls.live_session import LiveSession
from gateway.config.upstreams import UpstreamSettings
from gateway.protocol.capabilities import Caller
from gateway.upstreams.result_cache import ResultCache
from gateway.upstreams.upstream import MAX_CONVERSATIONS, ConfiguredUpstream
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.era import LEGACY
from transports.upstream_port import UpstreamUnavailable


def upstream(name: str = "s") -> ConfiguredUpstream:
    anything = cast("Any", SimpleNamespace(results=ResultCache(0)))
    probe = SimpleNamespace(start=None, facts=None, discovery=None, era_for=None, era_now=None, answered=None)
    return ConfiguredUpstream(
        UpstreamSettings(command="c"),
        anything,
        cast("Any", SimpleNamespace(name=name, permits=None, start_times_s=(), starts={}, restarts={})),
        inventory=anything,
        known=anything,
        shared=anything,
        probe=cast("Any", probe),
        deadlines=Deadlines(call_s=1.0, start_s=1.0, noise_s=1.0, suspended_s=1.0, idle_stop_s=None),
    )


def declaring(settings: int) -> Caller:
    return Caller(b'{"name":"c","version":"1"}', b'{"extensions":{"com.acme/a":{"n":%d}}}' % settings)


@requirement("ext.relay")
@pytest.mark.anyio
async def test_other_extension_settings_are_another_connection_up_to_a_limit() -> None:
    live = LiveSession(a_session(FakeClock()), MemoryBackend().events)
    server, other = upstream(), upstream("other")
    open_conversations = [server.conversation(live, LEGACY, "c", declaring(n)) for n in range(MAX_CONVERSATIONS)]
    assert len({id(each) for each in open_conversations}) == MAX_CONVERSATIONS
    assert server.conversation(live, LEGACY, "c", declaring(3)) is open_conversations[3]
    with pytest.raises(UpstreamUnavailable, match="16 different sets of capabilities"):
        server.conversation(live, LEGACY, "c", declaring(MAX_CONVERSATIONS))
    assert other.conversation(live, LEGACY, "c", declaring(99)) not in open_conversations
