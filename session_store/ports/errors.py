"""Define the errors of a store. Every backend translates its driver's errors into these."""


class StoreError(Exception):
    """The store itself fails. Never caused by a client's request."""


class StoreUnavailable(StoreError):
    """The store did not answer in time. The session may still exist: do not tell its client that it has ended."""


class StoreMissing(StoreError):
    """The store does not exist, and the caller does not want it to be created (`BackendOptions.create`)."""


class StoreFull(StoreError):
    """The store has its maximum of sessions, and all of them are in use; or it has its maximum of tasks."""


class UnknownEvent(LookupError):
    """The event id does not belong to this session, or the event is no longer in the log."""


class UnwrittenEvent(UnknownEvent):
    """The event id was reserved, but no event was written under it: the process that sent the id to a client died
    before."""


class SessionGone(LookupError):
    """The session has expired or ended: its data can be neither read nor written."""
