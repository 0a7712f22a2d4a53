"""Find the files, folders and hosts that an operator names in a server's arguments and environment.

They are granted, because a published server gets its folders, its database and its URL there, and has to work with
them. Under `strict`, files and folders are granted for reading only, and hosts are not granted.
"""

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from gateway.sandbox.system_paths import OwnLink, followed, is_broad, is_of_system, real
from gateway.sandbox.untrusted_files import read_plain
from transports.upstream.walls.resolved_paths import is_within

_DATABASES: Final = (".db", ".sqlite", ".sqlite3", ".duckdb")
"""Endings of files beside which a database writes journals and locks."""
_READ_ONLY_ENDINGS: Final = (
    *(".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".sh", ".so", ".jar", ".wasm"),
    *(".pem", ".crt", ".cer", ".key", ".p12", ".pub"),
    *(".toml", ".yaml", ".yml", ".ini", ".conf", ".cfg", ".env"),
)
"""Endings of code, keys and settings. Such files are granted for reading only: if one session wrote them, they would
change for all."""
_READ_ONLY_WORDS: Final = ("config", "cred", "cert", "secret", "token", "key", "script", "bundle")
"""Words in the names of options and variables. Files that these options and variables name are granted for reading
only, because a session that wrote them would change them for all. The same holds for files that variables of uv name
(`UV_FIND_LINKS`), because packages come from there."""
_CODE_VARIABLES: Final = frozenset(
    "PATH PYTHONPATH PYTHONHOME PYTHONUSERBASE VIRTUAL_ENV NODE_PATH LD_LIBRARY_PATH LD_PRELOAD GEM_PATH GEM_HOME "
    "PERL5LIB RUBYLIB CLASSPATH JAVA_HOME CONDA_PREFIX NVM_DIR GOROOT GOPATH PLAYWRIGHT_BROWSERS_PATH CHROME_PATH "
    "PUPPETEER_EXECUTABLE_PATH PUPPETEER_CACHE_DIR".split()
)
"""Variables that name code, most of them as lists. The code is granted for reading only."""
_PORTS: Final[Mapping[str, int]] = {
    "http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21, "ssh": 22,
    "postgres": 5432, "postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "sqlserver": 1433,
    "redis": 6379, "rediss": 6379, "mongodb": 27017, "clickhouse": 8123, "neo4j": 7687, "bolt": 7687,
    "amqp": 5672, "amqps": 5671, "nats": 4222, "kafka": 9092, "socks5": 1080, "socks5h": 1080,
    "ldap": 389, "ldaps": 636, "imap": 143, "imaps": 993, "smtp": 25, "smtps": 465,
}  # fmt: skip
_PATH_WORDS: Final = ("path", "file", "dir", "folder")
"""Words in the names of options and variables whose values are paths, even if nothing is there yet."""
_ONE_PATH: Final = re.compile(r"/[^:,;*]+")
_LONGEST: Final = 4_096
_LINK: Final = "{}: {} is a symlink of the gateway's user; write the path that it leads to"


@dataclass(slots=True)
class NamedPaths:
    """The files, folders and hosts that a configuration names. The dictionaries to None are ordered sets."""

    read: dict[str, None] = field(default_factory=dict)
    """Paths to grant for reading, without symlinks."""
    write: dict[str, None] = field(default_factory=dict)
    """Paths to grant for reading and writing, without symlinks."""
    reach: dict[str, None] = field(default_factory=dict)
    """Hosts, with a port if one is known, as in `sandbox.reach`."""
    not_granted: dict[str, None] = field(default_factory=dict)
    """A sentence for each thing that is named but not granted, with what the operator can do."""
    repositories: dict[str, str] = field(default_factory=dict)
    """By git folder that has the history of a named worktree or submodule: the sentence for the operator."""


def named_paths(
    args: Sequence[str],
    env: Mapping[str, str],
    *,
    code: Iterable[str],
    folder: str | None,
    cwd: str | None = None,
    written: Iterable[str] = (),
) -> NamedPaths:
    """Return the files, folders and hosts that a server's arguments and environment name.

    `code` are the files and folders that the server runs from: no folder around or in one is granted for writing.
    Relative paths begin in `folder`; None: in the session's own folder, so that they need no grant. `cwd` is the
    configured working directory. It is granted for reading; None: there is none. `written` are the files and folders
    that a setting of the sandbox grants for writing.
    """
    found = _Named(tuple(code), folder)
    option = ""
    for word in args:
        if option == "-m":  # a module, which is code
            option = ""
            continue
        name, equals, value = word.partition("=")
        found.text(value if equals and name.startswith("-") else word, name if equals else option)
        option = word if word.startswith("-") else ""
    for name, value in env.items():
        if name in _CODE_VARIABLES:
            for part in value.split(os.pathsep):
                found.code(part, name)
        else:
            found.text(value, name)
    if cwd is not None:
        found.working_directory(cwd, written)
    return found.paths


class _Named:
    def __init__(self, code: tuple[str, ...], folder: str | None) -> None:
        self.paths = NamedPaths()
        self._code = code
        self._folder = folder

    def code(self, text: str, name: str) -> None:
        """Grant the file or folder `text` for reading: code that the environment variable `name` lists. Paths of the
        system need no grant."""
        path = self._followed(text) if text.startswith("/") else ""
        if not path or not os.path.exists(path) or is_of_system(path):
            return
        if is_broad(path):
            self._leave_out(f"{path}, in {name}: list what the server runs from there in read")
        else:
            self.folder(path, may_write=False)

    def working_directory(self, path: str, written: Iterable[str]) -> None:
        """Grant the folder in which the server starts, for reading. Follow symlinks in its path, because many projects
        lie behind one. But if the server's sessions may write such a symlink, grant nothing."""
        try:
            found = followed(path)
        except OwnLink as link:
            if is_within(str(link), (*self.paths.write, *written)):
                self._leave_out(_LINK.format(path, link))
                return
            found = real(path)
        if os.path.isdir(found):
            self.folder(found, may_write=False)

    def text(self, text: str, name: str) -> None:
        """Grant the file, folder or host that `text` names; do nothing if it names none. `text` is an argument, or the
        value of an option or variable with the name `name`."""
        if not text or len(text) > _LONGEST or "\0" in text:
            return
        url = _url(text)
        if url is not None and url.hostname:
            self._host(url, url.hostname)
            return
        if url is not None:  # file:///srv/notes.md, sqlite:////srv/notes.db
            text = unquote(url.path.removeprefix("/") if url.scheme.startswith("sqlite") else url.path)
        if text.startswith("~/"):
            self._leave_out(f"{text}: HOME is another folder in a sandbox; write the whole path")
            return
        self._path(text, name.lower())

    def _path(self, text: str, name: str) -> None:
        if self._folder is None and not text.startswith("/"):
            return
        path = self._followed(os.path.join(self._folder or "/", text))
        if not path:
            return
        is_read_only = name.startswith("uv_") or any(word in name for word in _READ_ONLY_WORDS)
        if os.path.isdir(path):
            self.folder(path, may_write=not is_read_only)
        elif os.path.isfile(path):
            self._file(path, may_write=not is_read_only and not path.endswith(_READ_ONLY_ENDINGS))
        elif os.path.exists(path):
            self._leave_out(f"{text}: a socket or device; grant it in sockets, or in write")
        elif text.startswith("/") and " " not in text and os.path.isdir(folder := os.path.dirname(path)):
            if is_broad(folder):
                self._leave_out(f"{path}: it does not exist; make it before the start, or correct the path")
            else:
                self._around(path, may_write=not is_read_only)  # the server will make it
        elif any(word in name for word in _PATH_WORDS) and _is_of_this_machine(text):
            folder = os.path.dirname(path)
            self._leave_out(f"{path}: there is no folder {folder}: mkdir -p {shlex.quote(folder)}")

    def _followed(self, path: str) -> str:
        """Return the path without symlinks. If it leads through a symlink that must not be followed, record that it is
        not granted, and return an empty string."""
        try:
            return followed(path)
        except OwnLink as link:
            self._leave_out(_LINK.format(path, link))
            return ""

    def folder(self, path: str, *, may_write: bool) -> None:
        """Grant a folder for reading, with `may_write` also for writing. A folder that contains the server's code, or
        lies in it, is granted for reading only: a session must not change the code that other sessions run."""
        is_code = any(f"{code}/".startswith(f"{path}/") or path.startswith(f"{code}/") for code in self._code)
        if is_code and may_write:
            self._leave_out(
                f"{path}: it belongs to the server's code, so it is only read; list it in write if it is data"
            )
        if is_broad(path):
            self._leave_out(f"{path}: it holds too much to be meant as a whole; grant what is needed in read or write")
        else:
            (self.paths.write if may_write and not is_code else self.paths.read)[path] = None
        if may_write and (repository := _repository_of(path)):
            why = f"{path} is a part of this git repository: list it in write if the server uses git there"
            self.paths.repositories[repository] = f"{repository}: {why}"

    def _file(self, path: str, *, may_write: bool) -> None:
        if not may_write or path in self._code or os.access(path, os.X_OK):
            self.paths.read[path] = None
            return
        self.paths.write[path] = None
        if path.endswith(_DATABASES) and not is_broad(os.path.dirname(path)):
            self._around(path, may_write=True)

    def _around(self, path: str, *, may_write: bool) -> None:
        """Grant the folder around a file, because the server will make the file, or a database writes journals beside
        it. With `may_write`, grant nothing if the folder contains other things, too (`_is_of_one`)."""
        folder, name = os.path.split(path)
        if may_write and not is_broad(folder) and not _is_of_one(folder, name):
            missing = "" if os.path.exists(path) else f"{path} does not exist: make it if it is a folder; "
            self._leave_out(
                f"{missing}{folder}: it holds more than {name}, which a server could change: give {name} a folder of "
                "its own, or list the folder in write"
            )
        else:
            self.folder(folder, may_write=may_write)

    def _host(self, url: SplitResult, host: str) -> None:
        try:
            port = url.port or _PORTS.get(url.scheme.partition("+")[0])
        except ValueError:
            return
        if not _is_link_local(host):
            shown = f"[{host}]" if ":" in host else host
            self.paths.reach[shown if port is None else f"{shown}:{port}"] = None
        else:
            self._leave_out(f"{host}: a link-local address, as that of a cloud's metadata; grant it in reach")

    def _leave_out(self, what: str) -> None:
        self.paths.not_granted[what] = None


def _is_of_this_machine(text: str) -> bool:
    """Return whether the text is one absolute path whose first folder exists on this machine. Other texts that look
    like paths are paths of URLs, or lists."""
    return _ONE_PATH.fullmatch(text) is not None and os.path.isdir("/" + text.split("/")[1])


def _is_of_one(folder: str, name: str) -> bool:
    """Return whether the folder around a file `name` can be granted with the file, because nothing else is in it: only
    files whose names begin with `name`, and databases with their journals. Return False if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return all(
                entry.is_file(follow_symlinks=False)
                and (entry.name.startswith(name) or any(ending in entry.name for ending in _DATABASES))
                for entry in entries
            )
    except OSError:
        return False


def _repository_of(folder: str) -> str:
    """Return the path of the git folder with the history of a worktree or submodule; empty for other folders. The path
    is read from a file that sessions may have written. So the git folder is shown to the operator and not granted."""
    try:
        noted = read_plain(Path(folder), Path(folder, ".git"), _LONGEST).decode("utf-8")
    except (OSError, ValueError):
        return ""
    name, _, place = noted.partition("\n")[0].partition(": ")
    if name != "gitdir" or not place.strip() or "\0" in place:
        return ""
    path = Path(os.path.normpath(os.path.join(folder, place.strip())))
    return str(path.parents[1] if path.parent.name == "worktrees" else path)


def _url(text: str) -> SplitResult | None:
    if "://" not in text:
        return None
    try:
        url = urlsplit(text)
        _ = url.hostname
    except ValueError:
        return None
    return url if url.scheme else None


def _is_link_local(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_link_local
