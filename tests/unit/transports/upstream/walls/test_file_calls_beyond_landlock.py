"""Which paths are those of a process's own descriptors."""

from tests.requirements import requirement
from transports.upstream.walls.file_calls_beyond_landlock import is_descriptor


@requirement("box.files", "box.siblings")
def test_a_path_behind_the_own_descriptors_is_not_one_of_them() -> None:
    own = b"/proc/7/fd/"
    assert is_descriptor(b"/proc/7/fd/3", own)
    for other in (b"7/fd/../../8/fd/3", b"7/fd/3/../../../8/fd/3", b"7/fd/", b"7/fd/3/", b"8/fd/3"):
        assert not is_descriptor(b"/proc/" + other, own), other
