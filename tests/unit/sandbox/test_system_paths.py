"""Paths of the system, and which symlinks are followed."""

import os
from pathlib import Path

import pytest

from gateway.sandbox.system_paths import OwnLink, followed, is_broad, system_grants
from tests.requirements import requirement


@requirement("box.links")
def test_links_of_the_system_and_of_others_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert followed("/var/run") == os.path.realpath("/var/run"), "it lies in a folder that no grant is made for"
    place = Path(os.path.realpath(tmp_path))
    (place / "there").mkdir()
    (place / "link").symlink_to("there/../there")
    with pytest.raises(OwnLink, match=f"^{place}/link$"):
        followed(f"{place}/link/file")
    other = place.stat().st_uid + 1
    monkeypatch.setattr("os.geteuid", lambda: other)
    assert followed(f"{place}/link/no/such/file") == f"{place}/there/no/such/file"
    assert followed(f"{place}//./there/../link") == f"{place}/there"
    (place / "loop").symlink_to("loop")
    with pytest.raises(OwnLink):
        followed(f"{place}/loop")


@requirement("box.arguments")
def test_folders_that_hold_what_belongs_to_others_are_broad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", "/srv/scratch/here")
    for path in ("/", "/etc", "/srv/scratch", "/srv/scratch/here", os.path.realpath(tmp_path), f"{tmp_path}/.ssh"):
        assert is_broad(os.path.realpath(path)), path
    for path in ("/srv/notes", "/srv/scratch/other", f"{tmp_path}/notes"):
        assert not is_broad(os.path.realpath(path)), path


def test_the_system_is_read_and_its_devices_written() -> None:
    modes = {grant.path: grant.mode for grant in system_grants()}
    assert modes["/usr"] == "rx" and modes["/dev/null"] == "rw" and modes["/proc"] == "r"
    assert all(grant.optional for grant in system_grants())
    assert not any(path.startswith(("/etc/ssl/private", "/etc/shadow", "/dev/shm")) or path == "/etc" for path in modes)


@requirement("box.runtime")
def test_java_of_debian_has_its_settings_and_not_the_passwords_beside_them(tmp_path: Path) -> None:
    java = Path(os.path.realpath(tmp_path)) / "java-17-openjdk"
    for name in ("security/java.security", "net.properties", "jvm-amd64.cfg", "management/jmxremote.password"):
        (java / name).parent.mkdir(parents=True, exist_ok=True)
        (java / name).touch()
    granted = [grant for grant in system_grants(str(tmp_path)) if grant.path.startswith(str(java))]
    names = ("security", "net.properties", "jvm-amd64.cfg")
    assert {(grant.path, grant.mode) for grant in granted} == {(str(java / name), "r") for name in names}
