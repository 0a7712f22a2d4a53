"""`SessionMiddleware` in the apps of `examples/apps`: two workers on one Redis, of which one is killed."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidMessage

from tests.requirements import requirement
from tests.support.gateway_process import ROOT
from tests.support.redis_server import RunningRedis
from tests.support.uvicorn_workers import Workers, running_workers
from tests.support.waiting import eventually

EXAMPLES = ROOT / "examples/apps"
MANY = 30
"""Visitors at once."""


class Visitor:
    """One client with a cookie, and what it was answered."""

    def __init__(self) -> None:
        self.visits: list[int] = []
        self.workers: set[int] = set()
        self.failed = 0
        self.cookie = ""

    def answered(self, answer: dict[str, int]) -> None:
        self.visits.append(answer["visits"])
        self.workers.add(answer["worker"])

    def check(self) -> None:
        """No visit is counted twice or forgotten. One that failed may have been counted: nobody can know."""
        assert self.visits == sorted(set(self.visits)), self.visits
        assert len(self.visits) <= self.visits[-1] <= len(self.visits) + self.failed, (self.visits, self.failed)


class Crowd:
    """Visitors that come at once. After `kill_after` answers one worker is killed."""

    def __init__(self, workers: Workers, kill_after: int = 0) -> None:
        self._workers = workers
        self._kill_after = kill_after
        self._answers = 0
        self.killed = 0

    def answered(self, visitor: Visitor, answer: dict[str, int]) -> None:
        visitor.answered(answer)
        self._answers += 1
        if self._answers == self._kill_after:
            self.killed = answer["worker"]
            os.kill(self.killed, signal.SIGKILL)

    async def over_http(self, visitors: list[Visitor], visits: int, path: str = "/visit") -> None:
        """All at once, each with a cookie jar. Each visit has a connection of its own, for any worker to take."""
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncHTTPTransport(verify=False, limits=limits) as connections:
            await asyncio.gather(*(self._over_http(connections, visitor, visits, path) for visitor in visitors))

    async def _over_http(self, connections: Any, visitor: Visitor, visits: int, path: str) -> None:
        http = httpx.AsyncClient(base_url=self._workers.base, transport=connections, timeout=30)
        while len(visitor.visits) < visits:
            try:
                answer = await http.get(path)
            except httpx.TransportError:
                visitor.failed += 1
                continue
            assert answer.status_code == 200, (answer.text, self._workers.log[-2_000:])
            self.answered(visitor, answer.json())
        visitor.cookie = http.cookies["mcp_session_id"]

    async def over_websockets(self, visitors: list[Visitor], visits: int) -> None:
        """All at once, each with five messages in a connection."""
        await asyncio.gather(*(self._over_websockets(visitor, visits) for visitor in visitors))

    async def _over_websockets(self, visitor: Visitor, visits: int) -> None:
        url = self._workers.base.replace("http", "ws", 1) + "/ws"
        while len(visitor.visits) < visits:
            headers = {"Cookie": visitor.cookie} if visitor.cookie else {}
            try:
                async with connect(url, additional_headers=headers, proxy=None, open_timeout=30) as websocket:
                    given = websocket.response.headers.get("Set-Cookie", "") if websocket.response else ""
                    assert bool(given) != bool(visitor.cookie), "a new session is given with the handshake, once"
                    visitor.cookie = visitor.cookie or given.partition(";")[0]
                    for _ in range(5):
                        await websocket.send("hello")
                        self.answered(visitor, json.loads(await websocket.recv()))
            except (ConnectionClosed, InvalidMessage, OSError):
                visitor.failed += 1


@pytest.fixture(scope="module")
def app(request: pytest.FixtureRequest, redis_server: RunningRedis) -> Iterator[Workers]:
    env = {"MCP_GATEWAY_STORE": redis_server.url, "MCP_GATEWAY_KEYS": "k" * 40}
    with running_workers(f"{request.param}_app:app", EXAMPLES, env, "--no-access-log") as workers:
        yield workers


@pytest.fixture
def served(app: Workers) -> Workers:
    """Both workers, also after a test that has killed one."""

    def both_answer() -> bool:
        return len({httpx.get(f"{app.base}/visit").json()["worker"] for _ in range(10)}) == 2

    assert eventually(both_answer)
    return app


def by(*frameworks: str) -> pytest.MarkDecorator:
    """The test is run with the examples of these frameworks."""
    return pytest.mark.parametrize("app", frameworks, indirect=True, scope="module")


def workers_of(visitors: list[Visitor]) -> set[int]:
    return set().union(*(visitor.workers for visitor in visitors))


@requirement("app.middleware", "app.examples", "app.survives-kill")
@by("starlette", "fastapi", "litestar", "django")
def test_no_session_is_lost_with_a_worker_that_is_killed(served: Workers) -> None:
    crowd, visitors = Crowd(served, kill_after=4 * MANY), [Visitor() for _ in range(MANY)]
    asyncio.run(crowd.over_http(visitors, 10))
    assert crowd.killed and crowd.killed not in served.pids
    for visitor in visitors:
        visitor.check()
    assert workers_of(visitors) > {crowd.killed} and len({visitor.cookie for visitor in visitors}) == MANY


@requirement("app.websocket", "app.examples", "app.survives-kill")
@by("starlette", "fastapi", "litestar")
def test_the_same_over_websockets(served: Workers) -> None:
    crowd, visitors = Crowd(served, kill_after=4 * MANY), [Visitor() for _ in range(MANY)]
    asyncio.run(crowd.over_websockets(visitors, 10))
    for visitor in visitors:
        visitor.check()
    assert len({visitor.cookie for visitor in visitors}) == MANY and crowd.killed


@requirement("app.examples")
@by("django")
def test_a_view_in_a_thread_has_its_session(served: Workers) -> None:
    visitors = [Visitor() for _ in range(3)]
    asyncio.run(Crowd(served).over_http(visitors, 5, "/visit-in-a-thread"))
    assert [visitor.visits for visitor in visitors] == [[1, 2, 3, 4, 5]] * 3
