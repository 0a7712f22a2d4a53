"""Which files of the gateway a sandbox must not open."""

from pathlib import Path

import pytest

from gateway.config.settings import GatewaySettings
from gateway.sandbox.own_files import opened, own_files
from tests.requirements import requirement
from transports.upstream.walls.spec import Grant, Walls


@requirement("box.keys")
def test_a_single_file_beside_the_store_has_its_pages(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "sessions.db")
    files = own_files(GatewaySettings.model_validate({"store": f"sqlite:///{tmp_path}/link.db"}))
    for ending in ("", "-wal", "-shm", "-journal"):
        file = tmp_path / f"sessions.db{ending}"
        walls = Walls(profile="standard", grants=(Grant(path=str(file), mode="r"),), reach=None)
        assert [grant for grant, _ in opened(walls, files)] == [str(file)], "SQLite names them beside the file itself"
    other = Walls(profile="standard", grants=(Grant(path=str(tmp_path / "sessions"), mode="r"),), reach=None)
    assert list(opened(other, files)) == []


def test_a_store_that_is_no_file_has_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCP_GATEWAY_KEYS_FILE", raising=False)
    assert own_files(GatewaySettings.model_validate({"store": "redis://localhost:6379/0"})) == []
