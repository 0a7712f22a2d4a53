"""TLS between gateways: the files, and the contexts that are made of them."""

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

from pydantic import model_validator

from gateway.config.faults import ConfigurationError
from gateway.config.model import Frozen
from transports.encrypted_wire import PeerTls

__all__ = ["PeerTlsSettings", "peer_tls"]


class PeerTlsSettings(Frozen):
    """The `peer_tls` object."""

    certificate: Path | None = None
    """PEM file with the certificate of this gateway, and its key unless `key` is set. Not set: no TLS."""
    key: Path | None = None
    """PEM file with the key of `certificate`."""
    authority: Path | None = None
    """PEM file with the authority that has signed the certificates of all gateways on the store. Use one that signs
    for nothing else."""

    @model_validator(mode="after")
    def _complete(self) -> "PeerTlsSettings":
        if (self.certificate is None) != (self.authority is None) or (self.key and self.certificate is None):
            raise ValueError("peer_tls needs both certificate and authority")
        return self


def peer_tls(settings: PeerTlsSettings) -> PeerTls | None:
    """Return the contexts of both sides. Names in certificates are not compared: who answers proves which replica it
    is, with the keys. None: no TLS.

    Raises:
        ConfigurationError: a file cannot be used.
    """
    if settings.certificate is None or settings.authority is None:
        return None
    contexts = []
    for side in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        own = ", ".join(str(file) for file in (settings.certificate, settings.key) if file is not None)
        with _usable(own, "a certificate and its key"):
            context.load_cert_chain(settings.certificate, settings.key)
        with _usable(str(settings.authority), "certificates of an authority"):
            context.load_verify_locations(settings.authority)
        contexts.append(context)
    return PeerTls(*contexts)


@contextlib.contextmanager
def _usable(files: str, what: str) -> Iterator[None]:
    """Name the files in an error, which Python leaves out."""
    try:
        yield
    except OSError as error:  # of which ssl.SSLError is one
        reason = error.strerror or str(error)
        raise ConfigurationError(f"gateway.peer_tls: {files}: {reason}: give {what} as PEM files") from None
