"""Fetch a package into a folder by npx or uvx, and find out which program they would have started.

Both fetch a package and then run its program. Here, another program runs in its place: npx starts a shell that records
the environment and the command line, and uvx starts Python. So npx and uvx themselves choose versions, the program, and
installed packages that can be used.

Code of the package runs while it is fetched: install scripts of npm, builds of uv. What this code writes is not trusted
if it would extend what the package's sessions may read.
"""

import asyncio
import hashlib
import ipaddress
import json
import logging
import os
import re
import shlex
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from gateway.sandbox.host_name_lookups import Lookups
from gateway.sandbox.package_command import PackageCommand
from gateway.sandbox.package_folder import FetchedPackage, remove
from gateway.sandbox.runtime_paths import BROWSERS
from gateway.sandbox.untrusted_files import has_no_links, read_plain, write_new
from gateway.sandbox.walls_from_profile import WallsOfFetches
from session_store.redaction import output_scrubber
from transports.jsonrpc import UNREADABLE
from transports.upstream.child_process import Command, ProcessFailed
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.walls.network_rules import shown

_SHOWN_CHARS: Final = 300
_SHOWN_LINES: Final = 3
_KEPT_LINES: Final = 200
_KEPT_CHARS: Final = 1_000
_TOLD: Final = ("npm error ", "npm ERR! ", "error: ", "cause: ", "\u00d7 ", "├─▶ ", "╰─▶ ")
"""Beginnings of the lines in which npm and uv report an error."""
_UNTOLD: Final = (
    "A complete log of this run",
    "Note that you can",
    "tarball, folder",
    "code ",
    "errno ",
    "syscall ",
    "path ",
    "Log files were not",
)
"""Beginnings of npm's error lines that are left out of messages, because they do not help the reader."""


class FetchFailed(Exception):
    """A package could not be fetched. The message says why; it contains no secrets, because clients get it."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """Keep the last lines that a program writes to stdout."""

    kept: deque[str]

    def line(self, line: bytes) -> None:
        self.kept.append(line[:_KEPT_CHARS].decode("utf-8", "replace"))

    def oversized(self, head: bytes, tail: bytes) -> None:
        """Ignore a line that is too long."""

    def exited(self, code: int | None) -> None:
        """Do nothing: `run` waits for the end of the process."""


async def run(fork_server: ForkServer, command: Command, *, timeout_s: float, package: str) -> None:
    """Run a command that fetches a package, until it ends. `package` is the package's name, for reports of refusals.

    Raises:
        FetchFailed: the command could not be started, took too long, or failed.
    """
    lines = _Lines(deque(maxlen=_KEPT_LINES))
    name = command.argv[0].rpartition("/")[2]
    try:
        process = await fork_server.spawn(command, lines, fields=lambda: {"package": package})
    except ProcessFailed as error:
        raise FetchFailed(f"{name} could not be started: {error}") from error
    try:
        process.stdin.finish()
        async with asyncio.timeout(timeout_s):
            code = await process.wait()
    except TimeoutError:
        raise FetchFailed(f"{name} did not end within {timeout_s:g} s") from None
    finally:
        process.kill()
    if code != 0:
        errors = [*process.stderr_tail(), *lines.kept]
        raise FetchFailed(_what_failed(errors, command.env) or f"{name} ended with exit code {code}")


def _what_failed(lines: list[str], env: Mapping[str, str]) -> str:
    """Return the error messages in `lines`, the output of npm or uv, as one line; if there are none, the last lines.
    Secrets in `env`, the environment of the program, are redacted."""
    messages: list[str] = []
    for line in map(str.strip, lines):
        start = next((start for start in _TOLD if line.startswith(start)), "")
        text = line.removeprefix(start).removeprefix("404 ").strip()
        if start and text not in ("", "404", *messages) and not text.startswith(_UNTOLD):
            messages.append(text)
    shown = messages[:_SHOWN_LINES] or [line.strip() for line in lines if line.strip()][-_SHOWN_LINES:]
    return output_scrubber((), env)("; ".join(shown))[:_SHOWN_CHARS]


logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 600.0
"""The maximum seconds for fetching one package."""

_SHELL: Final = """#!/bin/sh
[ "$npm_lifecycle_event" = npx ] && printf %s "$2" > {folder}/script && exec {env} -0 > {folder}/environment
exit 1
"""
"""The shell by which npx starts a program. It records the script and the environment, and runs nothing."""

_PYTHON: Final = "import sys; open(sys.argv[1], 'w', encoding='utf-8').write(sys.prefix)"

_NOWHERE: Final = "/"
"""The working directory of npx and uvx. Both look for a project there and in the folders around it. Such a project
could come from a session, and would decide for all others. There is no folder around `/`, and only root writes to
it."""

_FOR_SERVERS: Final = re.compile(r"NODE|npm_(command|execpath|node_execpath|(lifecycle|package)_(?!json$)\w+)")
"""Matches the variables from npx that servers get, too. Settings of npx (`npm_config_*`, `NODE_OPTIONS`) do not match:
some of them name folders of the fetch, and others could make servers run code."""

_MAX_PATH, _MAX_NOTED = 4_096, 1 << 20

_INSTALL_BY_NPM: Final = ("lib/python3*/site-packages/readabilipy/javascript",)
"""Folders in which a Python package runs `npm install` at its first use. readabilipy does so, which mcp-server-fetch
uses."""

_IMPATIENT: Final = {"npm_config_fetch_retry_mintimeout": "1000", "npm_config_fetch_retry_maxtimeout": "5000"}
"""Settings with shorter pauses between attempts. By default npm waits 10 s before the second attempt and a minute
before the third. A session's client does not wait so long."""

