"""The keys that sign and seal: the operator's, or those that the store's backend provides."""

import logging
import os
from pathlib import Path

from gateway.config.secrets import UnusableSecret, others_can_read, secret_in
from gateway.config.settings import ConfigurationError
from session_store import InvalidKeyRing, KeyRing, StoreError, backend_for

__all__ = ["KEYS_FILE", "given_keys", "key_file", "key_ring"]

logger = logging.getLogger(__name__)

KEYS_FILE = "MCP_GATEWAY_KEYS_FILE"


def key_ring(store: str) -> KeyRing:
    """Return the operator's keys from `MCP_GATEWAY_KEYS`, or from the file that `MCP_GATEWAY_KEYS_FILE` names. Without
    them, the keys that the backend of the URL `store` provides.

    Raises:
        ConfigurationError: the keys cannot be used, or are missing where several gateways have to share them.
    """
    ring = given_keys()
    if ring is not None:
        return ring
    try:
        backend = backend_for(store)
        if not backend.needs_keys:
            return backend.own_keys()
    except (StoreError, ValueError) as error:
        raise ConfigurationError(str(error)) from None
    raise ConfigurationError(
        f"MCP_GATEWAY_KEYS is not set, nor is {KEYS_FILE}: gateways that share a store must share their keys, and "
        "sessions outlive a restart only with the same keys (`mcp-session-gateway keygen` makes one)"
    )


def given_keys() -> KeyRing | None:
    """Return the keys that the environment gives; None if it gives none.

    Raises:
        ConfigurationError: the keys cannot be used.
    """
    text, file = os.environ.get("MCP_GATEWAY_KEYS", ""), key_file()
    if text and file is not None:
        raise ConfigurationError(f"MCP_GATEWAY_KEYS and {KEYS_FILE} are both set: give the keys in one of them")
    if file is not None:
        if others_can_read(file):
            logger.warning("%s: %s can be read by users other than its owner: chmod 600", KEYS_FILE, file)
        try:
            text = secret_in(file, KEYS_FILE).replace("\n", ",")
        except UnusableSecret as error:
            raise ConfigurationError(str(error)) from None
    try:
        return KeyRing.parse(text) if text else None
    except InvalidKeyRing as error:
        raise ConfigurationError(f"{'MCP_GATEWAY_KEYS' if file is None else KEYS_FILE}: {error}") from None


def key_file() -> Path | None:
    """Return the file that the operator keeps the keys in, if they do."""
    given = os.environ.get(KEYS_FILE, "")
    return Path(given) if given else None
