"""Make the walls (kernel restrictions) of a server's processes from its profile, what its program needs, and the folder
of a session. Also make the walls for fetches of packages."""

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gateway.config.sandbox import Sandbox
from gateway.config.upstreams import UpstreamSettings
from gateway.sandbox.package_command import parse, placed_commands
from gateway.sandbox.paths_in_arguments import NamedPaths, named_paths
from gateway.sandbox.private_files import PrincipalsFile
from gateway.sandbox.runtime_paths import module_of, runtime_paths
from gateway.sandbox.system_paths import OwnLink, followed, real, system_grants
from gateway.sandbox.untrusted_files import read_plain
from transports.upstream.stdio import HOME
from transports.upstream.walls.resolved_paths import is_within
from transports.upstream.walls.wall_specification import Grant, Limits, Reach, Walls

_OWN_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "@modelcontextprotocol/server-memory": ("MEMORY_FILE_PATH", "{home}/memory.jsonl"),
}
"""Packages whose program stores its data beside its own code. Each has the environment variable by which the program
uses another file, and the path of the file that the gateway chooses."""
_JAVA: Final = ("JAVA_TOOL_OPTIONS", "-Djava.io.tmpdir={temporary} -Duser.home={home}")
"""Options for Java, which does not read TMPDIR and HOME."""
_OF_JAVA: Final = re.compile(r"java[\d.]*|jbang")
_NAME_IN: Final = re.compile(r"(?<=.)@.*")
_LONGEST_NAME: Final = 1_024
"""The length from which an argument cannot be a path."""


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """The folder that only the processes of one server in one session use."""

    path: Path

    @property
    def home(self) -> Path:
        """Return the folder for HOME. It is also the working directory if no setting names one."""
        return self.path / "home"

    @property
    def temporary(self) -> Path:
        return self.path / "tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class WalledProcess:
    """The walls (kernel restrictions), variables and working directory of one process."""

    walls: Walls
    env: Mapping[str, str]
    """Variables with the lowest rank: every other source of variables overrides them."""
    cwd: str | None
    """`~`: the HOME of the process, whatever sets HOME. None: the working directory of the gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """The walls (kernel restrictions) of one server for sessions of one trust, without what a single session is
    granted. `process` adds that for one process."""

    sandbox: Sandbox
    walls: Walls
    env: Mapping[str, str]
    """Variables that are the same for all processes."""
    own_env: Mapping[str, str]
    """Variables whose values have `{home}` and `{temporary}` in place of the process's own folders."""
    cwd: str | None
    """The configured working directory; None: none is configured, or the process `moves`."""
    moves: bool
    """True if the process is started in its HOME."""
    not_granted: tuple[str, ...]
    """A sentence for each thing that the configuration names but that is not granted, with the way to grant it."""
    withheld: tuple[str, ...]
    """Files beside the server's code that are not granted, because they may contain others' credentials."""

    @property
    def forgets(self) -> tuple[str, ...]:
        """Return a sentence for each file of data that ends with its session: it is in the session's folder, because no
        setting names another file."""
        return tuple(
            f"what it remembers ends with each session, and with the gateway: set {name} in its env to a file in a "
            "folder of its own that exists, which all sessions share"
            for name, _ in _OWN_FILES.values()
            if name in self.own_env
        )

    def process(
        self,
        own: OwnFolder,
        *,
        folders: Iterable[str] = (),
        sockets: Sequence[str] = (),
        code: Iterable[str] = (),
        read: Iterable[str] = (),
    ) -> WalledProcess:
        """Return the walls (kernel restrictions), variables and working directory of a process with the folder `own`.
        `folders` are other folders of its session, `sockets` its Unix sockets. `code` are files and folders of its
        program that only this start has found. `read` are further folders of its own, which it may only read. No path
        but those in `code` may lead through a symlink."""
        mode = "rwx" if self.sandbox.profile == "standard" else "rw"
        # Not resolved: servers may have put symlinks there, which then let no process start.
        paths = [*dict.fromkeys((str(own.path), *folders))]
        reach = self.walls.reach
        assert reach is not None  # every profile with walls has one
        common = (*self.walls.grants, *(Grant(path=real(path), mode="rx") for path in code))
        home, temporary = str(own.home), str(own.temporary)
        walls = replace(
            self.walls,
            grants=(*common, *(Grant(path, mode) for path in paths), *(Grant(path, "r") for path in read)),
            common=len(common),
            reach=replace(reach, sockets=(*reach.sockets, *sockets, *paths)),
            temporary=temporary,
        )
        own_env = {name: value.format(home=home, temporary=temporary) for name, value in self.own_env.items()}
        env = {**self.env, **own_env, "HOME": home, "TMPDIR": temporary}
        return WalledProcess(walls=walls, env=env, cwd=HOME if self.moves else self.cwd)


