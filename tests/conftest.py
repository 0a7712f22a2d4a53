"""What every test can use."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.redis_server import RunningRedis, running_redis

pytest.register_assert_rewrite("session_store.testing")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RunningRedis]:
    """One Redis for all tests that leave it as it is. Who counts its keys empties it first."""
    with running_redis() as server:
        yield server


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """A connection pool that keeps no cookies."""
    with httpx.Client(timeout=20.0) as client:
        client.cookies.jar._policy = NoCookies()  # type: ignore[attr-defined]  # httpx has no switch for it
        yield client


class NoCookies:
    """A cookie policy that refuses every cookie."""

    netscape = True
    rfc2965 = hide_cookie2 = False

    def set_ok(self, *_: object) -> bool:
        return False

    return_ok = domain_return_ok = path_return_ok = set_ok


COLLECTED: list[pytest.Item] = []
"""All tests of a run, before options like `-m` choose among them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    COLLECTED[:] = items


def named_requirements(items: Iterable[pytest.Item]) -> set[str]:
    """The ids that the collected tests name, unless a test is always skipped."""
    return {
        requirement_id
        for item in items
        if item.get_closest_marker("skip") is None
        for mark in item.iter_markers("requirement")
        for requirement_id in mark.args
    }


def ids_in_sources(folder: Path) -> set[str]:
    """The ids that test sources name, collected or not."""
    found: set[str] = set()
    for path in folder.rglob("test_*.py"):
        for call in re.findall(r"requirement\(([^)]*)\)", path.read_text(encoding="utf-8")):
            found.update(re.findall(r'"([a-z]+\.[a-z-]+)"', call))
    return found
