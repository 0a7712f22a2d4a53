"""The keys that sign and seal: the operator's, or those that the store brings."""

import os

from gateway.settings import ConfigurationError
from session_store import InvalidKeyRing, KeyRing, StoreError
from session_store.connect import sqlite_path
from session_store.sqlite import keys_beside

__all__ = ["key_ring"]


def key_ring(store: str) -> KeyRing:
    """The operator's keys from `MCP_GATEWAY_KEYS`. Without them: for sqlite the file beside it, for memory a new one.

    Raises:
        ConfigurationError: the keys cannot be used, or are missing where several gateways have to share them.
    """
    text = os.environ.get("MCP_GATEWAY_KEYS", "")
    scheme = store.partition(":")[0]
    try:
        if text:
            return KeyRing.parse(text)
        if scheme == "sqlite":
            return keys_beside(sqlite_path(store))
    except InvalidKeyRing as error:
        raise ConfigurationError(f"MCP_GATEWAY_KEYS: {error}") from None
    except StoreError as error:
        raise ConfigurationError(str(error)) from None
    if scheme != "memory":
        raise ConfigurationError(
            "MCP_GATEWAY_KEYS is not set: gateways that share a store must share their keys, and sessions outlive a "
            "restart only with the same keys (`mcp-session-gateway keygen` makes one)"
        )
    return KeyRing.ephemeral()
