"""The table of attacks names tests that exist."""

import re
from pathlib import Path

import pytest

from tests.attack.tests import ROOT, attacks

NAMED = [test for attack in attacks() for test in attack["tests"]]


@pytest.mark.parametrize("test", NAMED)
def test_an_attack_has_its_test(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", Path(ROOT, file).read_text(encoding="utf-8"), re.MULTILINE)
