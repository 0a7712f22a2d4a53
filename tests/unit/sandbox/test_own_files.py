"""Which files of the gateway a sandbox must not open."""

import os
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


@requirement("box.keys")
def test_a_file_is_opened_by_each_name_that_it_has(tmp_path: Path) -> None:
    key, other = tmp_path / "gateway/key", tmp_path / "granted/key"
    for file in (key, other):
        file.parent.mkdir()
    key.write_text("secret")
    other.hardlink_to(key)
    walls = Walls(profile="standard", grants=(Grant(path=str(other), mode="r"),), reach=None)
    assert [*opened(walls, [key])] == [(str(other), key)]
    assert [*opened(walls, [tmp_path / "gateway/none"])] == []


@requirement("box.keys")
def test_a_folder_is_opened_where_it_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, mounted = tmp_path / "gateway", tmp_path / "granted"
    for one in (folder, mounted):
        one.mkdir()
    look = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **how: look(folder if path == str(mounted) else path, **how))
    walls = Walls(profile="standard", grants=(Grant(path=str(mounted), mode="r"),), reach=None)
    assert [*opened(walls, [folder / "key"])] == [(str(mounted), folder / "key")], "before the file is there, too"


def test_a_store_that_is_no_file_has_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCP_GATEWAY_KEYS_FILE", raising=False)
    assert own_files(GatewaySettings.model_validate({"store": "redis://localhost:6379/0"})) == []
