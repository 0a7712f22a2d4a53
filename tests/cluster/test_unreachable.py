"""Replicas whose advertised address leads nowhere, or elsewhere: they say so and own nothing, and no session is served
by two processes in turn."""

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.cluster import own_reachability as reaching
from gateway.cluster.forwarded_request_envelope import Envelopes
from gateway.cluster.lease_validity import LEASE_S
from gateway.cluster.ownership import Cluster
from gateway.config.settings import Settings
from gateway.serving.app import create_app
from gateway.serving.gateway import Gateway
from session_store import KeyRing, MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.free_ports import free_port
from tests.support.gateway_process import DEMO, SIGNED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, modern_body, modern_headers, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.tcp_relay import running_relay
from tests.support.waiting import eventually
from transports.peer_channel import PeerRefused

pytestmark = requirement("rep.takeover")


@contextlib.contextmanager
def replica(redis: RunningRedis, *keys: str, **options: Any) -> Any:
    options, env = {"store": redis.url, **options}, {"MCP_GATEWAY_KEYS": ",".join(keys)} if keys else SIGNED
    with running_gateway({"demo": server(DEMO)}, options=options, env=env, must_stop=False) as gateway:
        yield gateway


def ready(gateway: RunningGateway) -> bool:
    return httpx.get(f"{gateway.base}/readyz").status_code == 200


@requirement("wall.ready")
def test_a_replica_that_is_not_found_at_its_address_is_not_ready_and_owns_nothing(http: httpx.Client) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with running_redis() as redis, replica(redis, advertise=nowhere, internal="127.0.0.1:0") as lost:
        assert not ready(lost)
        assert nowhere in lost.stderr() and "gateway.advertise" in lost.stderr()
        alone = Legacy(lost.url, http).initialize()
        assert alone.status_code == 503 and alone.headers["retry-after"], (alone.text, lost.stderr())
        with replica(redis) as found:
            assert ready(found)
            client, counts = Legacy(found.url, http).open(), []
            for n in range(6):
                client.url = (lost, found)[n % 2].url
                counts.append(tool_text(client.tool("count")))
            assert counts == ["1", "2", "3", "4", "5", "6"], "one process serves it"
            assert "taken over" not in lost.stderr() + found.stderr()


@requirement("wall.ready")
def test_a_replica_with_other_keys_than_the_others_is_not_ready_and_a_key_is_replaced_in_three_steps(
    http: httpx.Client,
) -> None:
    old, new = "o" * 40, "n" * 40
    with running_redis() as redis, contextlib.ExitStack() as replicas:
        one = replicas.enter_context(replica(redis, old))
        with replica(redis, new) as foreign:
            assert not ready(foreign) and ready(one)
            assert "has other keys" in foreign.stderr() and "MCP_GATEWAY_KEYS" in foreign.stderr()
            assert Legacy(foreign.url, http).initialize().status_code == 503
        for keys in ((old, new), (new, old), (new,)):
            with contextlib.ExitStack() as before:
                before.push(replicas.pop_all())
                two = replicas.enter_context(replica(redis, *keys))
                assert ready(two), two.stderr()
                clients = [Legacy(gateway.url, http).open() for gateway in (one, two)]
                for client, gateway in zip(clients, (two, one), strict=True):
                    client.url = gateway.url  # the owner is the other one
                    assert tool_text(client.tool("count")) == "1"
            one = two


def test_a_replica_that_is_found_no_longer_says_so_and_never_takes_back(http: httpx.Client) -> None:
    port = free_port()
    with running_redis() as redis, running_relay(port) as relay:
        behind = {"advertise": f"127.0.0.1:{relay.port}", "internal": f"127.0.0.1:{port}"}
        with replica(redis, **behind) as one, replica(redis) as other:
            assert ready(one)
            client = Legacy(one.url, http).open()
            assert tool_text(client.tool("count")) == "1"
            relay.close()  # what listened there is gone: who connects is refused
            client.url = other.url
            taken = client.tool("count")
            assert tool_text(taken) == "1", "a new process, at a replica that can be found"
            assert eventually(lambda: not ready(one)), one.stderr()
            assert eventually(lambda: f"cannot reach this one at 127.0.0.1:{relay.port}" in one.stderr())
            counts = []
            for n in range(6):
                client.url = (one, other)[n % 2].url
                counts.append(tool_text(client.tool("count")))
            assert counts == ["2", "3", "4", "5", "6", "7"]
            assert eventually(lambda: "is running but refuses connections" in other.stderr(), LEASE_S + 5)


@contextlib.asynccontextmanager
async def inside(redis: RunningRedis) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    options = {"store": redis.url}
    settings = Settings.model_validate({"mcpServers": {"demo": server(DEMO)}, "gateway": options})
    gateway = Gateway(settings, ring=KeyRing(["k" * 40]))
    app = create_app(settings, gateway=gateway)
    transport = httpx.ASGITransport(app=app)
    async with gateway.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield gateway, client


