"""What a stdio link logs of its child."""

import logging
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from session_store.redaction import output_scrubber
from tests.requirements import requirement
from transports.testing import RecordedEvents
from transports.upstream.child_process import Command, PipeWriter, Process
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.invalid_output_lines import EVERY_S, MOST_KINDS, MOST_LOOKED_AT, LineBudget
from transports.upstream.stdio import MAX_UNREAD_BYTES, STUCK_S, StdioLink, StdioUpstream
from transports.upstream_port import ConnectOptions, LinkClosed, LinkFull, UpstreamUnavailable

SECRET = "ghp_abcdefghijklmnop"
MESSAGE = b'{"jsonrpc":"2.0","id":1,"result":{}}'


class Noisy(RecordedEvents):
    """Counts lines that are no messages."""

    noises = 0

    def noise(self) -> None:
        super().noise()
        self.noises += 1


def linked(
    *lines: str, why_ended: str = "", environment: dict[str, str] | None = None, budget: LineBudget | None = None
) -> tuple[StdioLink, Noisy]:
    """The link of a process that has written these lines to stderr."""
    events = Noisy()
    scrub = output_scrubber(["TENANT"], environment or {})
    link = StdioLink("files", events, 1.0, scrub, budget or LineBudget(), max_line_bytes=1_000)
    link.attach(cast(Process, SimpleNamespace(stderr_tail=lambda: [*lines], why_ended=why_ended)))
    return link, events


@requirement("ops.redact")
def test_credentials_in_the_output_of_a_child_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    link, events = linked(f"cannot sign in with {SECRET}")
    with caplog.at_level(logging.DEBUG, logger="transports.upstream.stdio"):
        link.stderr(f"token {SECRET}".encode())
        link.line(f"signed in with {SECRET}".encode())
        link.exited(1)
    assert len(caplog.messages) == 3 and SECRET not in caplog.text
    assert all("[redacted]" in message for message in caplog.messages)
    assert "cannot sign in with [redacted]" in caplog.text and events.ends == ["server 'files' exited with code 1"]


@requirement("proc.noise")
def test_a_child_that_reads_nothing_is_full_and_counts_as_lost_much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr("transports.upstream.stdio.monotonic", lambda: now[0])
    link, _ = linked()
    stdin = SimpleNamespace(pending=bytearray(MAX_UNREAD_BYTES), taken_at=1_000.0, write=lambda data: True)
    link._process.stdin = cast(PipeWriter, stdin)
    link.send(b"{}")
    stdin.pending += b"x"
    for after_s, error in ((0.0, LinkFull), (STUCK_S, LinkFull), (STUCK_S + 1, LinkClosed)):
        now[0] = 1_000.0 + after_s
        with pytest.raises(LinkClosed, match="does not read its input") as raised:
            link.send(b"{}")
        assert raised.type is error


@requirement("proc.last-words")
def test_a_child_that_failed_has_one_short_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    link, _ = linked(*(f"line {number} {'x' * 400}" for number in range(50)), "KeyError: 'API_KEY'", "")
    assert len(link.output_tail) == 40
    link.exited(1)
    [told] = caplog.messages
    assert told.endswith("| KeyError: 'API_KEY'") and len(told) < 500


@requirement("proc.ends")
def test_a_server_that_dies_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    budget = LineBudget()
    for code in (3, 3, 3, 4, 3):
        linked("no database", budget=budget)[0].exited(code)
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "server files exited with code 3",
        "server files exited with code 4 (2 more before it, which have no line)",
    ]
    caplog.clear()
    for _ in range(2):
        link, _ = linked("no database", budget=budget)
        link.line(MESSAGE)
        link.exited(3)
    assert len(caplog.messages) == 2, "each of these has served somebody"


@requirement("proc.ends")
async def test_a_server_that_has_served_is_told_of_when_it_ends_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    for is_closed in (True, False):
        link, _ = linked()
        link.attach(cast(Process, Child()))
        link.line(MESSAGE)
        if is_closed:
            await link.close()
        link.exited(0)
    assert caplog.messages == ["server files exited with code 0; the end of its output: nothing"]


@requirement("proc.noise")
def test_a_server_that_prints_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    budget = LineBudget()
    for session in range(3):
        link, _ = linked(budget=budget)
        for number in range(1_000):
            link.line(f"worked on {number} of session {session}".encode())
            link.oversized(b"{", b"}")
    assert len(caplog.messages) == MOST_KINDS + 1


