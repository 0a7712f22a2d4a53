"""The statements of five designs, one file each: what holds names a test that shows it, what differs names the row of
`docs/designs.md` that argues why, and what is outside of this project says why."""

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

from tests.support.gateway_process import ROOT

HERE = Path(__file__).parent
DESIGNS = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("*.toml"))}
VERDICTS = ("holds", "differs", "outside")
PAGE = (ROOT / "docs/designs.md").read_text(encoding="utf-8")
COUNTS = re.compile(r"^\| ([A-Z]+) \| .+ \| (\d+) \| (\d+) \| (\d+) \| .+ \|$", re.MULTILINE)
DEVIATION = re.compile(r"^\| ([A-Z]+) \| ([a-z' ]+) \| .+ \| (.+) \|$", re.MULTILINE)


@pytest.mark.parametrize("design", DESIGNS)
def test_what_holds_is_shown_by_a_test_that_names_a_requirement(design: str) -> None:
    for _, statement, test in DESIGNS[design]["holds"]:
        assert requirements_of(test), f"{statement} {test}"


@pytest.mark.parametrize("design", DESIGNS)
def test_what_differs_is_argued_on_the_page_and_what_is_outside_beside_it(design: str) -> None:
    argued = {name: why for of, name, why in DEVIATION.findall(PAGE) if of == design.upper()}
    assert argued.keys() == {name for *_, name in DESIGNS[design]["differs"]}
    assert all(len(why) > 80 for why in argued.values())
    assert all(len(why) > 40 for *_, why in DESIGNS[design]["outside"])


def test_no_statement_stands_twice_and_the_page_has_their_numbers() -> None:
    counts = {design.lower(): tuple(map(int, numbers)) for design, *numbers in COUNTS.findall(PAGE)}
    assert counts == {design: tuple(len(rows[verdict]) for verdict in VERDICTS) for design, rows in DESIGNS.items()}
    for design, rows in DESIGNS.items():
        statements = [(place, said) for verdict in VERDICTS for place, said, _ in rows[verdict]]
        assert len(set(statements)) == len(statements), design


@functools.cache
def requirements_of(test: str) -> frozenset[str]:
    """The requirements that a test or its file names. Fails if there is no such test."""
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = next((each for each in functions if each.name == name), None)
    assert found is not None, f"there is no {test}"
    marks = [each for each in tree.body if isinstance(each, ast.Assign) and "pytestmark" in ast.unparse(each)]
    words = "\n".join(map(ast.unparse, (*found.decorator_list, *marks)))
    calls = re.findall(r"requirement\(([^)]*)\)", words)
    return frozenset(word for call in calls for word in re.findall(r"'([^']+)'", call))
