"""Log lines cannot steer the terminal, in any format."""

import asyncio
import io
import logging
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from time import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway
from gateway.observability.logs import FORMS, MOST, CallLine, CallLines, LineFormatter, call_lines, configure_logging
from gateway.observability.request_outcomes import CANCELLED, OK, EndedCall, Outcome
from session_store import Principal, Session
from session_store.session import redact
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.hostile_text import HOSTILE, shows_only_text


class Stderr(io.StringIO):
    """Remembers its writes one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.written = asyncio.Event()

    def write(self, text: str) -> int:
        self.writes.append(text)
        self.written.set()
        return len(text)


Log = Callable[[str, str], Stderr]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Configures the log, and returns what gets it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def configured(level: str, form: str) -> Stderr:
        stderr = Stderr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stderr)
            configure_logging(level, form)
        return stderr

    yield configured
    root.handlers[:] = handlers
    root.setLevel(level)


@requirement("wall.decoded")
@pytest.mark.parametrize("form", ["pretty", "logfmt", "json"])
def test_the_log_shows_what_it_was_told(form: str, log: Log) -> None:
    stderr = log("info", form)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("t").exception("server %s", HOSTILE + "\nlevel=info forged", extra={"tool": HOSTILE})
    words = "".join(stderr.writes)
    assert "forged" in words
    # Of our own, only the colours of the pretty form.
    for colour in ("\x1b[0m", "\x1b[1m", "\x1b[2m", *(f"\x1b[{n}m" for n in range(30, 38)), "\x1b[22m"):
        words = words.replace(colour, "")
    assert shows_only_text(words)
    assert not any(line.startswith("level=info forged") for line in words.splitlines())


@requirement("ctx.correlation-right")
def test_an_app_s_own_handler_can_write_the_fields_of_the_gateway() -> None:
    record = logging.makeLogRecord({"name": "gateway", "levelname": "INFO", "msg": "tools/call", "created": 0.0})
    record.__dict__ |= {"tool": "add", "outcome": "ok", "correlation": "c1"}
    assert gateway.log_formatter().format(record) == (
        "timestamp=1970-01-01T00:00:00.000000Z level=info event=tools/call tool=add outcome=ok correlation=c1"
    )


FIELDS = ("session", "era", "principal", "server", "tool", "outcome", "took_ms", "context", "correlation")
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["", "a b", 'a"=b\\', "\nlevel=info", HOSTILE]))


def a_line(session: Session, outcome: Outcome, tool: str, correlation: str, context: dict[str, str]) -> CallLine:
    call = EndedCall(time(), "tools/call", tool, "demo", outcome, 0.00125, session, correlation)
    return CallLine(call, "legacy", context)


def add(numbers: Iterable[int], tool: str = "echo") -> None:
    lines, session = call_lines(), a_session(FakeClock())
    assert lines is not None
    for number in numbers:
        lines.add(a_line(session, OK, tool, f"c-{number}", {}))


def correlations(text: str) -> list[str]:
    return [line.rsplit("correlation=")[1] for line in text.splitlines()]


@requirement("wall.decoded", "hot.lines")
@pytest.mark.parametrize("form", sorted(FORMS))
@given(subject=TEXTS, tool=TEXTS, correlation=TEXTS.filter(bool), field=TEXTS, outcome=st.sampled_from([OK, CANCELLED]))
def test_a_line_is_what_the_formatter_makes_of_its_record(
    form: str, subject: str, tool: str, correlation: str, field: str, outcome: Outcome
) -> None:
    session = a_session(FakeClock(), principal=Principal(issuer="api-key", subject=subject))
    line = a_line(session, outcome, tool, correlation, {"a": field, "b": "x"})
    record = logging.makeLogRecord({"msg": "tools/call", "levelname": "INFO", "created": line.call.at})
    record.__dict__ |= {
        **{"session": redact(session.id), "era": "legacy", "principal": str(session.principal), "server": "demo"},
        **{"tool": tool, "outcome": str(outcome), "took_ms": 1.25, "context": line.context, "correlation": correlation},
    }
    assert CallLines(FORMS[form], print).line(line) == LineFormatter(form, FIELDS, dict).format(record)


@requirement("hot.lines")
async def test_lines_that_wait_are_written_at_once_and_before_any_other(log: Log) -> None:
    stderr = log("info", "logfmt")
    add(range(3))
    assert not stderr.writes
    logging.getLogger("t").warning("slow call")
    first, second = stderr.writes[0], "".join(stderr.writes[1:])
    assert correlations(first) == ["c-0", "c-1", "c-2"] and first.endswith("\n") and "slow call" in second

    stderr.writes.clear()
    add(range(MOST))
    assert "".join(stderr.writes).count("\n") == MOST and len(stderr.writes) < MOST / 10

    stderr.writes.clear()
    stderr.written.clear()
    add([7])
    async with asyncio.timeout(60):
        await stderr.written.wait()
    add([8])
    logging.getLogger().handlers[0].flush()  # as `logging` does when the process exits
    assert [correlations(text) for text in stderr.writes] == [["c-7"], ["c-8"]]


@requirement("hot.lines")
@pytest.mark.parametrize(("level", "form"), [("warning", "logfmt"), ("info", "pretty")])
def test_without_such_lines_none_waits(level: str, form: str, log: Log) -> None:
    log(level, form)
    for _ in range(2):
        assert call_lines() is None
        logging.getLogger().addHandler(logging.NullHandler())


@requirement("hot.lines")
async def test_a_log_that_nobody_reads_stops_no_call(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_: str) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(log("info", "json"), "write", write)
    add(range(MOST))


@requirement("hot.lines")
async def test_processes_that_share_a_pipe_do_not_write_into_each_others_lines(log: Log) -> None:
    stderr = log("info", "logfmt")
    for number in range(MOST):
        add([number], tool="\u00fc" * (20 * number))
    assert all(text.endswith("\n") and len(text.encode()) <= select.PIPE_BUF for text in stderr.writes)
    assert len(stderr.writes) < MOST
    assert correlations("".join(stderr.writes)) == [f"c-{number}" for number in range(MOST)]
