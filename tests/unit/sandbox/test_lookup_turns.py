"""Whose name is looked up next."""

from gateway.sandbox import lookup_turns
from gateway.sandbox.lookup_turns import LookupTurns
from tests.requirements import requirement

pytestmark = requirement("box.names")


def begun(turns: LookupTurns) -> list[str]:
    """All names whose turn it is now."""
    found = []
    while (name := turns.next()) is not None:
        found.append(name)
    return found


def test_further_names_of_an_asker_leave_some_threads_to_others() -> None:
    turns = LookupTurns(threads=4, reserved=2)
    assert all(turns.ask(f"a{n}", "a") for n in range(5))
    assert begun(turns) == ["a0", "a1"]
    assert turns.ask("b0", "b") and turns.ask("c0", "c") and turns.ask("d0", "d")
    assert begun(turns) == ["b0", "c0"]
    turns.done("a0")
    assert begun(turns) == ["d0"], "the first name of another comes before further ones"


def test_the_names_of_a_quick_asker_take_turns_though_others_hold_all_that_is_not_reserved() -> None:
    turns = LookupTurns(threads=3, reserved=1)
    assert all(turns.ask(f"a{n}", "a") for n in range(4))
    assert begun(turns) == ["a0", "a1"]
    assert all(turns.ask(f"b{n}", "b") for n in range(3))
    for name in ("b0", "b1", "b2"):
        assert begun(turns) == [name]
        turns.done(name)


def test_an_asker_of_slow_names_has_no_reserved_thread_for_a_minute() -> None:
    now = [0.0]
    turns = LookupTurns(threads=2, reserved=1, clock=lambda: now[0])
    assert turns.ask("slow", "a") and begun(turns) == ["slow"]
    now[0] = 3.0
    turns.done("slow")
    assert turns.ask("b0", "b") and begun(turns) == ["b0"]
    assert turns.ask("again", "a") and begun(turns) == []
    turns.done("b0")
    assert begun(turns) == ["again"]
    now[0] = 4.0
    turns.done("again")
    now[0] = 64.0
    assert turns.ask("b1", "b") and turns.ask("later", "a") and begun(turns) == ["b1", "later"]


def test_a_name_that_another_asks_for_too_has_the_turn_of_the_better_one() -> None:
    turns = LookupTurns(threads=2, reserved=1)
    assert turns.ask("a0", "a") and turns.ask("shared", "a") and begun(turns) == ["a0"]
    turns.join("shared", "a")
    assert begun(turns) == []
    turns.join("shared", "b")
    assert begun(turns) == ["shared"]
    turns.done("shared")
    assert turns.ask("b0", "b") and begun(turns) == ["b0"]


def test_names_that_nobody_wants_leave_and_lines_are_bounded() -> None:
    turns = LookupTurns(threads=1, reserved=1)
    assert turns.ask("a", "a") and begun(turns) == ["a"] and not turns.give_up("a")
    assert all(turns.ask(f"a{n}", "a") for n in range(lookup_turns.MAX_WAITING))
    assert not turns.ask("more", "a")
    assert turns.give_up("a3") and not turns.give_up("a3") and turns.ask("more", "a")
    assert all(turns.ask(f"first{n}", n) for n in range(lookup_turns.MAX_FIRST))
    assert not turns.ask("first", "f")
