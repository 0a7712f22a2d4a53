"""A line about a server names the call that it belongs to only if it can belong to no other."""

from typing import Any

import pytest

from gateway.calls.log_fields import link_fields
from session_store.session import redact
from tests.requirements import requirement
from tests.support.fake_upstream import a_call
from tests.unit.calls.parts import a_live

LIVE, OTHER = a_live(), a_live()
OWN: dict[str, Any] = {"session": redact(LIVE.session.id)}


@requirement("ctx.correlation-right")
@pytest.mark.parametrize(
    ("of_session", "in_flight", "opened_for", "expected"),
    [
        (True, "a", "", {"correlation": "a", **OWN}),
        (True, "ba", "", {"correlation": "", "correlations": "a b", "in_flight": 2, **OWN}),
        (True, "abcd", "", {"correlation": "", "in_flight": 4, **OWN}),
        (True, "", "", {"correlation": "", **OWN}),
        (True, "", "opening", {"correlation": "opening", **OWN}),
        (False, "ab", "", {"correlation": "", "correlations": "a b", "in_flight": 2, **OWN}),
        (False, "ao", "", {"correlation": "", "correlations": "a o", "in_flight": 2}),
        (False, "", "", {"correlation": ""}),
    ],
)
def test_a_line_names_the_only_call_in_flight_and_the_session_of_all_and_guesses_none(
    of_session: bool, in_flight: str, opened_for: str, expected: dict[str, Any]
) -> None:
    calls = [a_call(OTHER if correlation == "o" else LIVE) for correlation in in_flight]
    for call, correlation in zip(calls, in_flight, strict=True):
        call.begin(0.0, correlation, None)
    session = OWN["session"] if of_session else ""
    assert link_fields("files", session, "", calls, opened_for) == {"server": "files", **expected}
