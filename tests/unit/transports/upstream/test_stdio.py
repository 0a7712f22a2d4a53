"""What a stdio link logs of its child."""

import logging
from typing import cast

import pytest

from session_store.metadata import scrubbed_text
from tests.requirements import requirement
from transports.testing import RecordedEvents
from transports.upstream.process import Process
from transports.upstream.stdio import StdioLink

SECRET = "ghp_abcdefghijklmnop"


class DeadChild:
    """A process that has written one line to stderr."""

    def stderr_tail(self) -> list[str]:
        return [f"cannot sign in with {SECRET}"]


@requirement("ops.redact")
def test_credentials_in_the_output_of_a_child_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    events = RecordedEvents()
    link = StdioLink("files", events, 1.0, scrubbed_text)
    link.attach(cast(Process, DeadChild()))
    with caplog.at_level(logging.DEBUG, logger="transports.upstream.stdio"):
        link.stderr(f"token {SECRET}".encode())
        link.line(f"signed in with {SECRET}".encode())
        link.exited(1)
    assert len(caplog.messages) == 3 and SECRET not in caplog.text
    assert all("[redacted]" in message for message in caplog.messages)
    assert "cannot sign in with [redacted]" in caplog.text and events.ends == ["server 'files' exited with code 1"]
