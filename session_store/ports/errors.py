"""Define the errors of a store. Every backend translates its driver's errors into these."""


class StoreError(Exception):
    """The store itself fails. Never the fault of a client's request."""


class StoreUnavailable(StoreError):
    """The store did not answer in time. The session may still exist: never answer as if it had ended."""


class StoreMissing(StoreError):
    """The store does not exist yet, and the caller wants none to be created (`BackendOptions.create`)."""


class StoreFull(StoreError):
    """The store holds its maximum of sessions, and none of them is idle; or its maximum of tasks."""


class UnknownEvent(LookupError):
    """The event id is not of this session, or the event is no longer in the log."""


class UnwrittenEvent(UnknownEvent):
    """The id was reserved, and nothing was written under it: the process that gave it to a client died before."""


class SessionGone(LookupError):
    """The session has expired or ended: its data can be neither read nor written."""
