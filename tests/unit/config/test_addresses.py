"""Which addresses only this machine can reach."""

import pytest

from gateway.config.addresses import is_loopback, is_of_this_machine
from gateway.config.settings import Settings
from tests.requirements import requirement


@requirement("spec.origin")
def test_only_addresses_of_this_machine_are_loopback() -> None:
    for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert is_loopback(host), host
    for host in ("127.evil.example", "127.0.0.1.evil.example", "127.", "localhost.evil.example", "128.0.0.1", "::", ""):
        assert not is_loopback(host), host
    assert is_of_this_machine("http://[::1]:8080/mcp") and not is_of_this_machine("http://127.evil.example:8080/mcp")


@requirement("spec.origin")
def test_a_name_that_begins_like_a_loopback_address_does_not_serve_everybody() -> None:
    with pytest.raises(ValueError, match=r"host is 127\.evil\.example, and callers need no credential"):
        Settings.model_validate({"gateway": {"host": "127.evil.example"}})
