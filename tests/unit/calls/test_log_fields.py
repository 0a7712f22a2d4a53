"""A line about a server names the call that it belongs to only if it can belong to no other."""

from typing import cast

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.log_fields import link_fields
from session_store import EventLog
from session_store.session import redact
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.fake_upstream import a_call

pytestmark = requirement("ctx.correlation-right")

LIVE = LiveSession(a_session(FakeClock()), cast("EventLog", None))
ITS_ID = redact(LIVE.session.id)


def calls(*correlations: str, live: LiveSession | None = LIVE) -> list[Exchange]:
    made = [a_call(live) for _ in correlations]
    for call, correlation in zip(made, correlations, strict=True):
        call.begin(0.0, correlation, None)
    return made


def test_the_only_call_in_flight_is_named() -> None:
    fields = link_fields("files", ITS_ID, "", calls("a"), "")
    assert fields == {"server": "files", "session": ITS_ID, "correlation": "a"}


def test_of_several_calls_none_is_guessed() -> None:
    few = link_fields("files", ITS_ID, "", calls("b", "a"), "")
    assert (few["correlation"], few["correlations"], few["in_flight"]) == ("", "a b", 2)
    many = link_fields("files", ITS_ID, "", calls(*"abcd"), "")
    assert many["correlation"] == "" and many["in_flight"] == 4 and "correlations" not in many


def test_between_calls_only_the_session_is_named() -> None:
    assert link_fields("files", ITS_ID, "", [], "") == {"server": "files", "session": ITS_ID, "correlation": ""}
    assert link_fields("files", ITS_ID, "", [], "opening")["correlation"] == "opening"


def test_a_line_of_a_shared_server_has_the_session_of_all_its_calls_or_none() -> None:
    other = LiveSession(a_session(FakeClock()), cast("EventLog", None))
    assert link_fields("files", "", "", calls("a", "b"), "")["session"] == ITS_ID
    assert "session" not in link_fields("files", "", "", calls("a") + calls("b", live=other), "")
    assert "session" not in link_fields("files", "", "", [], "")
