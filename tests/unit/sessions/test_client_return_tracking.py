"""Clients that come back to their sessions, and clients that never do."""

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.calls.live_session import LiveSession
from gateway.sessions import client_return_tracking
from gateway.sessions.client_return_tracking import GRACE_S, REPORTED_AFTER, ClientWarning, merge_warnings
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.sessions.parts import FOR_ALICE, NOBODY, Parts, replicas, request
from transports.era import Era
from transports.inbound_port import Request
from transports.jsonrpc import Message


def asked(agent: str = "node", **headers: Any) -> Request:
    return replace(request(Era.MODERN, user_agent=agent, **headers), client="192.0.2.7")


ASKED = asked()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    for name in ("monotonic", "time"):
        monkeypatch.setattr(client_return_tracking, name, clock)
    return clock


async def opened_often(*replicas: Parts) -> LiveSession:
    """The last of many sessions that a client has opened at each of these replicas, all of them a while ago."""
    for parts in replicas:
        for _ in range(REPORTED_AFTER):
            resolved = await parts.resume_or_open(ASKED, NOBODY)
            assert resolved.opened
        assert await told(parts) == [] and parts.returns.warnings() == [], "it still may come back"
    replicas[0].clock.pass_time(GRACE_S)
    return resolved.live


async def told(parts: Parts) -> list[str]:
    await parts.returns.tell()
    await parts.audit.flush()
    return [event.reason for event in await parts.backend.audit.recent() if event.event == "warned"]


@requirement("cli.told")
async def test_a_client_that_never_comes_back_is_told_of_once_with_the_line_that_mends_it(clock: FakeClock) -> None:
    parts = Parts(clock=clock)
    await opened_often(parts)
    (line,) = await told(parts)
    assert "tests (node)" in line and "MCP-Gateway-Session-Key" in line
    await parts.resume_or_open(ASKED, NOBODY)
    assert len(await told(parts)) == 1
    (client,) = parts.returns.warnings()
    assert (client.client, client.agent, client.principal, client.sessions) == ("tests", "node", "anonymous", 6)
    assert "requestInit" in client.line and "randomUUID" in client.line


@requirement("cli.told")
async def test_one_return_is_enough_not_to_be_told_of(clock: FakeClock) -> None:
    parts = Parts(clock=clock)
    token = parts.token_of(await opened_often(parts))
    assert await parts.resume(asked(mcp_gateway_session=token), NOBODY) is not None
    assert await told(parts) == [] and parts.returns.warnings() == []


@requirement("cli.told")
async def test_two_replicas_tell_once(clock: FakeClock) -> None:
    both = replicas(clock=clock)
    await opened_often(*both)
    assert [len(await told(parts)) for parts in both] == [1, 1]


@requirement("cli.idle")
async def test_a_session_waits_for_its_client_until_a_request_comes_for_it() -> None:
    parts = Parts()
    for who, first in ((NOBODY, ASKED), (FOR_ALICE, ASKED), (FOR_ALICE, asked(mcp_gateway_session_key="k"))):
        live = (await parts.resume_or_open(first, who)).live
        assert live.is_unreturned
        again = first if who is FOR_ALICE else asked(mcp_gateway_session=parts.token_of(live))
        assert (await parts.resume_or_open(again, who)).live is live and not live.is_unreturned


@requirement("cli.isolated", "cli.default-learnt")
async def test_a_client_that_brought_a_token_back_has_no_default_session_on_any_replica() -> None:
    here, there = replicas()
    first = (await here.resume_or_open(ASKED)).live
    assert (await here.resume_or_open(ASKED)).live is first, "nothing is known but the table"
    assert (await here.resume_or_open(asked(mcp_gateway_session=here.token_of(first)))).live is first
    for parts in (here, there):
        one, two = [await parts.resume_or_open(ASKED) for _ in range(2)]
        assert one.opened and two.opened and len({first.session.id, one.live.session.id, two.live.session.id}) == 3
    other = asked("curl/8.5.0")
    assert not (await here.resume_or_open(other)).opened, "another implementation of that name brings nothing back"


@requirement("cli.default-shared")
async def test_a_client_learns_that_another_one_uses_its_default_session() -> None:
    parts = Parts()

    async def own_line(number: int, method: str = "tools/call", agent: str = "node", **more: Any) -> str:
        call = Message(jsonrpc="2.0", id=number, method=method)
        return (await parts.resume_or_open(replace(asked(agent), message=call, **more))).own_session

    assert [await own_line(number) for number in (1, 3, 4)] == ["", "", ""], "one client counts"
    assert await own_line(1, "tools/list") == "", "such results cannot say it"
    assert await own_line(4, again=True) == "", "the same call, sent again by the gateway"
    assert await told(parts) == [] == parts.returns.warnings()
    line = await own_line(1)
    assert "requestInit" in line and "MCP-Gateway-Session-Key" in line
    assert [await own_line(number) for number in (3, 4)] == ["", ""], "it was told"
    assert await own_line(4) == line
    assert [line in what and "share" in what for what in await told(parts)] == [True], "operators learn it once"
    (client,) = parts.returns.warnings()
    assert (client.shared, client.sessions, client.line) == (True, 2, line)
    token = parts.token_of((await parts.resume_or_open(ASKED)).live)
    with_token = replace(asked(mcp_gateway_session=token), message=Message(jsonrpc="2.0", id=4, method="tools/call"))
    assert (await parts.resume_or_open(with_token)).own_session == ""


@requirement("cli.default-learnt")
async def test_the_next_owner_of_a_default_session_learns_from_its_client_too() -> None:
    here, there = replicas()
    first = (await here.resume_or_open(ASKED)).live
    taken = (await there.resume_or_open(ASKED)).live
    assert taken.session.id == first.session.id
    assert not (await there.resume_or_open(asked(mcp_gateway_session=there.token_of(taken)))).opened
    assert (await there.resume_or_open(ASKED)).opened


@requirement("cli.told")
def test_what_replicas_know_of_a_client_is_put_together() -> None:
    def client(name: str, sessions: int, at: float) -> ClientWarning:
        return ClientWarning(
            client=name, agent="node", principal="anonymous", sessions=sessions, since=at, last=at + 1, line="line"
        )

    assert merge_warnings([client("a", 5, 10.0), client("b", 7, 1.0), client("a", 6, 5.0)]) == [
        replace(client("a", 11, 5.0), last=11.0),
        client("b", 7, 1.0),
    ]
