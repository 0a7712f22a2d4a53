"""The unit tests mirror the rooms: each file tests one module, and each pure module has its file.

`tests/unit/policy/test_access_policy.py` tests `gateway/policy/access_policy.py`,
`tests/unit/store/test_token_signing.py` tests `session_store/token_signing.py`, and
`tests/unit/transports/inbound/test_batch.py` tests `transports/inbound/batch.py`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
    """The module that a test file is about, as a path from the root: `gateway/policy/access_policy.py`."""
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
        text = path.read_text(encoding="utf-8") if path.name != "__init__.py" else ""
        if "Pure" in text and re.search(r"\bPure\b", ast.get_docstring(ast.parse(text)) or ""):
            yield str(path.relative_to(ROOT))


def test_each_file_is_named_for_a_module_that_exists() -> None:
    missing = {module_of(test) for test in FILES if not (ROOT / module_of(test)).is_file()}
    assert missing == set(), "move each test with its module"


def test_each_pure_module_has_its_unit_tests() -> None:
    tested = {module_of(test) for test in FILES}
    assert set(pure_modules()) - tested == set(), "write the tests beside the module"


def forbidden_in(test: Path) -> Iterator[str]:
    """What a unit test may not do, with its place."""
    for node in ast.walk(ast.parse(test.read_text(encoding="utf-8"))):
        names: set[str] = set()
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names} & NOT_HERE
        elif isinstance(node, ast.ImportFrom):
            names = {node.module or ""} & NOT_HERE
        elif isinstance(node, ast.Call) and "sleep" in (getattr(node.func, "attr", ""), getattr(node.func, "id", "")):
            names = {ast.unparse(node)} - {"asyncio.sleep(0)"}
        if names:
            yield f"{test.relative_to(HERE)}:{node.lineno}: {names}"  # type: ignore[attr-defined]  # imports and calls have one


def test_unit_tests_start_no_process_and_wait_for_events() -> None:
    assert [place for test in FILES for place in forbidden_in(test)] == []
