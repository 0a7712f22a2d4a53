"""Everything that costs is counted, opening sessions included; nobody uses up what belongs to others."""

from typing import Any

import httpx
import pytest

from gateway.config.policy import PolicySettings
from gateway.config.settings import Settings
from gateway.policy.rate_limits import RateLimits
from session_store import ANONYMOUS, ClientFacts, Principal, Session, StoreFull
from session_store.memory import MemorySessionStore
from session_store.quotas import MemoryQuotas
from session_store.rates import MemoryRates
from session_store.session import origin_of
from session_store.testing import FakeClock
from tests.e2e.conftest import KEYS, bearer, sha256
from tests.requirements import requirement
from tests.support.raw import Legacy, Modern
from tests.support.running import DEMO, running_gateway, server
from transports.inbound.client_address import client_network
from transports.inbound_port import Refused

SERVERS = {"main": server(DEMO, shared=True)}
PROXIES = {"proxies": {"networks": ["127.0.0.0/8", "10.0.0.0/8"]}}


def come_from(address: str, **more: str) -> dict[str, str]:
    return {"X-Forwarded-For": address, **more}


def options(**policy: Any) -> dict[str, Any]:
    return {"anonymous": True, "auth": PROXIES, "policy": policy}


def refused(response: httpx.Response) -> bool:
    if response.status_code == 429:
        assert int(response.headers["retry-after"]) >= 1 and response.json()["error"]["code"] == -32018
    return response.status_code == 429


@requirement("wall.bystander", "pol.limits")
@pytest.mark.parametrize(
    "what", ["ping", "initialize", "discover", "list", "notification", "stream", "delete", "answer"]
)
def test_whatever_is_sent_counts(what: str, http: httpx.Client) -> None:
    with running_gateway(SERVERS, options=options(principal_rate={"per_s": 0.01, "burst": 12})) as gateway:
        legacy = Legacy(gateway.url, http, headers=come_from("192.0.2.1")).open()
        modern = Modern(gateway.url, http, headers=come_from("192.0.2.1"))

        def send() -> httpx.Response:
            match what:
                case "initialize":
                    return Legacy(gateway.url, http, headers=come_from("192.0.2.1")).initialize()
                case "discover":
                    return modern.send("server/discover")
                case "list":
                    return modern.send("tools/list")
                case "notification":
                    return legacy.notify("notifications/roots/list_changed")
                case "answer":
                    return legacy.post({"jsonrpc": "2.0", "id": 1, "result": {}})
                case "delete":
                    return http.delete(gateway.url, headers={**legacy.request_headers(), "Mcp-Session-Id": "x" * 30})
                case "stream":
                    return http.get(
                        gateway.url,
                        headers={**legacy.request_headers(), "Accept": "text/event-stream", "Mcp-Session-Id": "x"},
                    )
                case _:
                    return legacy.call("ping")

        answers = [refused(send()) for _ in range(13)]
        assert answers == sorted(answers) and answers.count(True) == 3, answers
        other = Legacy(gateway.url, http, headers=come_from("192.0.2.2")).open()
        assert other.call("ping").status_code == 200, "nobody else pays"


@requirement("wall.bystander", "pol.limits")
def test_opening_counts_by_address_and_by_principal(http: httpx.Client) -> None:
    slow = {"per_s": 0.01, "burst": 3}
    with running_gateway(SERVERS, options=options(opening_rate=slow)) as gateway:

        def opened(address: str) -> list[int]:
            came = come_from(address)
            answers = [
                Legacy(gateway.url, http, headers=came).initialize(),
                Modern(gateway.url, http, headers=came).tool("count"),
                Legacy(gateway.url, http, headers=came).initialize(),
                Modern(gateway.url, http, headers=came).tool("count"),
            ]
            return [answer.status_code for answer in answers]

        assert opened("192.0.2.1") == [200, 200, 200, 429]
        # What stands before the last address is the client's own invention.
        assert opened("192.0.2.7, 192.0.2.1") == [429] * 4
        assert opened("192.0.2.2, 10.1.2.3") == [200, 200, 200, 429]
        assert opened("2001:db8::1") == [200, 200, 200, 429] and opened("2001:db8::ffff:1") == [429] * 4
        assert Modern(gateway.url, http, headers=come_from("192.0.2.1")).send("tools/list").status_code == 200
    keys = {name: sha256(key) for name, key in KEYS.items()}
    with running_gateway(SERVERS, options={"api_keys": keys, "policy": {"opening_rate": slow}}) as gateway:
        alice, bob = (Legacy(gateway.url, http, headers=bearer(KEYS[name])) for name in ("alice", "bob"))
        statuses = []
        for _ in range(4):
            alice.session = ""  # else it takes up the one it has
            statuses.append(alice.initialize().status_code)
        assert statuses == [200, 200, 200, 429]
        assert bob.initialize().status_code == 200, "nobody else pays"


@requirement("wall.bystander", "pol.limits")
def test_anonymous_sessions_are_bounded_by_address(http: httpx.Client) -> None:
    with running_gateway(SERVERS, options=options(principal_sessions=2)) as gateway:

        def opened(address: str) -> list[int]:
            return [Legacy(gateway.url, http, headers=come_from(address)).initialize().status_code for _ in range(3)]

        assert opened("192.0.2.1") == [200, 200, 429] and opened("192.0.2.2") == [200, 200, 429]
        refused = Legacy(gateway.url, http, headers=come_from("192.0.2.1")).initialize()
        assert "The anonymous clients of your address have 2 sessions" in refused.text


