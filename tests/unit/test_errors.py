"""The table of errors is complete, and is the one in docs/errors.md."""

import ast
import functools
import re
from collections.abc import Iterator

import gateway.errors
import transports.jsonrpc
from gateway.errors import (
    ERRORS,
    OutOfMemory,
    error_of,
    invalid_arguments,
    not_found_by_others,
    store_full,
    store_unavailable,
    unknown_tool,
    unreachable,
)
from tests.requirements import requirement
from tests.support import documented_errors
from tests.support.documented_errors import DOCUMENT, STATUSES
from tests.test_architecture import SOURCES
from transports.inbound_port import REASONS, Refused

pytestmark = requirement("pol.errors")

CODES = {**vars(transports.jsonrpc), **vars(gateway.errors)}


@functools.cache
def said() -> list[tuple[str, ast.Call]]:
    """Each call in the sources that make refusals or give reasons, with its place."""
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    return [
        (f"{path.name}:{node.lineno}", node)
        for path, text in texts.items()
        if "Refused(" in text or "reason=" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    ]


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Where the sources make a refusal, and the call that makes it."""
    return ((where, node) for where, node in said() if isinstance(node.func, ast.Name) and node.func.id == "Refused")


def raised() -> Iterator[tuple[str, int, int]]:
    """Where, status and code of every refusal that the sources spell out."""
    for where, node in calls():
        status, code = node.args[:2]
        if isinstance(status, ast.Constant) and isinstance(code, ast.Name):
            yield where, int(str(status.value)), CODES[code.id]


def named() -> set[str]:
    """The reasons that the sources spell out."""
    keywords = [
        keyword.value
        for _, node in said()
        for keyword in node.keywords
        if keyword.arg == "reason" and ast.unparse(node.func) in {"Refused", "super().__init__"}
    ]
    return {str(value.value) for value in keywords if isinstance(value, ast.Constant)}


def test_every_refusal_is_in_the_table() -> None:
    found = list(raised())
    assert len(found) > 30
    strangers = [where for where, status, code in found if status not in STATUSES.get(code, ())]
    assert strangers == []
    ours = {value for name, value in vars(gateway.errors).items() if name.isupper() and isinstance(value, int)}
    assert ours <= ERRORS.keys()


def test_no_error_is_without_a_reason() -> None:
    """A refusal whose code no protocol defines names its own; every other error has that of its code."""
    unnamed = [
        ast.unparse(node.args[1])
        for _, node in calls()
        if "reason" not in {keyword.arg for keyword in node.keywords}
        and CODES.get(ast.unparse(node.args[1])) not in REASONS
    ]
    # What cannot be read has a code of the protocol, and a copy has the reason of its original.
    assert set(unnamed) == {"error.code", "invalid.code", "self.code"}
    for code, reason in ERRORS.items():
        assert error_of(code, "m", "")["data"] == {"reason": reason}
    for refused in (Refused(400, -32602, "m"), store_full(), unknown_tool("x"), invalid_arguments("t", "p", "wrong")):
        assert refused.error()["data"]["reason"] == refused.reason != ""
    assert error_of(-32099, "m", "c")["data"] == {"reason": "server_error", "correlation_id": "c"}


def test_the_tables_are_the_ones_users_read() -> None:
    assert documented_errors.REASONS == ERRORS and DOCUMENT.count("\n| -") == len(ERRORS), "each code has one row"
    reasons = re.findall(r"^\| `([a-z_]+)` \|", DOCUMENT, re.M)
    assert len(reasons) == len(set(reasons))
    of_codes = set(ERRORS.values())
    full = (store_full(), OutOfMemory("files"))
    unavailable = {one.reason for one in (*full, store_unavailable(), unreachable(), not_found_by_others())}
    assert set(reasons) | of_codes == named() | of_codes | unavailable | {"server_error"}
