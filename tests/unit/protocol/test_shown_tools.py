"""What a session was shown is a value that sessions share, and that its record has."""

import gc
import sys

import pytest

from gateway.protocol.item_digests import digest_of
from gateway.protocol.merged_lists import MOST_TOOLS
from gateway.protocol.shown_tools import NOTHING, ShownTools
from tests.requirements import requirement

pytestmark = requirement("live.tools-fixed")

OLD, NEW = digest_of({"name": "read"}), digest_of({"name": "read", "description": "other"})


def test_the_first_listing_of_a_tool_stays() -> None:
    shown = NOTHING.with_page("notes", (("read", OLD),))
    assert shown.has("notes", "read") and not shown.has("notes", "write") and not shown.has("other", "read")
    assert not shown.differs("notes", "read", OLD) and shown.differs("notes", "read", NEW)
    assert shown.with_page("notes", (("read", NEW),)) is shown
    more = shown.with_page("notes", (("read", NEW), ("write", NEW)))
    assert more.differs("notes", "read", NEW) and not more.differs("notes", "write", NEW)
    assert not more.with_page("other", (("read", NEW),)).differs("other", "read", NEW)


def test_what_was_not_shown_does_not_differ_and_what_has_no_digest_is_not_shown() -> None:
    shown = NOTHING.with_page("notes", (("read", OLD), ("deep", "")))
    assert not shown.differs("notes", "write", NEW) and not NOTHING.differs("notes", "read", NEW)
    assert not shown.has("notes", "deep") and shown.differs("notes", "read", "")
    assert NOTHING.with_page("notes", (("read", OLD), ("read", NEW))).differs("notes", "read", NEW), "the first counts"


def test_a_tool_that_is_shown_in_another_form_counts_in_this_one() -> None:
    shown = NOTHING.with_page("notes", (("read", OLD), ("write", OLD))).with_tool("notes", "read", NEW)
    assert shown.differs("notes", "read", OLD) and not shown.differs("notes", "read", NEW)
    assert not shown.differs("notes", "write", OLD)


def test_equal_ones_are_one_object_and_are_read_from_a_record() -> None:
    page = tuple((f"tool{n}", OLD) for n in range(50))
    first = NOTHING.with_page("notes", page[:30]).with_page("notes", page[30:]).with_page("other", page)
    second = NOTHING.with_page("other", page).with_page("notes", page)
    assert first is second and ShownTools.read(first.text) is first
    text = str(first.text)
    del first, second
    gc.collect()
    again = ShownTools.read(text)
    assert again.text == text and again.has("notes", "tool49") and again.differs("other", "tool7", NEW)
    assert ShownTools.read("") is NOTHING and NOTHING.text == ""
    for damaged in ("[]", '{"notes":"AAAA"}'):
        with pytest.raises(ValueError):
            ShownTools.read(damaged)


def test_a_server_that_lists_ever_new_tools_fills_no_record() -> None:
    page = tuple((f"tool{n}", OLD) for n in range(MOST_TOOLS))
    shown = NOTHING.with_page("notes", page[:-1]).with_page("notes", (("read", OLD), ("write", OLD)))
    assert shown.has("notes", "read") != shown.has("notes", "write")
    assert shown.with_page("notes", (("other", OLD),)) is shown


def test_the_text_of_a_server_with_twenty_tools_is_short() -> None:
    text = NOTHING.with_page("notes", tuple((f"tool{n}", OLD) for n in range(20))).text
    assert sys.getsizeof(text) < 800
