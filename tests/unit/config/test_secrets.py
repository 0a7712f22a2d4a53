"""The keys and certificates of a gateway come from files, and what cannot be used is named."""

import re
import ssl
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.secrets import PeerTlsSettings, key_ring, peer_tls
from session_store import Purpose
from tests.requirements import requirement
from tests.support.certificates import Authority

KEYS = ["k" * 40, "l" * 40]


@requirement("wall.secrets", "ops.config")
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


@requirement("wall.secrets", "ops.config")
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


@requirement("rep.sealed")
def test_both_sides_ask_for_a_certificate_of_the_authority(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("gateway")
    tls = peer_tls(PeerTlsSettings(certificate=own, authority=tmp_path / "ca.pem"))
    assert tls is not None
    for context in tls:
        assert context.verify_mode is ssl.CERT_REQUIRED and context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert peer_tls(PeerTlsSettings()) is None


@requirement("rep.sealed")
@pytest.mark.parametrize("given", [{"certificate": "a.pem"}, {"authority": "a.pem"}, {"key": "a.pem"}])
def test_half_of_it_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="needs both certificate and authority"):
        PeerTlsSettings(**{name: Path(value) for name, value in given.items()})


@requirement("rep.sealed")
def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("gateway")
    (bad := tmp_path / "bad.pem").write_text("no certificate")
    for file in (bad, tmp_path / "missing.pem"):
        for given in ({"certificate": file, "authority": tmp_path / "ca.pem"}, {"certificate": own, "authority": file}):
            with pytest.raises(
                ConfigurationError, match=rf"gateway\.peer_tls: {re.escape(str(file))}: .+: give .+ as PEM"
            ):
                peer_tls(PeerTlsSettings(**given))
