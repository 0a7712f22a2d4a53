"""`make cluster` leaves nothing behind."""

import signal
import subprocess
import sys

from tests.support.gateway_process import ROOT
from tests.support.waiting import descendants, gone


def test_a_cluster_that_is_stopped_leaves_no_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.run"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr as lines:
        assert any(line.startswith("ready http") for line in lines)
        started = descendants(process.pid)
        assert len(started) >= 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert gone(started, 10)
