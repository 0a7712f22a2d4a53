"""A backend from outside the packages keeps the contract, and a gateway runs on it."""

import json
import os
from pathlib import Path

import httpx
import pytest

from session_store import Backend
from session_store.connect import ENTRY_POINTS
from session_store.testing import BackendContract, FakeClock
from tests.support.gateway_process import TOOL, running_gateway, server
from tests.support.mcp_clients import Legacy, tool_text
from tests.toys.dict_store import DictBackend


class TestDict(BackendContract):
    @pytest.fixture
    def backend(self, clock: FakeClock) -> Backend:
        return DictBackend(clock)


def test_a_gateway_runs_on_a_backend_of_an_installed_package(tmp_path: Path, http: httpx.Client) -> None:
    declared = tmp_path / "toy-1.0.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (declared / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\ndict = tests.toys.dict_store:dict_backend\n")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with running_gateway({"tool": server(TOOL)}, options={"store": "dict://"}, env=env) as gateway:
        one, two = (Legacy(gateway.url, http).open() for _ in range(2))
        one.tool("visit", {"name": "a"})
        assert json.loads(tool_text(one.tool("visit", {"name": "b"})))["names"] == ["a", "b"]
        assert json.loads(tool_text(two.tool("visit", {"name": "c"})))["names"] == ["c"], "sessions share nothing"
        assert one.delete().status_code in (200, 204)
        assert one.tool("visit", {"name": "d"}).status_code == 404
