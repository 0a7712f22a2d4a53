"""What sessions with credentials learn of a server that refuses the gateway's own requests."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession
from gateway.calls.patience import Patience
from gateway.upstreams.facts import KnownFacts, ServerFacts, era_of
from gateway.upstreams.session_discovery import AGAIN_S, LEGACY_S, SessionDiscovery
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.era import LEGACY, MODERN
from transports.jsonrpc import Message
from transports.upstream_port import UpstreamUnavailable

pytestmark = [pytest.mark.anyio, requirement("up.era-credentials")]

REFUSED = ServerFacts(failure="server 'demo' answered 401", needs_credentials=True)
MINE = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "instructions": "for alice only",
    "serverInfo": {"name": "alice's", "version": "1"},
    "com.acme/tools": ["hers"],
}
NO_METHOD = Message(jsonrpc="2.0", id=1, error=msgspec.Raw(b'{"code":-32601,"message":"?"}'))
NO_VERSION = Message(
    jsonrpc="2.0", id=1, error=msgspec.Raw(b'{"code":-32022,"message":"?","data":{"supported":["2030-01-01"]}}')
)


def answer(result: Any) -> Message:
    return Message(jsonrpc="2.0", id=1, result=msgspec.Raw(json.dumps(result).encode()))


def refusal(status: int) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"server 'demo' answered {status}", status=status)


class Talk:
    """A session's modern conversation with the server."""

    name = "demo"

    def __init__(self, said: Message | Exception, gate: asyncio.Event | None = None) -> None:
        self.said = said
        self.gate = gate
        self.asked = 0
        self.is_closed = False
        self.patience = Patience(5.0)

    async def ready(self) -> None:
        pass

    async def ask(self, method: str, params: bytes) -> Message:
        assert method == "server/discover"
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    async def close(self, reason: str = "") -> None:
        self.is_closed = True


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

    async def ask(self, live: LiveSession, talk: Talk) -> Talk:
        """As `ConfiguredUpstream.era_in`."""
        if self.discovery.is_wanted(live):
            conversation = live.conversations.setdefault(("demo", MODERN, b""), cast("Conversation", talk))
            await self.discovery.ask(live, conversation)
        return talk


@pytest.fixture
def learned() -> Iterator[Learned]:
    yield Learned()


async def test_the_era_and_capabilities_that_one_session_learns_count_for_all_and_nothing_else(
    learned: Learned,
) -> None:
    live = learned.session()
    talk = await learned.ask(live, Talk(answer(MINE)))
    facts = learned.known.latest
    assert facts is not None and facts.has_answered and facts.needs_credentials
    assert era_of(facts, MODERN, accepts_handshake=None) is MODERN and facts.capabilities == {"tools": {}}
    assert (
        facts.discovery is not None and "alice" not in facts.discovery.decode() and b"com.acme" not in facts.discovery
    )
    assert learned.known.tools() is None, "nobody has listed them"
    assert not talk.is_closed and live.conversations, "the session goes on with its conversation"
    assert not learned.discovery.is_wanted(learned.session())


@pytest.mark.parametrize("said", [NO_METHOD, refusal(400), refusal(404)], ids=["-32601", "400", "404"])
async def test_a_server_that_answers_as_legacy_servers_do_is_legacy_until_another_session_asks_later(
    learned: Learned, said: Any
) -> None:
    first, second = learned.session(), learned.session()
    talk = await learned.ask(first, Talk(said))
    assert talk.is_closed and not first.conversations
    assert era_of(learned.known.latest, MODERN, accepts_handshake=None) is LEGACY
    assert (await learned.ask(second, Talk(answer(MINE)))).asked == 0, "it counts for all"
    learned.clock.pass_time(LEGACY_S)
    assert (await learned.ask(first, Talk(answer(MINE)))).asked == 0, "who has asked knows"
    assert (await learned.ask(second, Talk(answer(MINE)))).asked == 1, "the answer may have been for the first alone"
    assert era_of(learned.known.latest, MODERN, accepts_handshake=None) is MODERN


@pytest.mark.parametrize(
    "said", [refusal(401), refusal(403), refusal(503), UpstreamUnavailable("no credential"), NO_VERSION]
)
async def test_a_session_whose_credentials_are_refused_decides_nothing_for_others(learned: Learned, said: Any) -> None:
    first = learned.session()
    talk = await learned.ask(first, Talk(said))
    assert talk.is_closed and not first.conversations and learned.known.latest is REFUSED
    assert (await learned.ask(first, Talk(said))).asked == 0, "not with each call"
    learned.clock.pass_time(AGAIN_S)
    assert (await learned.ask(first, Talk(said))).asked == 1
    await learned.ask(learned.session(), Talk(answer(MINE)))
    assert era_of(learned.known.latest, MODERN, accepts_handshake=None) is MODERN


async def test_of_many_sessions_a_few_ask_and_the_calls_of_one_ask_together(learned: Learned) -> None:
    gate = asyncio.Event()
    sessions = [learned.session() for _ in range(30)]
    talks = [Talk(answer(MINE), gate) for _ in sessions]
    asking = [asyncio.create_task(learned.ask(live, talk)) for live, talk in zip(sessions, talks, strict=True)]
    again = [asyncio.create_task(learned.ask(sessions[0], talks[0])) for _ in range(5)]
    for _ in range(5):
        await asyncio.sleep(0)
    asking[0].cancel()
    gate.set()
    await asyncio.gather(*asking[1:], *again)
    assert [talk.asked for talk in talks] == [1] * 4 + [0] * 26
    assert not any(talk.is_closed for talk in talks)


async def test_what_the_probe_finds_meanwhile_stays(learned: Learned) -> None:
    gate = asyncio.Event()
    asking = asyncio.create_task(learned.ask(learned.session(), Talk(answer(MINE), gate)))
    for _ in range(3):
        await asyncio.sleep(0)
    found = ServerFacts(discover=b'{"capabilities":{"prompts":{}}}')
    learned.known.learn(found)
    gate.set()
    await asking
    assert learned.known.latest is found


async def test_who_waits_when_the_gateway_stops_learns_nothing(learned: Learned) -> None:
    asking = asyncio.create_task(learned.ask(learned.session(), Talk(answer(MINE), asyncio.Event())))
    await asyncio.sleep(0)
    await learned.discovery.close()
    await asking
    assert learned.known.latest is REFUSED
