"""Add the sandbox of a server to the resources of its links: walls, a private folder, and the package to start."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from gateway.config.sandbox import Sandbox
from gateway.context.link_resources import LinkResources
from gateway.context.session_folders import SessionFolders
from gateway.sandbox.enclosures import Enclosures, opened
from gateway.sandbox.packages import PackageInUse
from gateway.sandbox.profiles import Enclosure, OwnFolder
from session_store.tool_session import SOCKET_VARIABLE
from transports.upstream.walls.spec import Walls
from transports.upstream_port import UpstreamUnavailable

__all__ = ["SandboxedResources"]

logger = logging.getLogger(__name__)


class SandboxedResources:
    """Put the processes of the server `name` into its sandbox. `sandbox` returns the sandbox for sessions of a trust
    level. `package` fetches the package that the server's command names, if it names one."""

    def __init__(
        self,
        name: str,
        enclosures: Enclosures,
        folders: SessionFolders,
        package: Callable[[], Awaitable[PackageInUse | None]],
    ) -> None:
        self._name = name
        self._enclosures = enclosures
        self._folders = folders
        self._package = package
        self._refused: dict[Sandbox, list[tuple[str, Path]]] = {}  # the refusals that were logged last
        self.sandbox = enclosures.sandbox

    async def of_session(self, resources: LinkResources, session_id: str, sandbox: Sandbox) -> LinkResources:
        """Return the resources of a session's link, with the walls of that sandbox added. If this fails, release the
        resources. Raises `UpstreamUnavailable`."""
        try:
            return await self._enclosed(resources, session_id, sandbox)
        except BaseException:
            resources.close()
            raise

    async def shared(self) -> LinkResources:
        """Return walled resources of a link that belongs to no session, or to many. Raises `UpstreamUnavailable`."""
        return await self._enclosed(LinkResources(), "", self._enclosures.shared)

    async def _enclosed(self, resources: LinkResources, session_id: str, sandbox: Sandbox) -> LinkResources:
        enclosure = self._enclosures.enclosure(sandbox)
        if enclosure is None:
            launcher = (*resources.given.launcher, *sandbox.prlimit)
            return replace(resources, given=structs.replace(resources.given, launcher=launcher))
        package = await self._package()
        if package is None:
            return self._in_walls(resources, session_id, enclosure)
        try:
            given = structs.replace(
                resources.given,
                argv=package.argv,
                path=package.path,
                env={**package.env, **resources.given.env},
            )
            return self._in_walls(
                LinkResources(given=given, session=resources.session, close=_both(resources.close, package.release)),
                session_id,
                enclosure,
                package.code,
            )
        except BaseException:
            package.release()
            raise

    def _in_walls(
        self, resources: LinkResources, session_id: str, enclosure: Enclosure, code: Sequence[str] = ()
    ) -> LinkResources:
        try:
            own = OwnFolder(self._folders.use_own(session_id, self._name))
        except OSError as error:
            raise UpstreamUnavailable(f"no folder for the session: {error.strerror or error}") from error
        try:
            return self._in_folder(own, resources, session_id, enclosure, code)
        except BaseException:
            self._folders.release(session_id)
            raise

    def _in_folder(
        self, own: OwnFolder, resources: LinkResources, session_id: str, enclosure: Enclosure, code: Sequence[str]
    ) -> LinkResources:
        given = resources.given
        shared = str(self._folders.path(session_id))
        is_named = shared in given.env.values() or any(shared in part for part in given.launcher)
        process = enclosure.process(
            own,
            folders=(shared,) if is_named else (),
            sockets=tuple(filter(None, (given.env.get(SOCKET_VARIABLE),))),
            code=code,
        )
        self._refuse_open(enclosure.sandbox, process.walls)
        close = _both(resources.close, lambda: self._folders.release(session_id))
        env = {**process.env, **given.env}
        return replace(
            resources, given=structs.replace(given, env=env, walls=process.walls, cwd=process.cwd), close=close
        )

    def _refuse_open(self, sandbox: Sandbox, walls: Walls) -> None:
        """Check that the walls do not open files of the gateway. The start has checked this already, but a mount may
        have replaced a folder since.

        Raises:
            UpstreamUnavailable: the walls open such files. The log names them, the message to clients does not.
        """
        refused = list(opened(walls, self._enclosures.private))
        for grant, file in refused if refused != self._refused.get(sandbox) else ():
            logger.error(
                "server %s is not started: its sandbox grants %s, and with it %s, which holds keys or sessions of the "
                "gateway; move the file out of what is granted, or name a narrower folder",
                *(self._name, grant, file),
                extra={"server": self._name},
            )
        self._refused[sandbox] = refused
        if refused:
            raise UpstreamUnavailable("its sandbox grants files of the gateway; the log of the gateway names them")


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `first` and then `second`, even if `first` fails."""

    def close() -> None:
        try:
            first()
        finally:
            second()

    return close
