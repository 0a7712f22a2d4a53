"""The table of errors is complete, and is the one in docs/errors.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import gateway.errors
import transports.jsonrpc
from gateway.errors import ERRORS
from tests.requirements import requirement
from tests.test_architecture import TREES

pytestmark = requirement("pol.errors")

ROOT = Path(__file__).parents[2]
CODES = {**vars(transports.jsonrpc), **vars(gateway.errors)}


def raised() -> Iterator[tuple[str, int, int]]:
    """Where, status and code of every refusal that the sources spell out."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refused":
                status, code = node.args[:2]
                if isinstance(status, ast.Constant) and isinstance(code, ast.Name):
                    yield f"{path.name}:{node.lineno}", int(str(status.value)), CODES[code.id]


def test_every_refusal_is_in_the_table() -> None:
    found = list(raised())
    assert len(found) > 30
    strangers = [where for where, status, code in found if code not in ERRORS or status not in ERRORS[code].statuses]
    assert strangers == []
    ours = {value for name, value in vars(gateway.errors).items() if name.isupper() and isinstance(value, int)}
    assert ours <= ERRORS.keys()


def test_the_table_is_the_one_users_read() -> None:
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| -")]
    assert rows == [
        f"| {code} | {', '.join(map(str, kind.statuses))} | {kind.name} | {kind.fault} | {kind.retry} |"
        for code, kind in ERRORS.items()
    ]
