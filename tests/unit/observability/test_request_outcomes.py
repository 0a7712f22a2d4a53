"""Outcomes and their format on log lines, metrics and the audit trail."""

import pytest

from gateway.errors import CANCELLED as CANCELLED_CODE
from gateway.observability.request_outcomes import CANCELLED, INPUT_REQUIRED, OK, TOOL_ERROR, Outcome, outcome_of
from tests.support.too_deep import TOO_DEEP


@pytest.mark.parametrize(
    ("outcome", "kind", "text", "is_failure"),
    [
        (OK, "ok", "ok", False),
        (TOOL_ERROR, "tool error", "tool error", True),
        (INPUT_REQUIRED, "input required", "input required", False),
        (CANCELLED, "cancelled", "cancelled", False),
        (Outcome.error(-32602), "error", "error -32602", True),
        (Outcome.error(CANCELLED_CODE), "cancelled", f"error {CANCELLED_CODE}", False),
        (Outcome.refused(-32001), "refused", "refused -32001", True),
    ],
)
def test_an_outcome_has_a_kind_and_a_text(outcome: Outcome, kind: str, text: str, is_failure: bool) -> None:
    assert (outcome.kind, str(outcome), outcome.is_failure) == (kind, text, is_failure)


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (b"{}", OK),
        (b'{"content":[],"isError":false}', OK),
        (b'{"content":[],"isError": true}', TOOL_ERROR),
        (b'{"resultType":"input_required"}', INPUT_REQUIRED),
        (b'{"resultType":"complete","content":["input_required"]}', OK),
        (b'{"content":[{"isError":true}]}', OK),
        (b'{"isError":true,"resultType":"input_required"}', TOOL_ERROR),
        (b'{"isError":true,"resultType":5}', OK),
        pytest.param(b'{"isError":true,"content":' + TOO_DEEP + b"}", OK, id="too deep"),
    ],
)
def test_a_result_names_its_outcome_at_its_top(result: bytes, outcome: Outcome) -> None:
    assert outcome_of(result) is outcome
