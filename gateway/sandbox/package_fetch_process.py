"""Run a program that fetches a package until it ends, for a limited time. Keep its last output for the error
message."""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from session_store.redaction import output_scrubber
from transports.upstream.child_process import Command, ProcessFailed
from transports.upstream.fork_server_client import ForkServer

_SHOWN_CHARS: Final = 300
_SHOWN_LINES: Final = 3
_KEPT_LINES: Final = 200
_KEPT_CHARS: Final = 1_000
_TOLD: Final = ("npm error ", "npm ERR! ", "error: ", "cause: ", "\u00d7 ", "├─▶ ", "╰─▶ ")
"""Beginnings of the lines in which npm and uv report an error."""
_UNTOLD: Final = (
    "A complete log of this run",
    "Note that you can",
    "tarball, folder",
    "code ",
    "errno ",
    "syscall ",
    "path ",
    "Log files were not",
)
"""Beginnings of npm's error lines that do not help the reader."""


class FetchFailed(Exception):
    """A package could not be fetched. The message says why; it contains no secrets, because clients get it."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """Keep the last lines that a program writes to stdout."""

    kept: deque[str]

    def line(self, line: bytes) -> None:
        self.kept.append(line[:_KEPT_CHARS].decode("utf-8", "replace"))

    def oversized(self, head: bytes, tail: bytes) -> None:
        """Ignore a line that is too long."""

    def exited(self, code: int | None) -> None:
        """Do nothing: `run` waits for the end of the process."""


async def run(fork_server: ForkServer, command: Command, *, timeout_s: float, package: str) -> None:
    """Run a command that fetches a package, until it ends.

    Raises:
        FetchFailed: the command could not be started, took too long, or failed.
    """
    lines = _Lines(deque(maxlen=_KEPT_LINES))
    name = command.argv[0].rpartition("/")[2]
    try:
        process = await fork_server.spawn(command, lines, fields=lambda: {"package": package})
    except ProcessFailed as error:
        raise FetchFailed(f"{name} could not be started: {error}") from error
    try:
        process.stdin.finish()
        async with asyncio.timeout(timeout_s):
            code = await process.wait()
    except TimeoutError:
        raise FetchFailed(f"{name} did not end within {timeout_s:g} s") from None
    finally:
        process.kill()
    if code != 0:
        errors = [*process.stderr_tail(), *lines.kept]
        raise FetchFailed(_what_failed(errors, command.env) or f"{name} ended with exit code {code}")


def _what_failed(lines: list[str], env: Mapping[str, str]) -> str:
    """Return the error messages in the output of npm or uv, in one line without secrets."""
    told: list[str] = []
    for line in map(str.strip, lines):
        start = next((start for start in _TOLD if line.startswith(start)), "")
        text = line.removeprefix(start).removeprefix("404 ").strip()
        if start and text not in ("", "404", *told) and not text.startswith(_UNTOLD):
            told.append(text)
    shown = told[:_SHOWN_LINES] or [line.strip() for line in lines if line.strip()][-_SHOWN_LINES:]
    return output_scrubber((), env)("; ".join(shown))[:_SHOWN_CHARS]
