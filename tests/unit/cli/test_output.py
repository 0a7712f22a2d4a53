"""`gateway.cli.output`: what stands in place of an empty list."""

import pytest

from gateway.admin.operators import Page
from gateway.cli.output import none_line, totals_line
from tests.requirements import requirement


@requirement("ops.session-list")
@pytest.mark.parametrize(
    ("page", "is_all", "said"),
    [
        (Page(sessions=[]), True, "no session is live: connect a client"),
        (Page(sessions=[]), False, "leave out a filter"),
        (Page(sessions=[], is_reading=True), True, "no session has been found yet"),
        (Page(sessions=[], unanswered=1), True, "no session has been found yet"),
    ],
)
def test_an_empty_list_says_so(page: Page, is_all: bool, said: str) -> None:
    assert said in none_line(page, is_all=is_all)
    assert ("still reading" in totals_line(page)) is page.is_reading
