"""Processes that are forked from one make ids of their own."""

import os
import subprocess
import sys

from tests.requirements import requirement
from tests.support.commands import ROOT

FORKED = """
import os
from gateway.context.session_facts import new_correlation_id
from session_store.redis.events import _nonce
for _ in range(2):
    if (child := os.fork()) == 0:
        print(new_correlation_id(), _nonce(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print(new_correlation_id(), _nonce())
"""


@requirement("ops.find-request")
def test_processes_that_are_forked_from_one_make_ids_of_their_own() -> None:
    """As those of an app that gunicorn has loaded before it forks."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=240, env=env)
    words = ran.stdout.split()
    assert len(words) == 6 and len({*words}) == 6, ran
