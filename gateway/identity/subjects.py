"""Checks names of principals, which appear in keys, logs, environments and lists for people. Pure."""

from typing import Final

__all__ = ["MAX_SUBJECT_CHARS", "named_in_header", "unusable"]

MAX_SUBJECT_CHARS: Final = 256
"""RFC 9068 leaves it open; OpenID Connect Core §2 allows 255."""


def unusable(subject: object) -> str:
    """Why a subject cannot be used, in words fit for whoever sent it; empty when it can."""
    if not isinstance(subject, str) or not subject.strip():
        return "it is empty"
    if len(subject) > MAX_SUBJECT_CHARS:
        return f"it is longer than {MAX_SUBJECT_CHARS} characters"
    if not subject.isprintable() or subject != subject.strip():
        return "it holds line breaks, control characters, or other characters that nobody sees"
    return ""


def named_in_header(value: str) -> str:
    """A name as a header has it, which is bytes: UTF-8 and nothing else, so that one name has one spelling.

    Raises:
        ValueError: it is not UTF-8.
    """
    return value if value.isascii() else value.encode("latin-1").decode("utf-8")
