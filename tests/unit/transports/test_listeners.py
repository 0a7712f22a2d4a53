"""`transports.listeners`: an event that several parts hear of."""

from transports.listeners import Listeners


def test_listeners_are_notified_in_order() -> None:
    heard: list[tuple[str, int]] = []
    listeners: Listeners[int] = Listeners()
    listeners.notify(0)
    listeners.add(lambda what: heard.append(("first", what)))
    listeners.add(lambda what: heard.append(("second", what)))
    listeners.notify(1)
    assert heard == [("first", 1), ("second", 1)]
