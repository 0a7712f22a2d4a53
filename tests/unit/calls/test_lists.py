"""Whoever decides on calls learns of each change of what a server lists."""

import pytest

from gateway.calls.lists import Lists
from gateway.protocol.listing import Tools
from tests.requirements import requirement
from tests.support.fake_upstream import a_live

pytestmark = requirement("fast.same")

TOOLS = "tools/list"


def test_a_list_that_is_another_one_is_a_change_and_the_same_one_is_none() -> None:
    changes = list[str]()
    lists = Lists(lambda: changes.append("change"))
    one, other = Tools([{"name": "a"}]), Tools([{"name": "a"}])
    for found, expected in ((one, 1), (one, 1), (other, 2), (one, 3)):
        lists.keep(TOOLS, found)
        assert lists.known[TOOLS] is found and len(changes) == expected


@pytest.mark.parametrize("kind", ["tools", "prompts", "resources"])
def test_an_announcement_is_a_change_and_so_is_the_question_that_ends_it(kind: str) -> None:
    changes = list[str]()
    lists = Lists(lambda: changes.append("change"))
    lists.keep(TOOLS, Tools([]))
    lists.ask(TOOLS)
    assert len(changes) == 1, "nothing was announced"
    lists.forget(kind)
    assert len(changes) == 2 and (TOOLS in lists.known) is (kind != "tools") and kind in lists.announced
    lists.ask(TOOLS)
    assert len(changes) == (3 if kind == "tools" else 2) and TOOLS not in lists.changed


def test_each_change_of_a_session_gives_it_another_version() -> None:
    live = a_live()
    versions = {live.version}
    for change in (live.recover_nothing, live.drain, live.hand_over, live.changed):
        change()
        versions.add(live.version)
    live.replace_record(live.session, is_read=True)
    assert len(versions) == 5 and live.version == max(versions), "the same record is no change"
