"""Backends against a dict: whatever is done in whatever order, by several at once, they agree."""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from session_store import Backend, InvalidState, MemoryBackend, Session, SessionGone
from session_store.redis import RedisBackend
from session_store.sqlite import SqliteBackend
from session_store.testing import ALICE, BOB, FakeClock, a_session
from tests.requirements import requirement
from tests.support.redis_server import RunningRedis

Result = TypeVar("Result")
KEYS = st.sampled_from(["a", "b", "\u00fc"])
VALUES = st.one_of(st.integers(-3, 3), st.text(max_size=3), st.none(), st.lists(st.booleans(), max_size=2)).map(
    lambda value: json.dumps(value, separators=(",", ":")).encode()
)
GONE = "gone"


class Model(RuleBasedStateMachine):
    """Two clients of one store (the same one twice, where there is but one), and a dict. Times to live are hours: Redis
    also counts them by its own clock, by which nothing may expire during a test."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.folder = tempfile.TemporaryDirectory()
        self.clients = self.open()
        for client in set(self.clients):
            self.do(client.open())
        self.live: dict[str, tuple[Session, dict[str, bytes]]] = {}
        self.expired: set[str] = set()
        self.turn = 0

    def open(self) -> list[Backend]:
        raise NotImplementedError

    def do(self, what: Awaitable[Result]) -> Result:
        async def waiting() -> Result:
            return await what

        return self.loop.run_until_complete(waiting())

    @property
    def client(self) -> Backend:
        self.turn += 1
        return self.clients[self.turn % len(self.clients)]

    def forget_expired(self) -> None:
        for session_id, (session, _) in list(self.live.items()):
            if session.is_expired(self.clock()):
                del self.live[session_id]
                self.expired.add(session_id)

    def outcome(self, what: Awaitable[Any]) -> Any:
        try:
            return self.do(what)
        except SessionGone:
            return GONE
        except InvalidState:
            return InvalidState

    def put(self, session_id: str, session: Session) -> None:
        self.live[session_id] = (session, self.live[session_id][1])

    # -- rules

    @rule(target=sessions, ttl=st.sampled_from([10_000.0, 100_000.0]), confirmed=st.booleans())
    def create(self, ttl: float, confirmed: bool) -> str:
        session = a_session(self.clock, idle_ttl_s=ttl, max_age_s=1e6, unconfirmed_ttl_s=5_000.0, confirmed=confirmed)
        assert self.do(self.client.sessions.create(session)) == session
        self.live[session.id] = (session, {})
        return session.id

    @rule(session_id=sessions, mine=st.booleans())
    def resume(self, session_id: str, mine: bool) -> None:
        found = self.do(self.client.sessions.resume(session_id, ALICE if mine else BOB))
        if not mine or session_id not in self.live:
            assert found is None
            return
        self.put(session_id, self.live[session_id][0].used(self.clock(), confirm=True))
        assert found is not None and replace(found, version=0) == self.live[session_id][0]

    @rule(session_id=sessions)
    def touch(self, session_id: str) -> None:
        assert self.do(self.client.sessions.touch(session_id)) == (session_id in self.live)
        if session_id in self.live:
            self.put(session_id, self.live[session_id][0].used(self.clock()))

    @rule(session_id=consumes(sessions))
    def end(self, session_id: str) -> None:
        both = [client.sessions.end(session_id) for client in self.clients for _ in range(2)]

        async def at_once() -> list[bool]:
            return await asyncio.gather(*both)

        assert sum(self.do(at_once())) == (session_id in self.live)
        self.live.pop(session_id, None)

    @rule(seconds=st.sampled_from([1_000.0, 4_000.0, 5_000.0, 10_000.0, 60_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.pass_time(seconds)
        self.forget_expired()

    @rule()
    def sweep(self) -> None:
        async def at_once() -> list[Any]:
            return await asyncio.gather(*(client.sessions.sweep() for client in self.clients for _ in range(2)))

        gone = [g.session_id for part in self.do(at_once()) for g in part]
        assert sorted(gone) == sorted(self.expired), "each once, to one of those who sweep"
        self.expired.clear()

    @rule(session_id=sessions, key=KEYS, value=VALUES)
    def set(self, session_id: str, key: str, value: bytes) -> None:
        outcome = self.outcome(self.client.state.set(session_id, key, value))
        if session_id not in self.live:
            assert outcome == GONE
        else:
            self.live[session_id][1][key] = value

    @rule(session_id=sessions, key=KEYS)
    def delete(self, session_id: str, key: str) -> None:
        outcome = self.outcome(self.client.state.delete(session_id, key))
        expected: Any = GONE
        if session_id in self.live:
            expected = self.live[session_id][1].pop(key, None) is not None
        assert outcome == expected

    @rule(session_id=sessions, key=KEYS, count=st.integers(1, 8))
    def increment(self, session_id: str, key: str, count: int) -> None:
        async def at_once() -> list[Any]:
            calls = [c.state.increment(session_id, key, 1) for c in self.clients for _ in range(count)]
            return await asyncio.gather(*calls, return_exceptions=True)

        outcomes = self.do(at_once())
        if session_id not in self.live:
            assert {type(o) for o in outcomes} == {SessionGone}
            return
        state = self.live[session_id][1]
        try:
            start = int(state.get(key, b"0"))
        except ValueError:
            assert {type(o) for o in outcomes} == {InvalidState}
            return
        assert sorted(outcomes) == list(range(start + 1, start + 1 + len(outcomes))), "no increment is lost"
        state[key] = b"%d" % (start + len(outcomes))

    @rule(session_id=sessions, key=KEYS, expected=st.one_of(st.none(), VALUES), values=st.lists(VALUES, min_size=1))
    def compare_and_set(self, session_id: str, key: str, expected: bytes | None, values: list[bytes]) -> None:
        async def at_once() -> list[Any]:
            calls = [self.client.state.compare_and_set(session_id, key, expected, value) for value in values]
            return await asyncio.gather(*calls, return_exceptions=True)

        outcomes = self.do(at_once())
        if session_id not in self.live:
            assert {type(o) for o in outcomes} == {SessionGone}
            return
        state = self.live[session_id][1]
        if state.get(key) != expected:
            assert not any(outcomes)
            return
        assert any(outcomes)
        now = self.do(self.client.state.get(session_id, key))
        assert now in values
        state[key] = now

    @invariant()
    def agree(self) -> None:
        for session_id, (session, state) in self.live.items():
            client = self.client
            found = self.do(client.sessions.peek(session_id))
            assert found is not None and replace(found, version=0) == session
            assert self.do(client.state.keys(session_id)) == sorted(state)
            for key, value in state.items():
                assert self.do(client.state.get(session_id, key)) == value
        assert [s.id for s in self.do(self.client.sessions.page(limit=500))] == sorted(self.live)

    def teardown(self) -> None:
        for client in set(self.clients):
            self.do(client.close())
        self.loop.close()
        self.folder.cleanup()


class MemoryModel(Model):
    def open(self) -> list[Backend]:
        return [MemoryBackend(clock=self.clock)] * 2


class SqliteModel(Model):
    def open(self) -> list[Backend]:
        path = Path(self.folder.name, "sessions.db")
        # The second one is what the command line opens beside a running gateway.
        return [SqliteBackend(path, clock=self.clock), SqliteBackend(path, clock=self.clock, exclusive=False)]


class RedisModel(Model):
    server: RunningRedis

    def open(self) -> list[Backend]:
        self.server.client().flushall()
        return [RedisBackend(self.server.url, clock=self.clock) for _ in range(2)]


@pytest.fixture
def redis_model(redis_server: RunningRedis) -> Iterator[type[Model]]:
    RedisModel.server = redis_server
    yield RedisModel


def run(model: type[Model]) -> None:
    run_state_machine_as_test(
        model,
        settings=settings(
            max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@requirement("ctx.state", "life.ttl")
def test_memory_is_a_dict() -> None:
    run(MemoryModel)


@requirement("ctx.state", "life.ttl")
def test_sqlite_is_a_dict() -> None:
    run(SqliteModel)


@requirement("ctx.state", "life.ttl", "rep.redis")
def test_redis_is_a_dict(redis_model: type[Model]) -> None:
    run(redis_model)
