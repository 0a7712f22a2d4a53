"""What a call enters, by counts, which are the same on a machine at rest and on a busy one."""

import collections
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gateway as package
from gateway.relay.fast_path import FastPaths
from gateway.sessions.cached_record import CACHED_FOR_S
from tests.e2e.test_connection_memory import ON
from tests.e2e.test_fast_path import raw_of
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.waiting import eventually

CALLS = 40
OWN = tuple(str(Path(package.__file__).parents[1] / name) for name in ("gateway", "session_store", "transports"))
RECORD = FastPaths._record.__code__
"""What runs last for a call, in the turn of the loop after that of its answer."""


class Counter:
    """Counts the functions, the bytecodes and the files of the project that one thread runs, while it `is_counting`.
    `calls` has the counts of each call on the fast path, up to the end of its record; `functions` and `files` are those
    since then."""

    def __init__(self) -> None:
        self.is_counting = False
        self.calls: list[tuple[int, int, int]] = []
        self._begin()

    def _begin(self) -> None:
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
        elif event == "return" and frame.f_code is RECORD:
            self.calls.append((self.functions, self._bytecodes, len(self.files)))
            self._begin()
        return self


@contextmanager
def counted() -> Iterator[Counter]:
    """Counts in the threads that start inside the block."""
    counter = Counter()
    threading.settrace(counter)
    try:
        yield counter
    finally:
        threading.settrace(sys.gettrace())


def no_record_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gateway.relay.fast_path", "gateway.sessions.cached_record"):
        monkeypatch.setattr(f"{module}.AGING_AFTER_S", 60.0)
    monkeypatch.setattr("gateway.sessions.cached_record.CACHED_FOR_S", 120.0)


MOST = {"at once": (52, 1_720, 28), "after a rest": (92, 2_550, 37)}
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
    options = {**ON, "log_calls_per_s": 0}
    with counted() as counter, in_process_gateway({"p": server(PROBE)}, options=options) as gateway:
        raw, _ = raw_of(gateway, era)
        counter.is_counting = True
        for _ in range(CALLS):
            if is_rested:
                time.sleep(2 * CACHED_FOR_S)
            assert raw.call("echo").status == 200
        assert eventually(lambda: len(counter.calls) >= CALLS), "each took the fast path"
        counter.is_counting = False
        raw.close()
    for number, limit in enumerate(MOST[comes]):
        found = sorted(call[number] for call in counter.calls)
        assert found[CALLS // 10] <= limit, found  # most have what else the loop has to do, on a busy machine


GENERAL = {"legacy": (330, 72), "modern": (350, 72)}
"""Functions of a call that takes no fast path, and the files that such calls enter."""


@pytest.mark.parametrize("era", GENERAL)
def test_a_call_of_the_general_way_enters_few_files(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastPaths, "of", lambda *_: None)
    no_record_ages(monkeypatch)
    with (
        counted() as counter,
        in_process_gateway({"p": server(PROBE)}, options={**ON, "log_calls_per_s": 0}) as gateway,
    ):
        raw, _ = raw_of(gateway, era)
        counter.is_counting = True
        for _ in range(CALLS):
            assert raw.call("echo").status == 200
        counter.is_counting = False
        raw.close()
    functions, files = GENERAL[era]
    entered = sorted(file for file, times in counter.files.items() if times >= CALLS // 2)  # and not now and then
    assert counter.functions / CALLS <= functions and len(entered) <= files, (counter.functions, len(entered), entered)
