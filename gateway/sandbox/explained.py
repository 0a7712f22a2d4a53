"""Explains in plain words what a session of a server may touch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.sandbox.enclosures import Enclosures
from gateway.sandbox.package_folder import PackageFolder
from gateway.sandbox.server_sandboxes import ServerSandbox, told
from gateway.sandbox.system_paths import system_grants
from transports.upstream.delegation import Delegation
from transports.upstream.walls.spec import Walls

__all__ = ["explained", "lines_of"]

OWN: Final = "a folder of its own in each session: HOME, TMPDIR, and the working directory if none is set"


def explained(
    one: ServerSandbox,
    enclosures: Enclosures,
    package: PackageFolder | None,
    delegation: Delegation,
    walls: Walls | None = None,
) -> dict[str, Any]:
    """Return one sandbox of a server, as JSON. `package` is the folder of the package that its command names.
    `delegation` is where cgroups are. `walls` are those of a process that runs, with what its session has; without,
    what every session has is explained."""
    sandbox, enclosure = one.sandbox, enclosures.enclosure(one.sandbox)
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
            "cpu_s": sandbox.cpu_s,
            "total_memory_mb": sandbox.total_memory_mb if "memory" in delegation.controllers else 0,
            "processors": sandbox.processors if "cpu" in delegation.controllers else 0,
        },
        "cgroup": told(delegation),
        "watch": sandbox.watch,
        "variables": dict(enclosure.env),
        "not_granted": one.left_out,
        "withheld": enclosure.withheld,
        "missing": one.missing,
        "shared": one.shared,
    }


def _package(folder: PackageFolder) -> dict[str, Any]:
    """Return a fetched package, as JSON: when it was fetched (Unix time), and the folders of its program."""
    current = folder.current()
    fetched = {} if current is None else {"fetched_at": current.fetched_at, "execute": current.read}
    return {"folder": str(folder.path), "fetched_at": None, "execute": (), **fetched}


def lines_of(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sandbox for people."""
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
