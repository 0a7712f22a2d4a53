"""Bytes of a child become lines."""

import time

from tests.processes.children import Recorder
from tests.requirements import requirement
from transports.upstream.lines import LineSplitter


@requirement("proc.noise")
def test_a_long_line_costs_time_linear_in_its_length() -> None:
    sink = Recorder()

    def cost(chunks: int) -> float:
        splitter = LineSplitter(sink.line, sink.oversized, max_bytes=64 << 20)
        started = time.process_time()
        for _ in range(chunks):
            splitter.feed(b"x" * 65_536)
        splitter.feed(b"\n")
        return time.process_time() - started

    assert min(cost(256) for _ in range(3)) < 0.1  # 16 MiB
    assert len(sink.lines[0]) == 16 << 20
