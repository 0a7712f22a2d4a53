"""The outcome that the result of a call stands for. Pure."""

import re
from typing import Final

import msgspec

from gateway.observability.outcome import INPUT_REQUIRED, OK, TOOL_ERROR, Outcome

__all__ = ["is_complete", "outcome_of"]

_IS_ERROR: Final = re.compile(rb'"isError"\s*:\s*true')


def is_complete(result: bytes) -> bool:
    """True if a result is an object whose `resultType` is neither `input_required` nor `task`. False: it may be."""
    return result[:1] == b"{" and b'"input_required"' not in result and b'"task"' not in result


class _Result(msgspec.Struct):
    isError: bool = False
    resultType: str = ""


def outcome_of(result: bytes) -> Outcome:
    """The outcome of a result, by its `isError` (MCP, CallToolResult) and `resultType` (MCP 2026-07-28)."""
    # A search for the names first: most results have neither, and may be long.
    if b'"input_required"' not in result and not (b'"isError"' in result and _IS_ERROR.search(result)):
        return OK
    try:
        head = msgspec.json.decode(result, type=_Result)
    except (msgspec.MsgspecError, RecursionError):
        return OK
    return TOOL_ERROR if head.isError else INPUT_REQUIRED if head.resultType == "input_required" else OK
