"""What sessions with credentials learn of a server that refuses the gateway's own requests."""

import asyncio
from typing import Any, cast

import pytest

from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession
from gateway.upstreams.facts import KnownFacts, ServerFacts, era_of
from gateway.upstreams.session_discovery import AGAIN_S, LEGACY_S, SessionDiscovery
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.upstreams.parts import Server, refused
from transports.era import LEGACY, MODERN, Era
from transports.jsonrpc import encode
from transports.upstream_port import UpstreamUnavailable

pytestmark = [pytest.mark.anyio, requirement("up.era-credentials")]

REFUSED = ServerFacts(failure="server 'demo' answered 401", needs_credentials=True)
MINE = encode(
    {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "instructions": "for alice only",
        "serverInfo": {"name": "alice's", "version": "1"},
        "com.acme/tools": ["hers"],
    }
)
NO_VERSION = refused(b'{"code":-32022,"message":"?","data":{"supported":["2030-01-01"]}}')
ASKED = f"ready {MODERN}"


def refusal(status: int) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"server 'demo' answered {status}", status=status)


class Learned:
    """As the probe, which keeps what sessions learn."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.known = KnownFacts()
        self.known.learn(REFUSED)
        self.discovery = SessionDiscovery("demo", self.known, self, clock=self.clock)

    def learn(self, facts: ServerFacts) -> None:
        self.known.learn(facts)

    def session(self) -> LiveSession:
        return LiveSession(a_session(self.clock), MemoryBackend().events)

    async def ask(self, live: LiveSession, server: Server) -> list[str]:
        """As `ConfiguredUpstream.era_in`. Returns what has happened in conversations with the server."""
        if self.discovery.is_wanted(live):
            conversation = live.conversations.setdefault(("demo", MODERN, b""), cast("Conversation", server.of(MODERN)))
            await self.discovery.ask(live, conversation)
        return server.log

    def era(self) -> Era | None:
        return era_of(self.known.latest, MODERN, accepts_handshake=None)


@pytest.fixture
def learned() -> Learned:
    return Learned()


async def test_the_era_and_capabilities_that_one_session_learns_count_for_all_and_nothing_else(
    learned: Learned,
) -> None:
    live = learned.session()
    assert await learned.ask(live, Server(discover=MINE)) == [ASKED], "the session goes on with its conversation"
    facts = learned.known.latest
    assert facts is not None and facts.has_answered and facts.needs_credentials
    assert learned.era() is MODERN and facts.capabilities == {"tools": {}}
    assert b"alice" not in (facts.discovery or b"alice") and b"com.acme" not in (facts.discovery or b"")
    assert learned.known.tools() is None, "nobody has listed them"
    assert live.conversations and not learned.discovery.is_wanted(learned.session())


@pytest.mark.parametrize("said", [None, refusal(400), refusal(404)], ids=["-32601", "400", "404"])
async def test_a_server_that_answers_as_legacy_servers_do_is_legacy_until_another_session_asks_later(
    learned: Learned, said: Any
) -> None:
    first, second = learned.session(), learned.session()
    assert await learned.ask(first, Server(discover=said)) == [ASKED, "close"] and not first.conversations
    assert learned.era() is LEGACY
    assert await learned.ask(second, Server(discover=MINE)) == [], "it counts for all"
    learned.clock.pass_time(LEGACY_S)
    assert await learned.ask(first, Server(discover=MINE)) == [], "who has asked knows"
    assert await learned.ask(second, Server(discover=MINE)) == [ASKED], "the answer may have been for the first alone"
    assert learned.era() is MODERN


@pytest.mark.parametrize(
    "said", [refusal(401), refusal(403), refusal(503), UpstreamUnavailable("no credential"), NO_VERSION]
)
async def test_a_session_whose_credentials_are_refused_decides_nothing_for_others(learned: Learned, said: Any) -> None:
    first, refusing = learned.session(), Server(discover=said)
    assert await learned.ask(first, refusing) == [ASKED, "close"] and not first.conversations
    assert learned.known.latest is REFUSED
    assert len(await learned.ask(first, refusing)) == 2, "not with each call"
    learned.clock.pass_time(AGAIN_S)
    assert await learned.ask(first, refusing) == [ASKED, "close"] * 2
    await learned.ask(learned.session(), Server(discover=MINE))
    assert learned.era() is MODERN


async def test_of_many_sessions_a_few_ask_and_the_calls_of_one_ask_together(learned: Learned) -> None:
    server, sessions = Server(discover=MINE, is_busy=True), [learned.session() for _ in range(30)]
    asking = [asyncio.create_task(learned.ask(live, server)) for live in [*sessions, *sessions[:1] * 5]]
    for _ in range(5):
        await asyncio.sleep(0)
    asking[0].cancel()
    server.gate.set()
    await asyncio.gather(*asking[1:])
    assert server.log == [ASKED] * 4


async def test_what_the_probe_finds_meanwhile_stays(learned: Learned) -> None:
    server = Server(discover=MINE, is_busy=True)
    asking = asyncio.create_task(learned.ask(learned.session(), server))
    for _ in range(3):
        await asyncio.sleep(0)
    found = ServerFacts(discover=b'{"capabilities":{"prompts":{}}}')
    learned.known.learn(found)
    server.gate.set()
    assert await asking == [ASKED] and learned.known.latest is found


async def test_who_waits_when_the_gateway_stops_learns_nothing(learned: Learned) -> None:
    asking = asyncio.create_task(learned.ask(learned.session(), Server(discover=MINE, is_busy=True)))
    await asyncio.sleep(0)
    await learned.discovery.close()
    await asking
    assert learned.known.latest is REFUSED
