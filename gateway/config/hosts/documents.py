"""Reads a configuration file: TOML, JSON, or JSON with comments and trailing commas.

A file is read whole, so its size and its depth are bounded. Error messages hold no part of the file: a file can contain
secrets.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from gateway.config.faults import ConfigurationError

__all__ = [
    "parsed_document",
    "read_document",
]

_MOST_BYTES: Final = 4 << 20
_MOST_LEVELS: Final = 64


def read_document(path: Path) -> dict[str, Any]:
    """Return the object or table in a file.

    Raises:
        ConfigurationError: the file cannot be read, or is not what its name says.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(f"{path}: larger than {_MOST_BYTES >> 20} MiB")
    hint = "; YAML files cannot be read" if path.suffix in (".yaml", ".yml") else ""
    return parsed_document(data, str(path), is_toml=path.suffix == ".toml", hint=hint)


def parsed_document(data: bytes | str, where: str, *, is_toml: bool, hint: str = "") -> dict[str, Any]:
    """Return the object or table in the content of a file. `where` is its name in messages. Raises as
    `read_document`."""
    kind = "TOML" if is_toml else "JSON"
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        document = tomllib.loads(text) if is_toml else _json(text)
    except RecursionError:
        raise ConfigurationError(f"{where}: nested too deeply") from None
    except ValueError as error:
        raise ConfigurationError(f"{where}: not valid {kind}: {error}{hint}") from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{where}: must contain an object with mcpServers and, optionally, gateway")
    return document


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _with_comments(text)


def _with_comments(text: str) -> Any:
    import pyjson5  # only for files that need it

    try:
        return pyjson5.decode(text, _MOST_LEVELS)
    except UnicodeEncodeError:
        raise ValueError("it contains half of a surrogate pair") from None
    except pyjson5.Json5DecoderException as error:
        # The other arguments of the error are what was read so far.
        raise ValueError(_with_line(str(error.args[0]), text)) from None


def _with_line(message: str, text: str) -> str:
    """Return the message of the library, with line and column in place of its count of characters."""
    words = re.sub(r"b'(\w+)'", r"\1", message)
    words = re.sub(r"U\+00([2-7][0-9a-f])", lambda code: repr(chr(int(code[1], 16))), words)
    found = re.search(r"near (\d+)", words)
    if not found:
        return words
    before = text[: max(int(found[1]) - 1, 0)]
    place = f"line {before.count(chr(10)) + 1} column {len(before) - before.rfind(chr(10))}"
    return words.replace(found[0], f"at {place}")
