"""Change the record of a session, in the store and in this replica's cached copy. Limit the data that clients put into
the record: the parameters of `initialize`, and subscriptions."""

import contextlib
import functools
from typing import Any, Final

from gateway.calls.link_manager import LinkSession
from gateway.calls.live_session import AddEntry, LiveSession, ignored
from gateway.errors import record_full
from session_store import Session, SessionStore, StoreUnavailable
from session_store.ports.sessions import SetField
from transports.background_tasks import Tasks
from transports.inbound.unauthenticated_limits import Limited, Limits, Refusals
from transports.inbound_port import Refused

MAX_SUBSCRIPTIONS: Final = 1_000


class SessionRecords:
    """Changes the records of sessions that have not ended. Methods that write may raise `StoreUnavailable`, except
    `remember_shown`, and `add_entry`, which adds an entry to the timeline of a session.

    `most` is how many bytes of client data a record may have. A request that would add more is refused, and counted in
    `refusals`."""

    def __init__(
        self,
        store: SessionStore,
        add_entry: AddEntry = ignored,
        *,
        refusals: Refusals,
        most: int = Limits().record_bytes,
    ) -> None:
        self.add_entry = add_entry
        self._store = store
        self._refusals = refusals
        self._most = most
        self._tasks = Tasks("records of shown tools")

    def check_handshake(self, params: bytes) -> None:
        """Check the size of the parameters of `initialize`. Raises `Refused`: -32602, they are too large."""
        if len(params) > self._most:
            raise self._refused("params of initialize")

    def _check_subscription(self, session: Session, uri: str = "") -> None:
        """Check that the record of a session is not too large with one more subscription, to `uri` (empty: without).
        Raises `Refused`: -32602, it is too large."""
        uris = (*session.subscriptions, uri) if uri else session.subscriptions
        size = len(session.client.initialize_params) + sum(len(each.encode("utf-8", "replace")) for each in uris)
        if len(uris) > MAX_SUBSCRIPTIONS or size > self._most:
            raise self._refused("subscriptions")

    def _refused(self, what: str) -> Refused:
        self._refusals[Limited.RECORD] += 1
        return record_full(what, self._most)

    async def update(self, live: LiveSession, **fields: Any) -> None:
        """Set fields of a session's record, in the store and in the cached copy. Do nothing if the session has
        ended."""
        session = await self._store.update(live.session.id, **fields)
        if session is not None:
            live.replace_record(session)

    def remember_shown(self, live: LiveSession) -> None:
        """Write into the session's record, in the background, the tools that the client has seen. If the store does not
        answer, they are written when the client gets its next list of tools."""
        self._tasks.start(live, functools.partial(self._write_shown, live))

    async def _write_shown(self, live: LiveSession) -> None:
        with contextlib.suppress(StoreUnavailable):
            written = live.session.shown
            while not live.ended and (text := live.shown.text) != written:  # more may be shown meanwhile
                await self.update(live, shown=text)
                written = text

    async def settled(self) -> None:
        """Wait until the writes in the background have ended."""
        await self._tasks.settled()

    async def subscribe(self, live: LiveSession, uri: str) -> None:
        """Record a subscription to a resource, so that the server's next process can get it too.

        Raises:
            Refused: -32602, the record has no room for it.
        """
        if uri in live.session.subscriptions:
            return
        self._check_subscription(live.session, uri)
        await self._change_set(live, "subscriptions", add=uri)
        try:
            self._check_subscription(live.session)
        except BaseException:
            await self._change_set(live, "subscriptions", remove=uri)  # others were added at the same time
            raise

    async def unsubscribe(self, live: LiveSession, uri: str) -> None:
        """Remove a subscription from a session's record."""
        await self._change_set(live, "subscriptions", remove=uri)

    async def record_use(self, live: LinkSession, upstream: str) -> bool:
        """Record that a session has a link (connection) to the server `upstream`. Return True if the session had a link
        to it before and has lost that one, because the gateway was restarted or the session's servers were stopped.
        From then on, return True for each further link to that server, too."""
        if upstream in live.session.links:
            return upstream in live.used_before
        await self._change_set(live, "links", add=upstream)
        return False

    async def remote_session_changed(self, live: LiveSession, old: str, new: str) -> None:
        """In the session's record, replace the entry `old` about an HTTP server by the entry `new`. An entry has the
        MCP session id at that server, which a later link resumes. An empty string means that there is no entry."""
        await self._change_set(live, "remote", add=new, remove=old)

    async def _change_set(self, live: LinkSession, field: SetField, **change: str) -> None:
        session = await self._store.change_set(live.session.id, field, **change)
        if session is not None:
            live.replace_record(session)
