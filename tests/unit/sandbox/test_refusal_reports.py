"""What sandboxes refuse to servers is told."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.sandbox.refusal_reports import (
    MAX_REPORTED,
    MOST_ROWS_OF_ALL,
    ProcessRefusals,
    Refusal,
    Refusals,
    SessionRefusals,
    sentence,
)
from tests.requirements import requirement

pytestmark = requirement("box.refusals-seen")


class Told:
    def __init__(self) -> None:
        self.now = 0.0
        self.counts: Counter[Any] = Counter()
        self.events: list[tuple[str, str, str, int]] = []
        self.shown = SessionRefusals(lambda: self.now)
        self.all = Refusals(self.counts, self._blocked, clock=lambda: self.now, shown=self.shown)

    def _blocked(self, *, session: str, server: str, reason: str, count: int) -> None:
        self.events.append((session, server, reason, count))

    def process(self, session: str) -> ProcessRefusals:
        return ProcessRefusals(self.all, lambda: {"server": "x", "session": session})

    def flood(self, session: str, ports: int) -> None:
        """A process of the session tries so many ports."""
        process = self.process(session)
        for port in range(ports):
            process.add(Refusal("connect", f"10.0.0.6:{port}", "a private address"))


CONNECT = Refusal("connect", "10.0.0.5:443", "a private address")


@pytest.mark.parametrize(
    ("refused", "what", "allowed_by"),
    [
        (CONNECT, "10.0.0.5:443", 'sandbox.reach = ["10.0.0.5:443"]'),
        (Refusal("name", "evil.test", "not listed"), "evil.test", 'sandbox.reach = ["evil.test"]'),
        (Refusal("socket", '/run/"x"', "not granted"), '/run/"x"', 'sandbox.sockets = ["/run/\\"x\\""]'),
        (Refusal("listen", "8080", "not granted"), "to listen on port 8080", "sandbox.listen = [8080]"),
        (Refusal("connect", "127.0.0.1:80", "the gateway listens there"), "127.0.0.1:80", ""),
        (Refusal("file", "/srv/x", "not granted to be written"), "/srv/x", 'sandbox.write = ["/srv/x"]'),
        (Refusal("file", "/srv/x", "not granted"), "/srv/x", 'sandbox.read = ["/srv/x"]'),
        (Refusal("processes", "128", "many run"), "more than 128 processes and threads", "more: sandbox.processes"),
        (Refusal("memory", "512", "it had more"), "more than 512 MiB of memory", "more: sandbox.total_memory_mb"),
        (Refusal("process", "kill", "a process that the server did not start"), "kill", ""),
        (Refusal("listen", "0", "not granted"), "to listen on port 0", ""),
        (Refusal("socket", "/a\nb\x1b[2J", ""), "/a\\x0ab\\x1b[2J", 'sandbox.sockets = ["/a\\nb\\u001b[2J"]'),
    ],
)
def test_a_refusal_says_what_would_allow_it(refused: Refusal, what: str, allowed_by: str) -> None:
    allow = allowed_by if allowed_by.startswith("more") else f"it: {allowed_by}"
    end = f"; to allow {allow}" if allowed_by else ""
    assert sentence("x", refused) == f"server 'x' was refused {what} ({refused.why}){end}"


@requirement("box.package-registries")
def test_a_refusal_of_a_fetch_names_the_setting_of_fetches() -> None:
    said = sentence("npx", Refusal("connect", "10.0.0.5:4873", "a private address"), "notes@1")
    assert said == (
        "the fetch of package 'notes@1' was refused 10.0.0.5:4873 (a private address); "
        'to allow it: gateway.packages.reach = ["10.0.0.5:4873"]'
    )
    assert "to allow" not in sentence("npx", Refusal("file", "/etc/shadow", "not granted"), "notes@1")


def test_repetitions_are_counted_and_told_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    process = told.process("abcdefgh")
    for second in range(1_000):
        told.now = float(second)
        process.add(replace(CONNECT, count=3))
    assert told.counts == {"connect": 3_000} and len(caplog.records) == 1
    assert [(session, count) for session, _, _, count in told.events] == [
        ("abcdefgh", count) for count in (3, 180, 360, 720, 1_440)
    ]
    told.process("bbbbbbbb").add(CONNECT)
    assert told.events[-1][0] == "bbbbbbbb" and len(caplog.records) == 1, "one line, and an event of each session"


def test_a_flood_of_different_refusals_is_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    told.flood("abcdefgh", 5_000)
    assert told.counts == {"connect": 5_000} and len(told.events) == MAX_REPORTED + 1 == len(caplog.records)
    assert told.events[-1][2] == "server 'x' was refused more things than are listed one by one"


def test_the_page_of_a_session_has_what_its_servers_were_refused() -> None:
    told = Told()
    process = told.process("abcdefgh")
    told.process("").add(CONNECT)  # a process of no session
    for second in range(100):
        told.now = float(second)
        process.add(CONNECT)
    process.add(Refusal("process", "kill", "a process that the server did not start"))
    rows = [(row.at, row.server, row.kind, row.what, row.allows, row.count) for row in told.shown.of("abcdefgh")]
    assert sorted(rows) == [
        (99.0, "x", "connect", "10.0.0.5:443", 'sandbox.reach = ["10.0.0.5:443"]', 100),
        (99.0, "x", "process", "kill", "", 1),
    ]
    told.flood("abcdefgh", 5_000)
    rest = [row for row in told.shown.of("abcdefgh") if row.kind == "other"]
    assert len(told.shown.of("abcdefgh")) == MAX_REPORTED + 1
    assert [(row.what, row.allows, row.count) for row in rest] == [("", "", 5_000 - MAX_REPORTED + 2)]
    told.shown.forget("abcdefgh")
    assert told.shown.of("abcdefgh") == [] == told.shown.of("")


def test_what_processes_of_an_ended_session_are_refused_is_not_kept() -> None:
    told = Told()
    process = told.process("abcdefgh")
    process.add(CONNECT)
    told.shown.forget("abcdefgh")
    process.add(CONNECT)  # the gate sends its last refusals when the process ends, which is later
    assert told.shown.of("abcdefgh") == []
    assert told.counts == {"connect": 2}, "counted all the same"
    told.now = 61.0
    told.process("abcdefgh").add(CONNECT)  # another replica had it meanwhile
    assert [row.count for row in told.shown.of("abcdefgh")] == [1]


def test_refusals_of_all_sessions_have_one_bound() -> None:
    told = Told()
    honest = told.process("honest")
    sessions = [f"session-{number}" for number in range(MOST_ROWS_OF_ALL // MAX_REPORTED + 50)]
    for session in sessions:
        honest.add(CONNECT)
        told.flood(session, MAX_REPORTED)
    rows = {session: len(told.shown.of(session)) for session in (*sessions, "honest")}
    assert MOST_ROWS_OF_ALL - MAX_REPORTED <= sum(rows.values()) <= MOST_ROWS_OF_ALL
    assert rows["session-0"] == 0 and rows[sessions[-1]] == MAX_REPORTED
    assert rows["honest"] == 1, "it was refused something lately"
    for session in (*sessions, "honest"):
        told.shown.forget(session)
    assert sum(len(told.shown.of(session)) for session in sessions) == 0
