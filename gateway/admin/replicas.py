"""The running gateways of a store, as the operators' model asks them: all of them over the bus, or none."""

from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec

from gateway.admin.environment_reports import SessionEnvironment
from gateway.admin.frame_reports import FrameQuery, FrameReport
from gateway.admin.held_sessions import HeldPage
from gateway.admin.operators import Ambiguous, NoSuch, SessionQuery, UnknownHere
from gateway.admin.peers import PeerQueries
from gateway.admin.replica import Replica
from gateway.admin.reports import ReplicaReport, SessionPart
from gateway.admin.server_reports import ServerPart
from session_store import Backend, Session, TimelinePart

__all__ = ["NoReplicas", "PeerReplicas", "Replicas"]

DRAIN_WITHIN_S: Final = 20.0


class Replicas(Protocol):
    """What running gateways know of their sessions, and the orders that they take."""

    @property
    def are_known(self) -> bool:
        """True if running gateways can be asked."""
        ...

    @property
    def is_draining(self) -> bool:
        """True if the gateway that is asked drains."""
        ...

    async def reports(self) -> list[ReplicaReport]:
        """One report for each replica that holds a lease, in order of name."""
        ...

    async def parts(self, session_ids: Iterable[str]) -> dict[str, SessionPart]:
        """What is known of these sessions beside their records, by id."""
        ...

    async def brief_parts(self, session_ids: Iterable[str]) -> tuple[dict[str, SessionPart], int]:
        """As `parts`, without processes and refusals; and how many replicas did not answer."""
        ...

    async def held(self, session_ids: Iterable[str]) -> tuple[set[str], int]:
        """Those of these sessions that a replica serves, and how many replicas did not answer."""
        ...

    async def listing(self, query: SessionQuery) -> tuple[list[HeldPage], int]:
        """What each replica serves of a list of sessions, and how many replicas did not answer."""
        ...

    async def unwritten(self, name: str) -> list[TimelinePart]:
        """What is not in the store yet of the timeline of the session whose id begins like that."""
        ...

    async def write_activity(self) -> None:
        """Have the gateways write to the store what they have counted up to now, and what happened in sessions that
        have ended."""
        ...

    async def servers(self) -> list[ServerPart]:
        """What each replica knows of each server."""
        ...

    async def environment(self, session: Session) -> SessionEnvironment:
        """What the servers of a session were given, as the replica says that serves it. If none does, as the session's
        record and the configuration of the gateway that is asked say."""
        ...

    async def watch(self, session_id: str, by: str) -> FrameReport | None:
        """Watch a session for the operator `by`. None: it is live on no replica."""
        ...

    async def unwatch(self, session_id: str) -> bool | None:
        """Watch a session no longer. False: it was not watched. None: it is live on no replica."""
        ...

    async def frames(self, query: FrameQuery) -> FrameReport | None:
        """What was seen of a session that is watched. None: it is live on no replica."""
        ...

    async def cancel_task(self, name: str, reason: str) -> bool:
        """Cancel a task (`Task.name`). False if no replica runs it."""
        ...

    async def drain(self, prefix: str) -> str:
        """Drain the replica whose name begins like that. Returns its name."""
        ...

    async def admit(self, prefix: str) -> str:
        """Admit the replica whose name begins like that. Returns its name."""
        ...


