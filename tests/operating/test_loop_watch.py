"""What blocks the event loop is measured, and named in the log; without watches it drops connections and serves on."""

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.observability import event_loop_watch
from gateway.observability.event_loop_watch import BEAT_S, LoopWatch
from gateway.observability.metrics import PAUSES_S, Histogram, Metrics
from gateway.serving.uvicorn_server import make_loop
from tests.requirements import requirement

# The timeout of other tests takes the process's alarm clock.
pytestmark = pytest.mark.timeout(60, method="thread")

STALL_S = 0.2


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(BEAT_S / 2)


def longer_than(durations: Histogram, seconds: float) -> int:
    """How many took longer than that bound of a bucket."""
    return sum(durations.counts[PAUSES_S.index(seconds) + 1 :])


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == event_loop_watch.__name__]


def sleep_in_the_loop() -> None:
    time.sleep(0.4)


def compute_in_the_loop() -> None:
    until = time.thread_time() + 0.4
    while time.thread_time() < until:
        json.dumps([*range(1_000)])


async def blocked_by(what: Callable[[], None], caplog: pytest.LogCaptureFixture) -> tuple[Metrics, str]:
    """The metrics and the line of one stall."""
    metrics = Metrics()
    with LoopWatch(metrics, STALL_S).running():
        await asyncio.sleep(2 * BEAT_S)
        asyncio.get_running_loop().call_soon(what)
        await until(lambda: len(lines(caplog)) == 1)
    return metrics, lines(caplog)[0]


@requirement("ops.stalls")
@pytest.mark.parametrize("what", [sleep_in_the_loop, compute_in_the_loop])
async def test_a_stall_is_measured_and_named(
    what: Callable[[], None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop_watch, "HANGS_S", 600.0)  # however long it takes, it is told of at its end
    metrics, line = await blocked_by(what, caplog)
    assert longer_than(metrics.stalls, 0.25) >= 1 and metrics.stalls.total >= 0.3
    assert f"{__name__}:" in line and what.__name__ in line, line
    cpu_s = float(line.partition("s (")[2].partition(" ")[0])
    assert cpu_s > 0.25 if what is compute_in_the_loop else cpu_s < 0.25, line


@requirement("ops.stalls")
async def test_a_stall_that_goes_on_is_logged_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_loop_watch, "HANGS_S", 0.4)
    goes_on = threading.Event()

    def hang() -> None:
        goes_on.wait(30)

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            goes_on.set()  # the loop goes on because the line was there

    logging.getLogger(event_loop_watch.__name__).addHandler(seen := Seen())
    try:
        began = time.monotonic()
        _, line = await blocked_by(hang, caplog)
    finally:
        logging.getLogger(event_loop_watch.__name__).removeHandler(seen)
    assert "still is" in line and "hang" in line and time.monotonic() - began < 30


@requirement("ops.stalls")
async def test_the_pauses_of_the_collector_are_measured() -> None:
    metrics = Metrics()
    with LoopWatch(metrics, STALL_S).running():
        gc.collect()
        gc.collect(0)
    gc.collect()
    assert [sum(pauses.counts) for pauses in metrics.collections] == [1, 0, 1]
    assert metrics.collections[2].total > 0


@requirement("ops.stalls")
async def test_a_loop_that_is_on_time_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    with LoopWatch(metrics, 5.0).running():
        await until(lambda: sum(metrics.stalls.counts) >= 3)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    counted = sum(metrics.stalls.counts)
    await asyncio.sleep(3 * BEAT_S)
    assert sum(metrics.stalls.counts) == counted, "it beats no more"
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0 and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert not lines(caplog)


@requirement("ops.stalls")
async def test_the_alarm_clock_of_an_app_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    alarms: list[int] = []

    def alarmed(number: int, _: object) -> None:
        alarms.append(number)

    before = signal.signal(signal.SIGALRM, alarmed)
    try:
        metrics, line = await blocked_by(sleep_in_the_loop, caplog)
        assert signal.getsignal(signal.SIGALRM) is alarmed and not alarms
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "a place that is not known" in line and longer_than(metrics.stalls, 0.25) >= 1


@requirement("ops.stalls")
async def test_many_stalls_make_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    with LoopWatch(metrics, 0.05).running():
        for _ in range(3):
            sleep_in_the_loop()
            await asyncio.sleep(2 * BEAT_S)
        await until(lambda: bool(lines(caplog)))
    assert len(lines(caplog)) == 1 and longer_than(metrics.stalls, 0.1) >= 3


# -- a user who has no watches of epoll left: new connections are dropped until there are some


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has epoll")


class Full:
    """An epoll of a user that has no watches left."""

    def register(self, fd: int, events: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """There is nothing."""


@on_linux
@requirement("box.hostile")
def test_a_loop_knows_whether_a_connection_can_be_watched() -> None:
    from gateway.serving.epoll_reserve import GuardedLoop

    class Served(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            if not loop.reserve(transport.get_extra_info("socket").fileno()):
                transport.abort()

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    async def asked(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"there\n")
        try:
            return await asyncio.wait_for(reader.read(6), 60)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def main() -> None:
        server = await loop.create_server(Served, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            assert await asked(port) == b"there\n"
            own, loop._own = loop._own, [Full()]
            assert len(own) == 1
            assert isinstance(own[0], select.epoll)
            with pytest.raises(OSError, match="max_user_watches"):
                await asked(port)
            with contextlib.closing(await _plain(port)) as stream:
                assert await asyncio.wait_for(loop.sock_recv(stream, 9), 60) == b""
            loop._own = own
            assert await asked(port) == b"there\n"

    loop: Any = GuardedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


async def _plain(port: int) -> Any:
    import socket

    stream = socket.create_connection(("127.0.0.1", port), 10)
    stream.setblocking(False)
    return stream


@on_linux
@requirement("box.hostile")
def test_the_loop_of_root_is_counted_for_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(os, "getresuid", lambda: (0, 0, 0))
    monkeypatch.setattr(os, "setresuid", lambda *ids: seen.append(ids))

    def fail() -> asyncio.AbstractEventLoop:
        seen.append("made")
        raise OSError(errno.EMFILE, "too many")

    with pytest.raises(OSError, match="too many"):
        make_loop(fail)
    assert seen == [(65_533, -1, -1), "made", (0, -1, -1)]
    monkeypatch.setattr(os, "getresuid", lambda: (1_000, 1_000, 1_000))
    with pytest.raises(OSError, match="too many"):
        make_loop(fail)
    assert seen[3:] == ["made"]
