"""Sessions that outlive processes (the gateway's, and for a while the store's), and how they end."""

import asyncio
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.sessions.cached_record import CACHED_FOR_S
from tests.requirements import requirement
from tests.support.concurrent_clients import AsyncModern, run_concurrently
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, SIGNED, RunningGateway, running_gateway, server
from tests.support.in_process_gateway import RING, InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, restarted, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import eventually, gone


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RunningRedis) -> str:
    if request.param == "redis":
        redis_server.client().flushall()
        return redis_server.url
    return f"sqlite:///{tmp_path / 'sessions.db'}"


def env_for(store: str) -> dict[str, str]:
    return SIGNED if store.startswith("redis") else {}


@requirement("life.survives-restart", "life.affinity", "proc.reset-told", "ctx.state")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_clients_go_on_after_a_restart(store: str, how: str, http: httpx.Client) -> None:
    """One of each era, neither of which initializes again: the modern one has nothing but its key."""
    servers = {"demo": server(DEMO), "probe": server(PROBE)}
    options = {"store": store, "api_keys": {name: sha256(name) for name in ("alice", "bob")}}
    with running_gateway(servers, options=options, env=env_for(store)) as gateway:
        modern = Modern(gateway.url, http, headers=bearer("bob"))
        modern.tool("demo__remember", {"key": "k", "value": "bob's"})
        client = Legacy(gateway.url, http, headers=bearer("alice")).open(meta={"orbit.workspace": "mine"})
        assert tool_text(client.tool("demo__remember", {"key": "k", "value": "kept"})) == "Remembered."
        first = [client.tool("demo__count") for _ in range(2)]
        assert [tool_text(answer) for answer in first] == ["1", "2"] and not any(map(restarted, first))
        assert client.call("logging/setLevel", {"level": "debug"}).status_code == 200
        whoami = json.loads(tool_text(client.tool("demo__whoami")))
        streamed = client.tool("demo__slow", {"steps": 2, "interval_s": 0}, meta={"progressToken": "p"})
        ids = [line.removeprefix("id: ") for line in streamed.text.splitlines() if line.startswith("id: ")]
        getattr(gateway, how)()
    with running_gateway(servers, options=options, env=env_for(store)) as gateway:
        client.url = modern.url = gateway.url
        if how == "stop":  # a gateway that is killed has not stored its last events
            with client.get(ids[0]) as stream:
                rest = stream.read().decode()
            assert [line for line in rest.splitlines() if line.startswith("data")] == [
                line for line in streamed.text.splitlines() if line.startswith("data: {")
            ]
        # On a shared store another gateway might have been there: it says what has become of the one before.
        reason = {"stop": "drain", "kill": "takeover"}[how] if store.startswith("redis") else "gateway_restart"
        recalled = modern.tool("demo__recall", {"key": "k"})
        assert (tool_text(recalled), restarted(recalled)) == ("bob's", {"reason": reason})
        after = client.tool("demo__count")
        assert (tool_text(after), restarted(after)) == ("1", {"reason": reason}), "lost, and told so"
        assert tool_text(client.tool("demo__recall", {"key": "k"})) == "kept"
        assert restarted(client.tool("demo__count")) is None, "told once"
        assert json.loads(tool_text(client.tool("demo__whoami"))) == whoami and whoami["workspace"] == "mine"
        untouched = client.tool("probe__pid")
        assert untouched.status_code == 200 and restarted(untouched) is None, "nothing of that server was lost"


