"""Bytes of a child become lines."""

import time

from tests.processes.children import Recorder
from tests.requirements import requirement
from transports.upstream.line_splitter import LineSplitter, StderrTail


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


@requirement("ops.console-why")
def test_a_tail_keeps_a_traceback_and_is_bounded_in_lines_and_bytes() -> None:
    tail = StderrTail(lines=150, max_bytes=100, max_total=1_000)
    for number in range(300):
        tail.feed(b"%d\n" % number)
    assert tail.text() == [str(number) for number in range(150, 300)]
    for number in range(300):
        tail.feed(b"%03d" % number + b"x" * 200 + b"\n")
    assert [line[:3] for line in tail.text()] == [str(number) for number in range(290, 300)], "ten lines of 100 bytes"
    tail.feed(b"\n".join(b"%d" % number for number in range(1_000)) + b"\nbegun")
    assert tail.text()[-2:] == ["999", "begun"] and len(tail.text()) == 150
