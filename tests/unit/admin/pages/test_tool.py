"""What a page shows of results of tools: nothing of a server steers the page, and everything is cut."""

import base64
from typing import Any

import pytest

from gateway.admin.pages.tool import MOST_CHARS, MOST_PARTS, parts_of
from tests.requirements import requirement

pytestmark = requirement("ops.try-tools")

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()


def image(kind: str, data: str) -> dict[str, Any]:
    return {"content": [{"type": "image", "mimeType": kind, "data": data}]}


def test_an_image_of_a_known_type_is_shown() -> None:
    [part] = parts_of(image("image/png", PNG))
    assert (part.kind, part.source) == ("image", f"data:image/png;base64,{PNG}")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("image/svg+xml", PNG),
        ("text/html", PNG),
        ("image/PNG;x=", PNG),
        ('image/png" onerror="x', PNG),
        ("image/jpeg", PNG),
        ("image/png", "<script>"),
        ("image/png", PNG + '" onload="x'),
        ("image/png", "ä"),
    ],
)
def test_any_other_image_has_no_source(kind: str, data: str) -> None:
    [part] = parts_of(image(kind, data))
    assert part.kind == "text" and part.source == "" and part.note


def test_texts_are_cut_and_their_controls_are_visible() -> None:
    [part] = parts_of({"content": [{"type": "text", "text": "\x1b[2J\u202e\n\t" + "x" * 2 * MOST_CHARS}]})
    assert part.text.startswith("\\x1b[2J\\u202e\n\tx")
    assert len(part.text) < MOST_CHARS + 100 and "The first" in part.note


def test_parts_are_counted_and_what_they_are_beside_is_told_apart() -> None:
    result = {"content": [{"type": "text", "text": "x"}] * (MOST_PARTS + 3), "structuredContent": {"a": 1}, "_meta": {}}
    *texts, more, structured, beside = parts_of(result)
    assert len(texts) == MOST_PARTS and more.note == "3 more parts are not shown."
    assert (structured.title, structured.is_aside) == ("Structured content", False)
    assert (beside.title, beside.is_aside) == ("Other fields of the result", True)


@pytest.mark.parametrize("result", [None, 7, [], {"content": 5}, {"content": [None, 5, {"type": "image"}]}], ids=str)
def test_what_is_no_result_is_shown_as_json(result: Any) -> None:
    assert all(part.kind == "json" for part in parts_of(result))


def test_what_is_nested_without_end_is_told() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    [part] = parts_of({"content": [{"type": "odd", "deep": deep}]})
    assert part.note == "It is nested too deeply to be shown."
