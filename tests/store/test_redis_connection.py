"""The connection to Redis: who greets first, what a lost server means, and that nothing is sent twice."""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic, time
from typing import Any

import hiredis
import pytest

from session_store import StoreError, StoreUnavailable
from session_store.redis import RedisBackend, connection
from session_store.redis.connection import encoded
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.redis_server import RunningRedis, running_redis

pytestmark = requirement("rep.redis")


@pytest.fixture
async def backend(redis_server: RunningRedis) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(redis_server.url)
    yield backend
    await backend.close()


async def test_commands_of_one_turn_share_one_connection_and_keep_their_order(backend: RedisBackend) -> None:
    run = backend.commands.run
    await run("DEL", "order")
    lengths = await asyncio.gather(*(run("RPUSH", "order", n) for n in range(500)))
    assert lengths == list(range(1, 501))
    names = [line for line in (await run("CLIENT", "LIST")).splitlines() if b"name=mcp-session-gateway" in line]
    assert len(names) == 1
    await run("DEL", "order")


async def test_a_hundred_at_once_on_a_new_connection_all_reach_the_chosen_database(redis_server: RunningRedis) -> None:
    backend = RedisBackend(redis_server.url.replace("/0", "/5"))
    await asyncio.gather(*(backend.commands.run("SET", f"db5:{n}", n, "EX", 60) for n in range(100)))
    client = redis_server.client()
    assert not list(client.scan_iter("db5:*")), "none before the database was chosen"
    await backend.close()


async def test_a_password_is_given_first_and_a_wrong_one_is_told(
    backend: RedisBackend, redis_server: RunningRedis
) -> None:
    await backend.commands.run("ACL", "SETUSER", "gateway", "on", ">right", "~*", "&*", "+@all")
    right = RedisBackend(redis_server.url.replace("//", "//gateway:right@"))
    await right.open()
    assert await asyncio.gather(*(right.commands.run("ACL", "WHOAMI") for _ in range(20))) == [b"gateway"] * 20
    await right.close()
    wrong = RedisBackend(redis_server.url.replace("//", "//gateway:wrong-password@"))
    with pytest.raises(StoreError, match="refused") as caught:
        await wrong.open()
    assert "wrong-password" not in str(caught.value)
    await wrong.close()


@requirement("ctx.isolated")
async def test_no_reply_goes_to_another_command_when_a_connection_is_lost_between_two(backend: RedisBackend) -> None:
    """The next command was about to be sent, or a reply was still to be read."""
    own: Any = backend.commands
    await own.run("PING")
    lost = own._connection._wire
    own._connection.broken(lost, "lost")
    late = own._connection.send(encoded("ECHO", "late"))
    assert await own.run("ECHO", "first") == b"first"
    with pytest.raises(StoreUnavailable, match="lost") as unsent:
        await late
    assert not unsent.value.may_have_taken_effect
    replies = asyncio.gather(*(own.run("ECHO", each) for each in ("second", "third")))
    await asyncio.sleep(0)
    lost.data_received(b"+another's\r\n")
    assert await replies == [b"second", b"third"]