async def counted(client: httpx.AsyncClient, session: str) -> httpx.Response:
    body = modern_body("tools/call", {"name": "count", "arguments": {}})
    carried = {"MCP-Gateway-Session": session} if session else {}
    return await client.post("/mcp", json=body, headers={**modern_headers(body), **carried})


@requirement("rep.fence")
async def test_two_that_do_not_find_each_other_do_not_take_a_session_in_turn(
    redis_server: RunningRedis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with `advertise = "127.0.0.1:…"` on two machines: each finds itself there."""
    async with inside(redis_server) as (one, at_one), inside(redis_server) as (other, at_other):
        opened = await counted(at_one, "")
        session = opened.headers["mcp-gateway-session"]
        for gateway in (one, other):
            assert gateway.parts.http.membership is not None

            async def refused(_: Any) -> Any:
                raise PeerRefused

            monkeypatch.setattr(gateway.parts.http.membership.peers._channels, "open", refused)
        assert tool_text(await counted(at_other, session)) == "1", "it may have died: it is taken over at once"
        epochs = []
        for _ in range(4):
            back = await counted(at_one, session)
            assert back.status_code == 503 and back.headers["retry-after"]
            there = await counted(at_other, session)
            epochs.append(tool_text(there))
        assert epochs == ["2", "3", "4", "5"], "one process serves it"
        assert await one.is_ready() and await other.is_ready()
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1 and "do not find each other" in told[0] and "gateway.advertise" in told[0]


async def test_what_was_taken_is_contested_until_the_other_has_answered_or_its_lease_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("gateway.cluster.ownership.monotonic", clock)
    backend = MemoryBackend(clock=clock)
    lost: list[str] = []
    one, other = (Cluster(backend.directory, backend.sessions, backend.bus, taken_over=lost.append) for _ in range(2))
    session = await backend.sessions.create(a_session(clock, idle_ttl_s=1e9, max_age_s=1e9))
    for cluster in (one, other):
        cluster.advertise(f"{cluster.replica}:1")
        await cluster.beat()
    mine = await one.ensure_owner(session, session.principal, None)
    theirs = await other.claim_from_owner(mine, may_run=False)
    assert theirs is not None and theirs.owner == other.replica
    assert not one.doubted.is_set()
    assert await one.is_contested(theirs) and lost == [session.id] and one.doubted.is_set()
    one.owner_answered(session.id)
    assert not await one.is_contested(theirs), "it has been found since: when it refuses now, it has died"
    # One that slept through its lease was taken over for good reason.
    back = await one.claim_from_owner(theirs, may_run=False)
    assert back is not None
    clock.pass_time(LEASE_S + 1)
    await other.beat()
    assert not await other.is_contested(back) and not other.doubted.is_set()
    one.set_reachable(False)
    await one.beat()
    assert (await other.address_of(one.replica))[0] == "", "the others hear that nobody finds it"
    assert await other.random_peer() is None, "nothing is handed to it"


async def test_a_gateway_says_why_it_is_not_found(redis_server: RunningRedis) -> None:
    ring = KeyRing(["k" * 40])
    async with inside(redis_server) as (one, _), inside(redis_server) as (other, _):
        cluster, peer = one.parts.foundation.cluster, other.parts.foundation.cluster
        assert cluster is not None and peer is not None
        address, name = cluster.address, cluster.replica
        assert await reaching.why_not_found(address, name, Envelopes(ring)) == ""
        asked = reaching.why_not_found(peer.address, name, Envelopes(ring))
        assert await asked == "another gateway process answers at that address"
        foreign = Envelopes(KeyRing(["x" * 40]))
        assert "other keys" in await reaching.why_not_found(address, name, foreign)
        assert await reaching.why_not_found(f"127.0.0.1:{free_port()}", name, Envelopes(ring)) == "connection refused"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        assert "no answer" in await reaching.why_not_found(f"127.0.0.1:{port}", name, Envelopes(ring))


def test_an_internal_address_that_is_taken_is_named_at_the_start(redis_server: RunningRedis) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        place = f"127.0.0.1:{other.getsockname()[1]}"
        for setting in ("internal", "advertise"):
            named = f"gateway.{setting}: cannot listen on {place}: Address already in use: give a free port"
            with pytest.raises(AssertionError, match=named):
                with replica(redis_server, **{setting: place}):
                    pass
    with pytest.raises(AssertionError, match=r"gateway.advertise: cannot listen on a.invalid:9000: .*[Nn]ame"):
        with replica(redis_server, advertise="a.invalid:9000"):
            pass
