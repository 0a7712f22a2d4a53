"""Check a configuration as `run` reads it, and compare its policy with the servers (`check`)."""

import asyncio
import contextlib
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.cli.error_exit import error_exit
from gateway.cli.find_configuration import configuration, required_configuration
from gateway.cli.options import ConfigOption, JsonOption, StrictOption, options
from gateway.cli.terminal_output import Terminal
from gateway.config.configuration_errors import located
from gateway.config.settings import ConfigurationError, Settings, load
from gateway.observability.escaped_text import as_json as to_json
from gateway.observability.escaped_text import visible_line

if TYPE_CHECKING:
    from gateway.config.tools_lock import ToolsLock
    from gateway.sandbox.shared_package_fetches import Packages
    from gateway.serving.gateway import Gateway
    from gateway.upstreams.configured_upstream import ConfiguredUpstream

_NAMED: Final = 3
"""The most sandboxes that one line of output names. Further ones are only counted."""

_FETCHED_WITHIN_S: Final = 600.0
"""Maximum seconds for fetching the packages of all servers."""

_QUIET_S: Final = 3.0
"""Seconds of waiting after which the command names the servers that have not answered yet."""

_err = Terminal(stderr=True)


@options
def check(
    config: ConfigOption = None,
    as_json: JsonOption = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not start or contact the servers.")] = False,
    strict: StrictOption = False,
) -> None:
    """Check a configuration file, and that its policy matches what the servers list. Exit status 1 if servers cannot be
    used, 2 if the file is invalid.

    Modules of `in_process` servers are imported. The other servers are started or contacted, unless --offline is given.
    """
    from gateway.config.secrets import key_ring
    from gateway.doctor.machine import check_workspaces
    from gateway.sandbox.sandbox_checks import (
        configured_sandboxes,
        refuse_cgroup,
        refuse_open,
        refuse_unheld,
        unprotected_secrets,
    )
    from transports.upstream.cgroup_delegation import find_delegation

    try:
        file = required_configuration(config)
        loaded = load(file)
        settings = loaded.settings
        key_ring(settings.gateway.store)
        warnings = [note.line for note in loaded.notes if note.level == "warning"]
        warnings += [f"{one.what}; {one.do}" for one in check_workspaces(settings) if one.state != "ok"]
        warnings += [] if settings.mcpServers else ["nothing to serve: mcpServers is empty or missing"]
        sandboxes = configured_sandboxes(settings)
        refuse_cgroup(settings.gateway.cgroup, find_delegation(settings.gateway.cgroup))
        refuse_unheld(sandboxes)
        refuse_open(sandboxes, settings)
        pairs = [(one.title, what) for one in sandboxes for what in (*one.missing, *one.not_granted)]
        move = "if it has secrets as text, move it, or the server, to another folder"
        pairs += [(one.title, f"its processes can read {at}: {move}") for one in sandboxes for at in one.opens([file])]
        pairs += [(one.title, what) for one in sandboxes if (what := unprotected_secrets(one, settings.gateway))]
        warnings += of_sandboxes(pairs)
        forgetful = [(one.server, what) for one in sandboxes for what in one.forgets]
        warnings += [f"server {name}: {what}" for name, what in dict.fromkeys(forgetful)]
        left_out = settings.left_out | _import_faults(settings, file)
        silent, more, drift = ({}, [], []) if offline else asyncio.run(_compared(settings))
        silent = {name: why for name, why in silent.items() if name not in left_out}
        if strict and (left_out or silent):
            raise ConfigurationError("\n".join([*chain.from_iterable(left_out.values()), *silent.values()]))
        warnings += more
    except ConfigurationError as error:
        message = located(str(error), configuration(config))
        if not as_json:
            raise error_exit(message) from None
        typer.echo(to_json({"good": False, "faults": message.splitlines()}))
        raise typer.Exit(2) from None
    ignored = [note.text for note in loaded.notes if note.level == "ignored"]
    served = [name for name in settings.mcpServers if name not in left_out]
    found = {
        "good": not left_out and not silent and not drift,
        "file": str(file),
        "servers": served,
        "left_out": left_out,
        "unanswered": [*silent],
        "warnings": [*warnings, *silent.values()],
        "ignored": ignored,
        "drift": drift,
    }
    if as_json:
        typer.echo(to_json(found))
    else:
        for kind, lines in (
            ("ignored", ignored),
            ("warning", warnings),
            ("error", [*chain.from_iterable(left_out.values()), *silent.values()]),
        ):
            for line in lines:
                _err.print_labelled(kind, line)
        for line in drift:
            typer.echo(line)
        typer.echo(_summary(file, served, [*left_out], [*silent], offline, has_drifted=bool(drift)))
    if not found["good"]:
        raise typer.Exit(1)