@pytest.mark.alone  # a session lives for a second, and is used meanwhile
@requirement("life.events")
def test_what_happens_to_sessions_is_told_in_the_log_and_in_the_trail(store: str, http: httpx.Client, cli: Any) -> None:
    keys = {name: sha256(name) for name in ("alice", "bob")}
    options = {"store": store, "api_keys": keys, "session": {"idle_ttl_s": 1.0}}
    alice, bob = map(bearer, keys)
    with in_process_gateway({"demo": server(DEMO)}, options=options, ring=RING) as gateway:
        expiring = Legacy(gateway.url, http, headers=alice).open()
        ending = Legacy(gateway.url, http, headers=alice).open()
        ending.initialize()
        ending.delete()
        assert ending.tool("count").status_code == 404
        stolen = Legacy(gateway.url, http, headers=bob)
        stolen.session = expiring.session
        assert stolen.tool("count").status_code == 404
        stolen.session = "x" * 24 + "." + "y" * 43
        assert stolen.tool("count").status_code == 404
        assert eventually(lambda: "session expired" in gateway.stderr())
        logged = gateway.stderr()
    trail = [json.loads(line) for line in cli("events", "--json", store=store).stdout.splitlines()][::-1]
    told = [(e["event"], e["session"] == expiring.session[:8], e["reason"]) for e in trail]
    assert Counter(told) == Counter(
        [
            ("created", True, ""),
            ("created", False, ""),
            ("resumed", False, "initialized again"),
            ("ended", False, "the client ended it"),
            ("refused", False, "ended"),
            ("refused", True, "session of another principal"),
            ("refused", False, "invalid session token"),
            ("expired", True, ""),
        ]
    )
    assert all(len(e["session"]) <= 8 and len(e["correlation"]) in (0, 32) for e in trail)
    for kind, count in Counter(e["event"] for e in trail).items():
        what = "request refused" if kind == "refused" else f"session {kind}"
        assert logged.count(f'event="{what}"') == count
    assert re.search(f'event="session created".* session={expiring.session[:8]} ', logged), logged
    assert expiring.session not in logged and expiring.session.partition(".")[0] not in logged


@pytest.fixture
def own_redis() -> Iterator[RunningRedis]:
    with running_redis() as server:
        yield server


@pytest.mark.alone  # it bounds how long each call takes
@requirement("rep.store-down", "rep.redis")
@pytest.mark.parametrize("how", ["stopped", "silent"])
def test_five_seconds_without_redis_lose_nothing(own_redis: RunningRedis, how: str) -> None:
    options = {"store": own_redis.url}
    with running_gateway({"demo": server(DEMO)}, options=options, env=SIGNED) as gateway:
        outage = threading.Event()
        statuses: list[tuple[float, int, str | None]] = []

        def interrupt() -> None:
            outage.wait()
            time.sleep(1.0)
            own_redis.stop() if how == "stopped" else own_redis.freeze()
            time.sleep(5.0)
            own_redis.start() if how == "stopped" else own_redis.thaw()

        threading.Thread(target=interrupt, daemon=True).start()

        async def working(http: httpx.AsyncClient, n: int) -> tuple[int, str]:
            client = AsyncModern(http, workspace=f"w{n}")
            assert await client.tool(gateway.url, "remember", {"key": "k", "value": f"v{n}"}) == "Remembered."
            token, counted = client.token, 0
            outage.set()
            until = time.monotonic() + 9.0
            while time.monotonic() < until:
                await asyncio.sleep(0.05)  # ten clients at this pace leave the machine to the gateway
                sent = time.monotonic()
                answer = await client.send(gateway.url, "count", {})
                took = time.monotonic() - sent
                statuses.append((took, answer.status_code, answer.headers.get("retry-after")))
                if answer.status_code == 200:
                    counted += 1
                    assert tool_text(answer) == str(counted), "the same process, no call lost or doubled"
            assert await client.tool(gateway.url, "recall", {"key": "k"}) == f"v{n}"
            assert json.loads(await client.tool(gateway.url, "whoami"))["workspace"] == f"w{n}"
            return counted, token

        outcomes = run_concurrently(working, 10)
        assert len({token for _, token in outcomes}) == 10
        kinds = Counter(status for _, status, _ in statuses)
        assert kinds[200] > 0 and set(kinds) <= {200, 503}, f"while its lease is good the owner goes on: {kinds}"
        assert {retry for _, status, retry in statuses if status == 503} <= {"1"}
        assert max(took for took, _, _ in statuses) < 3.5, "nobody hangs"
        assert httpx.get(f"{gateway.base}/readyz").status_code == 200
        assert gateway.stderr().count("Traceback") == 0, gateway.stderr()


