"""The fixtures for tests of apps, used by a test run of somebody else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.support.gateway_process import ROOT

APP = """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway import SessionMiddleware
from session_store import current_session


async def add_to_basket(item):
    state = current_session().state
    await state.set("basket", [*await state.get("basket", []), item])


async def add(request):
    await add_to_basket(request.path_params["item"])
    return JSONResponse(None)


async def show(request):
    return JSONResponse(await current_session().state.get("basket", []))


routes = [Route("/basket/{item}", add, methods=["POST"]), Route("/basket", show)]
sessions = Middleware(SessionMiddleware, store="redis://127.0.0.1:1/0")
app = Starlette(routes=routes, middleware=[sessions])
"""

MORE = """

import pytest
from session_store import NoSession


@pytest.fixture
def anyio_backend():
    return "asyncio"


pytestmark = pytest.mark.anyio


def test_a_new_test_has_a_new_store(mcp_session_store):
    assert len(mcp_session_store.sessions.records) == 0
    with TestClient(app) as client:
        client.post("/basket/pear")
        client.post("/basket/pear")
        assert client.get("/basket").json() == ["pear", "pear"]
    assert len(mcp_session_store.sessions.records) == 1


def test_there_is_no_session_without_the_fixture():
    with pytest.raises(NoSession):
        current_session()


def test_the_session_is_the_current_one(mcp_session):
    assert current_session() is mcp_session


def test_without_the_fixture_the_app_has_its_own_store(monkeypatch):
    monkeypatch.setenv("MCP_GATEWAY_KEYS", "k" * 40)
    answer = TestClient(app).post("/basket/pear")
    assert answer.status_code == 503 and answer.headers["retry-after"]
"""


HIDDEN = """
import pytest


def test_of_the_app():
    with pytest.raises(ImportError, match="is hidden by"):
        from mcp_session_gateway import SessionMiddleware


def test_with_a_store(mcp_session_store):
    pass


def test_with_a_session(mcp_session):
    pass
"""


@requirement("app.testing")
def test_the_tests_of_the_documents_app_pass_without_a_redis(tmp_path: Path) -> None:
    text = (ROOT / "docs/embedding.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"test_pytest_fixtures\.py -->\n```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_app.py").write_text(APP, encoding="utf-8")
    (tmp_path / "test_app.py").write_text(shown + MORE, encoding="utf-8")
    ran = _pytest(tmp_path, "-W", "error")
    assert ran.returncode == 0 and "6 passed" in ran.stdout, ran.stdout + ran.stderr


@requirement("app.names")
@pytest.mark.parametrize("name", ["gateway", "session_store"])
def test_a_folder_of_the_app_that_hides_a_package_is_named_and_other_tests_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "test_app.py").write_text(HIDDEN, encoding="utf-8")
    ran = _pytest(tmp_path)
    assert "1 passed, 2 errors" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.count(f"the package {name!r} of mcp-session-gateway is hidden by {tmp_path / name}") >= 2


def _pytest(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the tests of `test_app.py` there, as somebody who has the package installed."""
    # The entry point is that of an installed package (tests/test_wheel.py): here, the plugin is named.
    plugins = ["-p", "mcp_session_gateway.pytest_plugin", "-p", "anyio"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MCP_GATEWAY_")}
    env |= {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", *options, "-p", "no:cacheprovider", *plugins, "test_app.py"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=90, check=False)
