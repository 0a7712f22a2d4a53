"""Explain what a session of a server may touch, and learn what it needs (`sandbox explain`, `sandbox learn`)."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final

import typer

from gateway.cli.error_exit import error_exit
from gateway.cli.find_configuration import configuration
from gateway.cli.options import ConfigOption, JsonOption, NamedConfigOption, options
from gateway.config.configuration_errors import located
from gateway.config.hosts.file_formats import served_name
from gateway.config.settings import ConfigurationError, load
from gateway.config.upstreams import UpstreamSettings
from gateway.observability.escaped_text import as_json, visible_line
from gateway.protocol.methods import LISTS, METHODS
from gateway.sandbox.package_command import parse
from gateway.sandbox.profile_learning import Learnt, merge_tables
from gateway.sandbox.sandbox_checks import explained, lines_of, server_sandboxes
from gateway.sandbox.sandboxes_by_trust import sandboxes_of
from gateway.sandbox.shared_package_fetches import package_folder
from transports.upstream.cgroup_delegation import find_delegation
from transports.upstream.child_process import Process, ProcessFailed
from transports.upstream.walls.kernel_support import probe

_VERSION: Final = "2025-11-25"
_INTERPRETERS: Final = re.compile(r"(python|pypy|ruby)[\d.]*|node|nodejs|deno|bun|tsx|uv")
_SCRIPTS: Final = (".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".rb")
_QUESTIONS: Final = tuple(name for name in LISTS if name.count("/") == 1 and not METHODS[name].extension)
"""Methods that request lists. A server uses the same files for them whichever client asks."""

app = typer.Typer(help="Explain the sandboxes of servers.", no_args_is_help=True, add_completion=False)


@options
def learn(
    words: Annotated[list[str], typer.Argument(metavar="NAME | -- COMMAND ARG...", help="A server to run.")],
    config: NamedConfigOption = None,
    seconds: Annotated[float, typer.Option(min=0, help="End after this time; 0: at Ctrl-C, or with the client.")] = 0.0,
    write: Annotated[
        Path | None,
        typer.Option("--write", help="Also write the table to this file; new grants are added to an existing one."),
    ] = None,
) -> None:
    """Run a server that may touch everything, and print the grants that it needs under `strict`.

    On a terminal, the server is asked for its lists. Else its stdin and stdout are those of this command, so that a
    client can use the server meanwhile: then the grants are printed to stderr.
    """
    try:
        name, settings = _server(words, config)
        earlier = {} if write is None else _table_in(write)
        if probe().gate:
            raise ConfigurationError(f"a server cannot be watched on this machine: {probe().gate}")
    except ConfigurationError as error:
        raise error_exit(located(str(error), config)) from None
    try:
        found, code = asyncio.run(_learn(settings, seconds))
    except ProcessFailed as error:
        raise error_exit(f"{name} could not be started: {error}") from None
    entry: dict[str, Any] = {"command": settings.command, "args": [*settings.args]}
    if settings.env:
        entry["env"] = dict.fromkeys(settings.env, "...")  # values are often secrets
    table = merge_tables(earlier, found.table)
    shown = as_json({"mcpServers": {name: {**entry, "sandbox": table}}}, indent=2)
    aside = not sys.stdin.isatty()
    for remark in (*found.remarks, *said_of(found.table, by_hand=not aside, code=code)):
        typer.echo(visible_line(f"# {remark}"), err=True)
    typer.echo(shown, err=aside)
    if write is not None:
        write.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


def _table_in(file: Path) -> Mapping[str, Any]:
    """Return the table of earlier runs from a file; empty if the file does not exist. Call this before the server runs:
    after a day of watching, an error would come too late. Raises `ConfigurationError` if the file cannot be used."""
    try:
        found = json.loads(file.read_bytes() or b"{}")
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        merge_tables(found, {"profile": "strict"})
    except FileNotFoundError:
        if not os.access(file.parent, os.W_OK):
            raise ConfigurationError(
                f"--write {file}: no file can be written to {file.parent}: make it first"
            ) from None
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--write {file}: this is not a table of an earlier run: {error}") from None
    return found


def _server(words: list[str], config: Path | None) -> tuple[str, UpstreamSettings]:
    """Return the name and the settings of the server to run. With a configuration, `words` is the name of one of its
    servers. Without one, `words` is the server's command. Raises `ConfigurationError` for an unknown name."""
    if config is None:
        return name_of(words), UpstreamSettings(command=words[0], args=tuple(words[1:]))
    entries = load(config).settings.mcpServers
    entry = entries.get(words[0])
    if len(words) > 1 or entry is None or not entry.command:
        known = ", ".join(name for name, one in entries.items() if one.command) or "none"
        raise ConfigurationError(f"name one server of mcpServers that has a command: {known}")
    return words[0], entry


def name_of(argv: Sequence[str]) -> str:
    """Return a name for a server, derived from its command: from the package that the command runs, from the script or
    module that an interpreter runs, or from the program."""
    program = name = PurePosixPath(argv[0]).name
    if (package := parse(argv)) is not None:
        name = package.program or re.sub(r"(?<=.)@.*", "", package.head[-1]).rpartition("/")[2]
    elif _INTERPRETERS.fullmatch(program):
        name = next(_run_by_interpreter(argv[1:]), program)
    return served_name(re.sub("_+", "_", name)).strip("_.-") or "server"


