"""What an answer to `server/discover` proves."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httpx2
import msgspec
import pytest

from gateway.calls.conversation import Conversation
from gateway.calls.lifecycles import Deadlines
from gateway.calls.live_session import LiveSession
from gateway.protocol.merged_lists import MOST_TOOLS
from gateway.upstreams.era_discovery import AGAIN_S, LEGACY_S, Discovery, SessionDiscovery, ask_discovery, meaning_of
from gateway.upstreams.list_pages import GATEWAY_META, all_items, listed_items, lists_repeatable
from gateway.upstreams.server_facts import KnownFacts, ServerFacts, era_of
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.fake_upstream import FakeUpstream
from tests.unit.upstreams.parts import Server, answered, refused
from transports.era import LEGACY, MODERN, Era
from transports.jsonrpc import Message, encode
from transports.upstream.streamable_http import HttpUpstream
from transports.upstream_port import ConnectOptions, Link, LinkEvents, UpstreamUnavailable

pytestmark = requirement("up.era")

RESULT = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}}
Answer = Callable[[Any], httpx2.Response]


class OverHttp(FakeUpstream):
    """Links of the real HTTP transport to a server that `answers` each request."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self.requests: list[Any] = []
        self._upstream = HttpUpstream(name="remote", url="http://remote/mcp", headers={}, max_event_bytes=10_000)

        def answer(request: httpx2.Request) -> httpx2.Response:
            self.requests.append(msgspec.json.decode(request.content))
            return answers[min(len(self.requests), len(answers)) - 1](self.requests[-1])

        self._upstream._client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        deadlines = Deadlines(start_s=5.0, call_s=30.0, suspended_s=30.0, idle_stop_s=None)
        self.conversation = Conversation(self, self, deadlines)

    async def connect(self, options: ConnectOptions, events: LinkEvents) -> Link:
        return await self._upstream.connect(options, events)

    async def discover(self) -> Discovery:
        try:
            return await ask_discovery(self.conversation, within_s=5.0, is_remote=True)
        finally:
            await self.conversation.close()
            await self._upstream.close()


def status(code: int, content: bytes = b"") -> Answer:
    return lambda _: httpx2.Response(code, content=content)


def error(status: int, code: int, data: Any = None) -> Answer:
    body = {"code": code, "message": "no"} | ({} if data is None else {"data": data})
    return lambda asked: httpx2.Response(status, json={"jsonrpc": "2.0", "id": asked["id"], "error": body})


def discovered(asked: Any) -> httpx2.Response:
    return httpx2.Response(200, json={"jsonrpc": "2.0", "id": asked["id"], "result": RESULT})


def raising(fault: Exception) -> Answer:
    def answer(_: Any) -> httpx2.Response:
        raise fault

    return answer


@pytest.mark.parametrize(
    ("answer", "era"),
    [
        (discovered, MODERN),
        (status(400, b"Bad Request: Server not initialized"), LEGACY),
        *((status(code), LEGACY) for code in (400, 404, 405)),
        (error(200, -32601), LEGACY),
        *((error(400, code), LEGACY) for code in (-32000, -32602, -32021)),
        (error(400, -32021, {"requiredCapabilities": {}}), MODERN),
        (error(400, -32020), MODERN),
        *((status(code), None) for code in (302, 401, 403, 429)),
        (status(503, b"busy"), None),
        (error(503, -32603), None),
        (error(500, -32000), None),
        (status(200, b"<html>"), None),
        (raising(httpx2.ReadError("cut")), None),
    ],
)
async def test_what_an_answer_over_http_proves(answer: Answer, era: Era | None) -> None:
    found = await OverHttp(answer).discover()
    assert found.era is era and bool(found.result) == (answer is discovered)
    assert found.reason or found.era is not None, "a server that proved nothing says why"


async def test_a_server_that_cannot_be_reached_is_unavailable() -> None:
    with pytest.raises(UpstreamUnavailable):
        await OverHttp(raising(httpx2.ConnectError("refused"))).discover()


async def test_silence_proves_a_legacy_process_and_nothing_of_a_server_behind_a_url() -> None:
    for is_remote, era in ((True, None), (False, LEGACY)):
        silent = FakeUpstream()
        found = await ask_discovery(silent.conversation, within_s=0.01, is_remote=is_remote)
        assert found.era is era and "did not answer" in found.reason
        await silent.conversation.close()


async def test_a_version_that_both_know_is_asked_for_again_once() -> None:
    refusal = error(400, -32022, {"supported": ["2026-07-28", "2027-01-01"], "requested": "2026-07-28"})
    server, contradicting = OverHttp(refusal, discovered), OverHttp(refusal)
    assert (await server.discover()).result is not None
    found = await contradicting.discover()
    assert found.era is MODERN and found.result is None and "it says it supports" in found.reason
    for asked in (server, contradicting):  # which is not asked for ever
        assert [each["method"] for each in asked.requests] == ["server/discover"] * 2


@pytest.mark.parametrize(
    "second", [status(503, b"busy"), status(404), error(200, -32601), raising(httpx2.ReadError(""))]
)
async def test_a_second_question_that_fails_does_not_make_a_modern_server_legacy(second: Answer) -> None:
    refusal = error(400, -32022, {"supported": ["2026-07-28"], "requested": "2026-07-28"})
    found = await OverHttp(refusal, second).discover()
    assert (found.era, found.result) == (MODERN, None) and found.reason


