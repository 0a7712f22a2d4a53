"""Describe the walls around one server's process, as the gateway sends them to the reaper. Pure: builds nothing."""

from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple, Self

MODES: Final = ("l", "r", "rx", "rw", "rwx")
"""The rights of a grant: `l` to list folders, `r` to read files too, `w` to write, make, rename and remove, `x` to
execute."""


class _GrantFields(NamedTuple):
    path: str
    mode: str
    optional: bool


class Grant(_GrantFields):
    """A file, or a folder with everything below it, that a process may use.

    `path` is absolute. No part of it is a symlink, which the server could have made: the gateway resolves symlinks when
    it reads its configuration. `mode` is one of `MODES`. If the path does not exist, an `optional` grant is left out;
    with a grant that is not optional, the server is not started."""

    __slots__ = ()

    def __new__(cls, path: str, mode: str = "r", optional: bool = False) -> Self:
        """Make a grant. Raises `ValueError` if the path is not absolute, or the mode is unknown."""
        if not path.startswith("/") or "\0" in path:
            raise ValueError(f"{path!r} is not an absolute path")
        if mode not in MODES:
            raise ValueError(f"{mode!r} is none of {', '.join(MODES)}")
        return super().__new__(cls, path, mode, optional)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The destinations that a process may connect to, as named in the configuration. All others are refused."""

    public: bool = False
    """True if every address is reachable that is neither private, link-local, loopback, multicast nor reserved."""
    names: bool = False
    """True if every DNS name is resolved for the process. If False, only the names in `hosts` are."""
    hosts: tuple[str, ...] = ()
    """Names, wildcards, addresses and networks, with a port or without: "*.example.com", "10.1.0.0/16:5432"."""
    refused: tuple[str, ...] = ()
    """Addresses with ports that stay closed, whatever else is granted: the gateway itself listens there."""
    sockets: tuple[str, ...] = ()
    """Paths of Unix sockets, and of folders with every Unix socket below them."""
    listen: tuple[int, ...] = ()
    """TCP ports on which the process may listen. 0: any port that the kernel chooses on a loopback address; of all
    walled processes, only this one can connect to that port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most resources that one process, or all processes together, may use up. None: as much as the gateway
    itself."""

    memory_bytes: int | None = None
    """Bytes of data of each process (RLIMIT_DATA): reserved address space is not counted."""
    processes: int | None = None
    """Processes and threads of the server together. The kernel counts them in a cgroup; without one, the reaper
    does."""
    files: int | None = None
    """Open descriptors of each process."""
    total_memory_bytes: int | None = None
    """Bytes of memory of all processes together, with shared memory and files in memory. Needs a cgroup."""
    total_is_set: bool = False
    """True if the operator has set `total_memory_bytes`. Without a cgroup, the limit is then reported as missing."""
    processors: float | None = None
    """The number of processors whose time all processes together may use. Needs a cgroup."""

    def __post_init__(self) -> None:
        for value in (self.memory_bytes, self.processes, self.files, self.total_memory_bytes):
            if value is not None and value < 1:
                raise ValueError(f"a limit is at least 1, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """The walls around one server's process: the files, destinations and resources that it may use."""

    profile: str
    """The name of the configured sandbox profile from which the walls were made, for messages."""
    grants: tuple[Grant, ...]
    """The files that the process may use. All others are closed to it."""
    common: int = 0
    """How many grants, counted from the first, are the same for every process of this server. These can be prepared
    before there is a session."""
    reach: Reach | None = None
    """The destinations that the process may connect to. None: all."""
    limits: Limits = Limits()
    namespaces: bool = False
    """True if the process gets processes, mounts and shared memory of its own, where the kernel allows it."""
    own_folders: bool = False
    """True if the process gets its own `/tmp` and `/dev/shm`, where the kernel allows it, even without `namespaces`."""
    temporary: str | None = None
    """The folder that is `/tmp` in the process's own mounts. None: an empty one in memory."""
    required: bool = False
    """True if the process must not start where the kernel lacks a part of these walls."""
    watch: str = "nothing"
    """The uses of files that are reported: `nothing`, `refused` ones, or `everything` that the process touches,
    addresses, sockets and ports included."""

    def to_json(self) -> dict[str, Any]:
        """Return the walls as values for `json.dumps`."""
        reach = None if self.reach is None else _fields_of(self.reach)
        return _fields_of(self) | {"reach": reach, "limits": _fields_of(self.limits)}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "Walls":
        """Return the walls from the result of `to_json`."""
        reach: dict[str, Any] | None = given["reach"]
        if reach is not None:
            reach = {name: tuple(value) if isinstance(value, list) else value for name, value in reach.items()}
        parts = {
            "grants": tuple(map(Grant._make, given["grants"])),  # they were checked when they were made
            "reach": None if reach is None else Reach(**reach),
            "limits": Limits(**given["limits"]),
        }
        return cls(**given | parts)

    def prototype(self) -> "Walls":
        """Return the part of these walls that all sessions of the server share."""
        reach = None if self.reach is None else replace(self.reach, sockets=())
        return replace(self, grants=self.grants[: self.common], reach=reach, temporary=None)

    def own(self) -> dict[str, Any]:
        """Return the part of these walls that belongs to one session, and is not in their prototype, for
        `json.dumps`."""
        sockets = () if self.reach is None else self.reach.sockets
        return {"grants": self.grants[self.common :], "sockets": sockets, "temporary": self.temporary}

    def with_own(self, given: dict[str, Any]) -> "Walls":
        """Return the complete walls, made of this prototype and the result of `own`."""
        reach = None if self.reach is None else replace(self.reach, sockets=tuple(given["sockets"]))
        grants = (*self.grants, *map(Grant._make, given["grants"]))
        return replace(self, grants=grants, reach=reach, temporary=given["temporary"])


def _fields_of(part: Reach | Limits | Walls) -> dict[str, Any]:
    """Return the fields of `part` by name. Unlike `asdict`, do not copy the values."""
    return {field.name: getattr(part, field.name) for field in fields(part)}
