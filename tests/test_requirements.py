"""The list of required behaviours and the tests agree, both ways."""

import tomllib
from pathlib import Path

import pytest

from tests.conftest import COLLECTED, ids_in_sources, named_requirements

HERE = Path(__file__).parent
LISTED = tomllib.loads((HERE / "requirements.toml").read_text(encoding="utf-8"))


def test_every_requirement_says_what_and_whether() -> None:
    for requirement_id, entry in LISTED.items():
        assert entry["behaviour"].strip(), requirement_id
        assert entry["state"] in ("planned", "met"), requirement_id
        assert entry.keys() <= {"behaviour", "state", "so_far"}, requirement_id


def test_every_met_requirement_has_a_test() -> None:
    met = {requirement_id for requirement_id, entry in LISTED.items() if entry["state"] == "met"}
    assert met - ids_in_sources(HERE) == set()


def test_every_named_requirement_is_listed() -> None:
    assert ids_in_sources(HERE) - LISTED.keys() == set()


def test_a_full_run_collects_every_met_requirement(request: pytest.FixtureRequest) -> None:
    # Workers of a parallel run are given the tests' folder by the process that started them.
    if request.config.args_source.name != "TESTPATHS" or request.config.option.keyword:
        pytest.skip("only a run of all tests can tell")
    met = {requirement_id for requirement_id, entry in LISTED.items() if entry["state"] == "met"}
    assert met - named_requirements(COLLECTED) == set()
