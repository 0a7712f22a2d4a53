"""Adds the sandbox of a server to the resources of its links: walls, a folder of their own, and what is in it."""

from dataclasses import replace

from msgspec import structs

from gateway.config.sandbox import Sandbox
from gateway.context.link_resources import LinkResources
from gateway.context.session_folders import SessionFolders
from gateway.sandbox.enclosures import Enclosures
from gateway.sandbox.profiles import OwnFolder
from session_store.tool_session import SOCKET_VARIABLE
from transports.upstream_port import UpstreamUnavailable

__all__ = ["Enclosing"]


class Enclosing:
    """Encloses the processes of the server `name`. `sandbox` returns the sandbox for sessions of a trust."""

    def __init__(self, name: str, enclosures: Enclosures, folders: SessionFolders) -> None:
        self._name = name
        self._enclosures = enclosures
        self._folders = folders
        self.sandbox = enclosures.sandbox

    def of_session(self, resources: LinkResources, session_id: str, sandbox: Sandbox) -> LinkResources:
        """The resources of a link, with the walls of that sandbox. If they cannot be made, the link's resources are
        released. Raises `UpstreamUnavailable`."""
        try:
            return self._enclosed(resources, session_id, sandbox)
        except BaseException:
            resources.close()
            raise

    def shared(self) -> LinkResources:
        """The resources of a link that belongs to no session, or to many. Raises `UpstreamUnavailable`."""
        return self._enclosed(LinkResources(), "", self._enclosures.shared)

    def _enclosed(self, resources: LinkResources, session_id: str, sandbox: Sandbox) -> LinkResources:
        enclosure = self._enclosures.enclosure(sandbox)
        if enclosure is None:
            return resources
        given = resources.given
        try:
            own = OwnFolder(self._folders.use_own(session_id, self._name))
            shared = str(self._folders.path(session_id))
        except OSError as error:
            raise UpstreamUnavailable(f"no folder for the session: {error.strerror or error}") from error
        is_named = shared in given.env.values() or any(shared in part for part in given.launcher)
        process = enclosure.process(
            own,
            folders=(shared,) if is_named else (),
            sockets=tuple(filter(None, (given.env.get(SOCKET_VARIABLE),))),
        )

        def close() -> None:
            resources.close()
            self._folders.release(session_id)

        env = {**process.env, **given.env}
        return replace(
            resources, given=structs.replace(given, env=env, walls=process.walls, cwd=process.cwd), close=close
        )
