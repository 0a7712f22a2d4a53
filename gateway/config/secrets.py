"""Where secrets of servers come from, and how a secret is read from its file."""

from pathlib import Path
from typing import Final, Self

from pydantic import model_validator

from gateway.config.model import Frozen

__all__ = [
    "SecretSettings",
    "UnusableSecret",
    "others_can_read",
    "secret_in",
]


class SecretSettings(Frozen):
    """Where a secret comes from, and which principals get it. With `{subject}` in the source, each principal has a
    value of its own."""

    file: str = ""
    """The file that contains the secret. `{subject}` is replaced by the principal's name, `{issuer}` by the
    percent-encoded issuer of that name."""
    env: str = ""
    """The environment variable of the gateway that contains the secret. `{subject}` and `{issuer}` as in `file`. The
    name must not begin with `{subject}`."""
    command: tuple[str, ...] = ()
    """The command that prints the secret; its output is cached for a minute. `{subject}` and `{issuer}` as in
    `file`."""
    pass_env: tuple[str, ...] = ()
    """Environment variables of the gateway that the command gets, in addition to those that servers inherit. Empty by
    default, because servers without a sandbox can read the command's environment while it runs."""
    issuer: str = ""
    """Only principals of this issuer get the secret: `api-key`, the `issuer` of `auth.proxies`, or one of `auth.jwt`.
    Required if the source contains `{subject}` but not `{issuer}` and there are several issuers, because the same name
    is a different principal at each issuer."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(map(bool, (self.file, self.env, self.command))) != 1:
            raise ValueError("give exactly one of file, env and command")
        if self.pass_env and not self.command:
            raise ValueError("pass_env needs a command")
        if self.env.startswith("{subject}"):
            raise ValueError(
                "env must not begin with {subject}, because principals could then read other variables of the gateway"
            )
        return self

    @property
    def is_personal(self) -> bool:
        return self.has("{subject}")

    def has(self, placeholder: str) -> bool:
        """Return whether it stands somewhere in the source."""
        return any(placeholder in part for part in (self.file, self.env, *self.command))


_MOST_BYTES: Final = 64 << 10


class UnusableSecret(ValueError):
    """The file holds no secret. The message says which and why, and nothing of what it holds."""


def secret_in(file: Path, named_by: str) -> str:
    """Return what stands in the file, without the line's end.

    Raises:
        UnusableSecret: it cannot be read, is empty, or is no text.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UnusableSecret(f"{named_by}: {file}: {error.strerror or error}") from None
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise UnusableSecret(f"{named_by}: {file} is not UTF-8 text") from None
    if not text or len(data) > _MOST_BYTES:
        raise UnusableSecret(f"{named_by}: {file} is {'too large' if text else 'empty'}")
    return text


def others_can_read(file: Path) -> bool:
    """Return True if the file's group or others may read it. False if the file is inaccessible: `secret_in` reports
    that."""
    try:
        return bool(file.stat().st_mode & 0o044)
    except OSError:
        return False
