"""What an operator can see and do, whichever replica is asked. REST interface, console and CLI are its faces."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec

from gateway.admin.peers import PeerQueries
from gateway.admin.replica import Replica
from gateway.admin.reports import ReplicaReport, SessionPart, SessionRow, row_of
from gateway.sessions.lifecycle import SessionLifecycle
from session_store import AuditEvent, Backend, Session, SessionGone
from session_store.session import redact

__all__ = ["ONLY", "Ambiguous", "NoSuch", "Operations", "Page", "matches"]

SHORTEST_PREFIX: Final = 4
DRAIN_WITHIN_S: Final = 20.0
_MOST_LOOKED_AT: Final = 50_000
_AT_ONCE: Final = 1_000
_SEARCHED: Final = 2_000
"""Events among which those of one session are looked for."""

Only = Literal["all", "failing", "busy"]
ONLY: Final[dict[str, Only]] = {"all": "all", "failing": "failing", "busy": "busy"}


class NoSuch(LookupError):
    """There is nothing of that name; the message is for the operator."""


class Ambiguous(LookupError):
    """Several are meant; the message says how to choose."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Some sessions in order of id, and where the next page begins (empty: there is none)."""

    sessions: list[SessionRow]
    after: str = ""


class Operations:
    """Over all replicas of the store."""

    def __init__(
        self,
        *,
        replica: Replica,
        backend: Backend,
        lifecycle: SessionLifecycle,
        asking: PeerQueries,
        clock: Callable[[], float],
    ) -> None:
        self.replica = replica
        self._backend = backend
        self._lifecycle = lifecycle
        self._asking = asking
        self._clock = clock

    # -- replicas

    async def _names(self) -> dict[str, str]:
        if not self._backend.is_shared:
            return {self.replica.name: ""}
        return {self.replica.name: "", **await self._backend.directory.replicas()}

    async def replicas(self) -> list[ReplicaReport]:
        """All that hold a lease; one that does not answer is `silent`."""
        names = await self._names()
        answers = await self._asking.ask("report", None, names)
        reports = []
        for name, address in sorted(names.items()):
            if name not in answers:
                reports.append(ReplicaReport(replica=name, address=address, silent=True))
                continue
            report = msgspec.convert(answers[name], ReplicaReport)
            reports.append(msgspec.structs.replace(report, here=name == self.replica.name))
        return reports

    async def drain(self, prefix: str, *, admit: bool = False) -> str:
        """Have a replica hand its sessions to the others and take no new ones, or have it take some again; its name.

        Raises:
            NoSuch, Ambiguous: not one replica is meant; or it does not answer.
        """
        names = [name for name in await self._names() if name.startswith(prefix)]
        if len(names) != 1 or not prefix:
            raise (Ambiguous if len(names) > 1 else NoSuch)(
                f"{len(names)} replicas have a name that begins with {prefix!r}"
            )
        answers = await self._asking.ask("admit" if admit else "drain", None, names, patience_s=DRAIN_WITHIN_S)
        if not answers:
            raise NoSuch(f"replica {names[0]} does not answer")
        return names[0]

    # -- sessions

    async def sessions(self, *, query: str = "", only: Only = "all", limit: int = 50, after: str = "") -> Page:
        """Live sessions. `query` is looked for in id, principal, client, workspace, endpoint, era, trust and owner.

        `after` is the last session of the page before; those that are `failing` or `busy` come in one page.
        """
        if only != "all":
            return await self._notable(query, only, limit)
        found: list[Session] = []
        # "~" stands behind every character of an id: the page begins behind all that start like that.
        place, looked_at = f"{after}~" if after else "", 0
        while len(found) <= limit and looked_at < _MOST_LOOKED_AT:
            size = min(_AT_ONCE, limit + 1) if not query else _AT_ONCE
            page = await self._backend.sessions.page(after=place, limit=size)
            found += [session for session in page if matches(session, query)]
            looked_at += len(page)
            if len(page) < size:
                break
            place = page[-1].id
        more = redact(found[limit - 1].id) if len(found) > limit else ""
        found = found[:limit]
        parts = await self._parts([session.id for session in found])
        return Page(sessions=await self._rows(found, parts), after=more)

    async def _notable(self, query: str, only: Only, limit: int) -> Page:
        answers = await self._asking.ask("notable", only, await self._names())
        parts = [msgspec.convert(part, SessionPart) for told in answers.values() for part in told]
        if only == "failing":
            parts.sort(key=lambda part: -part.failures[0].at)
        else:
            parts.sort(key=lambda part: -part.in_flight)
        peeked = await asyncio.gather(*(self._backend.sessions.peek(part.id) for part in parts))
        found = [session for session in peeked if session is not None and matches(session, query)][:limit]
        return Page(sessions=await self._rows(found, await self._parts([session.id for session in found])))

    async def _parts(self, session_ids: Iterable[str]) -> dict[str, SessionPart]:
        answers = await self._asking.ask("parts", list(session_ids), await self._names())
        parts = [msgspec.convert(part, SessionPart) for told in answers.values() for part in told]
        return {part.id: part for part in parts}

    async def _rows(self, found: list[Session], parts: dict[str, SessionPart]) -> list[SessionRow]:
        sizes = await asyncio.gather(*(self._size(session) for session in found))
        now = self._clock()
        return [
            row_of(session, parts.get(session.id), now, state_bytes=size)
            for session, size in zip(found, sizes, strict=True)
        ]

    async def _size(self, session: Session) -> int:
        try:
            return await self._backend.state.size(session.id)
        except SessionGone:
            return 0

    async def session(self, prefix: str) -> SessionRow:
        """One session with all that is known of it.

        Raises:
            NoSuch, Ambiguous: not one session is meant.
        """
        session = await self._found(prefix)
        row = (await self._rows([session], await self._parts([session.id])))[0]
        try:
            keys = await self._backend.state.keys(session.id)
        except SessionGone:
            raise NoSuch("the session ended a moment ago") from None
        return msgspec.structs.replace(row, state_keys=keys)

    async def end(self, prefix: str, by: str) -> str:
        """End a session at once, on every replica; how its id begins.

        Raises:
            NoSuch, Ambiguous: not one session is meant, or it has ended.
        """
        session = await self._found(prefix)
        if not await self._lifecycle.end(session.id, f"the operator {by} ended it"):
            raise NoSuch("the session ended a moment ago")
        return redact(session.id)

    async def _found(self, prefix: str) -> Session:
        if len(prefix) < SHORTEST_PREFIX:
            raise NoSuch(f"give at least {SHORTEST_PREFIX} characters of the session's id")
        page = await self._backend.sessions.page(after=prefix, limit=2)
        exact = await self._backend.sessions.peek(prefix)
        found = [session for session in page if session.id.startswith(prefix)] if exact is None else [exact]
        if not found:
            raise NoSuch(f"no live session has an id that begins with {prefix[:64]!r}: it has ended, or never was")
        if len(found) > 1:
            raise Ambiguous(f"more than one live session has an id that begins with {prefix!r}: give more of it")
        return found[0]

    # -- what happened

    async def events(self, limit: int = 100, session: str = "") -> list[dict[str, Any]]:
        """The newest audit events of all replicas, newest first; of one session, where how its id begins is given."""
        trail = await self._backend.audit.recent(max(limit, _SEARCHED) if session else limit)
        wanted = [event for event in trail if not session or event.session == redact(session)]
        return [_facts(event) for event in wanted[:limit]]


def _facts(event: AuditEvent) -> dict[str, Any]:
    return {name: value for name in event.__slots__ if (value := getattr(event, name)) not in ("", 0.0)}


def matches(session: Session, query: str) -> bool:
    """Whether all words of a query are found in what is known of a session; or its id begins like that."""
    if not query:
        return True
    facts = (
        session.id,
        str(session.principal),
        session.client.name,
        session.context.workspace,
        session.endpoint,
        session.era,
        session.context.trust,
        session.owner,
        *session.links,
    )
    words = query.lower().split()
    text = "\n".join(facts).lower()
    return session.id.startswith(query) or all(word in text for word in words)
