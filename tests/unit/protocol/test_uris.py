"""The forms of a URI, and which template it matches, in bounded time."""

import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.protocol.uris import (
    MOST_MARKS,
    TooManyMarks,
    closeness,
    forms,
    matches_any_template,
    matches_template,
    normal,
    template_fit,
)
from tests.requirements import requirement

pytestmark = requirement("wall.decoded")


def test_a_uri_is_read_in_every_form() -> None:
    assert forms("file:///a/%2e%2e/etc/%70asswd") == ("file:///a/%2e%2e/etc/%70asswd", "file:///etc/passwd")
    assert forms("note:x") == ("note:x",) and forms("note:%41") == ("note:%41", "note:A")
    assert forms("%2525252525252541") is None
    assert forms("note:e%CC%81") == ("note:e%CC%81", "note:é")
    assert matches_template("db://t/1", "db://t/{id}") and not matches_template("db://t/1/x", "db://t/{id}")
    assert matches_template("db://t/1/x", "db://t/{+id}") and not matches_template("db://t", "db://t/{id}")


@requirement("wall.uri")
def test_a_uri_that_leaves_its_authority_does_not_exist_where_that_may_be_a_folder() -> None:
    for uri in ("skill://a/../b/SKILL.md", "skill://a/x/../../b", "skill://a/%2e%2e/b", "skill://./b", "skill://../b"):
        assert forms(uri) is None, uri
    assert forms("skill://a/x/../b") == ("skill://a/x/../b", "skill://a/b")
    assert forms("https://a/../b") == ("https://a/../b", "https://a/b"), "a host is no folder"


@pytest.mark.parametrize("heap", ["\u0301" * 16_000 + "\u0323" * 16_000, "\u0f73" * 32_000, "%CC%81%CC%A3" * 8_000])
def test_a_uri_is_read_in_a_bounded_time(heap: str) -> None:
    began = time.process_time()
    assert forms(f"note://x/{heap}") is None
    assert time.process_time() - began < 0.5


def test_templates_of_a_server_are_tried_in_a_bounded_time() -> None:
    honest = [f"db://host/table{n}/{{id}}{{?fields}}" for n in range(3_000)]
    assert matches_any_template("db://host/table2999/7", honest)
    assert not matches_template("xy" * 9, "{a}y" * 2_000), "compiled, it would be too large"
    hostile = [f"{n}" + "{a}x" * 240 for n in range(4_096)]
    began = time.process_time()
    assert not matches_any_template("x" * 8_000, hostile)
    assert time.process_time() - began < 2, "each of them takes 0.1 s"


@requirement("ext.resource-owner")
def test_the_template_that_says_most_fits_best() -> None:
    fits = [template_fit("db://t/1", templates) for templates in (["web://{x}"], ["db://{+x}"], ["db://t/{id}"])]
    assert fits == sorted(fits) and fits[0] == 0 < fits[1] < fits[2]
    assert template_fit("db://t/{id}", ["db://t/{id}"]) > fits[2], "a template that is named itself"
    hostile = ["x" + "{a}x" * 240 + str(n) for n in range(4_096)]
    began = time.process_time()
    assert template_fit("x" * 8_000, hostile) == 0
    assert time.process_time() - began < 2


@requirement("ext.resource-owner")
def test_uris_are_close_by_whole_segments_in_a_bounded_time() -> None:
    assert closeness("db://t/1/x", ["db://t/1y", "web://t"]) == len("db://t/")
    assert closeness("db://t/1", ["db://u/1"]) == len("db://") and closeness("note:a", ["note:b"]) == len("note:")
    assert closeness("db://t/1", []) == closeness("none", ["none"]) == 0
    began = time.process_time()
    closeness("a://" + "x/" * 4_000, ["a://" + "x/" * 3_999] * 4_096)
    assert time.process_time() - began < 1


@given(st.text())
@example("\uff45vil e\u0301\u3000")
def test_any_text_is_normalised_or_has_too_many_marks(text: str) -> None:
    try:
        assert normal(text) == unicodedata.normalize("NFKC", text)
    except TooManyMarks:
        assert len(text) > MOST_MARKS


@pytest.mark.parametrize("mark", ["\u0301", "\u0316", "\u0f73", "\uff9e"])
def test_a_character_has_a_bounded_number_of_marks(mark: str) -> None:
    normal("a" + mark * MOST_MARKS)
    began = time.process_time()
    with pytest.raises(TooManyMarks, match=str(MOST_MARKS)):
        normal("a" + mark * 100_000)
    assert time.process_time() - began < 0.5