_UV_START: Final = b"#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n"
"""The first lines of a program in an environment of uv, by which a shell finds the environment's Python."""


class NotForAll(Exception):
    """The package cannot be fetched once for all sessions: each session has to run npx or uvx itself. The message says
    why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A package to fetch, and how."""

    command: PackageCommand
    env: Mapping[str, str]
    """The whole environment of npx or uvx."""
    home: str
    """The home folder, in which the operator's settings of npm and uv are."""
    registries: tuple[str, ...] = ()
    """The addresses (`ADDRESS:PORT`) of registries and proxies, which may be private ones. `fetch` sets them."""


class PackageFetcher:
    """Fetch packages. Each step of a fetch runs in its own sandbox."""

    def __init__(self, fork_server: ForkServer, walls: WallsOfFetches, *, timeout_s: float = TIMEOUT_S) -> None:
        self._fork_server = fork_server
        self._walls = walls
        self._timeout_s = timeout_s
        self._lookups = Lookups()

    async def fetch(self, request: FetchRequest, copy: Path, now: float) -> FetchedPackage:
        """Fetch a package into the folder `copy`, which was just made, and return the package. `now` is the Unix time.

        Raises:
            FetchFailed: the package could not be fetched.
            NotForAll: each session has to fetch the package for itself.
            OSError: the folder cannot be written.
        """
        files = [*map(Path, npm_settings(request.env, request.home)), Path(request.home, ".config/uv/uv.toml")]
        named = registries_of(request.command.kind, request.command.head, request.env, files)
        request = replace(request, registries=await places_of(named, self._lookups))
        home, temporary = copy / "home", copy / "tmp"
        home.mkdir()
        temporary.mkdir()
        fetch = self._npm if request.command.kind == "npm" else self._uv
        try:
            fetched = await fetch(request, copy, now)
        except (ValueError, KeyError) as error:  # the notes were written beside code of the package
            raise FetchFailed(f"the record that the fetch has left cannot be used: {error!r}") from error
        # Install scripts put browsers into the home folder.
        browsers = {name: str(home / place) for place, name in BROWSERS.items() if (home / place).is_dir()}
        await _remove_all(copy, (temporary,) if browsers else (temporary, home))
        return replace(fetched, env=fetched.env | browsers)

    async def _run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        *,
        read: Sequence[str] = (),
        write: Path,
        request: FetchRequest,
    ) -> None:
        env = {**env, "TMPDIR": str(write / "tmp")}
        reach = request.registries
        walls = await asyncio.to_thread(self._walls, argv, env, cwd=cwd, read=read, write=str(write), reach=reach)
        command = Command(argv=tuple(argv), env=env, cwd=cwd, walls=walls)
        await run(self._fork_server, command, timeout_s=self._timeout_s, package=request.command.package)

    # -- npm

    async def _npm(self, request: FetchRequest, copy: Path, now: float) -> FetchedPackage:
        """Fetch a package by npx, and return it. npx runs no script of a package. The install scripts run afterwards,
        without the operator's credentials. `fetch` says what the arguments are."""
        shell = copy / "shell"
        env_program = shutil.which("env") or "/usr/bin/env"  # by PATH, it could be the package's
        shell.write_text(_SHELL.format(folder=shlex.quote(str(copy)), env=shlex.quote(env_program)), encoding="utf-8")
        shell.chmod(0o700)
        ours = {
            "npm_config_cache": str(copy / "npm"),
            "npm_config_ignore_scripts": "true",
            "npm_config_script_shell": str(shell),
            "npm_config_update_notifier": "false",
        }
        env = {**_IMPATIENT, **request.env, **ours}
        read = npm_settings(request.env, request.home)
        await self._run(request.command.head, env, _NOWHERE, read=read, write=copy, request=request)
        fetched = _fetched_by_npx(request, copy, now)
        for tree in (copy / "npm" / "_npx").glob("*"):
            await self._run_scripts(tree, request, copy)
        await _remove_all(copy, (copy / "npm" / name for name in ("_cacache", "_logs", "_prebuilds")))
        return fetched

    async def _run_scripts(self, tree: Path, request: FetchRequest, copy: Path) -> None:
        """Run the install scripts of the packages in `tree`, a folder of npx below `copy`. If the script of an optional
        package fails, remove that package, as npm does.

        Raises:
            FetchFailed: the script of a package that is not optional fails.
        """
        with_scripts = {place: one for place, one in packages_of(tree, copy).items() if one.get("hasInstallScript")}
        if not with_scripts:
            return
        env = without_keys(request.env, request.home, copy)
        npx = request.command.head[0]
        npm = str(Path(npx).with_name("npm")) if "/" in npx else "npm"

        async def rebuild(*names: str) -> None:
            await self._run((npm, "rebuild", *names), env, str(tree), write=copy, request=request)

        optional = {place for place, one in with_scripts.items() if one.get("optional") or one.get("devOptional")}
        needed = [name_in(place, with_scripts[place]) for place in with_scripts if place not in optional]
        if needed:
            await rebuild(*needed)
        for place in sorted(optional):
            try:
                await rebuild(name_in(place, with_scripts[place]))
            except FetchFailed as error:
                logger.info("package %s: %s is left out: %s", request.command.package, place, error)
                await _remove_all(copy, [tree / place])

    # -- uv

    async def _uv(self, request: FetchRequest, copy: Path, now: float) -> FetchedPackage:
        ours = {
            "UV_CACHE_DIR": str(copy / "uv"),
            "UV_COMPILE_BYTECODE": "1",  # sessions could not write it
            "UV_NO_PROGRESS": "1",
        }
        env = {**_uv_pythons(request, copy), **request.env, **ours, "UV_TOOL_DIR": _uv_tools(request, copy)}
        read = [str(Path(request.home, name)) for name in (".config/uv", ".netrc", ".local/share/uv")]
        read += [str(tool / "bin" / "python") for tool in (copy / "tools").iterdir()]
        noted = copy / "prefix"
        argv = (*request.command.within, "-c", _PYTHON, str(noted))
        await self._run(argv, env, _NOWHERE, read=read, write=copy, request=request)
        fetched = _fetched_by_uvx(request, copy, noted, now)
        await self._first_use(fetched.path[0], request, copy)
        unused = ("simple-v*", "wheels-v*", "sdists-v*", "builds-v*")
        await _remove_all(copy, (path for name in unused for path in (copy / "uv").glob(name)))
        return fetched

    async def _first_use(self, programs: str, request: FetchRequest, copy: Path) -> None:
        """Run `npm install` in the folders in which certain Python packages (`_INSTALL_BY_NPM`) run it at their first
        use: then, sessions may not write there. `programs` is the folder `bin` of the package's environment.

        If `npm install` fails, the package stays as it was published, and its program reports what is missing.
        """
        npm = shutil.which("npm", path=request.env.get("PATH"))
        env = without_keys(request.env, request.home, copy)
        for place in _INSTALL_BY_NPM if npm else ():
            for folder in Path(programs).parent.glob(place):
                if (folder / "package.json").is_file() and not (folder / "node_modules").exists():
                    try:
                        await self._run((npm or "npm", "install"), env, str(folder), write=copy, request=request)
                    except FetchFailed as error:
                        logger.warning("package %s: npm install in %s: %s", request.command.package, place, error)
        await _remove_all(copy, [copy / "npm"])


