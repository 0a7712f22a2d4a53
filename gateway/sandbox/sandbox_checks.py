"""Report which parts of the configured sandboxes this machine cannot enforce, what configurations name but do not get
granted, and what a session may use. Refuse sandboxes that must not be used."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.sandbox import Sandbox
from gateway.config.settings import GatewaySettings, Settings
from gateway.sandbox.package_folder import PackageFolder
from gateway.sandbox.private_files import opened, own_files, with_link_targets
from gateway.sandbox.sandboxes_by_trust import TRUSTS, SandboxesByTrust, sandboxes_of
from gateway.sandbox.shared_package_fetches import package_folder
from gateway.sandbox.system_paths import system_grants
from transports.upstream.cgroup_delegation import OFF, Delegation, find_delegation
from transports.upstream.walls.kernel_support import Kernel, probe
from transports.upstream.walls.wall_specification import Walls

_CONTROLLERS: Final = {"memory": "memory", "pids": "process", "cpu": "processor"}
_ROOT: Final = str(Path(__file__).parents[2])
_PROBE: Final = """
import json, sys
from dataclasses import asdict
sys.path.append(sys.argv[1])
from transports.upstream.walls.kernel_support import probe
print(json.dumps(asdict(probe(namespaces=True))))
"""
_PROBE_TIMEOUT_S: Final = 20.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSandbox:
    """One sandbox of one server, and what it means on this machine."""

    server: str
    sandbox: Sandbox
    trusts: tuple[str, ...]
    """The trust levels of the sessions that the sandbox is for; empty: it is for all sessions."""
    missing: tuple[str, ...] = ()
    """A sentence for each part of the sandbox that this machine cannot enforce."""
    not_granted: tuple[str, ...] = ()
    """A sentence for each thing that the server's configuration names but that is not granted, with the way to grant
    it."""
    shared: tuple[str, ...] = ()
    """Sentences on what the processes lack on this machine, such as their own /tmp, although the sandbox is
    effective."""
    walls: Walls | None = None
    """The restrictions that every session has; None: the sandbox has none."""
    forgets: tuple[str, ...] = ()
    """A sentence for each file of data that ends with its session."""

    def opens(self, files: Collection[Path]) -> list[str]:
        """Return those of the given files that the sandbox lets its processes read."""
        return [str(file) for _, file in opened(self.walls, files)]

    @property
    def title(self) -> str:
        """Return the server's name, followed by the trust if the server has a sandbox for each trust."""
        return " ".join((self.server, *(f"({trust})" for trust in self.trusts)))


def describe_cgroups(delegation: Delegation) -> str:
    """Return in words where the cgroups of sandboxed servers are and what they limit, or why there are none."""
    if not delegation.root:
        return f"none, limits are those of each process ({delegation.lacks})"
    kept = [_CONTROLLERS[each] for each in delegation.controllers]
    return f"one for each in {delegation.root}, with {', '.join(kept) or 'no'} limits"


def ask_kernel() -> Kernel:
    """Find out in a child process which restrictions the kernel supports. Trying namespaces needs a fork, and a program
    with threads should not fork. Takes a tenth of a second.

    Raises:
        OSError, subprocess.SubprocessError: the process cannot be started or fails.
    """
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROBE, _ROOT]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_PROBE_TIMEOUT_S)
    return Kernel(**json.loads(done.stdout))


@cache
def kernel_for(namespaces: bool) -> Kernel:
    """Return which restrictions the kernel supports. With `namespaces`, these are tried as well, which takes a tenth of
    a second at the first call."""
    if namespaces:
        try:
            return ask_kernel()
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning("namespaces could not be tried: %s", error)
    return probe()


