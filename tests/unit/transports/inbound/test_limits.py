"""What a client may cost before it has authenticated."""

import resource

import pytest

from transports.inbound.limits import room_for_connections


@pytest.mark.parametrize(
    ("files", "connections"), [(0, 14), (128, 14), (1_024, 448), (1 << 20, 65_536), (resource.RLIM_INFINITY, 65_536)]
)
def test_half_of_the_files_are_for_connections(files: int, connections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert room_for_connections() == connections
