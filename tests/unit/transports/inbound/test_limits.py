"""What a client may cost before it has authenticated."""

import resource

import pytest

from transports.inbound.limits import Limited, Refusals, room_for_connections


@pytest.mark.parametrize(
    ("files", "connections"), [(0, 14), (128, 14), (1_024, 448), (1 << 20, 65_536), (resource.RLIM_INFINITY, 65_536)]
)
def test_half_of_the_files_are_for_connections(files: int, connections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert room_for_connections() == connections


def test_refusals_are_counted_by_the_label_of_the_metric() -> None:
    refusals = Refusals()
    refusals[Limited.BATCH] += 1
    assert refusals[Limited("batch")] == 1 and f"{Limited.HEAD_SIZE}" == "head_size"
