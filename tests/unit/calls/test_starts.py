"""Starts of servers: their first answer, the next attempt, and what errors quote of their output."""

import asyncio

import pytest

from gateway.calls.starts import MOST_LINES, MOST_S, Backoff, FirstAnswerTimeout, newest, with_output_tail
from tests.requirements import requirement


@requirement("proc.backoff")
def test_the_time_to_the_next_attempt_doubles_and_is_bounded() -> None:
    failures = Backoff()
    assert failures.left_s(0.0) == failures.delay_s == 0.0
    delays = []
    for _ in range(10_000):
        failures.fail("it exited", 100.0)
        delays.append(failures.delay_s)
    assert delays[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, MOST_S] and set(delays[7:]) == {MOST_S}
    assert failures.left_s(130.0) == MOST_S - 30.0 and failures.left_s(1_000.0) == 0.0


@pytest.mark.anyio
@requirement("proc.garbage")
async def test_the_first_line_that_is_no_message_shortens_the_time_to_the_answer() -> None:
    timeout, loop = FirstAnswerTimeout(0.05), asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with timeout.within(30.0):
            for _ in range(6):
                timeout.noise()  # later lines do not prolong it
                await asyncio.sleep(0)
            await asyncio.Event().wait()
    assert 0.04 < loop.time() - began < 5.0
    assert timeout.late("files", 30.0) == (
        "server 'files' writes lines to stdout that are not MCP messages, and did not answer within 0.05 s"
    )


@pytest.mark.anyio
async def test_it_never_prolongs_the_time_and_counts_from_each_beginning() -> None:
    timeout = FirstAnswerTimeout(30.0)
    with pytest.raises(TimeoutError):
        async with timeout.within(0.01):
            timeout.noise()
            await asyncio.Event().wait()
    async with timeout.within(5.0):
        assert not timeout.is_noisy
    timeout.noise()  # of a server that has answered
    assert not timeout.is_noisy and timeout.late("files", 5.0) == "server 'files' did not start within 5 s"


@requirement("proc.last-words")
def test_the_last_line_with_text_is_quoted_and_cut() -> None:
    assert with_output_tail("it exited", []) == with_output_tail("it exited", ["", "  "]) == "it exited"
    lines = ["Traceback (most recent call last):", "ValueError: no such index", ""]
    assert with_output_tail("it exited", lines) == "it exited; its last output: 'ValueError: no such index'"
    assert len(with_output_tail("it exited", ["x" * 5_000])) < 250
    assert "\n" not in with_output_tail("it exited", ["a\rb\x1b[31m\n"]), "control characters are escaped"


@requirement("proc.last-words")
def test_what_is_kept_has_the_cause_of_a_traceback_and_a_bound() -> None:
    cause = "PermissionError: [Errno 13] Permission denied: '/srv/secret'"
    lines = ["an early line", *(["older"] * 30), cause, *(f"  at frame {number}" for number in range(30)), "ToolError"]
    assert cause in newest(lines) and newest(lines)[-1] == "ToolError" and len(newest(lines)) == MOST_LINES
    long = ["x" * 500] * 100
    assert sum(map(len, newest(long))) <= 8 << 10 and newest(["y" * 20_000]) == ["y" * 20_000]
    assert newest([]) == [] and newest(["a", "b", "c"], 2) == ["b", "c"]
