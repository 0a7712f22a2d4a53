"""The key ring comes from a variable or from a file."""

from pathlib import Path

import pytest

from gateway.config.keyring import key_ring
from gateway.config.settings import ConfigurationError
from session_store import Purpose
from tests.requirements import requirement

pytestmark = requirement("wall.secrets", "ops.config")

KEYS = ["k" * 40, "l" * 40]


def test_keys_come_from_a_file_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MCP_GATEWAY_KEYS", ",".join(KEYS))
    as_variable = key_ring("memory://").derive(Purpose.TOKEN)
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("\n".join([*KEYS, ""]), encoding="utf-8")
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(secret))
    with pytest.raises(ConfigurationError, match="MCP_GATEWAY_KEYS and MCP_GATEWAY_KEYS_FILE are both set"):
        key_ring("memory://")
    monkeypatch.delenv("MCP_GATEWAY_KEYS")
    assert key_ring("redis://x").derive(Purpose.TOKEN) == as_variable and not caplog.records
    secret.chmod(0o640)
    assert key_ring("redis://x") and "chmod 600" in caplog.records[0].getMessage()


@pytest.mark.parametrize(("held", "why"), [(None, "No such file"), (b"", "empty"), (b"\xff", "UTF-8"), (b"k", "32")])
def test_a_key_file_that_cannot_be_used_is_named_and_not_shown(
    held: bytes | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    if held is not None:
        path.write_bytes(held)
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(path))
    with pytest.raises(ConfigurationError, match=why) as caught:
        key_ring("memory://")
    assert "MCP_GATEWAY_KEYS_FILE" in str(caught.value)
