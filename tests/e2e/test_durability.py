"""Sessions that outlive processes (the gateway's, and for a while the store's), and how they end."""

import asyncio
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.sessions.cached_record_validity import CACHED_FOR_S
from tests.requirements import requirement
from tests.support.concurrent_clients import AsyncModern, run_concurrently
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, SIGNED, RunningGateway, running_gateway, server
from tests.support.in_process_gateway import RING, InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, restarted, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import eventually, gone

OF_BRIEF = {"principals": ["api-key:brief"], "idle_ttl_s": 0.3}
AGE_S = 2.0


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RunningRedis) -> str:
    if request.param == "redis":
        redis_server.client().flushall()
        return redis_server.url
    return f"sqlite:///{tmp_path / 'sessions.db'}"


def env_for(store: str) -> dict[str, str]:
    return SIGNED if store.startswith("redis") else {}


@requirement("life.survives-restart", "life.affinity", "proc.reset-told", "ctx.state")
@pytest.mark.parametrize(
    ("store", "how"), [("sqlite", "kill"), ("redis", "stop"), ("redis", "kill")], indirect=["store"]
)
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


@requirement("life.events")
def test_what_happens_to_sessions_is_told_in_the_log_and_in_the_trail(store: str, http: httpx.Client, cli: Any) -> None:
    keys = {name: sha256(name) for name in ("alice", "bob", "brief")}
    options = {"store": store, "api_keys": keys, "policy": {"rules": [OF_BRIEF]}}
    alice, bob, brief = map(bearer, keys)
    with in_process_gateway({"demo": server(DEMO)}, options=options, ring=RING) as gateway:
        expiring = Modern(gateway.url, http, headers=brief).tool("count").headers["mcp-gateway-session"]
        going_on = Legacy(gateway.url, http, headers=alice).open()
        ending = Legacy(gateway.url, http, headers=alice).open()
        ending.initialize()
        ending.delete()
        assert ending.tool("count").status_code == 404
        stolen = Legacy(gateway.url, http, headers=bob)
        stolen.session = going_on.session
        assert stolen.tool("count").status_code == 404
        stolen.session = "x" * 24 + "." + "y" * 43
        assert stolen.tool("count").status_code == 404
        assert eventually(lambda: "session expired" in gateway.stderr())
        logged = gateway.stderr()
    trail = [json.loads(line) for line in cli("events", "--json", store=store).stdout.splitlines()][::-1]
    names = {expiring[:8]: "expiring", going_on.session[:8]: "going on", ending.session[:8]: "ending"}
    told = [(e["event"], names.get(e["session"], ""), f"{e['reason']} {e['why']}".strip()) for e in trail]
    assert Counter(told) == Counter(
        [
            ("created", "expiring", ""),
            ("created", "going on", ""),
            ("created", "ending", ""),
            ("resumed", "ending", "initialized again"),
            ("ended", "ending", "the client ended it"),
            ("refused", "ending", "unknown_session ended"),
            ("refused", "going on", "unknown_session session of another principal"),
            ("refused", "", "unknown_session invalid session token"),
            ("expired", "expiring", ""),
        ]
    )
    assert all(len(e["session"]) <= 8 and len(e["correlation"]) in (0, 32) for e in trail)
    for kind, count in Counter(e["event"] for e in trail).items():
        what = "request refused" if kind == "refused" else f"session {kind}"
        assert logged.count(f'event="{what}"') == count
    for token in (expiring, going_on.session, ending.session):
        assert re.search(f'event="session created".* session={token[:8]} ', logged), logged
        assert token not in logged and token.partition(".")[0] not in logged


@pytest.fixture
def own_redis() -> Iterator[RunningRedis]:
    with running_redis() as server:
        yield server


