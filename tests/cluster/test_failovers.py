"""A failover of Redis that has forgotten the last claims: a copy that has not seen them is promoted."""

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from session_store.redis import keys
from tests.cluster.test_replicas import KEYS, LEASE_S, SERVERS, through
from tests.requirements import requirement
from tests.support.free_ports import free_port
from tests.support.gateway_process import UNLIMITED, RunningGateway, running_gateway
from tests.support.mcp_clients import Legacy, messages, restarted, tool_text
from tests.support.sentinels import Sentinels, running_sentinels
from tests.support.tcp_relay import running_relay
from tests.support.waiting import descendants, eventually

SESSIONS = 4


def session_id(client: Legacy) -> str:
    """The id in a client's token."""
    return client.session.rpartition(".")[0]


def claim_of(sentinels: Sentinels, client: Legacy) -> tuple[str, int]:
    """Owner and epoch of a session in the present master."""
    record: Any = sentinels.look(sentinels.master)
    owner, epoch = record.hmget(keys.of_session(session_id(client))[0], "owner", "epoch")
    return owner.decode(), int(epoch)


def processes(gateways: list[RunningGateway], client: Legacy) -> int:
    """How many processes a session has, on all gateways."""
    count = 0
    for process in (process for gateway in gateways for process in descendants(gateway.pid)):
        with contextlib.suppress(Exception):  # it may end meanwhile
            count += process.environ().get("MCP_SESSION_ID") == session_id(client)
    return count


def answered(client: Legacy) -> httpx.Response:
    """The first result of a tool: refusals are tried again."""
    answers: list[httpx.Response] = []

    def has_answered() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            answers.append(client.tool("pid"))
            return answers[-1].status_code == 200 and "result" in messages(answers[-1])[-1]
        return False

    assert eventually(has_answered), "no good answer"
    return answers[-1]


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    with running_sentinels() as running:
        yield running


@requirement("rep.failover", "rep.redis")
def test_a_failover_that_forgot_claims_leaves_one_owner_and_the_client_is_told(
    sentinels: Sentinels, http: httpx.Client
) -> None:
    inside, outside = free_port(), free_port()
    first = {"internal": f"127.0.0.1:{inside}", "advertise": f"127.0.0.1:{outside}"}
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as reached:
        reached.enter_context(running_relay(inside, outside))
        gateways = []
        for more in (first, {}, {}):
            options = {"store": sentinels.url, "policy": UNLIMITED, **more}
            gateways.append(stack.enter_context(running_gateway(SERVERS, options=options, env=KEYS, must_stop=False)))
        clients = [Legacy(gateways[0].at("probe"), http).open() for _ in range(SESSIONS)]
        claims: list[list[tuple[str, int]]] = []

        def note() -> list[tuple[str, int]]:
            """Who owns each session now."""
            claims.append([claim_of(sentinels, client) for client in clients])
            return claims[-1]

        def has_one_process_each() -> bool:
            return all(processes(gateways, client) == 1 for client in clients)

        pids = {tool_text(answered(client)) for client in clients}
        sentinels.in_step()
        before = note()
        sentinels.lag()
        reached.close()
        assert not pids & {tool_text(answered(through(gateways[1], "probe", client))) for client in clients}
        assert not {*note()} & {*before}, "all were claimed"
        reached.enter_context(running_relay(inside, outside))
        assert eventually(has_one_process_each, LEASE_S), "the earlier owner was told"
        sentinels.fail_over()
        assert note() == before, "the claims are forgotten"
        told = [restarted(answered(through(gateways[2], "probe", client))) for client in clients]
        assert told == [{"reason": "takeover"}] * SESSIONS
        assert eventually(has_one_process_each, LEASE_S + 2), "one owner"
        reached.close()  # the next claims: none of them may get an epoch that was given
        for client in clients:
            answered(through(gateways[2], "probe", client))
        note()
        for given in map(set, zip(*claims, strict=True)):
            assert len({epoch for _, epoch in given}) == len(given), "no epoch has two owners"