@requirement("rep.failover")
async def test_a_lost_connection_is_replaced_at_once_and_told_before_its_first_reply(
    backend: RedisBackend, redis_server: RunningRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, again = list[str](), asyncio.Event()

    def connected() -> None:
        events.append("connected")
        if events.count("connected") == 2:
            again.set()

    async def ping() -> None:
        await backend.commands.run("PING")
        events.append("reply")

    backend.directory.when_connected(connected)
    await asyncio.gather(ping(), ping())
    assert events == ["connected", "reply", "reply"]
    monkeypatch.setattr(connection, "_LASTING_S", 0.0)
    redis_server.client().client_kill_filter(_type="normal", skipme=True)
    async with asyncio.timeout(20):
        await again.wait()  # without a command
    await ping()
    assert events[3:] == ["connected", "reply"]


@pytest.mark.parametrize(("instead", "of", "why"), [("/99", "/0", "out of range"), ("//no:pass@", "//", "WRONGPASS")])
async def test_no_command_is_sent_and_nobody_told_before_the_greeting_is_accepted(
    redis_server: RunningRedis, instead: str, of: str, why: str
) -> None:
    """It would run on another database, or as another user."""
    backend, told = RedisBackend(redis_server.url.replace(of, instead)), list[str]()
    backend.directory.when_connected(lambda: told.append("connected"))
    own: Any = backend.commands
    opening = asyncio.ensure_future(own._connection.open())
    while not (own._connection.is_open or opening.done()):  # noqa: ASYNC110  # nothing tells of it
        await asyncio.sleep(0)
    early = asyncio.ensure_future(own.run("SET", "early", "1"))
    with pytest.raises(StoreUnavailable, match=why):
        await opening
    with pytest.raises(StoreUnavailable, match=why):
        await early
    assert not redis_server.client().exists("early") and not told
    await backend.close()


async def test_a_store_that_is_closed_while_it_connects_stays_closed(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = backend.commands
    made, lost, ends = connection._Wire.connection_made, connection._Wire.connection_lost, list[connection._Wire]()

    def closed_before(wire: connection._Wire, transport: asyncio.BaseTransport) -> None:
        own._connection.close()
        made(wire, transport)

    monkeypatch.setattr(connection._Wire, "connection_made", closed_before)
    monkeypatch.setattr(connection._Wire, "connection_lost", lambda wire, _: ends.append(wire))
    with pytest.raises(asyncio.CancelledError):
        await own._connection.open()
    async with asyncio.timeout(20):
        while not ends:  # noqa: ASYNC110  # the loop tells of it
            await asyncio.sleep(0)
    lost(ends[0], None)  # later than asyncio tells of TCP, as uvloop and TLS do
    assert own._connection._connecting._running is None


@requirement("rep.store-down")
async def test_a_server_that_loads_its_data_is_away_and_no_copy_yet() -> None:
    """It takes all of a greeting but a `PING`. What a replica trusts during an outage holds meanwhile."""
    told, loads = list[str](), True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        while data := await reader.read(1 << 16):
            commands.feed(data)
            while (command := commands.gets()) is not False:
                is_refused = loads and command[0] in (b"PING", b"ECHO")
                writer.write(b"-LOADING Redis is loading the dataset in memory\r\n" if is_refused else b"+OK\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        backend = RedisBackend(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/1")
        backend.directory.when_connected(lambda: told.append("connected"))
        with pytest.raises(StoreUnavailable, match="LOADING") as loading:
            await backend.commands.run("ECHO", "a")
        assert not told and not loading.value.may_have_taken_effect
        loads = False
        assert await backend.commands.run("ECHO", "a") == b"OK" and told == ["connected"]
        await backend.close()


async def test_a_script_redis_has_forgotten_is_given_to_it_again(backend: RedisBackend) -> None:
    session = await backend.sessions.create(a_session(FakeClock(), created_at=9e9, used_at=9e9))
    await backend.commands.run("SCRIPT", "FLUSH")
    assert await asyncio.gather(*(backend.sessions.touch(session.id) for _ in range(10))) == [True] * 10
    await backend.sessions.end(session.id)


async def test_a_refused_command_fails_alone(backend: RedisBackend) -> None:
    run = backend.commands.run
    results = await asyncio.gather(run("PING"), run("NO-SUCH-COMMAND"), run("PING"), return_exceptions=True)
    assert results[0] == results[2] == b"PONG" and isinstance(results[1], StoreUnavailable)


async def test_a_failure_says_whether_the_command_may_have_taken_effect(
    backend: RedisBackend, redis_server: RunningRedis
) -> None:
    own: Any = backend.commands
    session = await backend.sessions.create(a_session(FakeClock(time())))
    sent = own._connection.send(encoded("PING"))
    await asyncio.sleep(0)  # it is written
    unsent = own._connection.send(encoded("PING"))
    own._connection.broken(own._connection._wire, "lost")
    failures: list[Any] = [*await asyncio.gather(sent, unsent, own.run("NO-SUCH-COMMAND"), return_exceptions=True)]
    client = redis_server.client()
    client.config_set("maxmemory", 1)
    try:
        for write in (own.run("SET", "k", "v"), backend.state.increment(session.id, "n", 1)):
            failures += await asyncio.gather(write, return_exceptions=True)
    finally:
        client.config_set("maxmemory", 0)
    assert [error.may_have_taken_effect for error in failures] == [True, False, True, False, False]
    await backend.sessions.end(session.id)


async def test_an_ended_session_is_not_said_to_be_unchanged(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_off(*_: object) -> None:
        raise StoreUnavailable("not sent", may_have_taken_effect=False)

    session = await backend.sessions.create(a_session(FakeClock(time())))
    with monkeypatch.context() as patched, pytest.raises(StoreUnavailable) as half:
        patched.setattr(backend.sessions, "_unindex", cut_off)
        await backend.sessions.end(session.id)
    assert half.value.may_have_taken_effect and await backend.sessions.peek(session.id) is None


async def test_silence_fails_within_the_limit_and_what_was_on_its_way_is_not_sent_again() -> None:
    with running_redis() as server:
        backend = RedisBackend(server.url)
        run = backend.commands.run
        await run("SET", "n", 0)
        server.freeze()
        loop = asyncio.get_running_loop()
        started = loop.time()
        failed = await asyncio.gather(*(run("INCR", "n") for _ in range(5)), return_exceptions=True)
        assert {type(error) for error in failed} == {StoreUnavailable}
        assert all(error.may_have_taken_effect for error in failed if isinstance(error, StoreUnavailable))
        assert 0.9 < loop.time() - started < 2.0
        server.thaw()
        async with asyncio.timeout(60):
            while True:
                try:
                    value = int(await run("GET", "n"))
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
        assert value in (0, 5), "what Redis had received it did once, and nothing came twice"
        server.stop()
        with pytest.raises(StoreUnavailable):
            await run("GET", "n")  # on the old connection, whose end was not noticed yet
        with pytest.raises(StoreUnavailable) as refused:
            await run("INCR", "n")
        assert not refused.value.may_have_taken_effect
        server.start()
        assert int(await run("GET", "n")) == value, "and it is connected again by itself"
        await backend.close()


async def test_nothing_of_an_expired_session_stays_in_redis_even_if_nobody_sweeps(redis_server: RunningRedis) -> None:
    client = redis_server.client()
    client.flushall()
    backend = RedisBackend(redis_server.url)
    session = await backend.sessions.create(a_session(FakeClock(time()), idle_ttl_s=2.0), alias="alias")
    await backend.state.set(session.id, "k", b"1")
    await backend.events.append(session.id, "one", b"frame")
    deadline = monotonic() + 10
    while [name for name in client.keys("*") if session.id.encode() in name]:
        assert monotonic() < deadline, client.keys("*")
        await asyncio.sleep(0.05)
    assert await backend.sessions.resume_alias("alias") is None
    assert [g.session_id for g in await backend.sessions.sweep()] == [session.id], "it is told nevertheless"
    await backend.close()


async def test_a_subscriber_that_fails_takes_no_message_from_the_others(
    backend: RedisBackend, caplog: pytest.LogCaptureFixture
) -> None:
    received: asyncio.Queue[bytes | None] = asyncio.Queue()

    def failing(data: bytes | None) -> None:
        raise ValueError("a fault of the subscriber")

    async with backend.bus.subscribed("topic", failing), backend.bus.subscribed("topic", received.put_nowait):
        for data in (b"one", b"two"):
            await backend.bus.publish("topic", data)
            async with asyncio.timeout(60):
                assert await received.get() == data
    assert "a listener of the message bus failed" in caplog.text
