"""Find the configuration files of MCP hosts on this machine, read the servers in them, and add an entry to a file.

The file's other content, comments and layout stay. Before the file is written, the result is parsed again: it must
equal the old document with the new entry.
"""

import copy
import errno
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from gateway.config.addresses import is_of_this_machine, is_own_endpoint, stdio_url
from gateway.config.configuration_errors import ConfigurationError
from gateway.config.hosts.client_snippets import ClientFile
from gateway.config.hosts.file_formats import TABLES, parsed_document, read_document, served_name
from gateway.config.hosts.placeholders import Place
from gateway.config.hosts.server_entries import OURS, WITHOUT_MEANING, Findings, adapted_entry
from gateway.config.sessions import KEY_HEADER, KEY_VARIABLE
from session_store.redaction import scrubbed, scrubbed_text, secret_arguments

_IN_PROJECT: Final = (".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json", ".gemini/settings.json")
_IN_HOME: Final = (
    *(".claude.json", ".cursor/mcp.json", ".codex/config.toml", ".gemini/settings.json"),
    *(".codeium/windsurf/mcp_config.json", ".lmstudio/mcp.json", ".copilot/mcp-config.json", ".kiro/settings/mcp.json"),
    ".config/zed/settings.json",
)
_OURS_ALONE: Final = OURS - frozenset(
    {"command", "args", "env", "cwd", "url", "headers", "only_tools", "hidden_tools", "tools"}
)
"""Fields that only this gateway has. They are not taken from other hosts' files, which may come with a folder: such a
file must not decide what a server may touch, or who shares it."""
_OF_APPS: Final = ("Claude/claude_desktop_config.json", "Code/User/mcp.json")


@dataclass(slots=True)
class FoundServers:
    """The servers that the configuration files of hosts on this machine have."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The entries of the servers, by name."""
    places: dict[str, Path] = field(default_factory=dict)
    """The file of each server, by name."""
    secrets: dict[str, list[str]] = field(default_factory=dict)
    """Names of fields with what looks like a credential in plain text, by server."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what was left out."""


def found_servers(project: Path, home: Path, environ: Mapping[str, str]) -> FoundServers:
    """Return the servers that hosts have for the folder `project`, and for the user whose home is `home`. If several
    servers have one name, the first one is used; those of the project come first. `environ`: the variables by which
    placeholders are replaced to check the entries; the entries that are returned keep their placeholders."""
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
        adapted = adapted_entry(name, dict(entry), place, findings)
        if adapted is None:
            found.notes += [f"{file}: {note.text}" for note in findings.notes]
        elif not named:
            found.notes.append(f"{file}: {name}: left out, its name needs an ASCII letter or digit")
        elif _is_gateway(entry, adapted.get("url")):
            found.notes.append(f"{file}: {name}: left out, it is this gateway")
        elif not {"command", "url"} & adapted.keys():
            found.notes.append(f"{file}: {name}: left out, it has neither a command nor a URL")
        elif named not in found.entries:
            found.entries[named] = _taken(f"{file}: {name}", entry, found)
            found.places[named] = file
            if secrets := list(_secrets(found.entries[named])):
                found.secrets[named] = secrets
        elif found.entries[named] != entry:
            found.notes.append(f"{file}: {name}: left out, {found.places[named]} has one of that name")


def _taken(where: str, entry: Mapping[str, Any], found: FoundServers) -> dict[str, Any]:
    """Return those fields of another host's entry that `init` adopts. Add a note to `found` about the fields that are
    left out. `where`: file and name of the entry, for this note."""
    taken = {key: value for key, value in entry.items() if key not in WITHOUT_MEANING | _OURS_ALONE}
    if isinstance(taken.get("tools"), dict):
        del taken["tools"]  # a list is another host's, a table ours
    if left := sorted(entry.keys() - taken.keys() - WITHOUT_MEANING):
        found.notes.append(
            f"{where}: without {', '.join(left)}, which no other client has: add it yourself if you want it"
        )
    return taken


