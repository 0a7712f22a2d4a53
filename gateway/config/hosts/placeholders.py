"""Replace placeholders in the servers of a configuration file: `${VAR}`, `${VAR:-x}`, `${env:VAR}`, `$VAR`, ….

Hosts use different syntaxes, and all of these are read. Placeholders in a replaced value are not replaced again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.config.secrets import PLACEHOLDER

_PLACEHOLDER: Final = re.compile(r"\$?\$\{([^{}]*)\}")
_NAME: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_LAST_WORD: Final = re.compile(r"(?<!\S)\$([A-Za-z_][A-Za-z0-9_]*)\Z")
_IN_BRACES: Final = re.compile(r"(?<!\$)\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_OURS: Final = "MCP_GATEWAY_"
_SECRET, _SECRET_FILE = "secret:", "secret_file:"
_INPUT: Final = "input:"


class Unresolved(ValueError):
    """A placeholder has no value. The message names the variable and contains no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The variables and the folder by which the placeholders of one file are replaced.

    `folder` is the folder of the file. `inputs` are the defaults of VS Code's input variables, by id.
    """

    environ: Mapping[str, str] = field(repr=False)
    folder: Path
    inputs: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def workspace(self) -> Path:
        """Return the folder of the project: the file's folder, or its parent if it is a folder such as `.vscode` or
        `.cursor`."""
        return self.folder.parent if self.folder.name.startswith(".") else self.folder

    def predefined(self) -> dict[str, str]:
        """Return the predefined variables of VS Code and Cursor with their values: name → value. Those without a
        meaning outside an editor are left out."""
        return {
            "workspaceFolder": str(self.workspace),
            "workspaceFolderBasename": self.workspace.name,
            "userHome": self.environ.get("HOME", ""),
            "pathSeparator": "/",
            "/": "/",
        }


def input_variable(input_id: str) -> str:
    """Return the name of the environment variable that gives the value of `${input:ID}`: `INPUT_ID`, as in GitHub
    Actions."""
    return "INPUT_" + re.sub(r"[^A-Za-z0-9]", "_", input_id).upper()


def expanded(text: str, place: Place, *, last_word: bool = False, secrets: bool = False) -> str:
    """Return the text with its placeholders replaced. `$${…}` becomes the text `${…}`.

    Args:
        last_word: a `$VAR` that is the whole text or its last word is a placeholder, as in Gemini CLI.
        secrets: `${secret:NAME}` and `${secret_file:NAME}` are allowed and stay, for the secret of a principal.

    Raises:
        Unresolved: a variable is not set, or the placeholder has no meaning here.
    """

    def value(found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            # A secret's is made the text itself where those of secrets are replaced.
            return found[0] if secrets and PLACEHOLDER.fullmatch(found[0]) else found[0][1:]
        if found[1].startswith((_SECRET, _SECRET_FILE)):
            if not secrets:
                raise Unresolved("a secret of a principal can only be in env and headers, and its file only in env")
            return found[0]
        return _resolved(found[1], place)

    if last_word and (word := _LAST_WORD.search(text)):
        return text[: word.start()] + variable(word[1], place)
    return _PLACEHOLDER.sub(value, text)


def in_braces(text: str, place: Place) -> str:
    """Return the text with the placeholders of opencode, `{env:VAR}`, replaced. Raises `Unresolved` if a variable is
    not set."""
    if "{file:" in text:
        raise Unresolved("{file:…} is not read: put the value into a variable, and write {env:VARIABLE}")
    return _IN_BRACES.sub(lambda found: variable(found[1], place), text)


def _resolved(name: str, place: Place) -> str:
    known = place.predefined()
    if name in known:
        return known[name]
    if name.startswith(_INPUT):
        named = input_variable(name.removeprefix(_INPUT))
        value = place.environ.get(named, place.inputs.get(name.removeprefix(_INPUT)))
        if value is None:
            raise Unresolved(f"${{{name}}} asks a person, and the gateway has none: set the variable {named}")
        return _plain(named, value)
    found = _NAME.fullmatch(name)
    if found is None:
        raise Unresolved(f"${{{name}}} has no meaning here; write $${{{name}}} for the text itself")
    return variable(found[1], place, found[2])


def variable(name: str, place: Place, default: str | None = None) -> str:
    """Return the value of an environment variable, or `default` if it is not set or empty. Raises `Unresolved` if it is
    not set and has no default, or is a setting of the gateway."""
    if name.startswith(_OURS):
        raise Unresolved(f"{name} is a setting of the gateway, which servers do not get: use a variable of its own")
    value = place.environ.get(name)
    if default is not None:
        value = value or default
    if value is None:
        raise Unresolved(
            f"the variable {name} is not set: set it in the environment of the gateway, or write a default, as in "
            f"${{{name}:-default}}"
        )
    return _plain(name, value)


def _plain(name: str, value: str) -> str:
    """Return the value of the variable `name` unchanged. Raises `Unresolved` if a part of the value looks like the
    placeholder of a secret, which a later step would replace."""
    for secret in (_SECRET, _SECRET_FILE):
        if f"${{{secret}" in value:
            raise Unresolved(
                f"the value of {name} contains ${{{secret}…}}, which is not replaced in the value of a variable"
            )
    return value
