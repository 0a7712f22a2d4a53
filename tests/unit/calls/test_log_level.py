"""A legacy server logs from the lowest level that any modern client has asked for."""

import pytest

from gateway.calls.log_level import is_lower

LOGS, SILENT = b'{"capabilities":{"logging":{}}}', b'{"capabilities":{}}'


@pytest.mark.parametrize(
    ("level", "present", "handshake", "expected"),
    [
        ("info", "", LOGS, True),
        ("debug", "info", LOGS, True),
        ("error", "info", LOGS, False),
        ("info", "info", LOGS, False),
        ("info", "", SILENT, False),
        ("info", "", None, False),
        ("loud", "", LOGS, False),
    ],
)
def test_a_server_is_asked_for_a_lower_level_only(
    level: str, present: str, handshake: bytes | None, expected: bool
) -> None:
    assert is_lower(level, present, handshake) is expected
