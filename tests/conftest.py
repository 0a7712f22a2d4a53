"""Fixtures of all tests, the order of a run, and the requirements that tests name."""

import contextlib
import functools
import gc
import importlib
import itertools
import os
import random
import re
import shutil
import tempfile
import warnings
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Final

import httpx
import httpx2
import hypothesis
import pytest

from session_store.redis import keys
from tests.rings import is_of_the_second_ring
from tests.support import mcp_clients
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.waiting import GIVE_UP_S

pytest.register_assert_rewrite("session_store.testing")
pytest_plugins = ["tests.support.named_gateways"]

# How long one example takes, or takes to be made, says nothing on a machine that runs four tests at once.
hypothesis.settings.register_profile(
    "of these tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("of these tests")

# Each client makes itself a context for TLS, which takes 20 ms of the processor: more than most tests.
for _default in (httpx._transports.default, httpx2._transports.default):
    _default.create_ssl_context = functools.cache(_default.create_ssl_context)  # type: ignore[attr-defined]  # not in its hints

# A request waits for five seconds by itself, which a busy machine may need.
for _default in (
    httpx.Client.__init__,
    httpx.AsyncClient.__init__,
    *(getattr(httpx, name) for name in ("get", "post")),
):
    _default.__kwdefaults__["timeout"] = httpx.Timeout(GIVE_UP_S)


_NAMES: Final = itertools.count(1)

CACHES: Final = {"npm_config_cache": ".npm", "PIP_CACHE_DIR": ".cache/pip", "UV_CACHE_DIR": ".cache/uv"}
"""Variable → folder in this user's home with packages that were downloaded once, and hold nothing of the user."""


def pytest_configure(config: pytest.Config) -> None:
    """Close what this user has on the machine to the tests: files at home, gateways that run, variables of a gateway.
    Choose the seed of a run, which its workers are told."""
    home = Path.home()
    for name, folder in CACHES.items():
        os.environ.setdefault(name, str(home / folder))
    for name in [name for name in os.environ if name.startswith("MCP_GATEWAY_")]:
        del os.environ[name]
    surroundings = Path(tempfile.mkdtemp(prefix="surroundings-"))
    for name, variable in (("home", "HOME"), ("runtime", "XDG_RUNTIME_DIR")):
        surroundings.joinpath(name).mkdir(mode=0o700)
        os.environ[variable] = str(surroundings / name)
    config.add_cleanup(lambda: shutil.rmtree(surroundings, ignore_errors=True))
    if config.option.seed is None:
        config.option.seed = int(os.environ.setdefault("TESTS_SEED", str(random.randrange(1_000_000))))


def pytest_report_header(config: pytest.Config) -> str:
    return f"order: --seed {config.option.seed}"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RunningRedis]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def redis_server(redis_process: RunningRedis) -> RunningRedis:
    """Redis with nothing in it but what the tests of this module write. A test that counts keys empties it first."""
    redis_process.client().flushall()
    return redis_process


@pytest.fixture(autouse=True)
def no_earlier_configuration(request: pytest.FixtureRequest) -> None:
    """Gateways that earlier tests have killed do not hold back those of this test: a configuration file counts for a
    minute after its last gateway has died."""
    for name in {"redis_server", "own_redis"} & {*request.fixturenames}:
        request.getfixturevalue(name).client().delete(keys.CONFIGURATIONS)


@pytest.fixture(autouse=True)
def own_client_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients of a test have a name of their own. By its principal and its name, a gateway that several tests share
    finds the default session of a client, and knows what that brings back."""
    monkeypatch.setattr(mcp_clients, "client_name", f"raw-{next(_NAMES)}")


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """A connection pool that keeps no cookies, for all threads of a test."""
    with httpx.Client(timeout=30.0) as client:
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

LONGEST_FIRST: Final = (
    "test_documents.py",
    "cluster",
    "operating",
    "designs",
    "hosts",
    "e2e/test_processes.py",
    "e2e/test_durability.py",
    "e2e/test_edge_limits.py",
    "e2e/test_tools.py",
    "clients",
    "matrix",
    "attack",
    "e2e",
    "processes",
    "store",
)
"""Files and folders whose tests take longest, in the order in which a parallel run begins them. A file is run by one
worker: were a long one to begin last, the other workers would wait for it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, help="what shuffles the tests within each file; without it, another order each time"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep what is collected, which stays until the end of a run, out of garbage collections."""
    gc.disable()
    try:
        _import_from_elsewhere(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _import_from_elsewhere(config: pytest.Config) -> None:
    """Import the test files of the folders of this run, each worker beginning at another one.

    pytest compiles a test file, and keeps the result for later runs, wherever it is imported first. In a clone that
    has never run its tests, workers that begin at the same file would all compile all of them.
    """
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    root = Path(__file__).parents[1]
    files = sorted(path for name in config.args for path in Path(config.invocation_params.dir, name).rglob("test_*.py"))
    first = len(files) * int(worker.removeprefix("gw")) // workers
    with warnings.catch_warnings(action="error"):
        for path in (*files[first:], *files[:first]):
            # Collecting the file says what is wrong with it.
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # pytest then puts those together that share a parametrised fixture.
    order = random.Random(config.option.seed)
    places = {function: order.random() for function in dict.fromkeys(map(_function, items))}
    items.sort(key=lambda item: (_place(item.path), str(item.path), places[_function(item)]))
    for item in items:
        if is_of_the_second_ring(item.nodeid):
            item.add_marker("second_ring")
    COLLECTED[:] = items


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@functools.cache
def _place(path: Path) -> int:
    """Where a test file stands in the order of a run; what is quick comes last."""
    name = path.relative_to(Path(__file__).parent).as_posix()
    places = (place for place, start in enumerate(LONGEST_FIRST) if name == start or name.startswith(f"{start}/"))
    return next(places, len(LONGEST_FIRST))


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
