"""Run an MCP server as a child process: one JSON-RPC message per line on its stdin and stdout.

MCP 2025-11-25 and 2026-07-28, Transports §stdio. A line of stdout that is not a message is logged and discarded.
"""

import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from time import monotonic
from typing import Any, Final

from transports.jsonrpc import InvalidMessage, parse
from transports.upstream.child_process import Command, Process, ProcessFailed
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.invalid_output_lines import LineBudget, log_line, meaning_of_excerpt, probable_meaning
from transports.upstream_port import ConnectOptions, LinkClosed, LinkEvents, LinkFull, UpstreamUnavailable, too_large

logger = logging.getLogger(__name__)

INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""The environment variables that a child inherits from the gateway. No key or setting of the gateway is among them."""


def inherited() -> dict[str, str]:
    """Return the environment variables that a child inherits from the gateway."""
    return {name: value for name in INHERITED if (value := os.environ.get(name)) is not None}


HOME: Final = "~"
"""The value of a working directory that means the folder HOME of the child's environment."""

MAX_UNREAD_BYTES: Final = 16 << 20
"""The most bytes that wait for a child that does not read its stdin."""

STUCK_S: Final = 600.0
"""Seconds after which a child with so many bytes that has read none of them counts as lost. A tool that blocks the
whole child may take as long as a call."""

_MOST_CHARS: Final = 500
"""The most characters of a child's output line that are shown."""

_READ_CHARS: Final = 2_000
_LAST_LINES: Final = 40
_LOGGED_CHARS: Final = 160
"""The most characters of each output line in the log line about a child that has failed."""
_QUOTED_CHARS: Final = 80
"""The most characters that the log quotes of a stdout line that is not a message."""
_STOPPED: Final = (0, -signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM)
"""The exit codes of children that the gateway has stopped, which need no warning. Java and shells exit with the last
one."""
_NOISY_LINES: Final = 3
"""Maximum number of stdout lines that are no messages and come before the first message, of which the text is kept and
logged. Further lines are only counted."""


@dataclass(eq=False, repr=False, kw_only=True)
class StdioUpstream:
    """Start the child processes of one configured server."""

    name: str
    command: Command
    """The configured command. `ConnectOptions` may change parts of it."""
    fork_server: ForkServer
    max_line_bytes: int
    """The most bytes of a line of stdout. Longer lines are lost."""
    grace_s: float
    """The seconds that a child may take to end after its stdin was closed, and again after SIGTERM."""
    scrubber: Callable[[Mapping[str, str]], Callable[[str], str]]
    """Returns a function that redacts the credentials of an environment in the child's output."""

    def __post_init__(self) -> None:
        self._budget = LineBudget()

    async def connect(self, given: ConnectOptions, events: LinkEvents) -> "StdioLink":
        """Start a child, or use the prestarted one in `given.started`. Raises `UpstreamUnavailable`, also if the
        prestarted child cannot be used."""
        started = given.started
        if not isinstance(started, StdioLink):
            return await self._start(given, events)
        if not started.is_unheard:
            await started.close()
            raise UpstreamUnavailable(f"server {self.name!r} has ended before a session could use it")
        started.events = events
        return started

    async def start(self, given: ConnectOptions) -> "StdioLink":
        """Prestart a child that a later `connect` gets as `ConnectOptions.started`. Raises `UpstreamUnavailable`."""
        return await self._start(given, _Unheard())

    async def _start(self, given: ConnectOptions, events: LinkEvents) -> "StdioLink":
        """Start a child, and return the link to it. Its environment is made of inherited variables, `given.env` and the
        operator's configuration, of which later ones win. Variables named in `given.overriding` always come from
        `given.env`."""
        own = {**given.env, **self.command.env, **{name: given.env[name] for name in given.overriding}}
        env = {**inherited(), **own}
        if given.path:
            env["PATH"] = os.pathsep.join([*given.path, env.get("PATH", os.defpath)])
        cwd = self.command.cwd if given.cwd is None else given.cwd
        command = replace(
            self.command,
            argv=(*given.launcher, *(given.argv or self.command.argv)),
            env=env,
            cwd=env.get("HOME") if cwd == HOME else cwd,
            walls=given.walls,
        )
        scrub, hide, most = self.scrubber(own), given.hide, self.max_line_bytes
        link = StdioLink(
            self.name, events, self.grace_s, lambda line: scrub(hide(line)), self._budget, max_line_bytes=most
        )
        try:
            process = await self.fork_server.spawn(
                command, link, max_line_bytes=most, stderr=link.stderr, fields=link.log_fields
            )
        except ProcessFailed as error:
            raise UpstreamUnavailable(f"server {self.name!r} could not be started: {error}") from error
        given.began(process.pid)
        link.attach(process)
        return link

    async def close(self) -> None:
        """Do nothing: the links share only the fork server, which has another owner."""