# -- npm


def _fetched_by_npx(request: FetchRequest, copy: Path, now: float) -> FetchedPackage:
    """Return the package that npx has fetched into `copy`. npx has started our shell in place of the program, and the
    shell has recorded the program's command line and environment. Called before any code of a package runs.

    Raises:
        FetchFailed: npx has started no program, or the package does not have it.
        NotForAll: a package comes from a git repository.
    """
    try:
        script = read_plain(copy, copy / "script", _MAX_NOTED).decode("utf-8", "surrogateescape")
        noted = read_plain(copy, copy / "environment", _MAX_NOTED).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        raise FetchFailed("npx started no program") from None
    for name in ("script", "environment", "shell"):
        (copy / name).unlink(missing_ok=True)
    env = dict(pair.split("=", 1) for pair in noted.split("\0") if "=" in pair)
    words = shlex.split(script)
    before = request.env.get("PATH", "").split(os.pathsep)
    path = tuple(one for one in env["PATH"].split(os.pathsep) if one not in before and os.path.isdir(one))
    program = shutil.which(words[0], path=os.pathsep.join([*path, *before])) if len(words) == 1 else None
    if program is None:
        raise FetchFailed(f"the package has no program {script}")
    locks = [packages_of(tree, copy) for tree in (copy / "npm" / "_npx").glob("*")]
    if any(str(one.get("resolved", "")).startswith("git") for packages in locks for one in packages.values()):
        raise NotForAll("a package in it comes from a git repository, which npm builds before it installs it")
    return FetchedPackage(
        argv=(program,),
        env={k: v for k, v in env.items() if _FOR_SERVERS.fullmatch(k)},
        path=path,
        read=(str(copy),) if Path(program).is_relative_to(copy) else _installed_around(program),
        content=_digest(locks if locks else program),
        copy=copy.name,
        fetched_at=now,
    )


