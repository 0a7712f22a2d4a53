"""What is called when the wire is done with an exchange."""

from gateway.calls.wire_use import WireUse


def test_callbacks_run_once_and_the_last_one_first() -> None:
    use, called = WireUse(), list[str]()
    for name in ("first", "second"):
        use.when_done(lambda name=name: called.append(name))  # type: ignore[misc]
    assert called == []
    for _ in range(2):
        use.done()
    assert called == ["second", "first"]
    use.when_done(lambda: called.append("again"))
    use.done()
    assert called[2:] == ["again"], "after the end of an earlier use"
