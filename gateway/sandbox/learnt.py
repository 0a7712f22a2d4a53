"""Makes grants of what a watched server has touched: the fewest with which it works under a profile. Pure."""

import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

from gateway.sandbox.system_paths import is_broad
from transports.upstream.walls.paths import is_within
from transports.upstream.walls.reach import kind_of
from transports.upstream.walls.spec import Grant

__all__ = ["Learnt", "learnt", "united"]

_MANY: Final = 4
"""So many files of one folder are granted as the folder."""

_KEYS: Final = frozenset(
    ".ssh .gnupg .aws .azure .kube .docker .netrc .npmrc .pypirc .git-credentials .password-store .mozilla "
    ".bash_history .zsh_history .python_history gcloud gh google-chrome chromium shadow gshadow sudoers docker.sock "
    "S.gpg-agent".split()
)
"""Names in a path that lead to credentials, or to somebody else's authority."""
_ROWS: Final = {"read": str, "write": str, "reach": str, "sockets": str, "listen": int}
"""The lists of a table, and of what they are."""
_MOST_NAMES: Final = 50
_IGNORED: Final = ("/proc", "/dev/pts", "/dev/tty", "/dev/ptmx")
_CHOSEN_BY_KERNEL: Final = 32_768


@dataclass(slots=True)
class Learnt:
    """`table` is a value of `sandbox`. `remarks` say what is not in it, and why: dangerous things first."""

    table: dict[str, Any]
    remarks: list[str] = field(default_factory=list)

    def add_unused(self, names: Iterable[str]) -> None:
        """Remark on names that the server has asked for, and that are not among the hosts."""
        hosts = {host.rpartition(":")[0] for host in self.table.get("reach", ())}
        for name in islice((name for name in dict.fromkeys(names) if name not in hosts), _MOST_NAMES):
            self.remarks.append(
                f"it asked for the name {name} and reached no public address of it: reach, if it should"
            )


def learnt(
    touched: Iterable[tuple[str, str]],
    *,
    names: Mapping[str, str],
    grants: Sequence[Grant],
    own: Sequence[str],
    profile: str = "strict",
) -> Learnt:
    """What was `touched` (kind and what, as the gate tells it), as grants. `names` has the name that an address was
    found by. `grants` are those that the profile makes anyway, `own` the folders that each session has of its own."""
    found = Learnt({"profile": profile})
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


def united(earlier: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """The grants of two tables, of which each was learnt in a run of its own.

    Raises:
        ValueError: the earlier one is no such table.
    """
    both: dict[str, Any] = {"profile": table["profile"]}
    for name, kind in _ROWS.items():
        before = earlier.get(name, [])
        if not (isinstance(before, list) and all(isinstance(one, kind) for one in before)):
            raise ValueError(f"its {name} is no list of grants")
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
    """Paths, or their folders where there are many. What is dangerous or broad is remarked on instead."""
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
