"""Which sessions learn that a server was restarted."""

from gateway.calls.link_users import LinkUsers
from tests.requirements import requirement
from tests.unit.calls.parts import a_live


def test_every_user_learns_once_that_the_server_was_restarted() -> None:
    users, first, second, over = LinkUsers(), a_live(), a_live(), a_live()
    for user in (first, None, over):
        users.add(user)
    users.restarted("crash")
    users.add(second)
    users.discard(over)
    assert [users.take_notice(user) for user in (first, None, second, over)] == ["crash", "crash", None, None]
    assert users.take_notice(first) is None
    assert first in users and over not in users and set(users) == {first, second, None}
    users.notify(first, "gateway_restart")
    users.notify(first, "context")
    assert users.has_notice(first) and not users.has_notice(second)
    assert users.take_notice(first) == "gateway_restart", "the reason that waits already stands"


@requirement("fast.same")
def test_a_restart_and_a_notice_are_changes_of_the_sessions_that_learn_of_it() -> None:
    users, first, second = LinkUsers(), a_live(), a_live()
    users.add(None)
    for live in (first, second):
        users.add(live)
    users.restarted("crash")
    assert (first.version, second.version) == (1, 1)
    users.notify(second, "context")
    assert (first.version, second.version) == (1, 2)
