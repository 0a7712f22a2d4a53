"""The table of attacks names tests, and has a row for everything that was found."""

import ast

from tests.attack.run import attacks
from tests.support.commands import ROOT

FOUND = range(1, 35)


def test_each_attack_has_its_tests() -> None:
    assert [attack for attack in attacks() if not attack["tests"]] == []
    named = [test.split("::") for attack in attacks() for test in attack["tests"]]
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file, _ in named}
    there = {file: {getattr(node, "name", "") for node in ast.parse(text).body} for file, text in texts.items()}
    assert [f"{file}::{name}" for file, name in named if name not in there[file]] == []


def test_everything_that_was_found_is_tried() -> None:
    assert {attack["item"] for attack in attacks() if "item" in attack} == set(FOUND)
