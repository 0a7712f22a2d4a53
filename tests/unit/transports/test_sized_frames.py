"""Frames are put together from pieces of any size, and one that is too long ends the reading."""

import pytest

from tests.requirements import requirement
from transports.sized_frames import FrameReader, FrameTooLong

FRAMES = [(b"a", b""), (b"b", b"x"), (b"c", b"y" * 300), (b"d", b"")]
BYTES = b"".join(kind + len(content).to_bytes(4, "big") + content for kind, content in FRAMES)


@requirement("rep.any")
@pytest.mark.parametrize("step", [1, 2, 5, 6, 7, 299, len(BYTES)])
def test_frames_are_the_same_however_they_arrive(step: int) -> None:
    reader = FrameReader(5, 1, 300)
    pieces = (BYTES[at : at + step] for at in range(0, len(BYTES), step))
    assert [(head[:1], content) for piece in pieces for head, content in reader.feed(piece)] == FRAMES


@requirement("wall.memory")
def test_a_frame_that_is_too_long_is_found_at_its_head() -> None:
    reader = FrameReader(5, 1, 299)
    read = reader.feed(BYTES[: 5 + 6 + 5])
    assert [next(read), next(read)] == [(BYTES[:5], b""), (BYTES[5:10], b"x")]
    with pytest.raises(FrameTooLong):
        next(read)
