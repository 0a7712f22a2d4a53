"""`gateway.admin.local_gateways`: the file is good while its gateway lives, and for its user alone."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.admin.local_gateways import LocalGateway, announced, local_gateways, network_namespace, runtime_folder
from tests.requirements import requirement

pytestmark = requirement("first.local")

NETWORK = network_namespace()
ONE = LocalGateway(
    url="http://127.0.0.1:9090", endpoint="http://127.0.0.1:8080/mcp", key="k" * 43, pid=7, network=NETWORK
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


def test_a_gateway_is_found_while_it_lives(folder: Path) -> None:
    assert local_gateways(folder) == []
    other = replace(ONE, url="http://[::1]:7070", pid=8)
    with announced(ONE, folder), announced(other, folder):
        assert local_gateways(folder) == [ONE, other]
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert local_gateways(folder) == [] and not [*folder.iterdir()]


def test_what_a_dead_gateway_has_left_behind_is_removed_and_not_used(folder: Path) -> None:
    with announced(ONE, folder):
        [file] = folder.iterdir()
        left = file.read_bytes()
    file.write_bytes(left)  # as after SIGKILL: the file is there, and nobody holds its lock
    file.chmod(0o600)
    assert local_gateways(folder) == [] and not file.exists()


def test_a_folder_of_others_is_neither_written_nor_read(folder: Path, tmp_path: Path) -> None:
    with announced(ONE, folder):
        folder.chmod(0o750)
        assert local_gateways(folder) == []
        with pytest.raises(PermissionError, match="open to others"), announced(ONE, folder):
            pass
        folder.chmod(0o700)
        link = tmp_path / "link"
        link.symlink_to(folder)
        assert local_gateways(link) == []
        with pytest.raises(OSError), announced(ONE, link):  # ENOTDIR or ELOOP, by system
            pass
        assert local_gateways(folder) == [ONE]


def test_files_that_others_could_write_links_and_pipes_are_passed_over(folder: Path, tmp_path: Path) -> None:
    with announced(ONE, folder):
        [file] = folder.iterdir()
        target = tmp_path / "target"
        file.rename(target)
        file.symlink_to(target)
        assert local_gateways(folder) == []
        file.unlink()
        target.rename(file)
        os.mkfifo(folder / "gateway-pipe.json", 0o600)
        assert local_gateways(folder) == [ONE]
        file.chmod(0o622)
        assert local_gateways(folder) == []


@pytest.mark.parametrize(
    "facts",
    [
        {"url": "http://evil.example:9090"},
        {"url": "https://127.0.0.1:9090"},
        {"endpoint": "http://evil.example/mcp"},
        {"network": 1},
    ],
)
def test_a_key_is_for_this_machine_and_its_network_alone(folder: Path, facts: dict[str, Any]) -> None:
    with announced(replace(ONE, **facts), folder):
        assert local_gateways(folder) == []


def test_a_gateway_is_meant_by_its_own_addresses_only() -> None:
    for url in ("http://localhost:8080", "http://127.0.0.1:8080/mcp", "http://[::1]:9090/admin"):
        assert ONE.is_at(url)
    for url in ("http://127.0.0.1:8081", "https://127.0.0.1:8080", "http://evil.example:8080", "http://[", "", "x:y"):
        assert not ONE.is_at(url)


def test_the_runtime_folder_is_one_that_its_user_alone_can_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_folder() == tmp_path / "mcp-session-gateway"
    tmp_path.chmod(0o755)
    assert tmp_path not in runtime_folder().parents
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    assert runtime_folder().is_absolute()