def _installed_around(program: str) -> tuple[str, ...]:
    """Return the outermost `node_modules` folder around an installed program; the program itself if there is none."""
    real = Path(os.path.realpath(program))
    around = [parent for parent in real.parents if parent.name == "node_modules"]
    return (str(around[-1] if around else real),)


# -- uv


def _uv_pythons(request: FetchRequest, copy: Path) -> dict[str, str]:
    """Return the environment variable that names uv's folder of Pythons, with its value: the operator's folder if it
    exists, otherwise a folder in the copy."""
    installed = Path(request.home, ".local/share/uv/python")
    return {"UV_PYTHON_INSTALL_DIR": str(installed if installed.is_dir() else copy / "python")}


def _installed_tools(request: FetchRequest) -> str:
    return request.env.get("UV_TOOL_DIR") or os.path.join(request.home, ".local/share/uv/tools")


def _uv_tools(request: FetchRequest, copy: Path) -> str:
    """Make a folder of uv's tools that only one fetch uses, because uv writes to it. If the operator has installed the
    package as a tool, make a symlink to that tool in the folder. Return the folder's path."""
    tools = copy / "tools"
    tools.mkdir()
    name = re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", request.command.package, maxsplit=1)[0]).lower()
    installed = os.path.join(_installed_tools(request), name)
    if os.path.isdir(installed):
        (tools / name).symlink_to(installed)
    return str(tools)


