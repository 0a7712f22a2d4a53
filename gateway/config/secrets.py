"""Where secrets of servers come from."""

from typing import Self

from pydantic import model_validator

from gateway.config.model import Frozen

__all__ = [
    "SecretSettings",
]


class SecretSettings(Frozen):
    """Where a secret comes from, and whose it is. With `{subject}` in it everybody has their own."""

    file: str = ""
    """The file it is in. `{subject}` stands for the principal's name, so that everybody has their own; `{issuer}` for
    who vouches for that name, percent-encoded."""
    env: str = ""
    """The gateway's variable it is in; `{subject}` and `{issuer}` as in `file`. It has to begin with words of yours."""
    command: tuple[str, ...] = ()
    """The command that prints it, good for a minute; `{subject}` and `{issuer}` as in `file`."""
    pass_env: tuple[str, ...] = ()
    """Variables of the gateway that the command is given, beside those that servers inherit. None: servers without a
    sandbox can read what it was given while it runs."""
    issuer: str = ""
    """Whose principals have it: `api-key`, the `issuer` of proxies, or one of `auth.jwt`; nobody else has. It has to be
    given with `{subject}` where several can say who calls and `{issuer}` is not there: the same name is another
    principal with each of them."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(map(bool, (self.file, self.env, self.command))) != 1:
            raise ValueError("give one of file, env and command")
        if self.pass_env and not self.command:
            raise ValueError("pass_env is for a command")
        if self.env.startswith("{subject}"):
            raise ValueError("env begins with {subject}: principals could name other variables of the gateway")
        return self

    @property
    def is_personal(self) -> bool:
        return self.has("{subject}")

    def has(self, placeholder: str) -> bool:
        """Whether it stands somewhere in the source."""
        return any(placeholder in part for part in (self.file, self.env, *self.command))
