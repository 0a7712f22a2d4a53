"""A line about a server names the call that it belongs to only if it can belong to no other."""

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.log_fields import link_fields
from session_store.session import redact
from tests.requirements import requirement
from tests.support.fake_upstream import a_call
from tests.unit.calls.parts import a_live

pytestmark = requirement("ctx.correlation-right")

LIVE = a_live()
ITS_ID = redact(LIVE.session.id)


def calls(*correlations: str, live: LiveSession | None = LIVE) -> list[Exchange]:
    made = [a_call(live) for _ in correlations]
    for call, correlation in zip(made, correlations, strict=True):
        call.begin(0.0, correlation, None)
    return made


def test_a_line_names_the_only_call_in_flight_and_guesses_none() -> None:
    fields = link_fields("files", ITS_ID, "", calls("a"), "")
    assert fields == {"server": "files", "session": ITS_ID, "correlation": "a"}
    few = link_fields("files", ITS_ID, "", calls("b", "a"), "")
    assert (few["correlation"], few["correlations"], few["in_flight"]) == ("", "a b", 2)
    many = link_fields("files", ITS_ID, "", calls(*"abcd"), "")
    assert many["correlation"] == "" and many["in_flight"] == 4 and "correlations" not in many
    assert link_fields("files", ITS_ID, "", [], "") == {"server": "files", "session": ITS_ID, "correlation": ""}
    assert link_fields("files", ITS_ID, "", [], "opening")["correlation"] == "opening"


def test_a_line_of_a_shared_server_has_the_session_of_all_its_calls_or_none() -> None:
    assert link_fields("files", "", "", calls("a", "b"), "")["session"] == ITS_ID
    assert "session" not in link_fields("files", "", "", calls("a") + calls("b", live=a_live()), "")
    assert "session" not in link_fields("files", "", "", [], "")
