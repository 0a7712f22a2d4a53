"""What is called when the wire is done with an exchange."""

from gateway.calls.wire_use import WireUse


def test_callbacks_run_once_and_the_last_one_first() -> None:
    use, called = WireUse(), list[str]()
    use.when_done(lambda: called.append("first"))
    use.when_done(lambda: called.append("second"))
    assert called == []
    use.done()
    use.done()
    assert called == ["second", "first"]


def test_a_callback_may_be_given_after_the_end_of_an_earlier_use() -> None:
    use, called = WireUse(), list[str]()
    use.done()
    use.when_done(lambda: called.append("again"))
    use.done()
    assert called == ["again"]
