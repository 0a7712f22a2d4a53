"""Read configuration files: TOML, JSON, or JSON with comments and trailing commas, in the forms of MCP hosts.

The file of the gateway itself has such a form: `mcpServers`, as in files of desktop hosts, and `gateway` beside it. The
size and depth of a file are limited, because it is read as a whole. Error messages quote nothing from it, because it
can contain secrets.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.config.configuration_errors import ConfigurationError, similar_name
from gateway.config.hosts.placeholders import Place
from gateway.config.hosts.server_entries import Findings, adapted_entry

_MOST_BYTES: Final = 4 << 20
_MOST_LEVELS: Final = 64


def read_document(path: Path) -> dict[str, Any]:
    """Return the object (JSON) or table (TOML) in a file.

    Raises:
        ConfigurationError: the file cannot be read, or is not in the format that its name says.
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
    """Return the object (JSON) or table (TOML) in the content of a file. `where` is the file's name in messages. Raises
    as `read_document`."""
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


class _GivenTwice(ValueError):
    """An object in JSON text has the same key twice."""


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except _GivenTwice:
        raise
    except ValueError:
        return _with_comments(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _GivenTwice(f"an object has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return found


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
    """Return the library's error message, with line and column in place of a character position."""
    words = re.sub(r"b'(\w+)'", r"\1", message)
    words = re.sub(r"U\+00([2-7][0-9a-f])", lambda code: repr(chr(int(code[1], 16))), words)
    found = re.search(r"near (\d+)", words)
    if not found:
        return words
    before = text[: max(int(found[1]) - 1, 0)]
    place = f"line {before.count(chr(10)) + 1} column {len(before) - before.rfind(chr(10))}"
    return words.replace(found[0], f"at {place}")


TABLES: Final = {
    "mcpServers": "Claude, Cursor, Windsurf, Cline, Roo Code, Gemini CLI, Kiro, LM Studio, Copilot CLI",
    "servers": "VS Code",
    "context_servers": "Zed",
    "mcp_servers": "Codex",
    "amp.mcpServers": "Amp",
}
"""Keys of a file that have servers by name, each with the hosts that use it."""
BESIDE: Final = frozenset({"$schema", "gateway", "inputs", "mcp", "allowMCPServers", "excludeMCPServers", *TABLES})
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_SHOWN: Final = 12


class FaultyEntry(NamedTuple):
    """A server's entry that cannot be served, as it is in the file, with its faults."""

    given: Any
    faults: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Adapted:
    """A file's document, translated from the form of its host into that of the gateway."""

    document: dict[str, Any]
    """`mcpServers` and `gateway`."""
    findings: Findings
    """Notes, and faults of the whole file."""
    places: dict[str, str] = field(default_factory=dict)
    """The path of a server's entry in the file, by server, if that is not `mcpServers.NAME`."""
    faulty: dict[str, FaultyEntry] = field(default_factory=dict)
    """The entries that cannot be served, by server."""


def adapted(given: Mapping[str, Any], place: Place) -> Adapted:
    """Translate the document of a file into `mcpServers` and `gateway`. `place`: what replaces the placeholders in it.
    Entries that are not objects stay as they are; validation reports them later."""
    found = Findings()
    tables = dict(_tables(given))
    _unknown_keys(given, bool(tables), found)
    result = Adapted(document={}, findings=found)
    if "gateway" in given:
        result.document["gateway"] = given["gateway"]
    broken = next((table for table in tables.values() if not isinstance(table, dict)), None)
    if broken is not None:
        result.document["mcpServers"] = broken
        return result
    place = replace(place, inputs=_inputs(given))
    if tables:
        result.document["mcpServers"] = {}
    for key, table in tables.items():
        for name, entry in table.items():
            _add(result, (key, name), entry, place)
    _filter_servers(given, result)
    return result


def _tables(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in TABLES:
        if given.get(key) is not None:
            yield key, given[key]
    within = given.get("mcp")
    if not isinstance(within, dict):
        return
    if isinstance(within.get("servers"), dict):  # VS Code's settings, opencode 2
        yield "mcp.servers", within["servers"]
    elif within and all(isinstance(entry, dict) for entry in within.values()):  # opencode, Crush
        yield "mcp", within


def served_name(name: str) -> str:
    """Return the name under which the gateway serves the server that its host calls `name`. Characters that are not
    allowed in a URL are replaced. Empty if none is allowed."""
    return name if _NAME.fullmatch(name) else re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip(".-")


def _add(result: Adapted, where: tuple[str, str], entry: Any, place: Place) -> None:
    """Add a server to the document of `result`, under a name that is allowed in URLs and in names of tools. `where`:
    the key of the table that has the server, and the server's name there."""
    found, (key, name) = result.findings, where
    served = served_name(name)
    at, servers = f"{key}.{name}", result.document["mcpServers"]
    given, own = entry, Findings()
    if isinstance(entry, dict):
        entry = adapted_entry(at, entry, place, own)
        found.notes.extend(own.notes)
        if entry is None:
            found.faults.extend(own.faults)
            return
    if not served or served in servers:
        other = result.places.get(served, f"mcpServers.{served}")
        found.fault(
            at, f"would have the same name as {other}: rename it" if served else "needs an ASCII letter or digit"
        )
        return
    if served != name:
        found.note(f"{at}: served as {served}, because a server name is a part of URLs and of tool names")
    if at != f"mcpServers.{served}":
        result.places[served] = at
    servers[served] = entry
    if own.faults:
        result.faulty[served] = FaultyEntry(given, tuple(own.faults))


def _inputs(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the default values that the file gives VS Code's input variables (`${input:ID}`), by id."""
    inputs, within = given.get("inputs"), given.get("mcp")
    if inputs is None and isinstance(within, dict):
        inputs = within.get("inputs")
    entries = [each for each in inputs if isinstance(each, dict)] if isinstance(inputs, list) else []
    return {str(each.get("id")): each["default"] for each in entries if isinstance(each.get("default"), str)}


def _filter_servers(given: Mapping[str, Any], result: Adapted) -> None:
    """Remove each server that Gemini CLI's list of allowed servers lacks, or that its list of excluded servers has."""
    within = given.get("mcp")
    rules = within if isinstance(within, dict) else {}
    allowing = "mcp.allowed" if "allowed" in rules else "allowMCPServers"  # the second is of earlier versions
    excluding = "mcp.excluded" if "excluded" in rules else "excludeMCPServers"
    allowed = rules.get("allowed", given.get("allowMCPServers"))
    excluded = rules.get("excluded", given.get("excludeMCPServers"))
    for name in [*result.document.get("mcpServers", {})]:
        listed = result.places.get(name, name).rpartition("mcpServers.")[2]
        is_left_out = isinstance(allowed, list) and listed not in allowed
        if is_left_out or (isinstance(excluded, list) and listed in excluded):
            del result.document["mcpServers"][name]
            result.faulty.pop(name, None)
            what = f"{allowing} does not list it" if is_left_out else f"{excluding} lists it"
            result.findings.note(f"mcpServers.{listed}: not served, because {what}")


def _unknown_keys(given: Mapping[str, Any], has_servers: bool, found: Findings) -> None:
    """Add a note to `found` about unknown keys at the top of the file. A key similar to `gateway` or `mcpServers` is a
    fault: if it were ignored, the gateway would serve without its rules. `has_servers`: the file has a table of
    servers."""
    ignored = []
    for key in given:
        if key in BESIDE:
            continue
        ours = similar_name(key, ("gateway", "mcpServers") if has_servers else ("gateway", *TABLES), cutoff=0.85)
        if ours:
            found.fault(key, f"no such key; did you mean {ours}?")
        else:
            ignored.append(key)
    if ignored:
        more = f" and {len(ignored) - _SHOWN} more" if len(ignored) > _SHOWN else ""
        found.note(f"ignored {', '.join(ignored[:_SHOWN])}{more}: not mcpServers or gateway")
