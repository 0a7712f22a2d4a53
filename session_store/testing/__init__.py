"""Test that a backend fulfils its contract, by pytest classes to inherit from. Ships with the package.

A subclass has a fixture `backend`, which is open and takes its time from the fixture `clock`; or a fixture `log`.
"""

from session_store.testing.backend import BackendContract
from session_store.testing.events import EventLogContract
from session_store.testing.samples import ALICE, BOB, FakeClock, a_session, a_task
from session_store.testing.sessions import SessionStoreContract

__all__ = [
    "ALICE",
    "BOB",
    "BackendContract",
    "EventLogContract",
    "FakeClock",
    "SessionStoreContract",
    "a_session",
    "a_task",
]