def server_sandboxes(
    servers: Mapping[str, SandboxesByTrust],
    kernel: Callable[[bool], Kernel] = kernel_for,
    *,
    delegation: Delegation,
) -> list[ServerSandbox]:
    """Return the sandboxes of `servers` (by name) in their order. A server has two: for direct and for sandboxed
    sessions. If both are equal, they are returned as one. `kernel` returns what the kernel supports; with the argument
    True, it tries namespaces, too. `delegation` says where cgroups can be made."""
    found: list[ServerSandbox] = []
    for name, by_trust in servers.items():
        sandboxes: dict[tuple[str, ...], Sandbox] = {(trust,): by_trust.sandbox(trust) for trust in TRUSTS}
        if len({*sandboxes.values()}) == 1:
            sandboxes = {(): by_trust.sandbox(TRUSTS[0])}
        for trusts, sandbox in sandboxes.items():
            found.append(server_sandbox_of(name, by_trust, sandbox, trusts, kernel, delegation=delegation))
    return found


def configured_sandboxes(settings: Settings) -> list[ServerSandbox]:
    """Return the sandboxes of all servers in a configuration that are started by a command (`server_sandboxes`)."""
    entries = {name: entry for name, entry in settings.mcpServers.items() if entry.kind == "command"}
    every = {name: sandboxes_of(name, entry, settings.gateway) for name, entry in entries.items()}
    return server_sandboxes(every, delegation=find_delegation(settings.gateway.cgroup))


def server_sandbox_of(
    name: str,
    by_trust: SandboxesByTrust,
    sandbox: Sandbox,
    trusts: tuple[str, ...],
    kernel: Callable[[bool], Kernel] = kernel_for,
    *,
    delegation: Delegation,
) -> ServerSandbox:
    """Return the `ServerSandbox` for one sandbox of the server `name`. The sandbox is for sessions of the trust levels
    `trusts`; empty: for all. `by_trust` has the walls of the server's sandboxes. `kernel` and `delegation` are as for
    `server_sandboxes`."""
    enclosure = by_trust.enclosure(sandbox)
    if enclosure is None:
        return ServerSandbox(server=name, sandbox=sandbox, trusts=trusts)
    walls = enclosure.walls
    here = kernel(walls.namespaces or walls.own_folders)
    return ServerSandbox(
        server=name,
        sandbox=sandbox,
        trusts=trusts,
        missing=(*here.missing(walls), *delegation.missing(walls.limits)),
        not_granted=enclosure.not_granted,
        shared=here.shared(walls),
        walls=walls,
        forgets=enclosure.forgets,
    )


def refuse_open(found: Sequence[ServerSandbox], settings: Settings) -> None:
    """Raise an error if a sandbox lets a server read the gateway's private files, or write the packages from which
    other processes start. Grants of code leave the private files out. The grant of a folder of data cannot leave files
    out.

    Raises:
        ConfigurationError: one line for each grant of each sandbox, with the first file that it opens.
    """
    files = with_link_targets(own_files(settings.gateway))
    walled = {one.server for one in found if one.walls is not None}
    fetched = [package_folder(entry) for name, entry in settings.mcpServers.items() if name in walled]
    folders = [folder.path for folder in fetched if folder is not None]
    faults: dict[tuple[str, str], str] = {}
    for one in found:
        for grant, folder in opened(one.walls, folders, "w"):
            faults.setdefault(
                (one.server, grant),
                f"mcpServers.{one.server}: its sandbox may write {grant}, and with it {folder}, from which sessions "
                "start; set XDG_CACHE_HOME to a folder outside of what is granted, or name a narrower folder",
            )
        for grant, file in opened(one.walls, files):
            faults.setdefault(
                (one.server, grant),
                f"mcpServers.{one.server}: its sandbox grants {grant}, and with it {file}, which holds keys, "
                "secrets or sessions of the gateway; move the file out of what is granted, or name a narrower folder",
            )
    if faults:
        raise ConfigurationError("\n".join(faults.values()))


def unprotected_secrets(one: ServerSandbox, options: GatewaySettings) -> str:
    """Return a sentence for the operator if a server's sandbox `one` restricts nothing, so that its processes can read
    the files of configured secrets. It names the secrets, and after a `;` it says what to do. Otherwise return an
    empty string."""
    names = ", ".join(f"gateway.secrets.{name}" for name, secret in options.secrets.items() if secret.files)
    if not names or not one.sandbox.is_unrestricted:
        return ""
    return (
        f"nothing keeps its processes from reading the files of {names}, for every principal; give it the sandbox "
        "standard or strict, or a launcher that hides these files"
    )


