"""The unit tests mirror the rooms: each file tests one module, and each pure module has its file.

`tests/unit/policy/test_decisions.py` tests `gateway/policy/decisions.py`, `tests/unit/store/test_tokens.py` tests
`session_store/tokens.py`, and `tests/unit/transports/inbound/test_http.py` tests `transports/inbound/http.py`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.test_architecture import PURE, SOURCES

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
FILES: Final = sorted(path for path in HERE.rglob("test_*.py") if path != Path(__file__))

NOT_HERE: Final = {
    "multiprocessing",
    "redis",
    "session_store.redis",
    "subprocess",
    "tests.support.redis_server",
    "tests.support.gateway_process",
}
"""What starts processes or needs them. Tests that import it are end-to-end tests."""


def module_of(test: Path) -> str:
    """The module that a test file is about, as a path from the root: `gateway/policy/decisions.py`."""
    first, *more = test.relative_to(HERE).parts
    name = test.name.removeprefix("test_")
    if not more:
        return f"gateway/{name}"
    room = {"store": "session_store", "transports": "transports"}.get(first, f"gateway/{first}")
    return str(Path(room, *more[:-1], name))


def pure_modules() -> Iterator[str]:
    """The modules that are held to be pure, and those whose docstring says that they are."""
    yield from PURE
    for path in SOURCES:
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if re.search(r"\bPure\b", words) and path.name != "__init__.py":
            yield str(path.relative_to(ROOT))


@pytest.mark.parametrize("test", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_each_file_is_named_for_a_module_that_exists(test: Path) -> None:
    assert (ROOT / module_of(test)).is_file(), f"{module_of(test)} does not exist: move the test with its module"


def test_each_pure_module_has_its_unit_tests() -> None:
    tested = {module_of(test) for test in FILES}
    assert set(pure_modules()) - tested == set(), "write the tests beside the module"


@pytest.mark.parametrize("test", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_unit_tests_start_no_process_and_do_not_sleep(test: Path) -> None:
    for node in ast.walk(ast.parse(test.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {alias.name for alias in node.names} & NOT_HERE
        elif isinstance(node, ast.ImportFrom):
            assert node.module not in NOT_HERE
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "sleep":
            assert ast.unparse(node) == "asyncio.sleep(0)", f"line {node.lineno}: wait for an event instead"