@requirement("rep.store-down")
def test_a_gateway_starts_before_its_redis_and_becomes_ready_with_it(http: httpx.Client) -> None:
    with running_redis() as redis:
        redis.stop()
        with running_gateway({"demo": server(DEMO)}, options={"store": redis.url}, env=SIGNED) as gateway:
            assert http.get(f"{gateway.base}/readyz").status_code == 503
            answer = Modern(gateway.url, http).tool("count")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            redis.start()
            assert eventually(lambda: http.get(f"{gateway.base}/readyz").status_code == 200)
            assert tool_text(Modern(gateway.url, http).tool("count")) == "1"


# -- how sessions end, and that their processes end with them


@pytest.fixture(scope="module")
def short() -> Iterator[InProcessGateway]:
    """Sessions that go after 1.5 s without use, after 4 s anyhow, and unconfirmed ones after 0.6 s."""
    session = {"idle_ttl_s": 1.5, "max_age_s": 4.0, "unconfirmed_ttl_s": 0.6}
    servers = {"probe": server(PROBE), "demo": server(DEMO)}
    with in_process_gateway(servers, options={"session": session}) as gateway:
        yield gateway


def process(client: Legacy | Modern, **more: dict[str, str]) -> psutil.Process:
    return psutil.Process(int(tool_text(client.tool("pid", **more))))


@pytest.mark.alone  # it uses a session within its time
@requirement("life.ttl")
def test_idle_time_slides_and_its_end_takes_the_process(short: InProcessGateway, http: httpx.Client) -> None:
    client = Legacy(f"{short.base}/servers/probe/mcp", http).open()
    child = process(client)
    for _ in range(3):
        time.sleep(0.7)  # under the 1.5 s: use, not time, is what keeps it
        assert client.tool("pid").status_code == 200
    assert gone([child]), "idle for longer than its time, it goes by itself"
    assert client.tool("pid").status_code == 404


@pytest.mark.alone  # it uses a session within its time
@requirement("life.ttl")
def test_age_ends_a_session_that_is_never_idle(short: InProcessGateway, http: httpx.Client) -> None:
    begun = time.monotonic()
    client = Legacy(f"{short.base}/servers/probe/mcp", http).open()
    child = process(client)
    assert eventually(lambda: client.tool("pid").status_code == 404)
    assert time.monotonic() - begun > 3.9, "by its age, and not because it was idle"
    assert gone([child])


@requirement("life.end")
def test_delete_ends_a_session_at_once_and_twice_is_harmless(probe: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(probe.at("probe"), http).open()
    child = process(client)
    other = Legacy(probe.at("probe"), http).open()
    assert client.delete().status_code == 200
    assert client.tool("pid").status_code == 404
    assert client.delete().status_code == 404
    assert gone([child])
    assert other.tool("pid").status_code == 200


@pytest.mark.alone
@requirement("life.unconfirmed")
def test_an_anonymous_session_nobody_returns_to_goes_with_its_process(
    short: InProcessGateway, http: httpx.Client
) -> None:
    url = f"{short.base}/servers/probe/mcp"
    once = Modern(url, http)
    first = once.tool("pid")
    child = psutil.Process(int(tool_text(first)))
    returning = once.tool("pid")
    token = {"MCP-Gateway-Session": returning.headers["mcp-gateway-session"]}
    kept = process(once, headers=token)
    assert gone([child])
    stale = {"MCP-Gateway-Session": first.headers["mcp-gateway-session"]}
    assert once.tool("pid", headers=stale).status_code == 404
    assert kept.is_running(), "a client that came back confirmed its session"


@requirement("life.bounded")
def test_the_store_is_bounded_and_an_evicted_session_takes_its_process(http: httpx.Client) -> None:
    with in_process_gateway({"p": server(PROBE)}, options={"session": {"max_sessions": 2}}) as gateway:
        first, second = Legacy(gateway.url, http).open(), Legacy(gateway.url, http).open()
        child, evicted = process(first), process(second)
        # The store learns of uses once a second, for all sessions in no order, and of those that are so far apart.
        assert eventually(lambda: not any(live._was_used for live in gateway.gateway.parts.foundation.live))
        time.sleep(2 * CACHED_FOR_S)
        first.tool("pid")
        third = Legacy(gateway.url, http).open()
        assert second.tool("pid").status_code == 404, "the least recently used one made room"
        assert first.tool("pid").status_code == third.tool("pid").status_code == 200
        assert gone([evicted]) and child.is_running()
