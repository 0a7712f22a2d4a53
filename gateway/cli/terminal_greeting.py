"""Greet a person at a terminal when `run` starts: progress while servers start, then one screen."""

import asyncio
import contextlib
import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Final, TextIO

from rich.text import Text

from gateway.admin.auth import SignInLink
from gateway.admin.local_gateways import announced, runtime_folder
from gateway.cli.terminal_output import Terminal
from gateway.config.hosts.client_snippets import snippet
from gateway.config.settings import GatewaySettings
from gateway.observability.escaped_text import visible_line
from gateway.serving.gateway import Gateway
from gateway.serving.startup_greeting import (
    Greeting,
    ServerLine,
    Welcome,
    greeting_of,
    link_for,
    local_gateway,
    server_lines,
)
from gateway.serving.workers import announce
from gateway.version import __version__
from transports.background_tasks import Tasks

logger = logging.getLogger(__name__)

_COMMANDS: Final = "mcp-session-gateway sessions list, tail, top, doctor"

_EVERY_S: Final = 0.1
_TURNING: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_MARKS: Final = {"ok": ("✓", "green"), "starting": ("…", "yellow"), "failing": ("✗", "red")}
_MOST_SERVERS: Final = 12
"""The most servers that are listed on the screen. The others are counted."""


_CLEAR = "\r\x1b[2K"


