"""Clients that come back to their sessions, and clients that never do."""

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.identity.request_context import RequestContext
from gateway.sessions.attach import Resolved
from gateway.sessions.returns import GRACE_S, TOLD_AFTER, UnreturningClient, together
from session_store import ANONYMOUS, MemoryBackend
from session_store.testing import ALICE, FakeClock
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts
from transports.era import Era
from transports.inbound_port import Request
from transports.soon import arrived

NOBODY = RequestContext(ANONYMOUS, None, "")
FOR_ALICE = RequestContext(ALICE, None, "")

pytestmark = pytest.mark.anyio


def request(agent: str = "node", **headers: str) -> Request:
    named = {"user-agent": agent} | {name.replace("_", "-"): value for name, value in headers.items()}
    meta = {"io.modelcontextprotocol/clientInfo": {"name": "tests"}}
    return Request(era=Era.MODERN, endpoint="/mcp", headers=named, meta=meta, client="192.0.2.7")


async def opened(parts: Parts, who: RequestContext, asked: Request) -> Resolved:
    return await arrived(parts.resolver.resume_or_open(asked, who))


async def told(parts: Parts) -> list[dict[str, Any]]:
    await parts.returns.tell()
    await parts.audit.flush()
    return [{"reason": e.reason} for e in await parts.backend.audit.recent() if e.event == "warned"]


@requirement("cli.told")
async def test_a_client_that_never_comes_back_is_told_of_once_with_the_line_that_mends_it() -> None:
    parts = Parts()
    for _ in range(TOLD_AFTER):
        assert (await opened(parts, NOBODY, request())).opened
    assert await told(parts) == [] and parts.returns.unreturning() == [], "it still may come back"
    parts.clock.pass_time(GRACE_S)
    (line,) = await told(parts)
    assert "tests (node)" in line["reason"] and "MCP-Gateway-Session-Key" in line["reason"]
    await opened(parts, NOBODY, request())
    assert len(await told(parts)) == 1
    (client,) = parts.returns.unreturning()
    assert (client.client, client.agent, client.principal, client.sessions) == ("tests", "node", "anonymous", 6)
    assert "requestInit" in client.line and "RANDOM" in client.line


@requirement("cli.told")
async def test_one_return_is_enough_not_to_be_told_of() -> None:
    parts = Parts()
    for _ in range(TOLD_AFTER):
        resolved = await opened(parts, NOBODY, request())
    token = parts.carriers.token(resolved.live.session)
    parts.clock.pass_time(GRACE_S)
    assert await arrived(parts.resolver.resume(request(mcp_gateway_session=token), NOBODY)) is not None
    assert await told(parts) == [] and parts.returns.unreturning() == []


@requirement("cli.told")
async def test_two_replicas_tell_once() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    replicas = [Parts(backend=backend, clock=clock) for _ in range(2)]
    for parts in replicas:
        for _ in range(TOLD_AFTER):
            await opened(parts, NOBODY, request())
    clock.pass_time(GRACE_S)
    for parts in replicas:
        lines = await told(parts)
    assert len(lines) == 1


@requirement("cli.idle")
async def test_a_session_waits_for_its_client_until_a_request_comes_for_it() -> None:
    parts = Parts()
    for who, asked in ((NOBODY, request()), (FOR_ALICE, request()), (FOR_ALICE, request(mcp_gateway_session_key="k"))):
        live = (await opened(parts, who, asked)).live
        assert live.is_unreturned
        again = asked if who is FOR_ALICE else request(mcp_gateway_session=parts.carriers.token(live.session))
        assert (await opened(parts, who, again)).live is live and not live.is_unreturned


@requirement("cli.isolated", "cli.default-learnt")
async def test_a_client_that_brought_a_token_back_has_no_default_session_on_any_replica() -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    here, there = (Parts(backend=backend, clock=clock) for _ in range(2))
    first = (await opened(here, FOR_ALICE, request())).live
    assert (await opened(here, FOR_ALICE, request())).live is first, "nothing is known but the table"
    token = here.carriers.token(first.session)
    assert (await opened(here, FOR_ALICE, request(mcp_gateway_session=token))).live is first
    for parts in (here, there):
        one, two = [(await opened(parts, FOR_ALICE, request())) for _ in range(2)]
        assert one.opened and two.opened and len({first.session.id, one.live.session.id, two.live.session.id}) == 3
    other = request(agent="curl/8.5.0")
    assert not (await opened(here, FOR_ALICE, other)).opened, "another implementation of that name brings nothing back"


@requirement("cli.told")
def test_what_replicas_know_of_a_client_is_put_together() -> None:
    def client(name: str, sessions: int, at: float) -> UnreturningClient:
        return UnreturningClient(
            client=name, agent="node", principal="anonymous", sessions=sessions, since=at, last=at + 1, line="line"
        )

    assert together([client("a", 5, 10.0), client("b", 7, 1.0), client("a", 6, 5.0)]) == [
        replace(client("a", 11, 5.0), last=11.0),
        client("b", 7, 1.0),
    ]
