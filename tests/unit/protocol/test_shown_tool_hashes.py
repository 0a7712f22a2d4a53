"""What a session was shown is a value that sessions share, and that its record has."""

import gc
import sys

import pytest

from gateway.protocol.item_digests import form_of
from gateway.protocol.merged_lists import MOST_TOOLS
from gateway.protocol.shown_tool_hashes import NOTHING, ShownTools
from tests.requirements import requirement

pytestmark = requirement("live.tools-fixed")

OLD, NEW = form_of({"name": "read"}), form_of({"name": "read", "description": "other"})


def test_the_first_listing_of_a_tool_stays() -> None:
    shown = NOTHING.with_page("notes", (("read", OLD),))
    assert shown.form("notes", "read") == OLD
    assert shown.form("notes", "write") is shown.form("other", "read") is NOTHING.form("notes", "read") is None
    assert shown.with_page("notes", (("read", NEW),)) is shown
    more = shown.with_page("notes", (("read", NEW), ("write", NEW)))
    assert (more.form("notes", "read"), more.form("notes", "write")) == (OLD, NEW)
    assert more.with_page("other", (("read", NEW),)).form("other", "read") == NEW


def test_what_has_no_form_is_not_shown_and_of_two_the_first_counts() -> None:
    shown = NOTHING.with_page("notes", (("read", OLD), ("deep", b""), ("read", NEW)))
    assert shown.form("notes", "deep") is None and shown.form("notes", "read") == OLD


def test_a_tool_that_is_shown_in_another_form_counts_in_this_one() -> None:
    shown = NOTHING.with_page("notes", (("read", OLD), ("write", OLD))).with_tool("notes", "read", NEW)
    assert (shown.form("notes", "read"), shown.form("notes", "write")) == (NEW, OLD)


def test_equal_ones_are_one_object_and_are_read_from_a_record() -> None:
    page = tuple((f"tool{n}", OLD) for n in range(50))
    first = NOTHING.with_page("notes", page[:30]).with_page("notes", page[30:]).with_page("other", page)
    second = NOTHING.with_page("other", page).with_page("notes", page)
    assert first is second and ShownTools.read(first.text) is first
    text = str(first.text)
    del first, second
    gc.collect()
    again = ShownTools.read(text)
    assert again.text == text and again.form("notes", "tool49") == again.form("other", "tool7") == OLD
    assert ShownTools.read("") is NOTHING and NOTHING.text == ""
    for damaged in ("[]", '{"notes":"AAAA"}'):
        with pytest.raises(ValueError):
            ShownTools.read(damaged)


def test_a_server_that_lists_ever_new_tools_fills_no_record() -> None:
    page = tuple((f"tool{n}", OLD) for n in range(MOST_TOOLS))
    shown = NOTHING.with_page("notes", page[:-1]).with_page("notes", (("read", OLD), ("write", OLD)))
    assert (shown.form("notes", "read") is None) != (shown.form("notes", "write") is None)
    assert shown.with_page("notes", (("other", OLD),)) is shown


def test_the_text_of_a_server_with_twenty_tools_is_short() -> None:
    text = NOTHING.with_page("notes", tuple((f"tool{n}", OLD) for n in range(20))).text
    assert sys.getsizeof(text) < 800
