"""The table and the specification agree both ways, and the tests that it names exist."""

import ast
import functools
import re
from collections import Counter
from pathlib import Path

from gateway.context.session_facts import SESSION_KEY
from gateway.protocol.result_translation import MISSING_KEY
from gateway.sessions.client_chosen_keys import KEY_META
from tests.conformance.letter.table import PARTIAL, Row, rows, statements
from tests.requirements import requirement
from tests.tools.conformance_document import DOCUMENT, written

pytestmark = requirement("spec.letter")

ROOT = Path(__file__).parents[3]
ROWS = list(rows())


@functools.cache
def named_in(path: str) -> dict[str, str]:
    """The source of each test of a file, by name."""
    source = (ROOT / path).read_text(encoding="utf-8")
    found, lines = {}, source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found[node.name] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found


def of(row: Row) -> str:
    return f"{row.revision} {row.page} §{row.section}: {row.says}"


def test_every_statement_that_binds_somebody_has_a_row() -> None:
    there = {(row.revision, row.page, row.digest) for row in ROWS}
    for revision, pages in statements().items():
        for page, said in pages.items():
            if page not in PARTIAL:
                missing = [digest for digest in said["binds"] if (revision, page, digest) not in there]
                assert not missing, f"{revision} {page}: {len(missing)} statements have no row"


def test_every_row_is_a_statement_of_the_specification() -> None:
    known = {
        (revision, page, digest)
        for revision, pages in statements().items()
        for page, said in pages.items()
        for digest in (*said["binds"], *said["allows"])
    }
    strangers = [of(row) for row in ROWS if (row.revision, row.page, row.digest) not in known]
    assert not strangers
    twice = [key for key, count in Counter((row.revision, row.page, row.digest) for row in ROWS).items() if count > 1]
    assert not twice


def test_a_row_says_who_is_bound_and_why_nothing_is_shown() -> None:
    for row in ROWS:
        assert row.binds in ("client", "server", "both", "gateway"), of(row)
        assert row.why and all(len(why) > 20 for why in row.why), of(row)


def test_every_test_that_a_row_names_exists_and_asserts_something() -> None:
    for row in ROWS:
        if row.outcome != "met":
            continue
        for node in row.why:
            path, _, name = node.partition("::")
            source = named_in(path).get(name)
            assert source is not None, f"there is no {node}: {of(row)}"
            assert "assert" in source or "pytest.raises" in source or "await feature(" in source, node


def test_the_document_has_the_counts_and_the_reasons() -> None:
    """Else: `python -m tests.tools.conformance_document`."""
    assert DOCUMENT.read_text(encoding="utf-8") == written()


KEY = re.compile(
    r"([A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?/[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?"
)


def test_the_gateways_own_keys_follow_the_rules() -> None:
    """Keys in `_meta` have a prefix in reverse DNS notation whose second label is not reserved (Overview §_meta)."""
    for key in (SESSION_KEY, MISSING_KEY, KEY_META):
        assert KEY.fullmatch(key) and key.split("/")[0].split(".")[1] not in ("modelcontextprotocol", "mcp"), key
    assert not KEY.fullmatch("no-prefix") and not KEY.fullmatch("a.-b/c")
