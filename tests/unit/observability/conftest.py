"""The log of a test."""

import asyncio
import io
import logging
import sys
from collections.abc import Callable, Iterator

import pytest

from gateway.observability.logs import configure_logging


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
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Stderr]]:
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
