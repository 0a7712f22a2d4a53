"""When a failed start is tried again."""

from gateway.calls.backoff import MOST_S, Backoff
from tests.requirements import requirement


@requirement("proc.backoff")
def test_the_time_to_the_next_attempt_doubles_and_is_bounded() -> None:
    failures = Backoff()
    assert failures.left_s(0.0) == failures.delay_s == 0.0
    delays = []
    for _ in range(10_000):
        failures.fail("it exited", 100.0)
        delays.append(failures.delay_s)
    assert delays[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, MOST_S] and set(delays[7:]) == {MOST_S}
    assert failures.left_s(130.0) == MOST_S - 30.0 and failures.left_s(1_000.0) == 0.0
