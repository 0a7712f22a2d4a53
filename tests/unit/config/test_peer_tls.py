"""TLS between gateways, as it is configured."""

import re
import ssl
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.config.faults import ConfigurationError
from gateway.config.peer_tls import PeerTlsSettings, peer_tls
from tests.requirements import requirement
from tests.support.certificates import Authority

pytestmark = requirement("rep.sealed")


def test_both_sides_ask_for_a_certificate_of_the_authority(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("gateway")
    tls = peer_tls(PeerTlsSettings(certificate=own, authority=tmp_path / "ca.pem"))
    assert tls is not None
    for context in tls:
        assert context.verify_mode is ssl.CERT_REQUIRED and context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert peer_tls(PeerTlsSettings()) is None


@pytest.mark.parametrize("given", [{"certificate": "a.pem"}, {"authority": "a.pem"}, {"key": "a.pem"}])
def test_half_of_it_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="needs both certificate and authority"):
        PeerTlsSettings(**{name: Path(value) for name, value in given.items()})


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("gateway")
    (bad := tmp_path / "bad.pem").write_text("no certificate")
    for file in (bad, tmp_path / "missing.pem"):
        for given in ({"certificate": file, "authority": tmp_path / "ca.pem"}, {"certificate": own, "authority": file}):
            with pytest.raises(
                ConfigurationError, match=rf"gateway\.peer_tls: {re.escape(str(file))}: .+: give .+ as PEM"
            ):
                peer_tls(PeerTlsSettings(**given))
