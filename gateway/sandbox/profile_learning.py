"""Run a server without restrictions, and record what it and its child processes touch. From this, derive the fewest
grants with which the server works in a sandbox."""

import asyncio
import ipaddress
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import Any, Final

from gateway.config.sandbox import LIMITS, Sandbox
from gateway.config.upstreams import UpstreamSettings
from gateway.sandbox.gate_channels import SandboxGates
from gateway.sandbox.host_name_lookups import Lookups, addresses_of
from gateway.sandbox.refusal_reports import Refusals, SessionRefusals
from gateway.sandbox.system_paths import is_broad, real
from gateway.sandbox.walls_from_profile import Enclosure, OwnFolder, enclosure_of
from transports.upstream.child_process import Command, LineSink, Process
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.stdio import HOME, inherited
from transports.upstream.walls.network_rules import kind_of
from transports.upstream.walls.resolved_paths import is_within
from transports.upstream.walls.wall_specification import Grant, Reach, Walls

_MANY: Final = 4
"""The number of needed files in a folder from which the whole folder is granted."""

_KEYS: Final = frozenset(
    ".ssh .gnupg .aws .azure .kube .docker .netrc .npmrc .pypirc .git-credentials .password-store .mozilla "
    ".bash_history .zsh_history .python_history gcloud gh google-chrome chromium shadow gshadow sudoers docker.sock "
    "S.gpg-agent".split()
)
"""Parts of a path that lead to credentials, or to sockets that act with another's authority."""
_ROWS: Final = {"read": str, "write": str, "reach": str, "sockets": str, "listen": int}
"""The lists in a learnt table, each with the type of its items."""
_MOST_NAMES: Final = 50
_IGNORED: Final = ("/proc", "/dev/pts", "/dev/tty", "/dev/ptmx")
_CHOSEN_BY_KERNEL: Final = 32_768


@dataclass(slots=True)
class Learnt:
    """The sandbox that a server needs, as learnt from a run of it."""

    table: dict[str, Any]
    """A value for the setting `sandbox`."""
    remarks: list[str] = field(default_factory=list)
    """Sentences for the operator on what `table` does not grant or grants more broadly, the dangerous things first."""

    def add_unused(self, names: Iterable[str]) -> None:
        """Add a remark for each name that the server has looked up (`names`) but that is not among the granted
        hosts."""
        hosts = {host.rpartition(":")[0] for host in self.table.get("reach", ())}
        for name in islice((name for name in dict.fromkeys(names) if name not in hosts), _MOST_NAMES):
            self.remarks.append(
                f"it asked for the name {name} and reached no public address of it: reach, if it should"
            )


def learnt(
    touched: Iterable[tuple[str, str]], *, names: Mapping[str, str], grants: Sequence[Grant], own: Sequence[str]
) -> Learnt:
    """Return the sandbox that a server needs, derived from what it has touched in a run.

    `touched` has pairs of kind and thing, as the gate reports them (`Touched.add`). `names` has the host name of each
    address that was looked up. What `grants` of the profile `strict` allow, and folders in `own`, which each session
    has of its own, need no further grant.
    """
    found = Learnt({"profile": "strict"})
    things = dict.fromkeys(touched)
    free = {letter: [*own, *(grant.path for grant in grants if letter in grant.mode)] for letter in "rwx"}
    listable = {grant.path for grant in grants if grant.mode == "l"}
    wanted = {
        letter: [
            what
            for kind, what in things
            if kind == letter and not is_within(what, (*_IGNORED, *free[letter])) and what not in listable
        ]
        for letter in "rwx"
    }
    write = _folded(found, wanted["w"], "writes")
    read = _folded(found, [path for path in wanted["r"] + wanted["x"] if not is_within(path, write)], "reads")
    listens = [(address, int(port)) for kind, what in things if kind == "listen" for address, port in [what.split(" ")]]
    rows = {
        "read": read,
        "write": write,
        "reach": _hosts(
            found, (what for kind, what in things if kind == "connect"), names, (port for _, port in listens)
        ),
        "sockets": _sockets(found, (what for kind, what in things if kind == "socket"), own),
        "listen": _ports(found, listens),
    }
    found.table |= {name: row for name, row in rows.items() if row}
    found.remarks.sort(key=lambda remark: not remark.startswith("DANGER"))
    return found


