"""Finds the configuration files of MCP hosts on this machine, and the servers in them, as they stand there."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.config.addresses import is_loopback
from gateway.config.faults import ConfigurationError
from gateway.config.hosts.documents import read_document
from gateway.config.hosts.entries import WITHOUT_MEANING, Findings, adapted_entry
from gateway.config.hosts.files import TABLES, served_name
from gateway.config.hosts.placeholders import Place
from gateway.config.upstreams import UpstreamSettings
from session_store.metadata import scrubbed, scrubbed_text, secret_arguments

__all__ = [
    "FoundServers",
    "found_servers",
]

_IN_PROJECT: Final = (".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json", ".gemini/settings.json")
_IN_HOME: Final = (
    *(".claude.json", ".cursor/mcp.json", ".codex/config.toml", ".gemini/settings.json"),
    *(".codeium/windsurf/mcp_config.json", ".lmstudio/mcp.json", ".copilot/mcp-config.json", ".kiro/settings/mcp.json"),
)
_OURS_ALONE: Final = frozenset(UpstreamSettings.model_fields) - frozenset(
    {"command", "args", "env", "cwd", "url", "headers", "only_tools", "hidden_tools", "tools"}
)
"""Fields that no other host has: a file that came with a folder does not decide what a server may touch, or who shares
it."""
_OF_APPS: Final = ("Claude/claude_desktop_config.json", "Code/User/mcp.json")


@dataclass(slots=True)
class FoundServers:
    """`entries` by name, `places` the file of each by the same name, `secrets` what in it looks like a credential that
    stands there as text, and `notes` on what was left out."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, Path] = field(default_factory=dict)
    secrets: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def found_servers(project: Path, home: Path, environ: Mapping[str, str]) -> FoundServers:
    """Return the servers that hosts have for that folder, and for that user. The first of a name counts: those of the
    project come first."""
    found = FoundServers()
    apps = home / ("Library/Application Support" if sys.platform == "darwin" else ".config")
    files = [*(project / name for name in _IN_PROJECT), *(apps / name for name in _OF_APPS)]
    files += [home / name for name in _IN_HOME]
    for file in dict.fromkeys(files):
        try:
            if file.is_file():
                _add(file, read_document(file), project, environ, found)
        except (ConfigurationError, OSError) as error:
            found.notes.append(f"left out: {error}")
    return found


def _add(file: Path, document: dict[str, Any], project: Path, environ: Mapping[str, str], found: FoundServers) -> None:
    for name, entry in _entries(document, project):
        named = served_name(name)
        findings = Findings()
        place = Place(environ=environ, folder=file.parent)
        if adapted_entry(name, dict(entry), place, findings) is None:
            found.notes += [f"{file}: {note.text}" for note in findings.notes]
        elif not named:
            found.notes.append(f"{file}: {name}: left out, its name needs an ASCII letter or digit")
        elif _is_gateway(entry):
            found.notes.append(f"{file}: {name}: left out, it is a gateway on this machine")
        elif named not in found.entries:
            found.entries[named] = _taken(f"{file}: {name}", entry, found)
            found.places[named] = file
            if secrets := list(_secrets(found.entries[named])):
                found.secrets[named] = secrets
        elif found.entries[named] != entry:
            found.notes.append(f"{file}: {name}: left out, {found.places[named]} has one of that name")


def _taken(where: str, entry: Mapping[str, Any], found: FoundServers) -> dict[str, Any]:
    """Return what another host's entry is taken for."""
    taken = {key: value for key, value in entry.items() if key not in WITHOUT_MEANING | _OURS_ALONE}
    if isinstance(taken.get("tools"), dict):
        del taken["tools"]  # a list is another host's, a table ours
    if left := sorted(entry.keys() - taken.keys() - WITHOUT_MEANING):
        found.notes.append(
            f"{where}: without {', '.join(left)}, which no other client has: add it yourself if you want it"
        )
    return taken


def _secrets(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields whose text looks like a credential, by its name or its form, and not like a placeholder for
    one."""
    for table in ("env", "environment", "headers", "http_headers"):
        given = entry.get(table)
        values = given if isinstance(given, dict) else {}
        texts = {name: value for name, value in values.items() if isinstance(value, str) and "$" not in value}
        yield from (f"{table}.{name}" for name, value in scrubbed(texts).items() if value != texts[name])
    for key in ("args", "url", "serverUrl", "httpUrl"):
        given = entry.get(key)
        words = [word for word in (given if isinstance(given, list) else [given]) if isinstance(word, str)]
        named = {value for value in secret_arguments(words) if value and "$" not in value}
        if named or any("$" not in word and scrubbed_text(word) != word for word in words):
            yield key


def _entries(document: dict[str, Any], project: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the servers of a file. Claude Code has some by project."""
    projects = document.get("projects")
    of_project = projects.get(str(project)) if isinstance(projects, dict) else None
    for part in (of_project, document):
        tables = [part.get(key) for key in TABLES] if isinstance(part, dict) else []
        for table in tables:
            if isinstance(table, dict):
                yield from ((name, entry) for name, entry in table.items() if isinstance(entry, dict))


def _is_gateway(entry: Mapping[str, Any]) -> bool:
    """Return whether it is most likely this gateway, which a client has been told of: it would serve itself."""
    url = entry.get("url", entry.get("httpUrl"))
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
        return is_loopback(parts.hostname or "") and parts.port == 8_080 and parts.path.endswith("/mcp")
    except ValueError:
        return False
