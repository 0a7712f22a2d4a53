"""Define the errors of a store. Every backend translates its driver's errors into these."""


class StoreError(Exception):
    """The store itself fails. Never caused by a client's request.

    `may_have_taken_effect` is False if the operation surely changed nothing, because it was not sent or was undone.
    Only then is it safe to repeat a write. For an operation that only reads, it means nothing.
    """

    may_have_taken_effect = True  # also of a store of others that makes its errors without `__init__`

    def __init__(self, *arguments: object, may_have_taken_effect: bool = True) -> None:
        super().__init__(*arguments)
        self.may_have_taken_effect = may_have_taken_effect

    def changed_nothing(self) -> None:
        """Set `may_have_taken_effect` to False."""
        self.may_have_taken_effect = False


class StoreUnavailable(StoreError):
    """The store did not answer in time, or could not execute the operation. The session may still exist: do not tell
    its client that it has ended."""


class StoreMissing(StoreError):
    """The store does not exist, and the caller does not want it to be created (`BackendOptions.create`)."""


class StoreFull(StoreError):
    """The store has its maximum of sessions, and all of them are in use; or it has its maximum of tasks."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments, may_have_taken_effect=False)


class UnknownEvent(LookupError):
    """The event id does not belong to this session, or the event is no longer in the log."""


class UnwrittenEvent(UnknownEvent):
    """The event id was reserved, but no event was written under it. The process that sent the id to a client died
    before it wrote the event."""


class SessionGone(LookupError):
    """The session has expired or ended: its data can be neither read nor written."""
