"""Two replicas with an operator's key, shared by several test files: a test must leave both running."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Playwright, expect, sync_playwright

from tests.support.commands import run_command
from tests.support.credentials import sha256
from tests.support.gateway_process import DEMO, PROBE, SIGNED, RunningGateway, running_gateway, server
from tests.support.redis_server import RunningRedis, running_redis
from tests.tools.programs import program

OPERATOR = "operator-key-of-the-tests"
SERVERS = {"demo": server(DEMO), "probe": server(PROBE)}
ONLY_DEMO = {"demo": SERVERS["demo"]}
ADMIN = {"keys": {"olga": sha256(OPERATOR)}}

# What a page shows is waited for, and how long that takes is measured by the tests that run alone.
expect.set_options(timeout=30_000)

Cli = Callable[..., subprocess.CompletedProcess[str]]
Pair = tuple[RunningGateway, RunningGateway]


@pytest.fixture(scope="session")
def own_redis() -> Iterator[RunningRedis]:
    """A Redis with nothing else in it."""
    with running_redis() as redis:
        yield redis


@contextlib.contextmanager
def replica(
    redis: RunningRedis,
    *,
    servers: Mapping[str, Any] = SERVERS,
    more_servers: Mapping[str, Any] | None = None,
    **options: object,
) -> Iterator[RunningGateway]:
    tasks = {"at_once": ["probe/sleep", "probe/fail"]}
    settings = {"store": redis.url, "admin": ADMIN, "audit": {"calls": True}, "tasks": tasks, **options}
    with running_gateway({**servers, **(more_servers or {})}, options=settings, env=SIGNED, must_stop=False) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def pair(own_redis: RunningRedis) -> Iterator[Pair]:
    with replica(own_redis) as one, replica(own_redis) as other:
        yield one, other


@pytest.fixture
def ops() -> Iterator[httpx.Client]:
    """A client with an operator's key."""
    with httpx.Client(headers={"Authorization": f"Bearer {OPERATOR}"}, timeout=20.0) as client:
        yield client


@pytest.fixture
def cli() -> Cli:
    """`mcp-session-gateway ARGUMENTS`, as typed, with an operator's key in the environment."""

    def run(*arguments: str, url: str = "", key: str = OPERATOR) -> subprocess.CompletedProcess[str]:
        more = ("--url", url) if url else ()
        return run_command(*arguments, *more, env={"MCP_GATEWAY_ADMIN_KEY": key})

    return run


@contextlib.contextmanager
def launched(playwright: Playwright) -> Iterator[Browser]:
    chromium = str(program("chromium", "chromium"))
    with playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser:
        yield browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, launched(playwright) as chromium:
        yield chromium


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    context.set_default_timeout(60_000)
    yield context
    context.close()