@dataclass(eq=False, repr=False)
class StdioLink:
    """The link to one child process. Receives the lines of its output (`LineSink`), and passes on the messages in
    them."""

    resume, may_forget = "", False

    name: str
    events: LinkEvents
    grace_s: float
    scrub: Callable[[str], str]
    """Redacts credentials in a line of the child's output."""
    budget: LineBudget
    """Limits the log lines about all children of the server together."""
    _: KW_ONLY
    max_line_bytes: int
    _process: Process = field(init=False)

    def __post_init__(self) -> None:
        self._is_heard = False  # the child has sent a message
        self._began = self._closed_after_s = 0.0
        self._noise: list[str] = []  # the first lines of stdout that were not messages

    def attach(self, process: Process) -> None:
        """Use this process, which runs already. Its output comes after this call."""
        self._process, self._began = process, monotonic()

    def log_fields(self) -> Mapping[str, Any]:
        """Return the fields of a log line about this child."""
        return {"server": self.name, **self.events.log_fields()}

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def output_tail(self) -> list[str]:
        """Return the last lines of stderr. Until the child sends a message, the first lines of its stdout follow."""
        lines = [self._shown(line) for line in self._process.stderr_tail()[-_LAST_LINES:]]
        return lines if self._is_heard else [*lines, *self._noise]

    def stderr_tail(self) -> list[str]:
        return [self._shown(line) for line in self._process.stderr_tail()]

    @property
    def is_unheard(self) -> bool:
        """Return True if the child was prestarted, still runs and has sent nothing, so that a session can use it like a
        new one."""
        return isinstance(self.events, _Unheard) and not self.events.said

    def send(self, frame: bytes) -> None:
        stdin = self._process.stdin
        if len(stdin.pending) > MAX_UNREAD_BYTES:
            error = LinkClosed if monotonic() - stdin.taken_at > STUCK_S else LinkFull
            raise error(f"server {self.name!r} does not read its input")
        if not stdin.write(frame + b"\n"):
            raise LinkClosed(f"server {self.name!r} has closed its input")

    async def close(self) -> None:
        self._closed_after_s = self._closed_after_s or monotonic() - self._began
        await self._process.shutdown(grace_s=self.grace_s)

    def line(self, line: bytes) -> None:
        try:
            message = parse(line, is_lenient=True)
        except InvalidMessage as error:
            self._hear_noise(line)
            meaning = probable_meaning(line)
            if meaning.is_answer:
                reason = f"server {self.name!r} sent an answer that cannot be read: {error}"
                self.events.unreadable(meaning.request_id, reason)
            return
        self._is_heard = True
        self.events.message(message)

    def _hear_noise(self, line: bytes) -> None:
        """Log a stdout line that is not a message. If no message has come yet, also report the line
        (`LinkEvents.noise`)."""
        receive, is_first = self.events.stderr, len(self._noise) < _NOISY_LINES
        if not self._is_heard:
            self.events.noise()
        if receive is None and not (is_first if not self._is_heard else self._is_told()):
            return
        shown = self._shown(line.decode("utf-8", "replace"))
        if receive is not None:
            receive(f"(stdout) {shown}")
        if not self._is_heard:
            if not is_first:
                return
            self._noise.append(f"(stdout) {shown}")
        before = self.budget.add("stdout", shown[:_QUOTED_CHARS], now=monotonic())
        self._log(before, "wrote a line to stdout that is not a JSON-RPC message", f": {shown[:_QUOTED_CHARS]!r}")

    def _is_told(self) -> bool:
        return logger.isEnabledFor(logging.DEBUG) or not self.budget.is_spent("stdout", now=monotonic())

    def _shown(self, line: str) -> str:
        """Return a line as logs and clients may see it: first redacted, then cut, because half a credential would not
        be recognized. If the line was cut before this call, drop its last word for the same reason."""
        if len(line) >= _READ_CHARS:
            line = line[:_READ_CHARS].rpartition(" ")[0]
        return self.scrub(line)[:_MOST_CHARS]

    def oversized(self, head: bytes, tail: bytes) -> None:
        what = too_large(self.max_line_bytes)
        self._log(self.budget.add("length", now=monotonic()), what, "")
        meaning = meaning_of_excerpt(head, tail)
        if meaning.is_answer is not False:  # a log line is hardly ever that long
            self.events.unreadable(meaning.request_id, f"server {self.name!r} {what}")

    def exited(self, code: int | None) -> None:
        kind = how = self._how_it_ended(code)
        if self._closed_after_s and not self._is_heard:
            kind = how.partition(" after ")[0]  # the time differs at each end, and would make each a line
        is_asked_to = self._closed_after_s and not self._process.why_ended and (code or 0) in _STOPPED
        if not self._is_heard or (not is_asked_to and (code or not self._closed_after_s)):
            lines = [text for line in self.output_tail if (text := line.strip())]
            words = " | ".join(text[:_LOGGED_CHARS] for text in lines[-3:]) or "nothing"
            before = self.budget.add("end", kind, words, now=monotonic()) if not self._is_heard else 0
            self._log(before, how, f"; the end of its output: {words}")
        self.events.closed(f"server {self.name!r} {how}")

    def _how_it_ended(self, code: int | None) -> str:
        if self._process.why_ended:
            return f"was ended: {self._process.why_ended}"
        if self._closed_after_s and not self._is_heard and (code or 0) <= 0:
            return f"was ended after {self._closed_after_s:.1f} s, before it had sent a message"
        if code is None:
            return "ended"
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"

    def _log(self, before: int | None, what: str, more: str) -> None:
        log_line(logger, before, f"server {self.name} {what}", more, self.events.log_fields)

    def stderr(self, line: bytes) -> None:
        if (receive := self.events.stderr) is not None:
            receive(self._shown(line.decode("utf-8", "replace")))
        if logger.isEnabledFor(logging.DEBUG):
            text = self._shown(line.decode("utf-8", "replace"))
            logger.debug("server %s: %s", self.name, text, extra=self.events.log_fields())


class _Unheard:
    """Receive the reports of a prestarted child until a session uses it. If the child sends anything before that
    (`said`), it is discarded."""

    said = False
    stderr = None

    def log_fields(self) -> Mapping[str, str]:
        return {"correlation": ""}  # of no request

    def noise(self) -> None:
        """Ignore the line: a startup banner has nothing that a session needs."""

    def _note(self, *_: object, **__: object) -> None:
        self.said = True

    message = unreadable = refused = unsent = closed = _note
