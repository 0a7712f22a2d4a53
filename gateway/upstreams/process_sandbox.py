"""Prepare the sandbox of each server process: its share of memory, its walls (restrictions that the kernel enforces),
its private folder, and the package from which it is started."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from gateway.config.sandbox import Sandbox
from gateway.context.resources_for_links import LinkResources, ReleaseStack
from gateway.context.session_folders import SessionFolders, no_folder
from gateway.errors import StartRefused
from gateway.policy.memory_admission import ServerMemory, ServerProcess
from gateway.sandbox.private_files import opened
from gateway.sandbox.sandboxes_by_trust import SandboxesByTrust
from gateway.sandbox.shared_package_fetches import PackageInUse
from gateway.sandbox.walls_from_profile import OwnFolder
from session_store.tool_session import SOCKET_VARIABLE
from transports.inbound_port import Refused
from transports.upstream.process_tree import parent
from transports.upstream.walls.wall_specification import Walls
from transports.upstream_port import ConnectOptions, UpstreamUnavailable

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class SandboxedResources:
    """Put the processes of one server into a sandbox."""

    name: str
    """The server's name."""
    by_trust: SandboxesByTrust
    """Its sandboxes, by the trust level of the session."""
    folders: SessionFolders
    package: Callable[[], Awaitable[PackageInUse | None]]
    """Fetches the package that the server's command names; returns None if the command has to run unchanged."""
    memory: ServerMemory
    """Decides if there is enough memory for another process."""

    def __post_init__(self) -> None:
        self._refused: dict[Sandbox, list[tuple[str, Path]]] = {}  # the refusals that were logged last

    async def shared(self, env: Mapping[str, str]) -> LinkResources:
        """Return the resources of a link that belongs to no session, or to several: the walls, and the variables `env`.

        Raises:
            UpstreamUnavailable: the walls, the folder or the package cannot be prepared.
            StartRefused: too little memory is free for the process.
        """
        try:
            return await self.of_session(LinkResources(given=ConnectOptions(env=env)), "", self.by_trust.shared)
        except Refused as refused:
            raise StartRefused(refused) from None

    async def of_session(self, resources: LinkResources, session_id: str, sandbox: Sandbox) -> LinkResources:
        """Return `resources`, those of a session's link, with the walls of `sandbox`, the package of the command and
        the count of the process's memory added. If this raises, the resources are released.

        Raises:
            UpstreamUnavailable: the walls, the folder or the package cannot be prepared.
            Refused: 503, too little memory is free for the process.
        """
        given = resources.given
        with ReleaseStack() as releases:
            releases.add(resources.close)
            process = self.memory.begin(self.name, session_id)
            releases.add(process.ended)
            enclosure = self.by_trust.enclosure(sandbox)
            if enclosure is None:
                given = structs.replace(given, launcher=(*given.launcher, *sandbox.prlimit))
            else:
                code: tuple[str, ...] = ()
                if (package := await self.package()) is not None:
                    releases.add(package.release)
                    env = {**package.env, **given.env}
                    given, code = structs.replace(given, argv=package.argv, path=package.path, env=env), package.code
                try:
                    own = OwnFolder(self.folders.use_own(session_id, self.name))
                except OSError as error:
                    raise no_folder(error) from error
                releases.add(partial(self.folders.release, session_id))
                read = () if resources.files is None else (str(resources.files.folder),)
                # The process may use the folder of the whole session if its options name that.
                shared = str(self.folders.path(session_id))
                is_named = shared in given.env.values() or any(shared in part for part in given.launcher)
                walled = enclosure.process(
                    own,
                    folders=(shared,) if is_named else (),
                    sockets=tuple(filter(None, (given.env.get(SOCKET_VARIABLE),))),
                    code=code,
                    read=read,
                )
                self._refuse_open(enclosure.sandbox, walled.walls)
                given = structs.replace(given, env={**walled.env, **given.env}, walls=walled.walls, cwd=walled.cwd)
            given = structs.replace(given, began=_began(given, process))
            return replace(resources, given=given, close=releases.close)

    def _refuse_open(self, sandbox: Sandbox, walls: Walls) -> None:
        """Check that the walls give no access to the gateway's private files. A mount may have replaced a folder since
        the check at the gateway's start.

        Raises:
            UpstreamUnavailable: they give access to such a file. Only the log names the file.
        """
        refused = list(opened(walls, self.by_trust.private))
        for grant, file in refused if refused != self._refused.get(sandbox) else ():
            logger.error(
                "server %s is not started: its sandbox grants %s, and with it %s, which holds keys, secrets or "
                "sessions of the gateway; move the file out of what is granted, or name a narrower folder",
                *(self.name, grant, file),
                extra={"server": self.name},
            )
        self._refused[sandbox] = refused
        if refused:
            raise UpstreamUnavailable("its sandbox grants files of the gateway; the log of the gateway names them")


def _began(given: ConnectOptions, process: ServerProcess) -> Callable[[int | None], None]:
    """Return a callback for the start of `process`. The callback records the pid for the memory count, and calls
    `given.began` with the pid. If the process has no walls, `given.began` gets None, because processes that are not
    descendants of this one may do its work."""
    tell, is_walled = given.began, given.walls is not None

    def began(pid: int | None) -> None:
        if pid is not None:
            process.started(pid, parent(pid) or 0)
        tell(pid if is_walled else None)

    return began