def enclosure_of(
    settings: UpstreamSettings,
    sandbox: Sandbox,
    *,
    inherited: Mapping[str, str],
    closed: Sequence[str] = (),
    private: Iterable[Path] = (),
) -> Enclosure:
    """Return the walls (kernel restrictions) of a sandbox for a server's processes on this machine. `inherited` are the
    variables that the processes inherit. No grant opens the addresses in `closed`, and no grant of code opens the files
    in `private`."""
    here = _working_directory()
    is_own = settings.cwd == HOME or (settings.cwd is None and not _is_relative(settings, here))
    folder = here if settings.cwd in (None, HOME) else os.path.join(here, settings.cwd)
    path = settings.env.get("PATH", inherited.get("PATH", os.defpath))
    argv = (*sandbox.launcher, *settings.argv)
    runtime = runtime_paths(settings.argv, path, folder, inherited.get("HOME", str(Path.home())))
    for command in sandbox.launcher[:1]:
        runtime.code.update(runtime_paths((command,), path, folder, "/").code)
    where, cwd = (None, None) if is_own else (folder, None if settings.cwd is None else folder)
    words = (*argv[1:], *_words_within(argv, folder))
    listed = _Listed()
    read, write = [*listed.grants(sandbox.read, "rx")], [*listed.grants(sandbox.write, "rw")]
    written = [grant.path for grant in write]
    named = named_paths(words, settings.env, code=runtime.code, folder=where, cwd=cwd, written=written)
    data = [*_granted(named.write, "rw" if sandbox.profile == "standard" else "r"), *read, *write]
    code = [*system_grants(), *_granted((*runtime.code, *named.read), "rx")]
    meant = [*(grant.path for grant in data), *(path for path in named.read if os.path.isfile(path))]
    code, withheld = without_withheld(code, meant, private)
    grants = [*code, *data]
    sockets = tuple(listed.existing(sandbox.sockets))
    writable = [grant.path for grant in grants if "w" in grant.mode]
    unlisted = [why for path, why in named.repositories.items() if not is_within(path, writable)]
    return Enclosure(
        sandbox=sandbox,
        walls=Walls(
            profile=sandbox.profile,
            grants=_without_repeats(grants),
            reach=replace(_reach(sandbox, named, closed), sockets=sockets),
            limits=_limits(sandbox),
            namespaces=sandbox.profile == "strict",
            own_folders=True,
            required=sandbox.required,
            watch="refused" if sandbox.watch else "nothing",
        ),
        env={name: value for name, value in runtime.env.items() if name not in settings.env},
        own_env=dict(_own_files(settings, folder)),
        cwd=None if is_own else settings.cwd,
        moves=is_own,
        not_granted=(*named.not_granted, *unlisted, *listed.not_granted),
        withheld=tuple(withheld),
    )


