"""What a call enters, by counts, which are the same on a machine at rest and on a busy one."""

import collections
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx
import pytest

import gateway as package
from gateway.cluster.requests_to_peers import PeerRequests
from gateway.observability import request_log
from gateway.relay.fast_path import FastPaths
from gateway.sessions.cached_record_validity import CACHED_FOR_S
from tests.e2e.test_connection_memory import ON, Raw
from tests.e2e.test_fast_path import raw_of
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, server
from tests.support.in_process_gateway import RING, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern
from tests.support.redis_server import RunningRedis
from tests.support.waiting import eventually

CALLS = 40
OWN = tuple(str(Path(package.__file__).parents[1] / name) for name in ("gateway", "session_store", "transports"))
RECORD = FastPaths._record.__code__
"""What runs last for a call, in the turn of the loop after that of its answer."""


class Counter:
    """Counts the functions, the bytecodes and the files of the project that one thread runs, while it `is_counting`.
    `calls` has the counts of each call on the fast path, up to the end of what runs last for it; `functions` and
    `files` are those since then."""

    def __init__(self, last: CodeType) -> None:
        self.is_counting = False
        self._last = last
        self.calls: list[tuple[int, int, int]] = []
        self.begin()

    def begin(self) -> None:
        self.functions = self._bytecodes = 0
        self.files = collections.Counter[str]()

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not self.is_counting or not frame.f_code.co_filename.startswith(OWN):
            return None
        if event == "call":
            self.functions += 1
            self.files[frame.f_code.co_filename] += 1
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self._bytecodes += 1
        elif event == "return" and frame.f_code is self._last:
            self.calls.append((self.functions, self._bytecodes, len(self.files)))
            self.begin()
        return self


@contextmanager
def counted(last: CodeType = RECORD) -> Iterator[Counter]:
    """Counts in the threads that start inside the block."""
    counter = Counter(last)
    threading.settrace(counter)
    try:
        yield counter
    finally:
        threading.settrace(sys.gettrace())


def no_record_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gateway.relay.fast_path", "gateway.sessions.cached_record_validity"):
        monkeypatch.setattr(f"{module}.AGING_AFTER_S", 60.0)
    monkeypatch.setattr("gateway.sessions.cached_record_validity.CACHED_FOR_S", 120.0)


MOST = {"at once": (45, 1_600, 28), "after a rest": (85, 2_520, 37)}
"""Functions, bytecodes and files. After a rest the record of the session is read from the store first."""


@pytest.mark.parametrize(
    "comes",
    [
        pytest.param("at once", marks=requirement("fast.counts")),
        pytest.param("after a rest", marks=requirement("fast.rest")),
    ],
)
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_repeated_call_enters_few_functions(era: str, comes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_rested = comes == "after a rest"
    if not is_rested:
        no_record_ages(monkeypatch)
    monkeypatch.setattr(request_log, "LINES_PER_S", 0)
    with counted() as counter, in_process_gateway({"p": server(PROBE)}, options=ON) as gateway:
        raw, _ = raw_of(gateway, era)
        counter.is_counting = True
        for _ in range(CALLS):
            if is_rested:
                time.sleep(2 * CACHED_FOR_S)
            assert raw.call("echo").status == 200
        # Under load, a record may be too old again once it is read: such a call takes the general way.
        assert eventually(lambda: len(counter.calls) >= CALLS // 2), "they took the fast path"
        counter.is_counting = False
        raw.close()
    assert_counts(counter, MOST[comes])


def assert_counts(counter: Counter, most: tuple[int, int, int]) -> None:
    for number, limit in enumerate(most):
        found = sorted(call[number] for call in counter.calls)
        assert found[0] <= limit, found  # the others have what else the loop has to do: on a busy machine, most do


GENERAL = {"legacy": (300, 63), "modern": (325, 67)}
"""Functions of a call that takes no fast path, and the files that such calls enter."""


@pytest.mark.parametrize("era", GENERAL)
def test_a_call_of_the_general_way_enters_few_files(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastPaths, "of", lambda *_: None)
    no_record_ages(monkeypatch)
    monkeypatch.setattr(request_log, "LINES_PER_S", 0)
    with counted() as counter, in_process_gateway({"p": server(PROBE)}, options=ON) as gateway:
        raw, _ = raw_of(gateway, era)
        functions, files = [], []
        for _ in range(10 * CALLS):  # on a busy machine, most calls have what else the loop has to do
            counter.begin()
            counter.is_counting = True
            assert raw.call("echo").status == 200
            counter.is_counting = False
            functions.append(counter.functions)
            files.append(sorted(counter.files))
            if min(functions) <= GENERAL[era][0] and min(map(len, files)) <= GENERAL[era][1]:
                break
        else:
            pytest.fail(f"{min(functions)} functions in {min(map(len, files))} files: {min(files, key=len)}")
        raw.close()


OPENED, ENDED = 710, 360
"""Functions from the first byte of `initialize`, and of `DELETE`, to the client's answer."""


def test_a_session_is_opened_and_ended_by_few_functions() -> None:
    opened, ended = [], []
    with counted() as counter, in_process_gateway({"p": server(PROBE)}) as gateway, httpx.Client() as http:
        for _ in range(CALLS):
            client = Legacy(gateway.url, http)
            counter.begin()
            counter.is_counting = True
            client.initialize()
            opened.append(counter.functions)
            counter.begin()
            assert http.delete(gateway.url, headers=client.request_headers()).is_success
            ended.append(counter.functions)
            counter.is_counting = False
            if min(opened) <= OPENED and min(ended) <= ENDED:
                break
        else:
            pytest.fail(f"{min(opened)} functions to open a session, {min(ended)} to end it")


MOST_FORWARDED = {"owner": (70, 2_320, 40), "front": (60, 2_020, 34)}


@requirement("fast.counts", "hot.forwarded")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_forwarded_call_enters_few_functions_at_both_replicas(
    era: str, redis_server: RunningRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_record_ages(monkeypatch)
    monkeypatch.setattr(request_log, "LINES_PER_S", 0)
    options = {**ON, "store": redis_server.url}
    with ExitStack() as stack:
        counters, gateways = [], []
        for last in (RECORD, PeerRequests.answered.__code__):
            counters.append(stack.enter_context(counted(last)))
            running = in_process_gateway({"p": server(PROBE)}, options=options, ring=RING)
            gateways.append(stack.enter_context(running))
        with httpx.Client() as http:
            if era == "modern":
                modern = Modern(gateways[0].url, http).tool("pid").headers["mcp-gateway-session"]
                raw = Raw(gateways[1], modern=modern)
            else:
                client = Legacy(gateways[0].url, http).open()
                assert client.tool("pid").status_code == 200
                raw = Raw(gateways[1], client)
        stack.callback(raw.close)
        raw.warm("echo")
        raw.warm("echo")
        for counter in counters:
            counter.is_counting = True
        for _ in range(CALLS):
            assert raw.call("echo").status == 200
        # Under load, one that comes late takes the general way.
        assert eventually(lambda: all(len(each.calls) >= CALLS // 2 for each in counters)), "they took it at both"
    for counter, most in zip(counters, MOST_FORWARDED.values(), strict=True):
        assert_counts(counter, most)
