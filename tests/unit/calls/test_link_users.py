"""Which sessions learn that a server was restarted."""

from typing import cast

from gateway.calls.link_users import LinkUsers
from gateway.calls.live_session import LiveSession
from session_store import EventLog
from session_store.testing import FakeClock, a_session


def live_session() -> LiveSession:
    return LiveSession(a_session(FakeClock()), cast("EventLog", None))


def test_every_user_learns_once_that_the_server_was_restarted() -> None:
    users, first, second = LinkUsers(), live_session(), live_session()
    users.add(first)
    users.add(None)
    users.restarted("crash")
    users.add(second)
    assert (users.take_notice(first), users.take_notice(None)) == ("crash", "crash")
    assert (users.take_notice(first), users.take_notice(second)) == (None, None)
    assert first in users and set(users) == {first, second, None}


def test_a_session_that_is_over_learns_nothing() -> None:
    users, live = LinkUsers(), live_session()
    users.add(live)
    users.restarted("crash")
    users.discard(live)
    assert live not in users and users.take_notice(live) is None


def test_the_reason_that_waits_already_stands() -> None:
    users, live = LinkUsers(), live_session()
    users.notify(live, "gateway_restart")
    users.notify(live, "context")
    assert users.take_notice(live) == "gateway_restart"
