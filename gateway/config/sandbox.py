"""Define the settings of sandboxes (what a server's processes may touch) and of packages that sandboxed servers use.

A sandbox is merged from layers, the nearest first: the part of the server's table for the session's trust, the rest of
this table, then the same two of `gateway.sandbox`. A profile, a limit, `watch` and `required` each come from the
nearest layer that sets them. Grants of all layers add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.config.settings_base import Frozen, Trust
from transports.upstream.walls.network_rules import destination

Profile = Literal["off", "standard", "strict"]

DEFAULT_PROFILE: Final[Profile] = "standard"
"""The profile of servers for which no setting names one."""

LIMITS: Final[Mapping[Profile, Mapping[str, int]]] = {
    "off": {},
    # A browser has some thirty processes with some hundred threads, and thousands of files. Node has 11 threads.
    "standard": {"memory_mb": 4_096, "processes": 1_024, "files": 8_192},
    "strict": {"memory_mb": 2_048, "processes": 128, "files": 1_024},
}
"""The limits of a profile, where no setting has another."""

CONTAINER_ENGINES: Final = frozenset({"docker", "podman", "nerdctl"})
"""Commands that start a server in a container. The container is its sandbox; walls would hold only the client."""

_CONTAINER: Final = "the command, whose container is the sandbox"

_AMOUNTS: Final = ("memory_mb", "processes", "files", "processors")
_GRANTS: Final = ("read", "write", "reach", "sockets", "listen")


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path:
        raise ValueError(f"{path!r} must be an absolute path without '..'")
    return path


def _destination(text: str) -> str:
    destination(text)
    return text


AbsolutePath = Annotated[str, AfterValidator(_absolute)]
Host = Annotated[str, AfterValidator(_destination)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Amount = Annotated[int, Field(ge=0)] | None


class SandboxSettings(Frozen):
    """A sandbox. What is not set comes from the next layer: the table around it, `gateway.sandbox`, then the profile.
    Grants (`read`, `write`, `reach`, `sockets`, `listen`) of all layers add up."""

    profile: Profile | None = None
    """`off`: no sandbox. `standard`: servers that work without a sandbox work in it; they read the system, their own
    program and what their arguments name, write to the session's own folder, and reach public hosts. `strict`: they
    reach what is listed and nothing else ([sandbox](sandbox.md))."""
    read: tuple[AbsolutePath, ...] = ()
    """Files and folders that the server may read, and execute programs of."""
    write: tuple[AbsolutePath, ...] = ()
    """Files and folders that the server may read and write. All its sessions share them."""
    reach: tuple[Host, ...] = ()
    """Hosts that the server may connect to: `api.github.com:443`, `*.example.com`, `10.1.0.0/16:5432`,
    `localhost:8123`. Without a port: any port."""
    sockets: tuple[AbsolutePath, ...] = ()
    """Unix sockets that the server may connect to, or folders of them."""
    listen: tuple[Port, ...] = ()
    """TCP ports that the server may listen on."""
    memory_mb: Amount = None
    """Memory in MiB that each process may allocate; 0: no limit. This limit and `files` hold also where the
    profile is `off`, by `prlimit`."""
    processes: Amount = None
    """Maximum number of processes and threads of one session's server at a time; 0: no limit. In a
    [cgroup](sandbox.md#cgroups) the kernel starts no more; else a server that has more is ended."""
    files: Amount = None
    """Maximum number of open files of each process; 0: no limit."""
    total_memory_mb: Amount = None
    """Memory in MiB that all processes of one session's server may have together, including what they share and keep
    in memory files; 0: no limit. Needs a [cgroup](sandbox.md#cgroups). If not set: twice `memory_mb`, where there are
    cgroups."""
    processors: Annotated[float, Field(ge=0, le=4_096)] | None = None
    """How much processor time all processes of one session's server may use together, in processors, such as `0.5`; 0:
    no limit. Needs a [cgroup](sandbox.md#cgroups)."""
    watch: bool | None = None
    """Whether the log and the console show refused files, as they always show refused hosts. If not set: no, because
    then each file that the server opens takes 60 µs longer."""
    required: bool | None = None
    """Whether the gateway refuses to start if this machine cannot enforce the whole profile. If not set: no; it logs
    what is not enforced."""
    launcher: tuple[str, ...] = ()
    """Command prefix that starts the server, for example a container. `{socket}`, `{session_id}`, `{temp_dir}`,
    `{secret_dir}` and `{variable}` are replaced ([launchers](policy.md#launchers)). In a setting that names no profile,
    the launcher is the whole sandbox."""


def profile_table(value: Any) -> Any:
    """Return the table that a short value stands for: a text is the name of a profile, a list is a launcher. Return
    other values unchanged."""
    if isinstance(value, str):
        return {"profile": value}
    return {"launcher": value} if isinstance(value, list | tuple) else value


ForTrust = Annotated[SandboxSettings | None, BeforeValidator(profile_table)]


class SandboxTable(SandboxSettings):
    """A sandbox, with what differs for sessions of one trust."""

    direct: ForTrust = None
    """For sessions with direct trust: a profile's name, or a table like this one."""
    sandboxed: ForTrust = None
    """For all other sessions."""


def sandbox_table(value: Any) -> Any:
    """Return the table that a short value of `sandbox` stands for: a text is the name of a profile, for all sessions; a
    list is a launcher, for all sessions without direct trust. Return other values unchanged."""
    if isinstance(value, list | tuple):
        return {"sandboxed": {"launcher": value}} if value else {}
    return profile_table(value)


SandboxByTrust = Annotated[SandboxTable, BeforeValidator(sandbox_table)]
"""`sandbox` of a server and of the gateway: a profile, a table, or a launcher for sandboxed sessions as a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The merged sandbox of one server for sessions of one trust. The fields without a note mean the same as in
    `SandboxSettings`."""

    profile: Profile = "off"
    chosen_by: str = ""
    """The setting that chose the profile, for messages."""
    read: tuple[str, ...] = ()
    """As in each tuple of grants below, grants of the nearest layer come first."""
    write: tuple[str, ...] = ()
    reach: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    listen: tuple[int, ...] = ()
    memory_mb: int = 0
    """As for each limit below, 0 means that there is no limit."""
    processes: int = 0
    files: int = 0
    total_memory_mb: int = 0
    total_is_set: bool = False
    """True if a setting gives `total_memory_mb`."""
    processors: float = 0
    watch: bool = False
    required: bool = False
    launcher: tuple[str, ...] = ()

    @property
    def has_walls(self) -> bool:
        """Return whether the gateway restricts the server's processes by the kernel. A launcher does not count."""
        return self.profile != "off"

    @property
    def is_unrestricted(self) -> bool:
        """Return whether nothing restricts the server's processes: no walls, no launcher, no container."""
        return not self.has_walls and not self.launcher and self.chosen_by != _CONTAINER

    @property
    def prlimit(self) -> tuple[str, ...]:
        """Return the words of prlimit(1) that come before the server's command, and set the limits of a process without
        walls. Empty if the sandbox has walls or no limits. `processes` is not set, because the kernel would count all
        processes of the user."""
        limits = {"as": self.memory_mb << 20, "nofile": self.files}
        given = tuple(f"--{name}={value}" for name, value in limits.items() if value)
        return ("prlimit", *given, "--") if given and not self.has_walls else ()


def sandbox_of(where: str, own: SandboxTable, everywhere: SandboxTable, trust: str, command: str) -> Sandbox:
    """Return the merged sandbox of a server for sessions of this trust. `own` is the server's table, and `where` the
    path of the server's entry. `everywhere` is the table for all servers. `command` is the server's command: a
    container engine has the profile `off` unless `own` names another one."""
    key: Trust = "direct" if trust == "direct" else "sandboxed"
    settings = [_layers(f"{where}.sandbox", own, key), _layers("gateway.sandbox", everywhere, key)]
    profile, chosen_by, launcher = _chosen(settings, command)
    tables = [table for layers in settings for table in layers.values()]

    def first(name: str, otherwise: Any) -> Any:
        return next((value for table in tables if (value := getattr(table, name)) is not None), otherwise)

    def united(name: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(value for table in tables for value in getattr(table, name)))

    limits: dict[str, Any] = {name: first(name, LIMITS[profile].get(name, 0)) for name in _AMOUNTS}
    total = first("total_memory_mb", None)
    limits |= {"total_memory_mb": 2 * limits["memory_mb"] if total is None else total, "total_is_set": bool(total)}
    grants: dict[str, Any] = {name: united(name) for name in _GRANTS}
    flags: dict[str, Any] = {name: first(name, False) for name in ("watch", "required")}
    return Sandbox(profile=profile, chosen_by=chosen_by, launcher=launcher, **flags, **limits, **grants)


def _layers(where: str, table: SandboxTable, trust: Trust) -> dict[str, SandboxSettings]:
    """Return the layers of one table for sessions of this trust, the nearest first: setting → layer. `where` is the
    name of the setting that has the table."""
    inner: SandboxSettings | None = getattr(table, trust)
    return ({} if inner is None else {f"{where}.{trust}": inner}) | {where: table}


def _chosen(settings: list[dict[str, SandboxSettings]], command: str) -> tuple[Profile, str, tuple[str, ...]]:
    """Return the profile, the setting that chose it, and the launcher. The nearest table that has a profile or a
    launcher gives both. `settings`: the layers of each table (`_layers`), the nearest table first."""
    for layers in settings:
        launcher, launched_by = next(((one.launcher, at) for at, one in layers.items() if one.launcher), ((), ""))
        for where, table in layers.items():
            if table.profile is not None:
                return table.profile, where, launcher
        if launcher:
            return "off", f"{launched_by}, whose launcher is the sandbox", launcher
        if PurePosixPath(command).name in CONTAINER_ENGINES:
            return "off", _CONTAINER, ()
    return DEFAULT_PROFILE, "the default", ()


class PackageSettings(Frozen):
    """The packages that `npx` and `uvx` commands of sandboxed servers name. The gateway fetches each of them once for
    all sessions, which can read and execute it but not change it. One whose command names no exact version is fetched
    again after a day ([packages](packages.md))."""

    reach: tuple[str, ...] = ()
    """Hosts beyond public ones that a fetch may connect to, such as a private registry: `10.1.0.5:4873`,
    `registry.example.com:443`."""
