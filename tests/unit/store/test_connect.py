"""The registry of store URLs."""

from pathlib import Path

import pytest

from session_store import MemoryBackend, connect
from session_store.connect import BackendOptions, backend_for, check_store_url, register_backend, shown, sqlite_path
from tests.toys.dict_store import DictBackend, dict_backend


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations of a test end with it."""
    monkeypatch.setattr(connect, "_KINDS", dict(connect._KINDS))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://x", "unknown kind of store 'mysql'"),
        ("nothing", "unknown kind of store 'nothing'"),
        ("memory://x", "nothing after"),
        ("sqlite://host/x.db", "give a path"),
        ("redis://", "give a host"),
        ("redis+sentinel://host", "sentinels"),
        ("redis+cluster://host/0", "no database"),
    ],
)
def test_an_unusable_url_says_what_is_wrong(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_store_url(url)


def test_backends_say_what_they_can_do_before_they_are_open(tmp_path: Path) -> None:
    backends = [backend_for(url) for url in ("memory://", f"sqlite:///{tmp_path}/x.db", "redis://localhost")]
    found = [(backend.is_durable, backend.is_shared, backend.needs_keys) for backend in backends]
    assert found == [(False, False, False), (True, False, False), (True, True, True)]
    assert not list(tmp_path.iterdir())


def test_a_program_registers_a_backend_under_a_new_scheme_only() -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        check_store_url("dict://")
    register_backend("dict", dict_backend)
    assert check_store_url("dict://here") == "dict://here"
    assert isinstance(backend_for("dict://here", BackendOptions(clock=lambda: 1.0)), DictBackend)
    for taken in ("dict", "memory"):
        with pytest.raises(ValueError, match="already"):
            register_backend(taken, dict_backend)
    assert isinstance(backend_for("memory://"), MemoryBackend)


def test_a_package_declares_a_backend_as_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = tmp_path / "toy-1.0.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (declared / "entry_points.txt").write_text(f"[{connect.ENTRY_POINTS}]\ndict = tests.toys.dict_store:dict_backend\n")
    monkeypatch.syspath_prepend(tmp_path)
    register_backend("other", dict_backend)
    with pytest.raises(ValueError, match=r"supported are memory://, .*other://, dict://"):
        check_store_url("mysql://x")
    assert isinstance(backend_for("dict://"), DictBackend)


def test_a_url_is_shown_without_its_password() -> None:
    assert shown("redis://me:secret@host:1/0") == "redis://…@host:1/0"
    assert shown("redis://host") == "redis://host"
    assert sqlite_path("sqlite:////tmp/a%20b.db") == Path("/tmp/a b.db")
