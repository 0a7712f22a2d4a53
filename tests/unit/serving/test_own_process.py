"""Whether other processes can read the gateway's memory."""

import pytest

from gateway.serving import own_process
from tests.requirements import requirement


@requirement("wall.secrets")
def test_it_says_when_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_process, "_prctl", lambda option: 0)
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    assert own_process.why_in_sight() == ""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert own_process.why_in_sight() == "Running as root: servers can read the gateway's memory. Use a dedicated user."
    monkeypatch.setattr(own_process, "_prctl", lambda option: 1)
    assert "PR_SET_DUMPABLE" in own_process.why_in_sight()
    monkeypatch.setattr("sys.platform", "darwin")
    assert "Only Linux" in own_process.why_in_sight()