def _run_by_interpreter(words: Sequence[str]) -> Iterator[str]:
    for word, after in pairwise((*words, "")):
        if word == "-m" and after:
            yield after
        elif word.endswith(_SCRIPTS):
            yield PurePosixPath(word).stem


def said_of(table: Mapping[str, Any], *, by_hand: bool, code: int | None) -> list[str]:
    """Return remarks on a learning run for the person at the terminal. `table` are the learnt grants. `by_hand`: no
    client has used the server. `code` is the exit code of a server that ended by itself; 0 or None otherwise."""
    said = []
    if code:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said.append(f"the server {how} while it was watched: the table may lack what it needs")
    elif table.keys() == {"profile"}:
        said.append('it used nothing beyond what `strict` grants: "sandbox": "strict" is enough for what it did')
    if by_hand:
        said.append("its tools were not called: let a client use this command to learn what they need")
    return said


async def _learn(settings: UpstreamSettings, seconds: float) -> tuple[Learnt, int | None]:
    """Run and watch the server until it ends, `seconds` have passed (0: no limit), or a signal or the client ends the
    run. Return the learnt grants, and the exit code if the server ended by itself (else None)."""
    from gateway.sandbox.profile_learning import run_watched  # other commands need not wait for what it loads

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    by_hand = sys.stdin.isatty()
    sink = _Output(stop.set, shows=not by_hand)
    async with run_watched(settings, sink, lambda line: _put(sys.stderr.buffer, line)) as (process, lesson):
        if by_hand:
            typer.echo("The server runs and is watched. End with Ctrl-C.", err=True)
            _ask(process)
        else:
            threading.Thread(target=_copy, args=(loop, process, stop.set), daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds or None):
                await stop.wait()
        code = sink.code
    return lesson.result(), code


class _Output:
    """Receive the output of the server that is watched. `shows`: write its lines to stdout, for a client. `ended` is
    called when the server has ended; `code` is then its exit code."""

    def __init__(self, ended: Callable[[], None], *, shows: bool) -> None:
        self._ended = ended
        self._shows = shows
        self.code: int | None = None

    def line(self, line: bytes) -> None:
        if self._shows:
            _put(sys.stdout.buffer, line)

    def oversized(self, head: bytes, tail: bytes) -> None:
        _put(sys.stderr.buffer, b"a message beyond the line limit was thrown away")

    def exited(self, code: int | None) -> None:
        self.code = code
        self._ended()


def _put(stream: Any, line: bytes) -> None:
    stream.write(line + b"\n")
    stream.flush()


def _ask(process: Process) -> None:
    """Send a handshake and requests for all lists to the server, for a run without a client. The answers are ignored;
    only what the server touches meanwhile counts."""
    client = {"name": "sandbox-learn", "version": "1"}
    opening = {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": client}
    _send(process, {"id": 0, "method": "initialize", "params": opening})
    _send(process, {"method": "notifications/initialized"})
    for number, method in enumerate(_QUESTIONS, 1):
        _send(process, {"id": number, "method": method, "params": {}})


def _send(process: Process, message: dict[str, Any]) -> None:
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def _copy(loop: asyncio.AbstractEventLoop, process: Process, ended: Callable[[], None]) -> None:
    """Forward the client's bytes from this command's stdin to the server. When stdin ends, have the event loop call
    `ended`. Runs in a thread."""
    with contextlib.suppress(RuntimeError, OSError):  # the loop has ended
        while data := os.read(sys.stdin.fileno(), 65_536):  # a buffered reader could not be left at the end
            loop.call_soon_threadsafe(process.stdin.write, data)
        loop.call_soon_threadsafe(ended)


@app.callback()
def sandbox() -> None:
    """Explain the sandboxes of servers."""


app.command("learn")(learn)


@app.command("explain")
@options
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the server in mcpServers.")],
    config: ConfigOption = None,
    in_json: JsonOption = False,
) -> None:
    """Print what a session of a server may touch, and what of this the machine cannot enforce. Nothing is started."""
    try:
        config = configuration(config)
        settings = load(config).settings
        entry = settings.mcpServers.get(name)
        if entry is None:
            known = ", ".join(settings.mcpServers) or "none"
            raise ConfigurationError(f"there is no server {name!r} in mcpServers; servers: {known}")
        if not entry.command:
            raise ConfigurationError(f"server {name!r} has no command, so the gateway starts no process for it")
        by_trust = sandboxes_of(name, entry, settings.gateway)
    except ConfigurationError as error:
        raise error_exit(located(str(error), config)) from None
    package = package_folder(entry)
    delegation = find_delegation(settings.gateway.cgroup)
    every = server_sandboxes({name: by_trust}, delegation=delegation)
    found = [explained(one, by_trust, package, delegation) for one in every]
    if in_json:
        typer.echo(as_json({"server": name, "sandboxes": found}, indent=2))
        return
    for one in found:
        for line in lines_of(name, one):
            typer.echo(visible_line(line))
    typer.echo("new processes get this; one that runs already keeps what it got: see `sessions show SESSION`")
