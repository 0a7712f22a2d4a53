"""Which files of the gateway no sandbox may open, and which grants would open them."""

import os
from pathlib import Path

import pytest

from gateway.config.settings import GatewaySettings
from gateway.sandbox.private_files import opened, own_files, with_link_targets
from gateway.sandbox.walls_from_profile import without_withheld
from tests.requirements import requirement
from tests.unit.sandbox.parts import make
from transports.upstream.walls.wall_specification import Grant, Walls


def reading(path: Path) -> Walls:
    return Walls(profile="standard", grants=(Grant(path=str(path), mode="r"),), reach=None)


@requirement("box.keys")
def test_the_file_of_a_store_is_read_from_its_url_as_the_store_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MCP_GATEWAY_KEYS_FILE", raising=False)
    assert own_files(GatewaySettings.model_validate({"store": "redis://localhost:6379/0"})) == []
    for scheme, ending in (("sqlite", "my%20s.db"), ("SQLITE", "my s.db"), ("sqlite", "my s.db?x=1")):
        found = own_files(GatewaySettings.model_validate({"store": f"{scheme}:///{tmp_path}/{ending}"}))
        assert {tmp_path / "my s.db", tmp_path / "my s.db.keys", tmp_path / "my s.db-wal"} <= {*found}


@requirement("box.keys")
def test_the_client_key_of_a_store_and_the_audit_file_are_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MCP_GATEWAY_KEYS_FILE", raising=False)
    store = f"rediss://redis:6380/0?ssl_ca_certs={tmp_path}/ca.pem&ssl_keyfile={tmp_path}/my%20key.pem"
    options = {"store": store, "audit": {"to": ["store", f"{tmp_path}/audit.jsonl"]}}
    assert {*own_files(GatewaySettings.model_validate(options))} == {tmp_path / "my key.pem", tmp_path / "audit.jsonl"}


@requirement("box.keys")
def test_a_single_file_beside_the_store_has_its_pages(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "sessions.db")
    files = own_files(GatewaySettings.model_validate({"store": f"sqlite:///{tmp_path}/link.db"}))
    for ending in ("", "-wal", "-shm", "-journal"):
        file = tmp_path / f"sessions.db{ending}"
        granted = [grant for grant, _ in opened(reading(file), files)]
        assert granted == [str(file)], "SQLite names them beside the file itself"
    assert list(opened(reading(tmp_path / "sessions"), files)) == []


@requirement("box.keys")
def test_a_file_is_opened_by_each_name_that_it_has(tmp_path: Path) -> None:
    make(tmp_path, "gateway/key", "granted/")
    key, other = tmp_path / "gateway/key", tmp_path / "granted/key"
    other.hardlink_to(key)
    assert [*opened(reading(other), [key, tmp_path / "gateway/none"])] == [(str(other), key)]
    grants = tuple(Grant(path=str(path), mode="r") for path in (tmp_path / "gateway", other))
    assert [*opened(Walls(profile="standard", grants=grants, reach=None), [key])] == [(str(other), key)], "the nearest"


@requirement("box.keys")
def test_a_folder_is_opened_where_it_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "gateway/", "granted/")
    folder, mounted = tmp_path / "gateway", tmp_path / "granted"
    look = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **how: look(folder if path == str(mounted) else path, **how))
    found = [*opened(reading(mounted), [folder / "key"])]
    assert found == [(str(mounted), folder / "key")], "before the file is there, too"


@requirement("box.secrets")
def test_the_files_of_secrets_and_certificates_are_the_gateways() -> None:
    client = {"token_endpoint": "https://as.example/token", "client_id": "gateway", "client_secret_file": "/run/client"}
    options = {
        "secrets": {"a": {"file": "/run/{subject}"}, "b": {"env": "B"}, "c": {"exchange": client}},
        "peer_tls": {"certificate": "/run/cert", "key": "/run/key", "authority": "/run/ca"},
        "auth": {"jwt": [{"issuer": "https://as.example", "audience": "y", "jwks_url": "https://as.example/keys"}]},
    }
    found = {str(file) for file in own_files(GatewaySettings.model_validate(options))}
    assert found >= {"/run/{subject}", "/run/client", "/run/cert", "/run/key"} and "/run/ca" not in found


@requirement("box.secrets")
def test_a_grant_opens_the_file_of_any_principal(tmp_path: Path) -> None:
    make(tmp_path, "app/ada/token", "app/ada/src/x", "app/lib/x", "other/token")
    app, file = tmp_path / "app", tmp_path / "app/{subject}/token"
    opens = [app, app / "ada", app / "ada/token", tmp_path]
    assert [bool([*opened(reading(path), [file])]) for path in opens] == [True] * len(opens)
    closed = [app / "ada/src", app / "lib/x", tmp_path / "other"]
    assert [[*opened(reading(path), [file])] for path in closed] == [[]] * len(closed)


@requirement("box.secrets")
def test_of_a_folder_of_code_no_file_of_a_principal_is_granted_whenever_it_comes(tmp_path: Path) -> None:
    make(tmp_path, "server.py", "lib/x.py", "keys/ada.key", "keys/readme.txt", "users/ada/token", "users/ada/code.py")
    files = [tmp_path / "keys/{subject}.key", tmp_path / "users/{subject}/token"]
    grants, _ = without_withheld([Grant(path=str(tmp_path), mode="rx")], (), files)
    modes = {str(Path(grant.path).relative_to(tmp_path)): grant.mode for grant in grants}
    listed, whole = (".", "keys", "users", "users/ada"), ("server.py", "lib", "keys/readme.txt", "users/ada/code.py")
    assert modes == {**dict.fromkeys(listed, "l"), **dict.fromkeys(whole, "rx")}
    assert [*opened(Walls(profile="standard", grants=tuple(grants), reach=None), files)] == []


@requirement("box.secrets")
def test_a_link_of_a_principal_closes_what_it_leads_to(tmp_path: Path) -> None:
    make(tmp_path, "granted/token", "granted/other", "keys/..data/bob", "keys/..data/eve")
    (tmp_path / "keys/ada").symlink_to(tmp_path / "granted/token")
    for name in ("bob", "eve"):
        (tmp_path / "keys" / name).symlink_to(f"..data/{name}")
    file = tmp_path / "keys/{subject}"
    files = with_link_targets([file])
    assert {*files} == {file, tmp_path / "granted/token", tmp_path / "keys/..data/{subject}"}
    for path, is_open in (("granted", True), ("granted/other", False), ("keys/..data/new", True)):
        make(tmp_path, "keys/..data/new")
        assert bool([*opened(reading(tmp_path / path), files)]) is is_open, path
