"""What an answer says of the servers that it comes without."""

from gateway.protocol.missing import Missing, missing_meta
from tests.requirements import requirement


@requirement("proc.late")
def test_an_entry_says_since_when_and_when_the_server_is_tried_again() -> None:
    assert missing_meta([Missing("a", "it exited", 0.0, 1.5), Missing("b", "it has not answered yet", 60.0)]) == [
        {"server": "a", "reason": "it exited", "since": "1970-01-01T00:00:00+00:00", "retryAfterMs": 1_500},
        {"server": "b", "reason": "it has not answered yet", "since": "1970-01-01T00:01:00+00:00"},
    ]
    (entry,) = missing_meta([Missing("a", "it exited", 0.0, 0.0)])
    assert entry["retryAfterMs"] == 1, "it is tried again now, and cannot be asked at once"
