"""Judge a history: what clients asked and were answered, which replica claimed which session, and what processes did.

`judge` accepts a history, or returns its shortest contradiction. A call whose outcome is unknown may have taken effect
or not, at any time after it was asked. So each rule can be decided in one pass, without a search for an order of all
calls: a call is executed by a process that writes it down, and an answered `bump` says which number in the count it is.

`python -m tests.proof.histories FILE ...` judges files that `make chaos` has written.
"""

import gzip
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from session_store.ports.replica_directory import count_of

T = TypeVar("T")

BROKEN: Final = {"hung": "a call did not end", "wrong": "a call got a wrong answer", "lost": "a session was lost"}
"""Outcomes that no call may have. The others are `answered`, `refused` (it was not executed), and those that do not say
whether it was executed: `unknown`, `failed`, `reset`."""

FORGOT: Final = "forgot"
"""How a store has failed over whose copy lacked the last writes. Counts that it had acknowledged may be gone."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a history. `at` is in seconds of one monotonic clock."""

    at: float
    what: Literal["asked", "ended", "executed", "claimed", "failed over"]
    session: str = ""
    call: str = ""
    by: str = ""
    """The process that executed the call, or the replica that claimed the session."""
    how: str = ""
    """What was asked: `echo`, which its process writes down, or `bump`, which counts. Or how the call ended."""
    value: int = 0
    """The count that a `bump` answered, or the epoch of a claim."""
    told: str = ""
    """What the answer says: `again` if the call was executed twice, else why the session has a new process."""

    def __str__(self) -> str:
        where = [f"session {self.session[:8]}" if self.session else "", f"call {self.call}" if self.call else ""]
        facts = [self.how, f"by {self.by}" if self.by else "", f"({self.value})" if self.value else "", self.told]
        return " ".join(filter(None, [f"{self.at:12.6f}", *where, self.what, *facts]))


@dataclass(frozen=True)
class Contradiction:
    """A rule, and the events that break it, in order."""

    rule: str
    events: Sequence[Event]

    def __str__(self) -> str:
        return "\n".join([self.rule, *map(str, self.events)])


@dataclass
class _Call:
    asked: Event
    ended: Event | None = None
    executed: list[Event] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        return "" if self.ended is None else self.ended.how

    @property
    def end(self) -> float:
        return float("inf") if self.ended is None else self.ended.at

    @property
    def events(self) -> list[Event]:
        return [self.asked, *self.executed, *([self.ended] if self.ended else [])]


def judge(history: Iterable[Event]) -> Contradiction | None:
    """Return the shortest contradiction in the history; None if there is none. Executions of calls that the history
    does not have are left out."""
    ordered = sorted(history, key=lambda event: event.at)
    failovers = [event for event in ordered if event.what == "failed over"]
    claims = _of_sessions((event.session, event) for event in ordered if event.what == "claimed")
    calls = _of_sessions((call.asked.session, call) for call in _calls(ordered))
    found = [each for of_session in claims.values() for each in _epochs(of_session, failovers)]
    rules = [_ends, _runs_once, _one_process, _tells_restarts]
    if not any(failover.how == FORGOT for failover in failovers):
        rules.append(_counts)
    for of_session in calls.values():
        for rule in rules:
            found += rule(of_session)
    return min(found, key=lambda each: len(each.events), default=None)


