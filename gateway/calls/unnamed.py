"""Ids of calls that no request of a client has made."""

import secrets

__all__ = ["unnamed"]


def unnamed() -> str:
    """An id that no client knows, so that no `notifications/cancelled` means its call. A number would not do: clients
    count their requests from 0 or 1."""
    return f"gateway {secrets.token_hex(8)}"
