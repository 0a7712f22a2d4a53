"""Build the resources that a link (connection to a server) gets from its session: environment variables, the session
object for tools, and a socket through which a child process reads and writes the session's state."""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from gateway.context.process_secret_files import SecretFiles
from gateway.context.session_folders import SessionFolders
from gateway.context.state_api import ProcessTree, StateAccess, by_connection, state_api
from session_store import Session, StateStore
from session_store.current_tool_session import SCOPE_KEY, context_with
from session_store.tool_session import ACCESS_VARIABLE, FACTS_VARIABLE, SOCKET_VARIABLE, ToolSession
from transports.inbound.unauthenticated_limits import Limits, Refusals
from transports.inbound.unix_app_server import UnixAppServer
from transports.upstream_port import ConnectOptions, UpstreamUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkResources:
    """The resources of one link."""

    given: ConnectOptions = field(default_factory=ConnectOptions)
    """What to give to the transport that opens the link, such as environment variables."""
    session: ToolSession | None = None
    """The session object for tools, if the server is an object in this process."""
    files: SecretFiles | None = None
    """The files of its secrets; None if it has none."""
    close: Callable[[], None] = lambda: None
    """Releases all resources; called when the link ends."""

    @property
    def file_values(self) -> set[str]:
        """Return the present and the latest earlier values in the files of the link's secrets."""
        return set() if self.files is None else {*self.files.known}


class ReleaseStack:
    """Releases the resources of a link in reverse order: at once if the `with` block fails, else when `close` is
    called. An `ExitStack` would take ten times the memory for each link."""

    __slots__ = ("_releases",)

    def __init__(self) -> None:
        self._releases: list[Callable[[], None]] = []

    def add(self, release: Callable[[], None]) -> None:
        """Register a function that releases one resource."""
        self._releases.append(release)

    def __enter__(self) -> "ReleaseStack":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.close()

    def close(self) -> None:
        """Release all resources, even if one release fails."""
        try:
            while self._releases:
                self._releases.pop()()
        finally:
            if self._releases:
                self.close()


NO_RESOURCES: Final = LinkResources()
"""The resources of a link (connection to a server) that is not open: none."""


class LinkResourceProvider:
    """Build the resources of links. Only the user of this process can enter the folders of sockets and sessions.

    `tools` makes the session object that tools get, from the session's record.
    """

    def __init__(
        self, tools: Callable[[Session], ToolSession], state: StateStore, limits: Limits, refusals: Refusals
    ) -> None:
        self.folders = SessionFolders()
        self._tools = tools
        self._state = state
        self._server = UnixAppServer(state_api(by_connection), limits, refusals)

    def for_object(self, session: Session) -> LinkResources:
        """Return the resources of a link to a server object in this process."""
        tools = self._tools(session)
        given = ConnectOptions(in_context=lambda: context_with(tools), scope={SCOPE_KEY: tools})
        return LinkResources(given=given, session=tools)

    def state_of(self, session: Session, secret: str = "", processes: ProcessTree | None = None) -> StateAccess:
        """Return access to the state of a session. `secret`: the bearer token that a child process must send.
        `processes`: those that may use it; None if all may."""
        return StateAccess(session=self._tools(session), store=self._state, secret=secret, processes=processes)

    async def for_child(
        self,
        session: Session,
        facts: Mapping[str, Any],
        env: Mapping[str, str],
        launcher: Sequence[str] = (),
        named: Iterable[str] = (),
        files: SecretFiles | None = None,
    ) -> LinkResources:
        """Return the resources of a link to a child process, with a socket of its own to the session's state. Create
        the session's folder if a variable or the launcher contains its path.

        `facts`: the facts of the session, which the child gets as JSON. `env`: the child's variables. `launcher`: the
        command that starts the child; its placeholders are filled in here. It can get the names of the child's
        variables (those in `env`, and further ones in `named`), but never their values. `files`: the files of the
        child's secrets; None if it has none.

        Raises:
            UpstreamUnavailable: the socket or the folder cannot be made, or the launcher names a folder of files that
                the child does not have.
        """
        if files is None and any("{secret_dir}" in part for part in launcher):
            raise UpstreamUnavailable("its launcher names {secret_dir}, but its env no ${secret_file:…}")
        secret = secrets.token_urlsafe(24)
        processes = ProcessTree()
        try:
            with ReleaseStack() as releases:
                path = str(self.folders.sockets / secrets.token_hex(8))
                folder = str(self.folders.path(session.id))
                releases.add(await self._server.listen(path, partial(self.state_of, session, secret, processes)))
                if folder in env.values() or any("{temp_dir}" in part for part in launcher):
                    self.folders.use(session.id)
                    releases.add(partial(self.folders.release, session.id))
        except OSError as error:
            raise UpstreamUnavailable(f"no socket or folder for the session: {error.strerror or error}") from error
        ours = {SOCKET_VARIABLE: path, ACCESS_VARIABLE: secret, FACTS_VARIABLE: json.dumps(dict(facts))}
        # Clients must not choose these values, because they become paths.
        values = {"{socket}": path, "{session_id}": session.id, "{temp_dir}": folder}
        values["{secret_dir}"] = "" if files is None else str(files.folder)
        starts = tuple(_filled(launcher, values, [*named, *env, *ours]))
        given = ConnectOptions(
            env={**env, **ours},
            launcher=starts,
            began=processes.started,
            hide=str if files is None else files.hide,
        )
        return LinkResources(given=given, files=files, close=releases.close)


def _filled(launcher: Sequence[str], values: Mapping[str, str], variables: Iterable[str]) -> Iterator[str]:
    """Yield the parts of a launcher's command. Each placeholder in `values` is replaced by its value. A part with
    `{variable}` is repeated for each name in `variables`. The command never contains values of variables, because
    lists of processes would show them."""
    for part in launcher:
        for placeholder, value in values.items():
            part = part.replace(placeholder, value)
        if "{variable}" in part:
            yield from (part.replace("{variable}", name) for name in variables)
        else:
            yield part