def _fetched_by_uvx(request: FetchRequest, copy: Path, noted: Path, now: float) -> FetchedPackage:
    """Return the package whose environment uv has made in `copy`, or has found among the operator's tools. `noted` is
    the file with the path of the environment.

    Code of the package may have written this file. So any other path in it is refused (`FetchFailed`).
    """
    try:
        root = os.path.realpath(read_plain(copy, noted, _MAX_PATH).decode("utf-8"))
    except OSError as error:
        raise FetchFailed(f"the record of what uv has started cannot be read: {error.strerror}") from None
    made = os.path.join(os.path.realpath(copy), "uv")  # code of the package may have put a symlink there
    if not any(Path(root).is_relative_to(one) for one in (made, os.path.realpath(_installed_tools(request)))):
        raise FetchFailed("uv made no environment for it")
    program = os.path.join(root, "bin", request.command.program)
    if not (os.path.isfile(program) and os.access(program, os.X_OK)):
        raise FetchFailed(f"the package has no program {request.command.program}")
    with open(program, "rb") as file:
        is_started_by_shell = file.read(len(_UV_START)) == _UV_START
    launcher = os.path.realpath(shutil.which(request.command.head[0], path=request.env.get("PATH")) or "uvx")
    return FetchedPackage(
        argv=(os.path.join(root, "bin", "python"), program) if is_started_by_shell else (program,),
        env={"UV": str(Path(launcher).with_name("uv"))},
        path=(os.path.join(root, "bin"),),
        read=(str(copy),) if Path(root).is_relative_to(os.path.realpath(copy)) else (root,),
        content=_digest(sorted(path.name for path in Path(root).glob("lib/python3*/site-packages/*.dist-info"))),
        copy=copy.name,
        fetched_at=now,
    )


async def _remove_all(copy: Path, folders: Iterable[Path]) -> None:
    """Remove folders below `copy` in a thread, because some have thousands of files. Raises `FetchFailed` if code of
    the package has put a symlink on the way to one."""
    for folder in folders:
        if not has_no_links(copy, folder):
            raise FetchFailed(f"a folder was replaced by a link: {folder.relative_to(copy).parent}")
        await asyncio.to_thread(remove, folder)


def _digest(facts: Any) -> str:
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


_NPM_SETTING: Final = "npm_config_"  # how the variable of a setting begins
_SECRET_NPM_SETTINGS: Final = ("_", "cert", "email", "key", "otp", "password", "username")


def npm_settings(variables: Mapping[str, str], home: str) -> list[str]:
    """Return the path of the operator's npm settings in a list: the file that one of the `variables` names, or `.npmrc`
    in the folder `home`. Return an empty list if there is no such file."""
    given = next((v for k, v in variables.items() if k.lower() == "npm_config_userconfig"), "")
    path = os.path.join(_NOWHERE, given or str(Path(home, ".npmrc")))
    return [path] if os.path.isfile(path) else []


def without_keys(variables: Mapping[str, str], home: str, copy: Path) -> dict[str, str]:
    """Return the environment of an npm process that runs code of packages: `variables` and the operator's settings,
    both without credentials for registries. The settings are written to a file in `copy`. Raises `OSError` if they
    cannot be read or written."""
    settings = copy / "npmrc"
    lines = [
        line for path in npm_settings(variables, home) for line in Path(path).read_text("utf-8", "replace").splitlines()
    ]
    write_new(copy, settings, "".join(f"{line}\n" for line in lines if not _gives_access(line.partition("=")[0])))
    ours = {
        "HOME": str(copy / "home"),
        "npm_config_cache": str(copy / "npm"),
        "npm_config_update_notifier": "false",
        "npm_config_userconfig": str(settings),
    }
    others = {
        name: value
        for name, value in variables.items()
        if not (name.lower().startswith(_NPM_SETTING) and _gives_access(name[len(_NPM_SETTING) :]))
    }
    return others | ours