def test_the_supported_versions_of_a_refusal_decide() -> None:
    def meaning(supported: Any) -> Discovery:
        data = {"supported": supported, "requested": "2026-07-28"}
        return meaning_of(msgspec.Raw(encode({"code": -32022, "message": "no", "data": data})))

    assert meaning(["2025-11-25"]).era is LEGACY, "a version of the handshake"
    assert meaning(["2025-11-25", "2026-07-28"]).retry == "2026-07-28"
    newer = meaning(["2027-01-01"])
    assert newer.era is MODERN and "2027-01-01 only" in newer.reason and "2026-07-28" in newer.reason
    assert len(meaning(["9" * 1_000] * 1_000 + [7]).reason) < 500, "the server does not decide how long the message is"
    assert meaning("2026-07-28").era is LEGACY, "the code alone may be a legacy server's own"
    assert meaning_of(msgspec.Raw(b"7")).era is LEGACY


class Pages:
    """Answers with these results, one after another."""

    def __init__(self, *results: Any, era: Era = Era.LEGACY) -> None:
        self.era = era
        self.asked: list[dict[str, Any]] = []
        self._results = list(results)

    async def ready(self) -> None:
        """It is open."""

    async def ask(self, method: str, params: bytes) -> Message:
        self.asked.append(msgspec.json.decode(params))
        result = self._results.pop(0)
        return refused() if result is None else answered(encode(result))


def read(conversation: Pages, method: str = "tools/list") -> list[dict[str, Any]]:
    return asyncio.run(all_items(method, cast("Any", conversation)))


@pytest.mark.parametrize(
    ("method", "listed", "key", "most_chars"),
    [
        ("tools/list", "tools", "name", 256),
        ("prompts/list", "prompts", "name", 256),
        ("resources/list", "resources", "uri", 8_192),
        ("resources/templates/list", "resourceTemplates", "uriTemplate", 8_192),
    ],
)
def test_the_limits_of_requests_bound_the_names_in_lists(method: str, listed: str, key: str, most_chars: int) -> None:
    page = {listed: [{key: "x" * most_chars}, {key: "x" * (most_chars + 1)}]}
    assert listed_items(method, page) == page[listed][:1]


def test_pages_are_read_until_there_is_no_cursor() -> None:
    first = {"tools": [{"name": "a"}], "nextCursor": "2"}
    conversation = Pages(first, {"tools": [{"name": "b"}]})
    assert [item["name"] for item in read(conversation)] == ["a", "b"]
    assert conversation.asked == [{}, {"cursor": "2"}]
    assert [item["name"] for item in read(Pages(first, None))] == ["a"], "an error ends the list"
    page = {"tools": [{"name": f"t{number}"} for number in range(1_000)], "nextCursor": "again"}
    endless = Pages(*[page] * 10)
    assert len(read(endless)) > MOST_TOOLS and len(endless.asked) == MOST_TOOLS // 1_000 + 1
    modern = Pages({"tools": []}, era=Era.MODERN)
    read(modern)
    assert modern.asked == [{"_meta": GATEWAY_META}]


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        *(({"annotations": {hint: True}}, True) for hint in ("readOnlyHint", "idempotentHint")),
        ({"annotations": {"readOnlyHint": False}}, False),
        *(({"annotations": none}, False) for none in (None, {"readOnlyHint": "false"}, ["idempotentHint"])),
        ({"name": "another", "annotations": {"readOnlyHint": True}}, False),
    ],
)
def test_the_annotations_of_a_tool_say_whether_its_calls_are_repeatable(tool: dict[str, Any], expected: bool) -> None:
    pages: Any = Pages({"tools": [{"name": "t"} | tool]})
    assert asyncio.run(lists_repeatable("t", pages)) is expected


# -- with the credentials of sessions

REFUSED = ServerFacts(failure="server 'demo' answered 401", needs_credentials=True)
MINE = encode(
    {
        **{"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "instructions": "for alice only"},
        **{"serverInfo": {"name": "alice's", "version": "1"}, "com.acme/tools": ["hers"]},
    }
)
NO_VERSION = refused(b'{"code":-32022,"message":"?","data":{"supported":["2030-01-01"]}}')
ASKED = f"ready {MODERN}"


def refusal(status: int) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"server 'demo' answered {status}", status=status)


class Learned:
    """What sessions learn of a server."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.known = KnownFacts()
        self.known.learn(REFUSED)
        self.discovery = SessionDiscovery("demo", self.known, self.known.learn, clock=self.clock)

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


@requirement("up.era-credentials")
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


@requirement("up.era-credentials")
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


@requirement("up.era-credentials")
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


@requirement("up.era-credentials")
async def test_of_many_sessions_a_few_ask_and_the_calls_of_one_ask_together(learned: Learned) -> None:
    server, sessions = Server(discover=MINE, is_busy=True), [learned.session() for _ in range(30)]
    asking = [asyncio.create_task(learned.ask(live, server)) for live in [*sessions, *sessions[:1] * 5]]
    for _ in range(5):
        await asyncio.sleep(0)
    asking[0].cancel()
    server.gate.set()
    await asyncio.gather(*asking[1:])
    assert server.log == [ASKED] * 4


@requirement("up.era-credentials")
async def test_what_the_probe_finds_meanwhile_stays(learned: Learned) -> None:
    server = Server(discover=MINE, is_busy=True)
    asking = asyncio.create_task(learned.ask(learned.session(), server))
    for _ in range(3):
        await asyncio.sleep(0)
    found = ServerFacts(discover=b'{"capabilities":{"prompts":{}}}')
    learned.known.learn(found)
    server.gate.set()
    assert await asking == [ASKED] and learned.known.latest is found


@requirement("up.era-credentials")
async def test_who_waits_when_the_gateway_stops_learns_nothing(learned: Learned) -> None:
    asking = asyncio.create_task(learned.ask(learned.session(), Server(discover=MINE, is_busy=True)))
    await asyncio.sleep(0)
    await learned.discovery.close()
    await asking
    assert learned.known.latest is REFUSED
