"""The lines of calls that went well are written together, and look as if each had been logged."""

import asyncio
import logging
import select
from time import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.call_lines import MOST, CallLine, CallLines
from gateway.observability.log_lines import FORMS, LineFormatter
from gateway.observability.logs import call_lines
from gateway.observability.outcome import CANCELLED, OK, Outcome
from session_store import Principal, Session
from session_store.session import redact
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.hostile_text import HOSTILE
from tests.unit.observability.conftest import Log

FIELDS = ("session", "era", "principal", "server", "tool", "outcome", "took_ms", "context", "correlation")
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["", "a b", 'a"=b\\', "\nlevel=info", HOSTILE]))


def a_line(
    number: int = 1, *, outcome: Outcome = OK, session: Session | None = None, tool: str = "echo", **context: str
) -> CallLine:
    session = a_session(FakeClock()) if session is None else session
    return CallLine(time(), "tools/call", outcome, 1.25, session, "legacy", "demo", tool, f"c-{number}", context)


@requirement("hot.lines", "wall.decoded")
@pytest.mark.parametrize("form", sorted(FORMS))
@given(subject=TEXTS, tool=TEXTS, correlation=TEXTS.filter(bool), field=TEXTS, outcome=st.sampled_from([OK, CANCELLED]))
def test_a_line_is_what_the_formatter_makes_of_its_record(
    form: str, subject: str, tool: str, correlation: str, field: str, outcome: Outcome
) -> None:
    session = a_session(FakeClock(), principal=Principal(issuer="api-key", subject=subject))
    line = CallLine(
        time(), "tools/call", outcome, 1.25, session, "legacy", "demo", tool, correlation, {"a": field, "b": "x"}
    )
    record = logging.makeLogRecord({"msg": "tools/call", "levelname": "INFO", "created": line.at})
    record.__dict__ |= {
        "session": redact(session.id),
        "era": "legacy",
        "principal": str(session.principal),
        "server": "demo",
        "tool": tool,
        "outcome": str(outcome),
        "took_ms": 1.25,
        "context": line.context,
        "correlation": correlation,
    }
    assert CallLines(FORMS[form], print).line(line) == LineFormatter(form, FIELDS, dict).format(record)


@requirement("hot.lines")
def test_lines_that_wait_are_written_at_once_and_before_any_other(log: Log) -> None:
    async def calls() -> None:
        stderr = log("info", "logfmt")
        lines = call_lines()
        assert lines is not None
        for number in range(3):
            lines.add(a_line(number))
        assert not stderr.writes
        logging.getLogger("t").warning("slow call")
        first, second = stderr.writes[0], "".join(stderr.writes[1:])
        assert [line.split("correlation=")[1] for line in first.splitlines()] == ["c-0", "c-1", "c-2"]
        assert "slow call" in second and first.endswith("\n")
        stderr.writes.clear()

        for number in range(MOST):
            lines.add(a_line(number))
        assert "".join(stderr.writes).count("\n") == MOST and len(stderr.writes) < MOST / 10
        stderr.writes.clear()

        stderr.written.clear()
        lines.add(a_line(7))
        async with asyncio.timeout(10):
            await stderr.written.wait()
        assert "correlation=c-7" in stderr.writes[0]
        stderr.writes.clear()

        lines.add(a_line(8))
        logging.getLogger().handlers[0].flush()  # as `logging` does when the process exits
        assert "correlation=c-8" in stderr.writes[0]

    asyncio.run(calls())


@requirement("hot.lines")
@pytest.mark.parametrize(("level", "form"), [("warning", "logfmt"), ("info", "pretty")])
def test_without_such_lines_none_waits(level: str, form: str, log: Log) -> None:
    log(level, form)
    assert call_lines() is None
    logging.getLogger().addHandler(logging.NullHandler())
    assert call_lines() is None


@requirement("hot.lines")
def test_a_log_that_nobody_reads_stops_no_call(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_: str) -> int:
        raise BrokenPipeError

    stderr = log("info", "json")
    lines = call_lines()
    assert lines is not None
    monkeypatch.setattr(stderr, "write", write)

    async def call() -> None:
        for number in range(MOST):
            lines.add(a_line(number))

    asyncio.run(call())


@requirement("hot.lines")
def test_processes_that_share_a_pipe_do_not_write_into_each_others_lines(log: Log) -> None:
    stderr = log("info", "logfmt")
    lines = call_lines()
    assert lines is not None

    async def calls() -> None:
        for number in range(MOST):
            lines.add(a_line(number, tool="\u00fc" * (20 * number)))

    asyncio.run(calls())
    assert all(text.endswith("\n") and len(text.encode()) <= select.PIPE_BUF for text in stderr.writes)
    assert len(stderr.writes) < MOST
    found = [line.rsplit("correlation=")[1] for line in "".join(stderr.writes).splitlines()]
    assert found == [f"c-{number}" for number in range(MOST)]
