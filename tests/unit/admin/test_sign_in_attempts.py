"""Wrong operator keys are answered later and later."""

from gateway.admin.sign_in_attempts import FREE, LONGEST_S, SignInAttempts, TooManyAttempts
from session_store.testing import FakeClock
from tests.requirements import requirement


@requirement("wall.memory")
def test_attempts_wait_longer_and_longer_and_are_forgotten() -> None:
    clock = FakeClock()
    attempts = SignInAttempts(clock)
    waits = []
    for _ in range(FREE + 8):
        attempts.wrong("192.0.2.1")
        try:
            attempts.check("192.0.2.1")
        except TooManyAttempts as error:
            waits.append(error.wait_s)
    assert waits == sorted(waits) and waits[0] == 1.0 and waits[-1] == LONGEST_S and len(waits) == 9
    clock.pass_time(LONGEST_S)
    attempts.check("192.0.2.1")
    for number in range(10_000):
        attempts.wrong(f"10.0.{number // 250}.{number % 250}")
    assert len(attempts._wrong) <= 4_096