def refuse_unheld(found: Iterable[ServerSandbox]) -> None:
    """Raise an error if this machine cannot enforce a required sandbox.

    Raises:
        ConfigurationError: one line for each such sandbox, with all parts that cannot be enforced.
    """
    faults = []
    for one in found:
        if one.sandbox.required and one.missing:
            where = f"mcpServers.{one.server}.sandbox"
            why = " ".join(one.missing)
            faults.append(f"{where}: {one.sandbox.profile} is required, but this machine cannot enforce it. {why}")
    if faults:
        raise ConfigurationError("\n".join(dict.fromkeys(faults)))


def refuse_cgroup(setting: str | None, delegation: Delegation) -> None:
    """Raise an error if the operator has chosen a cgroup folder (`setting`) that cannot be used. `delegation` is the
    result of the search for it.

    Raises:
        ConfigurationError: the folder cannot be used; the message says why.
    """
    if setting not in (None, OFF) and not delegation.root:
        raise ConfigurationError(f"gateway.cgroup: {delegation.lacks}")


def log_sandboxes(found: Iterable[ServerSandbox], delegation: Delegation | None = None) -> None:
    """Log the sandboxes, the parts of them that this machine cannot enforce, what configurations name but do not get
    granted, and the files of data that end with their session."""
    walled = [one for one in found if one.sandbox.has_walls]
    if walled and delegation is not None:
        logger.info("cgroups of sandboxes: %s", describe_cgroups(delegation))
    if walled:
        logger.info("sandboxes: %s", ", ".join(f"{one.title} {one.sandbox.profile}" for one in walled))
    for sentence in dict.fromkeys(sentence for one in walled for sentence in one.missing):
        concerned = dict.fromkeys(one.server for one in walled if sentence in one.missing)
        logger.warning("the sandbox of %s is not fully effective: %s", ", ".join(concerned), sentence)
    for sentence in dict.fromkeys(sentence for one in walled for sentence in one.shared):
        concerned = dict.fromkeys(one.server for one in walled if sentence in one.shared)
        logger.info("the sandbox of %s is effective, with a restriction: %s", ", ".join(concerned), sentence)
    for name, what in dict.fromkeys((one.server, what) for one in walled for what in one.not_granted):
        logger.warning("mcpServers.%s: not granted to its sandbox: %s", name, what)
    for name, what in dict.fromkeys((one.server, what) for one in walled for what in one.forgets):
        logger.warning("server %s: %s", name, what)


OWN: Final = "a folder of its own in each session: HOME, TMPDIR, and the working directory if none is set"


def explained(
    one: ServerSandbox,
    by_trust: SandboxesByTrust,
    package: PackageFolder | None,
    delegation: Delegation,
    walls: Walls | None = None,
) -> dict[str, Any]:
    """Return what the sandbox `one` of a server grants and limits, as values for JSON. `package` is the folder of the
    fetched package that the server's command names, if it names one. `delegation` says where cgroups can be made.
    `walls` are the restrictions of a running process, with the grants of its session; None: explain what every session
    has."""
    sandbox, enclosure = one.sandbox, by_trust.enclosure(one.sandbox)
    found: dict[str, Any] = {
        "sessions": one.trusts or ("direct", "sandboxed"),
        "profile": sandbox.profile,
        "chosen_by": sandbox.chosen_by,
        "required": sandbox.required,
        "launcher": sandbox.launcher,
    }
    if enclosure is None:
        return found
    walls = enclosure.walls if walls is None else walls
    assert walls.reach is not None  # every profile with walls has one
    reach = walls.reach
    by_mode: dict[str, list[str]] = {"l": [], "rx": [], "r": [], "rw": []}
    for grant in walls.grants:
        by_mode["rw" if "w" in grant.mode else grant.mode].append(grant.path)
    return found | {
        "list": by_mode["l"],
        "execute": by_mode["rx"],
        "package": None if package is None else _package(package),
        "read": by_mode["r"],
        "write": by_mode["rw"],
        "own": ["HOME", "TMPDIR", *(["cwd"] if enclosure.moves else [])],
        "cwd": None if enclosure.moves else enclosure.cwd,
        "reach": {"public": reach.public, "hosts": reach.hosts, "never": reach.refused},
        "sockets": reach.sockets,
        "listen": reach.listen,
        "limits": {
            "memory_mb": sandbox.memory_mb,
            "processes": sandbox.processes,
            "files": sandbox.files,
            "total_memory_mb": sandbox.total_memory_mb if "memory" in delegation.controllers else 0,
            "processors": sandbox.processors if "cpu" in delegation.controllers else 0,
        },
        "cgroup": describe_cgroups(delegation),
        "watch": sandbox.watch,
        "variables": {
            **enclosure.env,
            **{name: value.format(home="$HOME", temporary="$TMPDIR") for name, value in enclosure.own_env.items()},
        },
        "not_granted": one.not_granted,
        "withheld": enclosure.withheld,
        "missing": one.missing,
        "shared": one.shared,
    }