def _gives_access(setting: str) -> bool:
    """Return whether a setting of npm may hold a credential: it is for one registry only, or has the name of a
    credential."""
    return setting.strip().lower().startswith(("//", *_SECRET_NPM_SETTINGS))


_MAX_LOCK: Final = 64 << 20


class _Lock(msgspec.Struct):
    """The part of npm's lock file that is used here."""

    packages: dict[str, dict[str, Any]]
    """The facts about each package, by its folder in the tree, such as `node_modules/esbuild`."""


_lock: Final = msgspec.json.Decoder(_Lock)


def packages_of(tree: Path, copy: Path) -> dict[str, dict[str, Any]]:
    """Return the facts about each package in `tree` by the package's folder (`_Lock.packages`), from npm's lock file;
    empty if there is no such file. Scripts of packages may have changed the file. Raises `FetchFailed` if the file is
    invalid. `copy` is the folder of the fetch, around the tree."""
    try:
        found = read_plain(copy, tree / "node_modules" / ".package-lock.json", _MAX_LOCK)
        return _lock.decode(found).packages
    except FileNotFoundError:
        return {}
    except (OSError, *UNREADABLE) as error:
        raise FetchFailed(f"npm's record of its packages cannot be read: {error}") from None


def name_in(place: str, package: Mapping[str, Any]) -> str:
    """Return the argument by which npm finds a package of a tree, such as `esbuild@0.25.0`. `place` is the folder of
    the package in the tree, and `package` has the facts about it in npm's lock file."""
    name = package.get("name") or place.rpartition("node_modules/")[2]
    return f"{name}@{package['version']}"


_OWN: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "npm": (("registry.npmjs.org", 443),),
    "uv": (("pypi.org", 443), ("files.pythonhosted.org", 443)),
}
"""The default registries of npm and uv. uv also gets npm's, because some Python packages install a part by npm."""

_URL: Final = re.compile(r"https?://[^\s\"'<>,\]]+", re.IGNORECASE)
_MAX_FILE_BYTES: Final = 1 << 20


def registries_of(
    kind: Literal["npm", "uv"], words: Iterable[str], variables: Mapping[str, str], files: Iterable[Path]
) -> frozenset[tuple[str, int]]:
    """Return (host, port) of the registries and proxies that npx or uvx (`kind`) may use for a fetch: the default ones,
    and those in URLs. URLs are looked for in the `words` of the command, the values of `variables`, and settings files.

    The operator has named them, or they are the tools' defaults. So their addresses may be private, such as that of a
    mirror in the operator's network or of a proxy.
    """
    texts = [*words, *variables.values(), *_texts_of(files)]
    return frozenset((*_OWN[kind], *_OWN["npm"], *(place for text in texts for place in _places_in(text))))


async def places_of(registries: Iterable[tuple[str, int]], lookups: Lookups) -> tuple[str, ...]:
    """Resolve the host names of registries. Return their addresses as `ADDRESS:PORT`, as `sandbox.reach` takes them,
    without those that cannot be resolved."""
    known = sorted(registries)
    found = await asyncio.gather(*(lookups.find(host) for host, _ in known))
    return tuple(
        shown(ipaddress.ip_address(address), port)
        for (_, port), result in zip(known, found, strict=True)
        for address in result.addresses
    )


def _places_in(text: str) -> Iterator[tuple[str, int]]:
    for url in _URL.findall(text):
        try:
            parts = urlsplit(url)
            if parts.hostname:
                yield parts.hostname, parts.port or (80 if parts.scheme == "http" else 443)
        except ValueError:  # it has "${VARIABLE}" as its port, or is no URL
            continue


def _texts_of(files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        try:
            if path.stat().st_size <= _MAX_FILE_BYTES:
                yield path.read_text("utf-8", "replace")
        except OSError:  # it is not there
            continue
