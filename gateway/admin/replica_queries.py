"""Send operators' queries to the running gateways of a store, over the store's bus."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar

import msgspec

from gateway.admin.query_types import Ambiguous, NoSuch, UnknownHere
from gateway.admin.report_types import ReloadReport, ReplicaReport, SessionEnvironment, SessionPart
from gateway.admin.this_replica import QUESTIONS, Replica
from session_store import Backend, Bus, Session, StoreUnavailable
from transports.background_tasks import Tasks
from transports.jsonrpc import UNREADABLE

logger = logging.getLogger(__name__)
ASK: Final = "mcp:ask"
_ANSWERS: Final = "mcp:answers:"
_AGAIN_S: Final = 1.0
PATIENCE_S: Final = 1.0
"""Seconds that the sender of a query waits for answers."""

P = ParamSpec("P")
T = TypeVar("T")
DRAIN_WITHIN_S: Final = 20.0
RELOAD_WITHIN_S: Final = 20.0
"""Seconds to wait for reloads. A reload waits up to 10 s for the first answers of new servers."""


class _Question(msgspec.Struct):
    number: str
    by: str
    to: list[str]
    what: str
    args: Any = None


class _Answer(msgspec.Struct):
    number: str
    by: str
    body: Any = None


Message = TypeVar("Message", _Question, _Answer)


class PeerQueries:
    """Send queries to other replicas over the bus, and answer theirs. `name`: this replica. `answer`: gets the name and
    the arguments of a query to this replica, and returns the answer."""

    def __init__(self, bus: Bus, name: str, answer: Callable[[str, Any], Awaitable[Any]]) -> None:
        self._bus = bus
        self._name = name
        self._answer = answer
        self._waiting: dict[str, Callable[[str, Any], None]] = {}
        self._tasks = Tasks("peer queries")

    async def listen(self) -> None:
        """Receive queries and answers of other replicas until cancelled."""
        while True:
            try:
                async with (
                    self._bus.subscribed(ASK, self._receive_query),
                    self._bus.subscribed(_ANSWERS + self._name, self._receive_answer),
                ):
                    await asyncio.Event().wait()
            except StoreUnavailable:
                await asyncio.sleep(_AGAIN_S)

    async def ask(self, what: str, args: Any, of: Iterable[str], *, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Send the query named `what` with the arguments `args` to the replicas with the names `of`, which may include
        this one. Return the answers that came within `patience_s` seconds, by replica."""
        others, answers = {name for name in of if name != self._name}, {}
        here = self._name in of
        number = secrets.token_hex(8)
        complete = asyncio.Event()

        def receive(by: str, body: Any) -> None:
            answers[by] = body
            if others <= answers.keys():
                complete.set()

        self._waiting[number] = receive
        try:
            if others:
                question = _Question(number, self._name, sorted(others), what, args)
                with contextlib.suppress(StoreUnavailable):
                    await self._bus.publish(ASK, msgspec.json.encode(question))
            if here:
                answers[self._name] = await self._answer(what, args)
            if others:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        await complete.wait()
        finally:
            self._waiting.pop(number, None)
        return answers

    def _receive_query(self, data: bytes | None) -> None:
        question = _read(data, _Question)
        if question is not None and self._name in question.to:
            self._tasks.spawn(self._answer_query(question))

    async def _answer_query(self, question: _Question) -> None:
        try:
            body = await self._answer(question.what, question.args)
            answer = msgspec.json.encode(_Answer(question.number, self._name, body))
            await self._bus.publish(_ANSWERS + question.by, answer)
        except LookupError:
            logger.warning("a replica of another version sent an unknown query: %s", question.what)
        except StoreUnavailable:
            return  # the answer cannot be sent

    def _receive_answer(self, data: bytes | None) -> None:
        answer = _read(data, _Answer)
        if answer is not None and (waiting := self._waiting.get(answer.number)) is not None:
            waiting(answer.by, answer.body)


def _read(data: bytes | None, kind: type[Message]) -> Message | None:
    """Decode a message of the bus as the struct `kind`. Return None if `data` is None (the bus has lost messages), or
    if the message cannot be decoded, because another version has encoded it."""
    try:
        return None if data is None else msgspec.json.decode(data, type=kind)
    except UNREADABLE:
        logger.warning("a message of a replica could not be decoded; it probably runs another version")
        return None


class Answers(NamedTuple, Generic[T]):
    """The answers of replicas to one query."""

    by: dict[str, T]
    """The answers by the replica's name."""
    unanswered: int = 0
    """The number of replicas that did not answer in time."""