def session(number: int, *, whose: Principal = ANONYMOUS, origin: str = "", confirmed: bool = False) -> Session:
    return Session(
        id=f"session-{number:04}",
        principal=whose,
        endpoint="/mcp",
        era="legacy",
        created_at=0.0,
        used_at=float(number),
        idle_ttl_s=1e6,
        max_age_s=1e6,
        unconfirmed_ttl_s=1e6,
        confirmed=confirmed or whose != ANONYMOUS,
        origin=origin_of(origin),
        client=ClientFacts(name="x"),
    )


@pytest.mark.anyio
@requirement("wall.memory", "wall.bystander")
async def test_a_flood_of_strangers_ends_no_session_of_a_named_principal() -> None:
    store = MemorySessionStore(clock=lambda: 0.0, max_sessions=10)
    alice, bob = Principal(issuer="api-key", subject="alice"), Principal(issuer="api-key", subject="bob")
    for number in range(4):
        await store.create(session(number, whose=alice))
    await store.create(session(10, origin="192.0.2.1", confirmed=True))
    for number in range(100, 200):
        await store.create(session(number, origin="192.0.2.9"))
    kept = {s.id for s in await store.page()}
    assert {f"session-{number:04}" for number in (0, 1, 2, 3, 10, 199)} <= kept and len(kept) == 10
    # A named principal takes the place of strangers first, and then of whoever has most.
    for number in range(300, 306):
        await store.create(session(number, whose=bob))
    assert len(await store.page()) == 10 and not any(s.principal.is_anonymous for s in await store.page())
    for number in range(400, 403):
        await store.create(session(number, whose=alice))
    whose = [s.principal.subject for s in await store.page()]
    assert (whose.count("alice"), whose.count("bob")) == (5, 5)
    with pytest.raises(StoreFull):
        await store.create(session(500, origin="192.0.2.9"))


@pytest.mark.anyio
@requirement("wall.bystander")
async def test_a_replica_asks_the_store_for_few_calls_and_lets_no_more_through() -> None:
    clock, asked = FakeClock(), 0

    class Counted(MemoryRates):
        async def take(self, key: str, per_s: float, burst: int, times: int = 1) -> float:
            nonlocal asked
            asked += 1
            return await super().take(key, per_s, burst, times)

    own = PolicySettings.model_validate({"session_rate": {"per_s": 100, "burst": 1_000}})
    rates = RateLimits(own, Counted(clock))
    alike = session(1, whose=Principal(issuer="api-key", subject="alice"))
    for _ in range(100):
        await rates.call(alike)
    assert asked <= 10
    through = 100
    with pytest.raises(Refused) as refusal:
        for _ in range(2_000):
            await rates.call(alike)
            through += 1
    assert refusal.value.status == 429 and 1_000 <= through <= 1_020  # the burst, and what is settled afterwards


@requirement("wall.bystander")
def test_limits_have_defaults_and_are_switched_off_by_0() -> None:
    policy = Settings().gateway.policy
    names = ("session_rate", "principal_rate", "opening_rate", "principal_sessions", "principal_processes")
    assert all(getattr(policy, name) is not None for name in names)
    off = PolicySettings.model_validate(dict.fromkeys(names, 0))
    assert all(getattr(off, name) is None for name in names)


@requirement("wall.bystander")
@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", "203.0.113.5", "192.0.2.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("127.0.0.1", "198.51.100.1, 203.0.113.5, 10.0.0.9", "203.0.113.5"),
        ("127.0.0.1", "203.0.113.5:8080", "203.0.113.5"),
        ("127.0.0.1", "[2001:db8::1]:443", "2001:db8::/64"),
        ("127.0.0.1", "203.0.113.5, unknown", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.5, " + "x" * 60_000, "127.0.0.1"),
        ("127.0.0.1", ", ".join(["10.0.0.1"] * 5_000), "10.0.0.1"),
        ("::ffff:192.0.2.1", "", "192.0.2.1"),
        ("", "", ""),
    ],
)
def test_an_address_counts_that_somebody_trusted_vouches_for(peer: str, forwarded: str, client: str) -> None:
    proxies = {"127.0.0.1", "10.0.0.1", "10.0.0.9"}
    assert client_network(peer, {"x-forwarded-for": forwarded}, proxies) == client


@pytest.mark.anyio
@requirement("wall.memory")
async def test_rates_and_quotas_of_those_who_are_gone_are_forgotten() -> None:
    clock = FakeClock()
    rates, quotas = MemoryRates(clock), MemoryQuotas(clock)
    for number in range(1_000):
        assert await rates.take(f"k{number}", 10.0, 5) == 0.0
        assert await quotas.hold(f"k{number}", "n", 1, for_s=10.0) == []
    clock.pass_time(60.0)
    await rates.take("last", 10.0, 5)
    await quotas.hold("last", "n", 1, for_s=10.0)
    assert len(rates._due) <= 1 and len(quotas._held) == 1
