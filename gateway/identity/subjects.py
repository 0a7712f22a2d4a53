"""Checks names of principals, which appear in keys, logs, environments and lists for people. Pure."""

from typing import Final

__all__ = ["MAX_SUBJECT_CHARS", "named_in_header", "unusable"]

MAX_SUBJECT_CHARS: Final = 256
"""RFC 9068 sets no limit. OpenID Connect Core §2 allows 255."""


def unusable(subject: object) -> str:
    """Why a subject is invalid, as text that may be sent to the client; empty if it is valid."""
    if not isinstance(subject, str) or not subject.strip():
        return "it is empty"
    if len(subject) > MAX_SUBJECT_CHARS:
        return f"it is longer than {MAX_SUBJECT_CHARS} characters"
    if not subject.isprintable() or subject != subject.strip():
        return "it holds line breaks, control characters, or other characters that nobody sees"
    return ""


def named_in_header(value: str) -> str:
    """The name in a header value. Header values are bytes, and only UTF-8 is accepted: each name has one encoding.

    Raises:
        ValueError: it is not UTF-8.
    """
    return value if value.isascii() else value.encode("latin-1").decode("utf-8")