def _package(folder: PackageFolder) -> dict[str, Any]:
    """Return facts about a package, as values for JSON: its folder, when it was fetched (Unix time; None: not yet), and
    the files and folders of its program."""
    current = folder.current()
    fetched = {} if current is None else {"fetched_at": current.fetched_at, "execute": current.read}
    return {"folder": str(folder.path), "fetched_at": None, "execute": (), **fetched}


def lines_of(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that describe a sandbox of the server `name` to people. `found` is the result of `explained`."""
    whose = "all sessions" if len(found["sessions"]) == 2 else f"{found['sessions'][0]} sessions"
    yield f"server {name}, {whose}: {found['profile']}, by {found['chosen_by']}"
    if found["launcher"]:
        yield f"  launcher: {' '.join(found['launcher'])}"
    if found["profile"] == "off":
        yield "  files, hosts, processes: whatever the gateway's user may touch"
        return
    yield f"  write: {OWN}"
    devices = [path for path in found["write"] if path.startswith("/dev/")]
    yield from (f"  write: {path}" for path in found["write"] if path not in devices)
    yield f"  write: {_list(devices)}"
    yield from (f"  read, execute: {path}" for path in found["execute"])
    if (package := found["package"]) is not None:
        if package["fetched_at"] is None:
            yield f"  read, execute: its package, which is fetched into {package['folder']}"
        yield from (f"  read, execute: {path}, its package" for path in package["execute"])
    # What every sandbox has is one line: it would hide what this one has besides. JSON has all paths.
    of_system = {grant.path for grant in system_grants()}
    yield from (f"  read: {path}" for path in found["read"] if path not in of_system)
    if count := sum(path in of_system for path in found["read"]):
        yield f"  read: {count} files and folders of the system, which every sandbox has (--json has their names)"
    reach = found["reach"]
    yield from (f"  reach: {host}" for host in (*(["public hosts"] if reach["public"] else []), *reach["hosts"]))
    if not reach["public"] and not reach["hosts"]:
        yield "  reach: nothing"
    yield from (f"  never: {host}, where the gateway listens" for host in reach["never"])
    yield f"  Unix sockets: {_list(('that of its session', *found['sockets']))}"
    ports = ["on loopback, a port of the kernel's choice" if port == 0 else f"on {port}" for port in found["listen"]]
    yield f"  listen: {_list(ports) or 'on no port'}"
    yield f"  limits: {_list([f'{limit} {value}' for limit, value in found['limits'].items() if value]) or 'none'}"
    yield f"  cgroup: {found['cgroup']}"
    if found["watch"]:
        yield "  watch: refused files are counted and logged, as refused connections are"
    yield from (f"  variable {variable} = {value}" for variable, value in found["variables"].items())
    yield from (f"  withheld: {path}, as it may hold others' tokens (else: read)" for path in found["withheld"])
    yield from (f"  not granted: {what}" for what in found["not_granted"])
    yield from (f"  on this machine: {what}" for what in found["shared"])
    yield from (f"  does not hold on this machine: {what}" for what in found["missing"])
    if found["missing"] and found["required"]:
        yield "  the gateway does not start here, because the sandbox is required"


def _list(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))
