"""The contract that every backend keeps, as pytest classes to inherit from. Ships with the package.

A subclass has a fixture `backend`, which is open and takes its time from the fixture `clock`; or a fixture `log`.
"""

from session_store.testing.backend import BackendContract
from session_store.testing.events import EventLogContract
from session_store.testing.samples import ALICE, BOB, FakeClock, a_session
from session_store.testing.sessions import SessionStoreContract
from session_store.testing.tasks import TaskStoreContract, a_task

__all__ = [
    "ALICE",
    "BOB",
    "BackendContract",
    "EventLogContract",
    "FakeClock",
    "SessionStoreContract",
    "TaskStoreContract",
    "a_session",
    "a_task",
]
