"""Arguments out of filled forms: what they may not be is named by its control."""

from typing import Any

import pytest

from gateway.admin.form_arguments import FormFaults, arguments_in
from gateway.admin.forms import JSON_CONTROL, PREFIX, Form, form_of
from tests.requirements import requirement

pytestmark = requirement("ops.try-tools")


def a_form(**fields: Any) -> Form:
    return form_of({"type": "object", "properties": fields})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "object"),
        ("{", "line 1"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1e999}', "JSON"),
        ('{"a": "\\ud800"}', "half a character"),
        ("[" * 100_000, "nested"),
    ],
    ids=["array", "cut off", "NaN", "infinite", "surrogate", "deep"],
)
def test_json_that_cannot_be_sent_is_refused(text: str, why: str) -> None:
    with pytest.raises(FormFaults) as error:
        arguments_in(a_form(), {JSON_CONTROL: text})
    assert why in str(error.value)


def test_a_control_that_the_tool_does_not_have_any_more_is_named() -> None:
    with pytest.raises(FormFaults, match="gone: the tool has no such argument now"):
        arguments_in(a_form(here={"type": "string"}), {f"{PREFIX}gone": "x"})


def test_lines_are_those_that_were_typed() -> None:
    assert arguments_in(a_form(code={"type": "string"}), {f"{PREFIX}code": "a\r\nb"}) == {"code": "a\nb"}