def _own_files(settings: UpstreamSettings, folder: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of variables by which a known program writes its data into the session's folder.
    Otherwise it would write beside itself, or into the user's home folder. Leave out variables that the settings have.
    `folder` is the working directory of the command."""
    package = parse(settings.argv)
    named = None if package is None else _OWN_FILES.get(_NAME_IN.sub("", package.package))
    programs = (os.path.basename(command[0]) for command, _ in placed_commands(settings.argv, folder))
    wanted = (named, _JAVA if any(map(_OF_JAVA.fullmatch, programs)) else None)
    taken = {*settings.env, *(settings.context_env or ())}
    yield from (one for one in wanted if one is not None and one[0] not in taken)


class _Listed:
    """Resolve the paths that an operator lists in a sandbox. `not_granted` has a sentence for each path that is not
    granted."""

    def __init__(self) -> None:
        self.not_granted: list[str] = []

    def existing(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield those of the paths that exist, with their symlinks resolved. Leave out paths with symlinks that must
        not be followed. Add a sentence to `not_granted` for each path that is left out."""
        for path in paths:
            try:
                found = followed(path)
            except OwnLink as link:
                self.not_granted.append(
                    f"{path}: {link} is a symlink of the gateway's user; list the path that it leads to"
                )
                continue
            if os.path.exists(found):
                yield found
            else:
                self.not_granted.append(f"{path}: there is no such file or folder")

    def grants(self, paths: Iterable[str], mode: str) -> list[Grant]:
        """Return a grant with this mode for each of the paths that exists (`existing`)."""
        return _granted(self.existing(paths), mode)


def _granted(paths: Iterable[str], mode: str) -> list[Grant]:
    return [Grant(path=path, mode=mode, optional=True) for path in paths]


def _without_repeats(grants: list[Grant]) -> tuple[Grant, ...]:
    """Return the grants without those that another grant includes, because each grant makes each start slower."""
    found: dict[str, Grant] = {}
    for grant in grants:
        other = found.get(grant.path)
        letters = set(grant.mode) | set("" if other is None else other.mode)
        letters -= {"l"} if "r" in letters else set()
        found[grant.path] = grant._replace(mode="".join(letter for letter in "lrwx" if letter in letters))
    return tuple(
        grant
        for grant in found.values()
        if not any(above in found and set(grant.mode) <= set(found[above].mode) for above in _above(grant.path))
    )


def _above(path: str) -> Iterator[str]:
    """Yield the folders around an absolute path, the nearest first: `Path.parents` as text, in a tenth of the time."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def _reach(sandbox: Sandbox, named: NamedPaths, closed: Sequence[str]) -> Reach:
    standard = sandbox.profile == "standard"
    return Reach(
        public=standard,
        names=standard,
        hosts=tuple(dict.fromkeys((*sandbox.reach, *(named.reach if standard else ())))),
        refused=tuple(closed),
        # Under `standard` also ports that only the process itself reaches: browsers are driven over one.
        listen=(*((0,) if standard else ()), *sandbox.listen),
    )


def _limits(sandbox: Sandbox) -> Limits:
    return Limits(
        memory_bytes=sandbox.memory_mb << 20 or None,
        processes=sandbox.processes or None,
        files=sandbox.files or None,
        total_memory_bytes=sandbox.total_memory_mb << 20 or None,
        total_is_set=sandbox.total_is_set,
        processors=sandbox.processors or None,
    )


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody has removed it
        return "/"


def _is_relative(settings: UpstreamSettings, here: str) -> bool:
    """Return whether the command or an argument names an existing file in `here`, the working directory of the gateway,
    by a relative path."""
    names: list[str] = []
    for command, folder in placed_commands(settings.argv, here):
        if folder == here:
            names += (*command[1:], *(command[:1] if "/" in command[0] else ()))
            names += (module, f"{module}.py") if (module := module_of(command)) else ()
    named = (name for name in names if name and not name.startswith(("-", "/")) and len(name) < _LONGEST_NAME)
    return any(os.path.exists(os.path.join(here, name)) for name in named)


def _words_within(argv: Sequence[str], folder: str) -> Iterator[str]:
    """Yield the paths in the commands within the command line `argv`, such as those in `sh -c`. `folder` is the working
    directory of the command line: relative paths are joined with it, or with the folder that a `cd` names."""
    for command, place in list(placed_commands(argv, folder))[1:]:
        yield from (os.path.join(place, word) for word in command if "/" in word and not word.startswith(("-", "~")))


_SERVERS: Final = b'"mcpServers"'
"""Text that every configuration of MCP servers contains, be it the gateway's or a client's."""
_MOST_BYTES: Final = 1 << 20
_PUBLISHED: Final = (".example", ".sample", ".template", ".dist")
_OF_CLIENTS: Final = (".claude", ".cursor", ".gemini", ".roo", ".vscode", ".windsurf", ".zed")
"""Folders in which clients store their configuration for a project."""
_SERVERS_THERE: Final = (_SERVERS, b'"servers"')  # VS Code's


def without_withheld(
    grants: Iterable[Grant], meant: Collection[str], private: Iterable[Path] = ()
) -> tuple[list[Grant], list[str]]:
    """Remove two kinds of files from the grants of code: those that may contain others' credentials, and the `private`
    files, which need not exist yet and may have `{subject}` in their paths. Return the changed grants, and the removed
    files that may contain credentials.

    A folder with such a file may only be listed, and everything else in it gets its own grant. The search covers
    granted folders and those between two of them, such as between a project and a script in it. Paths in `meant` stay
    granted, because an operator has written them down.
    """
    grants = list(grants)
    granted = {grant.path for grant in grants}
    ways = dict.fromkeys(folder for path in granted for folder in _ways(path, granted))
    withheld = sorted({path for way in ways for path in _withheld_in(way)})
    away = dict.fromkeys((*withheld, *map(os.path.realpath, private)))
    closed = [path for path in away if is_within(path, granted) and not is_within(path, meant)]
    of_principals = [found for path in away if (found := PrincipalsFile.of(path)) is not None]

    def is_whole(path: str) -> bool:
        is_around = any(is_within(each, (path,)) for each in closed) or any(one.is_below(path) for one in of_principals)
        return not is_around or is_within(path, meant)

    def is_open(path: str) -> bool:
        return is_within(path, meant) or not any(one.may_be(path) for one in of_principals)

    def parts(grant: Grant) -> Iterator[Grant]:
        if is_within(grant.path, closed):
            return
        if is_whole(grant.path):
            yield grant
            return
        yield grant._replace(mode="l")
        for name in _entries(grant.path):
            path = os.path.join(grant.path, name)
            if not os.path.islink(path) and is_open(path):  # what a link leads to has a grant of its own, or none
                yield from parts(grant._replace(path=path))

    return [part for grant in grants for part in parts(grant)], [path for path in withheld if path in closed]


def _ways(path: str, granted: Collection[str]) -> Iterator[str]:
    above = (path, *_above(path))
    outermost = max(n for n, folder in enumerate(above) if folder in granted)
    return iter(above[: outermost + 1])


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # no folder, or one that is closed to this user, and so to the server
        return []


def _withheld_in(folder: str) -> Iterator[str]:
    """Yield the files of a folder that may contain others' credentials, without symlinks."""
    for name in _entries(folder):
        if name in (".env", ".envrc") or name.startswith(".env."):
            if not name.endswith(_PUBLISHED):
                yield os.path.realpath(os.path.join(folder, name))
        elif name.endswith(".json"):
            yield from _with_any(os.path.join(folder, name), (_SERVERS,))
        elif name in _OF_CLIENTS:
            inside = os.path.join(folder, name)
            for each in _entries(inside):
                yield from _with_any(os.path.join(inside, each), _SERVERS_THERE)


def _with_any(file: str, words: Iterable[bytes]) -> Iterator[str]:
    """Yield the path of the file with symlinks followed, if its content has one of `words`; else nothing."""
    path = Path(os.path.realpath(file))
    with contextlib.suppress(OSError):
        content = read_plain(path.parent, path, _MOST_BYTES)
        if any(word in content for word in words):
            yield str(path)


_FILES = 8_192


class WallsOfFetches:
    """Make the walls (kernel restrictions) for each step of a fetch of a package. `reach` are hosts that fetches may
    reach beside public ones. No grant opens the addresses in `closed`. With `required`, nothing is fetched if the
    kernel cannot enforce all of the walls."""

    def __init__(self, *, reach: Sequence[str], closed: Sequence[str], required: bool) -> None:
        self._reach = Reach(public=True, names=True, hosts=tuple(reach), refused=tuple(closed))
        self._required = required

    def require(self, *, required: bool) -> None:
        """If `required`, allow fetches from now on only if the kernel can enforce all of their walls (restrictions)."""
        self._required |= required

    def __call__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: str,
        read: Sequence[str],
        write: str,
        reach: Sequence[str],
    ) -> Walls:
        """Return the walls (kernel restrictions) of the command `argv` of a fetch, which has the environment `env` and
        runs in `cwd`. It may read and execute its program and the paths in `read`, write only to the folder `write`,
        and connect to public hosts and those in `reach`."""
        home = env.get("HOME", "/")
        if is_within(home, (write,)):  # code of packages may have put symlinks there
            home = "/"
        runtime = runtime_paths(argv[:1], env.get("PATH", ""), cwd, home)
        for program in filter(os.path.isfile, read):  # the Python of an installed tool
            runtime.code.update(runtime_paths((program,), "", cwd, home).code)
        read = [*runtime.code, *(path for path in read if os.path.exists(path))]
        return Walls(
            profile="fetch",
            grants=(
                *system_grants(),
                *(Grant(path=real(path), mode="rx", optional=True) for path in dict.fromkeys(map(real, read))),
                Grant(path=real(write), mode="rwx"),
            ),
            reach=replace(self._reach, hosts=(*self._reach.hosts, *reach)),
            limits=Limits(files=_FILES),
            temporary=real(write),
            required=self._required,
        )
