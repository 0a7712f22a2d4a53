"""Approve what servers list, and compare it with what was approved (`lock`)."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from gateway.cli.check import until_fetched
from gateway.cli.error_exit import error_exit
from gateway.cli.find_configuration import configuration, required_configuration
from gateway.cli.options import ConfigOption, options
from gateway.cli.terminal_output import Terminal
from gateway.config.configuration_errors import located
from gateway.config.load import gathered
from gateway.config.settings import ConfigurationError, GatewaySettings, Settings, load
from gateway.config.tools_lock import KINDS, Lists, read_lock
from gateway.observability.escaped_text import visible_line

FILE: Final = "tools.lock"
"""The lock file that is written if the configuration names none, in the folder of the configuration."""

_err = Terminal(stderr=True)


@options
def lock(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SERVER | SERVER/NAME]...", help="Approve only these. Default: all."),
    ] = None,
    config: ConfigOption = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="SERVER", help="A server that is not to be locked."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing. Exit status 1 if something differs.")] = False,
) -> None:
    """Approve the tools, prompts and resource templates that servers list: print how they differ from the lock, and
    write it. Exit status 1, and nothing is written, if a server cannot be locked.
    """
    try:
        file = required_configuration(config)
        at, is_set = _place(file)
        settings = load(file, {"policy": {"lock": None}}).settings
        before = read_lock(at).servers if at.exists() else {}
        wanted = _Wanted(settings, names or [], without or [])
        lists, faults = asyncio.run(
            _lists(settings, [name for name in settings.mcpServers if wanted.asks(name, before)])
        )
        faults |= {name: "; ".join(why) for name, why in settings.left_out.items() if wanted.asks(name, before)}
    except ConfigurationError as error:
        raise error_exit(located(str(error), configuration(config))) from None
    except ValueError as error:
        raise error_exit(str(error)) from None
    for name, why in faults.items():
        _err.print_labelled("error", visible_line(f"server {name} cannot be locked: {why}"))
    if faults:
        if not check:
            hint = f"{at} is not written: name the servers that it is for, or leave these out with --without SERVER"
            _err.print_labelled("error", visible_line(hint))
        raise typer.Exit(1)
    after = wanted.approved(before, lists)
    _finish(at, before, after, check=check)
    if not is_set:
        typer.echo(f'add to gateway in {visible_line(str(file))}:\n  "policy": {{"lock": "{FILE}"}}')


def _finish(at: Path, before: Mapping[str, Lists | None], after: Mapping[str, Lists | None], *, check: bool) -> None:
    """Print how the approved items change from `before` to `after`, and write the lock file `at`. `check`: write
    nothing, and exit with status 1 if the items change, else with 0."""
    from gateway.upstreams.lock_comparison import differences, write_lock

    for name in sorted(before.keys() | after.keys()):
        if name in after and after[name] is None and before.get(name, {}) is not None:
            typer.echo(visible_line(f"server {name} is not locked any more: all that it lists is approved"))
        for line in differences(before.get(name), after.get(name), name):
            typer.echo(line)
    if check:
        raise typer.Exit(1 if before != after else 0)
    try:
        write_lock(at, after)
    except OSError as error:
        raise error_exit(visible_line(f"{at} cannot be written: {error.strerror}")) from None
    count = sum(len(lists[kind]) for lists in after.values() if lists is not None for kind in KINDS if kind in lists)
    typer.echo(visible_line(f"{at}: {count} tools, prompts and resource templates are approved"))


class _Wanted:
    """Decide which servers and items `lock` approves. `names`: those on the command line, each `SERVER` or
    `SERVER/NAME`; empty: all. `without`: the servers that are not to be locked. Raises `ConfigurationError` for an
    unknown server."""

    def __init__(self, settings: Settings, names: list[str], without: list[str]) -> None:
        self._servers = tuple(settings.mcpServers)
        self._names = names
        self._without = without
        for name in (*without, *(each.partition("/")[0] for each in names)):
            if name not in self._servers:
                raise ConfigurationError(f"there is no server {name!r} in mcpServers")

    def asks(self, server: str, before: Mapping[str, Lists | None]) -> bool:
        """Return True if the command has to request the server's lists. `before`: the content of the present lock file,
        in which a server that is deliberately not locked has None. Such a server is skipped unless the command names
        it."""
        if server in self._without:
            return False
        if self._names:
            return any(each.partition("/")[0] == server for each in self._names)
        return before.get(server, {}) is not None

    def approved(self, before: Mapping[str, Lists | None], lists: Mapping[str, Lists]) -> dict[str, Lists | None]:
        """Return the new content of the lock file: for each server the approved items, or None if it is not to be
        locked. `before`: the present content; `lists`: what the requested servers list. Servers that were not requested
        keep their content. Servers that are not in the configuration are removed."""
        after: dict[str, Lists | None] = {}
        for server in self._servers:
            if server in self._without:
                after[server] = None
            elif server in lists:
                after[server] = self._part(server, before.get(server) or {}, lists[server])
            elif server in before:
                after[server] = before[server]
        return after

    def _part(self, server: str, before: Lists, lists: Lists) -> Lists:
        """Return the approved items of one server. `before`: its items in the present lock file; `lists`: what it lists
        now. If the command names single items, take these from `lists` and all others from `before`. Otherwise take all
        from `lists`."""
        if not self._names or server in self._names:
            return lists
        named = {each.partition("/")[2] for each in self._names if each.partition("/")[0] == server}
        unknown = named - {name for items in (*lists.values(), *before.values()) for name in items}
        if unknown:
            raise error_exit(visible_line(f"server {server} lists no {min(unknown)}"))
        return {
            kind: {name: item for name, item in before.get(kind, {}).items() if name not in named}
            | {name: item for name, item in lists.get(kind, {}).items() if name in named}
            for kind in KINDS
        }


def _place(file: Path) -> tuple[Path, bool]:
    """Return the path of the lock file, and whether the configuration `file` names it. If it names none, the path is
    that of the default name, in the folder of the configuration."""
    gateway = gathered(file, {}, GatewaySettings).document.get("gateway", {})
    policy = gateway.get("policy") if isinstance(gateway, dict) else None
    named = policy.get("lock") if isinstance(policy, dict) else None
    folder = file.absolute().parent
    if isinstance(named, str) and named:
        return folder / Path(named).expanduser(), True
    return folder / FILE, False


async def _lists(settings: Settings, names: list[str]) -> tuple[dict[str, Lists], dict[str, str]]:
    """Start the servers with these names, and request their lists. Return the lists by server. Return as well the
    reasons why servers cannot be locked, by server. A server that is left out of the configuration is in neither
    result."""
    from gateway.observability.logs import configure_logging
    from gateway.serving.gateway import Gateway
    from gateway.upstreams.lock_comparison import Unlockable, lists_of

    configure_logging("critical")
    lists: dict[str, Lists] = {}
    faults: dict[str, str] = {}
    some = settings.model_copy(update={"mcpServers": {name: settings.mcpServers[name] for name in names}})
    gateway = Gateway.to_ask(some)
    async with gateway.running():
        await until_fetched(gateway, settings.gateway.limits.start_timeout_s)
        for upstream in gateway.upstreams:
            if not upstream.is_left_out:
                try:
                    lists[upstream.name] = await lists_of(upstream)
                except Unlockable as error:
                    faults[upstream.name] = str(error)
    return lists, faults
