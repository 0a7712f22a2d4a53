"""The table of attacks names tests that exist, and has a row for everything that was found."""

import re
from pathlib import Path

from tests.attack.attack_table import ROOT, attacks
from tests.attack.live.rows import DOORS
from tests.attack.live.run import all_attacks

FOUND = range(1, 35)
BY_TESTS_ONLY = {3, 7, 9, 10, 30, 31, 33}
"""What a client cannot reach over HTTP: images, files, processes, schemas of servers, replicas."""


def is_defined(test: str) -> bool:
    file, _, name = test.partition("::")
    return bool(re.search(rf"^(async )?def {name}\(", Path(ROOT, file).read_text(encoding="utf-8"), re.MULTILINE))


def test_each_attack_has_its_tests() -> None:
    named = [test for attack in attacks() for test in attack["tests"]]
    assert [test for test in named if not is_defined(test)] == []


def test_everything_that_was_found_is_tried() -> None:
    by_tests = {attack["item"] for attack in attacks() if "item" in attack}
    live = {attack.item for attack in all_attacks()}
    assert by_tests == set(FOUND) and live == set(FOUND) - BY_TESTS_ONLY


def test_most_of_it_is_tried_behind_both_proxies() -> None:
    everywhere = [attack for attack in all_attacks() if set(DOORS) <= set(attack.doors)]
    assert len(everywhere) > len(all_attacks()) / 2
    assert len({attack.name for attack in all_attacks()}) == len(all_attacks())