def of_sandboxes(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return the warnings of `check` about sandboxes. `pairs`: pairs of a sandbox's title and a sentence about it.
    Sandboxes with the same sentence share one line, which names at most `_NAMED` of them and counts the others."""
    titles: dict[str, list[str]] = {}
    for title, what in pairs:
        titles.setdefault(what, []).append(title)
    return [
        f"sandbox {', '.join(some[:_NAMED])}{f' and {more} more' if (more := len(some) - _NAMED) > 0 else ''}: {what}"
        for what, some in titles.items()
    ]


def _summary(
    config: Path, served: list[str], left_out: list[str], silent: list[str], offline: bool, *, has_drifted: bool
) -> str:
    """Return the last line that `check` prints. It says `ok` if no server is left out (`left_out`), each contacted
    server has answered (the others are in `silent`), and no list differs from the lock file (`has_drifted`). Otherwise
    it says what is wrong. `offline`: no server was contacted."""
    names = ", ".join(served) or "no servers"
    without = [f"without {', '.join(left_out)}"] if left_out else []
    without += [f"without an answer from {', '.join(silent)}"] if silent else []
    without += ["not as locked (`mcp-session-gateway lock` approves what is listed now)"] if has_drifted else []
    asked = "; no server was started or contacted" if offline else ""
    if without:
        return visible_line(f"{config}: valid ({names}), but {' and '.join(without)}{asked}")
    return visible_line(f"{config}: ok ({names}){asked}")


def _import_faults(settings: Settings, file: Path) -> dict[str, tuple[str, ...]]:
    """Import the objects that `in_process` names, as the gateway does at its start. Return the faults of each server
    whose object cannot be imported, by the server's name."""
    faults = {}
    for name, entry in settings.mcpServers.items():
        if entry.in_process:
            from gateway.upstreams.factory import load_object  # loads what serves

            try:
                load_object(name, entry.in_process)
            except ConfigurationError as error:
                faults[name] = tuple(located(str(error), file).splitlines())
    return faults


def why_silent(upstream: "ConfiguredUpstream", package: str) -> str:
    """Return the reason why a server did not answer, followed by its last output; empty if it has answered. `package`:
    the package that was not fetched for the server in time, or empty."""
    from gateway.calls.server_start_failures import with_output_tail

    state = upstream.state
    why = f"its package {package} was not fetched within {_FETCHED_WITHIN_S:.0f} s" if package else state.why_silent
    return with_output_tail(why, state.output_tail)


async def until_fetched(
    gateway: "Gateway", start_timeout_s: float, within_s: float = _FETCHED_WITHIN_S, quiet_s: float = _QUIET_S
) -> dict[str, str]:
    """Wait until each server has answered or failed. Then wait at most `within_s` seconds until all packages that are
    being fetched for servers are there, and these servers have answered or failed. Without this, the fetches would end
    with this process, and begin anew in the next one. Return the packages that were not fetched in time, by server;
    empty if there are none. Servers that have not answered after `quiet_s` seconds are named on stderr."""
    packages = gateway.parts.servers.packages
    announced = await _first_answers(gateway, start_timeout_s, quiet_s)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while wanted := [upstream for upstream in gateway.upstreams if packages.fetching(upstream.name)]:
                _say_what_is_fetched([upstream for upstream in wanted if upstream.name not in announced], packages)
                announced = frozenset()
                await packages.settled()
                await asyncio.wait([upstream.start_probe() for upstream in wanted])
            return {}
    found = {upstream.name: packages.fetching(upstream.name) for upstream in gateway.upstreams}
    return {name: package for name, package in found.items() if package}


async def _first_answers(gateway: "Gateway", start_timeout_s: float, quiet_s: float) -> frozenset[str]:
    """Wait until each server has answered or failed. After `quiet_s` seconds, print the names of the servers that are
    late. Return the names of those late servers whose packages were being fetched at that moment. `start_timeout_s` is
    only printed."""
    packages = gateway.parts.servers.packages
    asked = {upstream.start_probe(): upstream for upstream in gateway.upstreams if upstream.known.latest is None}
    if not asked:
        return frozenset()
    _, waiting = await asyncio.wait(asked, timeout=quiet_s)
    late = [upstream for task, upstream in asked.items() if task in waiting]
    fetched = [upstream for upstream in late if packages.fetching(upstream.name)]
    _say_what_is_fetched(fetched, packages)
    if silent := ", ".join(upstream.name for upstream in late if upstream not in fetched):
        _err.print_waiting(f"for {silent}: each has {start_timeout_s:.0f} s to answer in each era of MCP")
    await asyncio.wait(asked)
    return frozenset(upstream.name for upstream in fetched)


def _say_what_is_fetched(upstreams: Iterable["ConfiguredUpstream"], packages: "Packages") -> None:
    for upstream in upstreams:
        _err.print_labelled("fetching", f"{packages.fetching(upstream.name)} for server {upstream.name}")


async def _compared(settings: Settings) -> tuple[dict[str, str], list[str], list[str]]:
    """Start the servers, and compare their lists with the policy and the lock file. Return three things: for each
    server that did not answer, the reason, by the server's name; the warnings; and one line for each difference from
    the lock file.

    Raises:
        ConfigurationError: the policy does not match the servers' lists.
    """
    from gateway.observability.logs import configure_logging
    from gateway.serving.gateway import Gateway
    from gateway.upstreams.unmatched_patterns import CORRECT, MEND, review

    configure_logging("critical")
    gateway = Gateway.to_ask(settings)
    async with gateway.running():
        policy = settings.gateway.policy
        unfetched = await until_fetched(gateway, settings.gateway.limits.start_timeout_s)
        found = await review(gateway.upstreams, settings.gateway, gateway.calls)
        unasked = [one for one in gateway.upstreams if one.name in found.unasked]
        unchecked = "server {} did not answer, so its lists were not checked: {}".format
        silent = {one.name: unchecked(one.name, why_silent(one, unfetched.get(one.name, ""))) for one in unasked}
        drift = await _drift(gateway, policy.lock, [*silent, *settings.left_out])
    refused = [*found.unmatched, CORRECT] if found.unmatched and policy.unmatched_patterns == "refuse" else []
    if found.unusable and policy.check_arguments:
        refused += [*found.unusable, MEND]
    if refused:
        raise ConfigurationError("\n".join(refused))
    return silent, found.unbound + found.no_tasks + (found.unchecked if policy.check_arguments else []), drift


async def _drift(gateway: "Gateway", lock: "ToolsLock | None", unasked: list[str]) -> list[str]:
    """Return a line for each tool, prompt and resource template that differs from the lock file, and for each server
    that cannot be compared with it. Servers in `unasked`, and servers that are not locked, are left out."""
    from gateway.upstreams.lock_comparison import Unlockable, differences, lists_of

    lines: list[str] = []
    for upstream in gateway.upstreams:
        name = upstream.name
        if lock is None or name in unasked or not gateway.policy.locks(name):
            continue
        try:
            lines += differences(lock.servers.get(name), await lists_of(upstream), name)
        except Unlockable as error:
            lines.append(visible_line(f"server {name} cannot be compared with the lock: {error}"))
    return lines
