"""`docs/designs.md` maps each statement of the designs to a requirement that is met, and to a test that proves it."""

import ast
import re
import tomllib

from tests.support.gateway_process import ROOT

DESIGNS = {"ORBIT", "PARACHUTE", "STAGEWRIGHT", "GOSESSION", "STAC"}
ROW = re.compile(r"^\| (.+) \| `([a-z]+\.[a-z-]+)` \| `([\w/]+\.py)::(\w+)` \|$", re.MULTILINE)

DEVIATION = re.compile(r"^\| ([A-Z]+) \| .+ \| (.+) \|$", re.MULTILINE)


def test_each_statement_has_a_requirement_that_is_met_and_a_test_that_names_it() -> None:
    text = (ROOT / "docs/designs.md").read_text(encoding="utf-8")
    listed = tomllib.loads((ROOT / "tests/requirements.toml").read_text(encoding="utf-8"))
    sections = {section.splitlines()[0]: section for section in text.split("\n## ")[1:]}
    deviations = DEVIATION.findall(sections.pop("Deviations"))
    assert sections.keys() == DESIGNS == {design for design, why in deviations if len(why) > 80}
    for design, section in sections.items():
        rows = ROW.findall(section)
        assert len(rows) == section.count("\n| ") - 1 >= 10, f"{design}: a row has another form"
        for statement, requirement, file, test in rows:
            assert listed[requirement]["state"] == "met", statement
            assert requirement in named(file, test), f"{file}::{test} does not name {requirement}"


def named(file: str, test: str) -> set[str]:
    """The requirements that a test or its file names. Fails if there is no such test."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = next((each for each in functions if each.name == test), None)
    assert found is not None, f"{file} has no {test}"
    marks = [each for each in tree.body if isinstance(each, ast.Assign) and "pytestmark" in ast.unparse(each)]
    words = "\n".join(map(ast.unparse, (*found.decorator_list, *marks)))
    return {word for call in re.findall(r"requirement\(([^)]*)\)", words) for word in re.findall(r"'([^']+)'", call)}
