"""Fetch the packages that sandboxed servers start by npx or uvx, once for all sessions, which can only read them.

Otherwise all sessions would share one writable cache, in which a session could change what the next one executes (ADR
32).
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from time import time
from typing import Final

from gateway.config.upstreams import UpstreamSettings
from gateway.context.principal_secrets import without_templates
from gateway.sandbox.package_command import PackageCommand, parse
from gateway.sandbox.package_fetch import FetchFailed, FetchRequest, NotForAll, PackageFetcher
from gateway.sandbox.package_folder import FetchedPackage, PackageFolder, packages_root, usable_root
from gateway.sandbox.runtime_paths import runtime_paths
from transports.background_tasks import Tasks, TasksClosed
from transports.upstream.stdio import INHERITED
from transports.upstream.walls.resolved_paths import is_within
from transports.upstream_port import UpstreamUnavailable

logger = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""The most packages that are fetched concurrently. A fetch mostly waits for its registry."""
_FIRST_RETRY_S: Final = 5.0
_LAST_RETRY_S: Final = 300.0
_POLL_S: Final = 0.2
"""Seconds between attempts to acquire the lock of a folder that another gateway holds."""
_FRESH_S: Final = 86_400.0
"""The age in seconds from which a package is fetched again if its command names no exact version."""

