"""The list of required behaviours and the tests agree, both ways."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import COLLECTED, ids_in_sources, named_requirements

HERE = Path(__file__).parent
ROOT = HERE.parent
LISTED = tomllib.loads((HERE / "requirements.toml").read_text(encoding="utf-8"))

PAGES: Final = {
    "2024-11-05": {"Transports"},
    "2025-03-26": {"Transports"},
    "2025-06-18": {"Transports"},
    "2025-11-25": {
        "Authorization",
        "Cancellation",
        "Lifecycle",
        "Security Best Practices",
        "Tasks",
        "Tools",
        "Transports",
    },
    "2026-07-28": {"Multi Round-Trip Requests", "Overview", "Streamable HTTP", "Subscriptions", "Versioning"},
}
"""Pages of the MCP specification that sources name, by revision. A heading of the page may follow, after a slash."""
DESIGN: Final = set(
    "audit configuration context limits operations policy processes replicas secrets sessions state stores".split()
)
"""What the project has designed itself, by topic."""


def is_source(text: str) -> bool:
    """Whether a text is one of the forms that a source has, and names something that exists."""
    if found := re.fullmatch(r"MCP (\d{4}-\d\d-\d\d) §([^/]+)(/.+)?", text):
        return found[2] in PAGES.get(found[1], ())
    if re.fullmatch(r"RFC \d{4} §\d+(\.\d+)*|SEP-\d{3,4}|ext-tasks §[\w -]+|W3C Trace Context §\w+", text):
        return True
    if found := re.fullmatch(r"ADR (\d+)", text):
        return any(ROOT.glob(f"docs/adr/{int(found[1]):04}-*.md"))
    if re.fullmatch(r"docs/[\w-]+\.md", text):
        return (ROOT / text).is_file()
    return text.partition("design: ")[2] in DESIGN


def test_every_requirement_says_what() -> None:
    for requirement_id, entry in LISTED.items():
        assert entry["behaviour"].strip(), requirement_id
        assert entry.keys() <= {"behaviour", "source"}, requirement_id


def test_every_requirement_says_where_it_comes_from() -> None:
    for requirement_id, entry in LISTED.items():
        unknown = [source for source in entry["source"].split("; ") if not is_source(source)]
        assert not unknown, f"{requirement_id}: {unknown}"
    assert not any(map(is_source, ("", "design", "design: everything", "MCP 2025-11-25", "RFC 9112", "ADR 999")))


def test_every_requirement_has_a_test_and_every_named_one_is_listed() -> None:
    assert ids_in_sources(HERE) == LISTED.keys()


def test_a_full_run_collects_every_requirement(request: pytest.FixtureRequest) -> None:
    # Workers of a parallel run are given the tests' folder by the process that started them.
    if request.config.args_source.name != "TESTPATHS" or request.config.option.keyword:
        pytest.skip("only a run of all tests can tell")
    assert LISTED.keys() - named_requirements(COLLECTED) == set()