class PeerReplicas:
    """All replicas of a store, asked over its bus. `own` answers for this process."""

    def __init__(self, own: Replica, backend: Backend, queries: PeerQueries) -> None:
        self._own = own
        self._backend = backend
        self._queries = queries

    are_known = True

    @property
    def is_draining(self) -> bool:
        return self._own.is_draining

    async def reports(self) -> list[ReplicaReport]:
        """One that does not answer is `silent`."""
        names = await self._names()
        answers = await self._queries.ask("report", None, names)
        reports = []
        for name, address in sorted(names.items()):
            if name not in answers:
                reports.append(ReplicaReport(replica=name, address=address, silent=True))
                continue
            report = msgspec.convert(answers[name], ReplicaReport)
            reports.append(msgspec.structs.replace(report, here=name == self._own.name))
        return reports

    async def parts(self, session_ids: Iterable[str]) -> dict[str, SessionPart]:
        return (await self._parts("parts", list(session_ids)))[0]

    async def brief_parts(self, session_ids: Iterable[str]) -> tuple[dict[str, SessionPart], int]:
        return await self._parts("brief parts", list(session_ids))

    async def held(self, session_ids: Iterable[str]) -> tuple[set[str], int]:
        names = await self._names()
        answers = await self._queries.ask("held", list(session_ids), names)
        return {session_id for held in answers.values() for session_id in held}, len(names) - len(answers)

    async def listing(self, query: SessionQuery) -> tuple[list[HeldPage], int]:
        names = await self._names()
        answers = await self._queries.ask("listing", msgspec.to_builtins(query), names)
        pages = [msgspec.convert(page, HeldPage, strict=False) for page in answers.values()]
        return pages, len(names) - len(answers)

    async def unwritten(self, name: str) -> list[TimelinePart]:
        answers = await self._queries.ask("timeline", name, await self._names())
        return [msgspec.convert(part, TimelinePart) for part in answers.values() if part is not None]

    async def write_activity(self) -> None:
        await self._queries.ask("write activity", None, await self._names())

    async def servers(self) -> list[ServerPart]:
        answers = await self._queries.ask("servers", None, await self._names())
        return [msgspec.convert(part, ServerPart) for parts in answers.values() for part in parts]

    async def environment(self, session: Session) -> SessionEnvironment:
        names = await self._names()
        owner = session.owner if session.owner in names else self._own.name
        answer = (await self._queries.ask("environment", session.id, [owner])).get(owner)
        return self._own.environments.of(session) if answer is None else msgspec.convert(answer, SessionEnvironment)

    async def watch(self, session_id: str, by: str) -> FrameReport | None:
        return await self._report("watch", [session_id, by])

    async def unwatch(self, session_id: str) -> bool | None:
        answers = await self._queries.ask("unwatch", session_id, await self._names())
        found = [answer for answer in answers.values() if answer is not None]
        return any(found) if found else None

    async def frames(self, query: FrameQuery) -> FrameReport | None:
        return await self._report("frames", msgspec.to_builtins(query))

    async def _report(self, what: str, args: Any) -> FrameReport | None:
        """The report of the replica that has a session; of several, of the one that watches it."""
        answers = await self._queries.ask(what, args, await self._names())
        reports = [msgspec.convert(answer, FrameReport) for answer in answers.values() if answer is not None]
        return max(reports, key=lambda report: report.watched, default=None)

    async def cancel_task(self, name: str, reason: str) -> bool:
        return any((await self._queries.ask("cancel task", [name, reason], await self._names())).values())

    async def drain(self, prefix: str) -> str:
        return await self._order("drain", prefix)

    async def admit(self, prefix: str) -> str:
        return await self._order("admit", prefix)

    async def _names(self) -> dict[str, str]:
        """Addresses by name."""
        if not self._backend.is_shared:
            return {self._own.name: ""}
        return {self._own.name: "", **await self._backend.directory.replicas()}

    async def _parts(self, what: str, args: Any) -> tuple[dict[str, SessionPart], int]:
        names = await self._names()
        answers = await self._queries.ask(what, args, names)
        parts = [msgspec.convert(part, SessionPart) for parts in answers.values() for part in parts]
        return {part.id: part for part in parts}, len(names) - len(answers)

    async def _order(self, what: str, prefix: str) -> str:
        names = [name for name in await self._names() if name.startswith(prefix)]
        if len(names) != 1 or not prefix:
            kind = Ambiguous if len(names) > 1 else NoSuch
            raise kind(f"{len(names)} replicas have a name that begins with {prefix!r}")
        if not await self._queries.ask(what, None, names, patience_s=DRAIN_WITHIN_S):
            raise NoSuch(f"replica {names[0]} does not answer")
        return names[0]


class NoReplicas:
    """No gateway can be asked: there is a store only."""

    are_known = False
    is_draining = False

    async def reports(self) -> list[ReplicaReport]:
        raise UnknownHere("the store does not record which replicas run: use --url with a running gateway")

    async def parts(self, session_ids: Iterable[str]) -> dict[str, SessionPart]:
        return {}

    async def brief_parts(self, session_ids: Iterable[str]) -> tuple[dict[str, SessionPart], int]:
        return {}, 0

    async def held(self, session_ids: Iterable[str]) -> tuple[set[str], int]:
        return set(), 0

    async def listing(self, query: SessionQuery) -> tuple[list[HeldPage], int]:
        raise UnknownHere("the store does not record which gateways run: use --url with a running gateway")

    async def unwritten(self, name: str) -> list[TimelinePart]:
        return []

    async def write_activity(self) -> None:
        """Gateways write by themselves, a little later."""

    async def servers(self) -> list[ServerPart]:
        raise UnknownHere("the store does not record which servers run: use --url with a running gateway")

    async def environment(self, session: Session) -> SessionEnvironment:
        raise UnknownHere("the store does not record what servers were given: use --url with a running gateway")

    async def watch(self, session_id: str, by: str) -> FrameReport | None:
        raise UnknownHere("only a running gateway can show the frames of a session: use --url")

    async def unwatch(self, session_id: str) -> bool | None:
        raise UnknownHere("only a running gateway can show the frames of a session: use --url")

    async def frames(self, query: FrameQuery) -> FrameReport | None:
        raise UnknownHere("only a running gateway can show the frames of a session: use --url")

    async def cancel_task(self, name: str, reason: str) -> bool:
        raise UnknownHere("only a running gateway can cancel a task: use --url")

    async def drain(self, prefix: str) -> str:
        raise UnknownHere("only a running gateway can drain a replica: use --url")

    async def admit(self, prefix: str) -> str:
        raise UnknownHere("only a running gateway can admit a replica: use --url")
