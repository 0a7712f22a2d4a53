"""The table of attacks names tests, and has a row for everything that was found."""

from tests.attack.attack_table import attacks
from tests.attack.live.rows import DOORS
from tests.attack.live.run import all_attacks

FOUND = range(1, 35)
BY_TESTS_ONLY = {3, 7, 9, 10, 30, 31, 33}
"""What a client cannot reach over HTTP: images, files, processes, schemas of servers, replicas."""


def test_each_attack_has_its_tests() -> None:
    assert [attack for attack in attacks() if not attack["tests"]] == []


def test_everything_that_was_found_is_tried() -> None:
    by_tests = {attack["item"] for attack in attacks() if "item" in attack}
    live = {attack.item for attack in all_attacks()}
    assert by_tests == set(FOUND) and live == set(FOUND) - BY_TESTS_ONLY


def test_most_of_it_is_tried_behind_both_proxies() -> None:
    everywhere = [attack for attack in all_attacks() if set(DOORS) <= set(attack.doors)]
    assert len(everywhere) > len(all_attacks()) / 2
    assert len({attack.name for attack in all_attacks()}) == len(all_attacks())
