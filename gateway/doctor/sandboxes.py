"""Checks whether the sandboxes of servers hold on this machine, and whether they grant what servers are given."""

from collections.abc import Iterator
from pathlib import Path

from gateway.config.settings import ConfigurationError, Settings
from gateway.doctor.findings import Finding, failure, ok, warning
from gateway.sandbox.enclosures import own_files
from gateway.sandbox.server_sandboxes import ServerSandbox, configured_sandboxes, refuse_cgroup, told
from transports.upstream.delegation import look

__all__ = ["check_sandboxes"]


def check_sandboxes(settings: Settings, config: Path | None = None) -> Iterator[Finding]:
    """One finding for each sandbox, one for each thing that a server's configuration names in vain, and one for each
    file with secrets of the gateway that a sandbox leaves open. `config` is the configuration's file."""
    own = own_files(settings.gateway)
    every = configured_sandboxes(settings)
    if any(found.sandbox.has_walls for found in every):
        yield _cgroups(settings.gateway.cgroup)
    for found in every:
        yield from _finding(found)
        do = "move the file, or the server, out of a folder that holds both"
        for file in found.opens(own):
            what = f"its processes can read {file}, which holds keys or sessions, so the gateway does not start"
            yield failure(f"sandbox {found.title}", what, do)
        for file in found.opens([config] if config is not None else ()):
            yield warning(f"sandbox {found.title}", f"its processes can read {file}, which is the gateway's", do)


def _cgroups(setting: str | None) -> Finding:
    delegation = look(setting)
    try:
        refuse_cgroup(setting, delegation)
    except ConfigurationError as error:
        return failure(
            "cgroups", str(error), "name the folder of a cgroup that the gateway's user may write to, or off"
        )
    return ok("cgroups", told(delegation))


def _finding(found: ServerSandbox) -> Iterator[Finding]:
    check = f"sandbox {found.title}"
    if not found.sandbox.has_walls:
        yield ok(check, f"off, by {found.sandbox.chosen_by}")
        return
    summary = f"{found.sandbox.profile}, by {found.sandbox.chosen_by}"
    if found.missing:
        state = failure if found.sandbox.required else warning
        do = (
            "use a newer kernel or a delegated cgroup (docs/sandbox.md), other limits of the container "
            "(docs/deploying.md), or a launcher"
        )
        yield state(check, f"{summary}: {' '.join(found.missing)}", do)
    else:
        yield ok(check, " ".join((f"{summary}; all of it holds on this machine.", *found.shared)).removesuffix("."))
    for what in found.left_out:
        name, _, advice = what.partition(": ")
        yield warning(check, f"{name} is not granted", advice)
