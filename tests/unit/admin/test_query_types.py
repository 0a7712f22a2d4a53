"""`gateway.admin.query_types`: hours of the day, and which sessions of the last day match."""

from typing import Any

import pytest

from gateway.admin.query_types import DayHours, OperatorError, PastQuery
from gateway.admin.verbs import VERBS
from session_store import TimelineEntry, TimelineHead
from tests.requirements import requirement

pytestmark = requirement("ops.console-search")

DAY = 20_000 * 86_400.0
"""A midnight, in UTC."""


def at(hours: int, minutes: int = 0) -> float:
    return DAY + hours * 3_600 + minutes * 60


def hours(since: str = "", until: str = "", zone: str = "") -> DayHours:
    return DayHours(since=since, until=until, zone=zone)


@pytest.mark.parametrize(
    ("given", "inside", "outside"),
    [
        (hours(), [at(0), at(12), at(23, 59)], []),
        (hours("14:00", "14:30"), [at(14), at(14, 30) + 59], [at(13, 59) + 59, at(14, 31), at(2)]),
        (hours("23:00", "01:00"), [at(23), at(0), at(1)], [at(22, 59), at(1, 1), at(12)]),
        (hours(since="14:00"), [at(14), at(23, 59) + 59], [at(0), at(13, 59)]),
        (hours(until="14:00"), [at(0), at(14) + 59], [at(14, 1), at(23)]),
        (hours("14:00", "14:00"), [at(14) + 30], [at(13, 59), at(14, 1)]),
        (hours("14:00", "15:00", "345"), [at(8, 15), at(9, 15)], [at(8, 14), at(9, 16), at(14, 30)]),
        (hours(since="20:00", zone="-300"), [at(1), at(4, 59)], [at(0, 59), at(5), at(20)]),
    ],
)
def test_hours_of_the_day_are_those_of_the_readers_clock(
    given: DayHours, inside: list[float], outside: list[float]
) -> None:
    assert all(given.meet(one, one) for one in inside)
    assert not any(given.meet(one, one) for one in outside)


def test_what_lasts_is_in_the_hours_that_it_touches() -> None:
    given = hours("14:00", "15:00")
    assert given.meet(at(10), at(14)) and given.meet(at(15), at(20)) and given.meet(at(14, 20), at(14, 30))
    assert given.meet(at(10), at(20)) and given.meet(at(16), at(16) + 86_400)
    assert not given.meet(at(10), at(13)) and not given.meet(at(16), at(24 + 13))


@pytest.mark.parametrize("given", [{"since": "24:00"}, {"until": "1:30"}, {"since": "14:30:00"}, {"zone": "0x1"}])
def test_what_is_no_time_of_day_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(OperatorError, match=r"^(from|to|zone): must be"):
        DayHours(**given)


def test_a_clock_has_a_name() -> None:
    assert [hours(zone=zone).clock for zone in ("", "0", "345", "-210")] == ["UTC", "UTC", "UTC+05:45", "UTC-03:30"]


HEAD = TimelineHead(
    session="aaaaaaaa", principal="https://idp.example:Ann", client="research-agent", endpoint="/mcp",
    created_at=at(10), updated_at=at(12), calls=4, failed=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "matches"),
    [
        (PastQuery(), True),
        (PastQuery(principal="ann", client="RESEARCH"), True),
        (PastQuery(principal="bob"), False),
        (PastQuery(failed=True, hours=hours("11:00", "11:30")), True),
        (PastQuery(hours=hours("13:00", "14:00")), False),
        (PastQuery(query="aaaa mcp"), True),
    ],
)
def test_a_session_of_the_last_day_is_found_by_parts_of_names(asked: PastQuery, matches: bool) -> None:
    assert asked.matches(HEAD) is matches


def test_only_sessions_with_failures_are_kept_where_these_are_asked_for() -> None:
    fine = TimelineHead(session="bbbbbbbb", updated_at=at(12))
    assert PastQuery().matches(fine) and not PastQuery(failed=True).matches(fine)


@pytest.mark.parametrize(
    ("asked", "is_found"),
    [
        ({"server": "FILE"}, True),
        ({"tool": "read"}, True),
        ({"server": "web", "tool": "read"}, False),
        ({"tool": "read", "failed": True}, False),
        ({"tool": "get", "failed": True}, True),
        ({"tool": "get", "failed": True, "hours": hours("11:00", "11:10")}, True),
        ({"tool": "get", "failed": True, "hours": hours("10:00", "10:59")}, False),
    ],
)
def test_one_entry_has_the_server_the_tool_the_failure_and_the_time(asked: dict[str, Any], is_found: bool) -> None:
    entries = [
        TimelineEntry(at(10), "call", "files", "read_file", "ok", 1.0),
        TimelineEntry(at(11), "call", "web", "get", "tool error", 300.0, until=at(11, 5)),
    ]
    asked_for = PastQuery(**asked)
    assert asked_for.is_of_entries and asked_for.has_entry(entries) is is_found


@pytest.mark.parametrize(
    ("given", "words"),
    [({"failed": "false"}, "failed: must be true, or left out"), ({"from": "noon"}, "from: must be a time of day")],
)
def test_a_search_by_rest_says_what_is_wrong(given: dict[str, str], words: str) -> None:
    [verb] = [one for one in VERBS if one.name == "past_sessions"]
    with pytest.raises(OperatorError, match=words):
        for one in verb.takes:
            one.read(given)
