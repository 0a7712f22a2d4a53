"""What workers report to their parent."""

import os

import pytest

from gateway.serving.workers import IS_READY, SERVES, Reports, report
from tests.requirements import requirement


@requirement("wall.ready")
def test_workers_are_ready_once_each_of_those_that_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, theirs = os.pipe()
    reports = Reports(pipe, 2)

    def tell(number: int, *states: bytes) -> None:
        monkeypatch.setenv("MCP_GATEWAY_WORKER_NUMBER", str(number))
        assert report(*states)

    assert not report(SERVES), "a gateway without workers has no parent"
    monkeypatch.setenv("MCP_GATEWAY_WORKER_READY", str(theirs))
    assert not reports.all_have(SERVES)
    tell(0, SERVES, IS_READY)
    tell(1, SERVES)
    assert reports.all_have(SERVES) and not reports.all_have(IS_READY)
    reports.forget(0)
    tell(0, SERVES, IS_READY)
    assert not reports.all_have(IS_READY), "the other one is not"
    tell(1, IS_READY)
    reports.forget(1)
    assert not reports.all_have(IS_READY), "it has ended, and its report was not read before"
    tell(1, SERVES, IS_READY)
    assert reports.all_have(IS_READY)
    os.close(theirs)
    os.close(pipe)
