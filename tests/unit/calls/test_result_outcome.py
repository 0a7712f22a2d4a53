"""The outcome that a result stands for."""

import pytest

from gateway.calls.result_outcome import outcome_of
from gateway.observability.outcome import INPUT_REQUIRED, OK, TOOL_ERROR, Outcome
from tests.support.too_deep import TOO_DEEP


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