_OF_FETCHES: Final = re.compile(
    r"(npm_config|uv)_.*|(http|https|all|no)_proxy|ssl_cert_(file|dir)|node_extra_ca_certs|node_options", re.IGNORECASE
)
"""Variables that matter to a fetch: registries, proxies and certificates. A fetch also gets these from the gateway's
environment."""
_RELATIVE: Final = re.compile(r"(^|[=,\s])\.\.?(/|[,\s]|$)")
"""Matches a path in the value of a variable, if the first part of the path is `.` or `..`: it depends on the working
directory."""
_OF_PATHS: Final = re.compile(
    r"npm_config_(userconfig|globalconfig|cafile)|uv_(config_file|find_links|(default_|extra_)?index(_url)?)"
    r"|node_extra_ca_certs|ssl_cert_(file|dir)",
    re.IGNORECASE,
)
"""Matches the names of variables whose values are paths or URLs. In such a value, a word without a slash is a path in
the working directory, too."""
_ELSEWHERE: Final = re.compile(r"([\w.-]+=)?(/|~|https?://|file:///)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageInUse:
    """A fetched package from which one process is started."""

    argv: tuple[str, ...]
    """The whole command to start in place of npx or uvx."""
    env: Mapping[str, str]
    """The variables that npx or uvx would add to the environment."""
    path: tuple[str, ...]
    """The folders that npx or uvx would put in front of PATH."""
    code: tuple[str, ...]
    """The files and folders of the program and its interpreter, to be granted for reading and executing."""
    release: Callable[[], None]
    """To be called when the process has ended: the package may then be removed."""


@dataclass(slots=True)
class _Failure:
    """The last failure to fetch a package."""

    reason: str
    again_at: float
    """When the fetch may be retried (Unix time)."""
    count: int
    """The number of failures in a row."""


@dataclass(eq=False, repr=False)
class Packages:
    """Fetch packages and store them, for all servers of one gateway.

    Concurrent sessions share one fetch, and so do the gateways on one machine. The start of a server waits for a fetch
    for at most `wait_s`; the fetch then goes on. `clock` returns Unix time.
    """

    fetcher: PackageFetcher
    clock: Callable[[], float] = time
    _: KW_ONLY
    wait_s: float = 600.0

    def __post_init__(self) -> None:
        self._wanted: dict[str, tuple[str, str]] = {}  # folder and package of the last fetch, by server
        self._tasks = Tasks("packages")
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._failures: dict[str, _Failure] = {}
        self._not_for_all: set[str] = set()
        self._interpreters: dict[str, tuple[str, ...]] = {}

    async def use(self, server: str, argv: Sequence[str], env: Mapping[str, str]) -> PackageInUse | None:
        """Return the fetched package from which to start the server `server`, whose command is `argv`. If it was not
        fetched yet, wait for the fetch. Return None if the command has to run unchanged.

        `env` has the variables that the operator set for the server.

        Raises:
            UpstreamUnavailable: the package could not be fetched, or not in time.
        """
        place = _place(argv, env)
        if place is None:
            return None
        folder, request = place
        command = request.command
        for _ in range(3):  # another gateway may remove a copy as soon as it has a newer one
            if folder.path.name in self._not_for_all:
                return None
            package = folder.current()
            if package is None:
                await self._fetched(server, folder, request)
                continue
            try:
                release = folder.use(package)
            except OSError:
                continue
            if not command.is_pinned and not 0 <= self.clock() - package.fetched_at < _FRESH_S:
                name = folder.path.name
                if self._error(name) is None:  # else a fetch was tried in vain a short time ago
                    self._tasks.start(name, partial(self._fetch, server, folder, request))
            return PackageInUse(
                argv=(*package.argv, *command.args),
                env=package.env,
                path=package.path,
                code=(*package.read, *self._interpreter(command, package, request)),
                release=release,
            )
        raise UpstreamUnavailable(f"server {server!r}: the package {command.package} changes too often")

    def fetching(self, server: str) -> str:
        """Return the name of the package that is being fetched for the server; empty if there is none."""
        folder, package = self._wanted.get(server, ("", ""))
        return package if self._tasks.running(folder) is not None else ""

    async def settled(self) -> None:
        """Wait until no package is being fetched."""
        await self._tasks.settled()

    async def close(self) -> None:
        """Cancel running fetches."""
        await self._tasks.close()

    def _interpreter(self, command: PackageCommand, package: FetchedPackage, request: FetchRequest) -> tuple[str, ...]:
        """Return the files and folders of the Python that a package runs on; empty for npm, because node belongs to
        the server's command, which has its own grants.

        A Python environment names its interpreter by a symlink that code of the package could have changed. So only a
        program named `python` in a folder `bin` counts that is outside of the copy, which a fetch can write. The files
        beside one within would name further files, and the copy is granted as a whole.
        """
        if command.kind == "npm":
            return ()
        python = os.path.realpath(os.path.join(package.path[0], "python"))
        folder, name = os.path.split(python)
        if is_within(python, [os.path.realpath(one) for one in package.read if os.path.basename(one) == package.copy]):
            return ()
        if not (name.startswith("python") and os.path.basename(folder) == "bin" and os.access(python, os.X_OK)):
            return ()
        if python not in self._interpreters:
            found = runtime_paths((python,), "", "/", request.home)
            self._interpreters[python] = tuple(found.code)
        return self._interpreters[python]

    async def _fetched(self, server: str, folder: PackageFolder, request: FetchRequest) -> None:
        """Fetch a package, or wait for the fetch of it that is running. If the last fetch has failed a short time ago,
        do not try again.

        Raises:
            UpstreamUnavailable: the package could not be fetched, or not in time.
        """
        name = folder.path.name
        if self._error(name) is None:
            self._wanted[server] = name, request.command.package
            try:
                async with asyncio.timeout(self.wait_s):
                    await self._tasks.share(name, lambda: self._fetch(server, folder, request))
            except TimeoutError:
                raise UpstreamUnavailable(
                    f"server {server!r} is not started yet: its package {request.command.package} is still being "
                    "fetched"
                ) from None
            except TasksClosed:
                raise UpstreamUnavailable("the gateway stops") from None
        if (failure := self._failures.get(name)) is not None:
            raise UpstreamUnavailable(
                f"server {server!r}: the package {request.command.package} could not be fetched: {failure.reason}"
            )

    def _error(self, name: str) -> _Failure | None:
        """Return the last failure to fetch the package with the folder `name` if the fetch must not be retried yet;
        otherwise None."""
        failure = self._failures.get(name)
        return failure if failure is not None and self.clock() < failure.again_at else None

    async def _fetch(self, server: str, folder: PackageFolder, request: FetchRequest) -> None:
        name, package = folder.path.name, request.command.package
        try:
            async with self._slots:
                await self._fetch_locked(server, folder, request)
        except NotForAll as reason:
            self._not_for_all.add(name)
            logger.warning("server %r: each session fetches the package %s for itself: %s", server, package, reason)
        except (FetchFailed, OSError) as error:
            reason_text = str(error) if isinstance(error, FetchFailed) else f"{folder.path}: {error.strerror or error}"
            count = self._failures[name].count + 1 if name in self._failures else 1
            delay_s = min(_LAST_RETRY_S, _FIRST_RETRY_S * 2.0 ** (min(count, 16) - 1))
            self._failures[name] = _Failure(reason_text, self.clock() + delay_s, count)
            logger.warning(
                "server %r: the package %s could not be fetched; next attempt after %.0f s: %s",
                *(server, package, delay_s, reason_text),
            )
        else:
            self._failures.pop(name, None)

    async def _fetch_locked(self, server: str, folder: PackageFolder, request: FetchRequest) -> None:
        """Fetch a package for `server` into a new copy, and make it the current one, under the lock of the folder. Do
        nothing if another gateway has fetched the package meanwhile.

        Raises:
            FetchFailed: the package could not be fetched.
            NotForAll: each session has to fetch the package for itself.
            OSError: the folder cannot be used.
        """
        wrong = await asyncio.to_thread(usable_root, folder.path.parent)
        if wrong:
            raise FetchFailed(f"the folder of packages cannot be used: {wrong}")
        folder.make()
        started_at = self.clock()
        lock = await _lock_of(folder)
        try:
            before = folder.current()
            if before is not None and before.fetched_at >= started_at:
                return  # another gateway has fetched it meanwhile
            logger.info("server %r: fetching the package %s", server, request.command.package)
            package = await self.fetcher.fetch(request, folder.new_copy(), started_at)
            if before is not None and before.content == package.content:  # nothing new: the new copy is removed
                package = replace(before, fetched_at=started_at)
            await _done(partial(folder.publish, package))
        finally:
            try:
                await _done(folder.remove_unused)
            finally:
                os.close(lock)


async def _done(work: Callable[[], None]) -> None:
    """Run blocking work in a thread. If cancelled, wait until the work has ended, because the caller then releases the
    folder's lock."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def package_folder(entry: UpstreamSettings) -> PackageFolder | None:
    """Return the folder of the package that a server's command names, fetched or not; None if it names none, or if each
    session fetches it for itself. A gateway of this user uses the same folder, wherever it is started."""
    place = _place(entry.argv, without_templates(entry.env))
    return None if place is None else place[0]


def _place(argv: Sequence[str], own: Mapping[str, str]) -> tuple[PackageFolder, FetchRequest] | None:
    """Return the folder for the package that the command `argv` starts, and the request by which it is fetched. Return
    None if the command has to run unchanged. `own` has the variables that the operator set for the server.

    The results follow from what the operator has written, and from the installed programs. No file that a session could
    write counts: it would decide for all sessions. So HOME is the gateway's, and a command with a path in the working
    directory is not fetched for all.
    """
    command = parse(argv)
    if command is None:
        return None
    inherited = {k: v for k, v in os.environ.items() if k in INHERITED or _OF_FETCHES.fullmatch(k)}
    chosen = {k: v for k, v in own.items() if k == "PATH" or _OF_FETCHES.fullmatch(k)}
    env = {**inherited, **chosen}
    if any(_OF_FETCHES.fullmatch(k) and _is_in_working_directory(k, v) for k, v in env.items()):
        return None
    env["PATH"] = os.pathsep.join(filter(os.path.isabs, env.get("PATH", os.defpath).split(os.pathsep)))
    request = FetchRequest(command=command, env=env, home=env.get("HOME") or "/nonexistent")
    facts = [command.head, sorted(chosen.items()), [*map(_state_of, _tools(command, env["PATH"]))]]
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=10).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", command.package).strip("-.")[-40:]
    return PackageFolder(packages_root() / f"{readable}-{digest}"), request


def _is_in_working_directory(variable: str, value: str) -> bool:
    """Return True if the value of a variable is a path in the working directory (a relative path), or contains one."""
    if not _OF_PATHS.fullmatch(variable):
        return _RELATIVE.search(value) is not None
    return any(not _ELSEWHERE.match(word) for word in re.split(r"[,\s]+", value.strip()) if word)


async def _lock_of(folder: PackageFolder) -> int:
    """Wait for the lock of a folder and acquire it. Return its descriptor. Raises `OSError`."""
    while True:
        lock = folder.try_lock()
        if lock is not None:
            return lock
        await asyncio.sleep(_POLL_S)


def _tools(command: PackageCommand, path: str) -> tuple[str, ...]:
    """Return the paths of the programs on which a fetched package depends: the launcher (such as npx or uvx), and Node
    or Python, because a compiled part of the package fits only one version of it. `path` is the PATH to find them."""
    names = (command.head[0], "node") if command.kind == "npm" else (command.head[0], "python3")
    return tuple(filter(None, (shutil.which(name, path=path) for name in names)))


def _state_of(program: str) -> tuple[str, int, int]:
    """Return the real path of a program, and the size and the modification time (in ns) of its file; 0 if there is no
    file. An upgrade of the program changes them."""
    try:
        facts = os.stat(program)
    except OSError:
        return program, 0, 0
    return os.path.realpath(program), facts.st_size, facts.st_mtime_ns
