"""What a probe asks a server, and when it asks again."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from gateway.protocol.handshake import HandshakeRefused
from gateway.upstreams.server_facts import KnownFacts, ServerFacts
from gateway.upstreams.server_probe import AGAIN_S, WAIT_S, Probe
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.calls.parts import turns
from tests.unit.upstreams.parts import NO_METHOD, Server
from transports.era import Era
from transports.upstream_port import LinkClosed, UpstreamUnavailable

DISCOVERED = b'{"capabilities":{}}'
NO_HANDSHAKE = HandshakeRefused(msgspec.Raw(NO_METHOD))
NO_HEADER = HandshakeRefused(msgspec.Raw(b'{"code":-32020,"message":"no MCP-Protocol-Version"}'))
BUSY = UpstreamUnavailable("503 Service Unavailable", status=503)
UNAUTHORIZED = UpstreamUnavailable("server 'demo' answered 401", status=401)
BAD_CLIENT = HandshakeRefused(msgspec.Raw(b'{"code":-32602,"message":"who are you"}'))


def probe_of(server: Any, clock: FakeClock | None = None, *, is_remote: bool = False) -> Probe:
    return Probe("demo", KnownFacts(), server, start_s=5.0, is_remote=is_remote, clock=clock or FakeClock())


@requirement("ext.relay")
async def test_extensions_that_do_not_count_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    many: dict[str, Any] = {"capabilities": {"extensions": {f"com.acme/x{number}": {} for number in range(300)}}}
    probe = probe_of(Server(discover=msgspec.json.encode(many)))
    for _ in range(3):
        assert (await probe.facts()).declared.left_off == 44
    (line,) = [record.getMessage() for record in caplog.records if "extensions" in record.getMessage()]
    assert line.startswith("server demo declares too many or too long extensions: 44 names do not count")


@pytest.mark.parametrize("discover", [None, LinkClosed("it exited"), TimeoutError()])
async def test_a_server_that_knows_no_discovery_is_asked_for_a_handshake(discover: Any) -> None:
    server = Server(discover=discover)
    facts = await probe_of(server).facts()
    assert facts.discover is None and facts.initialize is not None and facts.has_answered
    assert server.log == [f"ready {Era.MODERN}", f"discard {Era.MODERN}", f"ready {Era.LEGACY}"]


@pytest.mark.parametrize(
    ("server", "is_remote"),
    [
        (Server(legacy=BAD_CLIENT), False),
        (Server(discover=BUSY, legacy=BUSY), True),
        (Server(discover=UNAUTHORIZED, legacy=UNAUTHORIZED), False),
    ],
    ids=["refuses both", "503", "401 of a process"],
)
async def test_refusals_of_both_eras_say_nothing_of_credentials(server: Server, is_remote: bool) -> None:
    probe = probe_of(server, is_remote=is_remote)
    facts = await probe.facts()
    assert not facts.has_answered and not facts.needs_credentials
    assert bool(facts.failure) is (server.discover is not None), "a server may speak neither era"


async def test_a_late_server_is_logged_once_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(discover=BUSY, legacy=BUSY)
    probe = probe_of(server, is_remote=True)
    with caplog.at_level("INFO"):
        assert not (await probe.facts()).has_answered
        probe.log_first_answer()
        server.discover = DISCOVERED
        for _ in range(2):
            await probe.start()
        await probe.close()
    assert [line for line in caplog.messages if "ready" in line] == ["server demo is ready: 1 tool"]


async def test_a_server_that_lists_no_tools_to_the_probe_is_not_asked_for_them() -> None:
    probe = Probe("demo", KnownFacts(has_tools=False), cast("Any", Server(discover=DISCOVERED)), start_s=5.0)
    facts = await probe.facts()
    assert facts.has_answered and not facts.tools.listed


@requirement("upstream.probe-survives")
@pytest.mark.parametrize("discover", [None, DISCOVERED])
async def test_a_server_is_known_with_its_tools_and_without_those_that_it_cannot_list_now(discover: Any) -> None:
    for server, tools in ((Server(discover=discover), ["t"]), (Server(discover=discover, tools=BUSY), [])):
        probe = probe_of(server, is_remote=True)
        facts = await probe.facts()
        assert facts.has_answered and [tool["name"] for tool in facts.tools.listed] == tools
        assert facts.discover == discover
        assert discover is None or probe.discovery(facts) == discover, "it may not be kept, and is passed on as before"


@requirement("upstream.probe-survives")
async def test_an_error_that_nobody_foresaw_is_a_failed_attempt_and_the_next_one_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(discover=DISCOVERED, ready=RuntimeError("secret detail"))
    probe = probe_of(server)
    assert (await probe.facts()).failure == "the gateway could not ask it (RuntimeError)" and probe.failures.count == 1
    await probe.start()
    assert probe.failures.count == 2 and caplog.text.count("the probe of server demo failed") == 1
    assert "server demo cannot be used yet: the gateway could not ask it" in caplog.text, "it is asked again"
    server.opening[Era.MODERN] = None
    await probe.start()
    assert (await probe.facts()).discover == DISCOVERED


async def test_concurrent_callers_share_one_probe() -> None:
    server = Server(discover=DISCOVERED, is_busy=True)
    probe = probe_of(server)
    asked = [asyncio.ensure_future(probe.facts()) for _ in range(3)]
    await turns(20)
    asked[0].cancel()
    await turns(20)
    server.gate.set()
    assert [each.discover for each in await asyncio.gather(*asked[1:])] == [DISCOVERED] * 2
    assert server.log == [f"ready {Era.MODERN}"] and asked[0].cancelled()


async def test_a_server_that_failed_is_asked_again_in_the_background_after_a_while() -> None:
    clock, server = FakeClock(), Server(discover=DISCOVERED, ready=UpstreamUnavailable("not there"))
    probe = probe_of(server, clock)
    assert (await probe.facts()).failure == "not there"
    server.opening[Era.MODERN] = None
    assert (await probe.facts()).failure and len(server.log) == 1, "not so soon"
    clock.pass_time(AGAIN_S)
    assert (await probe.facts()).failure, "nobody waits for it"
    await probe.start()
    assert (await probe.facts()).discover == DISCOVERED


@pytest.mark.parametrize(
    ("trial", "era"),
    [
        (None, Era.LEGACY),
        (BAD_CLIENT, Era.LEGACY),
        (NO_HANDSHAKE, Era.MODERN),
        (NO_HEADER, Era.MODERN),
        (b"{}", Era.MODERN),
        (b'{"protocolVersion":"2026-07-28","capabilities":{}}', Era.MODERN),
    ],
)
async def test_a_modern_server_is_tried_once_with_a_handshake(trial: Any, era: Era) -> None:
    server = Server(discover=DISCOVERED, trial=UpstreamUnavailable("busy"))
    probe = probe_of(server)
    assert await probe.era_for(Era.MODERN) is Era.MODERN and "trial" not in server.log
    assert await probe.era_for(Era.LEGACY) is Era.LEGACY
    assert probe.era_now(Era.LEGACY) is None, "a trial that failed decides nothing, and is made again"
    server.opening[None] = trial
    assert [await probe.era_for(Era.LEGACY) for _ in range(2)] == [era, era]
    assert probe.era_now(Era.LEGACY) is era and server.log.count("trial") == 2
    assert server.log[-1] == "close"


async def test_who_waits_when_the_gateway_stops_gets_a_failure() -> None:
    probe = probe_of(Server(is_busy=True))
    asked = asyncio.ensure_future(probe.facts())
    await asyncio.sleep(0)
    await probe.close()
    assert (await asked).failure


@requirement("proc.hang")
async def test_nobody_waits_for_a_probe_that_has_taken_too_long_already() -> None:
    clock, server = FakeClock(), Server(discover=DISCOVERED, is_busy=True)
    probe = probe_of(server, clock)
    running = probe.start()
    await asyncio.sleep(0)
    clock.pass_time(WAIT_S)
    async with asyncio.timeout(1.0):
        assert await probe.era_for(Era.LEGACY) is Era.LEGACY
    assert probe.waited_s == WAIT_S and not probe.answered.is_set()
    server.gate.set()
    await running
    assert probe.answered.is_set()


@requirement("proc.backoff", "wall.ready", "up.era")
@pytest.mark.parametrize(
    ("server", "failure", "words"),
    [
        (Server(ready=UpstreamUnavailable("not there")), "not there", ("it is no use",)),
        (Server(discover=BUSY, legacy=NO_HANDSHAKE), "503 Service Unavailable", ()),
    ],
    ids=["failed", "busy"],
)
async def test_a_server_that_failed_is_asked_again_without_a_client(
    server: Server, failure: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.calls.server_start_failures.FIRST_S", 0.001)
    probe = probe_of(server, is_remote=not words)
    facts = await probe.facts()
    assert (facts.failure, facts.output_tail, probe.failures.count) == (failure, words, 1)
    server.opening[Era.MODERN], server.discover = None, DISCOVERED
    async with asyncio.timeout(60):
        await probe.answered.wait()
    assert probe.failures.count == 0 and probe.era_now(Era.MODERN) is Era.MODERN


@requirement("up.era")
@pytest.mark.parametrize("is_modern", [True, False])
async def test_a_server_that_was_busy_once_is_served_at_once_and_asked_again(is_modern: bool) -> None:
    server = Server(discover=BUSY)
    probe = probe_of(server, is_remote=True)
    facts = await probe.facts()
    assert facts.has_answered and not facts.is_certain
    assert probe.era_now(Era.MODERN) is Era.LEGACY, "it accepts a handshake"
    handshakes = server.log.count(f"ready {Era.LEGACY}")
    for still in (BUSY, UpstreamUnavailable("gone")):
        server.discover = still
        assert (await probe.start()).initialize is not None and not probe.failures.count
    assert server.log.count(f"ready {Era.LEGACY}") == handshakes, "what is known is not asked for again"
    server.discover = DISCOVERED if is_modern else UpstreamUnavailable("400 Bad Request", status=400)
    assert (await probe.start()).is_certain and probe._again is None, "nothing is left to find out"
    assert probe.era_now(Era.MODERN) is (Era.MODERN if is_modern else Era.LEGACY)
    assert not is_modern or server.log.count(f"discard {Era.MODERN}") == 2


@requirement("cache.hints")
async def test_what_a_server_says_of_itself_is_passed_on_with_the_time_that_is_left_and_asked_anew_later() -> None:
    clock, server = FakeClock(), Server(discover=b'{"capabilities":{},"ttlMs":60000,"cacheScope":"public"}')
    probe = probe_of(server, clock)
    facts = await probe.facts()
    clock.pass_time(20)
    assert b'"ttlMs":40000' in (probe.discovery(facts) or b"") and len(server.log) == 1
    clock.pass_time(50)
    server.discover = UpstreamUnavailable("away")
    assert b'"ttlMs":0' in (probe.discovery(facts) or b"")
    await turns(20)
    assert (await probe.facts()) is facts, "a server that cannot be asked again keeps its answer"
    server.discover = b'{"capabilities":{"tools":{}},"ttlMs":60000}'
    for passed_s, is_same in ((0, True), (AGAIN_S, False)):  # not so soon
        clock.pass_time(passed_s)
        probe.discovery(facts)
        await turns(20)
        assert ((await probe.facts()) is facts) is is_same
    again = await probe.facts()
    assert again.capabilities == {"tools": {}} and b'"ttlMs":60000' in (probe.discovery(again) or b"")


@requirement("up.one-start")
@pytest.mark.parametrize(("fault", "era"), [(None, Era.LEGACY), (NO_HANDSHAKE, Era.MODERN)])
async def test_the_first_session_tries_the_handshake_with_its_own_process(fault: Any, era: Era) -> None:
    server = Server(discover=DISCOVERED, legacy=fault)
    probe = probe_of(server)
    await probe.facts()
    own: Any = server.of(Era.LEGACY)
    await probe.try_with(own, lambda: server.log.append("drop"))
    assert probe.era_now(Era.LEGACY) is era and await probe.era_for(Era.LEGACY) is era
    assert "trial" not in server.log and server.log[2:] == ([] if fault is None else ["drop", "close"])


@requirement("up.era-credentials")
async def test_a_server_that_refuses_the_probe_for_want_of_credentials_is_marked_and_sessions_may_learn_more() -> None:
    server = Server(discover=UNAUTHORIZED, legacy=UNAUTHORIZED)
    probe = probe_of(server, is_remote=True)
    facts = await probe.facts()
    assert facts.needs_credentials and not facts.has_answered and probe.failures.count == 1
    learned = ServerFacts(discover=DISCOVERED, needs_credentials=True)
    server.gate.clear()
    running = probe.start()
    await turns(20)
    probe.learn(learned)
    assert probe.answered.is_set() and probe.failures.count == 0
    server.gate.set()
    await running
    assert await probe.facts() is learned, "a probe that is refused meanwhile takes nothing back"
    server.log.clear()
    assert await probe.era_for(Era.LEGACY) is Era.LEGACY and not server.log, "without credentials no trial is made"
    server.discover = b'{"capabilities":{"prompts":{}}}'
    await probe.start()
    assert (await probe.facts()).capabilities == {"prompts": {}}
