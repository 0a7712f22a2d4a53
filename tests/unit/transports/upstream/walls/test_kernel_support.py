"""What a kernel cannot do is said, for the walls that would need it."""

import errno
from dataclasses import replace

import pytest

from tests.requirements import requirement
from transports.upstream.walls import namespaces
from transports.upstream.walls.build_walls import WallsFailed, arrange
from transports.upstream.walls.kernel_support import Kernel, probe
from transports.upstream.walls.wall_specification import Limits, Reach, Walls

NEW = Kernel(landlock=7, filters="", gate="", namespaces="", mounts="")
PLAIN = Walls(profile="standard", grants=())
FULL = replace(PLAIN, reach=Reach(), limits=Limits(processes=9), namespaces=True)


def words(kernel: Kernel, walls: Walls) -> list[str]:
    return [" ".join(sentence.split()[:4]) for sentence in kernel.missing(walls)]


@requirement("box.system")
def test_each_missing_part_has_its_sentence() -> None:
    assert NEW.missing(FULL) == ()
    assert replace(NEW, landlock=3).missing(PLAIN) == (), "the gate keeps signals within"
    assert words(replace(NEW, landlock=0), PLAIN) == ["Files are not closed"]
    assert replace(NEW, landlock=2).missing(PLAIN) == (), "the gate truncates"
    no_gate = replace(NEW, gate="the kernel has no seccomp user notification")
    assert words(no_gate, PLAIN) == ["The server may change"]
    assert words(replace(no_gate, landlock=2), PLAIN)[0] == "Files that the server"
    assert words(no_gate, FULL) == ["The server may connect", "The server may listen"]
    reaching = replace(FULL, reach=Reach(public=True))
    assert [" but by TCP" in no_gate.missing(walls)[0] for walls in (FULL, reaching)] == [True, False]
    assert "on every port" in replace(no_gate, landlock=3).missing(FULL)[1]
    no_namespaces = replace(no_gate, namespaces="namespaces are refused", landlock=5)
    assert words(no_namespaces, FULL) == [
        "The server sees the", "The server may connect", "The server may listen", "The server may change",
        "The server may send",
    ]  # fmt: skip
    for sentence in no_namespaces.missing(FULL):
        assert sentence.endswith(".")
    assert words(Kernel(landlock=0, filters="x", gate="x", namespaces="x", mounts="x"), PLAIN)[1] == "No system call is"


@requirement("box.system")
def test_what_is_required_and_cannot_hold_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "transports.upstream.walls.build_walls.probe", lambda namespaces=False: replace(NEW, landlock=0)
    )
    arrange(PLAIN, apart=False, has_mounts=False)
    with pytest.raises(
        WallsFailed, match=r"'standard' is required, but cannot be enforced here\. Files are not closed"
    ):
        arrange(replace(PLAIN, required=True), apart=False, has_mounts=False)


@requirement("box.required")
def test_a_limit_that_may_pass_is_asked_about_again(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [errno.ENOSPC, errno.EPERM, errno.EAGAIN]

    def fork_apart() -> int:
        raise OSError(errors.pop(0), "refused")

    monkeypatch.setattr(namespaces, "_known", {})
    monkeypatch.setattr(namespaces, "fork_apart", fork_apart)
    for _ in range(4):
        assert namespaces.why_not() == "namespaces are refused (refused)"
    assert errors == [errno.EAGAIN], "the second error is for good"


def test_this_kernel_is_asked_once() -> None:
    assert probe() is probe()