def _of_sessions(events: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for session, event in events:
        found[session].append(event)
    return found


def _calls(history: Sequence[Event]) -> Iterable[_Call]:
    calls = {event.call: _Call(event) for event in history if event.what == "asked"}
    for event in history:
        call = calls.get(event.call)
        if call is not None and event.what == "executed":
            call.executed.append(event)
        elif call is not None and event.what == "ended":
            call.ended = event
    return calls.values()


def _found(rule: str, *events: Iterable[Event]) -> Contradiction:
    every = {id(event): event for some in events for event in some}
    return Contradiction(rule, sorted(every.values(), key=lambda event: event.at))


def _epochs(claims: Sequence[Event], failovers: Sequence[Event]) -> Iterator[Contradiction]:
    """One session has one owner at a time, and its epochs grow, unless a failover of the store has forgotten claims."""
    first: dict[int, Event] = {}
    for claim in claims:
        other = first.setdefault(claim.value, claim)
        if other.by != claim.by:
            yield _found("two replicas have claimed a session in one epoch", [other, claim])
    for before, after in pairwise(first.values()):
        between = any(before.at < failover.at < after.at for failover in failovers)
        if count_of(after.value) <= count_of(before.value) and not between:
            yield _found("the epochs of a session do not grow", [before, after])


def _ends(calls: Sequence[_Call]) -> Iterator[Contradiction]:
    """Every call ends, with an answer to what was asked or an error that is true."""
    for call in calls:
        if call.ended is None:
            yield _found("a call did not end", [call.asked])
        elif call.outcome in BROKEN:
            yield _found(BROKEN[call.outcome], [call.asked, call.ended])


def _runs_once(calls: Sequence[_Call]) -> Iterator[Contradiction]:
    """Nothing runs twice silently, what was answered ran, and what was refused did not."""
    for call in calls:
        if len(call.executed) > 1 and (call.ended is None or call.ended.told != "again"):
            yield _found("a call was executed twice, and its answer does not say so", call.events)
        if call.executed and call.outcome == "refused":
            yield _found("a call was refused, and executed", call.events)
        if not call.executed and call.asked.how == "echo" and call.outcome == "answered":
            yield _found("a call was answered, and not executed", call.events)


def _counts(calls: Sequence[_Call]) -> Iterator[Contradiction]:
    """Each `bump` adds one to the session's count and answers it. So its number is larger than that of each that ended
    before it was asked, and the numbers between two answers are of bumps whose outcome is unknown."""
    bumps = [call for call in calls if call.asked.how == "bump" and call.outcome != "refused"]
    answered = sorted((call for call in bumps if call.outcome == "answered"), key=_number)
    unknown = [call for call in bumps if call.outcome != "answered"]
    for before, after in pairwise(answered):
        if _number(before) == _number(after):
            yield _found("two calls were counted as one", before.events, after.events)
    last: _Call | None = None  # of the calls with larger numbers, the one that ended first
    for call in reversed(answered):
        if last is not None and last.end < call.asked.at:
            yield _found("an acknowledged call is missing in a later count", last.events, call.events)
        last = call if last is None or call.end < last.end else last
    for place, call in enumerate(answered):
        possible = [each for each in unknown if each.asked.at < call.end]
        missing, among = _number(call) - 1 - place, [*answered[:place]]
        if missing > len(possible):
            while among and _number(call) - _number(among[-1]) - (place - len(among) + 1) <= len(possible):
                among.pop()
            between = [*among[-1:], *answered[len(among) : place], *possible, call]
            yield _found("more was counted than was asked", *(each.events for each in between))


def _number(call: _Call) -> int:
    return 0 if call.ended is None else call.ended.value


def _one_process(calls: Sequence[_Call]) -> Iterator[Contradiction]:
    """No client is answered by a process from before another owner. A former owner may execute a call that it had in
    hand, but it does not answer it."""
    runs = sorted(
        ((call.executed[0], call) for call in calls if call.outcome == "answered" and len(call.executed) == 1),
        key=lambda run: run[0].at,
    )
    last_of: dict[str, tuple[Event, _Call]] = {}
    for before, run in pairwise(runs):
        last_of[before[0].by] = before
        earlier = last_of.get(run[0].by)
        if earlier is not None and run[0].by != before[0].by:
            between = [each.events for _, each in (earlier, before, run)]
            yield _found("a process answered after a later process of the session did", *between)


def _tells_restarts(calls: Sequence[_Call]) -> Iterator[Contradiction]:
    """The first answer of a process that replaces another one says so, since what that one had in memory is gone."""
    of: dict[str, list[tuple[Event, _Call]]] = defaultdict(list)
    runs = [(run, call) for call in calls for run in call.executed]
    for run, call in sorted(runs, key=lambda run: run[0].at):
        of[run.by].append((run, call))
    for before, after in pairwise(of.values()):
        answers = [call for _, call in after if call.outcome == "answered"]
        if answers:
            first = min(answers, key=lambda call: call.end)
            told = [call for _, call in after if call.asked.at < first.end]
            # A call without an answer may have been the one that was told, and its client has not read it.
            if not any(call.outcome != "answered" or (call.ended and call.ended.told) for call in told):
                *_, last = (call for run, call in before if run.at < after[0][0].at)
                yield _found("nobody was told that a session has a new process", last.events, first.events)


def journal(path: Path) -> list[Event]:
    """Return what the echo server's processes have executed."""
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return [Event(at=float(at), what="executed", call=call, by=by) for call, by, at in lines]


def write(history: Iterable[Event], path: Path) -> None:
    """Write a history, one event on a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb") as file:
        file.writelines(msgspec.json.encode(event) + b"\n" for event in history)


def read(path: Path) -> list[Event]:
    """Return a history that `write` has written."""
    with gzip.open(path, "rb") as file:
        return [msgspec.json.decode(line, type=Event) for line in file]


def main(paths: Sequence[str]) -> int:
    """Print the shortest contradiction of each file; return 1 if there is one."""
    verdicts = []
    for path in paths:
        history = read(Path(path))
        verdicts.append(judge(history))
        sys.stdout.write(f"{path}: {len(history):,} events: {verdicts[-1] or 'accepted'}\n")
    return int(any(verdicts) or not verdicts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