@requirement("proc.noise")
def test_of_a_server_that_prints_without_end_few_lines_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than all else that is done with them."""
    now, scrub = [0.0], Mock(side_effect=str)
    monkeypatch.setattr("transports.upstream.stdio.monotonic", lambda: now[0])
    link = StdioLink("files", RecordedEvents(), 1.0, scrub, LineBudget(), max_line_bytes=1_000)
    for is_heard in (False, True):
        if is_heard:
            link.line(MESSAGE)
        for number in range(10_000):
            link.line(b"worked" if number % 2 else b"rested")
    assert scrub.call_count <= 3 + MOST_LOOKED_AT
    now[0] += EVERY_S
    link.line(b"worked")
    assert scrub.call_count <= 4 + MOST_LOOKED_AT, "the next minute begins"
    assert link.budget.add("stdout", "other", now=now[0]) == 0


@requirement("proc.ends")
async def test_a_server_that_hangs_at_each_start_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, budget = [0.0], LineBudget()
    monkeypatch.setattr("transports.upstream.stdio.monotonic", lambda: now[0])
    for took_s in (29.9, 30.1):
        link, _ = linked(budget=budget)
        link.attach(cast(Process, Child()))
        now[0] += took_s
        await link.close()
        link.exited(-15)
    [told] = caplog.messages
    assert told.startswith("server files was ended after 29.9 s, before it had sent a message")


@requirement("proc.ends", "box.tree-limits")
async def test_a_child_that_hangs_is_not_told_as_killed_and_one_that_the_kernel_ended_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for code, is_heard, told in (
        (-15, False, "was ended after 0.0 s, before it had sent a message"),
        (0, False, "was ended after 0.0 s, before it had sent a message"),
        (3, False, "exited with code 3"),
        (-15, True, "was killed by signal 15"),
        (3, True, "exited with code 3"),
    ):
        link, events = linked()
        process = Child()
        link.attach(cast(Process, process))
        if is_heard:
            link.line(MESSAGE)
        await link.close()
        link.exited(code)
        assert process.is_ended and events.ends == [f"server 'files' {told}"]
    assert len(caplog.messages) == 4, "the gateway has stopped the one that was killed"
    link, events = linked(why_ended="its processes had more than 64 MiB of memory together")
    link.exited(-9)
    assert events.ends == ["server 'files' was ended: its processes had more than 64 MiB of memory together"]


@requirement("proc.garbage", "proc.noise")
def test_lines_that_are_no_messages_are_reported_until_the_first_message(caplog: pytest.LogCaptureFixture) -> None:
    link, events = linked("starting")
    for number in range(100):
        link.line(f"Usage {number}".encode())
    assert events.noises == 100 and len(caplog.messages) == 3, "a flood is not a flood in the log"
    assert link.output_tail == ["starting", "(stdout) Usage 0", "(stdout) Usage 1", "(stdout) Usage 2"]
    link.line(MESSAGE)
    link.line(b"a later line")
    assert events.noises == 100 and link.output_tail == ["starting"]


@requirement("proc.last-words", "ops.redact")
def test_credentials_of_any_form_and_of_the_environment_are_redacted_before_a_line_is_cut() -> None:
    straddling = "x" * 490 + " " + SECRET
    many = " ".join([f"{number} {SECRET}" for number in range(200)])
    link, _ = linked(straddling, many[:2_000], many)
    for line in link.output_tail:
        assert "ghp_" not in line and len(line) <= 500
    assert link.output_tail[0].startswith("x" * 490)
    environment = {"API_KEY": "plain words", "TENANT": "acme-corporation", "HOME": "/home/ada", "TOKEN": "abc"}
    link, _ = linked("key 'plain words' of acme-corporation in /home/ada is no abc", environment=environment)
    assert link.output_tail == ["key '[redacted]' of [redacted] in /home/ada is no abc"]


class Child:
    """A process, and the fork server that starts it."""

    pid, why_ended, is_ended = 7, "", False

    def stderr_tail(self) -> list[str]:
        return []

    async def spawn(self, command: Command, link: StdioLink, **_: object) -> "Child":
        self.link = link
        return self

    async def shutdown(self, *, grace_s: float) -> None:
        self.is_ended = True


@requirement("proc.warm")
@pytest.mark.parametrize("has_sent", [False, True])
async def test_a_prestarted_child_that_has_sent_something_is_ended_and_not_used(has_sent: bool) -> None:
    child, events = Child(), RecordedEvents()
    upstream = StdioUpstream(
        name="files",
        command=Command(argv=("x",), env={}),
        fork_server=cast(ForkServer, child),
        max_line_bytes=1_000,
        grace_s=1.0,
        scrubber=lambda _: str,
    )
    started = await upstream.start(ConnectOptions())
    if has_sent:
        child.link.line(MESSAGE)
        with pytest.raises(UpstreamUnavailable, match="before a session could use it"):
            await upstream.connect(ConnectOptions(started=started), events)
    else:
        assert await upstream.connect(ConnectOptions(started=started), events) is started
        child.link.line(MESSAGE)
    assert (child.is_ended, events.answered) == ((True, []) if has_sent else (False, [1]))