def merge_tables(earlier: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table (a value for the setting `sandbox`) with the grants of two that were learnt in different runs.

    Raises:
        ValueError: `earlier` is not a learnt table.
    """
    both: dict[str, Any] = {"profile": table["profile"]}
    for name, kind in _ROWS.items():
        before = earlier.get(name, [])
        if not (isinstance(before, list) and all(isinstance(one, kind) for one in before)):
            raise ValueError(f"its {name} is not a list of grants")
        both[name] = sorted({*before, *table.get(name, ())})
    if unknown := earlier.keys() - both.keys():
        raise ValueError(f"it has {min(unknown)!r}, which is never learnt")
    write = both["write"]
    both["write"] = [path for path in write if not is_within(path, {*write} - {path})]
    both["read"] = [path for path in both["read"] if not is_within(path, ({*both["read"]} - {path}) | {*write})]
    return {name: row for name, row in both.items() if row}


def _is_of_keys(path: str) -> bool:
    return not _KEYS.isdisjoint(PurePosixPath(path).parts)


def _folded(found: Learnt, paths: Sequence[str], does: str) -> list[str]:
    """Return the paths to grant, of those that a server has used. `does` says how: "reads" or "writes". Many files of
    one folder are replaced by the folder. Dangerous or too broad paths are left out. `found` gets remarks on both."""
    field = {"reads": "read", "writes": "write"}[does]
    kept: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        if _is_of_keys(path):
            found.remarks.append(
                f"DANGER: it {does} {path}, which holds keys or another's authority. This is not granted. If you trust "
                f"the server with it: {field}"
            )
        elif is_broad(path):
            found.remarks.append(f"it {does} {path} itself, which holds too much to be granted as a whole: see {field}")
        else:
            kept.setdefault(os.path.dirname(path), []).append(path)
    folded: list[str] = []
    for folder, files in kept.items():
        folds = len(files) >= _MANY and not is_broad(folder) and not _is_of_keys(folder)
        folded += [folder] if folds else files
        if folds:
            found.remarks.append(f"it {does} {len(files)} things in {folder}: the folder is granted as a whole")
    return sorted(path for path in set(folded) if not is_within(path, set(folded) - {path}))


def _hosts(found: Learnt, addresses: Iterable[str], names: Mapping[str, str], own_ports: Iterable[int]) -> list[str]:
    hosts: dict[str, None] = {}
    own = set(own_ports)
    for what in addresses:
        host, _, port = what.rpartition(":")
        host = host.strip("[]")
        kind, _ = kind_of(ipaddress.ip_address(host))
        if kind in ("metadata", "link-local"):
            found.remarks.append(
                f"DANGER: it connects to {what}, a {kind} address, which may hand out the machine's credentials. This "
                "is not granted. If you mean it: reach"
            )
        elif kind == "loopback":
            if int(port) not in own:  # its own listener needs no grant
                hosts[f"localhost:{port}"] = None
        elif kind == "public" and host in names:
            hosts[f"{names[host]}:{port}"] = None
        else:
            hosts[what] = None
            if kind != "public" and host in names:
                found.remarks.append(
                    f"{names[host]} is {host}, a {kind} address: a name does not open it, so the address is listed"
                )
    return sorted(hosts)


def _sockets(found: Learnt, paths: Iterable[str], own: Sequence[str]) -> list[str]:
    kept = []
    for path in dict.fromkeys(paths):
        if _is_of_keys(path) or "agent" in path:
            found.remarks.append(
                f"DANGER: it connects to {path}, which acts with another's authority. This is not granted. If you mean "
                "it: sockets"
            )
        elif not is_within(path, own):
            kept.append(path)
    return sorted(kept)


def _ports(found: Learnt, listens: Iterable[tuple[str, int]]) -> list[int]:
    kept = set()
    for address, port in listens:
        if port >= _CHOSEN_BY_KERNEL:
            found.remarks.append(
                f"it listens on {address} port {port}, which the kernel may have chosen. This is not granted: "
                "`standard` lets it listen on loopback"
            )
        elif port:
            kept.add(port)
    return sorted(kept)


_EVERYTHING: Final = Walls(
    profile="learn",
    grants=(Grant(path="/", mode="rwx"),),
    reach=Reach(public=True, names=True, hosts=("*",), sockets=("/",)),
    watch="everything",
)


class Lesson:
    """Record the files, hosts and other things that a server touches while it runs."""

    def __init__(self, enclosure: Enclosure, own: OwnFolder) -> None:
        self._enclosure = enclosure
        self._own = own
        self._touched: dict[tuple[str, str], None] = {}
        self._names: dict[str, str] = {}
        self._asked: dict[str, None] = {}

    def add(self, kind: str, what: str) -> None:
        """Record one file, address or other thing that the server has touched. The system call gate has reported its
        kind and its name (`Touched.add`)."""
        self._touched[kind, what] = None

    def resolve(self, name: str) -> list[str]:
        """Return the addresses of a name that the server looks up, and record that they belong to this name. Runs in a
        thread. Raises `socket.gaierror`."""
        self._asked[name] = None
        found = addresses_of(name)
        self._names.update(dict.fromkeys(found, name))
        return found

    def result(self) -> Learnt:
        """Return the grants that the server needs under `strict`."""
        own = (os.path.realpath(self._own.path),)
        found = learnt(self._touched, names=self._names, grants=self._enclosure.walls.grants, own=own)
        found.add_unused(self._asked)
        return found


@asynccontextmanager
async def run_watched(
    settings: UpstreamSettings, sink: LineSink, stderr: Callable[[bytes], None]
) -> AsyncIterator[tuple[Process, Lesson]]:
    """Run a server during an `async with` block, without restrictions but with a folder of its own, as under `strict`.
    Yield its process and the `Lesson`, which records what the server touches. `sink` gets the lines of its stdout,
    `stderr` those of its stderr.

    Raises:
        ProcessFailed: the command cannot be started.
    """
    variables = inherited()
    limits: dict[str, Any] = dict(LIMITS["strict"])
    enclosure = await asyncio.to_thread(
        enclosure_of, settings, Sandbox(profile="strict", **limits), inherited=variables
    )
    with tempfile.TemporaryDirectory(prefix="mcp-learn-", ignore_cleanup_errors=True) as folder:
        own = OwnFolder(Path(real(folder)))
        for made in (own.home, own.temporary):
            made.mkdir()
        given = enclosure.process(own)
        # Python does without compiled files. A grant to write them would let each session change what others run.
        env = {**variables, "PYTHONDONTWRITEBYTECODE": "1", **given.env, **settings.env}
        lesson = Lesson(enclosure, own)
        refusals = Refusals(Counter(), _unheard, monotonic, SessionRefusals(monotonic), lesson.add)
        command = Command(
            argv=settings.argv,
            env=env,
            cwd=env["HOME"] if given.cwd == HOME else given.cwd,
            walls=_EVERYTHING,
        )
        async with ForkServer(SandboxGates(refusals, Lookups(lesson.resolve))) as fork_server:
            process = await fork_server.spawn(command, sink, stderr=stderr)
            try:
                yield process, lesson
            finally:
                await process.shutdown(grace_s=2.0)
                await asyncio.sleep(0.05)  # the last packets of the gate are on their way


def _unheard(*, session: str, server: str, reason: str, count: int) -> None:
    """Ignore an event about a session, because a learning run has no session."""