def _secrets(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the entry's fields that have a credential in plain text, judged by its name or form.
    Placeholders do not count."""
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
    """Yield (name, entry) of each server in a host's file: first those that Claude Code has for the project, then all
    others."""
    projects = document.get("projects")
    of_project = projects.get(str(project)) if isinstance(projects, dict) else None
    for part in (of_project, document):
        tables = [part.get(key) for key in TABLES] if isinstance(part, dict) else []
        for table in tables:
            if isinstance(table, dict):
                yield from ((name, entry) for name, entry in table.items() if isinstance(entry, dict))


def _is_gateway(entry: Mapping[str, Any], url: Any) -> bool:
    """Return True if an entry most likely leads to this gateway, which would then serve itself. `url` is the URL in the
    entry, whatever the name of its field is."""
    args = entry.get("args")
    words = [word for word in args if isinstance(word, str)] if isinstance(args, list) else []
    if session_key_of(entry) or stdio_url(words) or any(word.startswith(KEY_HEADER) for word in words):
        return True
    return isinstance(url, str) and is_own_endpoint(url, "127.0.0.1", 8_080, ())


def session_key_of(entry: Mapping[str, Any]) -> str:
    """Return the session key in an entry; empty if the entry has none."""
    for table, name in (("headers", KEY_HEADER), ("http_headers", KEY_HEADER), ("env", KEY_VARIABLE)):
        given = entry.get(table)
        if isinstance(given, dict) and isinstance(given.get(name), str):
            return str(given[name])
    return ""


def object_in(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Return the object to which the keys lead in the file at `path`; empty if there is none.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    found: Any = read_document(path) if path.exists() and path.stat().st_size else {}
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def other_servers(path: Path, file: ClientFile) -> list[str]:
    """Return the names of the servers that the file at `path` has beside the entry of `file`. Entries that lead to this
    gateway are left out. Raises the errors of `object_in`."""
    return [
        name
        for name, entry in object_in(path, file.at[:-1]).items()
        if name != file.at[-1] and isinstance(entry, dict) and not _is_gateway(entry, entry.get("url"))
    ]


_TOKEN: Final = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[{}\[\]:,]|[^\s{}\[\]:,"'/]+""", re.DOTALL
)
_MODE: Final = 0o600
"""The permissions of a new file: entries can contain credentials."""


def add_entry(path: Path, file: ClientFile, *, copy: Path | None = None, url: str = "") -> bool:
    """Add the entry to the file at `path`, which is made if it is missing. Return False if the entry is there already.
    Before a file is changed, it is copied to `copy`. `url`: see `with_entry`.

    Raises:
        ConfigurationError: the file cannot be read or written, or has another entry of that name.
    """
    try:
        before = path.read_text(encoding="utf-8-sig") if path.exists() else ""
        after = with_entry(before, file, str(path), url=url)
        if after != before:
            if copy is not None and before:
                _keep_copy(path, copy)
            write_file(path, after)
        return after != before
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None


def _keep_copy(path: Path, kept: Path) -> None:
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(kept, path.read_bytes(), _MODE)
    except OSError as error:
        raise ConfigurationError(
            f"{path} is unchanged: {kept.parent}: {error.strerror}: a copy of it has no place there"
        ) from None


def copy_of(path: Path) -> Path:
    """Return the path for a copy of a file's present content, in the user's state folder. The copy has the credentials
    of the file, so it is not kept beside the file: servers may read there, and a repository could commit the copy, or
    be cloned with a forged one. Raises `OSError` if the file cannot be read."""
    own = os.environ.get("XDG_STATE_HOME", "")
    base = Path(own) if own.startswith("/") else Path.home() / ".local/state"
    digest = hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest()
    return base / "mcp-session-gateway/before-connect" / f"{digest}-{path.name}"


def write_file(path: Path, text: str) -> None:
    """Replace the content of the file in one step. An existing file keeps its permissions; a new one is only for its
    owner. Symlinks in the path are followed if they have a target and belong to the user or root. Raises `OSError` for
    other symlinks, or if the file cannot be written."""
    _check_links(path.absolute())
    real = Path(os.path.realpath(path))
    real.parent.mkdir(parents=True, exist_ok=True)
    mode = real.stat().st_mode & 0o777 if real.exists() else _MODE
    _replace(real, text.encode(), mode)


def _replace(real: Path, data: bytes, mode: int) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.replace(name, real)
    except BaseException:
        os.unlink(name)
        raise


def _check_links(path: Path) -> None:
    """Raise `OSError` if the path leads through a symlink without a target or of another user. Whoever made the link
    would choose where the file is written."""
    for part in (*reversed(path.parents), path):
        if not part.is_symlink():
            continue
        if not part.exists():
            why = "is a link to nothing: whoever made it would choose where this is written"
            raise OSError(errno.ELOOP, why if part == path else f"{part} {why}")
        if part.lstat().st_uid not in (os.geteuid(), 0):
            raise OSError(errno.ELOOP, f"{part} is a link of another user, who would choose where this is written")
        _check_links(part.parent / part.readlink())