class Replicas:
    """Query all replicas that use a store. `own`: the replica in this process; None if this process is a command that
    works on the store alone. No replica can be asked then."""

    def __init__(self, backend: Backend, own: Replica | None = None, queries: PeerQueries | None = None) -> None:
        self._backend = backend
        self._own = own
        self._queries = queries

    @property
    def are_known(self) -> bool:
        """Return True if this process is a running gateway, which can ask all replicas; False if it is a command that
        works on the store alone."""
        return self._own is not None

    @property
    def is_draining(self) -> bool:
        """Return True if this process is a gateway that drains."""
        return self._own is not None and self._own.is_draining

    def require(self, why: str) -> None:
        """Raise `UnknownHere` if no gateway can be asked. `why` says what only a gateway knows."""
        if not self.are_known:
            raise UnknownHere(why)

    async def ask(
        self, question: Callable[Concatenate[Replica, P], Awaitable[T]], *args: P.args, **named: P.kwargs
    ) -> Answers[T]:
        """Call `question`, a method of `Replica`, on all replicas, and return their answers. Without a running gateway,
        there are none. Arguments of the method must be positional."""
        assert not named, "arguments travel by place"
        names = await self._addresses()
        answers = await self._ask(names, question, args)
        return Answers(answers, len(names) - len(answers))

    async def reports(self) -> list[ReplicaReport]:
        """Return a report for each replica that holds a lease, in order of name. Those that do not answer are
        `silent`."""
        self.require("the store does not record which replicas run: use --url with a running gateway")
        addresses = await self._addresses()
        found = await self._ask(addresses, Replica.report, ())
        here = "" if self._own is None else self._own.name
        return [
            msgspec.structs.replace(found[name], here=name == here)
            if name in found
            else ReplicaReport(replica=name, address=address, silent=True)
            for name, address in sorted(addresses.items())
        ]

    async def parts(self, session_ids: Iterable[str]) -> dict[str, SessionPart]:
        """Return what the replicas know of these sessions beyond the records in the store, by session id. Sessions that
        no replica serves are left out."""
        answers = await self.ask(Replica.parts, list(session_ids))
        return {part.id: part for parts in answers.by.values() for part in parts}

    async def environment(self, session: Session) -> SessionEnvironment:
        """Return what the servers of a session were given: variables, folders and sandboxes. Ask the replica that
        serves the session. If none serves it, derive the answer from the session's record and the configuration of this
        replica. Raises `UnknownHere` if there is no running gateway."""
        self.require("the store does not record what servers were given: use --url with a running gateway")
        assert self._own is not None
        owner = session.owner if session.owner in await self._addresses() else self._own.name
        answer = (await self._ask([owner], Replica.environment, (session.id,))).get(owner)
        return answer or self._own.environments.of(session)

    async def order(self, order: Callable[[Replica], Awaitable[None]], prefix: str) -> str:
        """Have one replica carry out `order`, the drain or its end: the replica whose name begins with `prefix`. Return
        its full name.

        Raises:
            NoSuch: there is no such replica, or it does not answer.
            Ambiguous: the names of several replicas begin with `prefix`.
            UnknownHere: there is no running gateway.
        """
        self.require("only a running gateway can drain or admit a replica: use --url")
        names = [name for name in await self._addresses() if name.startswith(prefix)]
        if len(names) != 1 or not prefix:
            kind = Ambiguous if len(names) > 1 else NoSuch
            raise kind(f"{len(names)} replicas have a name that begins with {prefix!r}")
        if not await self._ask(names, order, (), DRAIN_WITHIN_S):
            raise NoSuch(f"replica {names[0]} does not answer")
        return names[0]

    async def reload(self) -> list[ReloadReport]:
        """Have all replicas load their configuration again. Return what each did, in order of name."""
        names = await self._addresses()
        found = await self._ask(names, Replica.reload, (), RELOAD_WITHIN_S)
        return [found.get(name, ReloadReport(replica=name)) for name in sorted(names)]

    async def _addresses(self) -> dict[str, str]:
        if self._own is None:
            return {}
        others = await self._backend.directory.replicas() if self._backend.is_shared else {}
        return {self._own.name: "", **others}

    async def _ask(
        self,
        names: Iterable[str],
        method: Callable[..., Awaitable[T]],
        args: tuple[object, ...],
        patience_s: float = PATIENCE_S,
    ) -> dict[str, T]:
        if self._queries is None:
            return {}
        name, _, gives = QUESTIONS[method]
        sent = [msgspec.to_builtins(one) for one in args]
        given = sent if len(sent) > 1 else sent[0] if sent else None
        answers = await self._queries.ask(name, given, names, patience_s=patience_s)
        return {by: msgspec.convert(answer, gives, strict=False) for by, answer in answers.items()}
