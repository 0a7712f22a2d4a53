"""Digests of what servers list: which changes count, and which do not."""

import hashlib
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.item_digests import compared_part, digest_of, digests_of
from gateway.protocol.merged_lists import Names, Tools
from tests.requirements import requirement

pytestmark = requirement("live.tools-lock")

TOOL: dict[str, Any] = {"name": "read", "description": "Read.", "inputSchema": {"maximum": 1.0}, "_meta": {"a": 1}}


@pytest.mark.parametrize(
    "change",
    [
        *({"name": "other"}, {"description": "Read.\u200b"}, {"description": "Re\u0430d."}, {"title": "Read"}),
        *({"inputSchema": {"maximum": 1.5}}, {"outputSchema": {}}, {"annotations": {"readOnlyHint": True}}),
        *({"unheard_of": 1}, {"inputSchema": {"maximum": True}}, {"inputSchema": {}}),
        *({"_meta": {"ui": {"resourceUri": "ui://a"}}}, {"_meta": {"ui/resourceUri": "ui://a"}}),
    ],
)
def test_a_change_of_what_an_item_says_is_a_change(change: dict[str, Any]) -> None:
    """`true` is no 1, though Python says that they are equal."""
    assert digest_of(TOOL | change) not in (digest_of(TOOL), "")


@pytest.mark.parametrize("change", [{"inputSchema": {"maximum": 1}}, {"_meta": {"a": 2}}, {"_meta": 7}, {"icons": [1]}])
def test_icons_and_other_meta_and_another_writing_are_no_change(change: dict[str, Any]) -> None:
    assert digest_of(dict(reversed((TOOL | change).items()))) == digest_of(TOOL)
    assert digest_of(compared_part(TOOL | change)) == digest_of(TOOL), "the lock has that part"


def test_integers_beyond_what_floats_hold_are_floats() -> None:
    most = 2**63 - 1
    assert digest_of({"name": "a", "maximum": most}) == digest_of({"name": "a", "maximum": float(most)}) != ""
    assert digest_of({"name": "a", "maximum": 2**53 - 1}) != digest_of({"name": "a", "maximum": 2**53 - 2})


def test_an_item_without_a_canonical_form_has_no_digest() -> None:
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    for value in ("\ud800", 10**400, deep):
        assert digest_of({"name": "a", "x": value}) == ""


def test_a_name_in_two_forms_has_no_digest() -> None:
    other = TOOL | {"description": "Send."}
    assert Tools([TOOL, TOOL]).digest("read") == digest_of(TOOL)
    assert Tools([TOOL, other]).digest("read") == Tools([]).digest("read") == ""
    assert Names.of([TOOL, other], "name", has_digests=True).digests == {"read": ""}
    assert not Tools([TOOL, other]).are_same([TOOL]) and Tools([TOOL]).are_same([TOOL])
    huge = TOOL | {"x": 10**400}
    assert digest_of(huge) == "" and Tools([huge]).are_same([huge]), "lists compare what no lock can"
    assert not Tools([huge]).are_same([TOOL]) and not Tools([huge, TOOL]).are_same([huge])


VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(VALUES)
def test_the_digest_is_that_of_the_canonical_form(value: Any) -> None:
    item = {"name": "a", "x": value}
    assert digest_of(item) == f"sha256:{hashlib.sha256(rfc8785.dumps(item)).hexdigest()}"


def test_no_list_takes_long() -> None:
    slow = [{"name": f"slow{n}", "x": [[[0.5]]] * 10_000} for n in range(8)]
    digests = digests_of([TOOL, *slow, TOOL])
    assert digests[0] and digests[1] and digests[-1] == digests[0] and digests[-2] == ""