def with_entry(text: str, file: ClientFile, where: str, *, url: str = "") -> str:
    """Return the text of a file with the entry of `file` added. `where` is the file's name in messages. `url` is the
    URL in the entry. If the text has this entry with the URL of another gateway of this machine, that URL is replaced
    by `url`. Raises `ConfigurationError` if the text cannot be edited, or has another entry of the same name."""
    if not text.strip():
        return file.text
    document = parsed_document(text, where, is_toml=file.language == "toml")
    wanted = copy.deepcopy(document)
    table: Any = wanted
    for key in file.at[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"{where}: {key} is not a table")
    name, entry = file.at[-1], file.entry
    before = table.get(name)
    if before == entry:
        return text
    former = _former_url(before, entry, url)
    if name in table and not former:
        was = before if isinstance(before, dict) else {}
        fields = ", ".join(key for key in was | entry if was.get(key) != entry.get(key))
        raise ConfigurationError(
            f"{where}: {'.'.join(file.at)} is there already, and differs in {fields}: remove it, or choose another "
            f"name{' (--name)' if url else ''}"
        )
    table[name] = entry
    if former:
        edited = text.replace(json.dumps(former), json.dumps(url))
    else:
        edited = f"{text.rstrip()}\n\n{file.text}" if file.language == "toml" else _json(text, file, wanted)
    try:
        is_right = parsed_document(edited, where, is_toml=file.language == "toml") == wanted
    except ConfigurationError:
        is_right = False
    if not is_right:
        raise ConfigurationError(f"{where}: cannot be edited without changing more; add this yourself:\n{file.text}")
    return edited


def _former_url(before: Any, entry: Any, url: str) -> str:
    """Return the URL that the present entry `before` has in place of `url`, if it is that of another gateway of this
    machine. Return an empty string if there is none, or if `before` differs from the new `entry` in anything else."""
    was, wanted = (json.dumps(each, sort_keys=True) for each in (before, entry))
    for found in re.findall(r'"(https?://[^"\\]+)"', was):
        is_gateway = is_of_this_machine(found) and urlsplit(found).path == urlsplit(url).path
        if is_gateway and was.replace(f'"{found}"', json.dumps(url)) == wanted:
            return str(found)
    return ""


def _json(text: str, file: ClientFile, wanted: Mapping[str, Any]) -> str:
    """Return JSON text with the entry of `file` added. Plain JSON is formatted again, with its own indentation, from
    the new document `wanted`. JSON with comments keeps its layout."""
    try:
        json.loads(text)
    except ValueError:
        return _inserted(text, file)
    found = re.search(r"\n([ \t]+)\S", text)
    return json.dumps(wanted, indent=found[1] if found else 2, ensure_ascii=False) + "\n"


def _inserted(text: str, file: ClientFile) -> str:
    """Return the text, which has comments, with the entry of `file` added as the last one in its object, after the
    comments there. If the object cannot be found, return the text unchanged."""
    places = {place.keys: place for place in _object_places(text)}
    above, inner = file.at[:-1], {file.at[-1]: file.entry}
    while above not in places and above:
        inner, above = {above[-1]: inner}, above[:-1]
    if above not in places:
        return text
    place, indent = places[above], "  " * len(above)
    body = json.dumps(inner, indent=2, ensure_ascii=False)[2:-2]  # without the braces around it
    lines = "".join(f"{indent}{line}\n" for line in body.splitlines())
    if place.last_word == ",":  # the last item has a comma here, and the new one gets one
        lines = f"{lines[:-1]},\n"
    comma = "" if place.last_word in ("{", ",") else ","
    between, line = text[place.last_end : place.end], text[: place.end].rpartition("\n")[2]
    if line.strip() or "\n" not in between:  # the brace has no line of its own
        between, lines = between.rstrip(" \t"), f"\n{lines}{indent}"
    else:
        between, lines = between[: len(between) - len(line)], f"{lines}{line}"
    return f"{text[: place.last_end]}{comma}{between}{lines}{text[place.end :]}"


class _ObjectPlace(NamedTuple):
    """The place of an object in JSON text, for adding an entry to it."""

    keys: tuple[str, ...]
    """The path of keys to the object."""
    last_word: str
    """The last token in the object that is not a comment."""
    last_end: int
    """The position after `last_word`."""
    end: int
    """The position of the closing brace."""


def _object_places(text: str) -> Iterator[_ObjectPlace]:
    """Yield the place of each object in JSON text. Objects inside of a list are left out."""
    path: list[str | None] = []
    key: str | None = None
    last, last_end = "", 0
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word.startswith(("//", "/*")):
            continue
        if word == ":":
            key = _unquoted(last)
        elif word in "{[":
            path.append(key)
            key = None
        elif word in "}]":
            keys = path[1:]
            if word == "}" and path and None not in keys:
                yield _ObjectPlace(tuple(part for part in keys if part is not None), last, last_end, token.start())
            if path:
                path.pop()
            key = None
        elif word == ",":
            key = None
        last, last_end = word, token.end()


def _unquoted(word: str) -> str:
    if not word.startswith(('"', "'")):
        return word
    try:
        return str(parsed_document('{"key": ' + word + "}", "", is_toml=False)["key"])
    except ConfigurationError:
        return word
