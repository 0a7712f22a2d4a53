"""`docs/designs.md` maps each statement of the designs to a requirement that is met, and to a test that proves it."""

import ast
import re
import tomllib
from typing import Final

import pytest

from tests.support.gateway_process import ROOT

TEXT: Final = (ROOT / "docs/designs.md").read_text(encoding="utf-8")
ROW: Final = re.compile(
    r"^\| (?P<statement>.+) \| `(?P<id>[a-z]+\.[a-z-]+)` \| `(?P<file>[\w/]+\.py)::(?P<test>\w+)` \|$"
)
LISTED: Final = tomllib.loads((ROOT / "tests/requirements.toml").read_text(encoding="utf-8"))

ASKED: Final = {
    "ORBIT": {"ctx.announce", "ctx.bind", "ctx.open"},
    "PARACHUTE": {
        *("ctx.env", "ctx.env-preserved", "ctx.env-names", "ctx.unforgeable"),
        *("ctx.open", "pol.trust", "pol.workspace", "pol.sandbox"),
    },
    "STAGEWRIGHT": {
        *("life.end", "life.default-only", "ctx.meta-out", "ctx.correlation", "ctx.correlation-right", "pol.operation"),
        *("pol.arguments", "pol.errors", "pol.slow", "pol.manifest", "proc.shutdown", "proc.noise"),
    },
    "GOSESSION": {
        *("id.carriers", "ctx.scope", "ctx.state", "ctx.limits", "ctx.stdio-front", "pol.errors", "spec.sse"),
        *("app.middleware", "app.small-store"),
    },
    "STAC": {
        *(
            "life.ttl",
            "life.bounded",
            "life.events",
            "ctx.env-names",
            "ctx.meta-out",
            "ctx.metadata",
            "ctx.correlation",
        ),
        *("ctx.correlation-right", "ctx.state", "ctx.limits", "ctx.stdio-front", "ctx.credentials", "pol.permissions"),
        *("pol.limits", "pol.tools"),
    },
}
"""The requirements that come from each design."""


def rows(design: str) -> list[re.Match[str]]:
    """The rows of that design's table. A row of another form fails."""
    section = TEXT.partition(f"\n## {design}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    found = [ROW.match(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if match is None]
    return [match for match in found if match is not None]


@pytest.mark.parametrize("design", sorted(ASKED))
def test_each_statement_has_a_requirement_that_is_met_and_a_test_that_names_it(design: str) -> None:
    for row in rows(design):
        assert LISTED[row["id"]]["state"] == "met", row["statement"]
        assert row["id"] in _named(row["file"], row["test"]), f"{row['file']}::{row['test']} does not name {row['id']}"


@pytest.mark.parametrize("design", sorted(ASKED))
def test_each_requirement_of_a_design_is_on_the_page(design: str) -> None:
    assert ASKED[design] - {row["id"] for row in rows(design)} == set()


def test_each_design_has_scenarios_of_its_own() -> None:
    for design in ASKED:
        own = f"tests/designs/test_{design.lower()}.py"
        assert sum(row["file"] == own for row in rows(design)) >= 5, design


def _named(file: str, test: str) -> set[str]:
    """The requirements that a test or its file names. Fails if there is no such test."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = next((each for each in functions if each.name == test), None)
    assert found is not None, f"{file} has no {test}"
    marks = [each.value for each in tree.body if isinstance(each, ast.Assign) and "pytestmark" in ast.unparse(each)]
    within = [node for each in (*found.decorator_list, *marks) for node in ast.walk(each)]
    calls = [each for each in within if isinstance(each, ast.Call) and ast.unparse(each.func) == "requirement"]
    return {arg.value for call in calls for arg in call.args if isinstance(arg, ast.Constant)}  # type: ignore[misc]
