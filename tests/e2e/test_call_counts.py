"""What a repeated call enters, by counts, which are the same on a machine at rest and on a busy one."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gateway as package
from tests.e2e.test_connection_memory import ON
from tests.e2e.test_fast_path import raw_of
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, server
from tests.support.in_process_gateway import in_process_gateway

CALLS = 40
OWN = tuple(str(Path(package.__file__).parents[1] / name) for name in ("gateway", "session_store", "transports"))


class Counter:
    """Counts the functions and the bytecodes of the project that one thread runs, while it `is_counting`."""

    def __init__(self) -> None:
        self.is_counting = False
        self.functions = self.bytecodes = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not self.is_counting or not frame.f_code.co_filename.startswith(OWN):
            return None
        if event == "call":
            self.functions += 1
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.bytecodes += 1
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


TO_THE_ANSWER = 40, 1_400
"""Functions and bytecodes until the answer is written."""
IN_ALL = 52, 1_750
"""With what is recorded of the call in the next turn of the loop."""


@requirement("hot.fast")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_repeated_call_enters_few_functions(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gateway.relay.fast_path", "gateway.sessions.cached_record"):  # no record ages meanwhile
        monkeypatch.setattr(f"{module}.AGING_AFTER_S", 60.0)
    monkeypatch.setattr("gateway.sessions.cached_record.CACHED_FOR_S", 120.0)
    options = {**ON, "log_calls_per_s": 0}
    with counted() as counter, in_process_gateway({"p": server(PROBE)}, options=options) as gateway:
        raw, _ = raw_of(gateway, era)
        counts = []
        counter.is_counting = True
        for _ in range(CALLS):
            before = counter.functions, counter.bytecodes
            assert raw.call("echo").status == 200
            counts.append((counter.functions - before[0], counter.bytecodes - before[1]))
        counter.is_counting = False
        raw.close()
    # Some have not recorded the call before yet, and some what else the loop has to do.
    for number, limits in enumerate(zip(TO_THE_ANSWER, IN_ALL, strict=True)):
        found = sorted(count[number] for count in counts)
        assert found[0] <= limits[0] and found[CALLS // 2] <= limits[1], found
