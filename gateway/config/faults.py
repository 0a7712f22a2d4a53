"""Report on a configuration: errors that stop the start, notes on ignored parts, and suggestions for unknown names."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal


class ConfigurationError(ValueError):
    """The configuration cannot be used. The message names the place and what to do."""


class ServerFault(ValueError):
    """A setting of one server contradicts the settings of the gateway. Only that server is left out."""

    def __init__(self, server: str, message: str) -> None:
        super().__init__(message)
        self.server = server


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A part of the configuration that has no effect, or is dangerous. `warning`: the gateway does less than the file
    asks for, or more than is safe. `do`: the advice; empty: correct or remove that part."""

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
    """Return the message with the file at the front of each line that names a server's setting, and no place yet."""
    lines = message.splitlines()
    return "\n".join(f"{file}: {line}" if file and line.startswith("mcpServers.") else line for line in lines)


_CUTOFF: Final = 0.8
"""`arg` and `args`, `gatway` and `gateway` are more alike than this; `tags` and `args` are not. Names with the same
letters (`prot`) count as well."""
_WORDS: Final = {"arguments": "args", "cmd": "command", "uri": "url"}
"""Other words for the same thing, which are not alike."""


def meant(name: str, known: Iterable[str], *, cutoff: float = _CUTOFF) -> str:
    """Return the known name that resembles an unknown one most; an empty string if none does."""
    folded: dict[str, str] = {}
    for each in known:
        folded.setdefault(_folded(each), each)  # the first of names that differ in case and separators only
    if _WORDS.get(name.lower(), "") in folded:
        return folded[_WORDS[name.lower()]]
    swapped = [each for each in folded if sorted(each) == sorted(_folded(name))]
    found = swapped or difflib.get_close_matches(_folded(name), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found and name else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: a suggestion, or an empty string."""
    found = meant(name, known)
    return f"; did you mean {found}?" if found else ""


def _folded(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()
