"""What of the configured sandboxes holds on this machine, and what a server's configuration names in vain."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from gateway.config.faults import ConfigurationError
from gateway.config.sandbox import Sandbox
from gateway.config.settings import Settings
from gateway.sandbox.enclosures import TRUSTS, Enclosures, enclosures_of, opened
from transports.upstream.delegation import OFF, Delegation, look
from transports.upstream.walls.kernel import Kernel, probe
from transports.upstream.walls.spec import Walls

__all__ = [
    "ServerSandbox",
    "ask_kernel",
    "configured_sandboxes",
    "log_sandboxes",
    "refuse_cgroup",
    "refuse_open",
    "refuse_unheld",
    "server_sandbox_of",
    "server_sandboxes",
    "told",
]

_CONTROLLERS: Final = {"memory": "memory", "pids": "process", "cpu": "processor"}
_ROOT: Final = str(Path(__file__).parents[2])
_PROBE: Final = """
import json, sys
from dataclasses import asdict
sys.path.append(sys.argv[1])
from transports.upstream.walls.kernel import probe
print(json.dumps(asdict(probe(namespaces=True))))
"""
_PROBE_TIMEOUT_S: Final = 20.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSandbox:
    """One sandbox of one server. `trusts` are the sessions that it is for, all of them if it is empty. `missing` says
    what of it does not hold on this machine. `left_out` says what the server's configuration names and is not granted,
    with the setting that would grant it."""

    server: str
    sandbox: Sandbox
    trusts: tuple[str, ...]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    shared: tuple[str, ...] = ()
    """What its processes do without on this machine, although nothing is open for it."""
    walls: Walls | None = None

    def opens(self, files: Iterable[Path]) -> list[str]:
        """Return those of the files that its processes may read."""
        return [str(file) for _, file in opened(self.walls, files)]

    @property
    def title(self) -> str:
        """The server, and for whom the sandbox is if there are two."""
        return " ".join((self.server, *(f"({trust})" for trust in self.trusts)))


def told(delegation: Delegation) -> str:
    """Return where each sandboxed server has a cgroup, and what is limited there, or why there are none."""
    if not delegation.root:
        return f"none, limits are those of each process ({delegation.lacks})"
    kept = [_CONTROLLERS[each] for each in delegation.controllers]
    return f"one for each in {delegation.root}, with {', '.join(kept) or 'no'} limits"


def ask_kernel() -> Kernel:
    """Ask a short process of its own what the kernel can: to try namespaces takes a fork, which a program with threads
    should not do. Takes a tenth of a second.

    Raises:
        OSError, subprocess.SubprocessError: the process cannot be started or fails.
    """
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROBE, _ROOT]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_PROBE_TIMEOUT_S)
    return Kernel(**json.loads(done.stdout))


@cache
def kernel_for(namespaces: bool) -> Kernel:
    """Return what the kernel can. To try namespaces takes a tenth of a second."""
    if namespaces:
        try:
            return ask_kernel()
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning("namespaces could not be tried: %s", error)
    return probe()


def server_sandboxes(
    servers: Mapping[str, Enclosures],
    kernel: Callable[[bool], Kernel] = kernel_for,
    delegation: Delegation | None = None,
) -> list[ServerSandbox]:
    """Return the sandboxes of servers with a command, in the order of the servers. One for both trusts is there once.
    `kernel` returns what the kernel can, and whether it has namespaces if that is asked for. `delegation` is where
    their cgroups are; without it there are none."""
    tree = delegation or Delegation(lacks="no cgroups were looked for")
    return [found for name, one in servers.items() for found in _of_server(name, one, kernel, tree)]


def configured_sandboxes(settings: Settings) -> list[ServerSandbox]:
    """Return the sandboxes of a configuration."""
    entries = {name: entry for name, entry in settings.mcpServers.items() if entry.command}
    every = {name: enclosures_of(name, entry, settings.gateway) for name, entry in entries.items()}
    return server_sandboxes(every, delegation=look(settings.gateway.cgroup))


def _of_server(
    name: str, enclosures: Enclosures, kernel: Callable[[bool], Kernel], delegation: Delegation
) -> Iterable[ServerSandbox]:
    sandboxes = {trust: enclosures.sandbox(trust) for trust in TRUSTS}
    both = len(set(sandboxes.values())) == 1
    for trust, sandbox in sandboxes.items():
        if both and trust != TRUSTS[0]:
            return
        yield server_sandbox_of(name, enclosures, sandbox, () if both else (trust,), kernel, delegation=delegation)


def server_sandbox_of(
    name: str,
    enclosures: Enclosures,
    sandbox: Sandbox,
    trusts: tuple[str, ...] = (),
    kernel: Callable[[bool], Kernel] = kernel_for,
    *,
    delegation: Delegation,
) -> ServerSandbox:
    """Return one sandbox of one server."""
    enclosure = enclosures.enclosure(sandbox)
    walls = None if enclosure is None else enclosure.walls
    missing: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    if walls is not None:
        here = kernel(walls.namespaces or walls.own_folders)
        missing = (*here.missing(walls), *delegation.missing(walls.limits))
        shared = here.shared(walls)
    return ServerSandbox(
        server=name,
        sandbox=sandbox,
        trusts=trusts,
        missing=missing,
        left_out=() if enclosure is None else enclosure.left_out,
        shared=shared,
        walls=walls,
    )


def refuse_open(found: Iterable[ServerSandbox], files: Iterable[Path]) -> None:
    """Refuse sandboxes that grant files which no server may read. A grant of a folder cannot leave out a file in it.

    Raises:
        ConfigurationError: one line for each grant of each sandbox, with the first file that it opens.
    """
    files = list(files)
    faults: dict[tuple[str, str], str] = {}
    for one in found:
        for grant, file in opened(one.walls, files):
            faults.setdefault(
                (one.server, grant),
                f"mcpServers.{one.server}: its sandbox grants {grant}, and with it {file}, which holds keys or "
                "sessions of the gateway; move the file out of what is granted, or name a narrower folder",
            )
    if faults:
        raise ConfigurationError("\n".join(faults.values()))


def refuse_unheld(found: Iterable[ServerSandbox]) -> None:
    """Refuse what is required and does not hold.

    Raises:
        ConfigurationError: one line for each such sandbox, with all that does not hold.
    """
    faults = []
    for one in found:
        if one.sandbox.required and one.missing:
            where = f"mcpServers.{one.server}.sandbox"
            why = " ".join(one.missing)
            faults.append(f"{where}: {one.sandbox.profile} is required, and does not hold on this machine. {why}")
    if faults:
        raise ConfigurationError("\n".join(dict.fromkeys(faults)))


def refuse_cgroup(setting: str | None, delegation: Delegation) -> None:
    """Refuse a folder of the operator's choice that cannot be used.

    Raises:
        ConfigurationError: why it cannot.
    """
    if setting not in (None, OFF) and not delegation.root:
        raise ConfigurationError(f"gateway.cgroup: {delegation.lacks}")


def log_sandboxes(found: Iterable[ServerSandbox], delegation: Delegation | None = None) -> None:
    """Log which sandboxes there are, what of them does not hold, and what is named in vain."""
    walled = [one for one in found if one.sandbox.has_walls]
    if walled and delegation is not None:
        logger.info("cgroups of sandboxes: %s", told(delegation))
    if walled:
        logger.info("sandboxes: %s", ", ".join(f"{one.title} {one.sandbox.profile}" for one in walled))
    for sentence in dict.fromkeys(sentence for one in walled for sentence in one.missing):
        concerned = dict.fromkeys(one.server for one in walled if sentence in one.missing)
        logger.warning("the sandbox of %s does not hold as a whole: %s", ", ".join(concerned), sentence)
    for sentence in dict.fromkeys(sentence for one in walled for sentence in one.shared):
        concerned = dict.fromkeys(one.server for one in walled if sentence in one.shared)
        logger.info("the sandbox of %s holds, and lacks a comfort: %s", ", ".join(concerned), sentence)
    for name, what in dict.fromkeys((one.server, what) for one in walled for what in one.left_out):
        logger.warning("mcpServers.%s: not granted to its sandbox: %s", name, what)