@requirement("rep.store-down", "rep.redis")
@pytest.mark.parametrize("how", ["stopped", "silent"])
def test_five_seconds_without_redis_lose_nothing(own_redis: RunningRedis, how: str) -> None:
    options = {"store": own_redis.url}
    with running_gateway({"demo": server(DEMO)}, options=options, env=SIGNED) as gateway:
        away, over = threading.Event(), threading.Event()
        begun: set[int] = set()
        statuses: list[tuple[int, str | None]] = []
        answered: set[int] = set()
        """Whose call began and ended during the outage."""

        def interrupt() -> bool:
            assert eventually(lambda: len(begun) == 10)
            own_redis.stop() if how == "stopped" else own_redis.freeze()
            away.set()
            time.sleep(5.0)  # what is asserted is said of that time
            answered.clear()
            nobody_hangs = eventually(lambda: len(answered) == 10)
            away.clear()
            own_redis.start() if how == "stopped" else own_redis.thaw()
            over.set()
            return nobody_hangs

        async def working(http: httpx.AsyncClient, n: int) -> tuple[int, str]:
            client = AsyncModern(http, workspace=f"w{n}")
            assert await client.tool(gateway.url, "remember", {"key": "k", "value": f"v{n}"}) == "Remembered."
            token, counted, status = client.token, 0, 0
            begun.add(n)
            while not over.is_set() or status != 200:
                await asyncio.sleep(0.05)  # ten clients at this pace leave the machine to the gateway
                sent_meanwhile = away.is_set()
                answer = await client.send(gateway.url, "count", {})
                status = answer.status_code
                statuses.append((status, answer.headers.get("retry-after")))
                if sent_meanwhile and away.is_set():
                    answered.add(n)
                if status == 200:
                    counted += 1
                    assert tool_text(answer) == str(counted), "the same process, no call lost or doubled"
            assert await client.tool(gateway.url, "recall", {"key": "k"}) == f"v{n}"
            assert json.loads(await client.tool(gateway.url, "whoami"))["workspace"] == f"w{n}"
            return counted, token

        with ThreadPoolExecutor() as pool:
            nobody_hangs = pool.submit(interrupt)
            outcomes = run_concurrently(working, 10)
        assert nobody_hangs.result(), "each is answered while Redis is away"
        assert len({token for _, token in outcomes}) == 10
        kinds = Counter(status for status, _ in statuses)
        assert kinds[200] > 0 and set(kinds) <= {200, 503}, f"while its lease is good the owner goes on: {kinds}"
        assert {retry for status, retry in statuses if status == 503} <= {"1"}
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
    """Sessions of `brief` end after a short time without use, and those of `aged` at an age."""
    options = {
        "api_keys": {name: sha256(name) for name in ("brief", "aged")},
        "policy": {"rules": [OF_BRIEF, {"principals": ["api-key:aged"], "max_age_s": AGE_S}]},
    }
    with in_process_gateway({"probe": server(PROBE)}, options=options) as gateway:
        yield gateway


def process(client: Legacy) -> psutil.Process:
    return psutil.Process(int(tool_text(client.tool("pid"))))


@requirement("life.ttl")
def test_the_end_of_its_idle_time_takes_the_process(short: InProcessGateway, http: httpx.Client) -> None:
    first = Modern(short.url, http, headers=bearer("brief")).tool("pid")
    assert gone([psutil.Process(int(tool_text(first)))]), "idle for longer than its time, it goes by itself"
    token = {"MCP-Gateway-Session": first.headers["mcp-gateway-session"]}
    assert Modern(short.url, http, headers=bearer("brief") | token).tool("pid").status_code == 404


@requirement("life.ttl")
def test_age_ends_a_session_that_is_never_idle(short: InProcessGateway, http: httpx.Client) -> None:
    begun = time.monotonic()
    client = Legacy(short.url, http, headers=bearer("aged")).open()
    child = process(client)
    assert eventually(lambda: client.tool("pid").status_code == 404)
    assert time.monotonic() - begun > AGE_S - 0.1, "by its age: its idle time is an hour"
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


@requirement("life.unconfirmed")
def test_an_anonymous_session_nobody_returns_to_goes_with_its_process(http: httpx.Client) -> None:
    with in_process_gateway({"probe": server(PROBE)}, options={"session": {"unconfirmed_ttl_s": 0.6}}) as gateway:
        once = Modern(gateway.url, http)
        kept: list[psutil.Process] = []

        def returns() -> bool:
            token = {"MCP-Gateway-Session": once.tool("pid").headers["mcp-gateway-session"]}
            again = once.tool("pid", headers=token)
            kept[:] = [psutil.Process(int(tool_text(again)))] if again.status_code == 200 else []
            return kept != []

        assert eventually(returns), "a busy machine may take longer than the time of the session"
        first = once.tool("pid")
        assert gone([psutil.Process(int(tool_text(first)))])
        stale = {"MCP-Gateway-Session": first.headers["mcp-gateway-session"]}
        assert once.tool("pid", headers=stale).status_code == 404
        assert kept[0].is_running(), "a client that came back confirmed its session, which is older"


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
