"""Paths as another process means them."""

import sys
from pathlib import Path

import pytest

from tests.requirements import requirement
from transports.upstream.walls.resolved_paths import as_meant, is_within, open_path, without_links


@requirement("box.files")
def test_what_each_process_has_of_its_own_is_that_of_the_process_that_names_it() -> None:
    meant = {
        b"/proc/self": b"/proc/7",
        b"/proc/self/fd/3": b"/proc/7/fd/3",
        b"//proc/./self//cwd/": b"/proc/7/cwd/",
        b"/proc/thread-self/fd/3": b"/proc/7/fd/3",
        b"/dev/fd/4/x": b"/proc/7/fd/4/x",
        b"/dev/stdin": b"/proc/7/fd/0",
        b"/dev//stderr": b"/proc/7/fd/2",
    }
    assert {path: as_meant(7, path) for path in meant} == meant
    others = (b"/proc/selfish", b"/proc/8/fd/3", b"/dev/fdx", b"proc/self", b"/x/proc/self", b"/dev/null", b"", b"/")
    assert [as_meant(7, path) for path in others] == list(others)


def test_a_folder_does_not_have_what_only_begins_like_it() -> None:
    assert is_within("/a/b", ("/x", "/a")) and is_within("/a", ("/a",)) and is_within("/a/b", ("/",))
    assert not is_within("/ab", ("/a",)) and not is_within("/a", ("/a/b",))


@requirement("box.files")
def test_a_path_with_a_link_is_not_opened_and_a_chain_of_very_many_is_an_error_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    for number in range(1, sys.getrecursionlimit() + 10):
        (tmp_path / str(number)).symlink_to(str(number - 1))
    assert without_links(str(tmp_path / "30")) == str(tmp_path / "0")
    with pytest.raises(OSError, match="symbolic links"):
        without_links(str(tmp_path / str(number)))
    with pytest.raises(OSError, match="symbolic links") as failed:
        open_path(str(tmp_path / "1" / "x"))
    assert failed.value.filename == str(tmp_path / "1" / "x")