class StatusLine:
    """Write logs to a terminal, with a status line below them. It serves as the stream of the log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._status = ""

    def show(self, status: str) -> None:
        """Replace the status line; an empty text removes it. The text must fit into one line."""
        if status != self._status:
            self._stream.write((_CLEAR if self._status else "") + status)
            self._stream.flush()
            self._status = status

    def write(self, text: str) -> int:
        """Write whole lines above the status line."""
        if not self._status:
            return self._stream.write(text)
        return self._stream.write(f"{_CLEAR}{text}{self._status if text.endswith(chr(10)) else ''}")

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        """Return True if the stream below is a terminal."""
        return self._stream.isatty()


class TerminalWelcome(Welcome):
    """Show the start of the gateway to people, on stderr. `status` is the terminal's status line; None if stderr is not
    a terminal, and then there is no sign-in link. `config` is the gateway's configuration file.

    While servers start, only warnings are logged, because the greeting shows the rest. With `verbose`, everything is
    logged.
    """

    def __init__(
        self, options: GatewaySettings, *, status: StatusLine | None, verbose: bool, config: Path | None
    ) -> None:
        self._config = config
        self.link: SignInLink | None = None if status is None else link_for(options)
        self._status = status
        self._is_quiet = not verbose
        self._began = monotonic()
        self._announced = contextlib.ExitStack()

    @contextlib.contextmanager
    def starting(self, gateway: Gateway) -> Iterator[None]:
        """Show in the status line, until the block ends, for which servers the start waits."""
        root = logging.getLogger()
        level = root.level
        if self._is_quiet:
            root.setLevel(max(level, logging.WARNING))
        tasks = Tasks("the greeting")
        progress = None if self._status is None else tasks.spawn(self._progress(gateway, self._status))
        try:
            yield
        finally:
            root.setLevel(level)
            if progress is not None:
                progress.cancel()
            if self._status is not None:
                self._status.show("")

    async def _progress(self, gateway: Gateway, status: StatusLine) -> None:
        turn = 0
        while True:
            line = progress_line(server_lines(gateway), monotonic() - self._began)
            width = shutil.get_terminal_size().columns - 3
            status.show(f"{_TURNING[turn % len(_TURNING)]} {visible_line(line)[:width]}")
            turn += 1
            await asyncio.sleep(_EVERY_S)

    def serves(self, gateway: Gateway, url: str, *, is_ready: bool) -> None:
        """Print the greeting, because the gateway now serves at `url`. If stderr is not a terminal, also print the line
        for which programs wait (`announce`). `is_ready`: `/readyz` answers 200."""
        is_announced = self._is_announced(gateway, url)
        greeting = greeting_of(gateway, url, self.link, is_ready=is_ready, is_announced=is_announced)
        Terminal(stderr=True).print(rendered(greeting, monotonic() - self._began))
        if self._status is None:
            announce(url, is_ready=is_ready)
        sys.stderr.flush()

    def ready(self, url: str) -> None:
        """Print the line for which programs wait (`announce`), because a gateway that already serves is ready now.
        Print nothing on a terminal, where people see in the log which server has answered."""
        if self._status is None:
            announce(url)

    def _is_announced(self, gateway: Gateway, url: str) -> bool:
        """Write the file by which other commands of this user find the gateway. Return True if it is written. It is not
        written if a server could read it, or if its folder cannot be used."""
        folder = runtime_folder()
        found = local_gateway(gateway, url, self.link, folder, self._config)
        if found is None:
            return False
        try:
            self._announced.enter_context(announced(found, folder))
        except OSError as error:
            logger.warning("commands in other terminals do not find this gateway: %s: %s", folder, error.strerror)
            return False
        return True

    def ended(self) -> None:
        """Remove the file by which commands find the gateway."""
        self._announced.close()


def progress_line(servers: tuple[ServerLine, ...], took_s: float) -> str:
    """Return the text of the status line during the start: the servers that have not answered yet, and the `took_s`
    seconds so far."""
    waiting = [one.name for one in servers if one.state == "starting"]
    if not waiting:
        return "starting"
    what = "the server" if len(servers) == 1 else f"{len(servers)} servers"
    return f"starting {what}, {took_s:.0f} s: waiting for {', '.join(waiting)}"


def rendered(greeting: Greeting, took_s: float) -> Text:
    """Return the text of the greeting. Lines are never wrapped, so that URLs can be clicked and copied."""
    text = Text()
    text.append("\n  MCP Session Gateway", "bold").append(f" {__version__}")
    if greeting.store_fault:
        text.append(f"  waits for its store after {took_s:.1f} s\n\n", "yellow")
    elif not greeting.is_ready:
        has_answer = any(one.state == "ok" for one in greeting.servers)
        why = "it waits for the other gateways" if has_answer else "no server has answered yet"
        text.append(f"  serves after {took_s:.1f} s, not ready: {why}\n\n", "yellow")
    else:
        text.append(f"  ready in {took_s:.1f} s\n\n", "dim")
    _fact(text, "URL", (greeting.url, "bold cyan"), (greeting.scope, "dim"))
    if greeting.console:
        _fact(text, "Console", (greeting.console, "cyan"))
        if greeting.has_link:
            _fact(text, "", ("signs you in, once, within the next 10 minutes", "dim"))
    if greeting.is_announced:
        _fact(text, "Operate", (_COMMANDS, ""))
    _add_servers(text, greeting.servers)
    _fact(text, "Sessions", (greeting.store, ""))
    if greeting.store_fault:
        _fact(text, "", (f"does not answer: {greeting.store_fault}", "yellow"))
        _fact(text, "", ("clients get 503 with Retry-After until it does", "yellow"))
    _fact(text, "Callers", (greeting.callers, ""))
    if greeting.gaps:
        gaps = f"is not fully effective on this machine for {greeting.gaps} of the servers: see the warnings above"
        _fact(text, "Sandbox", (gaps, "yellow"))
    command = snippet("claude-code", greeting.url, needs_token=greeting.needs_token).text.strip()
    _fact(text, "Connect", (command, "bold"))
    _fact(text, "", (f"other clients: mcp-session-gateway connect, or {greeting.url.removesuffix('/mcp')}/", "dim"))
    return text.append("\n  Press Ctrl+C to stop.\n", "dim")


def _fact(text: Text, label: str, *parts: tuple[str, str]) -> None:
    text.append(f"  {label:<10}", "dim")
    for number, (part, style) in enumerate(part for part in parts if part[0]):
        text.append("  " if number else "").append(visible_line(part), style)
    text.append("\n")


def _add_servers(text: Text, lines: tuple[ServerLine, ...]) -> None:
    shown = lines[:_MOST_SERVERS]
    width = max((len(one.name) for one in shown), default=0)
    for number, one in enumerate(shown):
        mark, colour = _MARKS[one.state]
        text.append(f"  {'' if number else 'Servers':<10}", "dim").append(f"{mark} ", colour)
        text.append(visible_line(f"{one.name:<{width}}  "), "bold")
        if one.state == "ok":
            tools = "" if one.tools is None else f"{one.tools} {'tool' if one.tools == 1 else 'tools'}"
            text.append(f"{tools:<10}").append(visible_line(f"{one.about:<20}"), "dim")
            text.append(f"sandbox {one.sandbox}" if one.sandbox else "", "dim")
        else:
            text.append(visible_line(one.about), colour)
        text.append("\n")
    if len(lines) > len(shown):
        _fact(text, "", (f"and {len(lines) - len(shown)} more", "dim"))
