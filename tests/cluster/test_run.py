"""`make cluster` leaves nothing behind."""

import signal
import subprocess
import sys

import pytest

from tests.support.gateway_process import ROOT
from tests.support.waiting import descendants, gone


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_cluster_that_is_stopped_leaves_no_process(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.run"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background hands down that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    with process.stderr as lines:
        assert any(line.startswith("ready http") for line in lines)
        started = descendants(process.pid)
        assert len(started) >= 5
        process.send_signal(number)
        assert process.wait(30) == 0
    assert gone(started, 10)
