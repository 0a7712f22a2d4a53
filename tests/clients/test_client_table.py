"""What clients do with their sessions is what docs/clients.md says."""

from collections.abc import Iterator

import pytest

from tests.clients.client_table import IN_MAKE_TEST, MODES, PROGRAMS, ROWS, Gateways, expected, gateways, outcomes
from tests.requirements import requirement
from tests.support.document_blocks import blocks
from tests.support.gateway_process import ROOT


@pytest.fixture(scope="module")
def both() -> Iterator[Gateways]:
    with gateways() as running:
        yield running


@requirement("cli.isolated", "cli.default", "cli.session-key")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", IN_MAKE_TEST)
def test_a_client_does_what_the_table_says(both: Gateways, name: str) -> None:
    row = ROWS[name]
    assert outcomes(row, both) == dict(zip(MODES, row.expected, strict=True))


@requirement("cli.session-key")
def test_the_document_has_the_table_and_the_lines_that_are_run() -> None:
    assert expected() in (ROOT / "docs/clients.md").read_text(encoding="utf-8"), expected()
    for row in ROWS.values():
        source = (PROGRAMS / row.program).read_text(encoding="utf-8")
        option = next((option for option in ("--header", "-H") if f"{option} " in row.line), "")
        assert (f'"{option}"' if option else row.line) in source, row.name


def test_the_echoing_fetch_of_the_document_is_the_one_that_is_run() -> None:
    source = (PROGRAMS / "typescript.mjs").read_text(encoding="utf-8")
    (block,) = [block for block in blocks("js") if block.path.name == "clients.md"]
    assert block.text in source
