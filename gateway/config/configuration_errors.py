"""Define the errors and notes about a configuration, and suggest known names for unknown ones."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal


class ConfigurationError(ValueError):
    """The configuration cannot be used. The message names the setting, and says what to do."""


class ServerFault(ValueError):
    """The settings of the server `server` contradict those of the gateway. Only this server is left out."""

    def __init__(self, server: str, message: str) -> None:
        super().__init__(message)
        self.server = server


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A part of the configuration that has no effect, or is dangerous. `level`: `warning` if the gateway does less than
    the file asks for, or more than is safe; otherwise `ignored`. `do`: the advice; empty: correct or remove that
    part."""

    level: Literal["ignored", "warning"]
    text: str
    do: str = ""

    @property
    def line(self) -> str:
        """Return the note and the advice in one line."""
        return f"{self.text}: {self.do}" if self.do else self.text


def missing_extra(setting: str, extra: str) -> ConfigurationError:
    """Return the error for a setting whose packages are not installed, with the command that installs them."""
    return ConfigurationError(f"{setting} needs more packages: pip install 'mcp-session-gateway[{extra}]'")


def located(message: str, file: Path | None) -> str:
    """Return the message with the file's name before each line that begins with a server's setting."""
    lines = message.splitlines()
    return "\n".join(f"{file}: {line}" if file and line.startswith("mcpServers.") else line for line in lines)


_CUTOFF: Final = 0.8
"""The least similarity of names that are suggested. `arg` and `args`, `gatway` and `gateway` are more similar; `tags`
and `args` are not. Names with the same letters (`prot`) are always similar."""
_WORDS: Final = {"arguments": "args", "cmd": "command", "uri": "url"}
"""Synonyms of settings' names that are not similar to them."""


def similar_name(name: str, known: Iterable[str], *, cutoff: float = _CUTOFF) -> str:
    """Return the name in `known` that is most similar to the unknown `name`; an empty string if none is similar.
    `cutoff`: the least similarity, from 0 to 1."""
    folded: dict[str, str] = {}
    for each in known:
        folded.setdefault(_folded(each), each)  # the first of names that differ in case and separators only
    if _WORDS.get(name.lower(), "") in folded:
        return folded[_WORDS[name.lower()]]
    swapped = [each for each in folded if sorted(each) == sorted(_folded(name))]
    found = swapped or difflib.get_close_matches(_folded(name), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found and name else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` with the known name that is similar to the unknown `name`, as the end of an error
    message. Return an empty string if no known name is similar."""
    found = similar_name(name, known)
    return f"; did you mean {found}?" if found else ""


def _folded(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()
